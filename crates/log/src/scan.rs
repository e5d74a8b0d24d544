//! The strict check: walks every segment, replays it, and tells a torn tail from damage.
//!
//! After power loss the disk may hold any mix of old and new sectors of what was written since the last sync, in any
//! order: a record that is whole may follow one that is not, and that is no damage. So order alone cannot tell, and
//! every record carries a *promise*: the offset below which its segment had been synced before the record was
//! written. Two rules follow, and they are exact:
//! - a record that cannot be read, **below** the largest promise found anywhere after it, had been durable: it is
//!   damaged, and the log is refused;
//! - a record that cannot be read, **at or above** every promise, was never known to be durable: the log ends there,
//!   and what stands behind it is wiped before anything is written again.
//!
//! A segment's header carries the promise for the whole segment before it (`prev_end`). After each sync a *marker*
//! is written (not synced) that carries the promise for what was just synced, so that even damage of the very last
//! records is told from a torn tail, unless the power failed before the marker reached the disk.

use crate::format::{
    ALIGN, BadHeader, FORMAT, HEADER_LEN, HEADER_SPACE, Kind, RECORD_HEAD, RecordHead, SegmentHeader,
    is_unfinished_segment, segment_name, segment_sequence,
};
use crate::runs::{Run, Runs, Step};
use bytes::Bytes;
use std::fmt;
use std::io;
use tidings_base::disk::Disk;

/// What sort of trouble a log is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// The last write before a crash is incomplete; opening the log cuts it. Nothing that was synced is lost.
    TornTail,
    /// Bytes that were durable are not what was written.
    Damage,
    /// A segment file is gone.
    MissingSegment,
    /// The file belongs to another log.
    OtherLog,
    /// A newer version of the program wrote the file.
    NewerFormat,
    /// The disk did not give the bytes.
    Unreadable,
}

/// One thing that is wrong with a log, by file and offset, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What sort it is.
    pub kind: TroubleKind,
    /// The file it concerns.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: &'static str,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}; {}", self.file, self.offset, self.what, self.hint)
    }
}

impl std::error::Error for Trouble {}

pub(crate) const HINT_DAMAGE: &str = "the disk lost or changed bytes that had been written: check it; then let the \
     others remove this member and add it under a new number with an empty directory, or restore a backup";
const HINT_TORN: &str = "nothing to do: opening the log cuts it, everything acknowledged is before it";
const HINT_MISSING: &str = "put the file back if it was moved away; otherwise let the others remove this \
     member and add it under a new number with an empty directory, or restore a backup";
const HINT_OTHER: &str = "the directory holds files of another log: give this one its own directory, or put the right \
     files back";
const HINT_NEWER: &str = "run the version of the program that wrote it, or a later one";
const HINT_UNREADABLE: &str = "check the disk, its cables and its file system, then start again";

/// One segment as the walk found it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub name: String,
    pub header: SegmentHeader,
    pub seed: u32,
    /// The records of payload in it, dead ones included.
    pub records: u64,
    /// Where the records end.
    pub end: u32,
}

/// The end of the last segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// Where the records end.
    pub end: u32,
    /// What is known to have been synced.
    pub promise: u32,
    /// The checksum that the next record chains to.
    pub chain: u32,
    /// Whether a marker stands at the end and nothing after it.
    pub clean: bool,
    /// The part after the end that is not zero.
    pub dirt: Option<(u32, u32)>,
}

/// What the walk over a log found.
pub(crate) struct Scan {
    pub segments: Vec<Found>,
    pub replay: Replay,
    /// Of the last segment, if it could be walked.
    pub tail: Option<Tail>,
    pub torn: Option<Trouble>,
    /// In the order of the files.
    pub damage: Vec<Trouble>,
    /// Segments that were never completed.
    pub leftovers: Vec<String>,
    /// The payload that was written last, be it truncated or purged since.
    pub latest: Option<Bytes>,
}

/// The log's state as its records make it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replay {
    pub first: u64,
    pub next: u64,
    pub runs: Runs,
    /// Records that should live but stand in segments from before the first one found.
    missing: (u64, u64),
}

impl Replay {
    fn begin(header: &SegmentHeader) -> Replay {
        Replay { first: header.first, next: header.next, runs: Runs::default(), missing: (header.first, header.next) }
    }

    /// The records that should live but are nowhere.
    fn missing(&self) -> Option<(u64, u64)> {
        let (from, to) = (self.missing.0.max(self.first), self.missing.1);
        (from < to).then(|| (from, to - 1))
    }

    fn apply(&mut self, head: &RecordHead, sequence: u64, offset: u32, end: u32) -> Result<(), String> {
        let index = head.index;
        match head.kind {
            Kind::Entry if index == self.next => {
                let mut run = Run::new(sequence, index, offset);
                run.push(end);
                self.next += 1;
                self.runs.apply(Step::Added(run));
            }
            Kind::Truncate if (self.first..=self.next).contains(&index) => {
                self.next = index;
                self.missing.1 = self.missing.1.min(index);
                self.runs.apply(Step::Truncated(index));
            }
            Kind::Purge if (self.first..=self.next).contains(&index) => {
                self.first = index;
                self.runs.apply(Step::Purged(index));
            }
            Kind::Reset => {
                (self.first, self.next, self.missing) = (index, index, (index, index));
                self.runs.apply(Step::Reset);
            }
            kind => {
                let (first, next) = (self.first, self.next);
                return Err(format!("a record ({kind:?} {index}) does not fit a log of indices {first}..{next}"));
            }
        }
        Ok(())
    }
}

/// Why a walk through a segment ended.
enum Stop {
    /// It came to the end that the next segment's header names.
    Limit,
    /// Nothing but zeroes where the next record's head would be.
    Empty,
    Marker,
    Seal,
    Bad(String),
}

struct Walk {
    end: u32,
    promise: u32,
    chain: u32,
    records: u64,
    /// Where the last payload stands.
    latest: Option<(usize, usize)>,
    stop: Stop,
}

/// Walks all segments of a log without changing anything.
pub(crate) fn scan(disk: &dyn Disk, log_id: Option<u64>) -> io::Result<Scan> {
    let names = disk.list()?;
    let mut scan = Scan {
        segments: Vec::new(),
        replay: Replay::default(),
        tail: None,
        torn: None,
        damage: Vec::new(),
        leftovers: names.iter().filter(|name| is_unfinished_segment(name)).cloned().collect(),
        latest: None,
    };
    let headers = scan.headers(disk, &names, log_id);
    let mut bytes = Vec::new();
    for (at, (sequence, header)) in headers.iter().enumerate() {
        let following = headers.get(at + 1);
        if let Some((next, _)) = following.filter(|(next, _)| *next != sequence + 1) {
            scan.report_missing(sequence + 1, next - 1);
        }
        let Some((header, seed)) = header else { continue };
        scan.enter(header);
        let limit = match following {
            None => None,
            Some((next, Some((after, _)))) if *next == sequence + 1 => Some(after.prev_end),
            // The header after it is unreadable or gone, which is reported; nothing tells where this one ended.
            Some(_) => Some(0),
        };
        scan.segment(disk, header, *seed, limit, &mut bytes);
    }
    if let Some((from, to)) = scan.replay.missing().filter(|_| scan.damage.is_empty()) {
        let oldest = headers.first().map_or(1, |(sequence, _)| *sequence);
        scan.damage.push(Trouble {
            kind: TroubleKind::MissingSegment,
            file: segment_name(oldest.saturating_sub(1)),
            offset: 0,
            what: format!("the records {from} to {to} should be here, but the file is gone"),
            hint: HINT_MISSING,
        });
    }
    Ok(scan)
}

type Headers = Vec<(u64, Option<(SegmentHeader, u32)>)>;

impl Scan {
    fn headers(&mut self, disk: &dyn Disk, names: &[String], log_id: Option<u64>) -> Headers {
        let mut expected = log_id;
        let mut headers = Vec::new();
        for sequence in names.iter().filter_map(|name| segment_sequence(name)) {
            let header = match read_header(disk, sequence, expected) {
                Ok(header) => {
                    expected = Some(header.0.log_id);
                    Some(header)
                }
                Err(trouble) => {
                    self.damage.push(trouble);
                    None
                }
            };
            headers.push((sequence, header));
        }
        headers.sort_by_key(|(sequence, _)| *sequence);
        headers
    }

    fn report_missing(&mut self, from: u64, to: u64) {
        let what = if from == to {
            "the file is missing between others that are there".to_owned()
        } else {
            format!("the files up to {} are missing between others that are there", segment_name(to))
        };
        let (kind, hint) = (TroubleKind::MissingSegment, HINT_MISSING);
        self.damage.push(Trouble { kind, file: segment_name(from), offset: 0, what, hint });
    }

    /// Holds what the segments so far made against what the next one says it continues.
    fn enter(&mut self, header: &SegmentHeader) {
        if self.segments.is_empty() {
            self.replay = Replay::begin(header);
            return;
        }
        if (self.replay.first, self.replay.next) == (header.first, header.next) {
            return;
        }
        // After damage before it the states differ anyway; one report is enough.
        if self.damage.is_empty() {
            let what = format!(
                "it continues a log of indices {}..{}, but the segments before it make {}..{}",
                header.first, header.next, self.replay.first, self.replay.next
            );
            self.damage.push(damage(header.sequence, 0, what));
        }
        (self.replay.first, self.replay.next) = (header.first, header.next);
    }

    fn segment(&mut self, disk: &dyn Disk, header: &SegmentHeader, seed: u32, limit: Option<u32>, bytes: &mut Vec<u8>) {
        let name = segment_name(header.sequence);
        let wanted = limit.unwrap_or(header.capacity).clamp(HEADER_SPACE, header.capacity);
        match read_whole(disk, &name, header.capacity, wanted, bytes) {
            Ok(None) => {}
            Ok(Some(len)) => {
                let what = format!("the file has {len} bytes, its header says {}", header.capacity);
                self.damage.push(damage(header.sequence, len.min(u64::from(header.capacity)), what));
            }
            Err(e) => {
                self.damage.push(unreadable(&name, &e));
                return;
            }
        }
        let walk = self.walk(bytes, header, seed, wanted);
        let found = Found { name, header: *header, seed, records: walk.records, end: walk.end };
        self.segments.push(found);
        if let Some((from, to)) = walk.latest {
            self.latest = Some(Bytes::copy_from_slice(&bytes[from..to]));
        }
        match limit {
            Some(0) => {}
            Some(limit) => self.judge_complete(header, &walk, limit),
            None => self.judge_last(bytes, header, seed, &walk),
        }
    }

    fn walk(&mut self, bytes: &[u8], header: &SegmentHeader, seed: u32, limit: u32) -> Walk {
        let mut walk =
            Walk { end: HEADER_SPACE, promise: HEADER_SPACE, chain: seed, records: 0, latest: None, stop: Stop::Limit };
        while walk.end < limit {
            let at = walk.end;
            let head = match whole_record(bytes, seed, at, walk.chain) {
                Ok(head) => head,
                Err(stop) => {
                    walk.stop = stop;
                    break;
                }
            };
            walk.promise = walk.promise.max(head.promise);
            match head.kind {
                Kind::Marker => walk.stop = Stop::Marker,
                Kind::Seal => walk.stop = Stop::Seal,
                _ => {
                    let end = head.end(at) as u32;
                    if let Err(what) = self.replay.apply(&head, header.sequence, at, end) {
                        walk.stop = Stop::Bad(what);
                        break;
                    }
                    if head.kind == Kind::Entry {
                        let from = (at + RECORD_HEAD) as usize;
                        walk.records += 1;
                        walk.latest = Some((from, from + head.length as usize));
                    }
                    (walk.end, walk.chain) = (end, head.crc);
                    continue;
                }
            }
            break;
        }
        walk
    }

    /// A segment with another after it: it was synced up to `limit` before that one was begun.
    fn judge_complete(&mut self, header: &SegmentHeader, walk: &Walk, limit: u32) {
        if walk.end == limit {
            return;
        }
        let what = format!(
            "{}, though the segment after it was begun when this one was synced up to byte {limit}",
            say(&walk.stop)
        );
        self.damage.push(damage(header.sequence, u64::from(walk.end), what));
    }

    fn judge_last(&mut self, bytes: &[u8], header: &SegmentHeader, seed: u32, walk: &Walk) {
        if matches!(walk.stop, Stop::Seal) {
            let name = segment_name(header.sequence + 1);
            let what =
                format!("the file is missing: {} was closed when it had been made", segment_name(header.sequence));
            let (kind, hint) = (TroubleKind::MissingSegment, HINT_MISSING);
            self.damage.push(Trouble { kind, file: name, offset: 0, what, hint });
            return;
        }
        let (latest, dirt) = look_behind(bytes, seed, walk.end);
        let promise = walk.promise.max(latest);
        if promise > walk.end {
            let what = format!("{}, though the segment had been synced up to byte {promise}", say(&walk.stop));
            self.damage.push(damage(header.sequence, u64::from(walk.end), what));
            return;
        }
        let marker_end = walk.end + RECORD_HEAD;
        let clean = matches!(walk.stop, Stop::Marker) && dirt.is_none_or(|(_, to)| to <= marker_end);
        if let Some((_, to)) = dirt.filter(|_| !clean) {
            self.torn = Some(Trouble {
                kind: TroubleKind::TornTail,
                file: segment_name(header.sequence),
                offset: u64::from(walk.end),
                what: format!("the last write is incomplete: {}, {} bytes are cut", say(&walk.stop), to - walk.end),
                hint: HINT_TORN,
            });
        }
        self.tail = Some(Tail { end: walk.end, promise, chain: walk.chain, clean, dirt });
    }
}

/// Looks through everything after the last good record: the largest promise in it, and the part that is not zero.
fn look_behind(bytes: &[u8], seed: u32, end: u32) -> (u32, Option<(u32, u32)>) {
    let mut promise = 0;
    let mut dirt: Option<(u32, u32)> = None;
    let mut at = end;
    for word in bytes[end as usize..].chunks(ALIGN as usize) {
        if word.iter().any(|byte| *byte != 0) {
            dirt = Some((dirt.map_or(at, |(from, _)| from), at + ALIGN));
            if let Some(head) = RecordHead::decode(&bytes[at as usize..], seed, at) {
                promise = promise.max(head.promise.min(at));
            }
        }
        at = at.saturating_add(ALIGN);
    }
    (promise, dirt)
}

fn whole_record(bytes: &[u8], seed: u32, at: u32, chain: u32) -> Result<RecordHead, Stop> {
    let rest = &bytes[at as usize..];
    let head_bytes = &rest[..rest.len().min(RECORD_HEAD as usize)];
    if head_bytes.iter().all(|byte| *byte == 0) {
        return Err(Stop::Empty);
    }
    let Some(head) = RecordHead::decode(rest, seed, at) else {
        return Err(Stop::Bad("the head of a record does not match its checksum".to_owned()));
    };
    if head.chain != chain {
        return Err(Stop::Bad(format!("the record of index {} does not continue the one before it", head.index)));
    }
    let body = RECORD_HEAD as usize..(head.end(at) - u64::from(at)) as usize;
    match rest.get(body) {
        Some(body) if crc32c::crc32c(body) == head.body_crc => Ok(head),
        Some(_) => Err(Stop::Bad(format!("the payload of index {} does not match its checksum", head.index))),
        None => Err(Stop::Bad(format!("the record of index {} goes beyond the end of its segment", head.index))),
    }
}

fn say(stop: &Stop) -> &str {
    match stop {
        Stop::Bad(what) => what,
        Stop::Empty => "there is no record",
        Stop::Marker | Stop::Seal | Stop::Limit => "the records end",
    }
}

fn damage(sequence: u64, offset: u64, what: String) -> Trouble {
    Trouble { kind: TroubleKind::Damage, file: segment_name(sequence), offset, what, hint: HINT_DAMAGE }
}

fn unreadable(name: &str, error: &io::Error) -> Trouble {
    let (kind, hint) = (TroubleKind::Unreadable, HINT_UNREADABLE);
    Trouble { kind, file: name.to_owned(), offset: 0, what: format!("the file cannot be read: {error}"), hint }
}

fn read_header(disk: &dyn Disk, sequence: u64, log_id: Option<u64>) -> Result<(SegmentHeader, u32), Trouble> {
    let name = segment_name(sequence);
    let mut bytes = [0; HEADER_LEN];
    let read = disk.open(&name).and_then(|file| file.read_at(0, &mut bytes));
    match read {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(damage(sequence, 0, "the file is too short for the header of a segment".to_owned()));
        }
        Err(e) => return Err(unreadable(&name, &e)),
    }
    let trouble = |kind, what, hint| Err(Trouble { kind, file: name.clone(), offset: 0, what, hint });
    match SegmentHeader::decode(&bytes) {
        Ok((header, _)) if log_id.is_some_and(|id| id != header.log_id) => {
            let what = format!("it belongs to the log {:#x}, not {:#x}", header.log_id, log_id.unwrap_or_default());
            trouble(TroubleKind::OtherLog, what, HINT_OTHER)
        }
        Ok((header, _)) if header.sequence != sequence => {
            let what = format!("the segment inside is {}: the file was renamed", segment_name(header.sequence));
            trouble(TroubleKind::OtherLog, what, HINT_OTHER)
        }
        Ok((header, _))
            if header.capacity < HEADER_SPACE || header.capacity % ALIGN != 0 || header.first > header.next =>
        {
            Err(damage(sequence, 0, "the header of the segment contradicts itself".to_owned()))
        }
        Ok(header) => Ok(header),
        Err(BadHeader::Magic) => Err(damage(sequence, 0, "it does not begin as a segment does".to_owned())),
        Err(BadHeader::Checksum) => {
            Err(damage(sequence, 0, "the header of the segment does not match its checksum".to_owned()))
        }
        Err(BadHeader::Format(format)) => {
            let what = format!("it is of format {format}; this program knows format {FORMAT}");
            trouble(TroubleKind::NewerFormat, what, HINT_NEWER)
        }
    }
}

/// Reads `wanted` bytes, or as many as there are; answers the file's length if it is not its capacity.
fn read_whole(disk: &dyn Disk, name: &str, capacity: u32, wanted: u32, bytes: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let file = disk.open(name)?;
    let len = file.len()?;
    bytes.clear();
    bytes.resize(wanted as usize, 0);
    let there = len.min(u64::from(wanted)) as usize;
    file.read_at(0, &mut bytes[..there])?;
    Ok((len != u64::from(capacity)).then_some(len))
}
