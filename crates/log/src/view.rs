//! What readers see: the log as it will be when everything handed in has been written.
//!
//! ```text
//!   indices   first ······ on disk only ······ cached ······ next
//!                          └ runs: where ┘     └ the newest, in memory; what is not yet written always is ┘
//! ```
//! A lock guards only this picture; it is never held while a file is read or written. Records once written are never
//! overwritten, so a reader that has looked up where they stand may read them at leisure.

use crate::format::{RECORD_HEAD, RecordHead, segment_name};
use crate::runs::{Runs, Step};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use tidings_base::disk::DiskFile;

/// How much a read from disk takes at once.
const READ_CHUNK: usize = 64 << 10;

/// What each cached record counts beside its payload.
const CACHED_OVERHEAD: usize = 64;

/// A segment open for reading.
pub(crate) struct SegmentReader {
    name: String,
    seed: u32,
    capacity: u32,
    file: Mutex<Box<dyn DiskFile>>,
}

impl SegmentReader {
    pub fn new(sequence: u64, seed: u32, capacity: u32, file: Box<dyn DiskFile>) -> SegmentReader {
        SegmentReader { name: segment_name(sequence), seed, capacity, file: Mutex::new(file) }
    }
}

struct Cached {
    index: u64,
    /// The change that brought it; it may leave the cache once that is written.
    change: u64,
    payload: Bytes,
}

struct State {
    first: u64,
    next: u64,
    /// The newest records, consecutive, up to `next`.
    cache: VecDeque<Cached>,
    cache_bytes: usize,
    cache_limit: usize,
    /// How many changes were handed in.
    changes: u64,
    /// How many of them are written.
    written: u64,
    runs: Runs,
    segments: BTreeMap<u64, Arc<SegmentReader>>,
}

/// The picture that a log shares with its readers.
pub(crate) struct View {
    state: Mutex<State>,
}

/// What a change does to the picture.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Adds records at the end.
    Append {
        /// The index of the first.
        first: u64,
        /// What they hold.
        payloads: Vec<Bytes>,
    },
    /// Drops records from this index on.
    TruncateFrom(u64),
    /// Drops records before this index.
    PurgeTo(u64),
    /// Drops everything and goes on here.
    Reset(u64),
}

/// What a read takes from the segments and, behind that, from memory.
struct Plan {
    stretches: Vec<Stretch>,
    cached: Vec<(u64, Bytes)>,
}

/// One stretch of records to be read from one segment.
struct Stretch {
    segment: Arc<SegmentReader>,
    /// A record at or before `from`, and where it begins.
    near: (u64, u32),
    from: u64,
    to: u64,
}

impl View {
    pub fn new(first: u64, next: u64, cache_limit: usize, runs: Runs) -> View {
        let (cache, segments) = (VecDeque::new(), BTreeMap::new());
        let state = State { first, next, cache, cache_bytes: 0, cache_limit, changes: 0, written: 0, runs, segments };
        View { state: Mutex::new(state) }
    }

    pub fn first(&self) -> u64 {
        self.state.lock().first
    }

    pub fn next(&self) -> u64 {
        self.state.lock().next
    }

    pub fn first_within(&self, bytes: u64) -> u64 {
        let state = self.state.lock();
        state.runs.first_within(bytes).unwrap_or(0).max(state.first)
    }

    pub fn bounds(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.first, state.next)
    }

    pub fn add_segment(&self, sequence: u64, reader: SegmentReader) {
        self.state.lock().segments.insert(sequence, Arc::new(reader));
    }

    pub fn drop_segment(&self, sequence: u64) {
        self.state.lock().segments.remove(&sequence);
    }

    /// The oldest segment with a living record.
    pub fn oldest_segment(&self) -> Option<u64> {
        self.state.lock().runs.oldest_segment()
    }

    /// Shows a change to readers before it is written, if it fits the log; answers its number.
    pub fn show(&self, change: &Change) -> io::Result<u64> {
        let mut state = self.state.lock();
        check(change, state.first, state.next)?;
        state.changes += 1;
        let number = state.changes;
        state.show(change, number);
        Ok(number)
    }

    /// Notes that all changes up to `number` are written, and where.
    pub fn written(&self, number: u64, steps: impl IntoIterator<Item = Step>) {
        let mut state = self.state.lock();
        state.written = state.written.max(number);
        for step in steps {
            state.runs.apply(step);
        }
        state.evict();
    }

    /// Takes back all changes that were shown but not written: the log on disk is `first..next`.
    pub fn take_back(&self, first: u64, next: u64) {
        let mut state = self.state.lock();
        let written = state.written;
        while state.cache.back().is_some_and(|cached| cached.change > written || cached.index >= next) {
            state.uncache_last();
        }
        // A truncation that is taken back leaves a hole between cache and end: the disk has those records.
        if state.cache.back().is_none_or(|cached| cached.index + 1 != next) {
            state.cache.clear();
            state.cache_bytes = 0;
        }
        (state.first, state.next, state.changes) = (first, next, written);
    }

    /// Reads records of `from..to` until they make more than `max_bytes`; at least one if there is one.
    pub fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<(u64, Bytes)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let Plan { stretches, cached } = self.plan(from, to, max_bytes)?;
        let mut records = Vec::new();
        let mut budget = Budget { used: 0, max_bytes };
        for stretch in stretches {
            if !read_stretch(&stretch, &mut budget, &mut records)? {
                return Ok(records);
            }
        }
        for (index, payload) in cached {
            if !budget.allows(payload.len(), records.is_empty()) {
                break;
            }
            records.push((index, payload));
        }
        Ok(records)
    }

    fn plan(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Plan> {
        let state = self.state.lock();
        if from < state.first {
            let what = format!("record {from} was purged: the log begins at {}", state.first);
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        let to = to.min(state.next);
        let cached_from = state.next - state.cache.len() as u64;
        let mut stretches = Vec::new();
        let disk_to = to.min(cached_from);
        for run in state.runs.covering(from, disk_to) {
            let Some(segment) = state.segments.get(&run.sequence) else {
                return Err(io::Error::other(format!("{} is not open", segment_name(run.sequence))));
            };
            let start = from.max(run.first);
            stretches.push(Stretch {
                segment: segment.clone(),
                near: run.nearest(start),
                from: start,
                to: disk_to.min(run.next),
            });
        }
        let mut cached = Vec::new();
        let mut budget = Budget { used: 0, max_bytes };
        let skip = from.saturating_sub(cached_from).min(state.cache.len() as u64) as usize;
        for record in state.cache.range(skip..).take_while(|record| record.index < to) {
            if !budget.allows(record.payload.len(), cached.is_empty()) {
                break;
            }
            cached.push((record.index, record.payload.clone()));
        }
        Ok(Plan { stretches, cached })
    }
}

/// Whether a change fits a log of `first..next`.
pub(crate) fn check(change: &Change, first: u64, next: u64) -> io::Result<()> {
    let what = match change {
        Change::Append { first: at, .. } if *at != next => format!("cannot append at {at}: the next index is {next}"),
        Change::Append { payloads, .. } if payloads.iter().any(|p| p.len() > crate::MAX_PAYLOAD) => {
            format!("a payload is larger than {} bytes", crate::MAX_PAYLOAD)
        }
        Change::TruncateFrom(at) | Change::PurgeTo(at) if !(first..=next).contains(at) => {
            format!("cannot cut at {at}: the log has {first}..{next}")
        }
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

impl State {
    fn show(&mut self, change: &Change, number: u64) {
        match change {
            Change::Append { payloads, .. } => {
                for payload in payloads {
                    self.cache_bytes += payload.len() + CACHED_OVERHEAD;
                    self.cache.push_back(Cached { index: self.next, change: number, payload: payload.clone() });
                    self.next += 1;
                }
                self.evict();
            }
            Change::TruncateFrom(at) => {
                while self.cache.back().is_some_and(|cached| cached.index >= *at) {
                    self.uncache_last();
                }
                self.next = *at;
            }
            Change::PurgeTo(at) => {
                while self.cache.front().is_some_and(|cached| cached.index < *at) {
                    self.uncache_first();
                }
                self.first = *at;
            }
            Change::Reset(at) => {
                self.cache.clear();
                self.cache_bytes = 0;
                (self.first, self.next) = (*at, *at);
            }
        }
    }

    fn evict(&mut self) {
        let written = self.written;
        while self.cache_bytes > self.cache_limit && self.cache.front().is_some_and(|c| c.change <= written) {
            self.uncache_first();
        }
    }

    fn uncache_first(&mut self) {
        if let Some(cached) = self.cache.pop_front() {
            self.cache_bytes -= cached.payload.len() + CACHED_OVERHEAD;
        }
    }

    fn uncache_last(&mut self) {
        if let Some(cached) = self.cache.pop_back() {
            self.cache_bytes -= cached.payload.len() + CACHED_OVERHEAD;
        }
    }
}

/// How many bytes a read may still take.
struct Budget {
    used: usize,
    max_bytes: usize,
}

impl Budget {
    /// Whether one more payload is taken: the first one always.
    fn allows(&mut self, len: usize, first: bool) -> bool {
        self.used = self.used.saturating_add(len);
        first || self.used <= self.max_bytes
    }
}

/// Reads one stretch; answers whether there is room for more.
fn read_stretch(stretch: &Stretch, budget: &mut Budget, records: &mut Vec<(u64, Bytes)>) -> io::Result<bool> {
    let mut window = Window { segment: &stretch.segment, start: stretch.near.1, bytes: Vec::new() };
    let (mut index, mut at) = stretch.near;
    while index < stretch.to {
        let head = RecordHead::decode(window.get(at, RECORD_HEAD)?, stretch.segment.seed, at)
            .filter(|head| head.index == index)
            .ok_or_else(|| window.damaged(at, "the head of a record changed since it was written"))?;
        let size = (head.end(at) - u64::from(at)) as u32;
        if index >= stretch.from {
            let length = head.length as usize;
            if !budget.allows(length, records.is_empty()) {
                return Ok(false);
            }
            let body = &window.get(at, size)?[RECORD_HEAD as usize..];
            if crc32c::crc32c(body) != head.body_crc {
                return Err(window.damaged(at, "a payload changed since it was written"));
            }
            records.push((index, Bytes::copy_from_slice(&body[..length])));
        }
        index += 1;
        at += size;
    }
    Ok(true)
}

/// A part of a segment in memory, moved forward as it is read.
struct Window<'a> {
    segment: &'a SegmentReader,
    start: u32,
    bytes: Vec<u8>,
}

impl Window<'_> {
    fn get(&mut self, at: u32, len: u32) -> io::Result<&[u8]> {
        if u64::from(at) + u64::from(len) > u64::from(self.segment.capacity) {
            return Err(self.damaged(at, "a record goes beyond the end of its segment"));
        }
        let end = (at - self.start) as usize + len as usize;
        if end > self.bytes.len() {
            let fetch = READ_CHUNK.max(len as usize).min((self.segment.capacity - at) as usize);
            self.bytes.resize(fetch, 0);
            self.segment.file.lock().read_at(u64::from(at), &mut self.bytes)?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + len as usize])
    }

    fn damaged(&self, at: u32, what: &str) -> io::Error {
        let hint = crate::scan::HINT_DAMAGE;
        io::Error::new(io::ErrorKind::InvalidData, format!("{} at byte {at}: {what}; {hint}", self.segment.name))
    }
}
