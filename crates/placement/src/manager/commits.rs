//! Changes on their way to the cell: one commit a file at a time, numbers in blocks, LSNs as a committed prefix.

use super::file::{self, Kind, OWNERS_PER_FILE};
use super::pool::Pool;
use super::table::{Holder, Intent, Range, Table};
use crate::mutant::Mutant;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyHash, LeaseNumber, Mono, OpId};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// Numbers that one commit of `meta` sets aside: a few hours of a busy namespace.
const LEASES_A_BLOCK: u32 = 4_096;
const LSNS_A_BLOCK: u64 = 65_536;

/// Changes are gathered for so long before lookups hear of them.
const COALESCE: Duration = Duration::from_millis(50);

/// A range's new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    start: KeyHash,
    to: u32,
    lease: LeaseNumber,
    lsn: u64,
    /// Its state came along, under this token.
    token: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct FileState {
    generation: Option<u64>,
    /// It differs from what the cell has.
    wanted: bool,
    inflight: Option<Inflight>,
}

#[derive(Clone, Debug)]
struct Inflight {
    bytes: Bytes,
    changes: Vec<Change>,
    /// `meta`: what it says of the next numbers. Owners: who is in it.
    meta: Option<v1::PlacementMeta>,
    owners: Vec<v1::TableOwner>,
}

/// What a file that was read again says of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// It is there.
    Done {
        /// Under this generation.
        generation: u64,
    },
    /// It is not there, and what was there before is.
    NotYet,
    /// Something else is there: somebody else leads.
    Foreign,
}

/// Everything that is on its way.
#[derive(Clone, Debug)]
pub(super) struct Commits {
    files: BTreeMap<Kind, FileState>,
    /// Ranges to be given to somebody, or to nobody.
    queued: BTreeMap<KeyHash, (u32, Option<u64>)>,
    next_lease: u32,
    lease_end: u32,
    next_lsn: u64,
    lsn_end: u64,
    /// LSNs of commits under way: what is published ends before the smallest.
    inflight: BTreeSet<u64>,
    /// Operators that wait for `meta`.
    waiting: Vec<(OpId, Message)>,
}

impl Commits {
    pub(super) fn new() -> Commits {
        Commits {
            files: BTreeMap::new(),
            queued: BTreeMap::new(),
            next_lease: 1,
            lease_end: 1,
            next_lsn: 1,
            lsn_end: 1,
            inflight: BTreeSet::new(),
            waiting: Vec::new(),
        }
    }

    /// A file is in the cell under this generation.
    pub(super) fn found(&mut self, kind: Kind, generation: u64) {
        self.files.entry(kind).or_default().generation = Some(generation);
    }

    /// F8: numbers below these are used up, by whomever.
    pub(super) fn numbers_from(&mut self, lease: u32, lsn: u64) {
        (self.next_lease, self.lease_end) = (lease.max(1), lease.max(1));
        (self.next_lsn, self.lsn_end) = (lsn.max(1), lsn.max(1));
    }

    pub(super) fn want(&mut self, kind: Kind) {
        self.files.entry(kind).or_default().wanted = true;
    }

    /// An operator waits until `meta` is committed.
    pub(super) fn reply_after_meta(&mut self, op: OpId, message: Message) {
        self.waiting.push((op, message));
        self.want(Kind::Meta);
    }

    pub(super) fn waiting_ops(&mut self) -> impl Iterator<Item = OpId> {
        self.waiting.drain(..).map(|(op, _)| op)
    }

    /// The highest LSN below which everything is committed.
    pub(super) fn published(&self) -> u64 {
        self.inflight.first().map_or(self.next_lsn - 1, |first| first - 1)
    }

    fn numbers_left(&self) -> bool {
        self.next_lease < self.lease_end && self.next_lsn < self.lsn_end
    }
}

impl Pool {
    /// Records a range as somebody's, or nobody's, with a new number. F3: only what was released or expired comes here.
    pub(super) fn assign(&mut self, start: KeyHash, to: u32, token: Option<u64>) {
        if let Some(range) = self.table.get_mut(start) {
            debug_assert_eq!(range.holder, Holder::Nobody, "F3: released or expired first");
            range.holder = Holder::Committing;
            self.commits.queued.insert(start, (to, token));
        }
    }

    /// The files that are to be committed now; segments wait until there are numbers.
    pub(super) fn commits_due(&mut self) -> Vec<super::File> {
        if !self.commits.queued.is_empty() && !self.commits.numbers_left() {
            self.commits.want(Kind::Meta);
        }
        if self.commits.numbers_left() {
            let segments: BTreeSet<u8> = self.commits.queued.keys().map(|start| file::segment_of(*start)).collect();
            segments.into_iter().for_each(|segment| self.commits.want(Kind::Segment(segment)));
        }
        let due = self.commits.files.iter().filter(|(_, state)| state.wanted && state.inflight.is_none());
        due.map(|(kind, _)| super::File { namespace: self.name.clone(), kind: *kind }).collect()
    }

    /// What to commit, and under which condition.
    pub(super) fn begin_commit(&mut self, kind: Kind) -> (Option<u64>, Bytes) {
        let inflight = match kind {
            Kind::Meta => self.encode_meta(),
            Kind::Owners(n) => self.encode_owners(n),
            Kind::Segment(n) => self.encode_segment(n),
        };
        let bytes = inflight.bytes.clone();
        let state = self.commits.files.entry(kind).or_default();
        state.wanted = false;
        state.inflight = Some(inflight);
        (state.generation, bytes)
    }

    /// The commit that is under way, again.
    pub(super) fn same_commit(&self, kind: Kind) -> Option<(Option<u64>, Bytes)> {
        let state = self.commits.files.get(&kind)?;
        Some((state.generation, state.inflight.as_ref()?.bytes.clone()))
    }

    fn encode_meta(&mut self) -> Inflight {
        let mut meta = self.meta.clone();
        if !self.commits.numbers_left() {
            meta.next_lease = self.commits.lease_end.max(meta.next_lease).saturating_add(LEASES_A_BLOCK);
            meta.next_lsn = self.commits.lsn_end.max(meta.next_lsn).saturating_add(LSNS_A_BLOCK);
        }
        Inflight { bytes: meta.encode_to_vec().into(), changes: Vec::new(), meta: Some(meta), owners: Vec::new() }
    }

    fn encode_owners(&self, n: u8) -> Inflight {
        let first = u32::from(n) * OWNERS_PER_FILE;
        let members = self.members.range(first..first + OWNERS_PER_FILE);
        let records: Vec<v1::TableOwner> = members.map(|(_, member)| member.record.clone()).collect();
        let file = v1::PlacementOwners { owners: records };
        Inflight { bytes: file.encode_to_vec().into(), changes: Vec::new(), meta: None, owners: file.owners }
    }

    fn encode_segment(&mut self, segment: u8) -> Inflight {
        let (first, last) = file::bounds(segment);
        let queued: Vec<KeyHash> = self.commits.queued.range(first..=last).map(|(start, _)| *start).collect();
        let mut changes: Vec<Change> = Vec::with_capacity(queued.len());
        for start in queued {
            let Some((to, token)) = self.commits.queued.get(&start).copied() else { continue };
            let Some(range) = self.table.get(start).copied() else { continue };
            // Neighbours that go the same way together become one range under one number.
            let joins = changes.last().filter(|before| {
                let touches = self.table.get(before.start).is_some_and(|left| left.last.0.wrapping_add(1) == start.0);
                touches && before.to == to && before.token.is_none() && token.is_none() && !range.pinned
            });
            let (lease, lsn) = match joins {
                Some(before) => (before.lease, before.lsn),
                None if self.commits.numbers_left() => {
                    let numbers =
                        (LeaseNumber::new(self.commits.next_lease).unwrap_or(LeaseNumber::MAX), self.commits.next_lsn);
                    self.commits.next_lease += 1;
                    self.commits.next_lsn += 1;
                    self.commits.inflight.insert(numbers.1);
                    numbers
                }
                None => break,
            };
            self.commits.queued.remove(&start);
            changes.push(Change { start, to, lease, lsn, token });
        }
        let mut after = Table::new();
        after.load(segment, self.table.segment(segment).map(|(start, range)| (start, *range)).collect());
        changes.iter().for_each(|change| apply(&mut after, change, self.mutant));
        after.join(segment);
        Inflight { bytes: file::encode_segment(&after, segment), changes, meta: None, owners: Vec::new() }
    }

    /// A commit is in the cell: from now on what it says may be told. What operators waited for is returned.
    pub(super) fn commit_done(&mut self, now: Mono, kind: Kind, generation: u64) -> Vec<(OpId, Message)> {
        let Some(state) = self.commits.files.get_mut(&kind) else { return Vec::new() };
        state.generation = Some(generation);
        let Some(done) = state.inflight.take() else { return Vec::new() };
        match kind {
            Kind::Meta => {
                if let Some(meta) = done.meta {
                    if meta.next_lsn > self.commits.lsn_end {
                        self.commits.next_lease = self.commits.next_lease.max(self.meta.next_lease).max(1);
                        self.commits.next_lsn = self.commits.next_lsn.max(self.meta.next_lsn).max(1);
                        (self.commits.lease_end, self.commits.lsn_end) = (meta.next_lease, meta.next_lsn);
                    }
                    (self.meta.next_lease, self.meta.next_lsn) = (meta.next_lease, meta.next_lsn);
                }
                return std::mem::take(&mut self.commits.waiting);
            }
            Kind::Owners(_) => {
                // A later process may have registered since: nothing is granted to it before its own record is there, or
                // the next leader would take the earlier one's word for what it holds.
                for record in done.owners {
                    let member = self.members.get_mut(&record.index);
                    if let Some(member) = member.filter(|member| member.record.incarnation == record.incarnation) {
                        member.committed = true;
                    }
                }
                self.stale_plan = true;
            }
            Kind::Segment(segment) => {
                for change in &done.changes {
                    self.installed(change);
                }
                self.table.join(segment);
                if !done.changes.is_empty() {
                    self.push_at.get_or_insert(now + COALESCE);
                }
            }
        }
        Vec::new()
    }

    fn installed(&mut self, change: &Change) {
        apply(&mut self.table, change, self.mutant);
        self.commits.inflight.remove(&change.lsn);
        self.news(change.to);
        match change.token {
            Some(token) => {
                self.counts.moves += 1;
                self.move_committed(token);
            }
            None => self.counts.losses += 1,
        }
        // Whom it was meant for may be gone meanwhile.
        self.stale_plan |= self.members.get(&change.to).is_none_or(|member| member.live_until == Mono(0));
    }

    /// What a file that was read again says of the commit that is under way.
    pub(super) fn resolve(&self, kind: Kind, contents: Option<(u64, Bytes)>) -> Resolved {
        let Some(state) = self.commits.files.get(&kind) else { return Resolved::Foreign };
        let Some(inflight) = &state.inflight else { return Resolved::Foreign };
        match contents {
            Some((generation, bytes)) if Some(generation) != state.generation && bytes == inflight.bytes => {
                Resolved::Done { generation }
            }
            Some((generation, _)) if Some(generation) == state.generation => Resolved::NotYet,
            None if state.generation.is_none() => Resolved::NotYet,
            _ => Resolved::Foreign,
        }
    }
}

fn apply(table: &mut Table, change: &Change, mutant: Option<Mutant>) {
    if let Some(range) = table.get_mut(change.start) {
        // F7: a clean move keeps the LSN of an earlier loss, which somebody may not have heard of.
        let lost = match change.token {
            None => change.lsn,
            Some(_) if mutant == Some(Mutant::CleanFlag) => 0,
            Some(_) => range.lost,
        };
        let holder = if change.to == 0 { Holder::Nobody } else { Holder::Fresh };
        *range = Range {
            owner: change.to,
            lease: change.lease,
            changed: change.lsn,
            lost,
            holder,
            intent: Intent::Stay,
            token: change.token,
            until: Mono(0),
            ..*range
        };
    }
}
