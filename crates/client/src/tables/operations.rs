//! R6: the ids of this process's operations, and up to where their outcomes are known.
//!
//! A client has at most 1,024 numbers between its first open operation and its last. One that takes long would hold up all
//! others: they go on under a further name then, in a lane of their own.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_predicate::Key;
use tidings_wire::v1;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Numbers of one name from its first open operation on.
const OUTSTANDING: u64 = 1_024;

/// Operations of a client that may be open unless told otherwise; whoever begins more waits.
const ROOM: usize = 1_024;

/// The operations of one client.
pub struct Operations {
    /// At least one; as many more as have something open.
    lanes: Mutex<Vec<Lane>>,
    room: Semaphore,
}

/// Operations under one name.
struct Lane {
    netid: NetId,
    next: u64,
    open: BTreeMap<u64, Object>,
}

/// What an operation is on: a table and a key.
type Object = (Arc<str>, Key);

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
        Ok(Lane { netid: netid()?, next: 1, open: BTreeMap::new() })
    }

    /// Up to where outcomes are known.
    fn acked(&self) -> u64 {
        self.open.first_key_value().map_or(self.next, |(first, _)| *first) - 1
    }

    fn has_room(&self) -> bool {
        self.next - self.acked() <= OUTSTANDING
    }
}

impl Operations {
    /// A client that has done nothing yet.
    pub fn new() -> Result<Operations, Error> {
        Operations::with_room(ROOM)
    }

    /// A client with so many operations open at most.
    pub fn with_room(room: usize) -> Result<Operations, Error> {
        Ok(Operations { lanes: Mutex::new(vec![Lane::new()?]), room: Semaphore::new(room) })
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
        let mut lanes = self.lanes.lock();
        let at = match lanes.iter().position(Lane::has_room) {
            Some(at) => at,
            None => {
                lanes.push(Lane::new()?);
                lanes.len() - 1
            }
        };
        let lane = &mut lanes[at];
        let (netid, seq, acked) = (lane.netid, lane.next, lane.acked());
        lane.next += 1;
        lane.open.insert(seq, (table, key));
        Ok(Begun { operations: self, netid, seq, acked, _room: room })
    }

    /// The operations on a table that are open, by the names they have.
    pub(super) fn pending(&self, table: &str) -> Vec<(NetId, Vec<(Key, u64)>)> {
        let lanes = self.lanes.lock();
        let of = |lane: &Lane| {
            let open = lane.open.iter().filter(|(_, (of, _))| **of == *table);
            (lane.netid, open.map(|(seq, (_, key))| (key.clone(), *seq)).collect::<Vec<_>>())
        };
        lanes.iter().map(of).filter(|(_, open)| !open.is_empty()).collect()
    }
}

impl Begun<'_> {
    /// Its name, and up to where outcomes have reached this client.
    pub fn operation(&self) -> v1::RecordOperation {
        let lanes = self.operations.lanes.lock();
        let acked_through = lanes.iter().find(|lane| lane.netid == self.netid).map_or(self.acked, Lane::acked);
        v1::RecordOperation { netid: self.netid.to_vec().into(), seq: self.seq, acked_through, after: 0 }
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
            lane.open.remove(&self.seq);
        }
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
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..5_000 {
            let quick = begin(&operations).await;
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
}
