//! R6: the ids of this process's operations, and up to where their outcomes are known.
//!
//! A client has at most 1,024 numbers between its first open operation and its last. One that takes long would hold up all
//! others: they go on under a further name then, in a lane of their own.
//!
//! Definition 2: what one client begins on one record takes effect in the order in which it was begun. Each operation names the
//! one before it that is still open, under the same name: only that lane's numbers tell which came first.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_predicate::Key;
use tidings_wire::v1;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Numbers of one name from its first open operation on.
const OUTSTANDING: u64 = 1_024;

/// Operations of a client that may be open unless told otherwise; whoever begins more waits.
const ROOM: usize = 1_024;

/// The operations of one client, or of several that share its names.
pub struct Operations {
    whose: Whose,
    /// At least one; as many more as have something open.
    lanes: Mutex<Vec<Lane>>,
    room: Semaphore,
    /// One of them has ended.
    ended: Notify,
}

/// Who begins operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// One client: it sees them take effect in the order in which it begins them.
    OneClient,
    /// Callers who know nothing of each other: none of them waits for what another one has begun.
    Strangers,
}

/// Operations under one name.
struct Lane {
    netid: NetId,
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Of one client: the numbers that are open on each record.
    records: BTreeMap<Object, BTreeSet<u64>>,
}

/// What an operation is on: a table and a key.
type Object = (Arc<str>, Key);

/// An operation that is open.
struct Open {
    object: Object,
    /// What is put, if it is a whole record.
    columns: Option<v1::RecordData>,
}

/// An operation that a read may have to wait for.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    pub seq: u64,
    pub key: Key,
    /// What is put, nothing if it is no whole record; none if somebody else knows.
    pub columns: Option<v1::RecordData>,
}

/// A client as operations are named by.
type NetId = [u8; 16];

/// An operation until its outcome is known.
pub struct Begun<'a> {
    operations: &'a Operations,
    netid: NetId,
    seq: u64,
    /// What was acknowledged when it began.
    acked: u64,
    _room: SemaphorePermit<'a>,
}

impl Lane {
    fn new() -> Result<Lane, Error> {
        Ok(Lane { netid: netid()?, next: 1, open: BTreeMap::new(), records: BTreeMap::new() })
    }

    /// Up to where outcomes are known.
    fn acked(&self) -> u64 {
        self.open.first_key_value().map_or(self.next, |(first, _)| *first) - 1
    }

    fn has_room(&self) -> bool {
        self.next - self.acked() <= OUTSTANDING
    }

    fn begin(&mut self, object: Object, whose: Whose) -> u64 {
        let seq = self.next;
        self.next += 1;
        if whose == Whose::OneClient {
            self.records.entry(object.clone()).or_default().insert(seq);
        }
        self.open.insert(seq, Open { object, columns: None });
        seq
    }

    fn end(&mut self, seq: u64) {
        let Some(Open { object, .. }) = self.open.remove(&seq) else { return };
        if let Some(open) = self.records.get_mut(&object) {
            open.remove(&seq);
            if open.is_empty() {
                self.records.remove(&object);
            }
        }
    }

    /// The last operation before this one that is open on the same record; 0 = none.
    fn before(&self, seq: u64) -> u64 {
        let open = self.open.get(&seq).and_then(|open| self.records.get(&open.object));
        open.and_then(|open| open.range(..seq).next_back()).copied().unwrap_or_default()
    }
}

impl Operations {
    /// A client that has done nothing yet.
    pub fn new() -> Result<Operations, Error> {
        Operations::of(Whose::OneClient, ROOM)
    }

    /// Names for callers who give none and know nothing of each other, so many operations at most: nobody's waits for
    /// another's.
    pub fn of_strangers(room: usize) -> Result<Operations, Error> {
        Operations::of(Whose::Strangers, room)
    }

    fn of(whose: Whose, room: usize) -> Result<Operations, Error> {
        let (lanes, room) = (Mutex::new(vec![Lane::new()?]), Semaphore::new(room));
        Ok(Operations { whose, lanes, room, ended: Notify::new() })
    }

    /// Some number of this client's own.
    pub(super) fn seed(&self) -> u64 {
        let lanes = self.lanes.lock();
        lanes.iter().flat_map(|lane| lane.netid).fold(0, |seed, byte| seed << 8 | u64::from(byte))
    }

    /// Names an operation on a record, as soon as there is room.
    pub async fn begin(&self, table: Arc<str>, key: Key) -> Result<Begun<'_>, Error> {
        // It is never closed.
        let room = match self.room.acquire().await {
            Ok(room) => room,
            Err(_) => std::future::pending().await,
        };
        let object = (table, key);
        loop {
            let mut ended = pin!(self.ended.notified());
            // What ends from here on is noticed.
            ended.as_mut().enable();
            if let Some((netid, seq, acked)) = self.name(&object)? {
                return Ok(Begun { operations: self, netid, seq, acked, _room: room });
            }
            ended.await;
        }
    }

    /// A name for an operation, and up to where outcomes are known under it; none as long as the lane has no room in which the
    /// operations before it are.
    fn name(&self, object: &Object) -> Result<Option<(NetId, u64, u64)>, Error> {
        let mut lanes = self.lanes.lock();
        let at = match lanes.iter().position(|lane| lane.records.contains_key(object)) {
            Some(at) if !lanes[at].has_room() => return Ok(None),
            Some(at) => at,
            None => match lanes.iter().position(Lane::has_room) {
                Some(at) => at,
                None => {
                    lanes.push(Lane::new()?);
                    lanes.len() - 1
                }
            },
        };
        let lane = &mut lanes[at];
        let (netid, acked) = (lane.netid, lane.acked());
        Ok(Some((netid, lane.begin(object.clone(), self.whose), acked)))
    }

    /// The operations on a table that are open, by the names they have.
    pub(super) fn pending(&self, table: &str) -> Vec<(NetId, Vec<Unfinished>)> {
        let lanes = self.lanes.lock();
        let unfinished = |(seq, open): (&u64, &Open)| {
            let (key, columns) = (open.object.1.clone(), Some(open.columns.clone().unwrap_or_default()));
            Unfinished { seq: *seq, key, columns }
        };
        let of = |lane: &Lane| {
            let open = lane.open.iter().filter(|(_, open)| *open.object.0 == *table);
            (lane.netid, open.map(unfinished).collect::<Vec<_>>())
        };
        lanes.iter().map(of).filter(|(_, open)| !open.is_empty()).collect()
    }
}

impl Begun<'_> {
    /// Its name, up to where outcomes have reached this client, and which open operation it comes after.
    pub fn operation(&self) -> v1::RecordOperation {
        let lanes = self.operations.lanes.lock();
        let lane = lanes.iter().find(|lane| lane.netid == self.netid);
        let (acked_through, after) = lane.map_or((self.acked, 0), |lane| (lane.acked(), lane.before(self.seq)));
        v1::RecordOperation { netid: self.netid.to_vec().into(), seq: self.seq, acked_through, after }
    }

    /// It puts a whole record, which has these columns.
    pub(super) fn puts(&self, columns: &v1::RecordData) {
        let mut lanes = self.operations.lanes.lock();
        let lane = lanes.iter_mut().find(|lane| lane.netid == self.netid);
        if let Some(open) = lane.and_then(|lane| lane.open.get_mut(&self.seq)) {
            open.columns = Some(columns.clone());
        }
    }

    /// Waits until an operation under the same name has ended: its outcome is known, or nobody waits for it any more.
    pub(super) async fn has_ended(&self, seq: u64) {
        loop {
            let mut ended = pin!(self.operations.ended.notified());
            ended.as_mut().enable();
            if !self.is_open(seq) {
                return;
            }
            ended.await;
        }
    }

    /// Whether an operation under the same name is open.
    fn is_open(&self, seq: u64) -> bool {
        let lanes = self.operations.lanes.lock();
        lanes.iter().any(|lane| lane.netid == self.netid && lane.open.contains_key(&seq))
    }

    /// Somebody else has used its name (a clone of this process, perhaps): what follows has another netid.
    pub fn forked(&self) -> Result<(), Error> {
        let fresh = Lane::new()?;
        let mut lanes = self.operations.lanes.lock();
        if let Some(lane) = lanes.iter_mut().find(|lane| lane.netid == self.netid) {
            *lane = fresh;
        }
        Ok(())
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut lanes = self.operations.lanes.lock();
        if let Some(lane) = lanes.iter_mut().find(|lane| lane.netid == self.netid) {
            lane.end(self.seq);
        }
        self.operations.ended.notify_waiters();
        // One that is free is enough.
        while lanes.iter().filter(|lane| lane.open.is_empty()).count() > 1 {
            let Some(last) = lanes.iter().rposition(|lane| lane.open.is_empty()) else { return };
            lanes.remove(last);
        }
    }
}

fn netid() -> Result<NetId, Error> {
    let mut netid = NetId::default();
    getrandom::fill(&mut netid)
        .map_err(|e| Error::new("client.no_randomness", Class::Failed, format!("no random bytes: {e}")))?;
    Ok(netid)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn begin(operations: &Operations) -> Begun<'_> {
        operations.begin("t".into(), "k".into()).await.unwrap()
    }

    fn acked(begun: &Begun<'_>) -> (u64, u64) {
        (begun.operation().seq, begun.operation().acked_through)
    }

    #[tokio::test]
    async fn outcomes_are_acknowledged_up_to_the_first_that_is_open() {
        let operations = Operations::new().unwrap();
        let (one, two) = (begin(&operations).await, begin(&operations).await);
        assert_eq!((acked(&one), acked(&two)), ((1, 0), (2, 0)));
        drop(one);
        assert_eq!(acked(&two), (2, 1));
        two.forked().unwrap();
        let three = begin(&operations).await;
        assert_ne!(three.operation().netid, two.operation().netid);
        assert_eq!((acked(&three), acked(&two)), ((1, 0), (2, 0)));
        drop(two);
        assert_eq!(acked(&three), (1, 0));
    }

    #[tokio::test]
    async fn one_that_takes_long_holds_up_no_others() {
        let operations = Operations::new().unwrap();
        let slow = begin(&operations).await;
        let mut names = BTreeSet::new();
        for _ in 0..5_000 {
            let quick = operations.begin("t".into(), "quick".into()).await.unwrap();
            let (seq, acked) = acked(&quick);
            assert!(seq - acked <= OUTSTANDING, "{seq} {acked}");
            names.insert(quick.operation().netid);
        }
        assert_eq!(names.len(), 2);
        assert_eq!(operations.pending("t").len(), 1);
        drop(slow);
        let lanes = operations.lanes.lock().len();
        assert_eq!((lanes, operations.pending("t").len()), (1, 0));
    }

    #[tokio::test]
    async fn each_operation_comes_after_the_open_one_before_it_on_its_record() {
        let operations = Operations::new().unwrap();
        let one = begin(&operations).await;
        let other = operations.begin("t".into(), "other".into()).await.unwrap();
        let elsewhere = operations.begin("u".into(), "k".into()).await.unwrap();
        let (two, three) = (begin(&operations).await, begin(&operations).await);
        let after = |begun: &Begun<'_>| begun.operation().after;
        assert_eq!([&one, &other, &elsewhere, &two, &three].map(after), [0, 0, 0, 1, 4]);
        // What has ended is not waited for.
        drop(two);
        three.has_ended(4).await;
        assert_eq!(after(&three), 1);
        drop(one);
        assert_eq!(after(&three), 0);
    }

    #[tokio::test]
    async fn what_comes_after_an_open_one_waits_for_room_beside_it() {
        let operations = Operations::new().unwrap();
        let slow = begin(&operations).await;
        for _ in 1..OUTSTANDING {
            operations.begin("t".into(), "quick".into()).await.unwrap();
        }
        let mut next = pin!(begin(&operations));
        assert!(futures::poll!(next.as_mut()).is_pending(), "elsewhere it could overtake");
        let elsewhere = operations.begin("t".into(), "quick".into()).await.unwrap();
        assert_ne!(elsewhere.operation().netid, slow.operation().netid);
        drop(slow);
        assert_eq!(next.await.operation().after, 0);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_strangers_operation() {
        let operations = Operations::of_strangers(2).unwrap();
        let (one, two) = (begin(&operations).await, begin(&operations).await);
        assert_eq!((one.operation().after, two.operation().after), (0, 0));
    }
}
