//! Reads: one record, or all that a query selects, page by page.

use super::form::{self, Columns, Record};
use super::operations::Unfinished;
use super::{Table, unexpected};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use tidings_base::Error;
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, PartitionValue, Value};
use tidings_wire::v1;
use tidings_wire::v1::ReadLevel;
use tidings_wire::v1::tables_message::Message;

/// Together a key and the value of a partition column have no more.
const PARTITION_VALUE_BYTES: usize = 1_024;

/// How to read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How fresh it must be. The default is `Latest`: linearizable. `CommittedWio` waits for the writes that this client has
    /// begun before.
    pub level: ReadLevel,
    /// What writers' predicates see as `reader`.
    pub reader: Columns,
    /// R5: answers are at these positions of partitions or later. Empty: at what this client has seen, unless the level is
    /// `Latest`, which sees everything.
    pub floors: BTreeMap<u32, u64>,
    /// Only keys from here on, and before there.
    pub from: Option<Key>,
    /// See `from`.
    pub before: Option<Key>,
    /// Only records within this value of the table's partition column.
    pub within: Option<PartitionValue>,
    /// With `CommittedWio`: operations of other processes under these names that are waited for as well.
    pub pending: Vec<(v1::RecordOperation, Key)>,
    /// Whether whole records come with their audiences: for the table's own application and operators.
    pub audiences: bool,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            level: ReadLevel::Latest,
            reader: Columns::new(),
            floors: BTreeMap::new(),
            from: None,
            before: None,
            within: None,
            pending: Vec::new(),
            audiences: false,
        }
    }
}

impl ReadOptions {
    fn message(&self, table: &Table) -> Result<v1::RecordRead, Error> {
        let floors = self.floors.iter().map(|(&partition, &position)| v1::PartitionPosition { partition, position });
        Ok(v1::RecordRead {
            table: table.name.to_string(),
            level: self.level.into(),
            reader: Some(form::data_to(&self.reader)?),
            floors: floors.collect(),
            audiences: self.audiences,
            ..Default::default()
        })
    }
}

impl Table {
    /// R5: reads at or above what this client has seen, and remembers what it has seen then.
    async fn ask_to_read(&self, options: Floored, read: v1::RecordRead) -> Result<v1::RecordRows, Error> {
        let read = match options {
            Floored::BySeen => self.tables.floors.laid_under(&self.name, read),
            Floored::AsSaid => read,
        };
        match self.tables.ask_again(Message::Read(read)).await? {
            Message::Rows(rows) => {
                self.tables.floors.seen(&self.name, &rows);
                Ok(rows)
            }
            _ => Err(unexpected()),
        }
    }
}

/// Where a read's floors come from.
#[derive(Clone, Copy)]
enum Floored {
    /// From what this client has seen.
    BySeen,
    /// From whoever reads; or there are none.
    AsSaid,
}

impl Floored {
    fn of(options: &ReadOptions) -> Floored {
        match options.level {
            ReadLevel::Latest | ReadLevel::Unspecified => Floored::AsSaid,
            _ if !options.floors.is_empty() => Floored::AsSaid,
            _ => Floored::BySeen,
        }
    }
}

impl Table {
    /// The record of a key, if there is one and its writer shows it to this reader.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Record>, Error> {
        self.get_with(key, &ReadOptions::default()).await
    }

    /// The same, as the options say.
    pub async fn get_with(&self, key: impl Into<Key>, options: &ReadOptions) -> Result<Option<Record>, Error> {
        let key = key.into();
        let mut pending = self.pending(options, |of| may_be(of, &key));
        let last = pending.pop();
        let floored = Floored::of(options);
        let read = v1::RecordRead { key: Some(form::key_to(key)), ..options.message(self)? };
        for earlier in pending {
            self.ask_to_read(floored, after(read.clone(), Some(earlier))).await?;
        }
        let rows = self.ask_to_read(floored, after(read, last)).await?.rows;
        rows.into_iter().next().map(Record::try_from).transpose()
    }

    /// All rows that a query selects, together.
    pub async fn read(&self, ask: &Ask, options: &ReadOptions) -> Result<Vec<Record>, Error> {
        let mut rows = self.rows(ask, options)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().await? {
            all.push(row);
        }
        Ok(all)
    }

    /// The rows that a query selects, one by one: only a page of them is held.
    pub fn rows(&self, ask: &Ask, options: &ReadOptions) -> Result<Rows, Error> {
        let (from, before) = (options.from.clone().map(form::key_to), options.before.clone().map(form::key_to));
        let within = options.within.clone().map(form::partition_value_to);
        let query = Some(v1::RecordQuery { from, before, within, ..form::query_to(ask) });
        // Keys with and without the value of a partition column cannot be compared.
        let alike = |key: &Key, bound: &Key| key.partition_value().is_some() == bound.partition_value().is_some();
        let within = |key: &Key| {
            options.from.as_ref().is_none_or(|from| from <= key || !alike(key, from))
                && options.before.as_ref().is_none_or(|before| key < before || !alike(key, before))
        };
        let mut pending = self.pending(options, within);
        let next = Some(after(v1::RecordRead { query, ..options.message(self)? }, pending.pop()));
        let (page, positions) = (VecDeque::new(), BTreeMap::new());
        let floored = Floored::of(options);
        Ok(Rows { table: self.clone(), floored, next, waits: pending, page, positions, left: ask.limit })
    }

    /// With `committed_wio`: this client's own operations on these keys that are not finished, by the names they have.
    fn pending(&self, options: &ReadOptions, within: impl Fn(&Key) -> bool) -> Vec<Pending> {
        if options.level != ReadLevel::CommittedWio {
            return Vec::new();
        }
        let mut pending = self.tables.operations.pending(&self.name);
        for (operation, key) in &options.pending {
            if let Ok(netid) = operation.netid.as_ref().try_into() {
                pending.push((netid, vec![Unfinished { seq: operation.seq, key: key.clone(), columns: None }]));
            }
        }
        pending.iter_mut().for_each(|(_, open)| open.retain(|unfinished| within(&unfinished.key)));
        pending.retain(|(_, open)| !open.is_empty());
        pending
    }
}

/// Operations that are not finished, and the name they have.
type Pending = ([u8; 16], Vec<Unfinished>);

/// The same read, once these are finished.
fn after(read: v1::RecordRead, pending: Option<Pending>) -> v1::RecordRead {
    let Some((netid, open)) = pending else { return read };
    let pending = open.into_iter().map(|Unfinished { seq, key, columns }| {
        // A key that says where its record is needs nothing besides.
        let columns = columns.filter(|_| key.partition_value().is_none()).map(|columns| placing(&columns));
        v1::PendingOperation { key: Some(form::key_to(key)), seq, columns }
    });
    v1::RecordRead { netid: netid.to_vec().into(), pending: pending.collect(), ..read }
}

/// Whether an operation on the one can be on the record of the other: a key may lack the value of a partition column.
fn may_be(key: &Key, other: &Key) -> bool {
    let differ = key.partition_value().zip(other.partition_value()).is_some_and(|(one, other)| one != other);
    key.own() == other.own() && !differ
}

/// Of what is put, all that can be the value of a partition column; which one it is the table knows.
fn placing(put: &v1::RecordData) -> v1::RecordData {
    let can_place = |value: &Value| match value {
        Value::Int(_) => true,
        Value::String(text) => text.len() <= PARTITION_VALUE_BYTES,
        _ => false,
    };
    let mut columns = form::columns(put).unwrap_or_default();
    columns.retain(|_, value| can_place(value));
    form::data_to(&columns).unwrap_or_default()
}

/// Rows of an answer.
pub struct Rows {
    table: Table,
    floored: Floored,
    /// Operations to wait for first: a read names those of one name.
    waits: Vec<Pending>,
    /// What to ask next; none after the last page.
    next: Option<v1::RecordRead>,
    page: VecDeque<v1::Record>,
    positions: BTreeMap<u32, u64>,
    left: Option<usize>,
}

impl Rows {
    /// The next row; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Record>, Error> {
        if self.left == Some(0) {
            return Ok(None);
        }
        loop {
            if let Some(record) = self.page.pop_front() {
                self.left = self.left.map(|left| left - 1);
                return Record::try_from(record).map(Some);
            }
            let Some(read) = self.next.clone() else { return Ok(None) };
            while let Some(earlier) = self.waits.pop() {
                let query = Some(v1::RecordQuery { limit: Some(0), ..read.query.clone().unwrap_or_default() });
                let read = after(v1::RecordRead { query, ..read.clone() }, Some(earlier));
                self.table.ask_to_read(self.floored, read).await?;
            }
            self.next = None;
            let rows = self.table.ask_to_read(self.floored, read.clone()).await?;
            for at in &rows.positions {
                let seen = self.positions.entry(at.partition).or_default();
                *seen = at.position.max(*seen);
            }
            self.page = rows.rows.into();
            self.next = Some(rows.cursor).filter(|cursor: &Bytes| !cursor.is_empty()).map(|cursor| v1::RecordRead {
                cursor,
                pending: Vec::new(),
                ..read
            });
        }
    }

    /// Up to where partitions have been read: floors for what is read later (R5).
    pub fn positions(&self) -> &BTreeMap<u32, u64> {
        &self.positions
    }
}
