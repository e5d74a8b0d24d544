//! Reads of the state, by any thread, each of one frozen picture.

use crate::acks::{ACK_WINDOW, Acks};
use crate::key;
use crate::kv::{KvReader, KvView};
use crate::merge::Version;
use crate::state::decode_position;
use crate::topic::Topic;
use crate::work::{damaged, number};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tidings_base::agreed::{Position, StateFailure};
use tidings_base::{Class, Error, Incarnation, LogIndex};
use tidings_wire::v1;
use tidings_wire::v1::store_message::Message;

/// The most rows of one answer to a scan; `next` says where to go on.
pub const SCAN_ROWS: usize = 4096;
/// After this many bytes of cells an answer to a scan ends with the row.
pub const SCAN_BYTES: usize = 1 << 20;
/// The most bytes of cells that are read of one row: nobody holds more than that for one request.
pub const ROW_BYTES: usize = 64 << 20;
/// A frame of an answer has no more bytes of cells than this, save for a single cell that is larger; rows are cut if
/// need be.
pub const FRAME_BYTES: usize = tidings_wire::limits::ANSWER_CHUNK;
/// How many cells a scan looks at before its answer ends with the row: tombstones cost time, too.
pub const SCAN_VISITS: usize = 100_000;
/// The most bytes of entries in one answer to consumers, save for a single entry that is larger: it is one frame.
pub const FEED_BYTES: usize = 1 << 20;

/// A read that answers one operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// One row.
    Get(v1::Get),
    /// Rows of a group.
    Scan(v1::Scan),
    /// Incarnation and position.
    Status,
}

/// Why a read has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The state could not be read.
    Failed(StateFailure),
    /// There are more than [`ROW_BYTES`] of a row.
    TooLarge,
}

impl From<StateFailure> for Unread {
    fn from(failure: StateFailure) -> Unread {
        Unread::Failed(failure)
    }
}

impl Unread {
    /// The error as a user meets it.
    pub fn into_error(self) -> Error {
        match self {
            Unread::Failed(failure) => {
                Error::new("store.read_failed", Class::Failed, format!("the state could not be read: {failure}"))
                    .hint("`tidings doctor` on this node looks through its data directory.")
            }
            Unread::TooLarge => {
                let message = format!("a row has more than {} MiB of cells", ROW_BYTES >> 20);
                Error::new("store.row_too_large", Class::Refused, message)
                    .hint("Read some of its columns at a time, and delete what is not needed.")
            }
        }
    }
}

/// A read on behalf of consumers: what a group has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedQuery {
    /// The topic.
    pub topic: Bytes,
    /// The consumer group.
    pub group: Bytes,
    /// These first, if they are still open.
    pub again: Vec<u64>,
    /// Then whatever is open from here on.
    pub from: u64,
    /// At most this many entries.
    pub limit: usize,
}

/// The answer to a [`FeedQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedAnswer {
    /// The topic does not know the group yet.
    UnknownGroup,
    /// What is open.
    Open {
        /// Number and entry, those asked for again first.
        entries: Vec<(u64, Bytes)>,
        /// Of those asked for again, the ones that were looked at and are not open any more.
        closed: Vec<u64>,
        /// The group has acknowledged everything up to this one.
        floor: u64,
        /// Every open entry from `from` up to, but not including, this one is in `entries`.
        next: u64,
        /// Whether the limit cut the answer short.
        more: bool,
    },
}

/// Reads a state while its owner applies entries.
#[derive(Clone, Debug)]
pub struct StoreReader<R> {
    kv: R,
}

impl<R: KvReader> StoreReader<R> {
    pub(crate) fn new(kv: R) -> StoreReader<R> {
        StoreReader { kv }
    }

    /// Answers a read in frames: each is given to `emit` with whether more follow.
    pub fn answer(&self, query: &Query, emit: &mut dyn FnMut(Message, bool)) -> Result<(), Unread> {
        match query {
            Query::Get(get) => {
                let row = self.get(get)?;
                emit_rows(v1::Rows { rows: row.into_iter().collect(), next: None }, emit);
            }
            Query::Scan(scan) => emit_rows(self.scan(scan)?, emit),
            Query::Status => {
                let (incarnation, applied) = self.status()?;
                let reply = v1::StoreStatusReply { incarnation: incarnation.0, applied: applied.0 };
                emit(Message::StatusReply(reply), false);
            }
        }
        Ok(())
    }

    /// One row: its live cells, in the order of columns; `None` if there is none.
    pub fn get(&self, get: &v1::Get) -> Result<Option<v1::Row>, Unread> {
        let view = self.kv.view()?;
        let v1::RowKey { group, row } = get.key.clone().unwrap_or_default();
        let (mut cells, mut bytes) = (Vec::new(), 0);
        let mut take = |cell: Option<v1::Cell>| {
            bytes += cell.as_ref().map_or(0, cell_size);
            cells.extend(cell);
            if bytes <= ROW_BYTES { Ok(()) } else { Err(Unread::TooLarge) }
        };
        if get.columns.is_empty() {
            let (from, to) = key::row_range(&group, &row);
            let mut broken = None;
            view.scan(&from, &to, &mut |at, stored| {
                let version = Version::decode(&stored).ok_or_else(|| Unread::Failed(damaged(&at)));
                match version.and_then(|version| take(live(at.slice(from.len()..), version))) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(why) => {
                        broken = Some(why);
                        ControlFlow::Break(())
                    }
                }
            })?;
            broken.map_or(Ok(()), Err)?;
        } else {
            let mut columns: Vec<&Bytes> = get.columns.iter().collect();
            columns.sort_unstable();
            columns.dedup();
            for column in columns {
                let at = key::cell(&group, &row, column);
                if let Some(stored) = view.get(&at)? {
                    take(live(column.clone(), Version::decode(&stored).ok_or_else(|| damaged(&at))?))?;
                }
            }
        }
        Ok((!cells.is_empty()).then_some(v1::Row { row, cells }))
    }

    /// Rows of a group in order, those without live cells left out, up to the answer's bounds.
    pub fn scan(&self, scan: &v1::Scan) -> Result<v1::Rows, Unread> {
        let view = self.kv.view()?;
        let (from, to) = key::rows_range(&scan.group, &scan.start, &scan.end);
        let mut page = Page::new(scan);
        view.scan(&from, &to, &mut |at, stored| page.take(at, stored))?;
        page.finish()
    }

    /// The incarnation, and the last entry in the state.
    pub fn status(&self) -> Result<(Incarnation, LogIndex), StateFailure> {
        let view = self.kv.view()?;
        let incarnation = match view.get(key::INCARNATION)? {
            None => 0,
            Some(stored) => number(&stored)?,
        };
        Ok((Incarnation(incarnation), position_of(&view)?.index))
    }

    /// A topic and its groups, for status pages; `None` if nothing was ever appended or joined.
    pub fn topic(&self, name: &[u8]) -> Result<Option<Topic>, StateFailure> {
        topic_of(&self.kv.view()?, name)
    }

    /// What a consumer group has not acknowledged.
    pub fn feed(&self, query: &FeedQuery) -> Result<FeedAnswer, StateFailure> {
        let view = self.kv.view()?;
        let Some(topic) = topic_of(&view, &query.topic)? else { return Ok(FeedAnswer::UnknownGroup) };
        let Some(acks) = topic.groups.get(&query.group) else { return Ok(FeedAnswer::UnknownGroup) };
        let mut taken = Taken { entries: Vec::new(), bytes: 0, limit: query.limit };
        let mut closed = Vec::new();
        for again in &query.again {
            match view.get(&key::entry(&query.topic, *again))? {
                Some(stored) if !acks.contains(*again) => {
                    if !taken.push(*again, &stored)? {
                        break;
                    }
                }
                _ => closed.push(*again),
            }
        }
        let (next, more) = open_entries(&view, query, acks, &topic, &mut taken)?;
        Ok(FeedAnswer::Open { entries: taken.entries, closed, floor: acks.floor(), next, more })
    }
}

/// Takes the open entries from the query's `from` on; returns where it stopped and whether more are there.
fn open_entries(
    view: &impl KvView,
    query: &FeedQuery,
    acks: &Acks,
    topic: &Topic,
    taken: &mut Taken,
) -> Result<(u64, bool), StateFailure> {
    let end = topic.last.min(acks.floor() + ACK_WINDOW) + 1;
    let mut next = acks.next_open(query.from.max(topic.dropped + 1)).min(end);
    if next == end {
        return Ok((next, false));
    }
    let mut broken = None;
    let (from, to) = (key::entry(&query.topic, next), key::entry(&query.topic, end));
    view.scan(&from, &to, &mut |at, stored| {
        let Some(number) = key::entry_number(&at) else {
            broken = Some(damaged(&at));
            return ControlFlow::Break(());
        };
        if acks.contains(number) {
            return ControlFlow::Continue(());
        }
        next = number;
        match taken.push(number, &stored) {
            Ok(true) => {
                next += 1;
                ControlFlow::Continue(())
            }
            Ok(false) => ControlFlow::Break(()),
            Err(failure) => {
                broken = Some(failure);
                ControlFlow::Break(())
            }
        }
    })?;
    broken.map_or(Ok(()), Err)?;
    let next = acks.next_open(next).min(end);
    Ok((next, next < end))
}

/// Entries on their way into an answer.
struct Taken {
    entries: Vec<(u64, Bytes)>,
    bytes: usize,
    limit: usize,
}

impl Taken {
    /// Takes an entry if it fits; whether it did.
    fn push(&mut self, number: u64, stored: &Bytes) -> Result<bool, StateFailure> {
        if stored.len() < 8 {
            return Err(StateFailure::new(format!("the stored entry {number} is damaged")));
        }
        let entry = stored.slice(8..);
        let fits = self.entries.is_empty() || self.bytes + entry.len() <= FEED_BYTES;
        if !fits || self.entries.len() >= self.limit {
            return Ok(false);
        }
        self.bytes += entry.len();
        self.entries.push((number, entry));
        Ok(true)
    }
}

/// A scan's answer in the making.
struct Page<'a> {
    group_len: usize,
    columns: Vec<&'a Bytes>,
    limit: usize,
    rows: Vec<v1::Row>,
    /// The row being read: its escaped part of the key, and its live cells.
    current: Option<(Bytes, Vec<v1::Cell>)>,
    bytes: usize,
    /// How many of them are of the row being read.
    row_bytes: usize,
    visits: usize,
    next: Option<Bytes>,
    broken: Option<Unread>,
}

impl<'a> Page<'a> {
    fn new(scan: &'a v1::Scan) -> Page<'a> {
        let mut columns: Vec<&Bytes> = scan.columns.iter().collect();
        columns.sort_unstable();
        let limit = if scan.limit == 0 { SCAN_ROWS } else { (scan.limit as usize).min(SCAN_ROWS) };
        let group_len = key::group_part(&scan.group);
        Page {
            group_len,
            columns,
            limit,
            rows: Vec::new(),
            current: None,
            bytes: 0,
            row_bytes: 0,
            visits: 0,
            next: None,
            broken: None,
        }
    }

    fn take(&mut self, at: Bytes, stored: Bytes) -> ControlFlow<()> {
        let (Some(column_at), Some(version)) = (key::column_start(&at, self.group_len), Version::decode(&stored))
        else {
            self.broken = Some(damaged(&at).into());
            return ControlFlow::Break(());
        };
        let row = at.slice(self.group_len..column_at);
        if self.current.as_ref().is_none_or(|(current, _)| *current != row) {
            self.close_row();
            if self.rows.len() >= self.limit || self.bytes >= SCAN_BYTES || self.visits >= SCAN_VISITS {
                self.next = key::read_name(&row);
                return ControlFlow::Break(());
            }
            self.current = Some((row, Vec::new()));
            self.row_bytes = 0;
        }
        self.visits += 1;
        let column = at.slice(column_at..);
        let wanted = self.columns.is_empty() || self.columns.binary_search(&&column).is_ok();
        if wanted && let (Some(cell), Some((_, cells))) = (live(column, version), &mut self.current) {
            self.bytes += cell_size(&cell);
            self.row_bytes += cell_size(&cell);
            cells.push(cell);
        }
        if self.row_bytes > ROW_BYTES {
            self.broken = Some(Unread::TooLarge);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn close_row(&mut self) {
        if let Some((escaped, cells)) = self.current.take()
            && !cells.is_empty()
            && let Some(row) = key::read_name(&escaped)
        {
            self.bytes += row.len();
            self.rows.push(v1::Row { row, cells });
        }
    }

    fn finish(mut self) -> Result<v1::Rows, Unread> {
        self.close_row();
        match self.broken {
            Some(why) => Err(why),
            None => Ok(v1::Rows { rows: self.rows, next: self.next }),
        }
    }
}

/// Cuts an answer into frames. A row that does not fit is continued in the next frame under the same key.
fn emit_rows(answer: v1::Rows, emit: &mut dyn FnMut(Message, bool)) {
    let mut frame = v1::Rows::default();
    let mut bytes = 0;
    for row in answer.rows {
        let mut part = v1::Row { row: row.row, cells: Vec::new() };
        for cell in row.cells {
            // A row's key is sent with its first cell in a frame.
            let mut size = cell_size(&cell) + if part.cells.is_empty() { part.row.len() } else { 0 };
            if bytes > 0 && bytes + size > FRAME_BYTES {
                let key = part.row.clone();
                frame.rows.extend((!part.cells.is_empty()).then_some(part));
                emit(Message::Rows(std::mem::take(&mut frame)), true);
                size = cell_size(&cell) + key.len();
                part = v1::Row { row: key, cells: Vec::new() };
                bytes = 0;
            }
            bytes += size;
            part.cells.push(cell);
        }
        frame.rows.push(part);
    }
    frame.next = answer.next;
    emit(Message::Rows(frame), false);
}

/// Joins the frames of one answer to what the reader meant.
pub fn join_frames(frames: impl IntoIterator<Item = v1::Rows>) -> v1::Rows {
    let mut joined = v1::Rows::default();
    for frame in frames {
        for row in frame.rows {
            match joined.rows.last_mut() {
                Some(last) if last.row == row.row => last.cells.extend(row.cells),
                _ => joined.rows.push(row),
            }
        }
        joined.next = frame.next;
    }
    joined
}

fn live(column: Bytes, version: Version) -> Option<v1::Cell> {
    version.value.map(|value| v1::Cell { column, timestamp: version.timestamp, value: Some(value) })
}

fn cell_size(cell: &v1::Cell) -> usize {
    // Numbers and lengths of the frame: about 16 bytes a cell.
    16 + cell.column.len() + cell.value.as_ref().map_or(0, Bytes::len)
}

fn topic_of(view: &impl KvView, name: &[u8]) -> Result<Option<Topic>, StateFailure> {
    let at = key::topic(name);
    match view.get(&at)? {
        None => Ok(None),
        Some(stored) => Topic::decode(&stored).map(Some).ok_or_else(|| damaged(&at)),
    }
}

fn position_of(view: &impl KvView) -> Result<Position, StateFailure> {
    view.get(key::POSITION)?.map_or(Ok(Position::default()), |stored| decode_position(&stored))
}

/// Every pair of a view, for tests and invariants that compare states.
pub fn all_pairs(view: &impl KvView) -> Result<BTreeMap<Bytes, Bytes>, StateFailure> {
    let mut pairs = BTreeMap::new();
    view.scan(&[], &[], &mut |at, stored| {
        pairs.insert(at, stored);
        ControlFlow::Continue(())
    })?;
    Ok(pairs)
}
