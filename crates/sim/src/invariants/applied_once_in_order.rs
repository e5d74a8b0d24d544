//! Every replica applies consecutive indices, and a command stands in the log no more often than it was proposed.

use super::{Invariant, LogFact, Sight};
use crate::kernel::HostId;
use std::collections::BTreeMap;
use tidings_base::LogIndex;

/// The claim.
#[derive(Debug, Default)]
pub struct AppliedOnceInOrder {
    positions: BTreeMap<HostId, LogIndex>,
    /// By command: how often it was proposed, and where it stands.
    proposed: BTreeMap<u64, u64>,
    places: BTreeMap<u64, Vec<LogIndex>>,
    checks: u64,
}

impl Invariant<LogFact> for AppliedOnceInOrder {
    fn name(&self) -> &'static str {
        "applied_once_in_order"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &LogFact) -> Result<(), String> {
        match fact {
            LogFact::Started { .. } => {
                self.positions.remove(&sight.host);
            }
            LogFact::Restored { index } => {
                self.positions.insert(sight.host, *index);
            }
            LogFact::Proposed { command } => *self.proposed.entry(*command).or_default() += 1,
            LogFact::Applied { index, command, .. } => {
                self.checks += 1;
                let before = self.positions.insert(sight.host, *index).unwrap_or_default();
                if *index != before.next() {
                    return Err(format!("{} applied {index} after {before}", sight.host));
                }
                return self.place(*index, *command);
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}

impl AppliedOnceInOrder {
    fn place(&mut self, index: LogIndex, command: u64) -> Result<(), String> {
        if command == 0 {
            return Ok(());
        }
        let places = self.places.entry(command).or_default();
        if places.contains(&index) {
            return Ok(());
        }
        places.push(index);
        let proposed = self.proposed.get(&command).copied().unwrap_or(0);
        if places.len() as u64 > proposed {
            return Err(format!("a command was proposed {proposed} times and stands at {places:?}"));
        }
        Ok(())
    }
}
