//! The table as a front end's threads search it: a picture that is built once, read without locks, and replaced.
//!
//! A search is one look into an index by the hash's high bits and, mostly, one comparison.

use crate::lookup::{Table, TableOwner};
use crate::published::picture;
use tidings_base::{KeyHash, LeaseNumber};

/// Index entries for each range, so that few searches need a second comparison.
const SPREAD: usize = 4;

/// The smallest and the largest index, as bits of the hash: 4 KiB to 1 MiB.
const BITS: (u32, u32) = (10, 18);

/// Nobody.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Place among the owners.
    owner: u32,
    lease: LeaseNumber,
}

/// Who is said to own a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The owner's place: see [`Directory::owner`].
    pub owner: u32,
    /// The range's lease number.
    pub lease: LeaseNumber,
}

/// A table that can be searched fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// First points, in order; the first is zero.
    starts: Vec<u64>,
    /// What begins there.
    rows: Vec<Row>,
    /// For each value of the high bits, the last range that begins with them or before.
    index: Vec<u32>,
    shift: u32,
    owners: Vec<TableOwner>,
}

picture!(Directory);

impl Directory {
    /// The picture of a table. What it does not cover is nobody's.
    pub fn of(table: &Table) -> Directory {
        let places: Vec<u32> = table.owners.keys().copied().collect();
        let nobody = Row { owner: NOBODY, lease: LeaseNumber::default() };
        let mut starts = Vec::with_capacity(table.rows.len() + 1);
        let mut rows = Vec::with_capacity(table.rows.len() + 1);
        // The first point that is not covered yet; `None` past the end of the ring.
        let mut next = Some(0u64);
        for (start, row) in &table.rows {
            if next.is_some_and(|at| at < start.0) {
                starts.extend(next);
                rows.push(nobody);
            }
            let owner = row.owner.and_then(|owner| places.binary_search(&owner).ok());
            starts.push(start.0);
            rows.push(Row { owner: owner.map_or(NOBODY, |place| place as u32), lease: row.lease });
            next = row.last.0.checked_add(1);
        }
        if let Some(at) = next {
            starts.push(at);
            rows.push(nobody);
        }
        let bits = (starts.len() * SPREAD).next_power_of_two().trailing_zeros().clamp(BITS.0, BITS.1);
        let shift = 64 - bits;
        let mut at = 0;
        let index = (0..1u64 << bits).map(|bucket| {
            let end = (bucket << shift) | (u64::MAX >> bits);
            while starts.get(at + 1).is_some_and(|start| *start <= end) {
                at += 1;
            }
            at as u32
        });
        let index = index.collect();
        Directory { starts, rows, index, shift, owners: table.owners.values().cloned().collect() }
    }

    /// Who is said to own a key; `None` = nobody.
    #[inline]
    pub fn find(&self, hash: KeyHash) -> Option<Found> {
        let mut at = *self.index.get((hash.0 >> self.shift) as usize)? as usize;
        while *self.starts.get(at)? > hash.0 {
            at = at.checked_sub(1)?;
        }
        let row = self.rows.get(at)?;
        (row.owner != NOBODY).then_some(Found { owner: row.owner, lease: row.lease })
    }

    /// The owner at a place that [`Directory::find`] told; `None` if it was another picture's.
    pub fn owner(&self, place: u32) -> Option<&TableOwner> {
        self.owners.get(place as usize)
    }

    /// How many ranges each owner has, in the order of their places, and how many nobody has.
    pub fn shares(&self) -> (Vec<(&TableOwner, usize)>, usize) {
        let mut shares: Vec<(&TableOwner, usize)> = self.owners.iter().map(|owner| (owner, 0)).collect();
        let mut unowned = 0;
        for row in &self.rows {
            match shares.get_mut(row.owner as usize) {
                Some((_, ranges)) => *ranges += 1,
                None => unowned += 1,
            }
        }
        (shares, unowned)
    }

    /// How many ranges it has.
    #[allow(clippy::len_without_is_empty)] // A directory always covers the whole ring.
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

impl Default for Directory {
    /// Nobody owns anything.
    fn default() -> Directory {
        Directory::of(&Table::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup;
    use proptest::prelude::*;

    #[test]
    fn an_empty_directory_knows_nobody() {
        assert_eq!(Directory::default().find(KeyHash(u64::MAX)), None);
    }

    proptest! {
        /// The reference: the table itself.
        #[test]
        fn a_directory_agrees_with_its_table(
            rows in proptest::collection::btree_map(any::<u64>(), (any::<u64>(), 0u32..4), 0..60),
            keys in proptest::collection::vec(any::<u64>(), 1..60),
        ) {
            let starts: Vec<u64> = rows.keys().copied().collect();
            let mut table = Table::default();
            for (i, (start, (last, owner))) in rows.into_iter().enumerate() {
                // Ranges that do not overlap, with gaps between some of them.
                let end = starts.get(i + 1).map_or(u64::MAX, |next| next - 1);
                let row = lookup::Row {
                    last: KeyHash(if last % 2 == 0 { end } else { start + last % (end - start + 1).max(1) }),
                    owner: Some(owner).filter(|owner| *owner != 0),
                    lease: LeaseNumber::new(i as u32).unwrap(),
                };
                table.rows.insert(KeyHash(start), row);
            }
            for index in 1..3 {
                table.owners.insert(index, TableOwner { id: index.to_string(), address: "a:1".into() });
            }
            let directory = Directory::of(&table);
            let edges = table.rows.iter().flat_map(|(start, row)| [start.0, row.last.0, row.last.0.wrapping_add(1)]);
            for key in keys.into_iter().chain(edges).map(KeyHash) {
                let found = directory.find(key).map(|found| (directory.owner(found.owner).unwrap(), found.lease));
                prop_assert_eq!(found, table.find(key));
            }
        }
    }
}
