//! The log itself: one writer that only ever adds to the last segment.

use crate::active::{Active, InPlace, MakeError, make_segment, settle};
use crate::format::{
    ALIGN, Encoder, HEADER_SPACE, Kind, RECORD_HEAD, SegmentHeader, TEMPORARY_SUFFIX, record_size, segment_name,
};
use crate::runs::{Run, Step};
use crate::scan::{Scan, Tail, Trouble, scan};
use crate::view::{Change, SegmentReader, View, check};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tidings_base::disk::Disk;

/// The smallest segment: its header, the reserve, and room for a few records.
pub const MIN_SEGMENT_BYTES: u32 = 2 * HEADER_SPACE;

/// What appends leave free at the end of a segment, so that a purge can be noted there when the disk is too full for
/// a new segment: purging is what makes room.
const RESERVE: u32 = 1024;

/// What even a purge leaves free: a marker and a seal.
const LAST_RESERVE: u32 = 2 * RECORD_HEAD;

/// The most that one write may carry, so that offsets within a segment stay below 4 GiB.
const MAX_WRITE: u64 = 1 << 30;

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names the log; its segments carry it, and another log's segments are refused. Default 0.
    pub log_id: u64,
    /// The size of a segment file, reserved at once when it is made. Default 64 MiB: large enough that making one
    /// is rare, small enough that purging frees space in good time. At least [`MIN_SEGMENT_BYTES`].
    pub segment_bytes: u32,
    /// How many bytes of the newest records stay in memory for readers. Default 8 MiB: more than a follower that
    /// keeps up is ever behind. Records that are not yet written stay beyond that.
    pub cache_bytes: usize,
    /// How many zeroes are written beyond the records at a time, so that the syncs after that only overwrite: on a
    /// journalling file system such a sync need not commit metadata and takes a fraction of the time. Default 1 MiB;
    /// 0 for none, which suits a simulated disk.
    pub zero_ahead: u32,
    /// The first index of a log that does not exist yet. Default 1.
    pub first_index: u64,
    /// Mixed into every checksum of a new segment. A number that those who choose payloads cannot know keeps them
    /// from writing payloads that recovery would mistake for records. Default 0.
    pub salt: u64,
}

impl Default for Options {
    fn default() -> Options {
        let (segment_bytes, cache_bytes, zero_ahead) = (64 << 20, 8 << 20, 1 << 20);
        Options { log_id: 0, segment_bytes, cache_bytes, zero_ahead, first_index: 1, salt: 0 }
    }
}

/// What opening a log found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// There was no log; a new one was made.
    pub created: bool,
    /// The last write before a crash was incomplete and was cut.
    pub torn: Option<Trouble>,
    /// How many segments there are.
    pub segments: usize,
    /// The first index that the log holds or will hold.
    pub first: u64,
    /// The index that the next record will have.
    pub next: u64,
}

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The strict check found damage; nothing was changed.
    #[error("{0}")]
    Refused(Trouble),
    /// The disk failed.
    #[error("{doing}: {source}")]
    Disk {
        /// What was being done.
        doing: String,
        /// What the disk said.
        source: io::Error,
    },
}

/// A log of records with consecutive indices on a [`Disk`].
///
/// It has one writer. What it does is durable in order: after a crash the log is as some prefix of the calls made it,
/// and that prefix contains everything before the last successful [`sync`](Log::sync). After a failed write or sync
/// it refuses all further ones until it is opened again: what the disk holds then is not known, and asking again
/// would not tell (a second fsync may succeed without having written what the first one failed to).
pub struct Log {
    disk: Arc<dyn Disk>,
    options: Options,
    view: Arc<View>,
    /// All segments, the active one last.
    segments: VecDeque<u64>,
    active: Active,
    /// As written, which readers may be ahead of.
    first: u64,
    next: u64,
    failed: Option<(io::ErrorKind, String)>,
    buffer: Vec<u8>,
}

/// Reads a log while it is written; cheap to clone.
#[derive(Clone)]
pub struct Reader {
    view: Arc<View>,
}

impl Reader {
    /// The first index that the log holds or will hold.
    pub fn first(&self) -> u64 {
        self.view.first()
    }

    /// The index that the next record will have.
    pub fn next(&self) -> u64 {
        self.view.next()
    }

    /// The last index, `None` if the log is empty.
    pub fn last(&self) -> Option<u64> {
        last(&self.view)
    }

    /// The first of the newest records that take no more than so many bytes on disk, about: whatever is not written yet is
    /// not counted.
    pub fn first_within(&self, bytes: u64) -> u64 {
        self.view.first_within(bytes)
    }

    /// Reads as [`Log::read`] does.
    pub fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<(u64, Bytes)>> {
        self.view.read(from, to, max_bytes)
    }
}

fn last(view: &View) -> Option<u64> {
    let (first, next) = view.bounds();
    (first < next).then(|| next - 1)
}

impl Log {
    /// Opens the log on this disk, or makes a new one. A torn tail is cut; damage is refused and nothing is changed.
    ///
    /// Everything the opened log holds is durable.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Log, Recovery), OpenError> {
        let options = Options {
            segment_bytes: options.segment_bytes.max(MIN_SEGMENT_BYTES).next_multiple_of(ALIGN).min(1 << 31),
            ..options
        };
        let scan = scan(&*disk, Some(options.log_id)).map_err(|e| failed("cannot list the log's files", e))?;
        if let Some(trouble) = scan.damage.into_iter().next() {
            return Err(OpenError::Refused(trouble));
        }
        let scan = Scan { damage: Vec::new(), ..scan };
        for name in &scan.leftovers {
            disk.remove(name).map_err(|e| failed(&format!("cannot remove {name}"), e))?;
        }
        match scan.tail {
            Some(tail) => Self::resume(disk, options, scan, tail),
            None => Self::create(disk, options),
        }
    }

    fn create(disk: Arc<dyn Disk>, options: Options) -> Result<(Log, Recovery), OpenError> {
        let first = options.first_index;
        let header = SegmentHeader {
            capacity: options.segment_bytes,
            log_id: options.log_id,
            sequence: 1,
            first,
            next: first,
            salt: options.salt,
            prev_end: 0,
        };
        let view = Arc::new(View::new(first, first, options.cache_bytes, Default::default()));
        let active = make_segment(&*disk, &header, &view).map_err(|e| failed("cannot make a new log", e.0))?;
        let recovery = Recovery { created: true, torn: None, segments: 1, first, next: first };
        Ok((Log::assemble(disk, options, view, [1].into(), active, (first, first)), recovery))
    }

    fn assemble(
        disk: Arc<dyn Disk>,
        options: Options,
        view: Arc<View>,
        segments: VecDeque<u64>,
        active: Active,
        (first, next): (u64, u64),
    ) -> Log {
        Log { disk, options, view, segments, active, first, next, failed: None, buffer: Vec::new() }
    }

    fn resume(disk: Arc<dyn Disk>, options: Options, scan: Scan, tail: Tail) -> Result<(Log, Recovery), OpenError> {
        let (first, next) = (scan.replay.first, scan.replay.next);
        let view = Arc::new(View::new(first, next, options.cache_bytes, scan.replay.runs));
        for found in &scan.segments {
            let file = disk.open(&found.name).map_err(|e| failed(&format!("cannot open {}", found.name), e))?;
            let sequence = found.header.sequence;
            view.add_segment(sequence, SegmentReader::new(sequence, found.seed, found.header.capacity, file));
        }
        let segments: VecDeque<u64> = scan.segments.iter().map(|found| found.header.sequence).collect();
        let Some(found) = scan.segments.last() else { return Self::create(disk, options) };
        let file = disk.open(&found.name).map_err(|e| failed(&format!("cannot open {}", found.name), e))?;
        let mut active = Active {
            sequence: found.header.sequence,
            file,
            seed: found.seed,
            capacity: found.header.capacity,
            end: tail.end,
            synced: tail.end,
            chain: tail.chain,
            zeroed: tail.end,
        };
        if !tail.clean {
            settle(&mut active, &tail).map_err(|e| failed(&format!("cannot settle the end of {}", found.name), e))?;
        }
        // A process that was killed may have left renames and removals that are not durable yet.
        disk.sync_dir().map_err(|e| failed("cannot sync the log's directory", e))?;
        let mut log = Log::assemble(disk, options, view, segments, active, (first, next));
        log.remove_dead_segments().map_err(|e| failed("cannot remove purged segments", e))?;
        let recovery = Recovery { created: false, torn: scan.torn, segments: log.segments.len(), first, next };
        Ok((log, recovery))
    }

    /// The first index that the log holds or will hold.
    pub fn first(&self) -> u64 {
        self.view.first()
    }

    /// The index that the next record will have.
    pub fn next(&self) -> u64 {
        self.view.next()
    }

    /// The last index, `None` if the log is empty.
    pub fn last(&self) -> Option<u64> {
        last(&self.view)
    }

    /// How many segment files there are.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Reads records of `from..to` (`to` excluded, and cut at the end of the log) until the next would make more than
    /// `max_bytes`; at least one if there is one. Fails with `NotFound` if `from` was purged, and with `InvalidData`
    /// (file, offset) if a record is not what was written.
    pub fn read(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<(u64, Bytes)>> {
        self.view.read(from, to, max_bytes)
    }

    /// A handle that reads while this one writes.
    pub fn reader(&self) -> Reader {
        Reader { view: self.view.clone() }
    }

    /// Writes records at the end; `first_index` must be [`next`](Log::next). Durable after the next
    /// [`sync`](Log::sync). On failure none of them is in the log.
    ///
    /// The payloads are kept in memory for a while: hand in ones that do not pin larger buffers.
    pub fn append(&mut self, first_index: u64, payloads: &[Bytes]) -> io::Result<()> {
        self.change(Change::Append { first: first_index, payloads: payloads.to_vec() })
    }

    /// Drops everything after `index`. Durable after the next [`sync`](Log::sync); until then a crash may bring the
    /// dropped records back, but never mixes them with later ones.
    pub fn truncate_after(&mut self, index: u64) -> io::Result<()> {
        self.truncate_from(index.saturating_add(1))
    }

    /// Drops `index` and everything after it, as [`truncate_after`](Log::truncate_after) does.
    pub fn truncate_from(&mut self, index: u64) -> io::Result<()> {
        if index >= self.next {
            return self.usable();
        }
        self.change(Change::TruncateFrom(index))
    }

    /// Drops everything up to and including `index`, durably; files go when all their records are gone. Beyond the
    /// end of the log it is a [`reset`](Log::reset) to `index + 1`.
    pub fn purge_through(&mut self, index: u64) -> io::Result<()> {
        let Some(change) = purge(index, self.first, self.next) else { return self.usable() };
        self.change(change)?;
        self.sync()?;
        self.remove_dead_segments()
    }

    /// Drops everything, durably, and goes on at `next_index`: what a snapshot from elsewhere asks for.
    pub fn reset(&mut self, next_index: u64) -> io::Result<()> {
        self.change(Change::Reset(next_index))?;
        self.sync()?;
        self.remove_dead_segments()
    }

    /// Makes everything written so far durable; does nothing if it is already.
    pub fn sync(&mut self) -> io::Result<()> {
        self.usable()?;
        if self.active.synced == self.active.end {
            return Ok(());
        }
        if let Err(e) = self.active.file.sync() {
            return Err(self.fail("a sync of", e));
        }
        self.active.synced = self.active.end;
        // What was asked for is done; a marker that cannot be written only stops what comes after.
        if let Err(e) = self.active.mark() {
            self.fail("a write to", e);
        }
        Ok(())
    }

    /// Syncs, and makes durable that it was synced, so that at the next open nothing can pass for a torn tail.
    pub fn close(mut self) -> io::Result<()> {
        self.sync()?;
        self.usable()?;
        self.active.file.sync()
    }

    /// Whether a failure stopped all writing.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        check(&change, self.first, self.next)?;
        let steps = self.write(std::slice::from_ref(&change))?;
        let number = self.view.show(&change)?;
        self.view.written(number, steps);
        Ok(())
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// What is on disk, which readers may be ahead of.
    pub(crate) fn on_disk(&self) -> (u64, u64) {
        (self.first, self.next)
    }

    pub(crate) fn usable(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some((kind, what)) => {
                Err(io::Error::new(*kind, format!("{what}; the log takes no more writes until it is opened again")))
            }
        }
    }

    /// Stops all writing; `doing` says what failed, before the name of the active segment.
    fn fail(&mut self, doing: &str, error: io::Error) -> io::Error {
        let what = format!("{doing} {} failed: {error}", segment_name(self.active.sequence));
        self.failed.get_or_insert((error.kind(), what.clone()));
        io::Error::new(error.kind(), what)
    }

    /// Writes changes that fit the log, in one piece, without showing them. Nothing of it is in the log on failure.
    pub(crate) fn write(&mut self, changes: &[Change]) -> io::Result<Vec<Step>> {
        self.usable()?;
        let (size, reserve) = room_needed(changes);
        if size > MAX_WRITE {
            let what = format!("{size} bytes are more than one write may have ({MAX_WRITE})");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if u64::from(self.active.end) + size + u64::from(reserve) > u64::from(self.active.capacity) {
            self.rotate(size as u32)?;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let (encoder, steps, bounds) = self.encode(changes, &mut buffer);
        let zeroed = self.active.zero_ahead(encoder.offset, self.options.zero_ahead);
        buffer.resize((zeroed.max(encoder.offset) - self.active.end) as usize, 0);
        let written = self.active.file.write_at(u64::from(self.active.end), &buffer);
        buffer.shrink_to(KEPT_BUFFER);
        self.buffer = buffer;
        if let Err(e) = written {
            return Err(self.fail("a write to", e));
        }
        (self.active.end, self.active.chain) = (encoder.offset, encoder.chain);
        self.active.zeroed = self.active.zeroed.max(zeroed);
        (self.first, self.next) = bounds;
        Ok(steps)
    }

    fn encode(&self, changes: &[Change], buffer: &mut Vec<u8>) -> (Encoder, Vec<Step>, (u64, u64)) {
        let active = &self.active;
        let mut encoder =
            Encoder { seed: active.seed, offset: active.end, chain: active.chain, promise: active.synced };
        let (mut first, mut next) = (self.first, self.next);
        let mut steps = Vec::with_capacity(changes.len());
        for change in changes {
            match change {
                Change::Append { payloads, .. } => {
                    let mut run = Run::new(active.sequence, next, encoder.offset);
                    for payload in payloads {
                        encoder.put(buffer, Kind::Entry, next, payload);
                        run.push(encoder.offset);
                        next += 1;
                    }
                    steps.push(Step::Added(run));
                }
                Change::TruncateFrom(at) => {
                    encoder.put(buffer, Kind::Truncate, *at, &[]);
                    next = *at;
                    steps.push(Step::Truncated(*at));
                }
                Change::PurgeTo(at) => {
                    encoder.put(buffer, Kind::Purge, *at, &[]);
                    first = *at;
                    steps.push(Step::Purged(*at));
                }
                Change::Reset(at) => {
                    encoder.put(buffer, Kind::Reset, *at, &[]);
                    (first, next) = (*at, *at);
                    steps.push(Step::Reset);
                }
            }
        }
        (encoder, steps, (first, next))
    }

    /// Begins a new segment with room for `size` bytes. A failure before the new file is in place (a full disk,
    /// above all) leaves the log as it was and usable.
    fn rotate(&mut self, size: u32) -> io::Result<()> {
        self.sync()?;
        self.usable()?;
        let header = SegmentHeader {
            capacity: self.options.segment_bytes.max((HEADER_SPACE + size + RESERVE).next_multiple_of(ALIGN)),
            log_id: self.options.log_id,
            sequence: self.active.sequence + 1,
            first: self.first,
            next: self.next,
            salt: self.options.salt,
            prev_end: self.active.end,
        };
        let new = match make_segment(&*self.disk, &header, &self.view) {
            Ok(new) => new,
            Err(MakeError(e, InPlace::No)) => {
                let _ = self.disk.remove(&(segment_name(header.sequence) + TEMPORARY_SUFFIX));
                return Err(e);
            }
            Err(MakeError(e, InPlace::Perhaps)) => return Err(self.fail("beginning the segment after", e)),
        };
        let mut old = std::mem::replace(&mut self.active, new);
        self.segments.push_back(self.active.sequence);
        // The seal only serves to notice that the new file was lost; the records before it are durable already.
        let _ = old.put(Kind::Seal, header.next).and_then(|()| old.file.sync());
        Ok(())
    }

    /// Removes segments without living records, the oldest first, each durably before the next: a crash in between
    /// must not leave a gap.
    pub(crate) fn remove_dead_segments(&mut self) -> io::Result<()> {
        let keep = self.view.oldest_segment().unwrap_or(self.active.sequence);
        while let Some(&oldest) = self.segments.front().filter(|oldest| **oldest < keep) {
            let removed = self.disk.remove(&segment_name(oldest)).and_then(|()| self.disk.sync_dir());
            if let Err(e) = removed {
                return Err(self.fail("removing segments before", e));
            }
            self.segments.pop_front();
            self.view.drop_segment(oldest);
        }
        Ok(())
    }
}

/// A write buffer larger than this is not kept.
const KEPT_BUFFER: usize = 1 << 20;

/// What a purge through `index` is for a log of `first..next`; `None` if there is nothing to do.
pub(crate) fn purge(index: u64, first: u64, next: u64) -> Option<Change> {
    let to = index.saturating_add(1);
    if to > next { Some(Change::Reset(to)) } else { (to > first).then_some(Change::PurgeTo(to)) }
}

/// The bytes that changes take, and what must stay free behind them.
fn room_needed(changes: &[Change]) -> (u64, u32) {
    let mut size = 0;
    let mut reserve = LAST_RESERVE;
    for change in changes {
        match change {
            Change::Append { payloads, .. } => {
                size += payloads.iter().map(|payload| record_size(payload.len())).sum::<u64>();
                reserve = RESERVE;
            }
            _ => size += record_size(0),
        }
    }
    (size, reserve)
}

fn failed(doing: &str, source: io::Error) -> OpenError {
    OpenError::Disk { doing: doing.to_owned(), source }
}
