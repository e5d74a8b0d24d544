//! The reference: what the state must come to, written for the eye.

use crate::acks::ACK_WINDOW;
use crate::limits;
use crate::merge::Version;
use crate::topic::{MAX_GROUPS, Retention};
use crate::work::part_of;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_result::Result as Outcome;

/// Everything that commands have made, in plain maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// By group, row, column: the merged version, tombstones included.
    pub cells: BTreeMap<(Bytes, Bytes, Bytes), Version>,
    /// When a collection first saw a cell's tombstone.
    pub seen: BTreeMap<(Bytes, Bytes, Bytes), u64>,
    /// By group and name.
    pub fences: BTreeMap<(Bytes, Bytes), u64>,
    /// By name.
    pub topics: BTreeMap<Bytes, ModelTopic>,
    /// The incarnation.
    pub incarnation: u64,
}

/// A topic in plain sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTopic {
    /// The last number given.
    pub last: u64,
    /// What is kept.
    pub entries: BTreeMap<u64, Bytes>,
    /// By group: what it has acknowledged, dropped entries included.
    pub groups: BTreeMap<Bytes, BTreeSet<u64>>,
    /// The bounds.
    pub retention: Retention,
}

impl ModelTopic {
    fn bytes(&self) -> u64 {
        self.entries.values().map(|e| e.len() as u64).sum()
    }

    fn floor(acked: &BTreeSet<u64>) -> u64 {
        (1..).zip(acked).take_while(|(n, acked)| n == *acked).last().map_or(0, |(n, _)| n)
    }

    fn trim(&mut self) {
        if self.groups.is_empty() {
            while self.entries.len() as u64 > self.retention.unclaimed_entries
                || self.bytes() > self.retention.unclaimed_bytes
            {
                self.entries.pop_first();
            }
        } else {
            let done = self.groups.values().map(Self::floor).min().unwrap_or(0);
            self.entries.retain(|number, _| *number > done);
        }
    }

    fn dropped(&self) -> u64 {
        self.entries.first_key_value().map_or(self.last, |(first, _)| first - 1)
    }

    fn is_full_for(&self, append: &v1::Append) -> bool {
        let bytes: u64 = append.entries.iter().map(|e| e.len() as u64).sum();
        let entries = (self.entries.len() + append.entries.len()) as u64;
        !self.groups.is_empty()
            && (entries > self.retention.backlog_entries || self.bytes() + bytes > self.retention.backlog_bytes)
    }

    fn append(&mut self, append: &v1::Append) -> v1::Appended {
        let first = self.last + 1;
        for entry in &append.entries {
            self.last += 1;
            self.entries.insert(self.last, entry.clone());
        }
        self.trim();
        v1::Appended { first, last: self.last }
    }
}

impl Model {
    /// What the state must answer, errors by their code. Collections are checked by [`Model::collect`] instead: where
    /// one stops is the state's own business.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome, String> {
        limits::check(command).map_err(|invalid| invalid.into_error(part_of(command)).code.into_owned())?;
        match command.clone() {
            Command::Apply(apply) => Ok(Outcome::Applied(self.apply_groups(&apply))),
            Command::CompareAndSet(cas) => self.compare_and_set(cas),
            Command::ApplyAndAppend(both) => self.apply_and_append(both),
            Command::Append(append) => {
                let topic = self.topics.entry(append.topic.clone()).or_default();
                if topic.is_full_for(&append) {
                    return Err("feed.full".to_owned());
                }
                Ok(Outcome::Appended(topic.append(&append)))
            }
            Command::Ack(ack) => self.ack(&ack),
            Command::FeedJoin(join) => self.join(join),
            Command::FeedLeave(leave) => {
                let topic = self.topics.entry(leave.topic).or_default();
                topic.groups.remove(&leave.group);
                topic.trim();
                Ok(Outcome::Done(v1::StoreDone {}))
            }
            Command::FeedRetain(retain) => {
                let topic = self.topics.entry(retain.topic).or_default();
                topic.retention = Retention::from_message(&retain.retention.unwrap_or_default());
                topic.trim();
                Ok(Outcome::Done(v1::StoreDone {}))
            }
            Command::FeedTrim(trim) => {
                let topic = self.topics.entry(trim.topic).or_default();
                let through = trim.through.min(topic.last);
                topic.groups.values_mut().for_each(|acked| acked.extend(1..=through));
                topic.entries.retain(|number, _| *number > through);
                topic.trim();
                Ok(Outcome::Done(v1::StoreDone {}))
            }
            Command::StoreCollect(collect) => {
                let removed = self.collect(&collect);
                Ok(Outcome::StoreCollected(v1::StoreCollected { removed, next: Bytes::new() }))
            }
            Command::StoreRaise(raise) => {
                self.incarnation = (self.incarnation + 1).max(raise.at_least);
                Ok(Outcome::StoreRaised(v1::StoreRaised { incarnation: self.incarnation }))
            }
        }
    }

    /// Removes tombstones of a group that were first seen before a time, and sees the others; how many are removed.
    pub fn collect(&mut self, collect: &v1::StoreCollect) -> u64 {
        let before = self.cells.len();
        let Model { cells, seen, .. } = self;
        cells.retain(|at, version| match seen.get(at) {
            _ if at.0 != collect.group || version.value.is_some() => true,
            None => seen.insert(at.clone(), collect.seen).is_none(),
            Some(first) => *first >= collect.before,
        });
        seen.retain(|at, _| cells.contains_key(at));
        (before - self.cells.len()) as u64
    }

    /// The live cells of a row, in the order of columns.
    pub fn row(&self, group: &[u8], row: &[u8]) -> Vec<v1::Cell> {
        let of_row = self.cells.iter().filter(|((g, r, _), _)| g == group && r == row);
        let live = of_row.filter_map(|((_, _, column), version)| {
            let value = version.value.clone()?;
            Some(v1::Cell { column: column.clone(), timestamp: version.timestamp, value: Some(value) })
        });
        live.collect()
    }

    /// What a consumer group has not acknowledged of what is kept.
    pub fn open_entries(&self, topic: &[u8], group: &[u8]) -> Option<Vec<(u64, Bytes)>> {
        let topic = self.topics.get(topic)?;
        let acked = topic.groups.get(group)?;
        Some(topic.entries.iter().filter(|(n, _)| !acked.contains(n)).map(|(n, e)| (*n, e.clone())).collect())
    }

    fn fence_failure(&self, group: &Bytes, fence: Option<&v1::Fence>) -> Option<u64> {
        let fence = fence?;
        let seen = *self.fences.get(&(group.clone(), fence.name.clone()))?;
        (fence.number < seen).then_some(seen)
    }

    fn raise_fence(&mut self, group: &Bytes, fence: Option<&v1::Fence>) {
        if let Some(fence) = fence {
            self.fences.insert((group.clone(), fence.name.clone()), fence.number);
        }
    }

    fn failures(&self, groups: &[v1::GroupWrite]) -> Vec<v1::GroupFailure> {
        let failed = groups.iter().filter_map(|write| {
            let fence = self.fence_failure(&write.group, write.fence.as_ref())?;
            let code = "store.fenced".to_owned();
            Some(v1::GroupFailure { group: write.group.clone(), code, message: String::new(), fence })
        });
        failed.collect()
    }

    fn write(&mut self, write: &v1::GroupWrite) {
        self.raise_fence(&write.group, write.fence.as_ref());
        for row in &write.rows {
            for cell in &row.cells {
                let version = Version { timestamp: cell.timestamp, value: cell.value.clone() };
                let at = (write.group.clone(), row.row.clone(), cell.column.clone());
                if self.cells.get(&at).is_none_or(|present| version > *present) {
                    self.put(at, version);
                }
            }
        }
    }

    fn put(&mut self, at: (Bytes, Bytes, Bytes), version: Version) {
        self.seen.remove(&at);
        self.cells.insert(at, version);
    }

    fn apply_groups(&mut self, apply: &v1::Apply) -> v1::Applied {
        let failures = self.failures(&apply.groups);
        for write in &apply.groups {
            if failures.iter().all(|f| f.group != write.group) {
                self.write(write);
            }
        }
        v1::Applied { failures }
    }

    fn apply_and_append(&mut self, both: v1::ApplyAndAppend) -> Result<Outcome, String> {
        let append = both.append.unwrap_or_default();
        if self.topics.entry(append.topic.clone()).or_default().is_full_for(&append) {
            return Err("feed.full".to_owned());
        }
        let failures = self.failures(&both.groups);
        if !failures.is_empty() {
            return Ok(Outcome::AppliedAndAppended(v1::AppliedAndAppended { failures, appended: None }));
        }
        both.groups.iter().for_each(|write| self.write(write));
        let appended = Some(self.topics.entry(append.topic.clone()).or_default().append(&append));
        Ok(Outcome::AppliedAndAppended(v1::AppliedAndAppended { failures, appended }))
    }

    fn compare_and_set(&mut self, cas: v1::CompareAndSet) -> Result<Outcome, String> {
        let (key, write) = (cas.key.unwrap_or_default(), cas.write.unwrap_or_default());
        if self.fence_failure(&key.group, cas.fence.as_ref()).is_some() {
            return Err("store.fenced".to_owned());
        }
        let at = (key.group.clone(), key.row, cas.column.clone());
        let present = self.cells.get(&at).cloned();
        if present.as_ref().map_or(0, |v| v.timestamp) != cas.expected {
            let actual = present.map(|v| v1::Cell { column: cas.column, timestamp: v.timestamp, value: v.value });
            return Ok(Outcome::CompareAndSetDone(v1::CompareAndSetDone { written: false, actual }));
        }
        self.raise_fence(&key.group, cas.fence.as_ref());
        self.put(at, Version { timestamp: write.timestamp, value: write.value });
        Ok(Outcome::CompareAndSetDone(v1::CompareAndSetDone { written: true, actual: None }))
    }

    fn join(&mut self, join: v1::FeedJoin) -> Result<Outcome, String> {
        let topic = self.topics.entry(join.topic).or_default();
        if !topic.groups.contains_key(&join.group) {
            if topic.groups.len() >= MAX_GROUPS {
                return Err("feed.too_many_groups".to_owned());
            }
            topic.groups.insert(join.group.clone(), (1..=topic.dropped()).collect());
        }
        let floor = ModelTopic::floor(&topic.groups[&join.group]);
        Ok(Outcome::FeedJoined(v1::FeedJoined { floor }))
    }

    fn ack(&mut self, ack: &v1::Ack) -> Result<Outcome, String> {
        let topic = self.topics.entry(ack.topic.clone()).or_default();
        let last = topic.last;
        let Some(acked) = topic.groups.get_mut(&ack.group) else { return Err("feed.unknown_group".to_owned()) };
        let most = last.min(ModelTopic::floor(acked) + ACK_WINDOW);
        if ack.numbers.iter().any(|number| *number > most) {
            return Err("feed.never_delivered".to_owned());
        }
        acked.extend(&ack.numbers);
        topic.trim();
        Ok(Outcome::Acked(v1::Acked {}))
    }
}
