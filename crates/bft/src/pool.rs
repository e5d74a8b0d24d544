//! Commands that wait for their place in the order.
//!
//! Nothing is taken out when a block is proposed: a proposal may be called off, and a view may come to nothing. Commands leave
//! when they are executed.

use crate::command::{Name, Signed};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tidings_base::bounded::BoundedMap;
use tidings_sketch::replica::WINDOW;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The most bytes of commands that wait.
const MOST_BYTES: usize = 64 << 20;
/// Of one client: others must find room.
const MOST_BYTES_OF_A_CLIENT: usize = MOST_BYTES / 8;
/// How many commands that were executed are still known: more than come again within a few seconds.
const MOST_DONE: usize = 1 << 14;

/// What became of a command that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It waits.
    New,
    /// It waited already.
    Known,
    /// Too many wait, of this client or altogether, or the pool is closed; it may be handed in again later.
    Full,
}

#[derive(Debug)]
struct Waiting {
    signed: Signed,
    arrival: u64,
    /// How often [`Pool::overdue`] has seen it.
    seen: u32,
}

/// What of one client waits.
#[derive(Debug, Default)]
struct Share {
    count: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Inner {
    commands: BTreeMap<Name, Waiting>,
    order: BTreeMap<u64, Name>,
    clients: BTreeMap<u64, Share>,
    bytes: usize,
    arrivals: u64,
    executed: u64,
    done: Done,
}

/// What was executed last, as it was signed.
#[derive(Debug)]
struct Done(BoundedMap<Name, blake3::Hash>);

impl Default for Done {
    fn default() -> Done {
        Done(BoundedMap::new(MOST_DONE))
    }
}

/// The commands of one replica that wait, shared by whoever takes them in and whoever proposes them.
#[derive(Debug, Default)]
pub struct Pool {
    inner: Mutex<Inner>,
    arrived: Notify,
    closed: AtomicBool,
}

impl Pool {
    /// Takes no command in from now on: this life of the group comes to rest.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Whether it takes none in.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Takes a command in. Its signature was verified.
    pub fn add(&self, signed: Signed) -> Added {
        if self.is_closed() {
            return Added::Full;
        }
        let mut inner = self.inner.lock();
        let (name, length) = (signed.name(), signed.length());
        if inner.commands.contains_key(&name) {
            return Added::Known;
        }
        let is_full = |share: &Share| share.count >= WINDOW || share.bytes + length > MOST_BYTES_OF_A_CLIENT;
        if inner.clients.get(&name.0).is_some_and(is_full) || inner.bytes + length > MOST_BYTES {
            return Added::Full;
        }
        inner.arrivals += 1;
        let arrival = inner.arrivals;
        inner.order.insert(arrival, name);
        inner.commands.insert(name, Waiting { signed, arrival, seen: 0 });
        let share = inner.clients.entry(name.0).or_default();
        share.count += 1;
        share.bytes += length;
        inner.bytes += length;
        drop(inner);
        self.arrived.notify_waiters();
        Added::New
    }

    /// Whether this very command waits, or did until a short while ago; then its signature is known to be right.
    pub fn knows(&self, signed: &Signed) -> bool {
        let mut inner = self.inner.lock();
        match inner.commands.get(&signed.name()) {
            Some(waiting) => waiting.signed == *signed,
            None => inner.done.0.get(&signed.name()).is_some_and(|done| *done == blake3::hash(&signed.encoded())),
        }
    }

    /// What to propose: the oldest that are not under way in blocks before, as many as fit.
    pub fn pick(&self, under_way: &BTreeSet<Name>, longest: usize) -> Vec<Signed> {
        let inner = self.inner.lock();
        let mut room = longest;
        let waiting = inner.order.values().filter(|name| !under_way.contains(name));
        waiting
            .filter_map(|name| inner.commands.get(name))
            .map_while(|waiting| {
                room = room.checked_sub(waiting.signed.length())?;
                Some(waiting.signed.clone())
            })
            .collect()
    }

    /// Resolves at the next arrival after this call.
    pub fn arrival(&self) -> Notified<'_> {
        self.arrived.notified()
    }

    /// A block was executed: what it holds waits no longer.
    pub fn executed(&self, height: u64, names: impl IntoIterator<Item = Name>) {
        let mut inner = self.inner.lock();
        inner.executed = inner.executed.max(height);
        for name in names {
            let Some(waiting) = inner.commands.remove(&name) else { continue };
            let length = waiting.signed.length();
            inner.order.remove(&waiting.arrival);
            inner.bytes -= length;
            inner.done.0.insert(name, blake3::hash(&waiting.signed.encoded()));
            if let Some(share) = inner.clients.get_mut(&name.0) {
                share.count -= 1;
                share.bytes -= length;
                if share.count == 0 {
                    inner.clients.remove(&name.0);
                }
            }
        }
    }

    /// The height up to which blocks are executed here.
    pub fn height(&self) -> u64 {
        self.inner.lock().executed
    }

    /// What has waited from one call of this to the next, each once: others may not have it. At most so many bytes.
    pub fn overdue(&self, longest: usize) -> Vec<Signed> {
        let mut inner = self.inner.lock();
        let (mut overdue, mut room) = (Vec::new(), longest);
        for waiting in inner.commands.values_mut() {
            let due = waiting.seen == 1;
            if due && room < waiting.signed.length() {
                continue;
            }
            waiting.seen += 1;
            if due {
                room -= waiting.signed.length();
                overdue.push(waiting.signed.clone());
            }
        }
        overdue
    }

    /// How many commands wait.
    pub fn len(&self) -> usize {
        self.inner.lock().commands.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::LONGEST_REQUEST;
    use crate::keys::Signature;
    use bytes::Bytes;
    use tidings_sketch::replica::Command;

    fn signed(client: u64, nonce: u64) -> Signed {
        let command = Command { client, nonce, request: Bytes::from_static(b"request") };
        Signed { command, signature: Signature([nonce as u8; 64]) }
    }

    fn nonces(picked: Vec<Signed>) -> Vec<u64> {
        picked.into_iter().map(|signed| signed.command.nonce).collect()
    }

    #[test]
    fn what_is_proposed_stays_until_it_is_executed() {
        let pool = Pool::default();
        [3, 1, 2].into_iter().for_each(|nonce| assert_eq!(pool.add(signed(1, nonce)), Added::New));
        assert_eq!(pool.add(signed(1, 3)), Added::Known);
        assert_eq!(nonces(pool.pick(&BTreeSet::new(), 1 << 20)), [3, 1, 2]);
        assert_eq!(nonces(pool.pick(&BTreeSet::from([(1, 3)]), 1 << 20)), [1, 2], "without what is under way");
        assert_eq!(nonces(pool.pick(&BTreeSet::new(), 2 * signed(1, 1).length())), [3, 1], "as many as fit");
        pool.executed(1, [(1, 3), (1, 9)]);
        assert_eq!((nonces(pool.pick(&BTreeSet::new(), 1 << 20)), pool.height()), (vec![1, 2], 1));
        let others = Signed { signature: Signature([9; 64]), ..signed(1, 3) };
        assert!(pool.knows(&signed(1, 1)) && pool.knows(&signed(1, 3)) && !pool.knows(&others));
        assert!(!pool.knows(&signed(1, 9)), "it was never here");
    }

    #[test]
    fn one_client_cannot_take_all_the_room() {
        let pool = Pool::default();
        (0..WINDOW as u64).for_each(|nonce| assert_eq!(pool.add(signed(1, nonce)), Added::New));
        assert_eq!((pool.add(signed(1, 5_000)), pool.add(signed(2, 1))), (Added::Full, Added::New));
        pool.executed(1, [(1, 0)]);
        assert_eq!(pool.add(signed(1, 5_000)), Added::New);
    }

    #[test]
    fn one_client_cannot_take_all_the_room_with_long_requests() {
        let pool = Pool::default();
        let long = |client, nonce| {
            let mut long = signed(client, nonce);
            long.command.request = Bytes::from(vec![1; LONGEST_REQUEST]);
            long
        };
        let taken =
            |client| (1..=WINDOW as u64).take_while(|nonce| pool.add(long(client, *nonce)) == Added::New).count();
        let most = MOST_BYTES_OF_A_CLIENT / long(1, 1).length();
        assert_eq!((taken(1), taken(2)), (most, most));
        assert_eq!(
            (pool.add(signed(1, 5_000)), pool.add(signed(3, 1))),
            (Added::New, Added::New),
            "what is short fits"
        );
        pool.executed(1, [(1, 1)]);
        assert_eq!((pool.add(long(1, 5_001)), pool.add(long(1, 5_002))), (Added::New, Added::Full));
    }

    #[test]
    fn what_waits_too_long_is_passed_on_once() {
        let pool = Pool::default();
        pool.add(signed(1, 1));
        assert!(pool.overdue(1 << 20).is_empty());
        pool.add(signed(1, 2));
        assert_eq!(nonces(pool.overdue(1 << 20)), [1]);
        assert_eq!(nonces(pool.overdue(1)), [0u64; 0], "what does not fit waits for its turn");
        assert_eq!(nonces(pool.overdue(1 << 20)), [2]);
        assert!(pool.overdue(1 << 20).is_empty());
    }
}
