//! Rows of dropped tables: a mark in the cell says that a table was dropped, and stays until its rows are gone.
//!
//! The mark is made before the table's directory is deleted, so that none is forgotten; as long as the directory is there the
//! mark says nothing. Who deletes is the node that would serve the table's first partition: another one takes over when the
//! lease moves, and what both do happens once.

use super::directories::{Entry, Listed};
use super::hub::{Hub, STORE};
use crate::driver::{self, Perform};
use crate::metrics;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_tables::dropped::{Deleter, Input, Options, Output};
use tidings_tables::names::{PartitionId, TableId};
use tidings_wire::error;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// How marks begin: no table can have such a name.
const MARK: &str = ".dropped-";
/// How often marks are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Inputs that may wait for the machine.
const QUEUE: usize = 256;

fn path(table: TableId) -> String {
    format!("/{MARK}{table}")
}

fn marked(name: &str) -> Option<TableId> {
    u64::from_str_radix(name.strip_prefix(MARK)?, 16).ok().map(TableId)
}

/// Deletes what dropped tables have left, as long as the node runs.
pub(super) async fn delete_dropped(hub: Arc<Hub>) {
    let (asks, mut asked) = mpsc::unbounded_channel();
    let deleter = Deleter::new(Options::default());
    let performing = Performing { hub: hub.clone(), asks };
    let deleter = hub.tasks().run(driver::spawn("deleter", deleter, performing, hub.clock.clone(), QUEUE));
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            request = asked.recv() => {
                let Some(request) = request else { return };
                let result = tokio::time::timeout(STORE, hub.ask_store(request)).await;
                let result = result.unwrap_or_else(|_| Err(error::deadline()));
                // A machine that has stopped needs no input.
                let _ = deleter.send(Input::Stored { result }).await;
            }
            _ = look.tick() => match hub.dropped_tables().await {
                Ok(dropped) => {
                    for (table, partitions) in dropped {
                        let _ = deleter.send(Input::Dropped { table, partitions }).await;
                    }
                }
                Err(error) => tracing::debug!(%error, "tables: dropped tables are not known"),
            }
        }
    }
}

/// Performs what the deleter wants; one request to the store at a time.
struct Performing {
    hub: Arc<Hub>,
    asks: mpsc::UnboundedSender<tidings_tables::processor::StoreRequest>,
}

impl Perform<Output> for Performing {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Store(request) => {
                // Without whoever takes it the node is stopping.
                let _ = self.asks.send(request);
            }
            Output::Deleted { rows } => metrics::tables_rows_deleted(rows),
            Output::Finished { table } => {
                let hub = self.hub.clone();
                self.hub.spawn(async move {
                    // If it fails the mark is found again, and nothing under it.
                    if let Err(error) = hub.unmark(table).await {
                        tracing::debug!(%error, %table, "tables: the mark of a dropped table stays");
                    }
                });
            }
        }
    }
}

impl Hub {
    /// Says for good that a table is about to be dropped, and how many partitions it ever had.
    pub(super) async fn mark_dropped(&self, entry: &Entry) -> Result<(), Error> {
        let contents = entry.directory.next.to_string().into_bytes();
        let open = self.the_cell()?.open(&path(entry.table())).write().create_file(contents.clone());
        // An earlier attempt may have known of fewer.
        open.await?.set_contents(contents, None).await.map(drop)
    }

    async fn unmark(&self, table: TableId) -> Result<(), Error> {
        match self.the_cell()?.delete(&path(table)).await {
            Err(error) if error.class == Class::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    /// Tables that were dropped and whose rows are this node's to delete, with the number of their partitions.
    async fn dropped_tables(&self) -> Result<Vec<(TableId, u32)>, Error> {
        let cell = self.the_cell()?;
        let listing = cell.list("/").await?;
        let marks: Vec<TableId> =
            listing.iter().flat_map(|listing| listing.iter()).filter_map(|child| marked(&child.name)).collect();
        metrics::tables_dropped(marks.len());
        if marks.is_empty() {
            return Ok(Vec::new());
        }
        // Which table a directory that cannot be read is of is not known: it may be any.
        let Listed { entries, names } = self.tables().await?;
        if names.len() > entries.len() {
            return Ok(Vec::new());
        }
        let there: BTreeSet<TableId> = entries.iter().map(|entry| entry.table()).collect();
        let mine =
            |table: &TableId| !there.contains(table) && self.lease(PartitionId { table: *table, number: 0 }).is_some();
        let mut dropped = Vec::new();
        for table in marks.into_iter().filter(mine) {
            let Some(mark) = cell.read(&path(table)).await? else { continue };
            let partitions = std::str::from_utf8(mark.contents()).ok().and_then(|text| text.parse().ok());
            // A mark that cannot be read says at least that the table is gone.
            dropped.push((table, partitions.unwrap_or(1)));
        }
        Ok(dropped)
    }
}
