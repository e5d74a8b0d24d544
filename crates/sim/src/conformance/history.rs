//! Everything that was asked, heard and applied, and the claims over it.

use super::Told;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;
use tidings_base::agreed::{Heard, Role};
use tidings_base::{Epoch, LogIndex, NodeId, OpId};

/// How often each claim was put to the test. A zero over a whole suite means that the suite did not look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answers to proposals and barriers, one each.
    pub answers: u64,
    /// Entries that were found applied in the same order as elsewhere.
    pub entries: u64,
    /// Refused proposals that were looked for.
    pub refusals: u64,
    /// Barriers that were held against what had been reported before.
    pub barriers: u64,
    /// Leaderships with an epoch of their own.
    pub epochs: u64,
    /// Leases that were held against other leaders.
    pub leases: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.answers += other.answers;
        self.entries += other.entries;
        self.refusals += other.refusals;
        self.barriers += other.barriers;
        self.epochs += other.epochs;
        self.leases += other.leases;
    }
}

impl Counts {
    /// An error if a claim was never checked.
    pub fn all_positive(&self) -> Result<(), String> {
        let all = [self.answers, self.entries, self.refusals, self.barriers, self.epochs, self.leases];
        if all.contains(&0) { Err(format!("a claim was never checked: {self:?}")) } else { Ok(()) }
    }
}

struct Op {
    asked: Duration,
    command: Option<Bytes>,
    answered: bool,
    /// Its replica crashed: no answer will come.
    orphaned: bool,
}

/// The history of one cluster.
#[derive(Default)]
pub struct History {
    ops: BTreeMap<(NodeId, OpId), Op>,
    /// What was ever seen applied, anywhere.
    agreed: BTreeMap<LogIndex, Bytes>,
    places: BTreeMap<Bytes, LogIndex>,
    /// Reported applied: when and where.
    reported: BTreeMap<LogIndex, Duration>,
    refused: BTreeSet<Bytes>,
    /// How long the list of each running replica was when it was last looked at.
    lengths: BTreeMap<NodeId, usize>,
    epochs: BTreeMap<Epoch, NodeId>,
    latest_epoch: BTreeMap<NodeId, Epoch>,
    /// The lease of each replica that leads, from when until when.
    leases: BTreeMap<NodeId, (Duration, Duration)>,
    leaderships: Vec<(Duration, NodeId)>,
    counts: Counts,
}

impl History {
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn proposed(&mut self, asked: Duration, node: NodeId, op: OpId, command: Bytes) {
        let op_state = Op { asked, command: Some(command), answered: false, orphaned: false };
        self.ops.insert((node, op), op_state);
    }

    pub(super) fn barrier(&mut self, asked: Duration, node: NodeId, op: OpId) {
        self.ops.insert((node, op), Op { asked, command: None, answered: false, orphaned: false });
    }

    pub(super) fn crashed(&mut self, node: NodeId) {
        self.lengths.remove(&node);
        for ((at, _), op) in &mut self.ops {
            op.orphaned |= *at == node;
        }
    }

    /// An operation that waits for an answer from a replica that has run ever since.
    pub(super) fn unanswered(&self) -> Option<(NodeId, OpId)> {
        self.ops.iter().find(|(_, op)| !op.answered && !op.orphaned).map(|(name, _)| *name)
    }

    pub(super) fn all_reported_in(&self, list: &[(LogIndex, Bytes)]) -> bool {
        self.reported.keys().all(|index| list.binary_search_by_key(index, |(at, _)| *at).is_ok())
    }

    pub(super) fn told(&mut self, node: NodeId, told: Told) -> Result<(), String> {
        match told.heard {
            Heard::Applied { op, index, .. } => {
                let asked = self.answer(node, op)?;
                let Some(command) = asked.0 else { return Err(format!("a barrier was applied at {index}")) };
                self.place(index, &command)?;
                self.reported.entry(index).or_insert(told.at);
                Ok(())
            }
            Heard::Refused { op, .. } => {
                if let (Some(command), _) = self.answer(node, op)? {
                    if let Some(index) = self.places.get(&command) {
                        return Err(format!("{command:?} was refused by {node} and is applied at {index}"));
                    }
                    self.counts.refusals += 1;
                    self.refused.insert(command);
                }
                Ok(())
            }
            Heard::Unknown { op } => self.answer(node, op).map(|_| ()),
            Heard::Passed { op, index } => self.passed(node, op, index),
            Heard::Role(Role::Leader { epoch }) => self.leads(node, told.at, epoch),
            Heard::Role(Role::Follower { .. }) => {
                // It gives up what is left of its lease.
                if let Some((_, until)) = self.leases.get_mut(&node) {
                    *until = (*until).min(told.at);
                }
                Ok(())
            }
            Heard::LeaseUntil(_) => self.lease(node, told.at, told.until.unwrap_or(told.at)),
        }
    }

    fn answer(&mut self, node: NodeId, op: OpId) -> Result<(Option<Bytes>, Duration), String> {
        let Some(asked) = self.ops.get_mut(&(node, op)) else {
            return Err(format!("{node} answered operation {op}, which nobody asked"));
        };
        if asked.answered {
            return Err(format!("{node} answered operation {op} twice"));
        }
        asked.answered = true;
        self.counts.answers += 1;
        Ok((asked.command.clone(), asked.asked))
    }

    fn passed(&mut self, node: NodeId, op: OpId, index: LogIndex) -> Result<(), String> {
        let (_, asked) = self.answer(node, op)?;
        self.counts.barriers += 1;
        let before = self.reported.iter().rev().find(|(_, at)| **at < asked);
        match before {
            Some((newest, at)) if *newest > index => Err(format!(
                "a barrier passed at {node} with index {index}, but {newest} was reported applied at {at:?}, before \
                 the barrier was asked at {asked:?}"
            )),
            _ => Ok(()),
        }
    }

    fn leads(&mut self, node: NodeId, at: Duration, epoch: Epoch) -> Result<(), String> {
        self.counts.epochs += 1;
        if let Some(other) = self.epochs.insert(epoch, node) {
            return Err(format!("{node} leads under epoch {epoch}, as {other} did"));
        }
        if let Some(latest) = self.latest_epoch.insert(node, epoch).filter(|latest| *latest >= epoch) {
            return Err(format!("{node} leads under epoch {epoch} after {latest}"));
        }
        for (holder, (from, until)) in &self.leases {
            if *holder != node && *from <= at && at < *until {
                return Err(format!("{node} became leader at {at:?}, within the lease of {holder} until {until:?}"));
            }
        }
        self.leaderships.push((at, node));
        Ok(())
    }

    fn lease(&mut self, node: NodeId, at: Duration, until: Duration) -> Result<(), String> {
        self.counts.leases += 1;
        let since = self.latest_epoch.get(&node).copied().unwrap_or_default();
        for (began, other) in self.leaderships.iter().rev().take_while(|(began, _)| *began >= at) {
            if *other != node && *began < until && self.latest_epoch.get(other).is_some_and(|e| *e > since) {
                return Err(format!("{node} was given a lease until {until:?}; {other} led from {began:?} on"));
            }
        }
        let lease = self.leases.entry(node).or_insert((at, until));
        if at >= lease.1 {
            lease.0 = at;
        }
        lease.1 = until;
        Ok(())
    }

    fn place(&mut self, index: LogIndex, command: &Bytes) -> Result<(), String> {
        let known = self.agreed.entry(index).or_insert_with(|| command.clone());
        if known != command {
            return Err(format!("index {index} holds {known:?} at one replica and {command:?} at another"));
        }
        let place = *self.places.entry(command.clone()).or_insert(index);
        if place != index {
            return Err(format!("{command:?} is applied twice, at {place} and at {index}"));
        }
        if self.refused.contains(command) {
            return Err(format!("{command:?} was refused and is applied at {index}"));
        }
        Ok(())
    }

    /// The list of a running replica: in order, as elsewhere, without gaps, never shorter than before.
    pub(super) fn applied(&mut self, node: NodeId, list: &[(LogIndex, Bytes)]) -> Result<(), String> {
        let known = self.lengths.insert(node, list.len()).unwrap_or(0);
        if list.len() < known {
            return Err(format!("{node} held {known} commands and holds {} without a restart", list.len()));
        }
        for (index, command) in &list[known..] {
            self.place(*index, command)?;
            self.counts.entries += 1;
        }
        if list.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return Err(format!("{node} applied out of order"));
        }
        if let Some((last, _)) = list.last() {
            let expected = self.agreed.range(..=*last).count();
            if expected != list.len() {
                return Err(format!("{node} holds {} of {expected} commands up to {last}", list.len()));
            }
        }
        Ok(())
    }
}
