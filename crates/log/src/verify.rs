//! Looks at a log without changing it, and says what it finds: for `tidings doctor`.

use crate::scan::{Trouble, scan};
use bytes::Bytes;
use std::io;
use tidings_base::disk::Disk;

/// What [`verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The segments whose header could be read, oldest first.
    pub segments: Vec<SegmentReport>,
    /// The incomplete last write, which opening the log cuts; no cause for worry.
    pub torn: Option<Trouble>,
    /// What makes opening the log refuse, in the order of the files.
    pub damage: Vec<Trouble>,
    /// Files of segments that were never completed; opening the log removes them.
    pub leftovers: Vec<String>,
    /// The first index that the log holds or will hold.
    pub first: u64,
    /// The index that the next record will have.
    pub next: u64,
    /// The payload that was written last, be it truncated or purged since.
    pub latest: Option<Bytes>,
}

/// One segment of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its file.
    pub file: String,
    /// The records in it that could be read, truncated and purged ones included.
    pub records: u64,
    /// The bytes up to the end of the last good record.
    pub used_bytes: u64,
    /// The length of the file.
    pub file_bytes: u64,
}

impl Report {
    /// Whether the log can be opened.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Walks all segments of the log on a disk. `log_id` is that of its [`Options`](crate::Options); `None` takes any, as
/// long as all segments have the same.
pub fn verify(disk: &dyn Disk, log_id: Option<u64>) -> io::Result<Report> {
    let scan = scan(disk, log_id)?;
    let segments = scan.segments.iter().map(|found| SegmentReport {
        file: found.name.clone(),
        records: found.records,
        used_bytes: u64::from(found.end),
        file_bytes: u64::from(found.header.capacity),
    });
    Ok(Report {
        segments: segments.collect(),
        torn: scan.torn,
        damage: scan.damage,
        leftovers: scan.leftovers,
        first: scan.replay.first,
        next: scan.replay.next,
        latest: scan.latest,
    })
}
