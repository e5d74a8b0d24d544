//! Which ranges are held, under which leases, and the sequence numbers that follow from them (F1, F2).

use crate::mutant::Mutant;
use std::collections::BTreeMap;
use tidings_base::{KeyHash, KeyRange, LeaseNumber};

/// A range that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldRange {
    pub range: KeyRange,
    pub lease: LeaseNumber,
    /// F5, F12: the scan for pending markers is complete, and none was dropped since.
    pub recovered: bool,
}

/// The ranges of one machine. None wraps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    ranges: BTreeMap<KeyHash, HeldRange>,
    /// F2: how many numbers were drawn under each lease; kept when a range goes, so that none is drawn twice.
    counters: BTreeMap<LeaseNumber, u32>,
}

impl Held {
    /// Takes a range; what it overlaps is no longer held as it was.
    pub fn gain(&mut self, range: KeyRange, lease: LeaseNumber) -> Vec<HeldRange> {
        let pieces = match range.last < range.start {
            false => vec![range],
            true => vec![KeyRange::new(range.start, KeyHash(u64::MAX)), KeyRange::new(KeyHash(0), range.last)],
        };
        self.lose(range);
        let held: Vec<HeldRange> =
            pieces.into_iter().map(|range| HeldRange { range, lease, recovered: false }).collect();
        self.ranges.extend(held.iter().map(|held| (held.range.start, *held)));
        held
    }

    /// Lets go of whatever overlaps a range; what is left of a range that was cut stays.
    pub fn lose(&mut self, range: KeyRange) {
        let overlapping: Vec<HeldRange> =
            self.ranges.values().filter(|held| held.range.overlaps(range)).copied().collect();
        for held in overlapping {
            self.ranges.remove(&held.range.start);
            let mut rest = vec![held.range];
            for cut in [range.start, KeyHash(range.last.0.wrapping_add(1))] {
                rest = rest.into_iter().flat_map(|piece| cut_at(piece, cut)).collect();
            }
            for piece in rest.into_iter().filter(|piece| !range.contains(piece.start)) {
                self.ranges.insert(piece.start, HeldRange { range: piece, ..held });
            }
        }
    }

    /// Cuts the range that a point lies in, so that the point begins another.
    pub fn cut(&mut self, at: KeyHash) {
        let Some(held) = self.find(at).copied() else { return };
        for range in cut_at(held.range, at) {
            self.ranges.insert(range.start, HeldRange { range, ..held });
        }
    }

    /// The range that a key lies in.
    pub fn find(&self, key: KeyHash) -> Option<&HeldRange> {
        let (_, held) = self.ranges.range(..=key).next_back()?;
        held.range.contains(key).then_some(held)
    }

    /// The lease under which a key is held.
    pub fn lease(&self, key: KeyHash) -> Option<LeaseNumber> {
        self.find(key).map(|held| held.lease)
    }

    /// All of them, in the order of the ring.
    pub fn all(&self) -> impl Iterator<Item = &HeldRange> {
        self.ranges.values()
    }

    /// Notes whether pending markers of everything under a lease within a range are known.
    pub fn set_recovered(&mut self, within: KeyRange, lease: LeaseNumber, recovered: bool) {
        for held in self.ranges.values_mut().filter(|held| held.lease == lease && within.covers(held.range)) {
            held.recovered = recovered;
        }
    }

    /// F2: the next sequence number of a key; `None` if the key is not held. The last one of a lease comes again and again:
    /// its holder gives the range up long before.
    pub fn next_seqno(&mut self, key: KeyHash, mutant: Option<Mutant>) -> Option<u64> {
        let lease = self.lease(key)?;
        let counter = self.counters.entry(lease).or_insert(0);
        *counter = counter.saturating_add(1);
        Some(seqno(lease, *counter, mutant))
    }

    /// How many numbers were drawn under a lease.
    pub fn drawn(&self, lease: LeaseNumber) -> u32 {
        self.counters.get(&lease).copied().unwrap_or(0)
    }

    /// The last sequence number that a key may have got under its lease.
    pub fn last_seqno(&self, key: KeyHash, mutant: Option<Mutant>) -> Option<u64> {
        let lease = self.lease(key)?;
        Some(seqno(lease, self.drawn(lease), mutant).max(1))
    }
}

/// F2: lease number (31 bits) and counter (32 bits).
fn seqno(lease: LeaseNumber, counter: u32, mutant: Option<Mutant>) -> u64 {
    match mutant {
        Some(Mutant::SeqnoWithoutLease) => u64::from(counter),
        _ => (u64::from(lease.get()) << 32) | u64::from(counter),
    }
}

fn cut_at(range: KeyRange, at: KeyHash) -> Vec<KeyRange> {
    match range.split(at) {
        Some((left, right)) => vec![left, right],
        None => vec![range],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> KeyRange {
        KeyRange::new(KeyHash(start), KeyHash(last))
    }

    fn lease(n: u32) -> LeaseNumber {
        LeaseNumber::new(n).unwrap()
    }

    #[test]
    fn a_loss_leaves_what_is_around_it() {
        let mut held = Held::default();
        held.gain(range(10, 99), lease(4));
        held.lose(range(40, 49));
        let at = |held: &Held, key| held.lease(KeyHash(key)).map(LeaseNumber::get);
        assert_eq!([9, 10, 39, 40, 49, 50, 99, 100].map(|k| at(&held, k)), {
            [None, Some(4), Some(4), None, None, Some(4), Some(4), None]
        });
        held.gain(range(90, 5), lease(6));
        assert_eq!([89, 90, u64::MAX, 0, 5, 6].map(|k| at(&held, k)), {
            [Some(4), Some(6), Some(6), Some(6), Some(6), None]
        });
    }

    #[test]
    fn numbers_grow_with_leases_and_are_never_drawn_twice() {
        let mut held = Held::default();
        held.gain(KeyRange::FULL, lease(1));
        let first = held.next_seqno(KeyHash(3), None).unwrap();
        assert_eq!(held.last_seqno(KeyHash(3), None), Some(first));
        held.lose(KeyRange::FULL);
        assert_eq!(held.next_seqno(KeyHash(3), None), None);
        held.gain(KeyRange::FULL, lease(1));
        assert_eq!(held.next_seqno(KeyHash(3), None), Some(first + 1));
        held.gain(KeyRange::FULL, LeaseNumber::MAX);
        let last = held.next_seqno(KeyHash(3), None).unwrap();
        assert!(last > first + 1 && last < 1 << 63);
        // Its mutant: a successor draws numbers that were drawn before.
        let mut successor = Held::default();
        successor.gain(KeyRange::FULL, lease(2));
        assert_eq!(successor.next_seqno(KeyHash(3), Some(Mutant::SeqnoWithoutLease)), Some(1));
    }
}
