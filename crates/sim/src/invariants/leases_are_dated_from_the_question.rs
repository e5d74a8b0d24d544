//! F6: no owner believes in a lease for longer than a lease from when it last asked.

use super::{Invariant, Sight};
use crate::scenarios::placement::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct LeasesAreDatedFromTheQuestion {
    checks: u64,
}

impl Invariant<Fact> for LeasesAreDatedFromTheQuestion {
    fn name(&self) -> &'static str {
        "leases_are_dated_from_the_question"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        if let Fact::Published { held, asked, lease, .. } = fact {
            self.checks += 1;
            if let Some(holding) = held.iter().find(|holding| holding.until > *asked + *lease) {
                let late = holding.until.since(*asked + *lease);
                return Err(format!("{} counts on {} for {late:?} too long", sight.host, holding.leased.range));
            }
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
