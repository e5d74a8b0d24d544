//! R10: a lock whose holder was lost is not granted again before its lock-delay has passed; a shared one holds back exclusive requests only.

use super::{Invariant, Sight};
use crate::clock::{MAX_PPM, SimTime};
use crate::scenarios::cell::fact::{Applied, Fact};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_wire::v1::{LockMode, cell_command::Command};

/// A lock: its path and the node's instance.
type Lock = (String, u64);

#[derive(Debug)]
struct Loss {
    until: SimTime,
    mode: LockMode,
    session: u64,
}

/// By session and handle: the mode, and the lock-delay that was asked for.
type Holders = BTreeMap<(u64, u64), (LockMode, Duration)>;

/// The claim.
#[derive(Debug, Default)]
pub struct LostLocksAreHeldBack {
    holders: BTreeMap<Lock, Holders>,
    losses: BTreeMap<Lock, Vec<Loss>>,
    checks: u64,
}

impl LostLocksAreHeldBack {
    fn applied(&mut self, at: SimTime, applied: &Applied) -> Result<(), String> {
        let session = applied.command.actor.as_ref().map_or(0, |actor| actor.session);
        match &applied.command.command {
            Some(Command::TakeLock(take)) => {
                let lock = (take.path.clone(), take.instance);
                let losses = self.losses.entry(lock.clone()).or_default();
                losses.retain(|loss| loss.until > at);
                self.checks += 1;
                let conflict = |loss: &&Loss| loss.mode == LockMode::Exclusive || take.mode() == LockMode::Exclusive;
                if let Some(loss) = losses.iter().find(conflict) {
                    return Err(format!(
                        "{} is granted to session {session} at {}, and is held back until {} for lost session {}",
                        take.path, applied.index, loss.until, loss.session
                    ));
                }
                let delay = Duration::from_millis(u64::from(take.lock_delay_ms));
                self.holders.entry(lock).or_default().insert((session, take.handle), (take.mode(), delay));
            }
            Some(Command::FreeLock(free)) => self.freed(&free.path, free.instance, (session, free.handle)),
            Some(Command::Close(close)) => self.freed(&close.path, close.instance, (session, close.handle)),
            Some(Command::StopSession(stop)) => self.stopped(at, stop.session, stop.lost),
            _ => {}
        }
        Ok(())
    }

    fn freed(&mut self, path: &str, instance: u64, holder: (u64, u64)) {
        if let Some(holders) = self.holders.get_mut(&(path.to_string(), instance)) {
            holders.remove(&holder);
        }
    }

    fn stopped(&mut self, at: SimTime, session: u64, lost: bool) {
        for (lock, holders) in &mut self.holders {
            let gone = holders.iter().filter(|((of, _), _)| *of == session);
            for (_, (mode, delay)) in gone.filter(|_| lost) {
                // The master's clock may be fast by so much; a microsecond for rounding.
                let shortest = delay.as_nanos() as u64 / 1_000_000 * (1_000_000 - MAX_PPM as u64);
                let until = at + Duration::from_nanos(shortest.saturating_sub(1_000));
                self.losses.entry(lock.clone()).or_default().push(Loss { until, mode: *mode, session });
            }
            holders.retain(|(of, _), _| *of != session);
        }
    }
}

impl Invariant<Fact> for LostLocksAreHeldBack {
    fn name(&self) -> &'static str {
        "lost_locks_are_held_back"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) if applied.took_effect() => self.applied(sight.at, applied),
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
