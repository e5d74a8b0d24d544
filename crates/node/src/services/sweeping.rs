//! The store is kept clean by whichever node leads it: what a part deleted long ago is swept out.

use super::Ground;
use crate::clock::Clock;
use std::time::Duration;
use tidings_base::{Error, Mono};
use tidings_store::sweep::Sweep;

/// How often a node looks whether it is time, and how often it sweeps, as parts of the time that tombstones live: every hour
/// and every day, if that is ten days.
const LOOKS: u32 = 240;
const SWEEPS: u32 = 10;
/// The pause between two steps, of some thousand cells each: nobody else is to notice.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// When a part cleans.
pub(crate) struct Cleaning {
    part: &'static str,
    keep: Duration,
    last: Option<Mono>,
}

impl Cleaning {
    /// For a part whose tombstones live for so long.
    pub(crate) fn new(part: &'static str, keep: Duration) -> Cleaning {
        Cleaning { part, keep, last: None }
    }

    /// Returns when it is time.
    pub(crate) async fn is_due(&self, clock: &dyn Clock) {
        loop {
            tokio::time::sleep(self.keep / LOOKS).await;
            if self.last.is_none_or(|last| clock.now().mono.since(last) >= self.keep / SWEEPS) {
                return;
            }
        }
    }

    /// It was tried, and so much is gone.
    pub(crate) fn ended(&mut self, now: Mono, removed: Result<u64, Error>) {
        let part = self.part;
        match removed {
            Ok(removed) => {
                self.last = Some(now);
                tracing::debug!(part, removed, "the store was cleaned of what was deleted long ago");
            }
            // Somebody else leads, or nobody; or some rows cannot be reached now.
            Err(error) => tracing::trace!(part, %error, "the store is not cleaned from here"),
        }
    }
}

impl Ground {
    /// One look through these groups; how many tombstones are gone. `count` hears of each step. It fails where another node
    /// leads.
    pub(crate) async fn sweep(&self, mut sweep: Sweep, count: fn(u64)) -> Result<u64, Error> {
        let mut removed = 0;
        while let Some(step) = sweep.step() {
            let done = self.stored()?.collect(step).await?;
            count(done.removed);
            removed += done.removed;
            sweep.done(done);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(removed)
    }
}
