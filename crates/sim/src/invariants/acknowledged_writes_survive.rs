//! What was reported applied stands at its index at every replica, for ever.

use super::{Invariant, LogFact, Sight};
use std::collections::BTreeMap;
use tidings_base::LogIndex;

/// The claim.
#[derive(Debug, Default)]
pub struct AcknowledgedWritesSurvive {
    answered: BTreeMap<LogIndex, u64>,
    finals: u64,
    checks: u64,
}

impl Invariant<LogFact> for AcknowledgedWritesSurvive {
    fn name(&self) -> &'static str {
        "acknowledged_writes_survive"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &LogFact) -> Result<(), String> {
        match fact {
            LogFact::Answered { index, command } => {
                self.checks += 1;
                match self.answered.insert(*index, *command) {
                    Some(other) if other != *command => Err(format!("two commands were acknowledged at {index}")),
                    _ => Ok(()),
                }
            }
            LogFact::Applied { index, command, .. } => match self.answered.get(index) {
                Some(acknowledged) if acknowledged != command => {
                    Err(format!("{} applied another command at {index} than was acknowledged", sight.host))
                }
                _ => Ok(()),
            },
            LogFact::Final { index, .. } => {
                self.finals += 1;
                match self.answered.last_key_value() {
                    Some((last, _)) if last > index => {
                        Err(format!("{} ends at {index}, before the acknowledged entry {last}", sight.host))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        if self.finals == 0 { Err("no replica said where it ended".to_string()) } else { Ok(()) }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
