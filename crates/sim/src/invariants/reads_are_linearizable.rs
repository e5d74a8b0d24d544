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

#[cfg(test)]
mod tests {
    use super::super::tests::judge;
    use super::*;
    use crate::kernel::HostId;
    use proptest::prelude::*;

    const CELL: CellName = CellName { group: 0, row: 0 };

    /// One operation of a small history: what it is, and when it begins and ends.
    #[derive(Clone, Debug)]
    struct Small {
        what: What,
        begin: usize,
        end: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum What {
        Write { timestamp: u64, known: bool },
        Read { seen: Option<u64> },
    }

    /// The definition itself: some order that agrees with real time, and in which every read sees the largest
    /// timestamp written before it. Writes of unknown outcome may be left out.
    fn linearizable(left: &[Small], state: u64) -> bool {
        let decided = |op: &Small| !matches!(op.what, What::Write { known: false, .. });
        if !left.iter().any(decided) {
            return true;
        }
        (0..left.len()).any(|i| {
            let first = &left[i];
            let others: Vec<Small> =
                left.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, op)| op.clone()).collect();
            // Nothing that had ended before it began may come after it.
            if others.iter().any(|other| decided(other) && other.end < first.begin) {
                return false;
            }
            match first.what {
                What::Write { timestamp, .. } => linearizable(&others, state.max(timestamp)),
                What::Read { seen } => seen.unwrap_or(0) == state && linearizable(&others, state),
            }
        })
    }

    fn facts(history: &[Small]) -> Vec<(u32, ClientFact)> {
        let mut moments: Vec<(usize, bool, usize)> = Vec::new();
        for (i, op) in history.iter().enumerate() {
            moments.extend([(op.begin, false, i), (op.end, true, i)]);
        }
        moments.sort();
        let fact = |(_, ends, i): (usize, bool, usize)| {
            let op = OpName { client: HostId(i as u32), number: 1 };
            let fact = match (&history[i].what, ends) {
                (What::Write { timestamp, .. }, false) => {
                    let (cells, timestamp) = (vec![CELL], *timestamp);
                    let action = Action::Write { cells, timestamp, tombstone: false, fence: None, append: None };
                    ClientFact::Asked { op, action }
                }
                (What::Write { known, .. }, true) => {
                    ClientFact::Told { op, outcome: if *known { Outcome::Done } else { Outcome::Unknown } }
                }
                (What::Read { .. }, false) => ClientFact::Asked { op, action: Action::Read { cells: vec![CELL] } },
                (What::Read { seen }, true) => ClientFact::Told { op, outcome: Outcome::Cells(vec![(CELL, *seen)]) },
            };
            (i as u32, fact)
        };
        moments.into_iter().map(fact).collect()
    }

    fn history() -> impl Strategy<Value = Vec<Small>> {
        let op = (0u8..5, 0u64..4, 0usize..12, 1usize..8);
        proptest::collection::vec(op, 1..6).prop_map(|ops| {
            let mut timestamp = 0;
            let small = |(what, seen, begin, length): (u8, u64, usize, usize)| {
                let what = if what < 3 {
                    timestamp += 1;
                    What::Write { timestamp, known: what > 0 }
                } else {
                    What::Read { seen: Some(seen).filter(|seen| *seen > 0) }
                };
                // Odd moments for the ends, so that no two moments are the same and order is strict.
                Small { what, begin: begin * 2, end: (begin + length) * 2 + 1 }
            };
            ops.into_iter().map(small).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]
        #[test]
        fn the_two_rules_are_the_definition(history in history()) {
            let judged = judge(&mut ReadsAreLinearizable::default(), &facts(&history));
            prop_assert_eq!(judged.is_ok(), linearizable(&history, 0), "{:?}", judged);
        }
    }

    #[test]
    fn a_compare_and_set_sees_what_it_expected() {
        let op = |number| OpName { client: HostId(0), number };
        let asked = |number, expected, timestamp| {
            (0, ClientFact::Asked { op: op(number), action: Action::CompareAndSet { cell: CELL, expected, timestamp } })
        };
        let done = |number| (0, ClientFact::Told { op: op(number), outcome: Outcome::Done });
        let chain = [asked(1, 0, 5), done(1), asked(2, 5, 7), done(2)];
        assert_eq!(judge(&mut ReadsAreLinearizable::default(), &chain), Ok(()));
        let stale = [asked(1, 0, 5), done(1), asked(2, 0, 7), done(2)];
        assert!(judge(&mut ReadsAreLinearizable::default(), &stale).is_err());
    }

    #[test]
    fn nothing_is_seen_only_after_a_removal() {
        let op = |number| OpName { client: HostId(0), number };
        let write = |number, timestamp, tombstone| {
            let action = Action::Write { cells: vec![CELL], timestamp, tombstone, fence: None, append: None };
            (0, ClientFact::Asked { op: op(number), action })
        };
        let told = |number, outcome| (0, ClientFact::Told { op: op(number), outcome });
        let read = |number| (0, ClientFact::Asked { op: op(number), action: Action::Read { cells: vec![CELL] } });
        let nothing = || Outcome::Cells(vec![(CELL, None)]);
        let gone = [write(1, 5, false), told(1, Outcome::Done), read(2), told(2, nothing())];
        assert!(judge(&mut ReadsAreLinearizable::default(), &gone).is_err());
        let removed = [
            write(1, 5, false),
            told(1, Outcome::Done),
            write(2, 6, true),
            told(2, Outcome::Unknown),
            read(3),
            told(3, nothing()),
        ];
        assert_eq!(judge(&mut ReadsAreLinearizable::default(), &removed), Ok(()));
    }
}
