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

    /// Reads the stored form; `None` if it is not one.
    pub fn decode(stored: &Bytes) -> Option<Version> {
        let (head, kind) = (stored.get(..8)?, *stored.get(8)?);
        let timestamp = u64::from_be_bytes(head.try_into().ok()?);
        match kind {
            TOMBSTONE if stored.len() == HEAD => Some(Version::tombstone(timestamp)),
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
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let bytes = Bytes::from(bytes);
            if let Some(v) = Version::decode(&bytes) {
                prop_assert_eq!(v.encode(), bytes);
            }
        }
    }
}
