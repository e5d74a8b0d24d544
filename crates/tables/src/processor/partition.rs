//! One partition as its owner has it.

use super::away::Away;
use super::cache::Rows;
use super::collecting::{Collecting, Looking};
use super::counting::Counting;
use super::load::{self, Load};
use super::log::Log;
use super::opening::Meta;
use super::progress::Told;
use super::reading::Pending;
use super::sending::Feed;
use super::writing::{Client, Commit, Waiting};
use super::{Asked, Guard, Options, StoreRequest};
use crate::calls::{Counts, Stat};
use crate::directory::Acquired;
use crate::names::{GatewayId, NetId, PartitionId, Position, QueryId, RequestId};
use crate::record::Record;
use crate::rows;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidings_base::Mono;
use tidings_predicate::Key;
use tidings_wire::v1;

/// What is known of the parents while a child opens.
pub(super) type Parents = BTreeMap<u32, Meta>;

/// How far a partition is.
#[derive(Debug)]
pub(super) enum State {
    Opening(Parents),
    Open,
}

/// One partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub id: PartitionId,
    pub owned: Acquired,
    pub state: State,
    /// Where its history is: the last commit that the store accepted.
    pub position: Position,
    /// The last positions of its parents, if nothing was committed since.
    pub origin: Vec<(PartitionId, Position)>,
    pub records: u64,
    pub bytes: u64,
    /// Whether the two are only believed: half of what was before a cut.
    pub estimated: bool,
    pub counting: Option<Counting>,
    /// Requests that wait for it to open.
    pub waiting: Vec<Asked>,
    pub rows: Rows,
    pub loading: BTreeSet<Bytes>,
    pub queue: VecDeque<Waiting>,
    /// Operations that wait for those they follow.
    pub parked: Vec<Waiting>,
    pub commit: Option<Commit>,
    /// Clients with outcomes that may be forgotten when they acknowledge them, or are not heard of any more.
    pub clients: BTreeMap<NetId, Client>,
    /// Those of them that were not heard of for long, and when that was looked at last.
    pub gone: Vec<NetId>,
    pub looked: Mono,
    pub log: Log,
    pub feeds: BTreeMap<QueryId, Feed>,
    /// Queries that have something to be sent.
    pub busy: BTreeSet<QueryId>,
    /// Those of them that there was no time for, in turn.
    pub late: VecDeque<QueryId>,
    pub gateways: BTreeMap<GatewayId, Told>,
    /// R3: clients that are away, and what Notify is still to tell.
    pub away: Away,
    /// Marks of deletions that are old enough to go: rows and versions.
    pub expired: Vec<(Bytes, u64)>,
    /// R6: what clients had acknowledged in whiles that are long past: rows, columns and numbers.
    pub unheard: Vec<(Bytes, Bytes, u64)>,
    pub collecting: Collecting,
    pub looking: Looking,
    /// From when on the driver is told that it is large.
    pub grown: Mono,
    pub load: Load,
    pub counts: Counts,
}

impl Partition {
    pub fn new(owned: Acquired, options: &Options) -> Partition {
        Partition {
            id: owned.partition,
            owned,
            state: State::Opening(Parents::new()),
            position: Position::ZERO,
            origin: Vec::new(),
            records: 0,
            bytes: 0,
            estimated: false,
            counting: None,
            waiting: Vec::new(),
            rows: Rows::new(options.rows, options.row_bytes),
            loading: BTreeSet::new(),
            queue: VecDeque::new(),
            parked: Vec::new(),
            commit: None,
            clients: BTreeMap::new(),
            gone: Vec::new(),
            looked: Mono(0),
            log: Log::default(),
            feeds: BTreeMap::new(),
            busy: BTreeSet::new(),
            late: VecDeque::new(),
            gateways: BTreeMap::new(),
            away: Away::default(),
            expired: Vec::new(),
            unheard: Vec::new(),
            collecting: Collecting::default(),
            looking: Looking::default(),
            grown: Mono(0),
            load: Load::default(),
            counts: Counts::default(),
        }
    }

    pub fn guard(&self) -> Guard {
        Guard { partition: self.id, lease: self.owned.lease }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.owned.entry.contains(key)
    }

    /// How many copies are fed from here.
    pub fn copies(&self) -> usize {
        self.feeds.keys().filter(|query| query.is_copy()).count()
    }

    pub fn stat(&mut self, now: Mono, options: &Options) -> Stat {
        let quiet = load::is_small(self.bytes, options.grown) && self.load.is_quiet(now, options.busy, options.quiet);
        // Whoever has something to be sent is busy.
        let undelivered = self.busy.iter().filter_map(|query| self.feeds.get(query)).map(|feed| feed.queue.len());
        Stat {
            records: self.records,
            bytes: self.bytes,
            position: self.position,
            queries: self.feeds.len() as u64,
            quiet,
            counts: self.counts,
            waiting: (self.queue.len() + self.parked.len()) as u64,
            undelivered: undelivered.sum::<usize>() as u64,
            log_changes: self.log.len() as u64,
            log_bytes: self.log.bytes() as u64,
            away: self.away.queries().count() as u64,
            copies: self.copies() as u64,
        }
    }

    /// R1: whether it is time to say that it could be joined with the one behind it.
    pub fn says_quiet(&mut self, now: Mono, options: &Options) -> bool {
        let joins = self.is_open() && self.owned.entry.end.is_some() && load::is_small(self.bytes, options.grown);
        joins && self.load.says_quiet(now, options.busy, options.quiet)
    }

    /// Whether an outcome is known, and of what is read here: a deposed owner finds a later one's outcomes in the store, and
    /// remembers records as they were before.
    pub fn decided(&mut self, pending: &Pending) -> bool {
        let mut at = |row| self.rows.get(row).and_then(|cell| cell.as_ref().map(|(at, _)| *at));
        // What its client has acknowledged since is kept no more, and nobody would wait for its outcome in vain.
        if at(&pending.acked).is_some_and(|beyond| pending.seq < beyond) {
            return true;
        }
        let outcome = at(&pending.outcome);
        outcome.is_some_and(|at| at <= self.position.get())
    }

    /// Every request that waits for something here, taken out.
    pub fn requests(&mut self) -> Vec<RequestId> {
        let commit = self.commit.take().into_iter().flat_map(|commit| commit.answers).map(|(request, _)| request);
        let queued = self.queue.drain(..).chain(self.parked.drain(..)).map(|waiting| waiting.request);
        self.waiting.drain(..).map(|asked| asked.request).chain(commit).chain(queued).collect()
    }

    /// R2: writes rows under this owner's fence.
    pub fn apply(&self, writes: Vec<v1::RowWrite>, fenced: bool) -> StoreRequest {
        let fence = fenced.then(|| rows::fence(self.id, self.owned.lease, self.owned.entry.term));
        let group = rows::group(self.id.table);
        StoreRequest::Apply(v1::Apply { groups: vec![v1::GroupWrite { group, rows: writes, fence }] })
    }

    pub fn get(&self, row: Bytes) -> StoreRequest {
        let columns = rows::columns(&row);
        let key = Some(v1::RowKey { group: rows::group(self.id.table), row });
        StoreRequest::Get(v1::Get { key, columns })
    }

    pub fn scan(&self, start: Bytes, end: Bytes, limit: u32) -> StoreRequest {
        let (group, columns) = (rows::group(self.id.table), rows::columns(&start));
        StoreRequest::Scan(v1::Scan { group, start, end, limit, columns })
    }

    /// The record of a key as it was at a position, given the row as it is in the store now. `Err`: it is not known any
    /// more, or a later owner has written it.
    pub fn image_at(&self, key: &Key, now: Option<Arc<Record>>, at: Position) -> Result<Option<Arc<Record>>, ()> {
        if now.as_ref().is_none_or(|record| record.version <= at) {
            return Ok(now);
        }
        let under_way = self.commit.iter().flat_map(|commit| &commit.changes);
        let mut changes = self.log.since(at).chain(under_way);
        match changes.find(|change| change.key == *key) {
            Some(change) if self.log.reaches(at) => Ok(change.before.clone()),
            _ => Err(()),
        }
    }
}
