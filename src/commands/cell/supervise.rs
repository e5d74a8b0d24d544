//! Running a command only while a lock is held (R10): dead before the local lease end and the lock-delay have passed.
//!
//! For how long that is, [`Tether`] says: through jeopardy, until shortly before the lock can be another's.
//!
//! A lock whose file is deleted is gone without a delay, and another file of that path may be locked at once: then the command
//! is killed as soon as that is heard.

use super::guard::{self, now};
use crate::commands::signals::{Signals, Told};
use crate::output::broken;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::time::Duration;
use tidings_base::{Error, Mono};
use tidings_cell::tether::{Loss, Tether};
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
    /// What ties it to its lock; between the two of its deadlines there is time for SIGTERM.
    pub tether: Tether,
    /// Errors are told as JSON.
    pub json: bool,
}

/// What ties a command to a lock with this delay.
pub fn tether(lock_delay: Duration, kill_after: Duration) -> Tether {
    Tether { lock_delay, kill_after, slack: SLACK, mutant: None }
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
        let until = match lease_of(held, signals).await {
            Ok(until) => until,
            Err(ended) => return Ok(ended),
        };
        let (mut child, mut control) = self.spawn()?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let mut sent = None;
        let mut deadline = self.tether.while_held(until);
        let mut lost: Option<String> = None;
        let mut killed = false;
        let status = loop {
            if sent != Some(deadline) {
                // A guard that is gone has ended, and that is heard below.
                let _ = control.write_all(guard::line(deadline).as_bytes());
                sent = Some(deadline);
            }
            tokio::select! {
                biased;
                status = child.wait() => break status,
                why = held.lost(), if lost.is_none() => {
                    // Only a lost session leaves a delay: what a session loses that lives on went with its file.
                    let loss = if why.code == "cell.expired" { Loss::Expired } else { Loss::Gone };
                    deadline = self.tether.after_loss(deadline, now(), loss);
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
                        deadline = self.tether.while_held(until);
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
}

/// Waits until the lease is known to run. What is heard of a lock in jeopardy may be of long ago, and the lock another's by now:
/// nothing begins under it.
async fn lease_of(held: &mut impl Held, signals: &mut Signals) -> Result<Mono, Ended> {
    loop {
        if let Some(until) = held.lease_until() {
            return Ok(until);
        }
        tokio::select! {
            biased;
            why = held.lost() => return Err(Ended::Lost(why.message)),
            told = signals.next() => return Err(Ended::Exited(told.shells_code())),
            () = tokio::time::sleep(LOOK) => {}
        }
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
    use tidings_base::Class;

    /// A session in jeopardy that is back after so many looks, or over.
    struct Jeopardy {
        looks: std::cell::Cell<u32>,
        back: bool,
    }

    impl Held for Jeopardy {
        fn lease_until(&self) -> Option<Mono> {
            self.looks.set(self.looks.get().saturating_sub(1));
            (self.back && self.looks.get() == 0).then(|| now() + Duration::from_secs(60))
        }

        async fn lost(&mut self) -> Error {
            match self.back {
                true => std::future::pending().await,
                false => Error::new("cell.expired", Class::Refused, "the session is over"),
            }
        }
    }

    #[tokio::test]
    async fn nothing_begins_under_a_lock_that_is_heard_of_in_jeopardy() {
        let mut signals = Signals::listen().unwrap();
        let of = |back| Jeopardy { looks: std::cell::Cell::new(3), back };
        let over = lease_of(&mut of(false), &mut signals).await;
        assert_eq!(over, Err(Ended::Lost("the session is over".to_owned())));
        assert!(lease_of(&mut of(true), &mut signals).await.is_ok_and(|until| until > now()));
    }
}
