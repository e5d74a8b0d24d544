//! R12: a handle whose close was answered is refused for ever, though its client still has the token.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct ClosedHandlesStayClosed {
    checks: u64,
}

impl Invariant<Fact> for ClosedHandlesStayClosed {
    fn name(&self) -> &'static str {
        "closed_handles_stay_closed"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Revived { accepted } = fact else { return Ok(()) };
        self.checks += 1;
        match accepted {
            true => Err(format!("a handle that {} closed was taken for an open one", sight.host)),
            false => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
