//! S5: once faults are over every request is answered; a lost history or a lost leader has cost nothing but time.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use std::collections::BTreeSet;

/// The claim.
#[derive(Debug, Default)]
pub struct CalmRequestsAreAnswered {
    waiting: BTreeSet<u64>,
    checks: u64,
}

impl Invariant<Fact> for CalmRequestsAreAnswered {
    fn name(&self) -> &'static str {
        "calm_requests_are_answered"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asks { id, calm: true, .. } => {
                self.waiting.insert(*id);
            }
            Fact::Answered { id, .. } => {
                self.checks += u64::from(self.waiting.remove(id));
            }
            // A request that came to the wrong node is asked elsewhere.
            Fact::Refused { id, why, moved } if self.waiting.remove(id) && !moved => {
                return Err(format!("request {id} is refused without need: {why}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.waiting.len() {
            0 => Ok(()),
            many => Err(format!("{many} requests are never answered")),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
