//! Cursors: where a client is in each partition, sealed so that nobody reads or makes one (R4, R8).

use super::Sealer;
use crate::names::{Position, TableId};
use bytes::{Buf, BufMut};
use std::collections::BTreeMap;
use tidings_predicate::query::Ask;
use tidings_predicate::{Packed, Value};

const FORMAT: u8 = 1;

/// Claims that change whenever somebody authenticates again and say nothing about who it is.
const PASSING: [&str; 4] = ["exp", "iat", "nbf", "jti"];

/// What a cursor holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub table: TableId,
    /// What was asked: a cursor is of one query.
    pub ask: u64,
    /// The reader it was made for: for another one everything may look different.
    pub reader: u64,
    pub epoch: u64,
    pub positions: BTreeMap<u32, Position>,
}

impl Cursor {
    pub fn seal(&self, sealer: &dyn Sealer, open: bool) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        for number in [self.table.0, self.ask, self.reader, self.epoch] {
            bytes.put_u64(number);
        }
        for (number, position) in &self.positions {
            bytes.put_u32(*number);
            bytes.put_u64(position.get());
        }
        if open { bytes } else { sealer.seal(&bytes) }
    }

    pub fn open(sealed: &[u8], sealer: &dyn Sealer, open: bool) -> Option<Cursor> {
        let bytes = if open { sealed.to_vec() } else { sealer.open(sealed)? };
        let mut rest = bytes.as_slice();
        if rest.len() < 33 || rest.get_u8() != FORMAT || (rest.len() - 32) % 12 != 0 {
            return None;
        }
        let (table, ask, reader, epoch) = (TableId(rest.get_u64()), rest.get_u64(), rest.get_u64(), rest.get_u64());
        let mut positions = BTreeMap::new();
        while rest.has_remaining() {
            let number = rest.get_u32();
            positions.insert(number, Position::from_u64(rest.get_u64())?);
        }
        Some(Cursor { table, ask, reader, epoch, positions })
    }
}

/// What tells queries apart.
pub(super) fn hash_of_ask(ask: &Ask) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{ask:?}").as_bytes())
}

/// What tells readers apart.
pub(super) fn hash_of_reader(data: &Packed, claims: &Packed) -> u64 {
    let mut lasting = claims.unpack();
    if let Value::Map(claims) = &mut lasting {
        claims.retain(|name, _| !PASSING.contains(&name.as_str()));
    }
    let claims = Packed::pack(&lasting).unwrap_or_else(|_| Packed::empty());
    xxhash_rust::xxh3::xxh3_64_with_seed(claims.as_bytes(), xxhash_rust::xxh3::xxh3_64(data.as_bytes()))
}
