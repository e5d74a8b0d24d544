//! F3: what is left of earlier incarnations and generations is deleted. One look through the store's groups, step by step.
//!
//! Nobody reads such rows any more: after a loss or a reset everything begins under other keys. Each cell goes at its own
//! timestamp, so a look may be repeated, and two at a time do no harm; what somebody who has not heard yet still writes there
//! goes with the next look. What is *later* than the realm that is known here stays: whoever looks may be behind.

use crate::mutant::Mutant;
use crate::names;
use crate::rows::{self, GROUPS, Realm, SCRATCH, StoreReply, StoreRequest};
use bytes::Bytes;
use std::collections::VecDeque;
use tidings_wire::v1;

/// Rows of one page; the store ends it earlier where rows are large.
const PAGE: u32 = 256;
/// Cells that one write deletes. The longest names of rows and columns have some 1,300 and 1,050 bytes, and a command of the
/// store 2 MiB.
const CELLS: usize = 512;

/// One look.
#[derive(Clone, Debug)]
pub struct Leftovers {
    realm: Realm,
    /// Groups that are still to be looked through, the present one last.
    groups: Vec<&'static [u8]>,
    from: Bytes,
    /// What the last page had of leftovers, as it is to be deleted.
    found: VecDeque<Deletion>,
    mutant: Option<Mutant>,
}

/// One write.
#[derive(Clone, Debug, Default)]
struct Deletion {
    group: &'static [u8],
    rows: Vec<v1::RowWrite>,
    cells: usize,
    /// Rows of which nothing is left behind it.
    ended: u64,
}

impl Leftovers {
    /// A look that deletes what is earlier than this realm.
    pub fn new(realm: Realm, mutant: Option<Mutant>) -> Leftovers {
        let groups = GROUPS.to_vec();
        Leftovers { realm, groups, from: Bytes::new(), found: VecDeque::new(), mutant }
    }

    /// What the store is to do next; `None` when the look is over.
    pub fn step(&self) -> Option<StoreRequest> {
        if let Some(Deletion { group, rows, .. }) = self.found.front() {
            let group = v1::GroupWrite { group: Bytes::from_static(group), rows: rows.clone(), fence: None };
            return Some(StoreRequest::Write(v1::Apply { groups: vec![group] }));
        }
        let group = Bytes::from_static(self.groups.last()?);
        let (start, end) = (self.from.clone(), self.end());
        Some(StoreRequest::Scan(v1::Scan { group, start, end, limit: PAGE, columns: Vec::new() }))
    }

    /// It has done so; how many rows are gone.
    pub fn done(&mut self, reply: StoreReply) -> u64 {
        match reply {
            StoreReply::Rows(page) => {
                page.rows.into_iter().for_each(|row| self.take(row));
                if page.next.is_none() {
                    self.groups.pop();
                }
                self.from = page.next.unwrap_or_default();
                0
            }
            StoreReply::Written => self.found.pop_front().map_or(0, |deletion| deletion.ended),
            // It was not asked for one.
            StoreReply::Row(_) => 0,
        }
    }

    /// Where a look ends: only where an application was reset, rows of the present incarnation may be leftovers.
    fn end(&self) -> Bytes {
        let reset = self.realm.generations.values().any(|generation| *generation > 0);
        let incarnation = self.realm.incarnation;
        let end = if reset { incarnation.saturating_add(1) } else { incarnation };
        Bytes::copy_from_slice(&end.to_be_bytes())
    }

    fn take(&mut self, row: v1::Row) {
        let Some(group) = self.groups.last().copied() else { return };
        if !self.is_left_over(group, &row.row) {
            return;
        }
        let mut cells = row.cells.into_iter().map(|cell| rows::gone(cell.column, cell.timestamp)).peekable();
        while cells.peek().is_some() {
            if self.found.back().is_none_or(|last| last.group != group || last.cells >= CELLS) {
                self.found.push_back(Deletion { group, ..Default::default() });
            }
            let Some(last) = self.found.back_mut() else { return };
            let piece: Vec<v1::Cell> = cells.by_ref().take(CELLS - last.cells).collect();
            last.cells += piece.len();
            last.ended += u64::from(cells.peek().is_none());
            last.rows.push(v1::RowWrite { row: row.row.clone(), cells: piece });
        }
    }

    /// Whether a row is of an earlier incarnation, or of an earlier generation of its application. One whose name says
    /// nothing of that is nobody's to delete.
    fn is_left_over(&self, group: &[u8], row: &[u8]) -> bool {
        let incarnation = row.get(..8).and_then(|head| head.try_into().ok()).map(u64::from_be_bytes);
        let Some(incarnation) = incarnation.filter(|_| self.mutant != Some(Mutant::LeftoversKept)) else {
            return false;
        };
        if incarnation != self.realm.incarnation {
            return incarnation < self.realm.incarnation;
        }
        let key = rows::key_of_row(row);
        // F11: a scratch row has the hash of where it lies in front of its object's key.
        let key = if group == SCRATCH { key.get(8..).unwrap_or(&[]) } else { key };
        names::generation_of(key).is_some_and(|(app, generation)| generation < self.realm.generation(app))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ClientKey, ObjectKey};
    use crate::rows::{MATCHER, REGISTRAR};
    use std::collections::BTreeMap;

    /// Rows of the three groups by their keys, each with so many cells.
    type Stored = BTreeMap<(&'static [u8], Bytes), usize>;

    fn realm(incarnation: u64, generation: u32) -> Realm {
        Realm { incarnation, generations: [("a".to_owned(), generation)].into_iter().filter(|it| it.1 > 0).collect() }
    }

    /// Every kind of row, of an incarnation and a generation.
    fn rows_of(incarnation: u64, generation: u32) -> Stored {
        let object = ObjectKey::new("a", generation, b"o");
        let ann = ClientKey::new("a", generation, "ann", [1; 16]);
        let rows = [
            (REGISTRAR, rows::row(incarnation, ann.as_bytes())),
            (MATCHER, rows::row(incarnation, object.as_bytes())),
            (MATCHER, rows::bucket_row(incarnation, &object, &ann)),
            (SCRATCH, rows::scratch_row(incarnation, &object, 0)),
            (SCRATCH, rows::scratch_row(incarnation, &object, 3)),
        ];
        rows.into_iter().map(|key| (key, 1)).collect()
    }

    fn all(of: impl IntoIterator<Item = (u64, u32)>) -> Stored {
        of.into_iter().flat_map(|(incarnation, generation)| rows_of(incarnation, generation)).collect()
    }

    /// Lets a look do its work, with pages of so many rows; how many rows it says are gone.
    fn look(stored: &mut Stored, mut look: Leftovers, page: usize) -> u64 {
        let mut gone = 0;
        while let Some(step) = look.step() {
            gone += look.done(match step {
                StoreRequest::Scan(scan) => {
                    let ours = |(group, row): &&(&'static [u8], Bytes)| {
                        *group == scan.group && *row >= scan.start && *row < scan.end
                    };
                    let mut found: Vec<_> =
                        stored.keys().filter(ours).map(|(group, row)| (*group, row.clone())).collect();
                    let next = (found.len() > page).then(|| found.split_off(page).swap_remove(0).1);
                    let rows = found.into_iter().map(|key| {
                        let cells = (0..stored[&key]).map(|n| rows::cell(n.to_be_bytes().to_vec(), 7, "")).collect();
                        v1::Row { row: key.1, cells }
                    });
                    StoreReply::Rows(v1::Rows { rows: rows.collect(), next })
                }
                StoreRequest::Write(apply) => {
                    let cells: usize = apply.groups[0].rows.iter().map(|row| row.cells.len()).sum();
                    assert!((1..=CELLS).contains(&cells), "{cells} cells in one write");
                    for row in &apply.groups[0].rows {
                        assert!(row.cells.iter().all(|cell| cell.value.is_none() && cell.timestamp == 7));
                        let group = GROUPS.into_iter().find(|it| apply.groups[0].group == *it);
                        let left = stored.get_mut(&(group.unwrap(), row.row.clone())).unwrap();
                        *left -= row.cells.len();
                    }
                    stored.retain(|_, cells| *cells > 0);
                    StoreReply::Written
                }
                StoreRequest::Get(_) => panic!("nothing is read row by row"),
            });
        }
        gone
    }

    #[test]
    fn f3_what_is_earlier_goes_and_the_present_and_the_later_stay() {
        let everything = [(1, 0), (4, 9), (5, 0), (5, 1), (5, 2), (5, 3), (6, 0)];
        for page in [1, 2, 100] {
            let mut stored = all(everything);
            let gone = look(&mut stored, Leftovers::new(realm(5, 2), None), page);
            assert_eq!(stored, all([(5, 2), (5, 3), (6, 0)]), "pages of {page}");
            assert_eq!(gone, 4 * 5);
            assert_eq!(look(&mut stored, Leftovers::new(realm(5, 2), None), page), 0, "there is nothing left");
        }
        // Where nothing was reset nothing of the present is even read.
        let mut stored = all(everything);
        assert_eq!(look(&mut stored, Leftovers::new(realm(5, 0), None), 100), 2 * 5);
        let Some(StoreRequest::Scan(scan)) = Leftovers::new(realm(5, 0), None).step() else { panic!() };
        assert_eq!(scan.end, 5_u64.to_be_bytes()[..]);
        // Its mutant.
        assert_eq!(look(&mut stored, Leftovers::new(realm(9, 0), Some(Mutant::LeftoversKept)), 100), 0);
    }

    #[test]
    fn other_applications_and_names_that_say_nothing_stay() {
        let other = ObjectKey::new("b", 0, b"o");
        let mut stored: Stored = [&[0, 0, 0][..], &[0, 0, 0, 0, 0, 0, 0, 5, 1, 2][..]]
            .into_iter()
            .map(|row| ((MATCHER, Bytes::copy_from_slice(row)), 1))
            .chain([((MATCHER, rows::row(5, other.as_bytes())), 1)])
            .collect();
        let before = stored.clone();
        assert_eq!(look(&mut stored, Leftovers::new(realm(5, 2), None), 100), 0);
        assert_eq!(stored, before);
    }

    #[test]
    fn a_row_of_any_size_goes_in_bounded_steps() {
        let row = |generation| rows::row(5, ClientKey::new("a", generation, "ann", [1; 16]).as_bytes());
        let mut stored: Stored = (0..4).map(|generation| ((REGISTRAR, row(generation)), 3 * CELLS - 1)).collect();
        assert_eq!(look(&mut stored, Leftovers::new(realm(5, 3), None), 100), 3);
        assert_eq!(stored.keys().map(|(_, row)| row.clone()).collect::<Vec<_>>(), [row(3)]);
    }
}
