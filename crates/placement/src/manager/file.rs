//! What the manager keeps in the cell, file by file.

use super::table::Range;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tidings_base::{KeyHash, LeaseNumber};
use tidings_wire::v1;

/// The directory of all of it.
pub const ROOT: &str = "/placement";

/// The lock whose holder leads all namespaces.
pub const LEADER: &str = "/placement/leader";

/// Bytes of a row in a segment: 5,400 fit a file of 256 KiB.
pub const ROW: usize = 48;

/// The most rows of a segment.
pub const MAX_ROWS: usize = 5_400;

/// Owners in one file: of the longest names, addresses and proofs 256 fit 256 KiB.
pub const OWNERS_PER_FILE: u32 = 256;

/// A file of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File {
    /// The namespace.
    pub namespace: String,
    /// Which of its files.
    pub kind: Kind,
}

/// The files of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Instance, configuration, the next numbers.
    Meta,
    /// Owners by index, so many a file.
    Owners(u8),
    /// One of 256 pieces of the ring: the first byte of the key hash.
    Segment(u8),
}

impl File {
    /// Its path in the cell. A namespace's slashes become `%`, so that each has one directory.
    pub fn path(&self) -> String {
        let name = escape(&self.namespace);
        match self.kind {
            Kind::Meta => format!("{ROOT}/{name}/meta"),
            Kind::Owners(n) => format!("{ROOT}/{name}/owners/{n:02x}"),
            Kind::Segment(n) => format!("{ROOT}/{name}/table/{n:02x}"),
        }
    }
}

/// A namespace's name as one part of a path.
pub fn escape(namespace: &str) -> String {
    namespace.replace('%', "%25").replace('/', "%2f")
}

/// The namespace that a directory's name stands for.
pub fn unescape(name: &str) -> String {
    name.replace("%2f", "/").replace("%25", "%")
}

/// The first point of a segment, and its last.
pub fn bounds(segment: u8) -> (KeyHash, KeyHash) {
    let start = u64::from(segment) << 56;
    (KeyHash(start), KeyHash(start | (u64::MAX >> 8)))
}

/// The segment of a point.
pub fn segment_of(at: KeyHash) -> u8 {
    (at.0 >> 56) as u8
}

/// A segment's rows as they lie in its file.
pub fn encode_segment(ranges: &[(KeyHash, Range)]) -> Bytes {
    let mut rows = BytesMut::with_capacity(ranges.len() * ROW);
    for (start, range) in ranges {
        rows.put_u64(start.0);
        rows.put_u32(range.owner);
        rows.put_u32(range.lease.get());
        rows.put_u64(range.changed);
        rows.put_u64(range.lost);
        rows.put_u64(u64::from(range.pinned));
        // A new leader grants it with its state if this one does not live to (F9); 0 = it came without.
        rows.put_u64(range.token.unwrap_or_default());
    }
    v1::PlacementSegment { rows: rows.freeze() }.encode_to_vec().into()
}

/// The rows of a segment's file; `None` if it is none of ours.
pub fn decode_segment(segment: u8, bytes: Bytes) -> Option<Vec<(KeyHash, Range)>> {
    let mut rows = v1::PlacementSegment::decode(bytes).ok()?.rows;
    if rows.is_empty() || rows.len() % ROW != 0 {
        return None;
    }
    let (first, last) = bounds(segment);
    let mut ranges: Vec<(KeyHash, Range)> = Vec::with_capacity(rows.len() / ROW);
    while rows.has_remaining() {
        let start = KeyHash(rows.get_u64());
        let owner = rows.get_u32();
        let lease = LeaseNumber::new(rows.get_u32())?;
        let (changed, lost) = (rows.get_u64(), rows.get_u64());
        let pinned = rows.get_u64() & 1 == 1;
        let token = Some(rows.get_u64()).filter(|token| *token != 0);
        let expected = ranges.last_mut().map_or(start == first, |(before, range)| {
            range.last = KeyHash(start.0.wrapping_sub(1));
            *before < start && start <= last
        });
        if !expected {
            return None;
        }
        ranges.push((start, Range { owner, lease, changed, lost, pinned, token, ..Range::nobody(last) }));
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_escaping() {
        for name in ["objects", "app/objects", "a%2f/b", "%"] {
            assert_eq!(unescape(&escape(name)), name);
            assert!(!escape(name).contains('/'));
        }
    }

    #[test]
    fn a_segment_comes_back_as_it_was_and_nothing_else_is_taken() {
        let mut table = super::super::table::Table::new();
        table.cut(KeyHash(0x0500_0000_0000_0010));
        let rows: Vec<_> = table.segment(5).map(|(start, range)| (start, *range)).collect();
        let bytes = encode_segment(&rows);
        let rows = decode_segment(5, bytes.clone()).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].1.last, KeyHash(0x0500_0000_0000_000f));
        assert_eq!(rows[1].1.last, bounds(5).1);
        assert_eq!(decode_segment(6, bytes.clone()), None);
        assert_eq!(decode_segment(5, bytes.slice(..bytes.len() - 1)), None);
        assert_eq!(decode_segment(5, Bytes::new()), None);
    }
}
