//! Entries on their way to another sketcher's table, with a range that is handed over cleanly (rule J).
//!
//! An entry does not know its place on the ring, but its shard is part of the ring: so whole shards are carried, those that
//! lie within the range, into the same shards and buckets of a table that is divided alike. What is not carried costs a
//! replicated read, no more.

use super::bucket::Row;
use crate::sketch::Sketch;
use tidings_base::Incarnation;

/// Says which form the bytes have.
const FORM: u32 = 1;
const HEAD: usize = 4 * 4 + 8;
const ITEM: usize = 3 * 4 + 16 + 8 + 1;
/// Places have 61 bits.
const MOST_PLACE: u64 = (1 << 61) - 1;

/// Entries of some shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub(super) shards: u32,
    pub(super) buckets: u32,
    pub(super) incarnation: Incarnation,
    pub(super) items: Vec<Item>,
}

/// One entry, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) shard: u32,
    pub(super) bucket: u32,
    pub(super) tag: u32,
    pub(super) row: Row,
}

impl Carried {
    /// The most bytes of one range; entries beyond are left behind.
    pub const MOST_BYTES: usize = 16 << 20;
    pub(super) const MOST_ITEMS: usize = (Self::MOST_BYTES - HEAD) / ITEM;

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many bytes they are as they travel.
    pub fn length(&self) -> usize {
        HEAD + ITEM * self.items.len()
    }

    /// As they travel.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        let count = self.items.len() as u32;
        [FORM, self.shards, self.buckets, count].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(self.incarnation.0.to_le_bytes());
        for Item { shard, bucket, tag, row } in &self.items {
            [shard, bucket, tag].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(row.sketch.0);
            bytes.extend(row.place.to_le_bytes());
            bytes.push(row.black.into());
        }
        bytes
    }

    /// As they came, if that is what they are.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Carried> {
        let bytes = &mut bytes;
        let form = number(bytes)?;
        let (shards, buckets, count) = (number(bytes)?, number(bytes)?, number(bytes)? as usize);
        let incarnation = Incarnation(long(bytes)?);
        if form != FORM || count > Self::MOST_ITEMS || bytes.len() != count * ITEM {
            return None;
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let (shard, bucket, tag) = (number(bytes)?, number(bytes)?, number(bytes)?);
            let (sketch, rest) = bytes.split_first_chunk::<16>()?;
            *bytes = rest;
            let place = long(bytes).filter(|place| *place <= MOST_PLACE)?;
            let (black, rest) = bytes.split_first()?;
            *bytes = rest;
            if *black > 1 {
                return None;
            }
            items.push(Item { shard, bucket, tag, row: Row { sketch: Sketch(*sketch), place, black: *black == 1 } });
        }
        Some(Carried { shards, buckets, incarnation, items })
    }
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*first))
}

fn long(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*first))
}
