//! L1: an exclusive lock has one holder, by agreement and by the deeds of those who believe to hold it.
//!
//! A holder that looks at its session before it acts never acts after somebody who got the lock later has acted.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::Fact;
use std::collections::BTreeMap;
use tidings_wire::v1::{LockMode, cell_command::Command};

/// The claim.
#[derive(Debug, Default)]
pub struct OneHolderPerExclusiveLock {
    holders: BTreeMap<(String, u64), BTreeMap<(u64, u64), LockMode>>,
    acted: BTreeMap<String, (u64, u64)>,
    checks: u64,
}

impl OneHolderPerExclusiveLock {
    fn applied(&mut self, command: &Command, session: u64) -> Result<(), String> {
        match command {
            Command::TakeLock(take) => {
                self.checks += 1;
                let holders = self.holders.entry((take.path.clone(), take.instance)).or_default();
                holders.insert((session, take.handle), take.mode());
                if holders.len() > 1 && holders.values().any(|mode| *mode == LockMode::Exclusive) {
                    return Err(format!("{} is held by {holders:?} at once", take.path));
                }
            }
            Command::FreeLock(free) => self.freed(&free.path, free.instance, (session, free.handle)),
            Command::Close(close) => self.freed(&close.path, close.instance, (session, close.handle)),
            Command::StopSession(stop) => {
                self.holders
                    .values_mut()
                    .for_each(|holders| holders.retain(|(session, _), _| *session != stop.session));
            }
            _ => {}
        }
        Ok(())
    }

    fn freed(&mut self, path: &str, instance: u64, holder: (u64, u64)) {
        if let Some(holders) = self.holders.get_mut(&(path.to_string(), instance)) {
            holders.remove(&holder);
        }
    }
}

impl Invariant<Fact> for OneHolderPerExclusiveLock {
    fn name(&self) -> &'static str {
        "one_holder_per_exclusive_lock"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) if applied.took_effect() => {
                let session = applied.command.actor.as_ref().map_or(0, |actor| actor.session);
                applied.command.command.as_ref().map_or(Ok(()), |command| self.applied(command, session))
            }
            Fact::Touched { session, path, order } => {
                self.checks += 1;
                let newest = self.acted.entry(path.clone()).or_insert(*order);
                if *order < *newest {
                    return Err(format!(
                        "{}, session {session} acts under {path} with {order:?} after a holder with {newest:?} has acted",
                        sight.host
                    ));
                }
                *newest = *order;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
