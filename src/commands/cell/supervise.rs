//! Running a command only while a lock is held (R10): dead before the local lease end and the lock-delay have passed.
//!
//! The lock-delay keeps everybody else out after the master has given this session up, and the master does so no
//! earlier than the local lease ends. So the command may go on through jeopardy, until shortly before that sum.
//!
//! A lock whose file is deleted is gone without a delay, and another file of that path may be locked at once: then the command
//! is killed as soon as that is heard.

use super::guard::{self, Deadline, now};
use crate::commands::signals::{Signals, Told};
use crate::output::broken;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::time::Duration;
use tidings_base::time::shortened;
use tidings_base::{Error, Mono};
use tidings_cell::namespace::MAX_LOCK_DELAY;
use tokio::process::{Child, Command};

/// What killing may take: a busy machine schedules the guard late.
const SLACK: Duration = Duration::from_millis(250);
/// How often the lease is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What is held while the command runs.
pub trait Held {
    /// When the local lease ends; nothing while that is not known to lie ahead.
    fn lease_until(&self) -> Option<Mono>;
    /// Waits until the lock is lost, for good, and says how.
    fn lost(&mut self) -> impl Future<Output = Error> + Send;
}

/// Variables that the command finds beside its parent's.
pub type Environment = Vec<(&'static str, String)>;

/// What to run and for how long it may outlive its lock.
pub struct Guarded<'a> {
    pub command: &'a [String],
    pub environment: Environment,
    /// The lock-delay that was asked for; what is longer than [`MAX_LOCK_DELAY`] was shortened by the master.
    pub lock_delay: Duration,
    /// Between SIGTERM and SIGKILL, at most.
    pub kill_after: Duration,
    /// Errors are told as JSON.
    pub json: bool,
    /// R10, left out: the lock-delay is taken for what it was asked to be, on a clock like the master's.
    #[cfg(test)]
    pub careless: bool,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself or by a signal that was passed on: what a shell would say.
    Exited(u8),
    /// The lock was lost, and the command is dead.
    Lost(String),
}

impl Guarded<'_> {
    /// Runs the command to its end, or to the end of the lock. Signals are passed on to it.
    pub async fn run(&self, held: &mut impl Held, signals: &mut Signals) -> Result<Ended, Error> {
        let (mut child, mut control) = self.spawn()?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let mut sent = None;
        let mut deadline = self.while_held(held.lease_until().unwrap_or_else(now));
        let mut lost: Option<String> = None;
        let mut killed = false;
        let status = loop {
            if sent != Some(deadline) {
                // A guard that is gone has ended, and that is heard below.
                let _ = control.write_all(deadline.line().as_bytes());
                sent = Some(deadline);
            }
            tokio::select! {
                biased;
                status = child.wait() => break status,
                why = held.lost(), if lost.is_none() => {
                    deadline = self.after_loss(deadline, now(), &why);
                    lost = Some(why.message);
                }
                told = signals.next() => pass_on(group, match told {
                    Told::Interrupt => Signal::INT,
                    Told::Terminate => Signal::TERM,
                }),
                // The guard does it at that instant; if somebody has stopped the guard, this does.
                () = tokio::time::sleep(deadline.kill.since(now())), if !killed => {
                    pass_on(group, Signal::KILL);
                    killed = true;
                }
                () = tokio::time::sleep(LOOK), if lost.is_none() => {
                    // In jeopardy the last lease counts.
                    if let Some(until) = held.lease_until() {
                        deadline = self.while_held(until);
                    }
                }
            }
        };
        // Whatever the command left behind in its group, or a guard that somebody killed: nothing runs unguarded.
        pass_on(group, Signal::KILL);
        let status = status.map_err(|error| broken("cannot wait for the command", error))?;
        match lost {
            Some(why) => Ok(Ended::Lost(why)),
            None if now() >= deadline.term => Ok(Ended::Lost("the cell was out of reach for too long".to_owned())),
            None => Ok(Ended::Exited(guard::exit_code(status))),
        }
    }

    /// The guard in a process group of its own, and the pipe that its deadlines go through.
    fn spawn(&self) -> Result<(Child, File), Error> {
        let no_guard = |error: std::io::Error| broken("cannot start the command's guard", error);
        let (read, write) = rustix::pipe::pipe().map_err(|error| no_guard(error.into()))?;
        // Whoever inherited this end would keep the guard waiting for a parent that is gone.
        fcntl_setfd(&write, FdFlags::CLOEXEC).map_err(|error| no_guard(error.into()))?;
        // A group in the background that reads from a terminal is stopped.
        let stdin = if std::io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() };
        let child = Command::new(std::env::current_exe().map_err(no_guard)?)
            .args(["cell-guard", "--control", &format!("/dev/fd/{}", read.as_raw_fd())])
            .args(self.json.then_some("--json"))
            .arg("--")
            .args(self.command)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(stdin)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(no_guard)?;
        Ok((child, File::from(write)))
    }

    /// The lock-delay that really holds, as much of it as is sure to pass.
    fn delay(&self) -> Duration {
        #[cfg(test)]
        if self.careless {
            return self.lock_delay + SLACK;
        }
        shortened(self.lock_delay.min(MAX_LOCK_DELAY))
    }

    /// While nothing is wrong, or nobody knows: everybody else is kept out for the lock-delay after the lease.
    fn while_held(&self, lease_until: Mono) -> Deadline {
        let delay = self.delay();
        let kill = (lease_until + delay).saturating_sub(SLACK);
        // With half of a short delay for a good end, jeopardy can still pass unnoticed in the other half.
        Deadline { term: kill.saturating_sub(self.kill_after.min(delay / 2)), kill }
    }

    /// The master has freed the lock just now, or will have when it was going to: the delay runs already. But only a lost
    /// session leaves one: what a session loses that lives on went with its file.
    fn after_loss(&self, before: Deadline, now: Mono, why: &Error) -> Deadline {
        if why.code != "cell.expired" {
            return Deadline { term: now, kill: now };
        }
        let delay = self.delay().saturating_sub(SLACK);
        Deadline { term: now, kill: before.kill.min(now + self.kill_after.min(delay)) }
    }
}

fn pass_on(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // An empty group has nobody left to hear it.
        let _ = kill_process_group(group, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(lock_delay: u64, kill_after: u64) -> Guarded<'static> {
        let (lock_delay, kill_after) = (Duration::from_secs(lock_delay), Duration::from_secs(kill_after));
        Guarded { command: &[], environment: Vec::new(), lock_delay, kill_after, json: false, careless: false }
    }

    fn expired() -> Error {
        tidings_cell::error::expired(1)
    }

    const fn at(milliseconds: u64) -> Mono {
        Mono(milliseconds * 1_000_000)
    }

    #[test]
    fn a_command_is_dead_before_lease_end_and_lock_delay() {
        let lease = at(100_000);
        // 60 s shortened by ρ are 54.
        assert_eq!(guarded(60, 10).while_held(lease), Deadline { term: at(143_750), kill: at(153_750) });
        // More than the cell keeps counts for nothing.
        assert_eq!(guarded(300, 10).while_held(lease), guarded(60, 10).while_held(lease));
        assert_eq!(
            guarded(300, 90).after_loss(guarded(300, 90).while_held(lease), lease, &expired()).kill,
            at(153_750)
        );
        // A short delay is shared between jeopardy and a good end.
        assert_eq!(guarded(10, 10).while_held(lease), Deadline { term: at(104_250), kill: at(108_750) });
        // Without a delay it is dead before the lease ends.
        assert_eq!(guarded(0, 10).while_held(lease), Deadline { term: at(99_750), kill: at(99_750) });
    }

    #[test]
    fn the_rule_of_the_lock_delay_is_missed_when_it_is_left_out() {
        let lease = at(100_000);
        let late = |careless| {
            let in_time = |lock_delay: &u64| {
                // The earliest at which the lock can be anybody else's: the master keeps no more than its longest delay, and
                // its clock may gain ρ on the one here.
                let others = lease + shortened(Duration::from_secs(*lock_delay).min(MAX_LOCK_DELAY));
                Guarded { careless, ..guarded(*lock_delay, 10) }.while_held(lease).kill < others
            };
            [0, 1, 10, 60, 300].iter().filter(|delay| !in_time(delay)).count()
        };
        assert_eq!((late(false), late(true)), (0, 5));
    }

    #[test]
    fn after_a_loss_the_delay_runs_already() {
        let guarded = guarded(5, 10);
        let before = guarded.while_held(at(100_000));
        let after = |now| guarded.after_loss(before, now, &expired());
        assert_eq!(after(at(90_000)), Deadline { term: at(90_000), kill: at(94_250) });
        assert_eq!(after(at(104_000)).kill, before.kill);
    }

    #[test]
    fn a_lock_that_went_with_its_file_has_no_delay() {
        let guarded = guarded(60, 10);
        let gone = tidings_cell::error::node_gone("/l");
        let after = guarded.after_loss(guarded.while_held(at(100_000)), at(90_000), &gone);
        assert_eq!(after, Deadline { term: at(90_000), kill: at(90_000) });
    }
}
