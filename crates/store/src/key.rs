//! Keys of the ordered key-value space: one flat order that keeps (group, row, column) order.
//!
//! ```text
//!   M name                          meta: position, incarnation
//!   c ⟨group⟩ ⟨row⟩ column          a cell
//!   e ⟨topic⟩ number                a feed entry
//!   f ⟨group⟩ name                  a fence
//!   t topic                         a topic and its consumer groups
//! ```
//! A name in ⟨ ⟩ is escaped so that it can be followed by another: a zero byte becomes `00 FF`, the end is `00 01`. The
//! order of escaped names is the order of the names, and no escaped name is a prefix of another.

use bytes::{BufMut, Bytes, BytesMut};

const CELL: u8 = b'c';
const ENTRY: u8 = b'e';
const FENCE: u8 = b'f';
const TOPIC: u8 = b't';

/// How far the state has come, with the log's note.
pub const POSITION: &[u8] = b"Mposition";
/// The store's incarnation.
pub const INCARNATION: &[u8] = b"Mincarnation";

/// The key of a cell.
pub fn cell(group: &[u8], row: &[u8], column: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + group.len() + 2 + row.len() + 2 + column.len() + 4);
    out.put_u8(CELL);
    put_name(&mut out, group);
    put_name(&mut out, row);
    out.put_slice(column);
    out.freeze()
}

/// The first and the first-after key of the cells of one row.
pub fn row_range(group: &[u8], row: &[u8]) -> (Bytes, Bytes) {
    let mut from = BytesMut::with_capacity(group.len() + row.len() + 8);
    from.put_u8(CELL);
    put_name(&mut from, group);
    put_name(&mut from, row);
    let end = after_name(&from);
    (from.freeze(), end)
}

/// The first and the first-after key of the cells of a group's rows from `start` up to, but not including, `end`; an
/// empty bound is none.
pub fn rows_range(group: &[u8], start: &[u8], end: &[u8]) -> (Bytes, Bytes) {
    let mut prefix = BytesMut::with_capacity(group.len() + start.len().max(end.len()) + 8);
    prefix.put_u8(CELL);
    put_name(&mut prefix, group);
    let to = if end.is_empty() {
        after_name(&prefix)
    } else {
        // An escaped name without its end stands before that name and behind every smaller one.
        let mut to = prefix.clone();
        put_escaped(&mut to, end);
        to.freeze()
    };
    put_escaped(&mut prefix, start);
    (prefix.freeze(), to)
}

/// Where the row part of a cell's key ends and its column begins, the key's group part being `group_len` bytes long.
/// `None` if it is no cell's key.
pub fn column_start(key: &[u8], group_len: usize) -> Option<usize> {
    Some(group_len + name_len(key.get(group_len..)?)?)
}

/// How many bytes the group part of a cell's key has, the space's letter included.
pub fn group_part(group: &[u8]) -> usize {
    1 + escaped_len(group)
}

/// Reads one escaped name at the beginning of `bytes`; `None` if it is malformed.
pub fn read_name(bytes: &[u8]) -> Option<Bytes> {
    let len = name_len(bytes)?;
    let body = &bytes[..len - 2];
    let mut out = BytesMut::with_capacity(body.len());
    let mut i = 0;
    while i < body.len() {
        out.put_u8(body[i]);
        i += if body[i] == 0 { 2 } else { 1 };
    }
    Some(out.freeze())
}

/// The key of a fence.
pub fn fence(group: &[u8], name: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(group.len() + name.len() + 6);
    out.put_u8(FENCE);
    put_name(&mut out, group);
    out.put_slice(name);
    out.freeze()
}

/// The key of a topic.
pub fn topic(topic: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(topic.len() + 1);
    out.put_u8(TOPIC);
    out.put_slice(topic);
    out.freeze()
}

/// The key of a feed entry.
pub fn entry(topic: &[u8], number: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(topic.len() + 12);
    out.put_u8(ENTRY);
    put_name(&mut out, topic);
    out.put_u64(number);
    out.freeze()
}

/// The number at the end of a feed entry's key.
pub fn entry_number(key: &[u8]) -> Option<u64> {
    let at = key.len().checked_sub(8)?;
    Some(u64::from_be_bytes(key[at..].try_into().ok()?))
}

fn put_name(out: &mut BytesMut, name: &[u8]) {
    put_escaped(out, name);
    out.put_slice(&[0, 1]);
}

fn put_escaped(out: &mut BytesMut, mut name: &[u8]) {
    while let Some(zero) = name.iter().position(|b| *b == 0) {
        out.put_slice(&name[..zero]);
        out.put_slice(&[0, 0xff]);
        name = &name[zero + 1..];
    }
    out.put_slice(name);
}

fn escaped_len(name: &[u8]) -> usize {
    name.len() + name.iter().filter(|b| **b == 0).count() + 2
}

/// The length of the escaped name at the beginning, its end included.
fn name_len(bytes: &[u8]) -> Option<usize> {
    let mut i = 0;
    loop {
        i += bytes.get(i..)?.iter().position(|b| *b == 0)?;
        match bytes.get(i + 1)? {
            1 => return Some(i + 2),
            0xff => i += 2,
            _ => return None,
        }
    }
}

/// The first key after all that begin with `prefix`, which ends with the end of a name: 00 01 → 00 02.
fn after_name(prefix: &BytesMut) -> Bytes {
    let mut end = prefix.clone();
    if let Some(last) = end.last_mut() {
        *last = 2;
    }
    end.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Names of few letters around the escape's own bytes.
    fn name() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(0xfe), Just(0xff), Just(b'a')], 0..5)
    }

    proptest! {
        #[test]
        fn cells_keep_the_order_of_group_row_column(
            a in (name(), name(), name()),
            b in (name(), name(), name()),
        ) {
            let keys = (cell(&a.0, &a.1, &a.2), cell(&b.0, &b.1, &b.2));
            prop_assert_eq!(a.cmp(&b), keys.0.cmp(&keys.1));
        }

        #[test]
        fn a_range_holds_exactly_its_rows(
            group in name(), start in name(), end in name(),
            other in (name(), name(), name()),
        ) {
            let (from, to) = rows_range(&group, &start, &end);
            let key = cell(&other.0, &other.1, &other.2);
            let expected = other.0 == group && other.1 >= start && (end.is_empty() || other.1 < end);
            prop_assert_eq!(key >= from && key < to, expected);
            let (from, to) = row_range(&group, &start);
            prop_assert_eq!(key >= from && key < to, other.0 == group && other.1 == start);
        }

        #[test]
        fn a_cells_key_gives_its_row_and_column_back(group in name(), row in name(), column in name()) {
            let key = cell(&group, &row, &column);
            let group_len = group_part(&group);
            let column_at = column_start(&key, group_len).unwrap();
            prop_assert_eq!(&read_name(&key[1..]).unwrap()[..], &group[..]);
            prop_assert_eq!(&read_name(&key[group_len..]).unwrap()[..], &row[..]);
            prop_assert_eq!(&key[column_at..], &column[..]);
        }

        #[test]
        fn entries_are_in_the_order_of_their_numbers(t in name(), a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(entry(&t, a).cmp(&entry(&t, b)), a.cmp(&b));
            prop_assert_eq!(entry_number(&entry(&t, a)), Some(a));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Some(read) = read_name(&bytes) {
                let mut back = BytesMut::new();
                put_name(&mut back, &read);
                prop_assert!(bytes.starts_with(&back));
            }
        }
    }
}
