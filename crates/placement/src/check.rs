//! What a server's threads ask: do I hold this key now? Without locks, and without a shared write per call (F11).
//!
//! ```text
//!   owner machine ─ Holdings ─▶ Checks::publish ── swap ──▶ Snapshot { ranges, each with a deadline }
//!   threads ─ check_now(hash) ─ load snapshot, then deadline, then clock ──┘
//! ```
//! A recall stores zero into the deadline *inside the snapshot that readers may still hold*, before the message that
//! releases the range is sent. So whoever loaded an old snapshot either saw the zero, or read a deadline and then a
//! clock that was before it: at that instant the lease still held.

use crate::Leased;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::{KeyHash, LeaseNumber, Mono};

/// Bits of the hash that choose a bucket: 2¹⁴ buckets for the 12,800 ranges of a large pool, so that a search ends
/// after one or two steps; 64 KiB.
const BUCKET_BITS: u32 = 14;

/// A range that is held until a deadline; frozen and recalled ranges are not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The lease.
    pub leased: Leased,
    /// The first instant at which it is no longer held.
    pub until: Mono,
}

#[derive(Debug)]
struct Slot {
    leased: Leased,
    until: Arc<AtomicU64>,
}

/// The ranges that an owner holds, sorted by start; none wraps (the manager cuts at zero).
#[derive(Debug, Default)]
struct Snapshot {
    slots: Vec<Slot>,
    /// For each bucket, the last slot that begins in it or before it.
    buckets: Vec<u32>,
}

impl Snapshot {
    fn new(slots: Vec<Slot>) -> Snapshot {
        let mut buckets = vec![0; 1 << BUCKET_BITS];
        let mut at = 0;
        for (bucket, first) in buckets.iter_mut().enumerate() {
            let end = ((bucket as u64 + 1) << (64 - BUCKET_BITS)).wrapping_sub(1);
            while slots.get(at + 1).is_some_and(|slot| slot.leased.range.start.0 <= end) {
                at += 1;
            }
            *first = at as u32;
        }
        Snapshot { slots, buckets }
    }

    #[inline]
    fn find(&self, hash: KeyHash) -> Option<&Slot> {
        let mut at = *self.buckets.get((hash.0 >> (64 - BUCKET_BITS)) as usize)? as usize;
        loop {
            let slot = self.slots.get(at)?;
            if slot.leased.range.start <= hash {
                return (hash <= slot.leased.range.last).then_some(slot);
            }
            at = at.checked_sub(1)?;
        }
    }
}

/// What threads check against. Cheap to share by `Arc`.
#[derive(Debug)]
pub struct Checks {
    snapshot: ArcSwap<Snapshot>,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks { snapshot: ArcSwap::from_pointee(Snapshot::default()) }
    }
}

impl Checks {
    /// Nothing is held.
    pub fn new() -> Checks {
        Checks::default()
    }

    /// Puts a new picture in place: deadlines of what is no longer held become zero in the old one first. One writer.
    pub fn publish(&self, holdings: &[Holding]) {
        let old = self.snapshot.load_full();
        let mut sorted: Vec<&Holding> = holdings.iter().collect();
        sorted.sort_by_key(|holding| holding.leased.range.start);
        let same = old.slots.len() == sorted.len()
            && old.slots.iter().zip(&sorted).all(|(slot, holding)| slot.leased == holding.leased);
        if same {
            for (slot, holding) in old.slots.iter().zip(&sorted) {
                slot.until.store(holding.until.0, Ordering::SeqCst);
            }
            return;
        }
        let mut slots = Vec::with_capacity(sorted.len());
        let mut olds = old.slots.iter().peekable();
        for holding in sorted {
            while let Some(gone) = olds.next_if(|slot| slot.leased.range.start < holding.leased.range.start) {
                gone.until.store(0, Ordering::SeqCst);
            }
            let reused = olds.next_if(|slot| slot.leased.range.start == holding.leased.range.start);
            let until = match reused {
                Some(slot) if slot.leased == holding.leased => slot.until.clone(),
                Some(slot) => {
                    slot.until.store(0, Ordering::SeqCst);
                    Arc::default()
                }
                None => Arc::default(),
            };
            until.store(holding.until.0, Ordering::SeqCst);
            slots.push(Slot { leased: holding.leased, until });
        }
        olds.for_each(|gone| gone.until.store(0, Ordering::SeqCst));
        self.snapshot.store(Arc::new(Snapshot::new(slots)));
    }

    /// The number of the lease under which the key is held at the instant that `clock` tells, if it is. `clock` is
    /// read last.
    #[inline]
    pub fn check_now(&self, hash: KeyHash, clock: impl FnOnce() -> Mono) -> Option<LeaseNumber> {
        let snapshot = self.snapshot.load();
        let slot = snapshot.find(hash)?;
        let until = slot.until.load(Ordering::SeqCst);
        (clock().0 < until).then_some(slot.leased.lease)
    }

    /// Whether the key is held now under the same lease as then: if so, it was held all the time between.
    #[inline]
    pub fn check_continuous(&self, hash: KeyHash, lease: LeaseNumber, clock: impl FnOnce() -> Mono) -> bool {
        self.check_now(hash, clock) == Some(lease)
    }

    /// The lease of a point with its deadline, if it was not recalled; it may be over.
    pub fn find(&self, hash: KeyHash) -> Option<Holding> {
        let snapshot = self.snapshot.load();
        let slot = snapshot.find(hash)?;
        Some(Holding { leased: slot.leased, until: Mono(slot.until.load(Ordering::SeqCst)) })
    }

    /// All leases with their deadlines, in the order of the ring; some may be over.
    pub fn holdings(&self) -> Vec<Holding> {
        let snapshot = self.snapshot.load();
        let holding = |slot: &Slot| Holding { leased: slot.leased, until: Mono(slot.until.load(Ordering::SeqCst)) };
        snapshot.slots.iter().map(holding).collect()
    }

    /// What is held at an instant, in the order of the ring.
    pub fn held(&self, now: Mono) -> Vec<Leased> {
        let snapshot = self.snapshot.load();
        let held = snapshot.slots.iter().filter(|slot| now.0 < slot.until.load(Ordering::SeqCst));
        held.map(|slot| slot.leased).collect()
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
        let old = checks.snapshot.load_full();
        checks.publish(&[]);
        assert_eq!(old.find(KeyHash(15)).unwrap().until.load(Ordering::SeqCst), 0);
        // The same range under a new number is another lease: old readers must not profit from its deadline.
        checks.publish(&[Holding { leased: lease, until: Mono(100) }]);
        let old = checks.snapshot.load_full();
        checks.publish(&[Holding { leased: leased(10, 20, 2), until: Mono(200) }]);
        assert_eq!(old.find(KeyHash(15)).unwrap().until.load(Ordering::SeqCst), 0);
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
