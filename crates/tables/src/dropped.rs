//! What dropped tables have left in the store, deleted in the background: one page of one table at a time.
//!
//! ```text
//!   Dropped ─▶ seal its partitions, one after the other ─▶ publish ─▶ scan a page ─▶ delete it ─▶ … ─▶ a pass that finds nothing
//!                 nobody writes any more                     R3           ▲───── pause ────┘             ─▶ note ─▶ Finished
//! ```
//! What is noted is the table's id: its group still holds tombstones, and nobody else would know its name ([`Remains`]).
//!
//! R3: whoever is away and listens to a partition is told by a version behind all others, comes again and finds no table.
//!
//! Rows lie in a group that is named by the table's id, which is never used again: a table that was made under the same name
//! has another, and is not touched. Everything here can be done twice: whoever begins anew after a restart finds less.
//!
//! What it does not do: know which tables were dropped. The shell keeps that, and must not name one that is still there.

use crate::names::{Object, PartitionId, Position, TableId};
use crate::processor::{StoreReply, StoreRequest, StoreResult};
use crate::rows;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Wall};
use tidings_wire::v1;

/// Publications of one request to Notify, and notes of one write.
const BATCH: u32 = 1_024;

/// How a deleter paces itself.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows of one step.
    pub page: u32,
    /// The pause between two steps: whoever uses the store comes first.
    pub pause: Duration,
    /// The pause after the store has failed.
    pub retry: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { page: 256, pause: Duration::from_millis(20), retry: Duration::from_secs(1) }
    }
}

/// What a driver brings.
#[derive(Debug)]
pub enum Input {
    /// A table was dropped; said as often as one likes.
    Dropped {
        /// The table.
        table: TableId,
        /// Its partitions had numbers below this.
        partitions: u32,
        /// The application that it belonged to; if that is not known nobody is told.
        app: Option<String>,
    },
    /// Notify was told, or was not.
    Published {
        /// Whether Notify has it; otherwise it is published again.
        done: bool,
    },
    /// The store answered.
    Stored {
        /// What it said.
        result: StoreResult,
    },
}

/// What a driver performs.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Ask the store. Answered exactly once, by [`Input::Stored`], before anything else is asked.
    Store(StoreRequest),
    /// Publish through Notify. Answered exactly once, by [`Input::Published`], before anything else is asked.
    Publish {
        /// In this application.
        app: String,
        /// What, each with its version.
        publications: Vec<(Object, Position)>,
    },
    /// So many rows are gone.
    Deleted {
        /// How many.
        rows: usize,
    },
    /// Nothing is left of a table: it need not be said again.
    Finished {
        /// The table.
        table: TableId,
    },
}

/// What is to be done next with a table.
#[derive(Debug, PartialEq)]
enum Step {
    /// R2: this partition is sealed: a deposed owner that has not noticed cannot write behind the scan.
    Seal(u32),
    /// Whoever listens to this partition, and to those behind it, is told.
    Tell(u32),
    /// A page is read, from this row on.
    Scan(Bytes),
    /// These rows are deleted, and the scan goes on there; none = a pass has ended.
    Delete(Vec<v1::RowWrite>, Option<Bytes>),
    /// It is noted that tombstones are left.
    Note,
}

/// What is left of a table.
#[derive(Debug)]
struct Left {
    partitions: u32,
    app: Option<String>,
    step: Step,
    /// Whether this pass has found something.
    found: bool,
}

/// Deletes what dropped tables have left.
#[derive(Debug)]
pub struct Deleter {
    options: Options,
    tables: BTreeMap<TableId, Left>,
    /// The table that the store or Notify was asked about.
    asked: Option<TableId>,
    next: Option<Mono>,
}

impl Deleter {
    /// A deleter that knows of no table.
    pub fn new(options: Options) -> Deleter {
        Deleter { options, tables: BTreeMap::new(), asked: None, next: None }
    }

    /// Does the next step of the first table.
    fn step(&mut self, out: &mut Outbox<Output>) {
        let Some((table, left)) = self.tables.first_key_value() else { return };
        let group = rows::group(*table);
        // All partitions are sealed by then, the first among them: a fence as high as any.
        let sealed = |number: u32| Some(rows::seal(PartitionId { table: *table, number }));
        self.asked = Some(*table);
        let request = match &left.step {
            Step::Tell(first) => {
                let object = |number| Object { partition: PartitionId { table: *table, number }, netid: None };
                let told = *first..left.behind(*first);
                let publications = told.map(|number| (object(number), Position::LAST)).collect();
                let app = left.app.clone().unwrap_or_default();
                return out.put(Output::Publish { app, publications });
            }
            Step::Seal(number) => {
                let group = v1::GroupWrite { group, rows: Vec::new(), fence: sealed(*number) };
                StoreRequest::Apply(v1::Apply { groups: vec![group] })
            }
            Step::Scan(start) => StoreRequest::Scan(v1::Scan {
                group,
                start: start.clone(),
                end: Bytes::new(),
                limit: self.options.page,
                columns: Vec::new(),
            }),
            Step::Delete(rows, _) => {
                let group = v1::GroupWrite { group, rows: rows.clone(), fence: sealed(0) };
                StoreRequest::Apply(v1::Apply { groups: vec![group] })
            }
            Step::Note => noted(vec![note(*table, 1, Some(Bytes::new()))]),
        };
        out.put(Output::Store(request));
    }

    fn stored(&mut self, now: Now, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(table) = self.asked.take() else { return };
        let Some(left) = self.tables.get_mut(&table) else { return };
        let mut pause = self.options.pause;
        match (&mut left.step, result) {
            (Step::Seal(number), Ok(_)) => {
                left.step = match *number + 1 < left.partitions {
                    true => Step::Seal(*number + 1),
                    false if left.app.is_some() => Step::Tell(0),
                    false => Step::Scan(Bytes::new()),
                };
                pause = Duration::ZERO;
            }
            (Step::Scan(_), Ok(StoreReply::Rows(found))) => {
                let rows: Vec<v1::RowWrite> = found.rows.iter().map(gone).collect();
                left.found |= !rows.is_empty();
                let over = rows.is_empty() && found.next.is_none();
                if over && !left.found {
                    left.step = Step::Note;
                    pause = Duration::ZERO;
                } else if rows.is_empty() {
                    left.go_on(found.next);
                } else {
                    left.step = Step::Delete(rows, found.next);
                    pause = Duration::ZERO;
                }
            }
            (Step::Delete(rows, next), Ok(_)) => {
                out.put(Output::Deleted { rows: rows.len() });
                let next = next.take();
                left.go_on(next);
            }
            (Step::Note, Ok(_)) => {
                self.tables.remove(&table);
                out.put(Output::Finished { table });
            }
            // The same again: it may have happened, and happens once.
            (_, Err(_)) | (Step::Scan(_) | Step::Tell(_), Ok(_)) => pause = self.options.retry,
        }
        self.next = (!self.tables.is_empty()).then(|| now.mono + pause);
    }

    fn published(&mut self, now: Now, done: bool) {
        let Some(left) = self.asked.take().and_then(|table| self.tables.get_mut(&table)) else { return };
        if let (Step::Tell(first), true) = (&left.step, done) {
            let next = left.behind(*first);
            left.step = if next < left.partitions { Step::Tell(next) } else { Step::Scan(Bytes::new()) };
        }
        self.next = Some(now.mono + if done { Duration::ZERO } else { self.options.retry });
    }
}

impl Left {
    /// The first partition that is not told together with this one.
    fn behind(&self, first: u32) -> u32 {
        first.saturating_add(BATCH).min(self.partitions)
    }

    /// The scan goes on, or begins anew: the last pass finds nothing.
    fn go_on(&mut self, next: Option<Bytes>) {
        self.found &= next.is_some();
        self.step = Step::Scan(next.unwrap_or_default());
    }
}

/// The group that says which dropped tables have tombstones left: a row for each, named by its id. No table's id reads like it.
const REMAINS: Bytes = Bytes::from_static(b".tables/remains");
const LOOKED: Bytes = Bytes::from_static(b"looked");

fn note(table: TableId, timestamp: u64, value: Option<Bytes>) -> v1::RowWrite {
    let cell = v1::Cell { column: LOOKED, timestamp, value };
    v1::RowWrite { row: table.to_string().into(), cells: vec![cell] }
}

fn noted(rows: Vec<v1::RowWrite>) -> StoreRequest {
    StoreRequest::Apply(v1::Apply { groups: vec![v1::GroupWrite { group: REMAINS, rows, fence: None }] })
}

/// Dropped tables of which nothing but tombstones is left, and when a whole look first saw those; none = not yet.
///
/// A look marks what it has not seen before and removes what was marked long enough ago. Nothing is written to such a group any
/// more: a second look that comes so long after the first has removed all.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remains(BTreeMap<TableId, Option<Wall>>);

impl Remains {
    /// What is asked of the store for those behind a row; at first an empty one.
    pub fn ask(from: Bytes) -> StoreRequest {
        StoreRequest::Scan(v1::Scan { group: REMAINS, start: from, end: Bytes::new(), limit: 0, columns: Vec::new() })
    }

    /// The store has said so; where it goes on.
    pub fn hear(&mut self, rows: v1::Rows) -> Option<Bytes> {
        for row in rows.rows {
            let table = std::str::from_utf8(&row.row).ok().and_then(|name| u64::from_str_radix(name, 16).ok());
            let looked = row.cells.iter().find(|cell| cell.column == LOOKED).and_then(|cell| cell.value.as_deref());
            let (Some(table), Some(looked)) = (table, looked) else { continue };
            let at = looked.try_into().ok().map(|bytes| Wall(u64::from_be_bytes(bytes)));
            self.0.insert(TableId(table), at);
        }
        rows.next
    }

    /// The groups that are to be looked through, that of the notes among them.
    pub fn groups(&self) -> impl Iterator<Item = Bytes> {
        self.0.keys().map(|table| rows::group(*table)).chain([REMAINS])
    }

    /// What is written after a whole look that began then; none = nothing.
    pub fn looked(&self, begun: Wall, keep: Duration) -> Option<StoreRequest> {
        let after = |(table, first): (&TableId, &Option<Wall>)| match first {
            None => Some(note(*table, 2, Some(begun.0.to_be_bytes().to_vec().into()))),
            // By whole milliseconds, as looks count.
            Some(first) if begun.millis() > first.millis() + keep.as_millis() as u64 => Some(note(*table, 3, None)),
            Some(_) => None,
        };
        let rows: Vec<v1::RowWrite> = self.0.iter().filter_map(after).take(BATCH as usize).collect();
        (!rows.is_empty()).then(|| noted(rows))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// A row without its cells, each at the time it has: nothing that is newer goes with it.
fn gone(row: &v1::Row) -> v1::RowWrite {
    let cell = |cell: &v1::Cell| v1::Cell { column: cell.column.clone(), timestamp: cell.timestamp, value: None };
    v1::RowWrite { row: row.row.clone(), cells: row.cells.iter().map(cell).collect() }
}

impl Machine for Deleter {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Dropped { table, partitions, app } => {
                let begin = Left { partitions, app, step: Step::Seal(0), found: false };
                self.tables.entry(table).or_insert(begin);
                if self.asked.is_none() && self.next.is_none() {
                    self.next = Some(now.mono);
                }
            }
            Input::Published { done } => self.published(now, done),
            Input::Stored { result } => self.stored(now, result, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.next.is_some_and(|next| next <= now.mono) {
            self.next = None;
            self.step(out);
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.next
    }
}
