//! What tables deleted long ago is swept out.
//!
//! Every outcome that was acknowledged and every mark of a deletion that was collected leaves a tombstone, stamped with a
//! position. A commit that is late by more than tombstones live would be new again: its owner may hold the fence that it was made
//! under.

use super::hub::Hub;
use crate::metrics;
use crate::services::Cleaning;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_store::sweep::Sweep;
use tidings_tables::group_of;

/// Cleans for as long as Tables runs.
pub(super) async fn run(hub: Arc<Hub>) {
    let keep = hub.told.keep_tombstones;
    let mut cleaning = Cleaning::new("tables", keep);
    loop {
        cleaning.is_due(&*hub.clock).await;
        let begun = hub.clock.now().mono;
        cleaning.ended(begun, clean(&hub, keep).await);
    }
}

async fn clean(hub: &Arc<Hub>, keep: Duration) -> Result<u64, Error> {
    let tables = hub.tables().await?.entries;
    let sweep = Sweep::new(hub.clock.now().wall, keep, tables.iter().map(|entry| group_of(entry.table())));
    hub.sweep(sweep, metrics::tables_tombstones).await
}
