//! T2, R1, R2: at the end every record is as the acknowledged change with the highest version left it, and no other is there.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::{Fact, Rows, Told};
use std::collections::BTreeMap;
use tidings_predicate::Key;
use tidings_tables::names::{OperationId, Position};

/// The claim.
#[derive(Debug, Default)]
pub struct AcknowledgedChangesAreKept {
    begun: BTreeMap<OperationId, (Key, Option<i64>)>,
    /// The last change of each record that was acknowledged, and what it left.
    latest: BTreeMap<Key, (Position, Option<i64>)>,
    last: Option<Rows>,
    checks: u64,
}

impl Invariant<Fact> for AcknowledgedChangesAreKept {
    fn name(&self) -> &'static str {
        "acknowledged_changes_are_kept"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Begins { op, key, value, forked: false, .. } => {
                self.begun.insert(*op, (key.clone(), *value));
            }
            Fact::Ends { op, told: Told::Done(version), forked: false } => {
                let Some((key, value)) = self.begun.get(op) else { return Ok(()) };
                let latest = self.latest.entry(key.clone()).or_insert((*version, *value));
                if *version > latest.0 {
                    *latest = (*version, *value);
                }
            }
            Fact::Last(rows) => self.last = Some(rows.clone()),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        let Some(last) = &self.last else { return Ok(()) };
        for (key, (version, value)) in &self.latest {
            self.checks += 1;
            let there = last.get(key).copied();
            let right = value.map(|value| (*version, value));
            if there != right {
                return Err(format!("{key:?} was left by {version} as {value:?}, and is {there:?}"));
            }
        }
        match last.keys().find(|key| !self.latest.contains_key(key)) {
            Some(key) => Err(format!("{key:?} is there, and nobody was told that it was written")),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
