//! One namespace: its owners, its table, and everything that is under way with them.
//!
//! What a message costs depends on what it touches: deadlines lie in one ordered set, ranges are found by owner, and
//! only owners and arcs whose standing changed are looked at again.

use super::commits::Commits;
use super::counts::Counts;
use super::file::{Kind, decode_segment};
use super::heat::Heat;
use super::lookups::Lookups;
use super::moves::Moves;
use super::plan::Ring;
use super::table::{Holder, Table};
use crate::config::Times;
use crate::mutant::Mutant;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Error, KeyHash, LeaseNumber, Mono, OpId, Timers};
use tidings_wire::v1;

/// Files of owners: 32 of 256 are 8,192 owners, far more than a cluster has (§2.4: a thousand machines or fewer).
pub(super) const MAX_OWNER_FILES: usize = 32;

/// While more of an owner's grants are on their way to the cell, its answer waits so long for them.
const GATHER: Duration = Duration::from_millis(5);

/// An owner that has been silent for so many leases, and has nothing, is forgotten.
const FORGET_AFTER: u32 = 10;

/// F8: so many lease numbers are passed over when a cell was restored: more than were used since its backup. There is room
/// for a hundred restores.
const PASSED_OVER: u32 = 1 << 24;

/// What is wrong with most files that cannot be used.
const NOT_UNDERSTOOD: &str = "cannot be understood";

/// 2020-01-01 in milliseconds of Unix time.
const YEAR_2020: u64 = 1_577_836_800_000;

/// F8: where numbers begin in a namespace that is new. After a restore there may have been one of that name in an earlier
/// era, of which nothing tells. A restored cell's era is the time of the restore, and a number a second since 2020 is more
/// than any namespace has used until then.
pub(super) fn first_lease(era: u64) -> u32 {
    let seconds = era.saturating_sub(YEAR_2020) / 1_000;
    u32::try_from(seconds).unwrap_or(u32::MAX).min(LeaseNumber::MAX.get() - 1) + 1
}

/// An owner, as recorded and as its conversation goes.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// As recorded, or as it is about to be.
    pub record: v1::TableOwner,
    /// The record is in the cell: it may be given ranges.
    pub committed: bool,
    /// The record as the cell has it, if it has one: nobody is told of another.
    pub told: Option<v1::TableOwner>,
    pub talk: Option<Talk>,
    /// It counts as alive until then; zero = it does not.
    pub live_until: Mono,
    /// When this leader last heard of it.
    pub heard: Option<Mono>,
    /// Its application's own judgement.
    pub healthy: bool,
    pub measured: Option<Measured>,
    pub hands_over: bool,
    /// Grants it refused in a row, and until when it gets none for that.
    pub strikes: u32,
    pub barred_until: Mono,
    /// No clean move to or from it begins before then: one has failed.
    pub cool_until: Mono,
    /// How many failed in a row.
    pub failed_moves: u32,
    /// Its process ends: it drains by its own wish.
    pub leaving: bool,
    /// When what is left of a draining owner is recalled, state or not.
    pub drain_until: Option<Mono>,
}

impl Member {
    pub(super) fn new(record: v1::TableOwner) -> Member {
        Member {
            record,
            committed: false,
            told: None,
            talk: None,
            live_until: Mono(0),
            heard: None,
            healthy: true,
            measured: None,
            hands_over: false,
            strikes: 0,
            barred_until: Mono(0),
            cool_until: Mono(0),
            failed_moves: 0,
            leaving: false,
            drain_until: None,
        }
    }

    /// One whose record the cell has.
    pub(super) fn recorded(record: v1::TableOwner) -> Member {
        Member { committed: true, told: Some(record.clone()), ..Member::new(record) }
    }

    /// Whether it is to be found elsewhere than the cell says. Also if another process of its name is: lookups may have heard
    /// of a range that was on its way to the earlier one, together with that one's address.
    pub(super) fn has_new_address(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.address != self.record.address)
    }

    /// What its present process has measured, while that lives.
    pub(super) fn load(&self) -> Option<Measured> {
        self.measured.filter(|measured| self.live_until > Mono(0) && measured.by == process(&self.record))
    }

    /// Whether it has a part in the ring. A record that is not in the cell yet does not keep it out: what is to be its
    /// own waits for it.
    pub(super) fn takes(&self, now: Mono) -> bool {
        !self.record.draining && self.healthy && now < self.live_until
    }
}

/// What an owner said of its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// Requests a second.
    pub rate: f64,
    /// How many requests that was measured from.
    pub samples: u64,
    /// The process that said so.
    pub by: (u64, u64),
}

/// Which process of an owner a record is of.
pub(super) fn process(record: &v1::TableOwner) -> (u64, u64) {
    (record.incarnation, record.nonce)
}

/// A conversation (F5).
#[derive(Clone, Debug)]
pub(super) struct Talk {
    pub nonce: u64,
    pub seq: u64,
    pub heard: u64,
    /// It has spoken under our epoch (F2).
    pub spoke: bool,
    pub poll: Option<Poll>,
    /// There is something to tell it, since then.
    pub news: Option<Mono>,
    /// Releases that are committed, to be confirmed once.
    pub confirm: Vec<u64>,
    /// Moves whose state it has (F9).
    pub arrived: Vec<u64>,
}

/// A poll that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    pub op: OpId,
    /// It is answered by then, news or not.
    pub until: Mono,
    /// It is not answered before then: a race is let calm down.
    pub not_before: Mono,
    pub hello: bool,
}

/// What comes due in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// An owner's poll is answered.
    Answer(u32),
    /// An owner may have been silent for too long.
    Live(u32),
    /// A silent owner may be forgotten.
    Forget(u32),
    /// An owner may be given ranges again.
    Bar(u32),
    /// An owner may move ranges again.
    Cool(u32),
    /// A drain is looked at: its time may be over.
    Drain(u32),
    /// A move's holder has not said how it ended.
    Move(u64),
    /// Lookups hear of changes.
    Push,
    /// The policy looks at the load.
    Round,
}

/// A namespace.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub name: String,
    pub meta: v1::PlacementMeta,
    pub times: Times,
    /// The instant of the present call.
    pub now: Mono,
    pub members: BTreeMap<u32, Member>,
    pub by_id: BTreeMap<String, u32>,
    /// Owners that have changed their address, and the LSN of that.
    pub readdressed: BTreeMap<u32, u64>,
    pub table: Table,
    pub due: Timers<Due>,
    /// When each range may expire: never later than its lease ends, and looked at again if that moved.
    pub expiry: BTreeSet<(Mono, KeyHash)>,
    /// Owners whose part in the ring may have changed.
    pub dirty: BTreeSet<u32>,
    /// Ranges that may be in the wrong place.
    pub unsettled: BTreeSet<KeyHash>,
    /// Ranges that nobody holds and that wait to be given.
    pub idle: BTreeSet<KeyHash>,
    /// Those that wait for their owner's record to be in the cell.
    pub parked: BTreeMap<u32, BTreeSet<KeyHash>>,
    /// Ranges that wait until a clean move out of their owner may begin.
    pub later: BTreeMap<u32, BTreeSet<KeyHash>>,
    /// Owners whose polls are to be answered now, and polls that are held.
    pub ready: BTreeSet<u32>,
    pub polls: BTreeMap<OpId, u32>,
    pub ring: Ring,
    pub commits: Commits,
    pub moves: Moves,
    /// Until then leases of an earlier leader may run, and its moves be under way.
    pub inherits_until: Mono,
    pub lookups: Lookups,
    pub heat: Heat,
    /// The policy is to look at the load now.
    pub round_due: bool,
    pub counts: Counts,
    /// What the cell says of it, as far as is known: its instance, unless it is deleted or not there yet.
    recorded: Option<u64>,
    readable: bool,
    /// A file of it cannot be understood: it is refused by name, and left alone.
    damaged: bool,
    /// The cell was restored: until then owners may hold what no record tells of, so nobody is answered. The era and the
    /// instance that begin then.
    rests_until: Mono,
    restored: Option<(u64, u64)>,
    /// What an operator should know: why leases may not outlast a manager's death (F10), or what is wrong with a file.
    pub warning: Option<String>,
    pub mutant: Option<Mutant>,
}

impl Pool {
    /// A namespace whose files are not read yet.
    pub(super) fn unread(name: String) -> Pool {
        Pool {
            name,
            meta: v1::PlacementMeta::default(),
            times: Times::PAPER,
            now: Mono(0),
            members: BTreeMap::new(),
            by_id: BTreeMap::new(),
            readdressed: BTreeMap::new(),
            table: Table::new(),
            due: Timers::new(),
            expiry: BTreeSet::new(),
            dirty: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            idle: BTreeSet::new(),
            parked: BTreeMap::new(),
            later: BTreeMap::new(),
            ready: BTreeSet::new(),
            polls: BTreeMap::new(),
            ring: Ring::default(),
            commits: Commits::new(),
            moves: Moves::default(),
            inherits_until: Mono(0),
            lookups: Lookups::default(),
            heat: Heat::default(),
            round_due: false,
            counts: Counts::default(),
            recorded: None,
            readable: false,
            damaged: false,
            rests_until: Mono(0),
            restored: None,
            warning: None,
            mutant: None,
        }
    }

    /// A namespace that is about to be created.
    pub(super) fn create(now: Mono, name: String, meta: v1::PlacementMeta) -> Pool {
        let mut pool = Pool::unread(name);
        pool.set_meta(meta);
        pool.begin(now);
        pool
    }

    pub(super) fn set_meta(&mut self, meta: v1::PlacementMeta) {
        let config = meta.config.clone().unwrap_or_default();
        self.times = Times::new(config.lease_ms, config.renew_ms);
        self.meta = meta;
        self.readable = true;
    }

    /// Whether its record was found.
    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether a file of it cannot be understood.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// A file of it cannot be used: nothing is done with it, and other namespaces go on.
    fn damage(&mut self, kind: Kind, why: &str) {
        let path = super::File { namespace: self.name.clone(), kind }.path();
        self.damaged = true;
        self.warning = Some(format!("`{path}` in the cell {why}"));
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.meta.deleted
    }

    /// The cell has its record as it is told here.
    pub(super) fn record(&mut self, meta: &v1::PlacementMeta) {
        self.recorded = Some(meta.instance).filter(|_| !meta.deleted);
    }

    /// Whether it is there, as the cell has it; an error while that is about to change, for nobody knows whether it will, and
    /// if it cannot be read.
    pub(super) fn exists(&self) -> Result<bool, Error> {
        if self.damaged {
            return Err(super::damaged(&self.name));
        }
        let wished = Some(self.meta.instance).filter(|_| !self.meta.deleted);
        if self.recorded == wished { Ok(wished.is_some()) } else { Err(super::unsettled(&self.name)) }
    }

    /// When the last lease of all ends.
    pub(super) fn last_end(&self) -> Mono {
        self.table.iter().map(|(_, range)| range.until).max().unwrap_or_default()
    }

    /// Takes a file as it was read.
    pub(super) fn load(&mut self, kind: Kind, contents: Option<(u64, Bytes)>) {
        let Some((generation, bytes)) = contents else { return };
        self.commits.found(kind, generation);
        match kind {
            Kind::Meta => match v1::PlacementMeta::decode(bytes) {
                // Its owners and lookups would look for keys elsewhere than those who wrote it.
                Ok(meta) if meta.hash != KeyHash::FUNCTION => {
                    let hash: String = meta.hash.chars().take(40).collect();
                    self.damage(kind, &format!("names the hash `{hash}`, and this is `{}`", KeyHash::FUNCTION));
                }
                Ok(meta) => {
                    self.record(&meta);
                    self.set_meta(meta);
                }
                Err(_) => self.damage(kind, NOT_UNDERSTOOD),
            },
            Kind::Owners(_) => match v1::PlacementOwners::decode(bytes) {
                Ok(owners) => owners.owners.into_iter().for_each(|record| {
                    self.by_id.insert(record.id.clone(), record.index);
                    self.knows_address(&record);
                    self.members.insert(record.index, Member::recorded(record));
                }),
                Err(_) => self.damage(kind, NOT_UNDERSTOOD),
            },
            Kind::Segment(segment) => match decode_segment(segment, bytes) {
                Some(rows) => self.table.load(segment, rows),
                None => self.damage(kind, NOT_UNDERSTOOD),
            },
        }
    }

    /// The cell has an owner's address.
    pub(super) fn knows_address(&mut self, record: &v1::TableOwner) {
        if record.changed_lsn > 0 {
            self.readdressed.insert(record.index, record.changed_lsn);
        }
    }

    /// Everything that is recorded counts as leased for one full manager lease from the moment the lock was held, and
    /// so does the life of whoever has something.
    pub(super) fn take_over(&mut self, now: Mono, since: Mono) {
        let until = since + self.times.honoured();
        self.inherits_until = until;
        for start in self.table.starts() {
            if self.table.get(start).is_some_and(|range| range.owner != 0) {
                let first = self.meta.first_lease;
                self.table.update(start, |range| {
                    (range.holder, range.until) = (Holder::Loaded, until);
                    // What was brought back from a backup was done since, and undone.
                    range.token = range.token.filter(|_| range.lease.get() >= first);
                });
                self.expiry.insert((until, start));
            }
        }
        let drain_until = now + self.drain_time();
        for (index, member) in &mut self.members {
            if self.table.count_of(*index) > 0 {
                member.live_until = until;
                self.due.set(Due::Live(*index), until);
            } else {
                self.due.set(Due::Forget(*index), now + self.times.honoured() * FORGET_AFTER);
            }
            if member.record.draining {
                member.drain_until = Some(drain_until);
                self.due.set(Due::Drain(*index), drain_until.min(now + self.times.renew));
            }
        }
        self.commits.numbers_from(self.meta.next_lease, self.meta.next_lsn);
        if self.mutant == Some(Mutant::NumbersReused) {
            self.commits.reuse_numbers();
        }
        self.lookups.taken_over(now, self.times.honoured());
        self.begin(now);
    }

    /// The cell was brought back from a backup, and what was granted since, before `end`, is not recorded. F3: those leases
    /// run out before anybody is answered, and before anything is recorded, so that the next leader rests, too.
    pub(super) fn restored(&mut self, end: Mono, era: u64, instance: u64) {
        self.rests_until = end + self.times.honoured();
        self.restored = Some((era, instance));
    }

    /// Until when leases that are not recorded may run, if they may.
    pub(super) fn rests(&self, now: Mono) -> Option<Mono> {
        Some(self.rests_until).filter(|until| now < *until)
    }

    /// They have run out: their numbers are passed over (F8), and lookups take the table for another's (F7).
    pub(super) fn rested(&mut self) {
        let Some((era, instance)) = self.restored.take() else { return };
        let next = self.meta.next_lease.saturating_add(PASSED_OVER).min(LeaseNumber::MAX.get() + 1);
        (self.meta.era, self.meta.instance, self.meta.next_lease) = (era, instance, next);
        self.meta.first_lease = next;
        self.commits.numbers_from(self.meta.next_lease, self.meta.next_lsn);
        self.commits.want(Kind::Meta);
    }

    /// Looks at everything anew.
    pub(super) fn begin(&mut self, now: Mono) {
        self.dirty.extend(self.members.keys().copied());
        self.unsettled.extend(self.table.starts());
        self.due.set(Due::Round, now + self.round_time());
    }

    /// All requests that wait, taken out.
    pub(super) fn waiting_ops(&mut self) -> Vec<OpId> {
        for talk in self.members.values_mut().filter_map(|member| member.talk.as_mut()) {
            talk.poll = None;
        }
        let mut ops: Vec<OpId> = std::mem::take(&mut self.polls).into_keys().collect();
        ops.extend(self.lookups.take_all());
        ops.extend(self.commits.waiting_ops());
        ops
    }

    /// Nobody waits for this request any more.
    pub(super) fn cancel(&mut self, op: OpId) {
        if let Some(index) = self.polls.remove(&op)
            && let Some(talk) = self.members.get_mut(&index).and_then(|member| member.talk.as_mut())
        {
            talk.poll = None;
        }
        self.lookups.cancel(op);
    }

    /// When something is due next.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let expiry = self.expiry.first().map(|(at, _)| *at);
        [self.due.deadline(), expiry, self.lookups.deadline()].into_iter().flatten().min()
    }

    /// Sets until when a range is leased; what was promised is never shortened.
    pub(super) fn lease_until(&mut self, start: KeyHash, until: Mono) {
        let fresh = self.table.get(start).is_some_and(|range| range.until == Mono(0));
        self.table.update(start, |range| range.until = range.until.max(until));
        if fresh {
            self.expiry.insert((until, start));
        }
    }

    /// Tells an owner soon.
    pub(super) fn news(&mut self, owner: u32) {
        let now = self.now;
        if let Some(talk) = self.members.get_mut(&owner).and_then(|member| member.talk.as_mut()) {
            talk.news.get_or_insert(now);
            self.arm(owner);
        }
    }

    /// Sets when an owner's poll is answered.
    pub(super) fn arm(&mut self, owner: u32) {
        let Some(talk) = self.members.get(&owner).and_then(|member| member.talk.as_ref()) else { return };
        let Some(poll) = talk.poll else { return };
        let gather = if self.commits.under_way_for(owner) { GATHER } else { Duration::ZERO };
        let at = match talk.news {
            _ if poll.hello => poll.not_before,
            Some(since) => (since + gather).min(poll.until).max(poll.not_before),
            None => poll.until.max(poll.not_before),
        };
        if at <= self.now {
            self.ready.insert(owner);
        } else {
            self.due.set(Due::Answer(owner), at);
        }
    }

    /// An owner speaks: it is alive for one lease more.
    pub(super) fn lives(&mut self, owner: u32) {
        let until = self.now + self.times.honoured();
        let Some(member) = self.members.get_mut(&owner) else { return };
        if member.live_until <= self.now {
            self.dirty.insert(owner);
        }
        (member.live_until, member.heard) = (until, Some(self.now));
        if self.due.at(&Due::Live(owner)).is_none() {
            self.due.set(Due::Live(owner), until);
        }
    }

    /// An owner may have been silent for a whole lease.
    pub(super) fn may_be_dead(&mut self, owner: u32) {
        match self.members.get(&owner) {
            Some(member) if self.now < member.live_until => self.due.set(Due::Live(owner), member.live_until),
            _ => self.left(owner),
        }
    }

    /// An owner counts as alive no more.
    pub(super) fn left(&mut self, owner: u32) {
        let Some(member) = self.members.get_mut(&owner) else { return };
        self.due.cancel(&Due::Live(owner));
        member.live_until = Mono(0);
        self.dirty.insert(owner);
        self.due.set(Due::Forget(owner), self.now + self.times.honoured() * FORGET_AFTER);
    }

    /// An owner that is silent for long and has nothing makes room: its index may be another's from now on. No record
    /// names it, so nobody can mistake the one for the other.
    pub(super) fn forget(&mut self, owner: u32) {
        let Some(member) = self.members.get(&owner) else { return };
        if member.live_until > Mono(0) {
            return;
        }
        let used = self.table.count_of(owner) > 0 || self.commits.names(owner) || self.moves.names(owner);
        if used {
            return self.due.set(Due::Forget(owner), self.now + self.times.honoured());
        }
        if let Some(member) = self.members.remove(&owner) {
            self.by_id.remove(&member.record.id);
            self.readdressed.remove(&owner);
            self.dirty.insert(owner);
            self.later.remove(&owner);
            self.commits.want(super::claims::owners_file(owner));
            for due in [Due::Answer(owner), Due::Live(owner), Due::Bar(owner), Due::Cool(owner), Due::Drain(owner)] {
                self.due.cancel(&due);
            }
        }
    }

    /// How long a drain may take.
    pub(super) fn drain_time(&self) -> Duration {
        match self.meta.config.as_ref().map_or(0, |config| config.drain_ms) {
            0 => crate::config::DRAIN,
            ms => Duration::from_millis(ms.into()),
        }
    }

    /// The pause between two rounds of the policy.
    pub(super) fn round_time(&self) -> Duration {
        match self.meta.config.as_ref().map_or(0, |config| config.rebalance_ms) {
            0 => crate::config::ROUND,
            ms => Duration::from_millis(ms.into()),
        }
    }
}
