//! The log's length in bytes: openraft counts entries, and an entry may have a megabyte.

use crate::config::Limits;
use crate::types::{Raft, index_or_zero};
use openraft::async_runtime::watch::WatchReceiver;
use std::time::Duration;
use tidings_base::Mono;
use tidings_log::Reader;

/// Until a snapshot that has not come is asked for again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watches how long the log is.
pub(crate) struct Length {
    log: Reader,
    limits: Limits,
    /// The snapshot after which the log was cut, in our count.
    cut: u64,
    /// When a snapshot was asked for.
    asked: Option<Mono>,
}

impl Length {
    pub fn new(log: Reader, limits: Limits) -> Length {
        Length { log, limits, cut: 0, asked: None }
    }

    /// Asks for a snapshot when there is much behind the last one, and for a cut after each.
    pub async fn look(&mut self, now: Mono, raft: &Raft) {
        let snapshot = index_or_zero(raft.metrics().borrow_watched().snapshot.as_ref()).0;
        if snapshot > self.cut {
            (self.cut, self.asked) = (snapshot, None);
            let first = self.log.first_within(self.limits.keep_bytes).min(snapshot + 1);
            if first > self.log.first() && first >= 2 {
                // In openraft's count, the entry before it. That a replica has stopped is noticed by others.
                let _ = raft.trigger().purge_log(first - 2).await;
            }
        }
        let long = self.log.first_within(self.limits.snapshot_bytes) > snapshot + 1;
        if long && self.asked.is_none_or(|asked| asked + PATIENCE <= now) {
            self.asked = Some(now);
            let _ = raft.trigger().snapshot().await;
        }
    }
}
