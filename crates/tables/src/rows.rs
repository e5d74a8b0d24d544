//! How a table lies in the store: one group, its rows in four kinds.
//!
//! ```text
//!   r · key                  record = columns, predicate, writer, time, op @ version  (or the mark of a deletion)
//!   o · key · netid · seq    outcome = hash, outcome @ position                       R6: with the record, by its key
//!   w · netid                acked = acknowledged through @ that + 1, and when        the largest wins, whoever writes it;
//!                            one cell for each while in which the client was heard of
//!   p · partition            meta = records, bytes, counted? @ position               with every commit
//! ```
//! All are written under the fence (partition, lease · term); a split moves nothing, since children read the same rows.

use crate::names::{NetId, OperationId, PartitionId, TableId, Term};
use bytes::{BufMut, Bytes, BytesMut};
use std::borrow::Cow;
use std::time::Duration;
use tidings_base::{LeaseNumber, Wall};
use tidings_predicate::{Key, PartitionValue};
use tidings_wire::v1;

pub(crate) const CELL: &[u8] = b"v";
/// The column of a partition's row that says that its history has ended.
pub(crate) const SEALED: &[u8] = b"sealed";

/// The number of a fence that no lease reaches: the partition is sealed.
const SEAL: u64 = 1 << 62;
const BYTES: u8 = 0;
const STRING: u8 = 1;
const WITHIN: u8 = 2;
/// Kinds of values of a partition column.
const NUMBER: u8 = 0;
const TEXT: u8 = 1;

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

/// Bytes that stand in the order of keys, and their kind.
fn parts(key: &Key) -> (u8, Cow<'_, [u8]>) {
    match (key, key.partition_value()) {
        (Key::Bytes(bytes), _) => (BYTES, Cow::Borrowed(bytes)),
        (Key::String(text), _) => (STRING, Cow::Borrowed(text.as_bytes())),
        (Key::Within(_), value) => {
            let mut all = BytesMut::with_capacity(key.size() + 16);
            match value {
                // Negative numbers come first.
                Some(PartitionValue::Int(number)) => {
                    all.put_u8(NUMBER);
                    all.put_u64(number.cast_unsigned() ^ (1 << 63));
                }
                Some(PartitionValue::String(text)) => {
                    all.put_u8(TEXT);
                    ended(&mut all, text.as_bytes());
                }
                None => {}
            }
            let (kind, own) = parts(key.own());
            all.put_u8(kind);
            all.put_slice(&own);
            (WITHIN, Cow::Owned(all.to_vec()))
        }
    }
}

/// Bytes behind which others may stand, in their order all the same.
fn ended(all: &mut BytesMut, bytes: &[u8]) {
    for byte in bytes {
        all.put_u8(*byte);
        if *byte == 0 {
            all.put_u8(0xff);
        }
    }
    all.put_u16(0);
}

/// What [`ended`] wrote, and what stands behind it.
fn until_end(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (mut found, mut rest) = (Vec::new(), bytes);
    loop {
        match rest {
            [0, 0, rest @ ..] => return Some((found, rest)),
            [0, 0xff, after @ ..] => {
                found.push(0);
                rest = after;
            }
            [byte, after @ ..] if *byte != 0 => {
                found.push(*byte);
                rest = after;
            }
            _ => return None,
        }
    }
}

/// A key's kind and bytes, one after the other: in the order of keys.
pub(crate) fn key(key: &Key) -> Vec<u8> {
    let (kind, bytes) = parts(key);
    [&[kind][..], &bytes].concat()
}

/// The key of what [`key`] wrote.
pub(crate) fn read_key(bytes: &[u8]) -> Option<Key> {
    match bytes {
        [BYTES, bytes @ ..] => Some(Key::Bytes(bytes.to_vec())),
        [STRING, text @ ..] => Some(Key::String(String::from_utf8(text.to_vec()).ok()?)),
        [WITHIN, NUMBER, rest @ ..] => {
            let (number, own) = rest.split_first_chunk()?;
            let number = (u64::from_be_bytes(*number) ^ (1 << 63)).cast_signed();
            Some(Key::within(number, read_own(own)?))
        }
        [WITHIN, TEXT, rest @ ..] => {
            let (text, own) = until_end(rest)?;
            Some(Key::within(String::from_utf8(text).ok()?, read_own(own)?))
        }
        _ => None,
    }
}

/// A key that is within no value.
fn read_own(bytes: &[u8]) -> Option<Key> {
    read_key(bytes).filter(|key| key.partition_value().is_none())
}

/// The row of a record: rows stand in the order of keys.
pub(crate) fn record(key: &Key) -> Bytes {
    let (kind, bytes) = parts(key);
    [&[b'r', kind][..], &bytes].concat().into()
}

/// The key of a record's row.
pub(crate) fn key_of(row: &[u8]) -> Option<Key> {
    row.strip_prefix(b"r").and_then(read_key)
}

/// The shortest beginning of a key that stands behind another. Where another value of the partition column begins, there.
pub(crate) fn between(left: &Key, right: &Key) -> Key {
    let beginnings: Vec<Key> = match (right, right.partition_value()) {
        (Key::Bytes(bytes), _) => (1..bytes.len()).map(|end| Key::from(&bytes[..end])).collect(),
        (Key::String(text), _) => text.char_indices().skip(1).map(|(end, _)| Key::from(&text[..end])).collect(),
        (_, Some(value)) if left.partition_value() == Some(value) => {
            return Key::within(value.clone(), between(left.own(), right.own()));
        }
        (_, value) => value.cloned().map(Key::first_within).into_iter().collect(),
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
    ended(&mut row, &bytes);
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

/// The cell of what a client has acknowledged. Each while has a column of its own: what is removed of an earlier one hides
/// nothing of a later one, though it may be the same number.
pub(crate) fn watermark(timestamp: u64, heard: Bytes, a_while: Duration) -> v1::Cell {
    let at = which_while(&heard, a_while).unwrap_or_default();
    let column = [&b"w"[..], &at.to_be_bytes()].concat().into();
    v1::Cell { column, timestamp, value: Some(heard) }
}

/// In which while somebody was heard of.
pub(crate) fn which_while(heard: &[u8], a_while: Duration) -> Option<u64> {
    let micros = u64::try_from(a_while.as_micros()).unwrap_or(u64::MAX);
    Some(heard_at(heard)?.0 / micros.max(1))
}

/// The row of a partition.
pub(crate) fn meta(number: u32) -> Bytes {
    [&b"p"[..], &number.to_be_bytes()].concat().into()
}

/// A cell; no value = a tombstone.
pub(crate) fn cell(timestamp: u64, value: Option<Bytes>) -> v1::Cell {
    v1::Cell { column: Bytes::from_static(CELL), timestamp, value }
}

/// The cell of a row that was read: of what a client has acknowledged the largest.
pub(crate) fn found(row: &v1::Row) -> Option<(u64, Bytes)> {
    let all = is_acked(&row.row);
    let cells = row.cells.iter().filter(|cell| all || cell.column == CELL);
    cells.filter_map(|cell| Some((cell.timestamp, cell.value.clone()?))).max()
}

/// Which columns of a row are read; none = all.
pub(crate) fn columns(row: &[u8]) -> Vec<Bytes> {
    if is_acked(row) { Vec::new() } else { vec![Bytes::from_static(CELL)] }
}

/// Whether a row is what a client has acknowledged.
pub(crate) fn is_acked(row: &[u8]) -> bool {
    row.first() == Some(&b'w')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_keys() {
        let mut keys: Vec<Key> = ["", "a", "a\0", "ab", "b", "é"].map(Key::from).to_vec();
        keys.extend([&[][..], &[0], &[0, 0], &[0, 1], &[0, 255], &[255]].map(|bytes: &[u8]| Key::from(bytes)));
        let own: Vec<Key> = keys.iter().filter(|key| key.size() < 3).cloned().collect();
        for value in [i64::MIN, -1, 0, i64::MAX]
            .map(PartitionValue::from)
            .into_iter()
            .chain(["", "a", "a\0", "b"].map(PartitionValue::from))
        {
            keys.extend(own.iter().map(|own| Key::within(value.clone(), own.clone())));
        }
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
        let rome = |own: &str| Key::within("Rome", own);
        assert_eq!(between(&rome("ann"), &rome("bob")), rome("b"));
        assert_eq!(between(&Key::within("Paris", "zoe"), &rome("bob")), Key::first_within("Rome"));
        assert_eq!(between(&Key::within(3, "zoe"), &Key::within(5, "bob")), Key::first_within(5));
        assert_eq!(between(&Key::from(&[1u8, 2][..]), &Key::from(&[1u8, 3, 4][..])), Key::from(&[1u8, 3][..]));
        assert_eq!(operation_of(&outcome(&keys[3], op)), Some(op));
    }
}
