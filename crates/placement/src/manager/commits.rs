//! Changes on their way to the cell: one commit a file at a time, numbers in blocks, LSNs as a committed prefix.

use super::Outcome;
use super::file::{self, Kind, OWNERS_PER_FILE};
use super::pool::{Pool, process};
use super::table::{Holder, Intent, Range};
use crate::mutant::Mutant;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{KeyHash, LeaseNumber, Mono, OpId};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// Numbers that one commit of `meta` sets aside: a few hours of a busy namespace.
const LEASES_A_BLOCK: u32 = 4_096;
const LSNS_A_BLOCK: u64 = 65_536;

/// Fewer lease numbers than these are told to operators: as many as one restore passes over, and years of a busy namespace.
const FEW_NUMBERS: u32 = 1 << 24;

/// Policies leave a range alone for so many of their rounds after it changed hands (dwell).
const DWELL: u32 = 2;

/// A range's new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    start: KeyHash,
    to: u32,
    lease: LeaseNumber,
    lsn: u64,
    /// Its state came along, under this token.
    token: Option<u64>,
    /// A policy has put it there.
    pin: bool,
}

/// Whom a range is to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gift {
    to: u32,
    token: Option<u64>,
    pin: bool,
}

#[derive(Clone, Debug, Default)]
struct FileState {
    generation: Option<u64>,
    inflight: Option<Inflight>,
}

#[derive(Clone, Debug)]
struct Inflight {
    bytes: Bytes,
    changes: Vec<Change>,
    /// `meta`: what it says of the next numbers. Owners: who is in it.
    meta: Option<v1::PlacementMeta>,
    owners: Vec<v1::TableOwner>,
    /// Owners: the LSN of new addresses in it.
    lsn: Option<u64>,
    /// It was put again after an unknown outcome: a conflict may be with ourselves.
    again: bool,
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
    /// Files that differ from what the cell has.
    wanted: BTreeSet<Kind>,
    /// Ranges to be given to somebody, or to nobody.
    queued: BTreeMap<KeyHash, Gift>,
    /// How many ranges are queued or on their way, by whom they go to.
    going: BTreeMap<u32, usize>,
    next_lease: u32,
    lease_end: u32,
    next_lsn: u64,
    lsn_end: u64,
    /// LSNs of commits under way: what is published ends before the smallest.
    inflight: BTreeSet<u64>,
    /// Operators that wait for a file.
    waiting: Vec<(Kind, OpId, Message)>,
    /// Those whose wish is in the commit of it that is under way.
    answering: Vec<(Kind, OpId, Message)>,
}

impl Commits {
    pub(super) fn new() -> Commits {
        Commits {
            files: BTreeMap::new(),
            wanted: BTreeSet::new(),
            queued: BTreeMap::new(),
            going: BTreeMap::new(),
            next_lease: 1,
            lease_end: 1,
            next_lsn: 1,
            lsn_end: 1,
            inflight: BTreeSet::new(),
            waiting: Vec::new(),
            answering: Vec::new(),
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

    /// Goes on with the block that an earlier leader had set aside: a mutant's doing (F8).
    pub(super) fn reuse_numbers(&mut self) {
        self.next_lease = self.lease_end.saturating_sub(LEASES_A_BLOCK).max(1);
        self.next_lsn = self.lsn_end.saturating_sub(LSNS_A_BLOCK).max(1);
    }

    pub(super) fn want(&mut self, kind: Kind) {
        self.wanted.insert(kind);
    }

    /// Whether grants of an owner are on their way to the cell.
    pub(super) fn under_way_for(&self, owner: u32) -> bool {
        self.going.contains_key(&owner)
    }

    /// Whether a change that is queued or on its way names an owner.
    pub(super) fn names(&self, owner: u32) -> bool {
        self.going.contains_key(&owner)
    }

    fn arrived(&mut self, owner: u32) {
        if let Some(count) = self.going.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.going.remove(&owner);
            }
        }
    }

    /// Whether commits are queued or under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.going.is_empty()
    }

    /// An operator waits until a file is committed as it is now.
    pub(super) fn reply_after(&mut self, kind: Kind, op: OpId, message: Message) {
        self.waiting.push((kind, op, message));
        self.want(kind);
    }

    pub(super) fn waiting_ops(&mut self) -> impl Iterator<Item = OpId> {
        self.answering.drain(..).chain(self.waiting.drain(..)).map(|(_, op, _)| op)
    }

    /// The highest LSN below which everything is committed.
    pub(super) fn published(&self) -> u64 {
        self.inflight.first().map_or(self.next_lsn - 1, |first| first - 1)
    }

    /// F8: numbers are used once. When a namespace has used all of them, nothing is given any more.
    fn numbers_left(&self) -> bool {
        let unused = LeaseNumber::new(self.next_lease).is_some();
        unused && self.next_lease < self.lease_end && self.has_lsns()
    }

    fn next_numbers(&mut self) -> Option<(LeaseNumber, u64)> {
        let lease = LeaseNumber::new(self.next_lease).filter(|_| self.numbers_left())?;
        let lsn = self.take_lsn()?;
        self.next_lease += 1;
        Some((lease, lsn))
    }

    fn has_lsns(&self) -> bool {
        self.next_lsn < self.lsn_end
    }

    fn take_lsn(&mut self) -> Option<u64> {
        let lsn = Some(self.next_lsn).filter(|_| self.has_lsns())?;
        self.next_lsn += 1;
        self.inflight.insert(lsn);
        Some(lsn)
    }

    fn used_up(&self) -> bool {
        LeaseNumber::new(self.next_lease).is_none()
    }

    /// What an operator should know of the numbers that are left (F8).
    pub(super) fn numbers_warning(&self) -> Option<String> {
        let left = (LeaseNumber::MAX.get() + 1).saturating_sub(self.next_lease);
        (left < FEW_NUMBERS).then(|| match left {
            0 => "all lease numbers are used up, and nothing is granted any more: use another namespace".to_owned(),
            _ => format!("only {left} lease numbers are left: move to another namespace before they are used up"),
        })
    }
}

impl Pool {
    /// Records a range as somebody's, or nobody's, with a new number. F3: only what was released or expired comes here.
    pub(super) fn assign(&mut self, start: KeyHash, to: u32, token: Option<u64>, pin: bool) {
        self.table.update(start, |range| {
            assert_eq!(range.holder, Holder::Nobody, "F3: released or expired first");
            range.holder = Holder::Committing;
        });
        self.commits.queued.insert(start, Gift { to, token, pin });
        *self.commits.going.entry(to).or_default() += 1;
        self.commits.want(Kind::Segment(file::segment_of(start)));
    }

    /// The files that are to be committed now; segments and new addresses wait until there are numbers.
    pub(super) fn commits_due(&mut self) -> Vec<super::File> {
        let numbers = self.commits.queued.is_empty() || self.commits.numbers_left();
        let unnumbered = |kind: &Kind| match kind {
            Kind::Owners(n) => !self.commits.has_lsns() && self.has_new_addresses(*n),
            Kind::Segment(_) => !numbers,
            Kind::Meta => false,
        };
        let held_up: BTreeSet<Kind> = self.commits.wanted.iter().copied().filter(unnumbered).collect();
        let addresses = held_up.iter().any(|kind| matches!(kind, Kind::Owners(_)));
        if addresses || (!numbers && !self.commits.used_up()) {
            self.commits.want(Kind::Meta);
        }
        let due = self.commits.wanted.iter().filter(|kind| {
            let waits = self.commits.files.get(kind).is_some_and(|state| state.inflight.is_some());
            !waits && !held_up.contains(kind)
        });
        due.map(|kind| super::File { namespace: self.name.clone(), kind: *kind }).collect()
    }

    /// What to commit, and under which condition.
    pub(super) fn begin_commit(&mut self, kind: Kind) -> (Option<u64>, Bytes) {
        self.commits.wanted.remove(&kind);
        // Whoever asks later waits for the next one: what it wants is not in this.
        let asked = self.commits.waiting.extract_if(.., |(of, ..)| *of == kind);
        self.commits.answering.extend(asked);
        let inflight = match kind {
            Kind::Meta => self.encode_meta(),
            Kind::Owners(n) => self.encode_owners(n),
            Kind::Segment(n) => self.encode_segment(n),
        };
        let bytes = inflight.bytes.clone();
        let state = self.commits.files.entry(kind).or_default();
        state.inflight = Some(inflight);
        (state.generation, bytes)
    }

    /// The commit that is under way, again.
    pub(super) fn same_commit(&mut self, kind: Kind) -> Option<(Option<u64>, Bytes)> {
        let state = self.commits.files.get_mut(&kind)?;
        let inflight = state.inflight.as_mut()?;
        inflight.again = true;
        Some((state.generation, inflight.bytes.clone()))
    }

    /// What a manager hears that takes an unknown outcome for done: a mutant's doing (F3).
    pub(super) fn as_if_done(&self, kind: Kind) -> Outcome {
        let before = self.commits.files.get(&kind).and_then(|state| state.generation);
        Outcome::Done { generation: before.unwrap_or_default() + 1 }
    }

    /// Whether the commit under way was sent more than once: then a conflict does not say who wrote.
    pub(super) fn sent_again(&self, kind: Kind) -> bool {
        let inflight = self.commits.files.get(&kind).and_then(|state| state.inflight.as_ref());
        inflight.is_some_and(|inflight| inflight.again)
    }

    fn encode_meta(&mut self) -> Inflight {
        let mut meta = self.meta.clone();
        if !self.commits.numbers_left() {
            let lease = self.commits.lease_end.max(meta.next_lease).saturating_add(LEASES_A_BLOCK);
            meta.next_lease = lease.min(LeaseNumber::MAX.get() + 1);
            meta.next_lsn = self.commits.lsn_end.max(meta.next_lsn).saturating_add(LSNS_A_BLOCK);
        }
        let bytes = meta.encode_to_vec().into();
        Inflight { bytes, changes: Vec::new(), meta: Some(meta), owners: Vec::new(), lsn: None, again: false }
    }

    /// Whether an owner of a file is to be found elsewhere than the cell says.
    fn has_new_addresses(&self, n: u8) -> bool {
        self.mutant != Some(Mutant::AddressUntold)
            && self.members.range(indices(n)).any(|(_, member)| member.has_new_address())
    }

    fn encode_owners(&mut self, n: u8) -> Inflight {
        let lsn = if self.has_new_addresses(n) { self.commits.take_lsn() } else { None };
        if let Some(lsn) = lsn {
            let members = self.members.range_mut(indices(n)).map(|(_, member)| member);
            members.filter(|member| member.has_new_address()).for_each(|member| member.record.changed_lsn = lsn);
        }
        let members = self.members.range(indices(n));
        let records: Vec<v1::TableOwner> = members.map(|(_, member)| member.record.clone()).collect();
        let file = v1::PlacementOwners { owners: records };
        let bytes = file.encode_to_vec().into();
        Inflight { bytes, changes: Vec::new(), meta: None, owners: file.owners, lsn, again: false }
    }

    fn encode_segment(&mut self, segment: u8) -> Inflight {
        let (first, last) = file::bounds(segment);
        let queued: Vec<KeyHash> = self.commits.queued.range(first..=last).map(|(start, _)| *start).collect();
        let mut changes: Vec<Change> = Vec::with_capacity(queued.len());
        for start in queued {
            let Some(Gift { to, token, pin }) = self.commits.queued.get(&start).copied() else { continue };
            // Neighbours that go the same way together become one range under one number.
            let joins = changes.last().filter(|before| {
                let touches = self.table.get(before.start).is_some_and(|left| left.last.0.wrapping_add(1) == start.0);
                let plain = before.token.is_none() && token.is_none() && !before.pin && !pin;
                touches && before.to == to && plain
            });
            let (lease, lsn) = match joins {
                Some(before) => (before.lease, before.lsn),
                None => match self.commits.next_numbers() {
                    Some(numbers) => numbers,
                    None => break,
                },
            };
            self.commits.queued.remove(&start);
            changes.push(Change { start, to, lease, lsn, token, pin });
        }
        if self.commits.queued.range(first..=last).next().is_some() {
            self.commits.want(Kind::Segment(segment));
        }
        let mut rows: Vec<(KeyHash, Range)> = self.table.segment(segment).map(|(start, row)| (start, *row)).collect();
        for change in &changes {
            if let Ok(at) = rows.binary_search_by_key(&change.start, |(start, _)| *start) {
                rows[at].1 = changed(&rows[at].1, change, Mono(0), self.mutant);
            }
        }
        rows.dedup_by(|right, left| left.1.absorb(&right.1));
        let bytes = file::encode_segment(&rows);
        Inflight { bytes, changes, meta: None, owners: Vec::new(), lsn: None, again: false }
    }

    /// A commit is in the cell: from now on what it says may be told. What operators waited for is returned.
    pub(super) fn commit_done(&mut self, kind: Kind, generation: u64) -> Vec<(OpId, Message)> {
        let Some(state) = self.commits.files.get_mut(&kind) else { return Vec::new() };
        state.generation = Some(generation);
        let Some(done) = state.inflight.take() else { return Vec::new() };
        match kind {
            Kind::Meta => {
                if let Some(meta) = done.meta {
                    self.record(&meta);
                    if meta.next_lsn > self.commits.lsn_end {
                        self.commits.next_lease = self.commits.next_lease.max(self.meta.next_lease).max(1);
                        self.commits.next_lsn = self.commits.next_lsn.max(self.meta.next_lsn).max(1);
                        (self.commits.lease_end, self.commits.lsn_end) = (meta.next_lease, meta.next_lsn);
                    }
                    (self.meta.next_lease, self.meta.next_lsn) = (meta.next_lease, meta.next_lsn);
                }
            }
            Kind::Owners(_) => {
                // A later process may have registered since: nothing is granted to it before its own record is there, or
                // the next leader would take the earlier one's word for what it holds.
                for record in done.owners {
                    // Indices are used again: the name counts, too.
                    let member = self.members.get_mut(&record.index).filter(|member| member.record.id == record.id);
                    let Some(member) = member else { continue };
                    let begins = !member.committed && process(&member.record) == process(&record);
                    member.told = Some(record.clone());
                    if begins {
                        member.committed = true;
                        self.try_later(record.index);
                        self.idle.extend(self.parked.remove(&record.index).unwrap_or_default());
                        // An answer without grants would only make it pause before it asks for those that follow.
                        let waits = |start: &KeyHash| self.table.get(*start).is_some_and(|r| r.holder == Holder::Fresh);
                        if self.table.of_owner(record.index).iter().any(waits) {
                            self.news(record.index);
                        }
                    }
                    self.knows_address(&record);
                }
                if let Some(lsn) = done.lsn {
                    self.commits.inflight.remove(&lsn);
                    self.push_soon();
                }
            }
            Kind::Segment(_) => {
                for change in &done.changes {
                    self.installed(change);
                }
                // Backwards, so that each finds its neighbour to the left where it began.
                for change in done.changes.iter().rev() {
                    self.table.join(change.start);
                }
                if !done.changes.is_empty() {
                    self.push_soon();
                }
            }
        }
        let heard = self.commits.answering.extract_if(.., |(of, ..)| *of == kind);
        heard.map(|(_, op, message)| (op, message)).collect()
    }

    fn installed(&mut self, change: &Change) {
        let settles = self.now + self.round_time() * DWELL;
        if let Some(range) = self.table.get(change.start) {
            let range = changed(range, change, settles, self.mutant);
            self.table.put(change.start, range);
        }
        self.commits.inflight.remove(&change.lsn);
        self.commits.arrived(change.to);
        match change.token {
            Some(token) => {
                self.counts.moves += 1;
                self.move_committed(token);
            }
            None => self.counts.losses += 1,
        }
        self.news(change.to);
        // Whom it was meant for may be gone meanwhile, and the ring may be cut inside it.
        self.unsettled.insert(change.start);
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

/// The indices of the owners in a file.
fn indices(n: u8) -> std::ops::Range<u32> {
    let first = u32::from(n) * OWNERS_PER_FILE;
    first..first + OWNERS_PER_FILE
}

/// A range as a change leaves it.
fn changed(range: &Range, change: &Change, settles: Mono, mutant: Option<Mutant>) -> Range {
    // F7: a clean move keeps the LSN of an earlier loss, which somebody may not have heard of.
    let lost = match change.token {
        None => change.lsn,
        Some(_) if mutant == Some(Mutant::CleanFlag) => 0,
        Some(_) => range.lost,
    };
    Range {
        last: range.last,
        owner: change.to,
        lease: change.lease,
        changed: change.lsn,
        lost,
        pinned: change.pin,
        holder: if change.to == 0 { Holder::Nobody } else { Holder::Fresh },
        intent: Intent::Stay,
        token: change.token,
        aim: 0,
        settles,
        until: Mono(0),
    }
}
