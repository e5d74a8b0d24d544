//! What a server measures of its own load: a sample of the keys it was asked for, and the report made of it.
//!
//! ```text
//!   each thread ─ Sampler::observe(hash): counts down; 1 in N is kept ─┐ no shared write
//!   every window: Sampler::end ─▶ Sample ─▶ report(samples, window, held) ─▶ Input::Load ─▶ manager
//! ```
//! A sample is a plain list, so what it says of heavy keys and of ranges is exact for what was kept. N grows with the
//! load of each window: a busy server keeps ten thousand and more, however its load falls or rises, an idle one everything.

use crate::Leased;
use std::time::Duration;
use tidings_base::{KeyHash, Seeded};
use tidings_wire::v1;

/// What is kept of a window at least, if there was as much: a share of one in a hundred is known within a tenth.
const LEAST: usize = 10_000;

/// What a sampler keeps of a window at most: 160 KiB. When it is full, every second is let go.
const ROOM: usize = 2 * LEAST;

/// The most ranges and the most keys that a report names.
const MAX_RANGES: usize = 1_024;
const MAX_KEYS: usize = 32;

/// A key is named from so many samples on: fewer say little about its rate.
const LEAST_HITS: u64 = 24;

/// Samples the keys that one thread is asked for.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// Calls until the next one is kept.
    left: u32,
    /// One in so many is kept, on average.
    every: u32,
    rng: Seeded,
    kept: Vec<KeyHash>,
}

/// What a sampler kept of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    every: u32,
    kept: Vec<KeyHash>,
}

impl Sampler {
    /// A sampler for one thread; the seed decides which calls it keeps.
    pub fn new(seed: u64) -> Sampler {
        Sampler { left: 0, every: 1, rng: Seeded::new(seed).fork("sampler"), kept: Vec::new() }
    }

    /// A key was asked for.
    #[inline]
    pub fn observe(&mut self, hash: KeyHash) {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.keep(hash),
        }
    }

    #[cold]
    fn keep(&mut self, hash: KeyHash) {
        if self.kept.len() >= ROOM {
            let mut even = false;
            self.kept.retain(|_| {
                even = !even;
                even
            });
            self.every = self.every.saturating_mul(2);
        }
        self.kept.push(hash);
        // A random gap around N, so that a load with a rhythm of its own is not seen through it.
        self.left = self.rng.below(u64::from(self.every) * 2 - 1) as u32;
    }

    /// Calls until the next one is kept, for a caller that counts them down itself.
    pub fn take_gap(&mut self) -> u32 {
        std::mem::take(&mut self.left)
    }

    /// Ends a window: what was kept, and the next one begins.
    pub fn end(&mut self) -> Sample {
        // Whatever this one was like, the next may be far less busy: it keeps everything until it knows.
        self.left = 0;
        Sample { every: std::mem::replace(&mut self.every, 1), kept: std::mem::take(&mut self.kept) }
    }
}

/// What an owner tells its manager of a window: its rate, that of each range it holds, and its heaviest keys.
pub fn report(samples: &[Sample], window: Duration, held: &[Leased]) -> v1::OwnerLoad {
    let seconds = window.as_secs_f64().max(1e-3);
    let mut hits: Vec<(KeyHash, u64)> = Vec::new();
    for sample in samples {
        hits.extend(sample.kept.iter().map(|hash| (*hash, u64::from(sample.every))));
    }
    hits.sort_unstable_by_key(|(hash, _)| *hash);
    let rate = |weight: u64| weight as f64 / seconds;
    let named =
        |start: KeyHash, last: KeyHash, weight: u64| v1::HotRange { start: start.0, last: last.0, rate: rate(weight) };
    // A range's rate includes that of the keys in it.
    let ranges = ranges(&hits, held).into_iter();
    let mut hot: Vec<v1::HotRange> =
        ranges.map(|(leased, weight)| named(leased.range.start, leased.range.last, weight)).collect();
    hot.extend(keys(&hits).into_iter().map(|(hash, weight)| named(hash, hash, weight)));
    v1::OwnerLoad {
        rate: rate(hits.iter().map(|(_, weight)| weight).sum()),
        hot,
        samples: u32::try_from(hits.len()).unwrap_or(u32::MAX),
    }
}

/// The weight of each range, heaviest first if not all can be named; points are named as keys.
fn ranges(hits: &[(KeyHash, u64)], held: &[Leased]) -> Vec<(Leased, u64)> {
    let longer = held.iter().filter(|leased| leased.range.start < leased.range.last);
    let weigh = |leased: &Leased| {
        let from = hits.partition_point(|(hash, _)| *hash < leased.range.start);
        let to = hits.partition_point(|(hash, _)| *hash <= leased.range.last);
        hits[from..to].iter().map(|(_, weight)| weight).sum::<u64>()
    };
    let mut weighed: Vec<(Leased, u64)> = longer.map(|leased| (*leased, weigh(leased))).collect();
    if weighed.len() > MAX_RANGES {
        weighed.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        weighed.truncate(MAX_RANGES);
    }
    weighed
}

/// The heaviest keys.
fn keys(hits: &[(KeyHash, u64)]) -> Vec<(KeyHash, u64)> {
    let mut heavy: Vec<(KeyHash, u64)> = Vec::new();
    for run in hits.chunk_by(|a, b| a.0 == b.0) {
        if run.len() as u64 >= LEAST_HITS {
            heavy.push((run[0].0, run.iter().map(|(_, weight)| weight).sum()));
        }
    }
    heavy.sort_by_key(|(hash, weight)| (std::cmp::Reverse(*weight), *hash));
    heavy.truncate(MAX_KEYS);
    heavy
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::{KeyRange, LeaseNumber};

    fn leased(start: u64, last: u64) -> Leased {
        let range = KeyRange::new(KeyHash(start), KeyHash(last));
        Leased { range, lease: LeaseNumber::new(1).unwrap() }
    }

    fn near(rate: f64, expected: f64) -> bool {
        (rate - expected).abs() <= expected * 0.05
    }

    #[test]
    fn rates_and_heavy_keys_are_told_within_a_twentieth_at_any_load() {
        for calls in [5_000u64, 200_000, 3_000_000] {
            let (mut sampler, mut rng) = (Sampler::new(1), Seeded::new(2));
            // A quarter of all calls ask for one key; the others are even over two ranges, 1 : 2.
            let mut window = || {
                for _ in 0..calls {
                    let at = rng.next_u64() / 4 * 3;
                    sampler.observe(if rng.one_in(4) { KeyHash(77) } else { KeyHash(at) });
                }
                sampler.end()
            };
            for sample in [window(), window()] {
                let half = u64::MAX / 4;
                let held = [leased(0, half - 1), leased(half, u64::MAX)];
                let load = report(&[sample], Duration::from_secs(10), &held);
                let per_second = calls as f64 / 10.0;
                assert!(u64::from(load.samples) >= calls.min(10_000), "{calls}: {}", load.samples);
                assert!(near(load.rate, per_second), "{calls}: {load:?}");
                assert!(near(load.hot[0].rate, per_second * 0.5), "{calls}: {load:?}");
                assert!(near(load.hot[1].rate, per_second * 0.5), "{calls}: {load:?}");
                assert_eq!((load.hot.len(), load.hot[2].start, load.hot[2].last), (3, 77, 77));
                assert!(near(load.hot[2].rate, per_second * 0.25), "{calls}: {load:?}");
            }
        }
    }

    #[test]
    fn ten_thousand_are_kept_of_every_window_that_has_as_many() {
        let (mut sampler, mut rng) = (Sampler::new(3), Seeded::new(4));
        for calls in [3_000_000, 16_385, 20_001, 1_000_000, 12_000, 40_001, 9_000] {
            (0..calls).for_each(|_| sampler.observe(KeyHash(rng.next_u64())));
            let load = report(&[sampler.end()], Duration::from_secs(10), &[]);
            assert!(load.samples >= calls.min(10_000), "{calls}: {}", load.samples);
        }
    }

    #[test]
    fn samples_of_several_threads_weigh_as_many_calls_as_they_stand_for() {
        let busy = Sample { every: 10, kept: vec![KeyHash(1); 100] };
        let idle = Sample { every: 1, kept: vec![KeyHash(9); 100] };
        let load = report(&[busy, idle], Duration::from_secs(1), &[leased(0, 4), leased(5, 9), leased(20, 20)]);
        assert_eq!((load.rate, load.samples), (1_100.0, 200));
        let rates: Vec<f64> = load.hot.iter().map(|hot| hot.rate).collect();
        assert_eq!(rates, [1_000.0, 100.0, 1_000.0, 100.0]);
    }
}
