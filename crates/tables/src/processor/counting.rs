//! Counts a partition's records anew. What a cut leaves on either side is not known before, and quotas go by it: a child begins
//! with half of what its parent had, and looks.
//!
//! The count is of one position, as a snapshot is: a scan in pages while commits go on, corrected by the log.

use super::partition::Partition;
use super::reading::decode;
use super::{Output, Processor, Step, StoreReply, StoreResult, Timer};
use crate::names::{PartitionId, Position};
use crate::rows;
use bytes::Bytes;
use std::sync::Arc;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

/// A count that is under way, or waits for a commit to end.
#[derive(Debug)]
pub(super) struct Counting {
    /// The position that it is of.
    at: Position,
    /// What was believed there: records and bytes.
    believed: (u64, u64),
    /// What was found so far.
    found: (u64, u64),
    /// Where the scan goes on; none at its end.
    next: Option<Bytes>,
    /// Whether the store was asked and has not answered.
    asked: bool,
}

impl Partition {
    /// Begins to count from the first record.
    fn count(&mut self) {
        let (start, _) = rows::records(self.owned.entry.start.as_ref(), None);
        let (at, believed) = (self.position, (self.records, self.bytes));
        self.counting = Some(Counting { at, believed, found: (0, 0), next: Some(start), asked: false });
    }

    /// Takes a page of rows; whether what was there at the count's position is still known of all.
    fn count_rows(&mut self, found: v1::Rows) -> bool {
        let Some(mut counting) = self.counting.take() else { return true };
        for row in &found.rows {
            let Some((key, record)) = rows::key_of(&row.row).zip(decode(row)) else { continue };
            let Ok(image) = self.image_at(&key, Some(Arc::new(record)), counting.at) else { return false };
            if let Some(image) = image.filter(|image| image.columns.is_some()) {
                counting.found.0 += 1;
                counting.found.1 += image.size() as u64;
            }
        }
        counting.next = found.next;
        self.counting = Some(counting);
        true
    }

    /// Takes what was counted for what was believed, once it is complete and no commit is under way, which says what was
    /// believed when it began.
    pub fn correct(&mut self) {
        if self.commit.is_some() {
            return;
        }
        let Some(Counting { believed, found, .. }) = self.counting.take_if(|counting| counting.next.is_none()) else {
            return;
        };
        let corrected = |now: u64, believed: u64, found: u64| (now + found).saturating_sub(believed);
        self.records = corrected(self.records, believed.0, found.0);
        self.bytes = corrected(self.bytes, believed.1, found.1);
        self.estimated = false;
    }
}

impl Processor {
    /// Counts what is only believed.
    pub(super) fn count(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        if let Some(partition) = self.partitions.get_mut(&id).filter(|partition| partition.estimated) {
            partition.count();
            self.count_on(id, out);
        }
    }

    /// Asks for the next page of a count.
    pub(super) fn count_on(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let (_, end) = rows::records(None, partition.owned.entry.end.as_ref());
        let Some(counting) = partition.counting.as_mut().filter(|counting| !counting.asked) else { return };
        let Some(next) = counting.next.clone() else { return };
        counting.asked = true;
        let request = partition.scan(next, end, self.shared.options.page);
        self.shared.store(Step::Counting(id), request, out);
    }

    /// A page of a count has come.
    pub(super) fn counted(&mut self, now: Now, id: PartitionId, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Some(counting) = &mut partition.counting else { return };
        counting.asked = false;
        let at = counting.at;
        let Ok(StoreReply::Rows(found)) = result else {
            return self.shared.timers.set(Timer::Retry(id), now.mono + self.shared.options.retry);
        };
        if !partition.count_rows(found) {
            // Nothing of this owner's is newer: somebody else writes already, and counts for itself.
            if at == partition.position {
                return;
            }
            // The log does not reach back any more.
            partition.count();
        }
        partition.correct();
        self.count_on(id, out);
    }
}
