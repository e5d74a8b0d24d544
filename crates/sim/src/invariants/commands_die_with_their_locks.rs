//! R10: what was started under a lock does not run any more when somebody else has got it.
//!
//! Somebody else who shares it may run beside it; whoever has it alone may not, nor may anybody beside such a one.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Applied, Fact};
use std::collections::BTreeMap;
use tidings_wire::v1::LockMode;

/// The node and the lock's generation.
type Order = (u64, u64);

/// The claim.
#[derive(Debug, Default)]
pub struct CommandsDieWithTheirLocks {
    /// The last grant of each lock, and the last exclusive one.
    granted: BTreeMap<String, (Order, Order)>,
    checks: u64,
}

impl CommandsDieWithTheirLocks {
    fn applied(&mut self, applied: &Applied) {
        for (key, view) in applied.changed.iter().filter(|(key, _)| !key.listing) {
            let Some(stat) = view.stat.as_ref().filter(|stat| stat.lock() != LockMode::Unspecified) else { continue };
            let order = (stat.instance, stat.lock_generation);
            let (last, exclusive) = self.granted.entry(key.path.clone()).or_default();
            *last = (*last).max(order);
            if stat.lock() == LockMode::Exclusive {
                *exclusive = (*exclusive).max(order);
            }
        }
    }
}

impl Invariant<Fact> for CommandsDieWithTheirLocks {
    fn name(&self) -> &'static str {
        "commands_die_with_their_locks"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) => self.applied(applied),
            Fact::Runs { session, path, order, exclusive } => {
                self.checks += 1;
                let (last, last_exclusive) = self.granted.get(path).copied().unwrap_or_default();
                let other = if *exclusive { last } else { last_exclusive };
                if other > *order {
                    return Err(format!(
                        "{}: a command of session {session} runs under {path} with {order:?}, and {other:?} is granted",
                        sight.host
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
