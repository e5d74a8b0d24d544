//! What is known of the load: rates of pieces of the ring and of heavy keys, as owners measured them.
//!
//! It is kept by place, not by owner: a range that has just moved keeps its rate until its new owner has measured it.

use std::collections::BTreeMap;
use tidings_base::{KeyHash, KeyRange};
use tidings_wire::v1;

/// The most entries of a report that are looked at.
const MAX_REPORTED: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    last: KeyHash,
    /// Requests a second, without the heavy keys in it.
    rate: f64,
}

/// Measured rates.
#[derive(Clone, Debug, Default)]
pub(super) struct Heat {
    pieces: BTreeMap<KeyHash, Piece>,
    keys: BTreeMap<KeyHash, f64>,
}

/// The share of `of` that lies in `within`; neither wraps.
fn share(of: KeyRange, within: KeyRange) -> f64 {
    let (start, last) = (of.start.max(within.start), of.last.min(within.last));
    if last < start {
        return 0.0;
    }
    KeyRange::new(start, last).len() as f64 / of.len() as f64
}

impl Heat {
    /// Takes an owner's report about the ranges that it holds. What it says of others is not heard.
    pub(super) fn take(&mut self, load: &v1::OwnerLoad, held: &[KeyRange]) {
        let sound = |hot: &&v1::HotRange| hot.start <= hot.last && hot.rate.is_finite() && hot.rate >= 0.0;
        let (keys, mut ranges): (Vec<v1::HotRange>, Vec<v1::HotRange>) =
            load.hot.iter().take(MAX_REPORTED).filter(sound).partition(|hot| hot.start == hot.last);
        let keys: BTreeMap<KeyHash, f64> = keys.into_iter().map(|hot| (KeyHash(hot.start), hot.rate)).collect();
        // A range's rate as reported includes that of its heavy keys.
        for range in &mut ranges {
            let inside: f64 = keys.range(KeyHash(range.start)..=KeyHash(range.last)).map(|(_, rate)| rate).sum();
            range.rate = (range.rate - inside).max(0.0);
        }
        ranges.sort_by_key(|range| range.start);
        let named: f64 = ranges.iter().map(|range| range.rate).sum::<f64>() + keys.values().sum::<f64>();
        let rest = if load.rate.is_finite() { (load.rate - named).max(0.0) } else { 0.0 };
        // What was not named is spread over what was not named.
        let bare = |range: KeyRange| 1.0 - ranges.iter().map(|hot| share(range, arc(hot))).sum::<f64>();
        let unnamed: f64 = held.iter().map(|range| range.len() as f64 * bare(*range).max(0.0)).sum();
        for range in held {
            let measured: f64 = overlapping(&ranges, *range).map(|hot| hot.rate * share(arc(hot), *range)).sum();
            let spread = if unnamed > 0.0 { rest * range.len() as f64 * bare(*range).max(0.0) / unnamed } else { 0.0 };
            self.put(*range, measured + spread);
            let old: Vec<KeyHash> = self.keys.range(range.start..=range.last).map(|(key, _)| *key).collect();
            for key in old {
                self.keys.remove(&key);
            }
            self.keys.extend(keys.range(range.start..=range.last).map(|(key, rate)| (*key, *rate)));
        }
    }

    /// Puts a rate in place of whatever was known there; what sticks out keeps its share.
    fn put(&mut self, range: KeyRange, rate: f64) {
        let reach = self.pieces.range(..=range.last).rev().take_while(|(_, old)| old.last >= range.start);
        for first in reach.map(|(first, _)| *first).collect::<Vec<_>>() {
            let Some(old) = self.pieces.remove(&first) else { continue };
            let whole = KeyRange::new(first, old.last);
            if first < range.start {
                let left = KeyRange::new(first, KeyHash(range.start.0 - 1));
                self.pieces.insert(first, Piece { last: left.last, rate: old.rate * share(whole, left) });
            }
            if old.last > range.last {
                let right = KeyRange::new(KeyHash(range.last.0 + 1), old.last);
                self.pieces.insert(right.start, Piece { last: right.last, rate: old.rate * share(whole, right) });
            }
        }
        self.pieces.insert(range.start, Piece { last: range.last, rate });
    }

    /// What is known of a range: its rate, heavy keys included, and those keys.
    pub(super) fn of(&self, range: KeyRange) -> (f64, Vec<(KeyHash, f64)>) {
        let before = self.pieces.range(..range.start).next_back();
        let pieces = before.into_iter().chain(self.pieces.range(range.start..=range.last));
        let spread: f64 =
            pieces.map(|(first, piece)| piece.rate * share(KeyRange::new(*first, piece.last), range)).sum();
        let keys: Vec<(KeyHash, f64)> = self.keys.range(range.start..=range.last).map(|(k, r)| (*k, *r)).collect();
        (spread + keys.iter().map(|(_, rate)| rate).sum::<f64>(), keys)
    }
}

fn arc(hot: &v1::HotRange) -> KeyRange {
    KeyRange::new(KeyHash(hot.start), KeyHash(hot.last))
}

/// The reported ranges that a range overlaps; they are sorted and do not overlap each other.
fn overlapping(ranges: &[v1::HotRange], range: KeyRange) -> impl Iterator<Item = &v1::HotRange> {
    let from = ranges.partition_point(|hot| hot.last < range.start.0);
    ranges[from..].iter().take_while(move |hot| hot.start <= range.last.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> KeyRange {
        KeyRange::new(KeyHash(start), KeyHash(last))
    }

    fn hot(start: u64, last: u64, rate: f64) -> v1::HotRange {
        v1::HotRange { start, last, rate }
    }

    #[test]
    fn rates_stay_with_their_place_when_ranges_are_cut_and_move() {
        let mut heat = Heat::default();
        let load = v1::OwnerLoad { rate: 100.0, hot: vec![hot(0, 99, 100.0), hot(10, 10, 60.0)], samples: 10_000 };
        heat.take(&load, &[range(0, 99)]);
        assert_eq!(heat.of(range(0, 99)), (100.0, vec![(KeyHash(10), 60.0)]));
        assert_eq!(heat.of(range(50, 99)), (20.0, vec![]));
        // Another owner measures the second half; the first half stays as it was.
        let load = v1::OwnerLoad { rate: 7.0, hot: vec![hot(50, 99, 7.0)], samples: 10_000 };
        heat.take(&load, &[range(50, 99)]);
        assert_eq!(heat.of(range(0, 99)), (87.0, vec![(KeyHash(10), 60.0)]));
    }

    #[test]
    fn nobody_says_anything_about_what_it_does_not_hold_and_nonsense_is_not_heard() {
        let mut heat = Heat::default();
        let hot = vec![hot(0, 199, 100.0), hot(150, 150, 9e9), hot(7, 3, 5.0), hot(1, 1, f64::NAN), hot(2, 2, -1.0)];
        heat.take(&v1::OwnerLoad { rate: f64::INFINITY, hot, samples: 1 }, &[range(0, 99)]);
        assert_eq!(heat.of(range(100, 199)), (0.0, vec![]));
        assert!(heat.of(range(0, 99)).1.is_empty());
    }

    #[test]
    fn a_bare_rate_is_spread_over_what_is_held() {
        let mut heat = Heat::default();
        heat.take(&v1::OwnerLoad { rate: 40.0, ..Default::default() }, &[range(0, 99), range(200, 499)]);
        assert_eq!(heat.of(range(0, 99)).0, 10.0);
        assert_eq!(heat.of(range(200, 499)).0, 30.0);
    }
}
