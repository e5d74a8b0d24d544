//! R5: what an entry changes that can be cached was named before it was proposed, so that every copy was gone by then.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct ChangesAreAnnounced {
    checks: u64,
}

impl Invariant<Fact> for ChangesAreAnnounced {
    fn name(&self) -> &'static str {
        "changes_are_announced"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Applied(applied) = fact else { return Ok(()) };
        self.checks += applied.changed.len() as u64;
        if applied.unannounced.is_empty() {
            return Ok(());
        }
        Err(format!(
            "entry {} changed {:?} unannounced: {:?}",
            applied.index, applied.unannounced, applied.command.command
        ))
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
