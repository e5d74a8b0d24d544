//! R9: a live query that asks for the time is refused, and tells nothing.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct LiveQueriesHaveNoClock {
    checks: u64,
}

impl Invariant<Fact> for LiveQueriesHaveNoClock {
    fn name(&self) -> &'static str {
        "live_queries_have_no_clock"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Clocked { refused } = fact else { return Ok(()) };
        self.checks += 1;
        if *refused { Ok(()) } else { Err(format!("{} watches by the clock", sight.host)) }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
