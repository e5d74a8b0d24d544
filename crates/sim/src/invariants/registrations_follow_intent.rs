//! N4: registrations converge to what clients intend: when the faults are over, client and servers agree on them.

use super::{Invariant, Sight};
use crate::scenarios::notify::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct RegistrationsFollowIntent {
    checks: u64,
}

impl Invariant<Fact> for RegistrationsFollowIntent {
    fn name(&self) -> &'static str {
        "registrations_follow_intent"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Agrees(device, agrees) = fact else { return Ok(()) };
        self.checks += 1;
        match agrees {
            true => Ok(()),
            false => Err(format!("{device} and the servers do not agree on what it wants to hear of")),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
