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
}

/// Where those of earlier operations stand that may have to come before another: of one client, or of all.
#[derive(Debug, Default)]
struct Before {
    /// The last place of those that have ended.
    ended: usize,
    /// Those that have not, by their end.
    under_way: BTreeMap<(u64, usize), usize>,
    /// The last place of all that were invoked before, and of the writes among them.
    all: usize,
    writes: usize,
    /// Those that were invoked at one instant: none of them is before another.
    together: Vec<(u64, usize, bool)>,
}

impl Before {
    /// The first place that an operation may have; operations are asked for in the order of their invocation.
    fn least(&mut self, done: &Done, order: Order) -> usize {
        while let Some(first) = self.under_way.first_entry().filter(|first| first.key().0 < done.from) {
            self.ended = self.ended.max(first.remove());
        }
        for (_, place, write) in self.together.extract_if(.., |(from, ..)| *from < done.from) {
            self.all = self.all.max(place);
            self.writes = if write { self.writes.max(place) } else { self.writes };
        }
        match order {
            Order::Invoked if done.is_write() => self.ended.max(self.all),
            Order::Invoked => self.ended.max(self.writes),
            Order::Sequential | Order::RealTime => self.ended,
        }
    }

    /// Where it stands now; places are counted from 1, so that 0 is before all.
    fn put(&mut self, number: usize, done: &Done, place: usize) {
        self.under_way.insert((done.to, number), place);
        self.together.push((done.from, place, done.is_write()));
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
    let mut before: BTreeMap<Option<usize>, Before> = BTreeMap::new();
    for (number, done) in all.iter().enumerate() {
        let own = if matches!(order, Order::RealTime) { None } else { Some(done.client) };
        let before = before.entry(own).or_default();
        // A write stands behind what it follows, a read may stand beside it.
        let least = match before.least(done, order) {
            0 => 0,
            last => last - 1 + usize::from(done.is_write()),
        };
        let place = match done.what {
            What::Wrote { version, .. } => at(version),
            What::Saw { found: Some(found), .. } => at(found).filter(|place| states[*place].1),
            What::Saw { found: None, .. } => (least..states.len()).find(|place| !states[*place].1),
        };
        let place = place.filter(|place| *place >= least);
        let place = place.ok_or_else(|| format!("{done:?} has no place behind {:?}", states.get(least)))?;
        before.put(number, done, place + 1);
    }
    Ok(())
}
