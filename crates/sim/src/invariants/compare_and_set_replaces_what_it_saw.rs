//! No two compare-and-sets replace the same version of a cell.

use super::{Invariant, Sight};
use crate::scenarios::store::fact::{Action, CellName, ClientFact, OpName, Outcome};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct CompareAndSetReplacesWhatItSaw {
    open: BTreeMap<OpName, (CellName, u64, u64)>,
    successors: BTreeMap<(CellName, u64), u64>,
    checks: u64,
}

impl Invariant<ClientFact> for CompareAndSetReplacesWhatItSaw {
    fn name(&self) -> &'static str {
        "compare_and_set_replaces_what_it_saw"
    }

    fn observe(&mut self, _: &Sight<'_>, fact: &ClientFact) -> Result<(), String> {
        match fact {
            ClientFact::Asked { op, action: Action::CompareAndSet { cell, expected, timestamp } } => {
                self.open.insert(*op, (*cell, *expected, *timestamp));
                Ok(())
            }
            ClientFact::Told { op, outcome } => {
                let Some((cell, expected, timestamp)) = self.open.remove(op) else { return Ok(()) };
                if *outcome != Outcome::Done {
                    return Ok(());
                }
                self.checks += 1;
                match self.successors.insert((cell, expected), timestamp) {
                    Some(other) => Err(format!(
                        "{cell:?} at {expected} was replaced twice, by {other} and by {timestamp}: an update is lost"
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
