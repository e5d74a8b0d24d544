//! N5: all server state may be wiped: every client gets a session again.

use super::{Invariant, Sight};
use crate::kernel::HostId;
use crate::scenarios::notify::fact::Fact;
use std::collections::BTreeSet;

/// The claim.
#[derive(Debug, Default)]
pub struct EverybodyReturnsAfterAWipe {
    known: BTreeSet<HostId>,
    gone: BTreeSet<HostId>,
    checks: u64,
}

impl Invariant<Fact> for EverybodyReturnsAfterAWipe {
    fn name(&self) -> &'static str {
        "everybody_returns_after_a_wipe"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Granted(device) => {
                self.known.insert(*device);
                self.gone.remove(device);
            }
            Fact::Wiped => {
                self.gone = self.known.clone();
                self.checks += self.gone.len() as u64;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.gone.first() {
            Some(device) => Err(format!("{device} has had no session since everything was wiped")),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
