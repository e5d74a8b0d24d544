//! One-time reads: a scan in pages, both predicates next to the data, bounded memory (§4.2, R5).

use super::sending::weight;
use super::tables::{To, Writers};
use super::writing::{load, outcome_row};
use super::{Output, Processor, Step, StoreReply, StoreResult, Timer, answer};
use crate::calls::{Answer, Caller, Level, Page, Read, Span, Visible};
use crate::directory;
use crate::gather::{self, Gather};
use crate::mutant::Mutant;
use crate::names::{PartitionId, Position, RequestId};
use crate::record::{Record, check_key};
use crate::refusal::Refusal;
use crate::rows;
use bytes::Bytes;
use std::sync::Arc;
use tidings_base::{Mono, Now, Outbox};
use tidings_predicate::query::{Query, Row};
use tidings_predicate::{Key, Meter};
use tidings_wire::v1;

/// Marks of deletions that wait to be removed, of one partition.
pub(super) const EXPIRED: usize = 4_096;

/// An operation that a read waits for: where its outcome stands, and up to where its client has acknowledged such.
#[derive(Debug)]
pub(super) struct Pending {
    pub outcome: Bytes,
    pub acked: Bytes,
    pub seq: u64,
}

/// How many rows a scan asks for, so that what is evaluated over a page is not more than others can wait for: as many as could be
/// looked at in one go, and twice as many whenever there was time left; 0 = as many as any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace(u32);

impl Pace {
    pub fn rows(self, most: u32) -> u32 {
        match (self.0, most) {
            (0, most) => most,
            (rows, 0) => rows,
            (rows, most) => rows.min(most),
        }
    }

    /// So many rows took all the time that there was.
    pub fn cut(&mut self, rows: usize) {
        self.0 = u32::try_from(rows).unwrap_or(u32::MAX).max(1);
    }

    pub fn whole(&mut self) {
        self.0 = self.0.saturating_mul(2);
    }
}

/// A read that is under way.
#[derive(Debug)]
pub(super) struct Reading {
    pub partition: PartitionId,
    caller: Box<Caller>,
    read: Box<Read>,
    query: Query,
    /// Makes the rows, if this partition has all records.
    gather: Option<Gather>,
    /// R6: outcomes that it waits for.
    pub pending: Vec<Pending>,
    deadline: Mono,
    /// Where the scan goes on, up to `end`; none at its end.
    pub next: Option<Bytes>,
    pub end: Bytes,
    pace: Pace,
    /// Records of the next piece.
    records: Vec<Visible>,
    found: usize,
    pub size: usize,
    /// Whether a piece was sent and nobody asked for the next.
    paused: bool,
    /// The answer is at least as new as this, and shows nothing that is newer.
    pub position: Position,
}

impl Processor {
    pub(super) fn read(
        &mut self,
        now: Now,
        request: RequestId,
        id: PartitionId,
        caller: Box<Caller>,
        read: Box<Read>,
        out: &mut Outbox<Output>,
    ) {
        let Some(partition) = self.partitions.get(&id) else { return answer(request, Err(Refusal::Moved), out) };
        match self.reading(now, id, (&partition.owned.entry, partition.position), caller, read) {
            Err(refusal) => answer(request, Err(refusal), out),
            Ok(mut reading) => {
                if let Some(partition) = self.partitions.get_mut(&id) {
                    reading.pending.retain(|pending| !partition.decided(pending));
                }
                let waits = !reading.pending.is_empty();
                if waits {
                    let first = self.shared.timers.at(&Timer::Waited(id)).unwrap_or(Mono::NEVER);
                    self.shared.timers.set(Timer::Waited(id), first.min(reading.deadline));
                }
                self.reads.insert(request, reading);
                if waits { self.wio_load(id, out) } else { self.begin(now, request, out) }
            }
        }
    }

    /// What a read is of a partition that is at this position, here or at its copy.
    pub(super) fn reading(
        &self,
        now: Now,
        id: PartitionId,
        (entry, position): (&directory::Partition, Position),
        caller: Box<Caller>,
        read: Box<Read>,
    ) -> Result<Reading, Refusal> {
        let table = self.tables.get(&id.table).ok_or(Refusal::Moved)?;
        if self.reads.len() >= self.shared.options.reads {
            return Err(Refusal::Busy);
        }
        // R5: nothing older than what the client has seen.
        if read.floor > position && !self.shared.is(Mutant::FloorIgnored) {
            return Err(Refusal::Behind);
        }
        let query = Query::compile(&read.ask, &table.dialect)?;
        if read.whole && read.ask.lookup.is_some() {
            return Err(Refusal::Invalid("What is looked up may lie in another partition.".to_owned()));
        }
        let (next, end) = range(&read.span, entry)?.unzip();
        let pending = match &read.level {
            Level::CommittedWio { netid, pending } => {
                // What is pending elsewhere is waited for there.
                let here = pending.iter().filter(|(key, _)| entry.contains(key));
                let acked = rows::acked(*netid);
                let of = |(key, seq): &(Key, u64)| Pending {
                    outcome: outcome_row(key, *netid, *seq),
                    acked: acked.clone(),
                    seq: *seq,
                };
                here.map(of).collect()
            }
            _ => Vec::new(),
        };
        let (data, claims) = (read.data.clone(), caller.claims.clone());
        let gather = read.whole.then(|| Gather::of(query.clone(), gather::Reading { data, claims, now: now.wall }));
        Ok(Reading {
            partition: id,
            deadline: read.deadline.unwrap_or(now.mono + self.shared.options.patience),
            caller,
            read,
            query,
            gather,
            pending,
            next,
            end: end.unwrap_or_default(),
            pace: Pace::default(),
            records: Vec::new(),
            found: 0,
            size: 0,
            paused: false,
            position,
        })
    }

    /// Answers from memory what is one record that is known; scans otherwise.
    fn begin(&mut self, now: Now, request: RequestId, out: &mut Outbox<Output>) {
        let Some(reading) = self.reads.get_mut(&request) else { return };
        let Some(partition) = self.partitions.get_mut(&reading.partition) else { return };
        reading.position = reading.position.max(partition.position);
        if let Span::Only(key) = &reading.read.span
            && let Some(known) = partition.rows.get(&rows::record(key))
        {
            let cells = known.iter().map(|(version, value)| rows::cell(*version, Some(value.clone()))).collect();
            let row = v1::Row { row: rows::record(key), cells };
            let found = v1::Rows { rows: vec![row], next: None };
            return self.page(now, request, Ok(StoreReply::Rows(found)), out);
        }
        match reading.next {
            Some(_) => self.scan(now, request, out),
            None => self.piece(now, request, true, out),
        }
    }

    fn scan(&mut self, now: Now, request: RequestId, out: &mut Outbox<Output>) {
        let Some(reading) = self.reads.get_mut(&request) else { return };
        if self.copies.contains_key(&reading.partition) {
            return self.shared.timers.set(Timer::Copied(request), now.mono);
        }
        let Some(partition) = self.partitions.get(&reading.partition) else { return };
        let Some(next) = reading.next.clone() else { return };
        let limit = reading.pace.rows(self.shared.options.page);
        let scan = partition.scan(next, reading.end.clone(), limit);
        self.shared.store(Step::Reading(request), scan, out);
    }

    /// A page of the scan has come.
    pub(super) fn page(&mut self, now: Now, request: RequestId, result: StoreResult, out: &mut Outbox<Output>) {
        let found = match result {
            Ok(StoreReply::Rows(found)) => found,
            Ok(_) => v1::Rows::default(),
            Err(error) => {
                if self.reads.remove(&request).is_some() {
                    answer(request, Err(Refusal::Store(error.to_string())), out);
                }
                return;
            }
        };
        let rest = match self.take(now, request, &found) {
            Ok(rest) => rest,
            Err(refusal) => {
                self.reads.remove(&request);
                return answer(request, Err(refusal), out);
            }
        };
        let Some(reading) = self.reads.get_mut(&request) else { return };
        let full = reading.is_satisfied();
        reading.next = rest.or(found.next).filter(|_| !full);
        let last = reading.next.is_none();
        if last || reading.size >= self.shared.options.page_bytes {
            return self.piece(now, request, last, out);
        }
        self.scan(now, request, out);
    }

    /// Keeps what of a page is shown to the reader and asked for; the first row that there was no time for.
    fn take(&mut self, now: Now, request: RequestId, found: &v1::Rows) -> Result<Option<Bytes>, Refusal> {
        let Some(reading) = self.reads.get_mut(&request) else { return Ok(None) };
        let Some(partition) = self.partitions.get_mut(&reading.partition) else { return Ok(None) };
        let meter = Meter::default();
        let keep = self.tables.get(&reading.partition.table).map(|table| self.shared.options.marks(&table.properties));
        // R5: what is not here is not here as of now, though it was when the read began: an older copy would show it again.
        reading.position = reading.position.max(partition.position);
        for (at, row) in found.rows.iter().enumerate() {
            if meter.steps() >= self.shared.options.steps {
                reading.pace.cut(at);
                return Ok(Some(row.row.clone()));
            }
            let Some((key, record)) = rows::key_of(&row.row).zip(decode(row)) else { continue };
            // A commit that is under way may be in the store already. Whoever is answered from memory has not heard of it:
            // until it is committed here nobody has.
            let record = Arc::new(record);
            let image = match partition.image_at(&key, Some(record.clone()), partition.position) {
                Ok(image) => image,
                Err(()) if reading.read.level == Level::Latest => return Err(Refusal::Moved),
                // Somebody else writes already: for a reader who asks for no more it is committed. Shown or not, it was seen.
                Err(()) => {
                    reading.position = reading.position.max(record.version);
                    Some(record)
                }
            };
            let Some(record) = image else { continue };
            if record.columns.is_none() {
                let old = now.wall.0.saturating_sub(record.time.0);
                if keep.is_some_and(|keep| u128::from(old) > keep.as_micros()) && partition.expired.len() < EXPIRED {
                    partition.expired.push((row.row.clone(), record.version.get()));
                }
                continue;
            }
            if reading.is_full() {
                break;
            }
            reading.consider(&mut self.shared.writers, now, &key, &record, &meter)?;
        }
        reading.pace.whole();
        Ok(None)
    }

    /// Sends what has been found.
    pub(super) fn piece(&mut self, now: Now, request: RequestId, last: bool, out: &mut Outbox<Output>) {
        let Some(reading) = self.reads.get_mut(&request) else { return };
        let rows = match &mut reading.gather {
            Some(gather) if last => gather.finish(),
            Some(gather) => gather.ready(),
            None => Ok(Vec::<Row>::new()),
        };
        let records = std::mem::take(&mut reading.records);
        reading.size = 0;
        let empty = records.is_empty() && rows.as_ref().is_ok_and(Vec::is_empty);
        if empty && !last {
            return self.scan(now, request, out);
        }
        // Each piece is as new as it must be only under a lease that held while it was read.
        let guarded = reading.is_guarded();
        let guard = self
            .partitions
            .get(&reading.partition)
            .filter(|_| guarded)
            .and_then(|partition| self.shared.guard(partition));
        let last = last || rows.is_err();
        let page = rows.map(|rows| Answer::Page(Page { position: reading.position, records, rows, last }));
        reading.paused = true;
        if last {
            self.reads.remove(&request);
        }
        out.put(Output::Answer { request, guard, answer: page });
    }

    pub(super) fn pull(&mut self, now: Now, request: RequestId, out: &mut Outbox<Output>) {
        let paused = self.reads.get_mut(&request).is_some_and(|reading| std::mem::take(&mut reading.paused));
        if paused {
            self.scan(now, request, out);
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        self.reads.remove(&request);
    }

    /// Asks for outcomes that reads wait for.
    pub(super) fn wio_load(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let waiting = self.reads.values().filter(|reading| reading.partition == id);
        for Pending { outcome, acked, .. } in waiting.flat_map(|reading| &reading.pending) {
            load(&mut self.shared, partition, outcome.clone(), out);
            load(&mut self.shared, partition, acked.clone(), out);
        }
    }

    /// Outcomes may be known that reads wait for (`committed_wio`).
    pub(super) fn wio_moved(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let mut ready = Vec::new();
        for (request, reading) in &mut self.reads {
            if reading.partition != id || reading.pending.is_empty() {
                continue;
            }
            reading.pending.retain(|pending| !partition.decided(pending));
            if reading.pending.is_empty() {
                ready.push(*request);
            }
        }
        ready.into_iter().for_each(|request| self.begin(now, request, out));
    }

    /// Reads that have waited long enough for operations of their client.
    pub(super) fn wio_late(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let waits = |reading: &Reading| reading.partition == id && !reading.pending.is_empty();
        let late = self.reads.iter().filter(|(_, reading)| waits(reading) && reading.deadline <= now.mono);
        for request in late.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.reads.remove(&request);
            answer(request, Err(Refusal::Waited), out);
        }
        let next = self.reads.values().filter(|reading| waits(reading)).map(|reading| reading.deadline).min();
        let first = self.shared.timers.at(&Timer::Waited(id));
        if let Some(next) = next.into_iter().chain(first).min() {
            self.shared.timers.set(Timer::Waited(id), next);
        }
    }
}

impl Reading {
    /// Takes a record that is shown to the reader and asked for.
    pub(super) fn consider(
        &mut self,
        writers: &mut Writers,
        now: Now,
        key: &Key,
        record: &Record,
        meter: &Meter,
    ) -> Result<(), Refusal> {
        let (data, claims, query) = (&self.read.data, &self.caller.claims, Some(&self.query));
        match writers.shows(key, record, &To { data, claims, query, now: Some(now.wall), meter: Some(meter) })? {
            true => self.add(key, record, meter),
            false => Ok(()),
        }
    }

    pub(super) fn add(&mut self, key: &Key, record: &Record, meter: &Meter) -> Result<(), Refusal> {
        let Some(visible) = record.visible(key) else { return Ok(()) };
        self.position = self.position.max(record.version);
        self.size += weight(&visible);
        self.found += 1;
        match &mut self.gather {
            Some(gather) => gather.add_metered(&visible, None, meter)?,
            None => self.records.push(visible),
        }
        Ok(())
    }

    /// Whether a deposed owner that has not noticed may not answer. Its records are old: what is older than a floor it refuses
    /// (R5), but whoever brings no floor may have seen anything; and `committed_wio` promises a client what it wrote, whoever
    /// decided it.
    fn is_guarded(&self) -> bool {
        match self.read.level {
            Level::Latest | Level::CommittedWio { .. } => true,
            Level::Uncommitted | Level::Committed => self.read.floor == Position::ZERO,
        }
    }

    /// Whether nothing more is wanted.
    pub(super) fn is_satisfied(&self) -> bool {
        self.gather.as_ref().is_some_and(Gather::is_full) || self.is_full()
    }

    /// Whether it has as many records as it may answer with.
    fn is_full(&self) -> bool {
        self.query.is_streamed() && self.query.limit().is_some_and(|limit| self.found >= limit)
    }
}

/// The record of a row.
pub(super) fn decode(row: &v1::Row) -> Option<Record> {
    let (version, value) = rows::found(row)?;
    Record::decode(version, &value)
}

/// The rows of a span that lie in a partition.
fn range(span: &Span, entry: &directory::Partition) -> Result<Option<(Bytes, Bytes)>, Refusal> {
    let (start, end) = rows::records(entry.start.as_ref(), entry.end.as_ref());
    // None: no key of the span lies here.
    let cut = |from: Option<Bytes>, to: Option<&Key>| {
        let from = from.map_or_else(|| start.clone(), |from| from.max(start.clone()));
        let to = to.map_or_else(|| end.clone(), |to| rows::record(to).min(end.clone()));
        (from < to).then_some((from, to))
    };
    match span {
        Span::All => Ok(Some((start, end))),
        Span::Only(key) => {
            check_key(key)?;
            if !entry.contains(key) {
                return Err(Refusal::Moved);
            }
            let row = rows::record(key);
            let after = rows::after(&row);
            Ok(Some((row, after)))
        }
        Span::Between(from, to) => Ok(cut(from.as_ref().map(rows::record), to.as_ref())),
        Span::After(key, to) => Ok(cut(Some(rows::after(&rows::record(key))), to.as_ref())),
    }
}
