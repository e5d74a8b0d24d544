//! All replicas apply the same commands at the same places, get the same answers, and end in the same state.

use super::{Invariant, LogFact, Sight};
use std::collections::BTreeMap;
use tidings_base::LogIndex;

/// The claim.
#[derive(Debug, Default)]
pub struct ReplicasAgree {
    /// Digests of command and answer at each index, as the first replica had them.
    agreed: BTreeMap<LogIndex, (u64, u64)>,
    last: Option<(LogIndex, u64)>,
    checks: u64,
}

impl Invariant<LogFact> for ReplicasAgree {
    fn name(&self) -> &'static str {
        "replicas_agree"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &LogFact) -> Result<(), String> {
        match fact {
            LogFact::Alarm(what) => Err(format!("{}: {what}", sight.host)),
            LogFact::Applied { index, command, result } => {
                self.checks += 1;
                let known = *self.agreed.entry(*index).or_insert((*command, *result));
                match known {
                    _ if known == (*command, *result) => Ok(()),
                    (other, _) if other != *command => {
                        Err(format!("{} applied another command at {index} than an earlier replica", sight.host))
                    }
                    _ => Err(format!("{} got another answer from its state at {index}", sight.host)),
                }
            }
            LogFact::Final { index, state } => match self.last {
                Some(other) if other != (*index, *state) => Err(format!(
                    "{} ends at {index} with state {state:016x}, another replica at {} with {:016x}",
                    sight.host, other.0, other.1
                )),
                _ => {
                    self.last = Some((*index, *state));
                    Ok(())
                }
            },
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
