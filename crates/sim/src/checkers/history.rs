//! The definitions of the appendix, over what clients did with one record (Table 3, appendix A).
//!
//! Versions say in which order writes took effect. A view is that order, with every read behind the write that it saw; it is
//! one if what an order of operations asks for holds in it as well. Who saw nothing is put as early as it may be.

use std::collections::BTreeMap;
use tidings_predicate::Key;
use tidings_tables::names::Position;

/// An operation on a record, from its invocation to its response.
#[derive(Clone, Debug)]
pub struct Done {
    /// Whose it is.
    pub client: usize,
    /// When it was invoked, on a clock that all share.
    pub from: u64,
    /// When it was answered.
    pub to: u64,
    /// What it did.
    pub what: What,
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A write that took effect, and whether those who read here see what it left.
    Wrote {
        /// The version that it made.
        version: Position,
        /// They do.
        shown: bool,
    },
    /// A read, and what it saw.
    Saw {
        /// How fresh it was to be.
        level: Kind,
        /// The version that it saw; none = no record.
        found: Option<Position>,
    },
}

/// How fresh a read is to be (Table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sequential.
    Committed,
    /// With write-invocation order.
    Wio,
    /// Linearizable.
    Latest,
}

/// What a view must keep of a history.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Definition 1: what a client did after something else of its own had ended.
    Sequential,
    /// Definition 2: besides, what it began after something else of its own, if one of the two is a write.
    Invoked,
    /// What anybody did after something else had ended: linearizable.
    RealTime,
}

impl Done {
    fn is_write(&self) -> bool {
        matches!(self.what, What::Wrote { .. })
    }

    fn precedes(&self, later: &Done, order: Order) -> bool {
        let (own, ended) = (self.client == later.client, self.to < later.from);
        match order {
            Order::Sequential => own && ended,
            Order::Invoked => own && (ended || self.from < later.from && (self.is_write() || later.is_write())),
            Order::RealTime => ended,
        }
    }
}

/// What was done with each record.
#[derive(Debug, Default)]
pub struct History(BTreeMap<Key, Vec<Done>>);

impl History {
    /// Adds an operation on a record.
    pub fn add(&mut self, key: &Key, done: Done) {
        self.0.entry(key.clone()).or_default().push(done);
    }

    /// Whether there is a view of all writes and of the reads of these levels.
    pub fn has_view(&self, order: Order, levels: &[Kind]) -> Result<(), String> {
        let of = |done: &&Done| match done.what {
            What::Wrote { .. } => true,
            What::Saw { level, .. } => levels.contains(&level),
        };
        for (key, all) in &self.0 {
            let mut all: Vec<&Done> = all.iter().filter(of).collect();
            all.sort_by_key(|done| done.from);
            view(&all, order).map_err(|broken| format!("{order:?} {levels:?}: {key:?}: {broken}"))?;
        }
        Ok(())
    }
}

/// Places operations, in the order in which they were begun, behind all that they must follow.
fn view(all: &[&Done], order: Order) -> Result<(), String> {
    let wrote = |done: &&Done| match done.what {
        What::Wrote { version, shown } => Some((version, shown)),
        What::Saw { .. } => None,
    };
    // What there is after each write; before the first there is nothing.
    let mut states: Vec<(Position, bool)> = all.iter().filter_map(wrote).chain([(Position::ZERO, false)]).collect();
    states.sort_unstable();
    let at = |version: Position| states.binary_search_by_key(&version, |(version, _)| *version).ok();
    let mut places: Vec<usize> = Vec::with_capacity(all.len());
    for (number, done) in all.iter().enumerate() {
        let before = all[..number].iter().zip(&places).filter(|(earlier, _)| earlier.precedes(done, order));
        let least = before.map(|(_, place)| place + usize::from(done.is_write())).max().unwrap_or_default();
        let place = match done.what {
            What::Wrote { version, .. } => at(version),
            What::Saw { found: Some(found), .. } => at(found).filter(|place| states[*place].1),
            What::Saw { found: None, .. } => (least..states.len()).find(|place| !states[*place].1),
        };
        let place = place.filter(|place| *place >= least);
        places.push(place.ok_or_else(|| format!("{done:?} has no place behind {:?}", states.get(least)))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
