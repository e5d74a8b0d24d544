//! What a server's threads ask: do I hold this key now? Without locks, and without a shared write per call (F11).
//!
//! ```text
//!   owner machine ─ Holdings ─▶ Checks::publish ── swap ──▶ Snapshot { ranges, each with a deadline }
//!   threads ─ check_now(hash) ─ load snapshot, then deadline, then clock ──┘
//! ```
//! A recall stores zero into the deadline *inside the snapshot that readers may still hold*, before the message that
//! releases the range is sent. So whoever loaded an old snapshot either saw the zero, or read a deadline and then a
//! clock that was before it: at that instant the lease still held. `tests/it/interleavings.rs` tries every interleaving of that.

#[doc(hidden)]
pub mod snapshot;

use crate::Leased;
use crate::published::{Published, picture};
use snapshot::{Slot, Snapshot};
use std::sync::atomic::AtomicU64;
use tidings_base::{KeyHash, LeaseNumber, Mono};

/// A range that is held until a deadline; frozen and recalled ranges are not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The lease.
    pub leased: Leased,
    /// The first instant at which it is no longer held.
    pub until: Mono,
}

/// What threads check against. Cheap to share by `Arc`.
#[derive(Debug)]
pub struct Checks {
    snapshot: Published<Snapshot<AtomicU64>>,
}

picture!(Snapshot<AtomicU64>);

impl Default for Checks {
    fn default() -> Checks {
        Checks { snapshot: Published::new(Snapshot::default()) }
    }
}

impl Checks {
    /// Nothing is held.
    pub fn new() -> Checks {
        Checks::default()
    }

    /// Puts a new picture in place: deadlines of what is no longer held become zero in the old one first. One writer.
    pub fn publish(&self, holdings: &[Holding]) {
        if let Some(next) = self.snapshot.guard().followed_by(holdings) {
            self.snapshot.put(next);
        }
    }

    /// The number of the lease under which the key is held at the instant that `clock` tells, if it is. `clock` is
    /// read last.
    #[inline]
    pub fn check_now(&self, hash: KeyHash, clock: impl FnOnce() -> Mono) -> Option<LeaseNumber> {
        self.snapshot.read(|snapshot| snapshot.check(hash, clock))
    }

    /// Whether the key is held now under the same lease as then: if so, it was held all the time between.
    #[inline]
    pub fn check_continuous(&self, hash: KeyHash, lease: LeaseNumber, clock: impl FnOnce() -> Mono) -> bool {
        self.check_now(hash, clock) == Some(lease)
    }

    /// The lease of a point with its deadline, if it was not recalled; it may be over.
    pub fn find(&self, hash: KeyHash) -> Option<Holding> {
        self.snapshot.read(|snapshot| snapshot.find(hash).map(Slot::holding))
    }

    /// All leases with their deadlines, in the order of the ring; some may be over.
    pub fn holdings(&self) -> Vec<Holding> {
        self.snapshot.read(|snapshot| snapshot.slots().iter().map(Slot::holding).collect())
    }

    /// What is held at an instant, in the order of the ring.
    pub fn held(&self, now: Mono) -> Vec<Leased> {
        let held = self.holdings().into_iter().filter(|holding| now < holding.until);
        held.map(|holding| holding.leased).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidings_base::KeyRange;

    fn leased(start: u64, last: u64, lease: u32) -> Leased {
        let range = KeyRange::new(KeyHash(start), KeyHash(last));
        Leased { range, lease: LeaseNumber::new(lease).unwrap() }
    }

    #[test]
    fn a_recall_reaches_readers_of_the_old_picture() {
        let checks = Checks::new();
        let lease = leased(10, 20, 1);
        checks.publish(&[Holding { leased: lease, until: Mono(100) }]);
        let old = checks.snapshot.full();
        checks.publish(&[]);
        assert_eq!(old.find(KeyHash(15)).unwrap().holding().until, Mono(0));
        // The same range under a new number is another lease: old readers must not profit from its deadline.
        checks.publish(&[Holding { leased: lease, until: Mono(100) }]);
        let old = checks.snapshot.full();
        checks.publish(&[Holding { leased: leased(10, 20, 2), until: Mono(200) }]);
        assert_eq!(old.find(KeyHash(15)).unwrap().holding().until, Mono(0));
        assert_eq!(checks.check_now(KeyHash(15), || Mono(150)), LeaseNumber::new(2));
    }

    #[test]
    fn a_lease_ends_at_its_deadline() {
        let checks = Checks::new();
        checks.publish(&[Holding { leased: leased(0, u64::MAX, 7), until: Mono(100) }]);
        assert_eq!(checks.check_now(KeyHash(u64::MAX), || Mono(99)), LeaseNumber::new(7));
        assert_eq!(checks.check_now(KeyHash(0), || Mono(100)), None);
        assert!(!checks.check_continuous(KeyHash(0), LeaseNumber::new(6).unwrap(), || Mono(1)));
    }

    proptest! {
        /// The reference: a list that is searched.
        #[test]
        fn checks_agree_with_a_plain_list(
            pictures in proptest::collection::vec(
                proptest::collection::btree_map(0u64..64, (0u64..64, 1u32..5, 0u64..50), 0..8), 1..6),
            keys in proptest::collection::vec((any::<u64>(), 0u64..50), 1..30),
        ) {
            let checks = Checks::new();
            for picture in pictures {
                // Cut lengths so that ranges do not overlap, and spread them over the ring.
                let starts: Vec<u64> = picture.keys().copied().collect();
                let holdings: Vec<Holding> = picture.into_iter().enumerate().map(|(i, (start, (length, lease, until)))| {
                    let end = starts.get(i + 1).copied().unwrap_or(64);
                    let last = (start + length).min(end - 1);
                    let leased = leased(start << 58, (last << 58) | (u64::MAX >> 6), lease);
                    Holding { leased, until: Mono(until) }
                }).collect();
                checks.publish(&holdings);
                for (key, now) in &keys {
                    let expected = holdings.iter()
                        .find(|h| h.leased.range.contains(KeyHash(*key)) && Mono(*now) < h.until)
                        .map(|h| h.leased.lease);
                    prop_assert_eq!(checks.check_now(KeyHash(*key), || Mono(*now)), expected);
                }
            }
        }
    }
}
