//! What this server is asked for, sampled without a write that threads share.
//!
//! ```text
//!   check: thread ─ its shard: counts down ─ at zero: Sampler::observe ─┐
//!   task, every window: Sampler::end of all shards ─▶ report ─▶ Input::Load, with the next poll
//! ```

use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tidings_base::{KeyHash, Mono};
use tidings_placement::Leased;
use tidings_placement::owner::load::{Sampler, report};
use tidings_wire::v1;

/// Threads that count apart; more than these share.
const SHARDS: usize = 32;

/// What one report is of: several renewals, so that a moment's burst does not move a range.
const WINDOW: Duration = Duration::from_secs(10);

/// One thread's, on cache lines of its own.
#[repr(align(128))]
struct Shard {
    /// Checks until the next one is sampled.
    left: AtomicU32,
    sampler: Mutex<Sampler>,
}

/// What all threads count.
pub(super) struct Load {
    shards: Vec<Shard>,
    began: Mutex<Mono>,
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// This thread's shard.
#[inline]
fn shard() -> usize {
    match SHARD.get() {
        usize::MAX => {
            let shard = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
            SHARD.set(shard);
            shard
        }
        shard => shard,
    }
}

impl Load {
    pub(super) fn new(seed: u64, now: Mono) -> Load {
        let shard = |n: usize| Shard {
            left: AtomicU32::new(0),
            sampler: Mutex::new(Sampler::new(seed.wrapping_add(n as u64))),
        };
        Load { shards: (0..SHARDS).map(shard).collect(), began: Mutex::new(now) }
    }

    /// A key that is held was asked for. Two threads on one shard may miscount each other by one, which nobody notices.
    #[inline]
    pub(super) fn observe(&self, hash: KeyHash) {
        let Some(shard) = self.shards.get(shard()) else { return };
        match shard.left.load(Ordering::Relaxed).checked_sub(1) {
            Some(left) => shard.left.store(left, Ordering::Relaxed),
            None => shard.keep(hash),
        }
    }

    /// The report of a window that has ended, if one has.
    pub(super) fn report(&self, now: Mono, held: impl FnOnce() -> Vec<Leased>) -> Option<v1::OwnerLoad> {
        let mut began = self.began.lock();
        let window = now.since(*began);
        if window < WINDOW {
            return None;
        }
        *began = now;
        drop(began);
        let end = |shard: &Shard| {
            shard.left.store(0, Ordering::Relaxed);
            shard.sampler.lock().end()
        };
        let samples: Vec<_> = self.shards.iter().map(end).collect();
        Some(report(&samples, window, &held()))
    }
}

impl Shard {
    #[cold]
    fn keep(&self, hash: KeyHash) {
        let mut sampler = self.sampler.lock();
        sampler.observe(hash);
        // The gap until the next sample is counted down here, without the lock.
        self.left.store(sampler.take_gap(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::{KeyRange, LeaseNumber};

    #[test]
    fn all_threads_count_and_the_hot_key_is_named() {
        let load = Load::new(7, Mono(1));
        let hot = KeyHash(42);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let load = &load;
                scope.spawn(move || {
                    for n in 0..100_000u64 {
                        load.observe(hot);
                        load.observe(KeyHash((n << 20) | thread));
                    }
                });
            }
        });
        let held = || vec![Leased { range: KeyRange::FULL, lease: LeaseNumber::new(1).unwrap() }];
        assert_eq!(load.report(Mono(1), held), None);
        let told = load.report(Mono(1) + WINDOW, held).unwrap();
        assert!((told.rate - 80_000.0).abs() < 4_000.0, "{}", told.rate);
        let named = told.hot.iter().find(|hot| (hot.start, hot.last) == (42, 42)).unwrap();
        assert!((named.rate - 40_000.0).abs() < 4_000.0, "{}", named.rate);
        assert!(told.samples >= 10_000);
        let next = load.report(Mono(1) + WINDOW * 2, held).unwrap();
        assert_eq!((next.rate, next.samples), (0.0, 0));
    }
}
