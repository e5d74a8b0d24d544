//! The claim about reads, held against the definition.

use tidings_sim::scenarios::store::fact::{Action, CellName, ClientFact, OpName, Outcome};

use super::log_claims::judge;
use proptest::prelude::*;
use tidings_sim::invariants::reads_are_linearizable::*;
use tidings_sim::kernel::HostId;

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
        let others: Vec<Small> = left.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, op)| op.clone()).collect();
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
