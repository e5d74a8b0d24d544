//! A store in memory: cells by timestamp, fences, and what was accepted, in order.

use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::{Class, Error};
use tidings_tables::processor::{StoreReply, StoreRequest, StoreResult};
use tidings_wire::v1;

type Cells = BTreeMap<Bytes, (u64, Option<Bytes>)>;

#[derive(Default)]
pub struct Store {
    pub rows: BTreeMap<Bytes, BTreeMap<Bytes, Cells>>,
    fences: BTreeMap<(Bytes, Bytes), u64>,
    /// Records that were accepted: row, version, value, in order.
    pub records: Vec<(Bytes, u64, Option<Bytes>)>,
    pub fenced: usize,
}

impl Store {
    pub fn perform(&mut self, request: &StoreRequest) -> StoreResult {
        match request {
            StoreRequest::Apply(batch) => {
                for group in &batch.groups {
                    if let Some(fence) = &group.fence {
                        let seen = self.fences.entry((group.group.clone(), fence.name.clone())).or_default();
                        if fence.number < *seen {
                            self.fenced += 1;
                            return Err(Error::new("store.fenced", Class::Refused, "A higher fence was seen."));
                        }
                        *seen = fence.number;
                    }
                    for row in &group.rows {
                        for cell in &row.cells {
                            self.put(&group.group, &row.row, cell);
                        }
                    }
                }
                Ok(StoreReply::Applied)
            }
            StoreRequest::Get(get) => {
                let key = get.key.clone().unwrap_or_default();
                let row = self.rows.get(&key.group).and_then(|rows| rows.get(&key.row));
                Ok(StoreReply::Row(row.and_then(|cells| live(&key.row, cells))))
            }
            StoreRequest::Scan(scan) => {
                assert!(scan.end.is_empty() || scan.start < scan.end, "a range without rows");
                let limit = if scan.limit > 0 { scan.limit as usize } else { 1_000 };
                let all = self.rows.get(&scan.group).into_iter().flatten();
                let mut rows: Vec<v1::Row> = all
                    .filter(|(row, _)| **row >= scan.start && (scan.end.is_empty() || **row < scan.end))
                    .filter_map(|(row, cells)| live(row, cells))
                    .take(limit + 1)
                    .collect();
                let next = (rows.len() > limit).then(|| rows.pop().unwrap_or_default().row);
                Ok(StoreReply::Rows(v1::Rows { rows, next }))
            }
        }
    }

    fn put(&mut self, group: &Bytes, row: &Bytes, cell: &v1::Cell) {
        assert!((1..1 << 63).contains(&cell.timestamp), "timestamp {}", cell.timestamp);
        let cells = self.rows.entry(group.clone()).or_default().entry(row.clone()).or_default();
        let new = (cell.timestamp, cell.value.clone());
        let wins = |old: &(u64, Option<Bytes>)| (new.0, new.1.is_none(), &new.1) > (old.0, old.1.is_none(), &old.1);
        if row.first() == Some(&b'r') && cell.value.is_some() {
            self.records.push((row.clone(), cell.timestamp, cell.value.clone()));
        }
        let old = cells.entry(cell.column.clone()).or_insert((0, None));
        if old.0 == 0 || wins(old) {
            *old = new;
        }
    }
}

fn live(row: &Bytes, cells: &Cells) -> Option<v1::Row> {
    let cells: Vec<v1::Cell> = cells
        .iter()
        .filter(|(_, (_, value))| value.is_some())
        .map(|(column, (timestamp, value))| v1::Cell {
            column: column.clone(),
            timestamp: *timestamp,
            value: value.clone(),
        })
        .collect();
    (!cells.is_empty()).then(|| v1::Row { row: row.clone(), cells })
}
