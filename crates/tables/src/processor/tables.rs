//! What partitions of one table share: its properties, and one copy of each live query with the index over them.

use super::Options;
use crate::calls::Access;
use crate::directory::Properties;
use crate::gather::micros;
use crate::live::Reader;
use crate::names::{NetId, PartitionId, QueryId};
use crate::record::Record;
use crate::refusal::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::bounded::BoundedMap;
use tidings_base::{Class, Error, Wall};
use tidings_predicate::index::{Index, SubscriptionId};
use tidings_predicate::query::{Ask, Query};
use tidings_predicate::{Dialect, Functions, Key, Meter, Packed, Predicate, Scope, TooSlow};

/// Of what the index has little of, readers of whom nothing is known take one part in so many: less than those who are away, whose
/// place they could take otherwise.
const STRANGERS: usize = 4;
/// Writers' predicates that are kept compiled: the most recently used, and what they hold in memory.
const COMPILED: usize = 4_096;
const COMPILED_BYTES: usize = 64 << 20;
/// What takes one step to be compiled: a byte of the text, and so many bytes of what becomes of it.
const COMPILED_A_STEP: usize = 16;

/// A table that partitions here belong to.
#[derive(Debug)]
pub(super) struct Table {
    pub properties: Properties,
    /// What texts may name that were taken, here or elsewhere.
    pub dialect: Dialect,
    /// What new texts may name.
    pub strict: Dialect,
    pub may_write: Option<Predicate>,
    pub index: Index,
    pub queries: BTreeMap<QueryId, Subscription>,
    /// R1: those of them that are copies.
    pub copies: BTreeSet<QueryId>,
    by_index: BTreeMap<SubscriptionId, QueryId>,
}

/// A live query: one copy, however many partitions (R3).
#[derive(Debug)]
pub(super) struct Subscription {
    /// None: a copy, which every change concerns.
    pub id: Option<SubscriptionId>,
    pub query: Query,
    pub reader: Reader,
    pub endpoint: Option<Box<Absent>>,
    pub partitions: BTreeSet<PartitionId>,
}

/// What is known of a query whose client hears through Notify when it is away.
#[derive(Debug)]
pub(super) struct Absent {
    pub netid: NetId,
    /// What tells its queries apart.
    pub ask: Ask,
    /// The list of access has changed since: it does not outlive the connection that its client was admitted with.
    pub doubted: bool,
}

impl Subscription {
    /// R1: whether it hears everything, whoever may see it.
    pub fn is_copy(&self) -> bool {
        self.id.is_none()
    }
}

impl Table {
    pub fn new(properties: Properties, options: &Options) -> Table {
        let mut table = Table {
            properties: Properties::default(),
            dialect: Dialect { functions: options.functions.clone(), ..Dialect::default() },
            strict: Dialect::default(),
            may_write: None,
            index: Index::new(options.index, options.seed),
            queries: BTreeMap::new(),
            copies: BTreeSet::new(),
            by_index: BTreeMap::new(),
        };
        table.alter(properties);
        table
    }

    pub fn alter(&mut self, properties: Properties) {
        let functions = self.dialect.functions.clone();
        self.dialect = Dialect { functions: functions.clone(), ..properties.dialect() };
        self.strict = Dialect { functions, ..properties.strict_dialect() };
        // A directory holds only what compiles; what does not, here where a function may not be registered, denies everything.
        let denied = |_| Predicate::compile("false", &Dialect::default()).ok();
        self.may_write = properties.guard(&self.dialect.functions).unwrap_or_else(denied);
        self.properties = properties;
    }

    /// Adds a live query, or finds the one that is there.
    pub fn join(
        &mut self,
        query: QueryId,
        partition: PartitionId,
        compiled: impl FnOnce(&Dialect) -> Result<Query, Refusal>,
        reader: &Reader,
        endpoint: Option<Box<Absent>>,
    ) -> Result<(), Refusal> {
        if let Some(there) = self.queries.get_mut(&query) {
            there.partitions.insert(partition);
            return Ok(());
        }
        let mut compiled = compiled(&self.dialect)?;
        let all;
        let predicate = match compiled.predicate() {
            Some(predicate) => predicate,
            None => {
                all = Predicate::compile("true", &self.dialect)?;
                &all
            }
        };
        let id = match query.is_copy() {
            true => None,
            false => Some(self.index.subscribe(predicate, &reader.data, &reader.claims)?),
        };
        if let Some(id) = id {
            self.by_index.insert(id, query);
            if let Some(predicate) = compiled.predicate_mut() {
                self.index.intern(id, predicate);
            }
        } else {
            self.copies.insert(query);
        }
        let (reader, partitions) = (reader.clone(), [partition].into());
        self.queries.insert(query, Subscription { id, query: compiled, reader, endpoint, partitions });
        Ok(())
    }

    /// Whether a reader leaves room in the index to others. One who is nobody in particular comes from anywhere, as often as it
    /// likes: of evaluations for every record, patterns, shapes and sets of fields those take one part in so many together.
    pub fn admits(&mut self, id: SubscriptionId, access: Access) -> Result<(), Refusal> {
        if access > Access::Public {
            return Ok(());
        }
        self.index.unkeep(id);
        match self.index.keep(id, STRANGERS) {
            true => Ok(()),
            false => {
                let message =
                    "this table is watched by too many predicates of readers who are nobody in particular here";
                Err(Refusal::Query(Error::new("tables.predicate_full", Class::Refused, message).hint(
                    "Show a credential of the table's application; or compare one column with `==`, as others do, or read.",
                )))
            }
        }
    }

    /// A query has left a partition; with the last it goes.
    pub fn leave(&mut self, query: QueryId, partition: PartitionId) {
        let Some(there) = self.queries.get_mut(&query) else { return };
        there.partitions.remove(&partition);
        if there.partitions.is_empty() {
            if let Some(id) = there.id {
                self.index.unsubscribe(id);
                self.by_index.remove(&id);
            }
            self.copies.remove(&query);
            self.queries.remove(&query);
        }
    }

    /// Appends the queries that an image of a record is for. Of those whose predicates cannot be evaluated within so many steps
    /// it appends all: they are looked at again when they are sent something.
    pub fn matches(
        &mut self,
        key: &Key,
        image: Option<&Record>,
        writers: &mut Writers,
        (meter, most): (&Meter, u64),
        into: &mut BTreeSet<QueryId>,
    ) {
        let Some((record, columns)) = image.and_then(|image| Some((image, image.columns.as_ref()?))) else { return };
        let writer = match writers.of(record, Some(meter)) {
            Writer::Nobody => return,
            Writer::Everybody => None,
            Writer::Whom(predicate) => Some(predicate),
        };
        let mut found = Vec::new();
        let (scope, left) = (Scope::record(key, columns).metered(meter), most.saturating_sub(meter.steps()));
        self.index.matches_within(&scope, writer, left, &mut found);
        into.extend(found.iter().filter_map(|id| self.by_index.get(id)));
    }
}

/// Whom a record is shown to.
pub(super) enum Writer<'a> {
    Everybody,
    Whom(&'a Predicate),
    /// What cannot be read shows nothing.
    Nobody,
}

/// Writers' predicates, compiled.
#[derive(Debug)]
pub(super) struct Writers {
    dialect: Dialect,
    compiled: BoundedMap<Arc<str>, Compiled>,
    bytes: usize,
    most: usize,
}

/// A writer's predicate, if it can be read, and what it and its text hold in memory.
#[derive(Debug)]
struct Compiled {
    predicate: Option<Predicate>,
    bytes: usize,
}

impl Writers {
    pub fn new(functions: &Functions) -> Writers {
        let dialect = Dialect { functions: functions.clone(), ..Dialect::default() };
        Writers { dialect, compiled: BoundedMap::new(COMPILED), bytes: 0, most: COMPILED_BYTES }
    }

    /// Whom a record is shown to; the steps that it takes to find out are counted.
    pub fn of(&mut self, record: &Record, meter: Option<&Meter>) -> Writer<'_> {
        if record.predicate.is_empty() {
            return Writer::Everybody;
        }
        if self.compiled.get(&record.predicate).is_none() {
            self.compile(&record.predicate, meter);
        }
        match self.compiled.get(&record.predicate).map(|compiled| &compiled.predicate) {
            Some(Some(predicate)) => Writer::Whom(predicate),
            _ => Writer::Nobody,
        }
    }

    fn compile(&mut self, text: &Arc<str>, meter: Option<&Meter>) {
        let predicate = Predicate::compile(text, &self.dialect).ok();
        let weight = predicate.as_ref().map_or(0, Predicate::weight);
        if let Some(meter) = meter {
            meter.add((text.len() + weight / COMPILED_A_STEP) as u64);
        }
        let bytes = text.len() + weight;
        self.bytes += bytes;
        let mut gone = self.compiled.insert(text.clone(), Compiled { predicate, bytes });
        while self.bytes > self.most && self.compiled.len() > 1 || gone.is_some() {
            self.bytes -= gone.or_else(|| self.compiled.pop_oldest()).map_or(0, |(_, old)| old.bytes);
            gone = None;
        }
    }

    /// Whether a record is there, shown to this reader, and asked for.
    pub fn shows(&mut self, key: &Key, record: &Record, to: &To<'_>) -> Result<bool, TooSlow> {
        let Some(columns) = &record.columns else { return Ok(false) };
        let mut scope = Scope::record(key, columns).read_by(to.data, to.claims);
        if let Some(now) = to.now {
            scope = scope.at(micros(now));
        }
        if let Some(meter) = to.meter {
            scope = scope.metered(meter);
        }
        let writer = match self.of(record, to.meter) {
            Writer::Nobody => return Ok(false),
            Writer::Everybody => None,
            Writer::Whom(predicate) => Some(predicate),
        };
        match to.query {
            Some(query) => query.selects(&scope, writer),
            None => Ok(writer.is_none_or(|writer| writer.holds(&scope))),
        }
    }
}

/// A reader, and what it asks for.
pub(super) struct To<'a> {
    pub data: &'a Packed,
    pub claims: &'a Packed,
    /// None: everything that is shown.
    pub query: Option<&'a Query>,
    /// R9: a live query has no time.
    pub now: Option<Wall>,
    /// What counts the steps that it takes.
    pub meter: Option<&'a Meter>,
}

impl<'a> To<'a> {
    /// The reader of a live query.
    pub fn live(query: &'a Query, reader: &'a Reader) -> To<'a> {
        To { data: &reader.data, claims: &reader.claims, query: Some(query), now: None, meter: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{GatewayId, Position, TableId};

    fn audience(text: &str) -> Record {
        let (writer, columns) = ("ann".to_owned(), Some(Packed::empty()));
        Record { version: Position::ZERO, time: Wall(0), writer, predicate: text.into(), op: None, columns }
    }

    #[test]
    fn what_is_compiled_is_bounded_by_what_it_holds() {
        let mut writers = Writers::new(&Functions::default());
        let text = |number: usize| {
            let patterns = (0..16).map(|pattern| format!("user.sub.matches('{number}x{pattern}')"));
            patterns.collect::<Vec<_>>().join(" || ")
        };
        for number in 0..30 {
            assert!(matches!(writers.of(&audience(&text(number)), None), Writer::Whom(_)));
            assert!(writers.bytes <= COMPILED_BYTES);
        }
        let kept = writers.compiled.len();
        assert!((2..30).contains(&kept) && writers.compiled.get(text(29).as_str()).is_some(), "{kept}");
        let all = std::iter::from_fn(|| writers.compiled.pop_oldest());
        assert_eq!(all.map(|(_, compiled)| compiled.bytes).sum::<usize>(), writers.bytes);
    }

    #[test]
    fn live_queries_of_one_shape_hold_it_once() {
        let mut table = Table::new(Properties::default(), &Options::default());
        let (data, claims) = (Packed::empty(), Packed::empty());
        let reader = Reader { access: Access::User, data, claims, epoch: 1 };
        let partition = PartitionId { table: TableId(1), number: 1 };
        let ids = [1, 2, 3].map(|number| QueryId { gateway: GatewayId(1), number });
        for (id, text) in ids.into_iter().zip(["n == 1", "n == 2", "n < 3"]) {
            let ask = Ask { predicate: text.to_owned(), ..Ask::default() };
            table.join(id, partition, |dialect| Ok(Query::compile(&ask, dialect)?), &reader, None).unwrap();
        }
        let [first, second, other] = ids.map(|id| table.queries[&id].query.predicate().unwrap());
        assert!(first.shares_with(second) && !first.shares_with(other));
    }

    #[test]
    fn compiling_takes_steps_once() {
        let (mut writers, meter) = (Writers::new(&Functions::default()), Meter::default());
        let record = audience(&vec!["user.sub == 'ann'"; 1_000].join(" || "));
        writers.of(&record, Some(&meter));
        let once = meter.steps();
        assert!(once >= record.predicate.len() as u64, "{once}");
        writers.of(&record, Some(&meter));
        assert_eq!(meter.steps(), once);
    }
}
