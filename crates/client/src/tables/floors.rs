//! R5: up to where this client has seen each partition, so that no server answers it with something older.
//!
//! Floors are raised by whatever is read and written, and go with every read that need not ask the owner: a copy answers whom it
//! is not behind. What is forgotten costs a question to the owner, and nothing else.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_wire::v1;

/// Tables of which floors are kept; the one that was not used for longest is forgotten first.
const TABLES: usize = 1_024;
/// Partitions of one table of which floors are kept, more than a table has at a time; the first numbers were cut or joined long ago.
const PARTITIONS: usize = 256;

/// What a client has seen.
#[derive(Debug, Default)]
pub(super) struct Floors(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    tables: BTreeMap<Arc<str>, Of>,
    /// Counts uses.
    used: u64,
}

#[derive(Debug, Default)]
struct Of {
    /// Which table of its name: one that is made later has other positions.
    table: u64,
    positions: BTreeMap<u32, u64>,
    used: u64,
}

impl Floors {
    /// Partitions were seen at these positions.
    pub fn raise(&self, name: &Arc<str>, table: u64, seen: impl IntoIterator<Item = (u32, u64)>) {
        // Older servers do not say.
        if table == 0 {
            return;
        }
        let mut all = self.0.lock();
        all.used += 1;
        let used = all.used;
        let of = all.tables.entry(name.clone()).or_default();
        if of.table != table {
            *of = Of { table, ..Of::default() };
        }
        of.used = used;
        for (partition, position) in seen.into_iter().filter(|(_, position)| *position > 0) {
            let floor = of.positions.entry(partition).or_default();
            *floor = position.max(*floor);
        }
        while of.positions.len() > PARTITIONS {
            of.positions.pop_first();
        }
        if all.tables.len() > TABLES {
            let oldest = all.tables.iter().min_by_key(|(_, of)| of.used).map(|(name, _)| name.clone());
            oldest.and_then(|name| all.tables.remove(&name));
        }
    }

    /// The same of an answer.
    pub fn seen(&self, name: &Arc<str>, rows: &v1::RecordRows) {
        self.raise(name, rows.table, rows.positions.iter().map(|at| (at.partition, at.position)));
    }

    /// A read that is answered at these floors or later.
    pub fn laid_under(&self, name: &Arc<str>, read: v1::RecordRead) -> v1::RecordRead {
        let mut all = self.0.lock();
        all.used += 1;
        let used = all.used;
        let Some(of) = all.tables.get_mut(name) else { return read };
        of.used = used;
        let floors = of.positions.iter().map(|(&partition, &position)| v1::PartitionPosition { partition, position });
        v1::RecordRead { floors: floors.collect(), floors_of: of.table, ..read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floors(floors: &Floors, name: &Arc<str>) -> (u64, Vec<(u32, u64)>) {
        let read = floors.laid_under(name, v1::RecordRead::default());
        (read.floors_of, read.floors.iter().map(|floor| (floor.partition, floor.position)).collect())
    }

    #[test]
    fn floors_only_rise_and_are_of_one_table() {
        let (all, t) = (Floors::default(), Arc::from("t"));
        assert_eq!(floors(&all, &t), (0, vec![]));
        all.raise(&t, 7, [(1, 5), (2, 9), (3, 0)]);
        all.raise(&t, 7, [(1, 4)]);
        all.raise(&t, 0, [(1, 100)]);
        assert_eq!(floors(&all, &t), (7, vec![(1, 5), (2, 9)]));
        // A namesake that was made since.
        all.raise(&t, 8, [(1, 2)]);
        assert_eq!(floors(&all, &t), (8, vec![(1, 2)]));
    }

    #[test]
    fn of_many_tables_the_one_that_was_not_used_for_longest_is_forgotten() {
        let (all, first) = (Floors::default(), Arc::from("0"));
        for number in 0..TABLES {
            all.raise(&number.to_string().into(), 7, [(1, 5)]);
        }
        assert_eq!(floors(&all, &first).0, 7);
        all.raise(&"more".into(), 7, [(1, 5)]);
        assert_eq!((floors(&all, &first).0, floors(&all, &Arc::from("1")).0), (7, 0));
        all.raise(&first, 7, (0..2 * PARTITIONS as u32).map(|number| (number, 1)));
        assert_eq!(floors(&all, &first).1.len(), PARTITIONS);
    }
}
