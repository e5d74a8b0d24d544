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
use tidings_tables::names::{Object, PartitionId, Position, TableId};
use tidings_tables::processor::StoreRequest;
use tidings_wire::error;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// How marks begin: no table can have such a name.
const MARK: &str = ".dropped-";
/// How long they are: a table is 16 digits.
pub(super) const MARKED: usize = MARK.len() + 16;
/// How often marks are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Inputs that may wait for the machine.
const QUEUE: usize = 256;

fn path(table: TableId) -> String {
    format!("/{MARK}{table}")
}

pub(super) fn marked(name: &str) -> Option<TableId> {
    u64::from_str_radix(name.strip_prefix(MARK)?, 16).ok().map(TableId)
}

/// How many partitions a table had, and whose it was, as its mark says. One that cannot be read says at least that the table is
/// gone; those of earlier versions do not name the application.
pub(super) fn said(mark: &[u8]) -> (u32, Option<String>) {
    let mut words = std::str::from_utf8(mark).unwrap_or_default().split(' ');
    let partitions = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    (partitions, words.next().map(str::to_owned))
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
            ask = asked.recv() => {
                let Some(ask) = ask else { return };
                // A machine that has stopped needs no input.
                let _ = deleter.send(hub.answer_deleter(ask).await).await;
            }
            _ = look.tick() => match hub.dropped_tables().await {
                Ok(dropped) => {
                    for dropped in dropped {
                        let _ = deleter.send(dropped).await;
                    }
                }
                Err(error) => tracing::debug!(%error, "tables: dropped tables are not known"),
            }
        }
    }
}

/// What the deleter asks.
enum Ask {
    Store(StoreRequest),
    Publish(String, Vec<(Object, Position)>),
}

/// Performs what the deleter wants; it asks one thing at a time.
struct Performing {
    hub: Arc<Hub>,
    asks: mpsc::UnboundedSender<Ask>,
}

impl Perform<Output> for Performing {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Store(request) => {
                // Without whoever takes it the node is stopping.
                let _ = self.asks.send(Ask::Store(request));
            }
            Output::Publish { app, publications } => {
                let _ = self.asks.send(Ask::Publish(app, publications));
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
    async fn answer_deleter(&self, ask: Ask) -> Input {
        match ask {
            Ask::Store(request) => {
                let result = tokio::time::timeout(STORE, self.ask_store(request)).await;
                Input::Stored { result: result.unwrap_or_else(|_| Err(error::deadline())) }
            }
            Ask::Publish(app, publications) => {
                let told = tokio::time::timeout(STORE, self.tell_notify(&app, publications)).await;
                let told = told.unwrap_or_else(|_| Err(error::deadline()));
                if let Err(error) = &told {
                    tracing::debug!(%error, app, "tables: nobody who is away from a dropped table was told");
                }
                Input::Published { done: told.is_ok() }
            }
        }
    }

    /// Says for good that a table is about to be dropped, how many partitions it ever had, and whose it was.
    pub(super) async fn mark_dropped(&self, entry: &Entry) -> Result<(), Error> {
        let contents = format!("{} {}", entry.directory.next, entry.name.app).into_bytes();
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

    /// Tables that were dropped and whose rows are this node's to delete.
    async fn dropped_tables(&self) -> Result<Vec<Input>, Error> {
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
            let (partitions, app) = said(mark.contents());
            dropped.push(Input::Dropped { table, partitions, app });
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_all_times_are_read() {
        assert_eq!(said(b"7 shop"), (7, Some("shop".to_owned())));
        assert_eq!(said(b"7"), (7, None));
        assert_eq!(said(b""), (1, None));
        assert_eq!(said(&[0xff]), (1, None));
    }
}
