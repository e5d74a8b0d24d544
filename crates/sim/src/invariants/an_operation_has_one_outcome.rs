//! T2, R6: whoever repeats an operation hears the same outcome, and its change is there at one version, or nowhere; something
//! else under its id is refused.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::{Fact, Told};
use std::collections::BTreeMap;
use tidings_tables::names::{OperationId, Position};

/// The claim.
#[derive(Debug, Default)]
pub struct AnOperationHasOneOutcome {
    /// By value: the operation that writes it.
    values: BTreeMap<i64, OperationId>,
    writes: BTreeMap<OperationId, i64>,
    told: BTreeMap<OperationId, Told>,
    /// By value: the version at which it was seen.
    seen: BTreeMap<i64, Position>,
    checks: u64,
}

impl AnOperationHasOneOutcome {
    /// Whether what was seen of a value is what was told of its operation.
    fn agrees(&self, value: i64) -> Result<(), String> {
        let Some(seen) = self.seen.get(&value) else { return Ok(()) };
        let Some(op) = self.values.get(&value) else { return Err(format!("nobody wrote {value}")) };
        match self.told.get(op) {
            Some(Told::Done(version)) if version != seen => {
                Err(format!("{op:?} took effect at {version}, and {value} was seen at {seen}"))
            }
            Some(Told::Done(_)) | None => Ok(()),
            Some(told) => Err(format!("{op:?} was told {told:?}, and {value} was seen at {seen}")),
        }
    }
}

impl Invariant<Fact> for AnOperationHasOneOutcome {
    fn name(&self) -> &'static str {
        "an_operation_has_one_outcome"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Begins { op, value: Some(value), forked: false, .. } => {
                self.values.insert(*value, *op);
                self.writes.insert(*op, *value);
            }
            Fact::Ends { op, told, forked: true } => {
                self.checks += 1;
                if *told != Told::Forked {
                    return Err(format!("{op:?} was used for something else, which was told {told:?}"));
                }
            }
            Fact::Ends { op, told, forked: false } => {
                self.checks += 1;
                if !matches!(told, Told::Done(_) | Told::Conflict) {
                    return Err(format!("{op:?}, never acknowledged and used once, was told {told:?}"));
                }
                if let Some(before) = self.told.insert(*op, told.clone()).filter(|before| before != told) {
                    return Err(format!("{op:?} was told {before:?}, and then {told:?}"));
                }
                if let Some(value) = self.writes.get(op) {
                    return self.agrees(*value);
                }
            }
            Fact::Shows { value, version, .. } => {
                if let Some(before) = self.seen.insert(*value, *version).filter(|before| before != version) {
                    return Err(format!("{value} was seen at {before}, and at {version}"));
                }
                return self.agrees(*value);
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
