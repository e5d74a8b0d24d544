//! The 64-bit key ring: where a key stands, and ranges that may wrap around.

use std::fmt;

/// A point on the ring. Keys are hashed by XXH3-64 with seed 0; the golden vectors below pin it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The id of the hash function, stored where ranges are stored, so that it can never change unseen.
    pub const FUNCTION: &'static str = "xxh3-64/0";

    /// Where a key stands on the ring.
    pub fn of(key: &[u8]) -> KeyHash {
        KeyHash(xxhash_rust::xxh3::xxh3_64(key))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A non-empty arc of the ring, from `start` up to and including `last`; it wraps when `last < start`.
///
/// Inclusive ends make the full ring writable without a special case (`last` just before `start`), and the empty
/// range unwritable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRange {
    /// The first point of the range.
    pub start: KeyHash,
    /// The last point of the range.
    pub last: KeyHash,
}

impl KeyRange {
    /// The whole ring, beginning at zero.
    pub const FULL: KeyRange = KeyRange { start: KeyHash(0), last: KeyHash(u64::MAX) };

    /// The arc from `start` up to and including `last`.
    pub fn new(start: KeyHash, last: KeyHash) -> KeyRange {
        KeyRange { start, last }
    }

    /// One point.
    pub fn point(at: KeyHash) -> KeyRange {
        KeyRange { start: at, last: at }
    }

    /// Whether a point lies in the range.
    pub fn contains(self, at: KeyHash) -> bool {
        at.0.wrapping_sub(self.start.0) <= self.span()
    }

    /// How many points it has.
    pub fn len(self) -> u128 {
        u128::from(self.span()) + 1
    }

    /// Never: the empty range cannot be written.
    pub fn is_empty(self) -> bool {
        false
    }

    /// Whether it is the whole ring, wherever it begins.
    pub fn is_full(self) -> bool {
        self.span() == u64::MAX
    }

    /// Whether the two share a point.
    pub fn overlaps(self, other: KeyRange) -> bool {
        self.contains(other.start) || other.contains(self.start)
    }

    /// Whether every point of `other` lies in this range.
    pub fn covers(self, other: KeyRange) -> bool {
        let offset = other.start.0.wrapping_sub(self.start.0);
        self.is_full() || offset <= self.span() && other.span() <= self.span() - offset
    }

    /// Cuts the range so that `at` begins the second piece; `None` if `at` is its start or outside.
    pub fn split(self, at: KeyHash) -> Option<(KeyRange, KeyRange)> {
        if at == self.start || !self.contains(at) {
            return None;
        }
        let before = KeyHash(at.0.wrapping_sub(1));
        Some((KeyRange::new(self.start, before), KeyRange::new(at, self.last)))
    }

    /// Cuts the range into two halves; `None` for a single point.
    pub fn halves(self) -> Option<(KeyRange, KeyRange)> {
        let middle = self.span() / 2 + 1;
        self.split(KeyHash(self.start.0.wrapping_add(middle)))
    }

    /// Joins this range with the one that begins right after it; `None` if they do not touch so, or would overlap.
    pub fn merge(self, next: KeyRange) -> Option<KeyRange> {
        let touches = self.last.0.wrapping_add(1) == next.start.0;
        let fits = self.len() + next.len() <= KeyRange::FULL.len();
        (touches && fits).then_some(KeyRange::new(self.start, next.last))
    }

    /// The distance from the first point to the last.
    fn span(self) -> u64 {
        self.last.0.wrapping_sub(self.start.0)
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.start, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn key_hashes_are_pinned() {
        // Golden vectors: XXH3-64, seed 0. The first three are published with the reference implementation.
        for (key, hash) in [
            (&b""[..], 0x2d06800538d394c2u64),
            (b"a", 0xe6c632b61e964e1f),
            (b"abc", 0x78af5f94892f3950),
            (b"/app/config", 0xb4cb6db9a68fe5ca),
        ] {
            assert_eq!(KeyHash::of(key), KeyHash(hash), "{:?} {:x}", std::str::from_utf8(key), KeyHash::of(key).0);
        }
    }

    #[test]
    fn the_full_ring_wraps_from_anywhere() {
        let full = KeyRange::new(KeyHash(7), KeyHash(6));
        assert!(full.is_full() && full.contains(KeyHash(6)) && full.contains(KeyHash(0)));
        assert_eq!(full.len(), 1 << 64);
        let (left, right) = full.split(KeyHash(3)).unwrap();
        assert_eq!((left.last, right.start), (KeyHash(2), KeyHash(3)));
        assert_eq!(left.merge(right), Some(full));
        assert_eq!(full.merge(full), None);
        assert!(full.covers(KeyRange::FULL) && KeyRange::FULL.covers(full));
        assert!(full.covers(KeyRange::new(KeyHash(5), KeyHash(9))) && !KeyRange::point(KeyHash(5)).covers(full));
        assert_eq!(KeyRange::point(KeyHash(5)).halves(), None);
    }

    /// The reference: a ring of 256 points as a set. Its arcs are mapped onto the high byte of the real ring.
    fn small(start: u8, last: u8) -> (KeyRange, Vec<u8>) {
        let points = (0..=last.wrapping_sub(start)).map(|i| start.wrapping_add(i)).collect();
        let low = u64::from(start) << 56;
        let high = (u64::from(last) << 56) | (u64::MAX >> 8);
        (KeyRange::new(KeyHash(low), KeyHash(high)), points)
    }

    proptest! {
        #[test]
        fn a_full_range_covers_everything(start: u64, a: u64, b: u64) {
            let full = KeyRange::new(KeyHash(start), KeyHash(start.wrapping_sub(1)));
            prop_assert!(full.covers(KeyRange::new(KeyHash(a), KeyHash(b))));
        }

        #[test]
        fn ranges_agree_with_sets_of_points(a in any::<(u8, u8)>(), b in any::<(u8, u8)>(), cut in any::<u8>()) {
            let ((ra, sa), (rb, sb)) = (small(a.0, a.1), small(b.0, b.1));
            let at = KeyHash(u64::from(cut) << 56);
            prop_assert_eq!(ra.contains(at), sa.contains(&cut));
            prop_assert_eq!(ra.len(), (sa.len() as u128) << 56);
            prop_assert_eq!(ra.overlaps(rb), sa.iter().any(|p| sb.contains(p)));
            prop_assert_eq!(ra.covers(rb), sb.iter().all(|p| sa.contains(p)));
            match ra.split(at) {
                None => prop_assert!(cut == a.0 || !sa.contains(&cut)),
                Some((left, right)) => {
                    prop_assert!(!left.overlaps(right));
                    prop_assert_eq!(left.len() + right.len(), ra.len());
                    prop_assert_eq!(left.merge(right), Some(ra));
                }
            }
            let (left, right) = ra.halves().unwrap();
            prop_assert!(left.len().abs_diff(right.len()) <= 1);
            prop_assert_eq!(left.merge(right), Some(ra));
        }
    }
}
