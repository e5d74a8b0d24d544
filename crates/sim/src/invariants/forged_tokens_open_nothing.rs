//! F8: a token that the servers did not make, or did not make for this principal, is refused, however much it looks like one.

use super::{Invariant, Sight};
use crate::scenarios::notify::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct ForgedTokensOpenNothing {
    checks: u64,
}

impl Invariant<Fact> for ForgedTokensOpenNothing {
    fn name(&self) -> &'static str {
        "forged_tokens_open_nothing"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Forged { accepted } = fact else { return Ok(()) };
        self.checks += 1;
        match accepted {
            true => Err(format!("a token that is not {}'s was taken for one", sight.host)),
            false => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
