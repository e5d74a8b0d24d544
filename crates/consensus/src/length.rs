//! How long the log is, in entries and in bytes: openraft counts entries, and an entry may have a megabyte.

use crate::shared::Shared;
use crate::types::{Raft, index_or_zero};
use openraft::async_runtime::watch::WatchReceiver;
use std::time::Duration;
use tidings_base::{Mono, NodeId};
use tidings_log::Reader;

/// Until a snapshot that has not come is asked for again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watches how long the log is. All numbers are in our count, which begins with 1.
pub(crate) struct Length {
    log: Reader,
    /// The snapshot after which the log was cut.
    cut: u64,
    /// When a snapshot was asked for.
    asked: Option<Mono>,
}

impl Length {
    pub fn new(log: Reader) -> Length {
        Length { log, cut: 0, asked: None }
    }

    /// Asks for a snapshot when there are many bytes behind the last one, and for a cut after each, whoever has asked for it.
    /// That a replica has stopped is noticed by others.
    pub async fn look(&mut self, shared: &Shared, raft: &Raft) {
        let metrics = raft.metrics().borrow_watched().clone();
        let snapshot = index_or_zero(metrics.snapshot.as_ref()).0;
        if snapshot == 0 && self.log.first() > 1 {
            // openraft has not begun to tell.
            return;
        }
        if snapshot > self.cut {
            (self.cut, self.asked) = (snapshot, None);
            let replication = metrics.replication.iter().flatten();
            let present = replication.filter(|(node, _)| shared.is_present(NodeId(**node)));
            let lacked = present.map(|(_, has)| index_or_zero(has.as_ref()).0 + 1).min();
            let first = self.first_to_keep(shared, snapshot, lacked);
            if first > self.log.first() && first >= 2 {
                // The entry before it, in openraft's count.
                let _ = raft.trigger().purge_log(first - 2).await;
            }
        }
        let limits = &shared.limits;
        let long = self.log.first_within(limits.snapshot_bytes) > snapshot + 1;
        // A snapshot is of what is applied: while most of it is not, there would be one after the other.
        let behind = self.log.next().saturating_sub(snapshot + 1);
        let worthwhile = index_or_zero(metrics.last_applied.as_ref()).0.saturating_sub(snapshot) >= behind / 2;
        let now = shared.now();
        if long && worthwhile && self.asked.is_none_or(|asked| asked + PATIENCE <= now) {
            self.asked = Some(now);
            let _ = raft.trigger().snapshot().await;
        }
    }

    /// The first entry that stays after a snapshot, where a member that answers lacks those from one on.
    fn first_to_keep(&self, shared: &Shared, snapshot: u64, lacked: Option<u64>) -> u64 {
        let limits = &shared.limits;
        let by_entries = (snapshot + 1).saturating_sub(limits.keep_entries);
        let first = self.log.first_within(limits.keep_bytes).max(by_entries).min(snapshot + 1);
        match lacked {
            Some(lacked) => first.min(lacked.max(self.log.first_within(limits.wait_bytes))),
            None => first,
        }
    }
}
