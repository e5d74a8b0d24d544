//! The store is kept clean by whichever node leads it: what was deleted long ago is swept out (F10), and what is left of earlier
//! incarnations and generations is deleted (F3).

use super::hub::{Hub, STORE};
use crate::metrics;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_notify::leftovers::Leftovers;
use tidings_notify::sweep::Sweep;
use tidings_wire::error;

/// How often a node looks whether it is time, and how often it sweeps, as parts of the time that tombstones live: every hour
/// and every day, if that is ten days.
const LOOKS: u32 = 240;
const SWEEPS: u32 = 10;
/// The pause between two steps, of some thousand cells each: nobody else is to notice.
const PAUSE: Duration = Duration::from_millis(20);

/// Sweeps for as long as Notify runs.
pub(super) async fn run(hub: Arc<Hub>) {
    let keep = Duration::from(hub.told.config.keep_tombstones);
    let mut swept = None;
    loop {
        tokio::time::sleep(keep / LOOKS).await;
        let now = hub.clock.now().mono;
        if swept.is_some_and(|last| now.since(last) < keep / SWEEPS) {
            continue;
        }
        // The first says whether this node leads.
        let cleaned = match sweep(&hub, keep).await {
            Ok(removed) => tidy(&hub).await.map(|deleted| (removed, deleted)),
            Err(error) => Err(error),
        };
        match cleaned {
            Ok((removed, deleted)) => {
                swept = Some(now);
                tracing::debug!(removed, deleted, "notify: tombstones were swept out, and leftovers deleted");
            }
            // Somebody else leads, or nobody; or some rows cannot be reached now.
            Err(error) => tracing::trace!(%error, "notify: the store is not cleaned from here"),
        }
    }
}

/// One look through everything; how many tombstones are gone.
async fn sweep(hub: &Arc<Hub>, keep: Duration) -> Result<u64, Error> {
    let mut sweep = Sweep::new(hub.clock.now().wall, keep, None);
    let mut removed = 0;
    while let Some(step) = sweep.step() {
        let done = hub.stored()?.collect(step).await?;
        metrics::notify_tombstones(done.removed);
        removed += done.removed;
        sweep.done(done);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(removed)
}

/// One look for leftovers of earlier realms; how many rows are gone. If another node has begun to lead meanwhile, both look.
async fn tidy(hub: &Arc<Hub>) -> Result<u64, Error> {
    let mut look = Leftovers::new(hub.kept()?.realm(), None);
    let mut deleted = 0;
    while let Some(step) = look.step() {
        let answer = tokio::time::timeout(STORE, hub.ask_store(step)).await;
        let gone = look.done(answer.map_err(|_| error::deadline())??);
        metrics::notify_leftovers(gone);
        deleted += gone;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(deleted)
}
