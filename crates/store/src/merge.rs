//! The merge rules of cells: newest wins; at equal timestamps a tombstone wins, then the larger bytes.
//!
//! The rules are a total order of versions and merging is its maximum, hence commutative, associative and idempotent:
//! writes may arrive in any order, repeatedly, and every copy ends with the same cell.

use bytes::{BufMut, Bytes, BytesMut};
use std::cmp::Ordering;

/// The largest timestamp a cell may have.
pub const MAX_TIMESTAMP: u64 = (1 << 63) - 1;

/// One version of a cell: its timestamp and its value, or a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// 1 … [`MAX_TIMESTAMP`], chosen by the writer.
    pub timestamp: u64,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
}

const TOMBSTONE: u8 = 0;
const VALUE: u8 = 1;
const HEAD: usize = 9;
/// What a tombstone that a collection has seen has more: when that was.
const SEEN: usize = 8;

impl Version {
    /// A version that holds a value.
    pub fn value(timestamp: u64, value: impl Into<Bytes>) -> Version {
        Version { timestamp, value: Some(value.into()) }
    }

    /// A tombstone.
    pub fn tombstone(timestamp: u64) -> Version {
        Version { timestamp, value: None }
    }

    /// The version that stays when `self` and `other` meet.
    pub fn merge(self, other: Version) -> Version {
        self.max(other)
    }

    /// The stored form: timestamp, kind, value.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEAD + self.value.as_ref().map_or(0, Bytes::len));
        out.put_u64(self.timestamp);
        match &self.value {
            None => out.put_u8(TOMBSTONE),
            Some(value) => {
                out.put_u8(VALUE);
                out.put_slice(value);
            }
        }
        out.freeze()
    }

    /// The stored form of a tombstone that a collection has seen, by its caller's time.
    pub fn encode_seen(&self, seen: u64) -> Bytes {
        let mut out = BytesMut::from(self.encode());
        out.put_u64(seen);
        out.freeze()
    }

    /// When a collection first saw the tombstone of this stored form; `None` if none has, or it is none.
    pub fn seen(stored: &Bytes) -> Option<u64> {
        let seen = stored.get(HEAD..).filter(|_| stored.get(HEAD - 1) == Some(&TOMBSTONE))?;
        Some(u64::from_be_bytes(seen.try_into().ok()?))
    }

    /// Reads the stored form; `None` if it is not one.
    pub fn decode(stored: &Bytes) -> Option<Version> {
        let (head, kind) = (stored.get(..8)?, *stored.get(8)?);
        let timestamp = u64::from_be_bytes(head.try_into().ok()?);
        match kind {
            TOMBSTONE if [HEAD, HEAD + SEEN].contains(&stored.len()) => Some(Version::tombstone(timestamp)),
            VALUE => Some(Version::value(timestamp, stored.slice(HEAD..))),
            _ => None,
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> Ordering {
        self.timestamp.cmp(&other.timestamp).then_with(|| match (&self.value, &other.value) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(mine), Some(theirs)) => mine.cmp(theirs),
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few timestamps and short values, so that ties of every kind happen.
    fn version() -> impl Strategy<Value = Version> {
        (1u64..4, proptest::option::of(proptest::collection::vec(0u8..3, 0..3)))
            .prop_map(|(timestamp, value)| Version { timestamp, value: value.map(Bytes::from) })
    }

    /// The rules as the platform states them, without the order behind them.
    fn model(versions: &[Version]) -> Version {
        let newest = versions.iter().map(|v| v.timestamp).max().unwrap();
        let tied: Vec<_> = versions.iter().filter(|v| v.timestamp == newest).collect();
        if tied.iter().any(|v| v.value.is_none()) {
            return Version::tombstone(newest);
        }
        Version { timestamp: newest, value: tied.iter().filter_map(|v| v.value.clone()).max() }
    }

    proptest! {
        #[test]
        fn merging_is_commutative_associative_and_idempotent(a in version(), b in version(), c in version()) {
            prop_assert_eq!(a.clone().merge(b.clone()), b.clone().merge(a.clone()));
            let left = a.clone().merge(b.clone()).merge(c.clone());
            prop_assert_eq!(left, a.clone().merge(b.merge(c)));
            prop_assert_eq!(a.clone().merge(a.clone()), a);
        }

        #[test]
        fn merging_in_any_order_follows_the_stated_rules(mut versions in proptest::collection::vec(version(), 1..8)) {
            let expected = model(&versions);
            let merged = versions.iter().cloned().reduce(Version::merge).unwrap();
            prop_assert_eq!(&merged, &expected);
            versions.reverse();
            prop_assert_eq!(versions.into_iter().reduce(Version::merge).unwrap(), expected);
        }

        #[test]
        fn the_stored_form_reads_back(v in version()) {
            prop_assert_eq!(Version::decode(&v.encode()), Some(v));
        }

        #[test]
        fn a_tombstone_that_was_seen_is_the_same_tombstone(timestamp in 1u64..9, seen in any::<u64>()) {
            let tombstone = Version::tombstone(timestamp);
            let stored = tombstone.encode_seen(seen);
            prop_assert_eq!((Version::seen(&stored), Version::seen(&tombstone.encode())), (Some(seen), None));
            prop_assert_eq!(Version::decode(&stored), Some(tombstone));
            prop_assert_eq!(Version::seen(&Version::value(timestamp, seen.to_be_bytes().to_vec()).encode()), None);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let bytes = Bytes::from(bytes);
            if let Some(v) = Version::decode(&bytes) {
                let again = Version::seen(&bytes).map_or(v.encode(), |seen| v.encode_seen(seen));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
