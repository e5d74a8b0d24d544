//! What Notify deleted long ago is swept out (F10), and what is left of earlier incarnations and generations is deleted (F3).

use super::hub::{Hub, STORE};
use crate::metrics;
use crate::services::{Cleaning, PAUSE};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_notify::leftovers::Leftovers;
use tidings_notify::rows;
use tidings_store::sweep::Sweep;
use tidings_wire::error;

/// Cleans for as long as Notify runs.
pub(super) async fn run(hub: Arc<Hub>) {
    let keep = Duration::from(hub.told.config.keep_tombstones);
    let mut cleaning = Cleaning::new("notify", keep);
    loop {
        cleaning.is_due(&*hub.clock).await;
        let begun = hub.clock.now().mono;
        cleaning.ended(begun, clean(&hub, keep).await);
    }
}

async fn clean(hub: &Arc<Hub>, keep: Duration) -> Result<u64, Error> {
    let sweep = Sweep::new(hub.clock.now().wall, keep, rows::GROUPS.map(Bytes::from_static));
    // This says whether this node leads.
    let removed = hub.sweep(sweep, metrics::notify_tombstones).await?;
    Ok(removed + tidy(hub).await?)
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
