//! A log that is opened again holds at least what had been synced: the claim about `tidings-log` itself.

use super::{Invariant, LogFact, Sight};
use crate::kernel::HostId;
use std::collections::BTreeMap;
use tidings_base::LogIndex;

/// The claim.
#[derive(Debug, Default)]
pub struct SyncedRecordsSurvive {
    durable: BTreeMap<(HostId, u64), LogIndex>,
    lives: BTreeMap<HostId, u64>,
    checks: u64,
}

impl Invariant<LogFact> for SyncedRecordsSurvive {
    fn name(&self) -> &'static str {
        "synced_records_survive"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &LogFact) -> Result<(), String> {
        match fact {
            LogFact::Durable { index } => {
                let life = self.lives.get(&sight.host).copied().unwrap_or(0);
                self.durable.insert((sight.host, life), *index);
                Ok(())
            }
            LogFact::Started { last, life } => {
                self.checks += 1;
                self.lives.insert(sight.host, *life);
                match self.durable.get(&(sight.host, *life)) {
                    Some(durable) if last < durable => {
                        Err(format!("{} had synced up to {durable} and found only {last}", sight.host))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
