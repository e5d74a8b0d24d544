//! R12: a handle that the cell did not make is refused, however much it looks like one that it made.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct ForgedHandlesOpenNothing {
    checks: u64,
}

impl Invariant<Fact> for ForgedHandlesOpenNothing {
    fn name(&self) -> &'static str {
        "forged_handles_open_nothing"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Forged { accepted } = fact else { return Ok(()) };
        self.checks += 1;
        if *accepted {
            Err(format!("a forged handle of {} was taken for one of the cell's", sight.host))
        } else {
            Ok(())
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
