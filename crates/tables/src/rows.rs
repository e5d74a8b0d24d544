//! How a table lies in the store: one group, its rows in four kinds.
//!
//! ```text
//!   r · key                  record = columns, predicate, writer, time, op @ version  (or the mark of a deletion)
//!   o · key · netid · seq    outcome = hash, outcome @ position                       R6: with the record, by its key
//!   w · netid                acked = acknowledged through @ that + 1, and when        the largest wins, whoever writes it
//!   p · partition            meta = records, bytes, counted? @ position               with every commit
//! ```
//! All are written under the fence (partition, lease · term); a split moves nothing, since children read the same rows.

use crate::names::{NetId, OperationId, PartitionId, TableId, Term};
use bytes::{BufMut, Bytes, BytesMut};
use tidings_base::{LeaseNumber, Wall};
use tidings_predicate::Key;
use tidings_wire::v1;

pub(crate) const CELL: &[u8] = b"v";
/// The column of a partition's row that says that its history has ended.
pub(crate) const SEALED: &[u8] = b"sealed";

/// The number of a fence that no lease reaches: the partition is sealed.
const SEAL: u64 = 1 << 62;
const BYTES: u8 = 0;
const STRING: u8 = 1;

/// The group of a table in the store.
pub fn group(table: TableId) -> Bytes {
    format!(".tables/{table}").into()
}

/// R2: the fence of a partition. The term tells apart owners that followed each other under one lease.
pub(crate) fn fence(partition: PartitionId, lease: LeaseNumber, term: Term) -> v1::Fence {
    v1::Fence { name: name(partition), number: ((u64::from(lease.get()) << 23) | u64::from(term.get())) + 1 }
}

/// The fence that ends a partition.
pub(crate) fn seal(partition: PartitionId) -> v1::Fence {
    v1::Fence { name: name(partition), number: SEAL }
}

fn name(partition: PartitionId) -> Bytes {
    partition.number.to_be_bytes().to_vec().into()
}

fn parts(key: &Key) -> (u8, &[u8]) {
    match key {
        Key::Bytes(bytes) => (BYTES, bytes),
        Key::String(text) => (STRING, text.as_bytes()),
    }
}

/// The row of a record: rows stand in the order of keys.
pub(crate) fn record(key: &Key) -> Bytes {
    let (kind, bytes) = parts(key);
    [&[b'r', kind][..], bytes].concat().into()
}

/// The key of a record's row.
pub(crate) fn key_of(row: &[u8]) -> Option<Key> {
    match row {
        [b'r', BYTES, bytes @ ..] => Some(Key::Bytes(bytes.to_vec())),
        [b'r', STRING, text @ ..] => Some(Key::String(String::from_utf8(text.to_vec()).ok()?)),
        _ => None,
    }
}

/// The shortest beginning of a key that stands behind another.
pub(crate) fn between(left: &Key, right: &Key) -> Key {
    let beginnings: Vec<Key> = match right {
        Key::Bytes(bytes) => (1..bytes.len()).map(|end| Key::from(&bytes[..end])).collect(),
        Key::String(text) => text.char_indices().skip(1).map(|(end, _)| Key::from(&text[..end])).collect(),
    };
    beginnings.into_iter().find(|beginning| beginning > left).unwrap_or_else(|| right.clone())
}

/// Where records of these keys stand.
pub(crate) fn records(start: Option<&Key>, end: Option<&Key>) -> (Bytes, Bytes) {
    (start.map_or_else(|| Bytes::from_static(b"r"), record), end.map_or_else(|| Bytes::from_static(b"s"), record))
}

/// The next row after one.
pub(crate) fn after(row: &Bytes) -> Bytes {
    [&row[..], &[0]].concat().into()
}

/// The beginning of the rows of outcomes of a key.
fn outcomes_of(key: &Key) -> BytesMut {
    let (kind, bytes) = parts(key);
    let mut row = BytesMut::with_capacity(bytes.len() + 32);
    row.put_u8(b'o');
    row.put_u8(kind);
    for byte in bytes {
        row.put_u8(*byte);
        if *byte == 0 {
            row.put_u8(0xff);
        }
    }
    row.put_u16(0);
    row
}

/// The row of an operation's outcome.
pub(crate) fn outcome(key: &Key, op: OperationId) -> Bytes {
    let mut row = outcomes_of(key);
    row.put_slice(&op.netid.0);
    row.put_u64(op.seq);
    row.freeze()
}

/// The operation of an outcome's row.
pub(crate) fn operation_of(row: &[u8]) -> Option<OperationId> {
    let at = row.len().checked_sub(24)?;
    let (netid, seq) = row[at..].split_at(16);
    Some(OperationId { netid: NetId(netid.try_into().ok()?), seq: u64::from_be_bytes(seq.try_into().ok()?) })
}

/// Where outcomes of these keys stand.
pub(crate) fn outcomes(start: Option<&Key>, end: Option<&Key>) -> (Bytes, Bytes) {
    let edge = |key: Option<&Key>, open: &'static [u8]| {
        key.map_or_else(|| Bytes::from_static(open), |key| outcomes_of(key).freeze())
    };
    (edge(start, b"o"), edge(end, b"p"))
}

/// The row of what a client has acknowledged.
pub(crate) fn acked(netid: NetId) -> Bytes {
    [&b"w"[..], &netid.0].concat().into()
}

/// Where they stand.
pub(crate) fn all_acked() -> (Bytes, Bytes) {
    (Bytes::from_static(b"w"), Bytes::from_static(b"x"))
}

/// When a client was heard of, as it lies beside what it has acknowledged.
pub(crate) fn heard(now: Wall) -> Bytes {
    now.0.to_be_bytes().to_vec().into()
}

/// When that was; none of a row from before it was noted.
pub(crate) fn heard_at(value: &[u8]) -> Option<Wall> {
    value.try_into().ok().map(|bytes| Wall(u64::from_be_bytes(bytes)))
}

/// The row of a partition.
pub(crate) fn meta(number: u32) -> Bytes {
    [&b"p"[..], &number.to_be_bytes()].concat().into()
}

/// A cell; no value = a tombstone.
pub(crate) fn cell(timestamp: u64, value: Option<Bytes>) -> v1::Cell {
    v1::Cell { column: Bytes::from_static(CELL), timestamp, value }
}

/// The cell of a row that was read.
pub(crate) fn found(row: &v1::Row) -> Option<(u64, Bytes)> {
    let cell = row.cells.iter().find(|cell| cell.column == CELL)?;
    Some((cell.timestamp, cell.value.clone()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_keys() {
        let mut keys: Vec<Key> = ["", "a", "a\0", "ab", "b", "é"].map(Key::from).to_vec();
        keys.extend([&[][..], &[0], &[0, 0], &[0, 1], &[0, 255], &[255]].map(|bytes: &[u8]| Key::from(bytes)));
        keys.sort();
        let op = OperationId { netid: NetId([7; 16]), seq: 9 };
        for two in keys.windows(2) {
            assert!(record(&two[0]) < record(&two[1]), "{two:?}");
            assert!(outcome(&two[0], op) < outcome(&two[1], op), "{two:?}");
            let (start, end) = outcomes(Some(&two[0]), Some(&two[1]));
            assert!(start <= outcome(&two[0], op) && outcome(&two[0], op) < end && end <= outcome(&two[1], op));
        }
        assert!(keys.iter().all(|key| key_of(&record(key)).as_ref() == Some(key)));
        for (left, right, at) in [("ann", "bob", "b"), ("ann", "anna", "anna"), ("éa", "éb", "éb"), ("a", "é", "é")]
        {
            assert_eq!(between(&left.into(), &right.into()), Key::from(at));
        }
        assert_eq!(between(&Key::from(&[1u8, 2][..]), &Key::from(&[1u8, 3, 4][..])), Key::from(&[1u8, 3][..]));
        assert_eq!(operation_of(&outcome(&keys[3], op)), Some(op));
    }
}
