//! Whoever is told that its request was not sent (`unreachable`) may send it again: no handler saw it, and none will.

use super::{Invariant, Sight};
use crate::scenarios::wire::fact::{End, Name, WireFact};
use std::collections::BTreeSet;
use tidings_base::Class;

/// The claim.
#[derive(Debug, Default)]
pub struct UnsentRequestsNeverArrive {
    arrived: BTreeSet<Name>,
    unsent: BTreeSet<Name>,
    checks: u64,
}

impl Invariant<WireFact> for UnsentRequestsNeverArrive {
    fn name(&self) -> &'static str {
        "unsent_requests_never_arrive"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &WireFact) -> Result<(), String> {
        match fact {
            WireFact::Arrived(say) => {
                self.arrived.insert(say.name);
                if self.unsent.contains(&say.name) {
                    return Err(format!("{} arrived after its caller heard that it was not sent", say.name));
                }
            }
            WireFact::Ended(name, End::Failed(Class::Unreachable)) => {
                self.checks += 1;
                self.unsent.insert(*name);
                if self.arrived.contains(name) {
                    return Err(format!("{name} had arrived when its caller heard that it was not sent"));
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
