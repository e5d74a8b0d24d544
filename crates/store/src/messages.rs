//! Short ways to write the messages of store and feed.

use bytes::Bytes;
use tidings_wire::v1;

/// A cell that holds a value.
pub fn cell(column: impl Into<Bytes>, timestamp: u64, value: impl Into<Bytes>) -> v1::Cell {
    v1::Cell { column: column.into(), timestamp, value: Some(value.into()) }
}

/// A cell that is deleted.
pub fn tombstone(column: impl Into<Bytes>, timestamp: u64) -> v1::Cell {
    v1::Cell { column: column.into(), timestamp, value: None }
}

/// Writes of one row.
pub fn row(row: impl Into<Bytes>, cells: Vec<v1::Cell>) -> v1::RowWrite {
    v1::RowWrite { row: row.into(), cells }
}

/// Writes of one group, without a fence.
pub fn group(group: impl Into<Bytes>, rows: Vec<v1::RowWrite>) -> v1::GroupWrite {
    v1::GroupWrite { group: group.into(), rows, fence: None }
}

/// Writes of one group under a fence.
pub fn fenced(write: v1::GroupWrite, name: impl Into<Bytes>, number: u64) -> v1::GroupWrite {
    v1::GroupWrite { fence: Some(fence(name, number)), ..write }
}

/// A fence.
pub fn fence(name: impl Into<Bytes>, number: u64) -> v1::Fence {
    v1::Fence { name: name.into(), number }
}

/// A batch.
pub fn apply(groups: Vec<v1::GroupWrite>) -> v1::Apply {
    v1::Apply { groups }
}

/// A batch of one cell.
pub fn put(in_group: impl Into<Bytes>, at_row: impl Into<Bytes>, cell: v1::Cell) -> v1::Apply {
    apply(vec![group(in_group, vec![row(at_row, vec![cell])])])
}

/// A read of a whole row.
pub fn get(group: impl Into<Bytes>, row: impl Into<Bytes>) -> v1::Get {
    v1::Get { key: Some(v1::RowKey { group: group.into(), row: row.into() }), columns: Vec::new() }
}

/// A scan of a whole group.
pub fn scan(group: impl Into<Bytes>) -> v1::Scan {
    v1::Scan { group: group.into(), ..v1::Scan::default() }
}

/// A write of a cell if its newest timestamp is as expected.
pub fn compare_and_set(
    group: impl Into<Bytes>,
    row: impl Into<Bytes>,
    expected: u64,
    write: v1::Cell,
) -> v1::CompareAndSet {
    let key = v1::RowKey { group: group.into(), row: row.into() };
    v1::CompareAndSet { key: Some(key), column: write.column.clone(), expected, write: Some(write), fence: None }
}

/// A consumer's request for up to `limit` entries, waiting up to `wait_ms` for the first.
pub fn consume(topic: impl Into<Bytes>, group: impl Into<Bytes>, limit: u32, wait_ms: u32) -> v1::Consume {
    v1::Consume { topic: topic.into(), group: group.into(), limit, wait_ms, redeliver_ms: 0 }
}
