//! One namespace: its owners, its table, and everything that is under way with them.

use super::commits::Commits;
use super::counts::Counts;
use super::file::{Kind, decode_segment};
use super::moves::Moves;
use super::plan::Ring;
use super::table::{Holder, Table};
use crate::config::Times;
use crate::mutant::Mutant;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyHash, Mono, OpId};
use tidings_wire::v1;

/// Files of owners: 16 of 512 are 8,192 owners, far more than a cluster has (§2.4: a thousand machines or fewer).
pub(super) const MAX_OWNER_FILES: usize = 16;

/// Lookups that may wait at a time.
pub(super) const MAX_LOOKUPS: usize = 100_000;

/// An owner, as recorded and as its conversation goes.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// As recorded, or as it is about to be.
    pub record: v1::TableOwner,
    /// The record is in the cell: it may be given ranges.
    pub committed: bool,
    pub talk: Option<Talk>,
    /// It counts as alive until then.
    pub live_until: Mono,
    pub load: v1::OwnerLoad,
    pub hands_over: bool,
    /// Grants it refused in a row, and until when it gets none for that.
    pub strikes: u32,
    pub barred_until: Mono,
    /// When what is left of a draining owner is recalled, state or not.
    pub drain_until: Option<Mono>,
}

impl Member {
    pub(super) fn new(record: v1::TableOwner) -> Member {
        Member {
            record,
            committed: false,
            talk: None,
            live_until: Mono(0),
            load: v1::OwnerLoad::default(),
            hands_over: false,
            strikes: 0,
            barred_until: Mono(0),
            drain_until: None,
        }
    }

    /// Whether it may be given ranges.
    pub(super) fn takes(&self, now: Mono) -> bool {
        self.committed && !self.record.draining && now < self.live_until && now >= self.barred_until
    }
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
    /// There is something to tell it.
    pub news: bool,
    /// Releases that are committed, to be confirmed once.
    pub confirm: Vec<u64>,
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

/// A lookup that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub op: OpId,
    pub lsn: u64,
    pub until: Mono,
}

/// A namespace.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub name: String,
    pub meta: v1::PlacementMeta,
    pub times: Times,
    pub members: BTreeMap<u32, Member>,
    pub by_id: BTreeMap<String, u32>,
    pub table: Table,
    /// When each range expires.
    pub expiry: BTreeSet<(Mono, KeyHash)>,
    /// Ranges that nobody holds and that wait to be given.
    pub idle: BTreeSet<KeyHash>,
    pub ring: Ring,
    pub commits: Commits,
    pub moves: Moves,
    pub lookups: Vec<Waiting>,
    /// Changes are pushed then.
    pub push_at: Option<Mono>,
    /// Membership or wishes changed: the plan is made anew.
    pub stale_plan: bool,
    pub counts: Counts,
    readable: bool,
    pub mutant: Option<Mutant>,
}

impl Pool {
    /// A namespace whose files are not read yet.
    pub(super) fn unread(name: String) -> Pool {
        Pool {
            name,
            meta: v1::PlacementMeta::default(),
            times: Times::PAPER,
            members: BTreeMap::new(),
            by_id: BTreeMap::new(),
            table: Table::new(),
            expiry: BTreeSet::new(),
            idle: BTreeSet::new(),
            ring: Ring::default(),
            commits: Commits::new(),
            moves: Moves::default(),
            lookups: Vec::new(),
            push_at: None,
            stale_plan: true,
            counts: Counts::default(),
            readable: false,
            mutant: None,
        }
    }

    /// A namespace that is about to be created.
    pub(super) fn create(name: String, meta: v1::PlacementMeta) -> Pool {
        let mut pool = Pool::unread(name);
        pool.set_meta(meta);
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

    pub(super) fn is_deleted(&self) -> bool {
        self.meta.deleted
    }

    /// Takes a file as it was read; whether it can be understood.
    pub(super) fn load(&mut self, kind: Kind, contents: Option<(u64, Bytes)>) -> bool {
        let Some((generation, bytes)) = contents else { return true };
        self.commits.found(kind, generation);
        match kind {
            Kind::Meta => match v1::PlacementMeta::decode(bytes) {
                Ok(meta) => self.set_meta(meta),
                Err(_) => return false,
            },
            Kind::Owners(_) => match v1::PlacementOwners::decode(bytes) {
                Ok(owners) => owners.owners.into_iter().for_each(|record| {
                    self.by_id.insert(record.id.clone(), record.index);
                    self.members.insert(record.index, Member { committed: true, ..Member::new(record) });
                }),
                Err(_) => return false,
            },
            Kind::Segment(segment) => match decode_segment(segment, bytes) {
                Some(rows) => self.table.load(segment, rows),
                None => return false,
            },
        }
        true
    }

    /// Everything that is recorded counts as leased for one full manager lease from the moment the lock was held.
    pub(super) fn take_over(&mut self, since: Mono) {
        let until = since + self.times.honoured();
        for start in self.table.starts() {
            if let Some(range) = self.table.get_mut(start).filter(|range| range.owner != 0) {
                range.holder = Holder::Loaded;
                range.until = until;
                self.expiry.insert((until, start));
            }
        }
        for member in self.members.values_mut() {
            member.live_until = until;
        }
        self.commits.numbers_from(self.meta.next_lease, self.meta.next_lsn);
    }

    /// All requests that wait, taken out.
    pub(super) fn waiting_ops(&mut self) -> Vec<OpId> {
        let polls = self.members.values_mut().filter_map(|member| member.talk.as_mut()?.poll.take());
        let mut ops: Vec<OpId> = polls.map(|poll| poll.op).collect();
        ops.extend(self.lookups.drain(..).map(|waiting| waiting.op));
        ops.extend(self.commits.waiting_ops());
        ops
    }

    /// Nobody waits for this request any more.
    pub(super) fn cancel(&mut self, op: OpId) {
        for talk in self.members.values_mut().filter_map(|member| member.talk.as_mut()) {
            if talk.poll.is_some_and(|poll| poll.op == op) {
                talk.poll = None;
            }
        }
        self.lookups.retain(|waiting| waiting.op != op);
    }

    /// When something is due next.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let polls = self.members.values().filter_map(|member| {
            let talk = member.talk.as_ref()?;
            let poll = talk.poll?;
            Some(if talk.news || poll.hello { poll.not_before } else { poll.until.max(poll.not_before) })
        });
        let drains = self.members.values().filter_map(|member| member.drain_until);
        let lookups = self.lookups.iter().map(|waiting| waiting.until);
        let lives = self.members.values().map(|member| member.live_until).filter(|at| *at > Mono(0));
        let bars = self.members.values().map(|member| member.barred_until).filter(|at| *at > Mono(0));
        let expiry = self.expiry.first().map(|(at, _)| *at);
        let once = [expiry, self.push_at, self.moves.deadline()].into_iter().flatten();
        polls.chain(drains).chain(lookups).chain(lives).chain(bars).chain(once).min()
    }

    /// Sets when a range expires.
    pub(super) fn lease_until(&mut self, start: KeyHash, until: Mono) {
        if let Some(range) = self.table.get_mut(start) {
            self.expiry.remove(&(range.until, start));
            range.until = until;
            self.expiry.insert((until, start));
        }
    }

    /// Tells an owner soon.
    pub(super) fn news(&mut self, owner: u32) {
        if let Some(talk) = self.members.get_mut(&owner).and_then(|member| member.talk.as_mut()) {
            talk.news = true;
        }
    }

    /// How long a drain may take.
    pub(super) fn drain_time(&self) -> Duration {
        match self.meta.config.as_ref().map_or(0, |config| config.drain_ms) {
            0 => Duration::from_secs(60),
            ms => Duration::from_millis(ms.into()),
        }
    }
}
