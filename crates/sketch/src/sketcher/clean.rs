//! Which ranges' entries may be used, and under which lease (rule J).

use std::collections::BTreeMap;
use tidings_base::{KeyHash, KeyRange, LeaseNumber};

/// The ranges of which every entry was made under the lease that is noted here.
///
/// What placement tells of grants and losses may come late; its checks are of now. A range may be lost and granted again
/// before the loss is heard of, and somebody else has answered for it meanwhile. So the check alone does not suffice: entries
/// are used only where its number is the one that was dealt with. Whoever hears of a loss or of a grant takes the range off
/// here, then drops its entries, and then notes the new lease, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clean {
    /// By their starts. They do not overlap, and none wraps.
    pieces: BTreeMap<KeyHash, (KeyHash, LeaseNumber)>,
}

impl Clean {
    /// The lease of a place, if the check of now names the one that was dealt with.
    pub fn held(&self, at: KeyHash, now: Option<LeaseNumber>) -> Option<LeaseNumber> {
        now.filter(|lease| self.lease(at) == Some(*lease))
    }

    /// Takes a range off, whatever its leases; whether anything of it was noted. Its entries must go before anything is again.
    pub fn lost(&mut self, range: KeyRange) -> bool {
        self.cut(range, |_| true)
    }

    /// Takes off what of a range is noted under this lease; whether anything was. If so, its entries must go.
    pub fn ended(&mut self, range: KeyRange, lease: LeaseNumber) -> bool {
        self.cut(range, |noted| noted == lease)
    }

    fn cut(&mut self, range: KeyRange, which: impl Fn(LeaseNumber) -> bool) -> bool {
        if range.last < range.start {
            // Managers cut at zero, so this is nobody's; without anything noted nothing can be wrong.
            self.pieces.clear();
            return true;
        }
        let touched: Vec<_> = self
            .pieces
            .range(..=range.last)
            .filter(|(_, (last, lease))| *last >= range.start && which(*lease))
            .map(|(start, (last, lease))| (*start, *last, *lease))
            .collect();
        for (start, last, lease) in &touched {
            let (start, last, lease) = (*start, *last, *lease);
            self.pieces.remove(&start);
            if start < range.start {
                self.pieces.insert(start, (KeyHash(range.start.0 - 1), lease));
            }
            if range.last < last {
                self.pieces.insert(KeyHash(range.last.0 + 1), (last, lease));
            }
        }
        !touched.is_empty()
    }

    /// Notes a lease on a range that nothing is remembered of any more, or only what came along with it.
    pub fn gained(&mut self, range: KeyRange, lease: LeaseNumber) {
        self.lost(range);
        if range.start <= range.last {
            self.pieces.insert(range.start, (range.last, lease));
        }
    }

    /// Whether all of a range is noted under this lease.
    pub fn covers(&self, range: KeyRange, lease: LeaseNumber) -> bool {
        if range.last < range.start {
            return false;
        }
        let mut at = range.start;
        loop {
            match self.pieces.range(..=at).next_back() {
                Some((_, (last, noted))) if *noted == lease && *last >= at => {
                    if *last >= range.last {
                        return true;
                    }
                    at = KeyHash(last.0 + 1);
                }
                _ => return false,
            }
        }
    }

    fn lease(&self, at: KeyHash) -> Option<LeaseNumber> {
        let (_, (last, lease)) = self.pieces.range(..=at).next_back()?;
        (at <= *last).then_some(*lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Seeded;

    /// Beside a table of every point of a small ring.
    #[test]
    fn pieces_are_what_was_last_said_of_each_point() {
        const POINTS: u64 = 40;
        let mut rng = Seeded::new(5);
        let (mut clean, mut model) = (Clean::default(), [None; POINTS as usize]);
        for number in 1..4_000 {
            let (one, other) = (rng.below(POINTS), rng.below(POINTS));
            let (start, last) = (one.min(other), one.max(other));
            let range = KeyRange::new(KeyHash(start), KeyHash(last));
            let lease = LeaseNumber::new(1 + number % 3).expect("it is small");
            let touched = &mut model[start as usize..=last as usize];
            match rng.below(3) {
                0 => {
                    clean.gained(range, lease);
                    touched.fill(Some(lease));
                }
                1 => {
                    clean.lost(range);
                    touched.fill(None);
                }
                _ => {
                    let mut ended = false;
                    for noted in touched.iter_mut().filter(|noted| **noted == Some(lease)) {
                        *noted = None;
                        ended = true;
                    }
                    assert_eq!(clean.ended(range, lease), ended);
                }
            }
            for (at, noted) in model.iter().enumerate() {
                assert_eq!(clean.lease(KeyHash(at as u64)), *noted, "at {at} after {number}");
            }
            let (from, to) = (rng.below(POINTS) as usize, rng.below(POINTS) as usize);
            let (from, to) = (from.min(to), from.max(to));
            let covered = model[from..=to].iter().all(|noted| *noted == Some(lease));
            let asked = KeyRange::new(KeyHash(from as u64), KeyHash(to as u64));
            assert_eq!(clean.covers(asked, lease), covered, "{asked:?} after {number}");
        }
    }

    #[test]
    fn the_ends_of_the_ring_are_places_like_others() {
        let lease = LeaseNumber::new(7);
        let mut clean = Clean::default();
        clean.gained(KeyRange::FULL, lease.expect("it is small"));
        assert_eq!([0, u64::MAX].map(|at| clean.held(KeyHash(at), lease)), [lease; 2]);
        assert_eq!(clean.held(KeyHash(1), LeaseNumber::new(8)), None, "a lease that was not dealt with");
        clean.lost(KeyRange::point(KeyHash(u64::MAX)));
        clean.lost(KeyRange::point(KeyHash(0)));
        assert_eq!([0, 1, u64::MAX].map(|at| clean.held(KeyHash(at), lease)), [None, lease, None]);
        clean.lost(KeyRange::new(KeyHash(9), KeyHash(3)));
        assert_eq!(clean, Clean::default());
    }
}
