//! What tables deleted long ago is swept out, that of dropped tables too.
//!
//! Every outcome that was acknowledged and every mark of a deletion that was collected leaves a tombstone, stamped with a
//! position. A commit that is late by more than tombstones live would be new again: its owner may hold the fence that it was made
//! under.

use super::hub::Hub;
use crate::metrics;
use crate::services::Cleaning;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_store::sweep::Sweep;
use tidings_tables::dropped::Remains;
use tidings_tables::group_of;
use tidings_tables::processor::StoreReply;

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
    let (begun, tables) = (hub.clock.now().wall, hub.tables().await?.entries);
    let remains = hub.remains().await?;
    let groups = tables.iter().map(|entry| group_of(entry.table())).chain(remains.groups());
    let removed = hub.sweep(Sweep::new(begun, keep, groups), metrics::tables_tombstones).await?;
    if let Some(request) = remains.looked(begun, keep) {
        hub.ask_store(request).await?;
    }
    Ok(removed)
}

impl Hub {
    /// Dropped tables that have left tombstones.
    async fn remains(&self) -> Result<Remains, Error> {
        let (mut remains, mut from) = (Remains::default(), Some(Bytes::new()));
        while let Some(next) = from {
            let StoreReply::Rows(rows) = self.ask_store(Remains::ask(next)).await? else { break };
            from = remains.hear(rows);
        }
        metrics::tables_remains(remains.count());
        Ok(remains)
    }
}
