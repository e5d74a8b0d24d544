//! A write that was refused for certain, or fenced, is never read, and an entry that was refused is never delivered.

use super::{Invariant, Sight};
use crate::scenarios::store::fact::{Action, CellName, ClientFact, OpName, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// The claim.
#[derive(Debug, Default)]
pub struct RefusedWritesLeaveNoTrace {
    open: BTreeMap<OpName, Vec<Trace>>,
    refused: BTreeSet<Trace>,
    seen: BTreeSet<Trace>,
    checks: u64,
}

/// What an operation would leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trace {
    Cell(CellName, u64),
    Entry(u64),
}

fn traces(action: &Action) -> Vec<Trace> {
    match action {
        Action::Write { cells, timestamp, append, .. } => {
            let cells = cells.iter().map(|cell| Trace::Cell(*cell, *timestamp));
            cells.chain(append.iter().map(|(_, entry)| Trace::Entry(*entry))).collect()
        }
        Action::CompareAndSet { cell, timestamp, .. } => vec![Trace::Cell(*cell, *timestamp)],
        Action::Append { entries, .. } => entries.iter().copied().map(Trace::Entry).collect(),
        Action::Read { .. } | Action::Consume { .. } | Action::Ack { .. } => Vec::new(),
    }
}

impl Invariant<ClientFact> for RefusedWritesLeaveNoTrace {
    fn name(&self) -> &'static str {
        "refused_writes_leave_no_trace"
    }

    fn observe(&mut self, _: &Sight<'_>, fact: &ClientFact) -> Result<(), String> {
        let (op, outcome) = match fact {
            ClientFact::Asked { op, action } => {
                self.open.insert(*op, traces(action));
                return Ok(());
            }
            ClientFact::Told { op, outcome } => (op, outcome),
        };
        let traces = self.open.remove(op).unwrap_or_default();
        match outcome {
            Outcome::Refused | Outcome::Fenced { .. } | Outcome::Differs { .. } => {
                for trace in traces {
                    self.checks += 1;
                    self.refused.insert(trace);
                    if self.seen.contains(&trace) {
                        return Err(format!("{trace:?} was seen, and then its operation was refused"));
                    }
                }
                Ok(())
            }
            Outcome::Cells(cells) => {
                let seen = cells.iter().filter_map(|(cell, at)| at.map(|at| Trace::Cell(*cell, at)));
                self.saw(seen.collect())
            }
            Outcome::Delivered(entries) => self.saw(entries.iter().map(|(_, entry)| Trace::Entry(*entry)).collect()),
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}

impl RefusedWritesLeaveNoTrace {
    fn saw(&mut self, traces: Vec<Trace>) -> Result<(), String> {
        for trace in traces {
            if self.refused.contains(&trace) {
                return Err(format!("the operation of {trace:?} was refused, and now it is seen"));
            }
            self.seen.insert(trace);
        }
        Ok(())
    }
}
