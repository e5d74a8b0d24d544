//! What stands around the machines: a store that fails, who owns which range, a backend that makes versions.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{Class, Error, KeyHash, KeyRange, LeaseNumber};
use tidings_notify::rows::{StoreReply, StoreRequest, StoreResult};
use tidings_wire::v1;

type Cells = BTreeMap<Bytes, (u64, Option<Bytes>)>;

/// Rows as the platform keeps them: newest wins, then a tombstone, then the larger bytes.
#[derive(Clone, Default)]
pub struct Store {
    rows: BTreeMap<(Bytes, Bytes), Cells>,
    /// Rows whose hash begins with one of these bytes fail.
    pub failing: BTreeSet<u8>,
}

pub fn unavailable() -> Error {
    Error::new("store.unavailable", Class::Unreachable, "The row cannot be reached.")
}

impl Store {
    pub fn wipe(&mut self) {
        self.rows.clear();
    }

    pub fn fails(&self, row: &[u8]) -> bool {
        row.get(8).is_some_and(|byte| self.failing.contains(byte))
    }

    pub fn perform(&mut self, request: &StoreRequest) -> StoreResult {
        match request {
            StoreRequest::Write(apply) => {
                let [group] = &apply.groups[..] else { panic!("one group, one row") };
                let [row] = &group.rows[..] else { panic!("one group, one row") };
                assert!(group.fence.is_none() && !row.cells.is_empty());
                if self.fails(&row.row) {
                    return Err(unavailable());
                }
                let cells = self.rows.entry((group.group.clone(), row.row.clone())).or_default();
                for cell in &row.cells {
                    assert!((1..1 << 63).contains(&cell.timestamp), "stamps have 63 bits");
                    let new = (cell.timestamp, cell.value.clone());
                    let old = cells.entry(cell.column.clone()).or_insert_with(|| new.clone());
                    let rank = |cell: &(u64, Option<Bytes>)| (cell.0, cell.1.is_none(), cell.1.clone());
                    if rank(&new) > rank(old) {
                        *old = new;
                    }
                }
                Ok(StoreReply::Written)
            }
            StoreRequest::Get(get) => {
                let key = get.key.as_ref().unwrap();
                if self.fails(&key.row) {
                    return Err(unavailable());
                }
                let cells = self.rows.get(&(key.group.clone(), key.row.clone()));
                Ok(StoreReply::Row(cells.and_then(|cells| live(&key.row, cells, &get.columns))))
            }
            StoreRequest::Scan(scan) => self.scan(scan),
        }
    }

    fn scan(&self, scan: &v1::Scan) -> StoreResult {
        assert!(scan.start < scan.end && scan.limit > 0);
        let from = (scan.group.clone(), scan.start.clone());
        let to = (scan.group.clone(), scan.end.clone());
        let mut rows = Vec::new();
        for ((_, key), cells) in self.rows.range(from..to) {
            if self.fails(key) {
                return Err(unavailable());
            }
            let Some(row) = live(key, cells, &scan.columns) else { continue };
            if rows.len() == scan.limit as usize {
                return Ok(StoreReply::Rows(v1::Rows { rows, next: Some(key.clone()) }));
            }
            rows.push(row);
        }
        Ok(StoreReply::Rows(v1::Rows { rows, next: None }))
    }
}

fn live(key: &Bytes, cells: &Cells, columns: &[Bytes]) -> Option<v1::Row> {
    let wanted = |name: &Bytes| columns.is_empty() || columns.contains(name);
    let cells = cells.iter().filter(|(name, (_, value))| value.is_some() && wanted(name));
    let cell = |(name, (timestamp, value)): (&Bytes, &(u64, Option<Bytes>))| v1::Cell {
        column: name.clone(),
        timestamp: *timestamp,
        value: value.clone(),
    };
    let cells: Vec<v1::Cell> = cells.map(cell).collect();
    (!cells.is_empty()).then(|| v1::Row { row: key.clone(), cells })
}

/// Who owns which range, in truth; machines hear of it late.
pub struct Table {
    pub slots: Vec<Slot>,
    next_lease: u32,
}

pub struct Slot {
    pub range: KeyRange,
    /// The owner and its lease.
    pub owner: Option<(usize, LeaseNumber)>,
}

impl Table {
    pub fn new(pieces: u64) -> Table {
        let step = u64::MAX / pieces;
        let slot = |at: u64| {
            let last = if at + 1 == pieces { u64::MAX } else { (at + 1) * step - 1 };
            Slot { range: KeyRange::new(KeyHash(at * step), KeyHash(last)), owner: None }
        };
        Table { slots: (0..pieces).map(slot).collect(), next_lease: 0 }
    }

    pub fn lease(&mut self) -> LeaseNumber {
        self.next_lease += 1;
        LeaseNumber::new(self.next_lease).unwrap()
    }

    pub fn owner(&self, key: KeyHash) -> Option<(usize, LeaseNumber)> {
        self.slots.iter().find(|slot| slot.range.contains(key)).and_then(|slot| slot.owner)
    }
}

/// A publication that was acknowledged.
#[derive(Clone, Copy)]
pub struct Made {
    pub version: u64,
    pub at: u64,
}

/// What an application has seen of an object.
#[derive(Clone, Default)]
pub struct Seen {
    pub notified: u64,
    pub made: BTreeSet<u64>,
    /// When the last fetch after an unknown began.
    pub fetched_at: Option<u64>,
    /// What it has, by notifications and fetches.
    pub known: u64,
}

impl Seen {
    /// N1: what is missed of an acknowledged publication.
    pub fn misses(&self, made: Made) -> bool {
        let told = self.notified >= made.version || self.made.contains(&made.version);
        !told && self.fetched_at.is_none_or(|at| at < made.at)
    }
}
