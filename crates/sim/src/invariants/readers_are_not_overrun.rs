//! No more frames of an operation wait for their reader than it granted.

use super::{Invariant, Sight};
use crate::scenarios::wire::fact::WireFact;

/// The claim.
#[derive(Debug, Default)]
pub struct ReadersAreNotOverrun {
    checks: u64,
}

impl Invariant<WireFact> for ReadersAreNotOverrun {
    fn name(&self) -> &'static str {
        "readers_are_not_overrun"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &WireFact) -> Result<(), String> {
        if let WireFact::Waiting { frames, granted } = fact {
            self.checks += 1;
            if frames > granted {
                return Err(format!("at {} {frames} frames wait where {granted} were granted", sight.host));
            }
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
