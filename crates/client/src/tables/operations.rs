//! R6: the ids of this process's operations, and up to where their outcomes are known.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use tidings_base::{Class, Error};
use tidings_wire::v1;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Operations of one client whose outcomes are not known; whoever begins more waits.
const OUTSTANDING: usize = 1_024;

/// The operations of one client.
pub struct Operations {
    state: Mutex<State>,
    room: Semaphore,
}

struct State {
    netid: NetId,
    next: u64,
    open: BTreeSet<u64>,
}

/// A client as operations are named by.
type NetId = [u8; 16];

/// An operation until its outcome is known.
pub struct Begun<'a> {
    operations: &'a Operations,
    netid: NetId,
    seq: u64,
    _room: SemaphorePermit<'a>,
}

impl Operations {
    /// A client that has done nothing yet.
    pub fn new() -> Result<Operations, Error> {
        let state = State { netid: netid()?, next: 1, open: BTreeSet::new() };
        Ok(Operations { state: Mutex::new(state), room: Semaphore::new(OUTSTANDING) })
    }

    /// Some number of this client's own.
    pub(super) fn seed(&self) -> u64 {
        self.state.lock().netid.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    }

    /// Names an operation, as soon as fewer than 1,024 are open.
    pub async fn begin(&self) -> Begun<'_> {
        // It is never closed.
        let room = match self.room.acquire().await {
            Ok(room) => room,
            Err(_) => std::future::pending().await,
        };
        let mut state = self.state.lock();
        let (netid, seq) = (state.netid, state.next);
        state.next += 1;
        state.open.insert(seq);
        Begun { operations: self, netid, seq, _room: room }
    }
}

impl Begun<'_> {
    /// Its name, and up to where outcomes have reached this client.
    pub fn operation(&self) -> v1::RecordOperation {
        let state = self.operations.state.lock();
        let acked_through = match state.netid == self.netid {
            true => state.open.first().map_or(0, |first| first - 1),
            false => 0,
        };
        v1::RecordOperation { netid: self.netid.to_vec().into(), seq: self.seq, acked_through, after: 0 }
    }

    /// Somebody else has used its name (a clone of this process, perhaps): what follows has another netid.
    pub fn forked(&self) -> Result<(), Error> {
        let fresh = netid()?;
        let mut state = self.operations.state.lock();
        if state.netid == self.netid {
            *state = State { netid: fresh, next: 1, open: BTreeSet::new() };
        }
        Ok(())
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut state = self.operations.state.lock();
        if state.netid == self.netid {
            state.open.remove(&self.seq);
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

    #[tokio::test]
    async fn outcomes_are_acknowledged_up_to_the_first_that_is_open() {
        let operations = Operations::new().unwrap();
        let (one, two) = (operations.begin().await, operations.begin().await);
        let acked = |begun: &Begun<'_>| (begun.operation().seq, begun.operation().acked_through);
        assert_eq!((acked(&one), acked(&two)), ((1, 0), (2, 0)));
        drop(one);
        assert_eq!(acked(&two), (2, 1));
        two.forked().unwrap();
        let three = operations.begin().await;
        assert_ne!(three.operation().netid, two.operation().netid);
        assert_eq!((acked(&three), acked(&two)), ((1, 0), (2, 0)));
        drop(two);
        assert_eq!(acked(&three), (1, 0));
    }
}
