//! Rows of the store that a partition's owner remembers: nobody else writes them while its fence holds (R2).

use bytes::Bytes;
use tidings_base::bounded::BoundedMap;

/// A row's one cell: timestamp and value; none if there is no row.
pub(super) type Cell = Option<(u64, Bytes)>;

/// The most recently used rows, bounded in number and bytes.
#[derive(Debug)]
pub(super) struct Rows {
    rows: BoundedMap<Bytes, Cell>,
    bytes: usize,
    most: usize,
}

impl Rows {
    pub fn new(rows: usize, bytes: usize) -> Rows {
        Rows { rows: BoundedMap::new(rows), bytes: 0, most: bytes }
    }

    pub fn get(&mut self, row: &Bytes) -> Option<&Cell> {
        self.rows.get(row).map(|cell| &*cell)
    }

    pub fn knows(&mut self, row: &Bytes) -> bool {
        self.get(row).is_some()
    }

    pub fn put(&mut self, row: Bytes, cell: Cell) {
        self.forget(&row);
        self.bytes += size(&row, &cell);
        if let Some((row, cell)) = self.rows.insert(row, cell) {
            self.bytes -= size(&row, &cell);
        }
        while self.bytes > self.most && self.rows.len() > 1 {
            if let Some((row, cell)) = self.rows.pop_oldest() {
                self.bytes -= size(&row, &cell);
            }
        }
    }

    pub fn forget(&mut self, row: &Bytes) {
        if let Some(old) = self.rows.remove(row) {
            self.bytes -= size(row, &old);
        }
    }

    /// The two rows in the middle of those that are remembered and are of this kind.
    pub fn middle(&self, kind: u8) -> Option<[&Bytes; 2]> {
        let rows: Vec<&Bytes> = self.rows.iter().map(|(row, _)| row).filter(|row| row.first() == Some(&kind)).collect();
        let right = rows.len() / 2;
        Some([*rows.get(right.checked_sub(1)?)?, *rows.get(right)?])
    }
}

fn size(row: &Bytes, cell: &Cell) -> usize {
    row.len() + cell.as_ref().map_or(0, |(_, value)| value.len())
}
