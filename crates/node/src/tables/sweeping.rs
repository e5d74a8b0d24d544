//! The store is kept clean by whichever node leads it: tombstones of tables' rows that are old enough are swept out.

use super::directories::Listed;
use super::hub::Hub;
use crate::metrics;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_tables::sweep::Sweep;

/// How often a node looks whether it is time, and how often it sweeps, as parts of the time that tombstones live: every hour
/// and every day, if that is ten days.
const LOOKS: u32 = 240;
const SWEEPS: u32 = 10;
/// The pause between two steps, of some thousand cells each: nobody else is to notice.
const PAUSE: Duration = Duration::from_millis(20);

/// Sweeps for as long as Tables runs.
pub(super) async fn run(hub: Arc<Hub>) {
    let keep = hub.told.keep_tombstones;
    let mut swept = None;
    loop {
        tokio::time::sleep(keep / LOOKS).await;
        let now = hub.clock.now().mono;
        if swept.is_some_and(|last| now.since(last) < keep / SWEEPS) {
            continue;
        }
        match sweep(&hub, keep).await {
            Ok(removed) => {
                swept = Some(now);
                tracing::debug!(removed, "tables: tombstones were swept out");
            }
            // Somebody else leads, or nobody; or the tables are not known yet.
            Err(error) => tracing::trace!(%error, "tables: the store is not cleaned from here"),
        }
    }
}

/// One look through everything; how many tombstones are gone.
async fn sweep(hub: &Arc<Hub>, keep: Duration) -> Result<u64, Error> {
    let Listed { entries, .. } = hub.tables().await?;
    let mut sweep = Sweep::new(hub.clock.now().wall, keep, entries.iter().map(|entry| entry.table()));
    let mut removed = 0;
    while let Some(step) = sweep.step() {
        let done = hub.stored()?.collect(step).await?;
        metrics::tables_tombstones(done.removed);
        removed += done.removed;
        sweep.done(done);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(removed)
}
