//! The guard: runs the command of `tidings cell lock` and ends it when its time is up, whatever becomes of its parent.
//!
//! ```text
//!   tidings cell lock ── deadlines, by a pipe ──▶ guard ── SIGTERM, SIGKILL ──▶ its process group: the command, itself
//! ```
//! A process of its own, because the one that keeps the session can be stopped or killed while the command runs on.
//! R10 holds all the same: no new deadline means death at the last one, and a closed pipe means death now.

use crate::cli::CellGuard;
use crate::output::{self, broken};
use rustix::process::{Signal, getpgrp, kill_process_group};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use tidings_base::{Error, Mono};
use tidings_cell::tether::Deadline;
use tidings_node::{SystemClock, clock::Clock};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// How long to sleep at most between two looks at the clock: timers do not count the time that a host was suspended.
const LOOK: Duration = Duration::from_millis(50);
/// As shells have it: the command exists and cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// As shells have it: there is no such command.
pub const NO_COMMAND: u8 = 127;

/// A deadline as it goes through the pipe.
pub fn line(deadline: Deadline) -> String {
    format!("{} {}\n", deadline.term.0, deadline.kill.0)
}

fn parse(line: &str) -> Option<Deadline> {
    let (term, kill) = line.split_once(' ')?;
    Some(Deadline { term: Mono(term.parse().ok()?), kill: Mono(kill.parse().ok()?) })
}

/// This host's clock, suspended time included: the same for the guard and its parent.
pub fn now() -> Mono {
    SystemClock.now().mono
}

/// What a shell would say of this end.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Runs the command until it ends or its time is up.
pub fn run(args: CellGuard) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| broken("cannot start the runtime", error))?.block_on(guard(args))
}

async fn guard(args: CellGuard) -> Result<ExitCode, Error> {
    // Signals to the group are meant for the command; whoever listens is not ended by them.
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
    let heard: Result<Vec<_>, _> = kinds.into_iter().map(signal).collect();
    let _heard = heard.map_err(|error| broken("cannot listen for signals", error))?;
    let control = pipe::OpenOptions::new().open_receiver(&args.control);
    let control = control.map_err(|error| broken("the guard of `cell lock` has no pipe to its parent", error))?;
    let mut lines = BufReader::new(control).lines();
    // Nothing runs before it is known for how long.
    let Some(mut deadline) = next(&mut lines).await else { return Ok(ExitCode::FAILURE) };
    let (program, arguments) =
        args.command.split_first().map_or((OsStr::new(""), &[][..]), |(p, a)| (p.as_os_str(), a));
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            let what = format!("cannot run {}", program.to_string_lossy());
            let told = broken(what, &error).hint("Name a program that exists and may be run, after `--`.");
            output::tell(&told, args.json);
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            return Ok(ExitCode::from(if missing { NO_COMMAND } else { CANNOT_RUN }));
        }
    };
    let (mut told, mut parent) = (false, true);
    loop {
        let now = now();
        if now >= deadline.kill {
            // The guard goes with the group that it stands in; its parent knows what that means.
            signal_own_group(Signal::KILL);
        }
        if now >= deadline.term && !told {
            told = true;
            signal_own_group(Signal::TERM);
            // What is stopped cannot hear.
            signal_own_group(Signal::CONT);
        }
        let next_deadline = if told { deadline.kill } else { deadline.term };
        tokio::select! {
            biased;
            status = child.wait() => {
                let status = status.map_err(|error| broken("cannot wait for the command", error))?;
                return Ok(ExitCode::from(exit_code(status)));
            }
            line = next(&mut lines), if parent => match line {
                Some(later) if !told => deadline = later,
                Some(later) => deadline = deadline.sooner(later),
                None => {
                    parent = false;
                    deadline.term = deadline.term.min(now);
                }
            },
            () = tokio::time::sleep(next_deadline.since(now).min(LOOK)) => {}
        }
    }
}

/// The next deadline; nothing once the parent is gone.
async fn next(lines: &mut Lines<BufReader<pipe::Receiver>>) -> Option<Deadline> {
    let line = lines.next_line().await.ok().flatten()?;
    parse(&line)
}

fn signal_own_group(signal: Signal) {
    // A group that this process is in exists, and its members are this user's.
    let _ = kill_process_group(getpgrp(), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_pass_through_the_pipe() {
        let deadline = Deadline { term: Mono(5), kill: Mono(9) };
        assert_eq!(parse(line(deadline).trim_end()), Some(deadline));
        assert_eq!(parse("5"), None);
    }

    #[test]
    fn ends_are_told_as_shells_do() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(15)), 143);
    }
}
