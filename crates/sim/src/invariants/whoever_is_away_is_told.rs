//! R3: whoever is away hears of a change that concerns it, or has missed nothing.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct WhoeverIsAwayIsTold {
    checks: u64,
}

impl Invariant<Fact> for WhoeverIsAwayIsTold {
    fn name(&self) -> &'static str {
        "whoever_is_away_is_told"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Away { client, knows, fresh } if knows != fresh => {
                Err(format!("device {client} was told nothing and knows {knows:?}, and there is {fresh:?}"))
            }
            Fact::Stayed { client, missed } if !missed.is_empty() => {
                Err(format!("device {client} was told nothing of what was written in {missed:?}"))
            }
            Fact::Away { .. } | Fact::Stayed { .. } => {
                self.checks += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
