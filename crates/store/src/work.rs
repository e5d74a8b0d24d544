//! Applying commands: one batch of entries becomes one atomic write, each entry reading what earlier ones wrote.
//!
//! A command is checked whole before anything of it is written, so that a refused one leaves no trace.

use crate::command::{decode, encode_outcome};
use crate::key;
use crate::kv::{Batch, Kv};
use crate::limits::{self, Invalid, Part};
use crate::merge::Version;
use crate::topic::{Retention, Topic};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use tidings_base::agreed::StateFailure;
use tidings_base::{Class, Error};
use tidings_wire::v1;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_result::Result as Outcome;

/// How many entries one command drops behind it at most; what is left goes with the topic's next commands.
const TRIM_STEP: u64 = 2 * limits::MAX_APPEND as u64;

/// How many cells one collection looks at.
pub const COLLECT_STEP: usize = 4096;

/// Why a command did not do its work.
enum Stop {
    /// The storage failed: the replica stops.
    Failure(StateFailure),
    /// The command is refused, here as at every replica.
    Rejected(Error),
}

impl From<StateFailure> for Stop {
    fn from(failure: StateFailure) -> Stop {
        Stop::Failure(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Rejected(error)
    }
}

/// A batch of entries being applied.
pub(crate) struct Work<'a, K> {
    kv: &'a K,
    changes: BTreeMap<Bytes, Option<Bytes>>,
    /// Topics that the batch has read, decoded once and written once.
    topics: BTreeMap<Bytes, Touched>,
}

/// A topic that the batch has read, and whether it must be written.
struct Touched {
    topic: Topic,
    changed: bool,
}

impl<'a, K: Kv> Work<'a, K> {
    pub(crate) fn new(kv: &'a K) -> Work<'a, K> {
        Work { kv, changes: BTreeMap::new(), topics: BTreeMap::new() }
    }

    /// The one write that the batch makes.
    pub(crate) fn finish(mut self, position: Bytes) -> Batch {
        for (name, touched) in std::mem::take(&mut self.topics) {
            if touched.changed {
                self.changes.insert(key::topic(&name), Some(touched.topic.encode()));
            }
        }
        self.changes.insert(Bytes::from_static(key::POSITION), Some(position));
        Batch { changes: self.changes.into_iter().collect() }
    }

    /// Applies one command and returns the encoded answer.
    pub(crate) fn apply(&mut self, command: &[u8]) -> Result<Bytes, StateFailure> {
        if command.is_empty() {
            return Ok(Bytes::new());
        }
        // One copy; names and values are slices of it from here on.
        let outcome = match decode(Bytes::copy_from_slice(command)) {
            None => Err(Stop::Rejected(Invalid::Malformed.into_error(Part::Store))),
            Some(command) => match limits::check(&command) {
                Err(invalid) => Err(Stop::Rejected(invalid.into_error(part_of(&command)))),
                Ok(()) => self.perform(command),
            },
        };
        match outcome {
            Ok(outcome) => Ok(encode_outcome(outcome)),
            Err(Stop::Rejected(error)) => Ok(encode_outcome(Outcome::Error(error.into()))),
            Err(Stop::Failure(failure)) => Err(failure),
        }
    }

    fn perform(&mut self, command: Command) -> Result<Outcome, Stop> {
        match command {
            Command::Apply(apply) => Ok(Outcome::Applied(self.apply_groups(apply)?)),
            Command::CompareAndSet(cas) => Ok(Outcome::CompareAndSetDone(self.compare_and_set(cas)?)),
            Command::ApplyAndAppend(both) => Ok(Outcome::AppliedAndAppended(self.apply_and_append(both)?)),
            Command::Append(append) => {
                self.topic(&append.topic)?.admits(&append)?;
                Ok(Outcome::Appended(self.append(append)?))
            }
            Command::Ack(ack) => self.ack(ack),
            Command::FeedJoin(join) => {
                let floor = self.topic_mut(&join.topic)?.join(&join.group)?;
                Ok(Outcome::FeedJoined(v1::FeedJoined { floor }))
            }
            Command::FeedLeave(leave) => {
                if self.topic(&leave.topic)?.groups.contains_key(&leave.group) {
                    self.topic_mut(&leave.topic)?.groups.remove(&leave.group);
                    self.trim(&leave.topic)?;
                }
                Ok(Outcome::Done(v1::StoreDone {}))
            }
            Command::FeedRetain(retain) => {
                let retention = Retention::from_message(&retain.retention.unwrap_or_default());
                self.topic_mut(&retain.topic)?.retention = retention;
                self.trim(&retain.topic)?;
                Ok(Outcome::Done(v1::StoreDone {}))
            }
            Command::FeedTrim(trim) => self.trim_through(&trim),
            Command::StoreCollect(collect) => self.collect(&collect),
            Command::StoreRaise(raise) => self.raise(raise.at_least),
        }
    }

    // ---- cells ------------------------------------------------------------------------------------------------

    fn apply_groups(&mut self, apply: v1::Apply) -> Result<v1::Applied, Stop> {
        let mut failures = Vec::new();
        for group in apply.groups {
            match self.fenced(&group.group, group.fence.as_ref())? {
                Some(failure) => failures.push(failure),
                None => self.write_group(group)?,
            }
        }
        Ok(v1::Applied { failures })
    }

    fn apply_and_append(&mut self, both: v1::ApplyAndAppend) -> Result<v1::AppliedAndAppended, Stop> {
        let append = both.append.ok_or_else(|| Invalid::Missing("entries to append").into_error(Part::Store))?;
        self.topic(&append.topic)?.admits(&append)?;
        let mut failures = Vec::new();
        for group in &both.groups {
            failures.extend(self.fenced(&group.group, group.fence.as_ref())?);
        }
        if !failures.is_empty() {
            return Ok(v1::AppliedAndAppended { failures, appended: None });
        }
        for group in both.groups {
            self.write_group(group)?;
        }
        Ok(v1::AppliedAndAppended { failures, appended: Some(self.append(append)?) })
    }

    /// The failure of a write under a fence that is too low, if it is.
    fn fenced(&self, group: &Bytes, fence: Option<&v1::Fence>) -> Result<Option<v1::GroupFailure>, Stop> {
        let Some(fence) = fence else { return Ok(None) };
        let seen = match self.get(&key::fence(group, &fence.name))? {
            None => 0,
            Some(stored) => number(&stored)?,
        };
        if fence.number >= seen {
            return Ok(None);
        }
        Ok(Some(v1::GroupFailure {
            group: group.clone(),
            code: "store.fenced".to_owned(),
            message: format!("The group has seen the fence number {seen}; {} is lower.", fence.number),
            fence: seen,
        }))
    }

    fn write_group(&mut self, write: v1::GroupWrite) -> Result<(), StateFailure> {
        self.raise_fence(&write.group, write.fence.as_ref());
        for row in write.rows {
            for cell in row.cells {
                let at = key::cell(&write.group, &row.row, &cell.column);
                let version = Version { timestamp: cell.timestamp, value: cell.value };
                if self.version(&at)?.is_none_or(|present| version > present) {
                    self.changes.insert(at, Some(version.encode()));
                }
            }
        }
        Ok(())
    }

    fn raise_fence(&mut self, group: &Bytes, fence: Option<&v1::Fence>) {
        if let Some(fence) = fence {
            let stored = Bytes::copy_from_slice(&fence.number.to_be_bytes());
            self.changes.insert(key::fence(group, &fence.name), Some(stored));
        }
    }

    fn compare_and_set(&mut self, cas: v1::CompareAndSet) -> Result<v1::CompareAndSetDone, Stop> {
        let key = cas.key.unwrap_or_default();
        let write = cas.write.unwrap_or_default();
        if let Some(failure) = self.fenced(&key.group, cas.fence.as_ref())? {
            return Err(Stop::Rejected(fenced_error(&failure)));
        }
        let at = key::cell(&key.group, &key.row, &cas.column);
        let present = self.version(&at)?;
        if present.as_ref().map_or(0, |v| v.timestamp) != cas.expected {
            let actual = present.map(|v| v1::Cell { column: cas.column, timestamp: v.timestamp, value: v.value });
            return Ok(v1::CompareAndSetDone { written: false, actual });
        }
        // The fence counts as seen only with a write: an engine that does both in one condition can do no more.
        self.raise_fence(&key.group, cas.fence.as_ref());
        let version = Version { timestamp: write.timestamp, value: write.value };
        self.changes.insert(at, Some(version.encode()));
        Ok(v1::CompareAndSetDone { written: true, actual: None })
    }

    /// Looks through a group's tombstones: an old one is removed, one that is seen for the first time is marked.
    fn collect(&mut self, collect: &v1::StoreCollect) -> Result<Outcome, Stop> {
        let (start, end) = key::rows_range(&collect.group, &[], &[]);
        let from = if (&start..&end).contains(&&collect.from) { &collect.from } else { &start };
        let cells = self.cells(from, &end)?;
        let next = if cells.len() > COLLECT_STEP { cells[COLLECT_STEP].0.clone() } else { Bytes::new() };
        let mut removed = 0;
        for (at, stored) in cells.into_iter().take(COLLECT_STEP) {
            let version = Version::decode(&stored).ok_or_else(|| damaged(&at))?;
            match Version::seen(&stored) {
                _ if version.value.is_some() => {}
                None => drop(self.changes.insert(at, Some(version.encode_seen(collect.seen)))),
                Some(seen) if seen < collect.before => {
                    self.changes.insert(at, None);
                    removed += 1;
                }
                Some(_) => {}
            }
        }
        Ok(Outcome::StoreCollected(v1::StoreCollected { removed, next }))
    }

    /// The first cells of a range, one more than a collection looks at, this batch's changes included.
    fn cells(&self, from: &Bytes, to: &Bytes) -> Result<Vec<(Bytes, Bytes)>, StateFailure> {
        let changed = || self.changes.range::<Bytes, _>((Bound::Included(from), Bound::Excluded(to)));
        // As many more as the batch may remove: then what is left is complete up to the step.
        let most = COLLECT_STEP + 1 + changed().count();
        let mut cells = BTreeMap::new();
        self.kv.scan(from, to, &mut |at, stored| {
            cells.insert(at, stored);
            if cells.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        for (at, change) in changed() {
            match change {
                Some(stored) => cells.insert(at.clone(), stored.clone()),
                None => cells.remove(at),
            };
        }
        Ok(cells.into_iter().take(COLLECT_STEP + 1).collect())
    }

    fn raise(&mut self, at_least: u64) -> Result<Outcome, Stop> {
        let present = match self.get(key::INCARNATION)? {
            None => 0,
            Some(stored) => number(&stored)?,
        };
        let Some(next) = present.checked_add(1) else {
            return Err(Stop::Rejected(Error::new("store.used_up", Class::Refused, "Incarnations are used up.")));
        };
        let incarnation = next.max(at_least);
        let stored = Bytes::copy_from_slice(&incarnation.to_be_bytes());
        self.changes.insert(Bytes::from_static(key::INCARNATION), Some(stored));
        Ok(Outcome::StoreRaised(v1::StoreRaised { incarnation }))
    }

    // ---- topics -----------------------------------------------------------------------------------------------

    fn append(&mut self, append: v1::Append) -> Result<v1::Appended, StateFailure> {
        let topic = self.topic_mut(&append.topic)?;
        let first = topic.last + 1;
        let mut entries = Vec::with_capacity(append.entries.len());
        for entry in append.entries {
            topic.last += 1;
            topic.appended_bytes += entry.len() as u64;
            // Before the entry: the bytes of the topic up to and including it, so that dropping many entries at once
            // needs to read only the last of them.
            let mut stored = BytesMut::with_capacity(8 + entry.len());
            stored.put_u64(topic.appended_bytes);
            stored.put_slice(&entry);
            entries.push((key::entry(&append.topic, topic.last), Some(stored.freeze())));
        }
        let last = topic.last;
        self.changes.extend(entries);
        self.trim(&append.topic)?;
        Ok(v1::Appended { first, last })
    }

    fn ack(&mut self, ack: v1::Ack) -> Result<Outcome, Stop> {
        let acks = self.topic(&ack.topic)?.acknowledged(&ack.group, &ack.numbers)?;
        self.topic_mut(&ack.topic)?.groups.insert(ack.group, acks);
        self.trim(&ack.topic)?;
        Ok(Outcome::Acked(v1::Acked {}))
    }

    fn trim_through(&mut self, trim: &v1::FeedTrim) -> Result<Outcome, Stop> {
        let through = trim.through.min(self.topic(&trim.topic)?.last);
        if through == 0 {
            return Ok(Outcome::Done(v1::StoreDone {}));
        }
        let topic = self.topic_mut(&trim.topic)?;
        topic.groups.values_mut().for_each(|acks| acks.raise(through));
        if topic.groups.is_empty() {
            let to = through.min(topic.dropped + TRIM_STEP);
            self.drop_through(&trim.topic, to)?;
        }
        self.trim(&trim.topic)?;
        Ok(Outcome::Done(v1::StoreDone {}))
    }

    /// Drops what the topic's policy lets go, a bounded number of entries at a time.
    fn trim(&mut self, name: &Bytes) -> Result<(), StateFailure> {
        let topic = self.topic(name)?;
        let done = topic.done().min(topic.dropped + TRIM_STEP);
        self.drop_through(name, done)?;
        for _ in 0..TRIM_STEP {
            let topic = self.topic(name)?;
            if !topic.is_over() {
                break;
            }
            let oldest = topic.dropped + 1;
            self.drop_through(name, oldest)?;
        }
        Ok(())
    }

    fn drop_through(&mut self, name: &Bytes, through: u64) -> Result<(), StateFailure> {
        let dropped = self.topic(name)?.dropped;
        if through <= dropped {
            return Ok(());
        }
        let at = key::entry(name, through);
        let stored = self.get(&at)?.ok_or_else(|| damaged(&at))?;
        let bytes = stored.get(..8).map(number).ok_or_else(|| damaged(&at))??;
        for number in dropped + 1..=through {
            self.changes.insert(key::entry(name, number), None);
        }
        let topic = self.topic_mut(name)?;
        topic.dropped = through;
        topic.dropped_bytes = bytes;
        Ok(())
    }

    // ---- reading through the batch ----------------------------------------------------------------------------

    fn topic(&mut self, name: &Bytes) -> Result<&Topic, StateFailure> {
        Ok(&self.touch(name)?.topic)
    }

    fn topic_mut(&mut self, name: &Bytes) -> Result<&mut Topic, StateFailure> {
        let touched = self.touch(name)?;
        touched.changed = true;
        Ok(&mut touched.topic)
    }

    fn touch(&mut self, name: &Bytes) -> Result<&mut Touched, StateFailure> {
        if !self.topics.contains_key(name) {
            let at = key::topic(name);
            let topic = match self.kv.get(&at)? {
                None => Topic::default(),
                Some(stored) => Topic::decode(&stored).ok_or_else(|| damaged(&at))?,
            };
            self.topics.insert(name.clone(), Touched { topic, changed: false });
        }
        self.topics.get_mut(name).ok_or_else(|| StateFailure::new("a topic vanished while it was used"))
    }

    fn version(&self, at: &Bytes) -> Result<Option<Version>, StateFailure> {
        match self.get(at)? {
            None => Ok(None),
            Some(stored) => Version::decode(&stored).map(Some).ok_or_else(|| damaged(at)),
        }
    }

    fn get(&self, at: &[u8]) -> Result<Option<Bytes>, StateFailure> {
        match self.changes.get(at) {
            Some(change) => Ok(change.clone()),
            None => self.kv.get(at),
        }
    }
}

/// The half of the group whose name a command's errors carry.
pub(crate) fn part_of(command: &Command) -> Part {
    match command {
        Command::Append(_)
        | Command::Ack(_)
        | Command::FeedJoin(_)
        | Command::FeedLeave(_)
        | Command::FeedRetain(_)
        | Command::FeedTrim(_) => Part::Feed,
        _ => Part::Store,
    }
}

/// A stored number.
pub(crate) fn number(stored: &[u8]) -> Result<u64, StateFailure> {
    let stored = stored.try_into().map_err(|_| StateFailure::new("a stored number does not have eight bytes"))?;
    Ok(u64::from_be_bytes(stored))
}

/// The failure of a pair that no version of this program wrote.
pub(crate) fn damaged(at: &[u8]) -> StateFailure {
    StateFailure::new(format!("the stored value of key {} is damaged", at.escape_ascii()))
}

fn fenced_error(failure: &v1::GroupFailure) -> Error {
    Error::new("store.fenced", Class::Refused, failure.message.clone())
        .hint("Another owner has taken over: stop writing, and ask who owns the range now.")
}
