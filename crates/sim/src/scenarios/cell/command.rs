//! A command that runs under a lock, and whoever ends it in time (R10).
//!
//! As `tidings cell lock` does it: the command goes on through jeopardy, until its tether's end.

use super::fact::Fact;
use std::time::Duration;
use tidings_base::Mono;
use tidings_cell::mutant::Mutant;
use tidings_cell::tether::{Deadline, Loss, Tether};

/// How often a command does something.
const ACTS: Duration = Duration::from_millis(100);
/// As long as `tidings cell lock` gives a command by itself.
const KILL_AFTER: Duration = Duration::from_secs(10);
/// What killing may take.
const SLACK: Duration = Duration::from_millis(250);

/// A lock that an application holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its session.
    pub session: u64,
    /// The lock.
    pub path: String,
    /// The node and the lock's generation.
    pub order: (u64, u64),
    /// Or shared.
    pub exclusive: bool,
    /// The lock-delay that was asked for.
    pub delay: Duration,
}

/// A command that runs. It ends only when it is killed.
pub struct Command {
    grant: Grant,
    tether: Tether,
    deadline: Deadline,
    /// It was asked to end.
    told: bool,
    lost: bool,
    next_act: Mono,
}

impl Command {
    /// Starts under a lock that is held, and a lease that runs.
    pub fn start(grant: Grant, mutant: Option<Mutant>, now: Mono, lease_until: Mono) -> Command {
        let tether = Tether { lock_delay: grant.delay, kill_after: KILL_AFTER, slack: SLACK, mutant };
        let deadline = tether.while_held(lease_until);
        Command { grant, tether, deadline, told: false, lost: false, next_act: now }
    }

    /// What it runs under.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// When it does something next.
    pub fn next_act(&self) -> Mono {
        self.next_act
    }

    /// Its session has ended.
    pub fn lost(&mut self, now: Mono) {
        if !std::mem::replace(&mut self.lost, true) {
            self.deadline = self.tether.after_loss(self.deadline, now, Loss::Expired);
        }
    }

    /// Whether its session has ended.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Time has passed; what it does, or that it is dead.
    pub fn wake(&mut self, now: Mono, lease_until: Option<Mono>) -> Result<Option<Fact>, Dead> {
        if let Some(until) = lease_until.filter(|_| !self.lost) {
            let next = self.tether.while_held(until);
            self.deadline = if self.told { self.deadline.sooner(next) } else { next };
        }
        self.told |= now >= self.deadline.term;
        if now >= self.deadline.kill {
            return Err(Dead);
        }
        if now < self.next_act {
            return Ok(None);
        }
        self.next_act = now + ACTS;
        let Grant { session, path, order, exclusive, .. } = self.grant.clone();
        Ok(Some(Fact::Runs { session, path, order, exclusive }))
    }
}

/// It was killed.
pub struct Dead;
