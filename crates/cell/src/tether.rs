//! How long what a lock guards may go on (R10): no longer than everybody else is kept out.
//!
//! ```text
//!   local lease ends            the lock can be another's, at the earliest
//!          │◀──── lock-delay·(1−ρ) ────▶│
//!   ───────┴──────┬──────────────┬──────┴───▶ this host's clock
//!               term           kill
//! ```
//! The master gives a session up no earlier than its local lease ends, and keeps everybody else out for the lock-delay after
//! that. So a command may go on through jeopardy, until shortly before that sum.

use crate::master::SHORTEST_LEASE;
use crate::mutant::Mutant;
use crate::namespace::MAX_LOCK_DELAY;
use std::time::Duration;
use tidings_base::Mono;
use tidings_base::time::shortened;

/// Of the lease, one in so many parts is left at the holder when the next KeepAlive is answered.
const LEFT_PARTS: u32 = 6;

/// When a command is told to end, and when it must be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// It is asked to end.
    pub term: Mono,
    /// It is killed.
    pub kill: Mono,
}

impl Deadline {
    /// Whichever ends earlier: time that was taken away is never given back.
    pub fn sooner(self, other: Deadline) -> Deadline {
        Deadline { term: self.term.min(other.term), kill: self.kill.min(other.kill) }
    }
}

/// How a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// With its session: the lock is held back for its delay.
    Expired,
    /// While its session lives on: it went with its file, and has no delay.
    Gone,
}

/// What ties a command to its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tether {
    /// The lock-delay that was asked for; what is longer than [`MAX_LOCK_DELAY`] was shortened by the master.
    pub lock_delay: Duration,
    /// Between the request to end and the kill, at most.
    pub kill_after: Duration,
    /// What killing may take: a busy machine is late.
    pub slack: Duration,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Tether {
    /// The lock-delay that really holds, as much of it as is sure to pass.
    fn delay(&self) -> Duration {
        shortened(self.lock_delay.min(MAX_LOCK_DELAY))
    }

    /// The shortest lease under which a command outlives all is well: the next KeepAlive must be heard of before the command
    /// is asked to end. Two KeepAlives after one another leave a sixth of the lease at the holder: each is held for two
    /// thirds, and ρ is taken off both the hold and the lease.
    pub fn shortest_lease(&self) -> Duration {
        let delay = self.delay();
        // A busy machine hears of the new lease as late as it kills.
        let before = self.kill_after.min(delay / 2) + self.slack * 2;
        (before.saturating_sub(delay) * LEFT_PARTS).max(SHORTEST_LEASE)
    }

    /// While nothing is wrong, or nobody knows: everybody else is kept out for the lock-delay after the lease.
    pub fn while_held(&self, lease_until: Mono) -> Deadline {
        if self.mutant == Some(Mutant::CommandsOutliveLeases) {
            return Deadline { term: Mono::NEVER, kill: Mono::NEVER };
        }
        let delay = self.delay();
        let kill = (lease_until + delay).saturating_sub(self.slack);
        // With half of a short delay for a good end, jeopardy can still pass unnoticed in the other half.
        Deadline { term: kill.saturating_sub(self.kill_after.min(delay / 2)), kill }
    }

    /// The lock is lost: the master has freed it just now, or will have when it was going to, so its delay runs already.
    pub fn after_loss(&self, before: Deadline, now: Mono, loss: Loss) -> Deadline {
        let left = match loss {
            Loss::Expired => self.kill_after.min(self.delay().saturating_sub(self.slack)),
            Loss::Gone => Duration::ZERO,
        };
        Deadline { term: now, kill: before.kill.min(now + left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tether(lock_delay: u64, kill_after: u64) -> Tether {
        let (lock_delay, kill_after) = (Duration::from_secs(lock_delay), Duration::from_secs(kill_after));
        Tether { lock_delay, kill_after, slack: Duration::from_millis(250), mutant: None }
    }

    const fn at(milliseconds: u64) -> Mono {
        Mono(milliseconds * 1_000_000)
    }

    #[test]
    fn a_command_is_dead_before_lease_end_and_lock_delay() {
        let lease = at(100_000);
        // 60 s shortened by ρ are 54.
        assert_eq!(tether(60, 10).while_held(lease), Deadline { term: at(143_750), kill: at(153_750) });
        // More than the cell keeps counts for nothing.
        assert_eq!(tether(300, 10).while_held(lease), tether(60, 10).while_held(lease));
        let before = tether(300, 90).while_held(lease);
        assert_eq!(tether(300, 90).after_loss(before, lease, Loss::Expired).kill, at(153_750));
        // A short delay is shared between jeopardy and a good end.
        assert_eq!(tether(10, 10).while_held(lease), Deadline { term: at(104_250), kill: at(108_750) });
        // Without a delay it is dead before the lease ends.
        assert_eq!(tether(0, 10).while_held(lease), Deadline { term: at(99_750), kill: at(99_750) });
    }

    #[test]
    fn the_shortest_lease_is_renewed_before_the_command_is_asked_to_end() {
        // How far a lease reaches when the next answer comes: both are dated from when their KeepAlives were sent.
        let left = |lease: Duration| {
            let held = lease - lease / 3;
            shortened(held + lease).saturating_sub(held * 2)
        };
        for (delay, kill_after) in [(0, 10), (100, 10), (500, 10), (900, 1), (5_000, 60), (60_000, 10)] {
            let (lock_delay, kill_after) = (Duration::from_millis(delay), Duration::from_secs(kill_after));
            let tether = Tether { lock_delay, ..tether(0, 10) };
            let tether = Tether { kill_after, ..tether };
            let shortest = tether.shortest_lease();
            let answered = at(100_000);
            let term = tether.while_held(answered + left(shortest)).term;
            assert!(term >= answered + tether.slack, "{tether:?}: {shortest:?}");
            // A bit less would not do, where it is not the cell that sets the bound.
            if shortest > SHORTEST_LEASE {
                let shorter = shortest - Duration::from_millis(60);
                assert!(tether.while_held(answered + left(shorter)).term < answered + tether.slack, "{tether:?}");
            }
        }
        assert_eq!(tether(0, 10).shortest_lease(), Duration::from_secs(3));
        assert_eq!(tether(60, 10).shortest_lease(), SHORTEST_LEASE);
    }

    #[test]
    fn the_rule_is_missed_when_it_is_left_out() {
        let lease = at(100_000);
        let late = |mutant| {
            let in_time = |lock_delay: &u64| {
                // The earliest at which the lock can be anybody else's: the master keeps no more than its longest delay, and
                // its clock may gain ρ on the one here.
                let others = lease + shortened(Duration::from_secs(*lock_delay).min(MAX_LOCK_DELAY));
                Tether { mutant, ..tether(*lock_delay, 10) }.while_held(lease).kill < others
            };
            [0, 1, 10, 60, 300].iter().filter(|delay| !in_time(delay)).count()
        };
        assert_eq!((late(None), late(Some(Mutant::CommandsOutliveLeases))), (0, 5));
    }

    #[test]
    fn after_a_loss_the_delay_runs_already() {
        let tether = tether(5, 10);
        let before = tether.while_held(at(100_000));
        let after = |now| tether.after_loss(before, now, Loss::Expired);
        assert_eq!(after(at(90_000)), Deadline { term: at(90_000), kill: at(94_250) });
        assert_eq!(after(at(104_000)).kill, before.kill);
    }

    #[test]
    fn a_lock_that_went_with_its_file_has_no_delay() {
        let tether = tether(60, 10);
        let after = tether.after_loss(tether.while_held(at(100_000)), at(90_000), Loss::Gone);
        assert_eq!(after, Deadline { term: at(90_000), kill: at(90_000) });
    }

    #[test]
    fn time_that_was_taken_away_is_not_given_back() {
        let (deadline, later) = (Deadline { term: at(5), kill: at(9) }, Deadline { term: at(7), kill: at(8) });
        assert_eq!(deadline.sooner(later), Deadline { term: at(5), kill: at(8) });
    }
}
