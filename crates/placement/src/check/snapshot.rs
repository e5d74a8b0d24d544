//! One picture of what is held, and how it passes into the next one.
//!
//! The deadlines are behind a small trait so that `loom` can take their place in a model; everything else is the code that
//! threads run.

use super::Holding;
use crate::Leased;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::{KeyHash, LeaseNumber, Mono};

/// Bits of the hash that choose a bucket. An owner has 50 to 150 ranges, so that a search mostly ends at its first step; the
/// 4 KiB stay in the nearest cache, and lie within the picture, since each load that waits for another one costs a check more.
const BUCKET_BITS: u32 = 10;
const BUCKETS: usize = 1 << BUCKET_BITS;

/// A number that one thread changes while others read it.
pub trait Deadline: Debug + Default {
    /// What it is.
    fn get(&self) -> u64;
    /// Changes it.
    fn set(&self, to: u64);
}

impl Deadline for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    fn set(&self, to: u64) {
        self.store(to, Ordering::SeqCst);
    }
}

/// A lease with its deadline, which the next picture shares as long as the lease is the same.
#[derive(Debug)]
pub struct Slot<D> {
    leased: Leased,
    until: Arc<D>,
}

impl<D: Deadline> Slot<D> {
    /// What it says now.
    pub fn holding(&self) -> Holding {
        Holding { leased: self.leased, until: Mono(self.until.get()) }
    }
}

/// The ranges that an owner holds, sorted by start; none wraps (the manager cuts at zero).
#[derive(Debug)]
pub struct Snapshot<D> {
    slots: Vec<Slot<D>>,
    /// For each bucket, the last slot that begins in it or before it.
    buckets: [u32; BUCKETS],
}

impl<D> Default for Snapshot<D> {
    fn default() -> Snapshot<D> {
        Snapshot { slots: Vec::new(), buckets: [0; BUCKETS] }
    }
}

impl<D: Deadline> Snapshot<D> {
    fn new(slots: Vec<Slot<D>>) -> Snapshot<D> {
        let mut buckets = [0; BUCKETS];
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

    /// All slots, in the order of the ring.
    pub fn slots(&self) -> &[Slot<D>] {
        &self.slots
    }

    /// The slot of a point.
    #[inline]
    pub fn find(&self, hash: KeyHash) -> Option<&Slot<D>> {
        let mut at = self.buckets[(hash.0 >> (64 - BUCKET_BITS)) as usize] as usize;
        loop {
            let slot = self.slots.get(at)?;
            if slot.leased.range.start <= hash {
                return (hash <= slot.leased.range.last).then_some(slot);
            }
            at = at.checked_sub(1)?;
        }
    }

    /// F11: the deadline is read before the clock.
    #[inline]
    pub fn check(&self, hash: KeyHash, clock: impl FnOnce() -> Mono) -> Option<LeaseNumber> {
        let slot = self.find(hash)?;
        let until = slot.until.get();
        (clock().0 < until).then_some(slot.leased.lease)
    }

    /// The picture that comes after this one, to be put in its place; `None` if only deadlines differ, which are changed in
    /// place. When this returns, nobody who reads this picture finds a lease in it that is not in the next one.
    pub fn followed_by(&self, holdings: &[Holding]) -> Option<Snapshot<D>> {
        let mut sorted: Vec<&Holding> = holdings.iter().collect();
        sorted.sort_by_key(|holding| holding.leased.range.start);
        let same = self.slots.len() == sorted.len()
            && self.slots.iter().zip(&sorted).all(|(slot, holding)| slot.leased == holding.leased);
        if same {
            self.slots.iter().zip(&sorted).for_each(|(slot, holding)| slot.until.set(holding.until.0));
            return None;
        }
        let mut slots = Vec::with_capacity(sorted.len());
        let mut olds = self.slots.iter().peekable();
        for holding in sorted {
            while let Some(gone) = olds.next_if(|slot| slot.leased.range.start < holding.leased.range.start) {
                gone.until.set(0);
            }
            let reused = olds.next_if(|slot| slot.leased.range.start == holding.leased.range.start);
            let until = match reused {
                Some(slot) if slot.leased == holding.leased => slot.until.clone(),
                Some(slot) => {
                    slot.until.set(0);
                    Arc::default()
                }
                None => Arc::default(),
            };
            until.set(holding.until.0);
            slots.push(Slot { leased: holding.leased, until });
        }
        olds.for_each(|gone| gone.until.set(0));
        Some(Snapshot::new(slots))
    }
}
