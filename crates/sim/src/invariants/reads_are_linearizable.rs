//! Reads, writes and compare-and-sets of each cell fit into one order that agrees with real time.
//!
//! A cell keeps the write with the largest timestamp, and no two operations here use the same one, so a cell is a
//! register that only grows. For such a register a history is linearizable if and only if every read returns a
//! timestamp that (1) some write had asked for by then, and that write did not itself begin after a larger timestamp was
//! in effect, which hides it for ever; (2) is not below that of any write or read that had ended before the read began.
//! Writes of unknown outcome need no search: once one is read it counts, before that it need not.

use super::{Invariant, Sight};
use crate::scenarios::store::fact::{Action, CellName, ClientFact, OpName, Outcome};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct ReadsAreLinearizable {
    cells: BTreeMap<CellName, Register>,
    open: BTreeMap<OpName, (Action, Vec<(CellName, u64)>)>,
    checks: u64,
}

#[derive(Debug, Default)]
struct Register {
    /// Every write asked for that can ever be seen, by timestamp: whether it is a tombstone.
    writes: BTreeMap<u64, bool>,
    /// The largest timestamp that is known to be in effect.
    floor: u64,
}

impl Register {
    fn asked(&mut self, timestamp: u64, tombstone: bool) {
        if timestamp > self.floor {
            self.writes.insert(timestamp, tombstone);
        }
    }

    /// A read that began when the floor was `floor` has returned `seen`.
    fn read(&mut self, floor: u64, seen: Option<u64>) -> Result<(), String> {
        match seen {
            Some(timestamp) => {
                if !self.writes.contains_key(&timestamp) {
                    return Err(format!(
                        "it shows timestamp {timestamp}, which nobody wrote, or only too late to be seen"
                    ));
                }
                if timestamp < floor {
                    return Err(format!("it shows timestamp {timestamp}, but {floor} was in effect before it began"));
                }
                self.floor = self.floor.max(timestamp);
                Ok(())
            }
            None if floor == 0 => Ok(()),
            None => {
                let removed = self.writes.range(floor..).find(|(_, tombstone)| **tombstone);
                let Some((timestamp, _)) = removed else {
                    return Err(format!("it shows nothing, but {floor} was in effect and nobody removed it since"));
                };
                self.floor = self.floor.max(*timestamp);
                Ok(())
            }
        }
    }
}

impl ReadsAreLinearizable {
    fn asked(&mut self, op: OpName, action: &Action) {
        let cells = match action {
            Action::Write { cells, timestamp, tombstone, .. } => {
                for cell in cells {
                    self.cells.entry(*cell).or_default().asked(*timestamp, *tombstone);
                }
                cells.clone()
            }
            Action::CompareAndSet { cell, timestamp, .. } => {
                self.cells.entry(*cell).or_default().asked(*timestamp, false);
                vec![*cell]
            }
            Action::Read { cells } => cells.clone(),
            Action::Append { .. } | Action::Consume { .. } | Action::Ack { .. } => return,
        };
        let floors = cells.into_iter().map(|cell| (cell, self.cells.entry(cell).or_default().floor)).collect();
        self.open.insert(op, (action.clone(), floors));
    }

    fn told(&mut self, op: OpName, outcome: &Outcome) -> Result<(), String> {
        let Some((action, floors)) = self.open.remove(&op) else { return Ok(()) };
        match (&action, outcome) {
            (Action::Write { cells, timestamp, .. }, Outcome::Done | Outcome::Appended { .. }) => {
                for cell in cells {
                    let register = self.cells.entry(*cell).or_default();
                    register.floor = register.floor.max(*timestamp);
                }
                Ok(())
            }
            (Action::CompareAndSet { expected, timestamp, .. }, Outcome::Done) => {
                // It saw what it expected, and wrote.
                let seen = Some(*expected).filter(|expected| *expected > 0);
                self.check(&floors, |_| seen)?;
                for (cell, _) in &floors {
                    let register = self.cells.entry(*cell).or_default();
                    register.floor = register.floor.max(*timestamp);
                }
                Ok(())
            }
            (Action::CompareAndSet { .. }, Outcome::Differs { actual }) => self.check(&floors, |_| *actual),
            (Action::Read { .. }, Outcome::Cells(seen)) => {
                let seen: BTreeMap<CellName, Option<u64>> = seen.iter().copied().collect();
                self.check(&floors, |cell| seen.get(&cell).copied().flatten())
            }
            _ => Ok(()),
        }
    }

    fn check(&mut self, floors: &[(CellName, u64)], seen: impl Fn(CellName) -> Option<u64>) -> Result<(), String> {
        for (cell, floor) in floors {
            self.checks += 1;
            let register = self.cells.entry(*cell).or_default();
            register.read(*floor, seen(*cell)).map_err(|what| format!("a read of {cell:?} is stale: {what}"))?;
        }
        Ok(())
    }
}

impl Invariant<ClientFact> for ReadsAreLinearizable {
    fn name(&self) -> &'static str {
        "reads_are_linearizable"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &ClientFact) -> Result<(), String> {
        match fact {
            ClientFact::Asked { op, action } => {
                self.asked(*op, action);
                Ok(())
            }
            ClientFact::Told { op, outcome } => {
                self.told(*op, outcome).map_err(|what| format!("{}, operation {}: {what}", sight.host, op.number))
            }
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
