//! An operation ends exactly once for whoever began it, and nothing of it is heard after that.

use super::{Invariant, Sight};
use crate::scenarios::wire::fact::{Name, WireFact};
use std::collections::BTreeSet;

/// The claim.
#[derive(Debug, Default)]
pub struct OperationsEndOnce {
    open: BTreeSet<Name>,
    checks: u64,
}

impl Invariant<WireFact> for OperationsEndOnce {
    fn name(&self) -> &'static str {
        "operations_end_once"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &WireFact) -> Result<(), String> {
        match fact {
            WireFact::Started => {
                self.open.retain(|name| name.host != sight.host);
            }
            WireFact::Began(say) => {
                self.open.insert(say.name);
            }
            WireFact::Heard(name, _) if !self.open.contains(name) => {
                return Err(format!("{name} goes on after its end"));
            }
            WireFact::Ended(name, how) => {
                self.checks += 1;
                if !self.open.remove(name) {
                    return Err(format!("{name} ended again: {how:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.open.first() {
            Some(name) => Err(format!("{name} never ended")),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
