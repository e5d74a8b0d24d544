//! While a leader's lease lasts on its own clock, nobody else becomes leader.

use super::{Invariant, LogFact, Sight};
use crate::kernel::HostId;
use std::collections::BTreeMap;
use tidings_base::Mono;
use tidings_base::agreed::Role;

/// The claim.
#[derive(Debug, Default)]
pub struct LeasesExcludeOtherLeaders {
    leases: BTreeMap<HostId, Mono>,
    checks: u64,
}

impl Invariant<LogFact> for LeasesExcludeOtherLeaders {
    fn name(&self) -> &'static str {
        "leases_exclude_other_leaders"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &LogFact) -> Result<(), String> {
        match fact {
            LogFact::LeaseUntil(until) => {
                self.leases.insert(sight.host, *until);
            }
            // A new process does not know of the lease, and one that follows has given it up.
            LogFact::Started { .. } | LogFact::Role(Role::Follower { .. }) => {
                self.leases.remove(&sight.host);
            }
            LogFact::Role(Role::Leader { epoch }) => {
                self.checks += 1;
                for (holder, until) in self.leases.iter().filter(|(holder, _)| **holder != sight.host) {
                    if let Some(now) = (sight.clock)(*holder).filter(|now| now < until) {
                        return Err(format!(
                            "{} leads under epoch {epoch} while {holder}, whose clock shows {now:?}, has a lease until \
                             {until:?}",
                            sight.host
                        ));
                    }
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
