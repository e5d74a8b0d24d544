//! The definitions of Tables' appendix part histories.

use tidings_predicate::Key;
use tidings_sim::checkers::history::*;
use tidings_tables::names::Position;
use tidings_tables::names::Term;

fn version(n: u64) -> Position {
    Position::new(Term::new(1).unwrap(), n).unwrap()
}

fn wrote(client: usize, from: u64, to: u64, n: u64) -> Done {
    Done { client, from, to, what: What::Wrote { version: version(n), shown: true } }
}

fn saw(client: usize, from: u64, to: u64, n: Option<u64>) -> Done {
    Done { client, from, to, what: What::Saw { level: Kind::Committed, found: n.map(version) } }
}

fn holds(all: &[Done]) -> [bool; 3] {
    let mut history = History::default();
    all.iter().for_each(|done| history.add(&Key::from("k"), done.clone()));
    [Order::Sequential, Order::Invoked, Order::RealTime]
        .map(|order| history.has_view(order, &[Kind::Committed]).is_ok())
}

#[test]
fn the_definitions_part_histories() {
    let first = wrote(0, 0, 10, 1);
    assert_eq!(holds(&[first.clone(), saw(0, 20, 30, Some(1)), saw(1, 20, 30, Some(1))]), [true; 3]);
    // Somebody else may be late, unless the latest was asked for.
    assert_eq!(holds(&[first.clone(), saw(1, 20, 30, None)]), [true, true, false]);
    // While its write is under way a client may miss it, unless invocations count.
    assert_eq!(holds(&[first.clone(), saw(0, 5, 30, None)]), [true, false, true]);
    // Nobody goes back in time, or misses what it wrote, or sees what nobody wrote.
    let second = wrote(0, 20, 30, 2);
    assert_eq!(holds(&[first.clone(), second, saw(1, 40, 50, Some(2)), saw(1, 60, 70, Some(1))]), [false; 3]);
    assert_eq!(holds(&[first.clone(), saw(0, 20, 30, None)]), [false; 3]);
    assert_eq!(holds(&[first.clone(), saw(1, 20, 30, Some(7))]), [false; 3]);
    // A client's writes take effect in their order.
    assert_eq!(holds(&[wrote(0, 0, 10, 2), wrote(0, 20, 30, 1)]), [false; 3]);
    let gone = Done { what: What::Wrote { version: version(2), shown: false }, ..wrote(1, 20, 30, 2) };
    assert_eq!(holds(&[first, saw(0, 20, 30, Some(1)), gone, saw(0, 40, 50, None)]), [true; 3]);
}
