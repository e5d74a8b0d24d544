//! R1: whoever asks after a table was dropped is not answered from it, though there is one of the same name again.

use super::{Invariant, Sight};
use crate::clock::SimTime;
use crate::scenarios::tables::fact::Fact;
use std::collections::BTreeMap;
use tidings_tables::names::TableId;

/// The claim.
#[derive(Debug, Default)]
pub struct DroppedTablesStayDropped {
    dropped: BTreeMap<TableId, SimTime>,
    asked: BTreeMap<(u32, u64), SimTime>,
    checks: u64,
}

impl Invariant<Fact> for DroppedTablesStayDropped {
    fn name(&self) -> &'static str {
        "dropped_tables_stay_dropped"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Dropped(table) => {
                self.dropped.insert(*table, sight.at);
            }
            Fact::Asks { client, id } => {
                self.asked.insert((*client, *id), sight.at);
            }
            Fact::Passing { client, id, table } => {
                let Some(asked) = self.asked.get(&(*client, *id)) else { return Ok(()) };
                self.checks += 1;
                if self.dropped.get(table).is_some_and(|dropped| dropped < asked) {
                    return Err(format!("client {client} was answered from {table}, dropped before it asked"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
