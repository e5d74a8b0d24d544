//! Puts the answers of partitions together: projection, order, limit, groups, look-ups.

use crate::calls::Visible;
use crate::record::check_key;
use crate::refusal::Refusal;
use tidings_base::Wall;
use tidings_predicate::query::{Ask, Collector, Query, Row};
use tidings_predicate::{Dialect, Key, Meter, Packed, Scope};

/// Whoever reads, and when: what expressions may name besides the record.
#[derive(Clone, Debug)]
pub struct Reading {
    /// What the reader says of itself.
    pub data: Packed,
    /// Its verified claims.
    pub claims: Packed,
    /// The time that `now()` is.
    pub now: Wall,
}

/// The answer of one read, as far as its records have come.
///
/// Records come partition after partition, in the order of their keys; only such as [`Page`](crate::calls::Page)s hold:
/// visible to this reader, and matching.
#[derive(Debug)]
pub struct Gather {
    query: Query,
    reading: Reading,
    collector: Collector,
    /// Rows that were taken out already.
    taken: usize,
    meter: Meter,
}

impl Gather {
    /// An answer without records.
    pub fn new(ask: &Ask, dialect: &Dialect, reading: Reading) -> Result<Gather, Refusal> {
        Ok(Gather::of(Query::compile(ask, dialect)?, reading))
    }

    pub(crate) fn of(query: Query, reading: Reading) -> Gather {
        let collector = Collector::new(&query);
        Gather { query, reading, collector, taken: 0, meter: Meter::default() }
    }

    /// The table and key to be looked up for a record, if the query looks something up. What is found is read as this reader,
    /// and given to [`Gather::add`].
    pub fn lookup(&self, record: &Visible) -> Result<Option<(String, Key)>, Refusal> {
        let scope = scope(&self.reading, &record.key, &record.columns).metered(&self.meter);
        // What cannot be a key finds nothing.
        let named = self.query.lookup_key(&scope)?.filter(|(_, key)| check_key(key).is_ok());
        Ok(named.map(|(table, key)| (table.to_owned(), key)))
    }

    /// Adds a record, with what was looked up for it.
    pub fn add(&mut self, record: &Visible, joined: Option<&Packed>) -> Result<(), Refusal> {
        let scope = scope(&self.reading, &record.key, &record.columns).metered(&self.meter);
        add(&mut self.collector, scope, joined)
    }

    /// The same, counting the steps that it takes elsewhere.
    pub(crate) fn add_metered(
        &mut self,
        record: &Visible,
        joined: Option<&Packed>,
        meter: &Meter,
    ) -> Result<(), Refusal> {
        let scope = scope(&self.reading, &record.key, &record.columns).metered(meter);
        add(&mut self.collector, scope, joined)
    }

    /// The steps that look-ups and adding have taken: whoever shares a thread gives others their turn after so many.
    pub fn steps(&self) -> u64 {
        self.meter.steps()
    }

    /// Whether further records cannot change the answer.
    pub fn is_full(&self) -> bool {
        let most = self.query.limit().map(|limit| limit.saturating_sub(self.taken));
        self.query.is_streamed() && most == Some(0) || self.collector.is_full()
    }

    /// Rows that are part of the answer whatever follows: none, if the query has an order or groups.
    pub fn ready(&mut self) -> Result<Vec<Row>, Refusal> {
        if !self.query.is_streamed() {
            return Ok(Vec::new());
        }
        let rows = std::mem::replace(&mut self.collector, Collector::new(&self.query));
        let rows = self.cut(rows)?;
        self.taken += rows.len();
        Ok(rows)
    }

    /// The rest of the rows, in order.
    pub fn finish(&mut self) -> Result<Vec<Row>, Refusal> {
        let rows = std::mem::replace(&mut self.collector, Collector::new(&self.query));
        self.cut(rows)
    }

    fn cut(&self, collector: Collector) -> Result<Vec<Row>, Refusal> {
        let mut rows = collector.finish()?;
        rows.truncate(self.query.limit().map_or(usize::MAX, |limit| limit.saturating_sub(self.taken)));
        Ok(rows)
    }
}

fn add(collector: &mut Collector, scope: Scope<'_>, joined: Option<&Packed>) -> Result<(), Refusal> {
    let added = match joined {
        Some(joined) => collector.add(&scope.joined_with(joined)),
        None => collector.add(&scope),
    };
    added.map_err(Refusal::from)
}

fn scope<'a>(reading: &'a Reading, key: &'a Key, columns: &'a Packed) -> Scope<'a> {
    Scope::record(key, columns).read_by(&reading.data, &reading.claims).at(micros(reading.now))
}

/// A time as predicates have it.
pub(crate) fn micros(wall: Wall) -> i64 {
    i64::try_from(wall.0).unwrap_or(i64::MAX)
}
