//! T1: whoever has the same cursor of the same query, as the same reader, has the same rows.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::{Fact, Rows};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct TheSameCursorHoldsTheSameRows {
    at: BTreeMap<Vec<u8>, (u32, Rows)>,
    checks: u64,
}

impl Invariant<Fact> for TheSameCursorHoldsTheSameRows {
    fn name(&self) -> &'static str {
        "the_same_cursor_holds_the_same_rows"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Cursor { client, exactly: Some(cursor), rows, .. } = fact else { return Ok(()) };
        match self.at.get(cursor) {
            None => drop(self.at.insert(cursor.clone(), (*client, rows.clone()))),
            Some((_, other)) if other == rows => self.checks += 1,
            Some((who, other)) => {
                return Err(format!("client {client} has {rows:?}, and client {who} had {other:?} at the same cursor"));
            }
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
