//! openraft's log and vote on `tidings-log`.
//!
//! ```text
//!   append ─▶ recent entries in memory ─▶ GroupCommit ─▶ fsync ─▶ openraft hears that they are durable
//!   save_vote ─▶ waits for the appends before it ─▶ SmallFile "vote"
//!   purge ─▶ SmallFile "purged" (term and index of the last purged entry) ─▶ GroupCommit
//! ```
//! openraft asks for all writes in order. The log keeps its own order; the vote waits for it, because openraft takes a
//! durable vote as a sign that every append before it is durable too.

use crate::codec::{self, Applied, Malformed};
use crate::config::{Flush, GroupConfig};
use crate::error::StartError;
use crate::mutant::Mutant;
use crate::shared::{Shared, blocking};
use crate::types::{Entry, LogId, TypeConfig, Vote, index_of, index_or_zero, term_of};
use bytes::Bytes;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use prost::Message;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use tidings_base::LogIndex;
use tidings_base::disk::Disk;
use tidings_log::{
    Done, GroupCommit, GroupOptions, Log, Options, Refused, RefusedReason, Report, SmallFile, SmallFileError,
};
use tidings_wire::v1;
use tokio::sync::{mpsc, oneshot};

/// The most bytes of entries that travel in one message; at least one entry does.
const MESSAGE_BYTES: usize = 1 << 20;

/// The most bytes of entries that are read from disk at once.
const READ_BYTES: usize = 4 << 20;

/// What the small files hold, in their format 1.
const VOTE_FILE: (&str, u32) = ("vote", 0x0101);
const PURGED_FILE: (&str, u32) = ("purged", 0x0201);

/// The latest entries, decoded, for followers and for the state.
#[derive(Default)]
struct Recent {
    /// openraft's index of the first.
    first: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    limit: usize,
}

fn weight(entry: &Entry) -> usize {
    let command = if let EntryPayload::Normal(command) = &entry.payload { command.for_state().len() } else { 0 };
    command + size_of::<Entry>()
}

impl Recent {
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.is_empty() {
            self.first = entry.log_id.index;
        }
        self.bytes += weight(&entry);
        self.entries.push_back(entry);
        while self.bytes > self.limit && self.entries.len() > 1 {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= weight(&entry);
            self.first += 1;
        }
    }

    fn truncate(&mut self, end: u64) {
        while self.end() > end && !self.entries.is_empty() {
            let gone = self.entries.pop_back();
            self.bytes -= gone.as_ref().map_or(0, weight);
        }
    }

    fn purge(&mut self, first: u64) {
        while self.first < first && !self.entries.is_empty() {
            self.pop_front();
        }
    }

    /// The entries from `start` up to `end` or until they have `bytes`, at least one; `None` if `start` is too old.
    fn get(&self, start: u64, end: u64, bytes: usize) -> Option<Vec<Entry>> {
        if start < self.first || start >= self.end() {
            return None;
        }
        let (mut found, mut taken) = (Vec::new(), 0);
        for entry in self.entries.range((start - self.first) as usize..).take((end - start) as usize) {
            taken += weight(entry);
            if taken > bytes && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        Some(found)
    }
}

/// Reads the log and the vote; cheap to clone.
#[derive(Clone)]
pub struct Reader {
    log: GroupCommit,
    recent: Arc<Mutex<Recent>>,
    vote: Arc<Mutex<Option<Vote>>>,
    _alive: mpsc::Sender<()>,
}

/// openraft's log and vote.
pub struct LogStore {
    reader: Reader,
    vote_file: SmallFile,
    purged_file: SmallFile,
    purged: Option<LogId>,
    shared: Arc<Shared>,
}

fn invalid(what: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl LogStore {
    /// Opens the log and checks that it, the vote and the state fit together.
    pub(crate) fn open(
        config: &GroupConfig,
        state: &Applied,
        shared: Arc<Shared>,
        alive: mpsc::Sender<()>,
    ) -> Result<LogStore, StartError> {
        let vote_file = SmallFile::new(config.disk.clone(), VOTE_FILE.0, VOTE_FILE.1);
        let purged_file = SmallFile::new(config.disk.clone(), PURGED_FILE.0, PURGED_FILE.1);
        let vote = read_small::<v1::RaftBallot>(&vote_file, VOTE_FILE.0)?.map(|ballot| codec::vote(&ballot));
        let purged = read_purged(&purged_file)?;

        let options = Options {
            log_id: u64::from(config.group.0),
            segment_bytes: u32::try_from(config.limits.segment_bytes).unwrap_or(u32::MAX),
            // Entries are kept decoded here; the log keeps what is not yet written.
            cache_bytes: 0,
            salt: config.seed.unwrap_or_else(|| shared.now().0),
            ..Options::default()
        };
        let (mut log, recovery) = Log::open(config.disk.clone(), options)?;
        if let Some(torn) = &recovery.torn {
            tracing::warn!(group = config.group.0, %torn, "the last write before a crash was incomplete and was cut");
        }
        // The first file of the log is durable before the first vote is.
        if recovery.created && vote.is_some() && config.mutant != Some(Mutant::LostLog) {
            return Err(files_gone());
        }
        // The note of a purge is written before the purge.
        if let Some(purged) = &purged {
            log.purge_through(index_of(purged).0).map_err(|e| StartError::disk("the log", e))?;
        }
        if log.first() != index_or_zero(purged.as_ref()).0 + 1 {
            return Err(unknown_purge(log.first()));
        }
        no_gap(index_or_zero(state.last.as_ref()), log.first())?;
        let options = GroupOptions { max_waiting_bytes: config.limits.proposal_bytes, ..GroupOptions::default() };
        let log = match config.flush {
            Flush::Thread => GroupCommit::start(log, options).map_err(|e| StartError::disk("the log", e))?,
            Flush::Inline => GroupCommit::inline(log),
            Flush::Paced(_) => GroupCommit::manual(log, options),
        };
        let recent = Recent { limit: config.limits.cache_bytes, ..Recent::default() };
        let reader =
            Reader { log, recent: Arc::new(Mutex::new(recent)), vote: Arc::new(Mutex::new(vote)), _alive: alive };
        let store = LogStore { reader, vote_file, purged_file, purged, shared };
        store.find_memberships(state)?;
        store.check_vote(state)?;
        Ok(store)
    }

    /// What is queued for the disk, to be pumped by whoever paces it.
    pub(crate) fn queue(&self) -> GroupCommit {
        self.reader.log.clone()
    }

    /// Whether nothing was ever written here.
    pub(crate) fn is_fresh(&self) -> bool {
        self.reader.log.next() == 1 && self.reader.vote.lock().is_none()
    }

    /// Tells the leases of every membership that may still be in effect.
    fn find_memberships(&self, state: &Applied) -> Result<(), StartError> {
        let mut leases = self.shared.leases.lock();
        if let Some(set_by) = state.membership.log_id() {
            leases.membership(index_of(set_by).0, state.membership.membership().get_joint_config().clone());
        }
        let log = &self.reader.log;
        let mut from = (index_or_zero(state.last.as_ref()).0 + 1).max(log.first());
        while from < log.next() {
            let records = log.read(from, log.next(), READ_BYTES).map_err(|e| StartError::disk("the log", e))?;
            for (index, bytes) in records {
                let entry = decode(index, bytes).map_err(|e| StartError::damaged(&format!("entry {index}"), e))?;
                if let EntryPayload::Membership(membership) = &entry.payload {
                    leases.membership(index, membership.get_joint_config().clone());
                }
                from = index + 1;
            }
        }
        Ok(())
    }

    /// Without its vote this replica might vote twice.
    fn check_vote(&self, state: &Applied) -> Result<(), StartError> {
        let last = self.last_id().map_err(|e| StartError::disk("the log", e))?;
        vote_covers(self.reader.vote.lock().as_ref(), last.iter().chain(&state.last))
    }

    fn last_id(&self) -> Result<Option<LogId>, io::Error> {
        let log = &self.reader.log;
        let Some(last) = log.last() else { return Ok(self.purged) };
        let Some((index, bytes)) = log.read(last, last + 1, READ_BYTES)?.pop() else { return Ok(self.purged) };
        Ok(Some(decode(index, bytes).map_err(invalid)?.log_id))
    }

    /// Queues a change of the log, waiting for room.
    async fn change(
        &self,
        mut put: impl FnMut(&GroupCommit, Done) -> Result<(), Refused>,
        done: Done,
    ) -> io::Result<()> {
        let mut done = done;
        loop {
            match put(&self.reader.log, done) {
                Ok(()) => return Ok(()),
                Err(Refused { reason: RefusedReason::Busy, done: back }) => {
                    let (room, wait) = oneshot::channel();
                    let wake = move || {
                        let _ = room.send(());
                    };
                    self.reader.log.when_room(Box::new(wake));
                    let _ = wait.await;
                    done = back;
                }
                Err(Refused { reason: RefusedReason::Invalid(e) | RefusedReason::Stopped(e), .. }) => return Err(e),
            }
        }
    }

    /// A failure that nobody waits for: the log refuses everything after it, so the next write reports it.
    fn unheard(what: &'static str) -> Done {
        Box::new(move |result| {
            if let Err(e) = result {
                tracing::error!(error = %e, "{what} failed");
            }
        })
    }
}

fn decode(index: u64, bytes: Bytes) -> Result<Entry, Malformed> {
    let entry = codec::decode_entry(bytes)?;
    if index_of(&entry.log_id).0 != index {
        return Err(Malformed(format!("it is entry {} in the place of entry {index}", index_of(&entry.log_id))));
    }
    Ok(entry)
}

/// Looks at the files beside a log as a start would, and changes nothing: for `tidings doctor`, which has found this of
/// the log, and has found that a state on disk is durable up to an entry (0 if there is none, `None` if it does not know).
/// Says how many whole snapshots there are.
pub fn check(disk: Arc<dyn Disk>, log: &Report, durable: Option<LogIndex>) -> Result<usize, StartError> {
    let (snapshots, snapshot) = crate::snapshot::check(disk.clone())?;
    let vote = read_small::<v1::RaftBallot>(&SmallFile::new(disk.clone(), VOTE_FILE.0, VOTE_FILE.1), VOTE_FILE.0)?;
    let purged = read_purged(&SmallFile::new(disk, PURGED_FILE.0, PURGED_FILE.1))?;
    let vote = vote.map(|ballot| codec::vote(&ballot));
    match vote {
        Some(_) if log.segments.is_empty() => return Err(files_gone()),
        None if log.latest.is_some() => {
            let why = "it is gone, although there is a log".to_owned();
            return Err(StartError::Damaged { file: VOTE_FILE.0.into(), why });
        }
        _ => {}
    }
    let latest = log.latest.clone().map(codec::decode_entry).transpose();
    let latest = latest.map_err(|e| StartError::damaged("the last entry", e))?.map(|entry| entry.log_id);
    vote_covers(vote.as_ref(), latest.iter().chain(&purged).chain(&snapshot))?;
    let noted = index_or_zero(purged.as_ref()).0 + 1;
    if log.first > noted {
        return Err(unknown_purge(log.first));
    }
    if let Some(durable) = durable {
        no_gap(durable.max(index_or_zero(snapshot.as_ref())), noted)?;
    }
    Ok(snapshots)
}

/// A vote is durable before anything of its term is written.
fn vote_covers<'a>(vote: Option<&Vote>, written: impl Iterator<Item = &'a LogId>) -> Result<(), StartError> {
    let (voted, written) = (vote.map_or(0, |vote| vote.leader_id.term), written.map(term_of).max().unwrap_or(0));
    if voted < written {
        let why = format!("it knows of term {voted}, the log or the state of term {written}");
        return Err(StartError::Damaged { file: VOTE_FILE.0.into(), why });
    }
    Ok(())
}

/// What a state lacks must be in the log.
fn no_gap(state: LogIndex, first: u64) -> Result<(), StartError> {
    if state.0 + 1 < first {
        return Err(StartError::Gap { state, log: LogIndex(first) });
    }
    Ok(())
}

fn unknown_purge(first: u64) -> StartError {
    let why = format!("it does not say who wrote entry {}, the last that was purged", first - 1);
    StartError::Damaged { file: PURGED_FILE.0.into(), why }
}

fn read_purged(file: &SmallFile) -> Result<Option<LogId>, StartError> {
    let id = read_small::<v1::RaftLogId>(file, PURGED_FILE.0)?;
    id.map(|id| codec::log_id(&id).map_err(|e| StartError::damaged(PURGED_FILE.0, e))).transpose()
}

fn files_gone() -> StartError {
    StartError::Damaged { file: "the log".into(), why: "its files are gone, although this replica has voted".into() }
}

fn read_small<T: Message + Default>(file: &SmallFile, name: &str) -> Result<Option<T>, StartError> {
    let content = file.read().map_err(|e| match e {
        SmallFileError::Disk { file, source } => StartError::Disk { file, source },
        other => StartError::Damaged { file: name.into(), why: other.to_string() },
    })?;
    let decode = |bytes: Bytes| T::decode(bytes).map_err(|e| StartError::damaged(name, Malformed(e.to_string())));
    content.map(decode).transpose()
}

impl Reader {
    /// Entries of `start..end` in openraft's count, as far as they are there, until they have `bytes`; at least one.
    fn get(&self, start: u64, end: u64, bytes: usize) -> Result<Vec<Entry>, io::Error> {
        if let Some(entries) = self.recent.lock().get(start, end, bytes) {
            return Ok(entries);
        }
        let (from, to) = ((start + 1).max(self.log.first()), (end + 1).min(self.log.next()));
        if from >= to {
            return Ok(Vec::new());
        }
        let records = match self.log.read(from, to, bytes) {
            // Purged between the two looks: as if it had been gone at the first.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read?,
        };
        records.into_iter().map(|(index, bytes)| decode(index, bytes).map_err(invalid)).collect()
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        // One less than the largest, so that our own count, which begins with 1, has room.
        Bound::Unbounded => u64::MAX - 1,
    };
    (start, end)
}

impl RaftLogReader<TypeConfig> for Reader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (mut start, end) = bounds(&range);
        let mut entries = Vec::new();
        while start < end {
            let more = self.get(start, end, READ_BYTES)?;
            let Some(last) = more.last() else { break };
            start = last.log_id.index + 1;
            entries.extend(more);
        }
        Ok(entries)
    }

    /// Reads as it goes: after a restart the state may have a long way to catch up.
    async fn entries_stream<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> impl futures::Stream<Item = Result<Entry, io::Error>> + OptionalSend {
        let (start, end) = bounds(&range);
        let reader = self.clone();
        let step = move |state: Option<(u64, std::vec::IntoIter<Entry>)>| {
            let reader = reader.clone();
            let next = (|| {
                let (start, mut read) = state?;
                if let Some(entry) = read.next() {
                    return Some((Ok(entry), Some((start, read))));
                }
                if start >= end {
                    return None;
                }
                let more = match reader.get(start, end, READ_BYTES) {
                    Ok(more) => more,
                    Err(e) => return Some((Err(e), None)),
                };
                let after = more.last()?.log_id.index + 1;
                let mut read = more.into_iter();
                read.next().map(|entry| (Ok(entry), Some((after, read))))
            })();
            std::future::ready(next)
        };
        futures::stream::unfold(Some((start, Vec::new().into_iter())), step)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.get(start, end, MESSAGE_BYTES)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(*self.vote.lock())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Reader;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        Ok(LogState { last_purged_log_id: self.purged, last_log_id: self.last_id()? })
    }

    async fn get_log_reader(&mut self) -> Reader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (done, flushed) = oneshot::channel();
        self.change(GroupCommit::flush, Box::new(move |result| drop(done.send(result)))).await?;
        flushed.await.map_err(|_| io::Error::other("the log was closed"))??;
        let content = codec::ballot(vote).encode_to_vec();
        blocking(|| self.vote_file.replace(&content))?;
        *self.reader.vote.lock() = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let Some(first) = entries.first() else {
            callback.io_completed(Ok(()));
            return Ok(());
        };
        let first = index_of(&first.log_id).0;
        let payloads: Vec<Bytes> = entries.iter().map(codec::encode_entry).collect();
        for entry in &entries {
            if let EntryPayload::Membership(membership) = &entry.payload {
                // Before anyone can have seen it: a lease from now on needs this membership's majorities.
                let configs = membership.get_joint_config().clone();
                self.shared.leases.lock().membership(index_of(&entry.log_id).0, configs);
            }
        }
        {
            let mut recent = self.reader.recent.lock();
            entries.into_iter().for_each(|entry| recent.push(entry));
        }
        // openraft's suite begins its logs anywhere; openraft itself at the beginning, or where a purge ended.
        #[cfg(test)]
        if self.reader.log.last().is_none() && self.purged.is_none() && first > self.reader.log.next() {
            self.change(|log, done| log.reset(first, done), Self::unheard("beginning the log")).await?;
        }
        let done: Done = Box::new(move |result| callback.io_completed(result));
        self.change(|log, done| log.append(first, payloads.clone(), done), done).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let last = index_or_zero(last_log_id.as_ref()).0;
        self.reader.recent.lock().truncate(last);
        self.change(|log, done| log.truncate_after(last, done), Self::unheard("cutting the log's end")).await?;
        self.shared.leases.lock().truncated(last);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        if self.purged.as_ref().is_some_and(|purged| purged.index >= log_id.index) {
            return Ok(());
        }
        let content = codec::wire_id(&log_id).encode_to_vec();
        blocking(|| self.purged_file.replace(&content))?;
        self.purged = Some(log_id);
        let through = index_of(&log_id).0;
        self.reader.recent.lock().purge(through);
        self.change(|log, done| log.purge_through(through, done), Self::unheard("purging the log")).await
    }
}
