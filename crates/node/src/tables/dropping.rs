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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Services;
    use crate::services::NodeServices;
    use crate::tables::directories::TableName;
    use bytes::Bytes;
    use tidings_predicate::{Packed, Value};
    use tidings_tables::calls::{Access, Caller};
    use tidings_tables::directory::{Directory, Properties};
    use tidings_tables::processor::{StoreReply, StoreRequest};
    use tidings_wire::v1;
    use tidings_wire::v1::tables_message::Message;

    async fn start(dir: &std::path::Path) -> (NodeServices, Arc<Hub>) {
        let mut config = crate::Config::embedded(dir, ([127, 0, 0, 1], 0).into());
        config.placement.session = crate::config::Time::seconds(1);
        config.notify.lease = crate::config::Time::millis(2_500);
        config.notify.renew = crate::config::Time::millis(400);
        let data = crate::data_dir::DataDir::open(&config.data).unwrap();
        let (clock, hindrance) = (Arc::new(crate::SystemClock), crate::hindrance::Hindrance::default());
        let services =
            crate::start_services(&config, &hindrance, Default::default(), &data, config.listen, clock).await.unwrap();
        let hub = services.tables_here().unwrap().hub.clone();
        eventually("a session with the cell", async || hub.the_cell().is_ok()).await;
        (services, hub)
    }

    async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
        let waiting = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn make(id: u64) -> Directory {
        let (app, principal) = ("shop".to_owned(), "app:shop/k".to_owned());
        let (user, claims) = (String::new(), Packed::empty());
        let caller = Caller { access: Access::App, app, user, principal, claims, expires: None };
        let properties = Properties { access: Access::Public, ..Properties::default() };
        Directory::create(TableId(id), &caller, properties, vec!["m".into()]).unwrap()
    }

    /// Rows of a table that are in the store, of any kind.
    async fn rows(hub: &Hub, id: u64) -> usize {
        let group = format!(".tables/{}", TableId(id)).into();
        let scan = v1::Scan { group, start: Bytes::new(), end: Bytes::new(), limit: 0, columns: Vec::new() };
        match hub.ask_store(StoreRequest::Scan(scan)).await {
            Ok(StoreReply::Rows(found)) => found.rows.len(),
            other => panic!("{other:?}"),
        }
    }

    async fn put(hub: &Arc<Hub>, key: &str) {
        let level = v1::TableLevel::App.into();
        let caller = v1::TablesCaller {
            app: "shop".into(),
            principal: "app:shop/k".into(),
            level,
            privileged: true,
            ..Default::default()
        };
        let columns = Packed::columns([("n", Value::Int(1))]).unwrap();
        let data =
            Some(v1::RecordData { form: Some(v1::record_data::Form::Packed(columns.as_bytes().to_vec().into())) });
        let key = Some(tidings_client::tables::form::key_to(key.into()));
        let change = Some(v1::record_write::Change::Put(v1::RecordPut { data, audience: String::new() }));
        let write = v1::RecordWrite { table: "prices".into(), key, change, ..Default::default() };
        let message = Some(Message::Write(write));
        hub.call(v1::TablesMessage { caller: Some(caller), partition: None, message }).await.unwrap();
    }

    /// A table that was made again under the name of a dropped one keeps everything; what the dropped one left goes, also if
    /// the node restarts in between.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_of_a_dropped_table_go_and_those_of_its_namesake_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (services, hub) = start(dir.path()).await;
        let name = TableName::parse("shop", "prices").unwrap();
        let first = hub.create_table(&name, &make(1)).await.unwrap();
        for n in 0..30 {
            put(&hub, &format!("{}{n}", if n % 2 == 0 { "a" } else { "z" })).await;
        }
        assert!(rows(&hub, 1).await >= 60, "records and outcomes");

        // A mark beside a table that is there says nothing.
        hub.mark_dropped(&first).await.unwrap();
        assert_eq!(hub.dropped_tables().await.unwrap(), []);
        hub.drop_table(&first).await.unwrap();
        hub.create_table(&name, &make(2)).await.unwrap();
        for n in 0..5 {
            put(&hub, &format!("b{n}")).await;
        }
        let kept = rows(&hub, 2).await;
        assert!(kept >= 10, "{kept}");
        eventually("the rows of the first table are gone", async || rows(&hub, 1).await == 0).await;
        eventually("its mark is gone", async || {
            hub.the_cell().unwrap().read(&path(TableId(1))).await.is_ok_and(|mark| mark.is_none())
        })
        .await;
        assert_eq!(rows(&hub, 2).await, kept);

        // The second one is dropped by a node that dies before it has deleted anything: its marks say so.
        let second = hub.table(&name).await.unwrap();
        hub.mark_dropped(&second).await.unwrap();
        drop(hub);
        services.stop().await;
        drop(services);
        let (services, hub) = start(dir.path()).await;
        eventually("the table is there", async || hub.table(&name).await.is_ok()).await;
        assert_eq!(rows(&hub, 2).await, kept, "a table that is there loses nothing");
        let second = hub.table(&name).await.unwrap();
        hub.the_cell().unwrap().delete("/shop.prices").await.unwrap();
        assert_eq!(second.table(), TableId(2));
        eventually("the rows of the second table are gone", async || rows(&hub, 2).await == 0).await;
        services.stop().await;
    }
}
