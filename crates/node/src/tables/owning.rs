//! Partitions by placement: this node is an owner in [`NAMESPACE`], and every node looks owners up there.
//!
//! Placement leases points of a ring; a partition is whose its name's point is. Whoever holds one acquires it in its table's
//! directory first (R1), under a term of its own.

use super::NAMESPACE;
use super::directories::{Entry, Growth, Listed};
use super::hub::{Hub, place};
use crate::metrics;
use crate::placement::joining::{Member, Pool};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Error, KeyRange, LeaseNumber};
use tidings_client::cell::{Link, SessionOptions};
use tidings_client::placement::{Owner, OwnershipChange};
use tidings_tables::acl::Acl;
use tidings_tables::directory::{Acquired, Directory, Properties};
use tidings_tables::names::{PartitionId, TableId};
use tidings_tables::refusal::Refusal;
use tidings_tables::{gateway, processor};
use tokio::time::Instant;

/// The pause before another attempt to begin.
const AGAIN: Duration = Duration::from_millis(250);
/// How often directories are looked at: others change them, too.
const LOOK: Duration = Duration::from_millis(250);
/// How long a session with the cell may take to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// What the machines were told.
#[derive(Default)]
pub(super) struct Held {
    told: Mutex<Told>,
    /// One at a time tells the gateway of tables, so that what it was told last is what is known to be told.
    telling: tokio::sync::Mutex<()>,
    /// The same of the processor and tables' rules.
    telling_rules: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Told {
    /// The processor has these.
    partitions: BTreeMap<PartitionId, LeaseNumber>,
    /// The processor knows these rules.
    rules: BTreeMap<TableId, Rules>,
    /// The gateway knows these directories, and who has which partition.
    directories: BTreeMap<TableId, (u64, u64)>,
    owners: BTreeMap<PartitionId, Option<LeaseNumber>>,
    /// Partitions that were given up so that they are cut or joined, and until when they are not taken back.
    ceded: BTreeMap<PartitionId, Instant>,
}

/// What a processor judges by: properties, and that there is another list.
#[derive(Clone)]
struct Rules {
    /// Of the directory that has them.
    version: (u64, u64),
    properties: Properties,
    acl: Option<Acl>,
}

impl Told {
    /// How a directory stands to the one that the gateway knows, which is the newer one from here on.
    fn knows_directory(&mut self, table: TableId, version: (u64, u64)) -> Ordering {
        let known = self.directories.entry(table).or_default();
        let order = version.cmp(known);
        *known = version.max(*known);
        order
    }

    fn knows_rules(&self, entry: &Entry) -> bool {
        self.rules.get(&entry.table()).is_some_and(|rules| rules.version >= entry.version)
    }
}

impl Held {
    /// The lease under which the processor has a partition.
    fn get(&self, partition: PartitionId) -> Option<LeaseNumber> {
        self.told.lock().partitions.get(&partition).copied()
    }

    /// How many partitions the processor has.
    pub(super) fn count(&self) -> usize {
        self.told.lock().partitions.len()
    }

    /// The processor has lost a partition by itself.
    pub(super) fn forget(&self, partition: PartitionId) {
        self.told.lock().partitions.remove(&partition);
    }

    /// A partition is given up, and not taken back before that.
    pub(super) fn cede(&self, partition: PartitionId, until: Instant) {
        let mut told = self.told.lock();
        told.partitions.remove(&partition);
        told.ceded.insert(partition, until);
    }

    /// What came of these is known: those that are still there may be taken back.
    pub(super) fn settle(&self, partitions: &[PartitionId]) {
        self.told.lock().ceded.retain(|partition, _| !partitions.contains(partition));
    }

    fn is_ceded(&self, partition: PartitionId) -> bool {
        let mut told = self.told.lock();
        told.ceded.retain(|_, until| *until > Instant::now());
        told.ceded.contains_key(&partition)
    }

    fn within(&self, range: Option<KeyRange>) -> Vec<PartitionId> {
        let told = self.told.lock();
        let held = told.partitions.keys().copied();
        held.filter(|partition| range.is_none_or(|range| range.contains(place(*partition)))).collect()
    }
}

/// Keeps a session with the cell, one after the other.
pub(super) async fn keep_session(hub: Arc<Hub>) {
    loop {
        if let Err(error) = session(&hub).await {
            tracing::debug!(%error, "tables: no session with the cell");
        }
        hub.cell.send_replace(None);
        tokio::time::sleep(AGAIN).await;
    }
}

async fn session(hub: &Arc<Hub>) -> Result<(), Error> {
    let options = SessionOptions { begin_within: BEGIN, ..SessionOptions::default() };
    let cell = Link::new(hub.way.clone())?.session(options).await?;
    hub.know_key(&cell).await?;
    hub.cell.send_replace(Some(cell.clone()));
    hub.changed.notify_one();
    while !cell.state().is_over() {
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// Begins to look up and to own, and tells the machines what there is.
pub(super) async fn follow(hub: Arc<Hub>) {
    let owner = begin(&hub).await;
    let mut changes = owner.as_ref().map(Owner::changes);
    if let Some(owner) = owner {
        let _: Result<(), Owner> = hub.owner.set(owner);
    }
    loop {
        tokio::select! {
            change = next(&mut changes) => match change {
                Some(change) => hub.interrupted(change).await,
                None => changes = None,
            },
            () = hub.changed.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        if let Err(error) = hub.look().await {
            tracing::debug!(%error, "tables: directories are not known");
        }
    }
}

async fn next(changes: &mut Option<tidings_client::placement::Changes>) -> Option<OwnershipChange> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// Begins to look up, and to own if this node serves.
async fn begin(hub: &Arc<Hub>) -> Option<Owner> {
    let told = &hub.told;
    let (lease_ms, renew_ms, through) = (told.lease_ms, told.renew_ms, hub.through.clone());
    let pool = Pool { part: "tables", namespace: NAMESPACE, lease_ms, renew_ms, through };
    let member =
        told.serves.then(|| Member { node: told.node, address: told.address.clone(), data: told.data.clone() });
    pool.join(&hub.lookup, member, || hub.stored()).await
}

impl Hub {
    /// R1: whatever was revoked or granted is acquired anew before it is served again.
    async fn interrupted(&self, change: OwnershipChange) {
        let ranges = change.revoked.iter().chain(&change.granted).map(|leased| Some(leased.range));
        let ranges: Vec<Option<KeyRange>> = if change.missed { vec![None] } else { ranges.collect() };
        for range in ranges {
            for partition in self.held.within(range) {
                self.lose(partition).await;
            }
        }
    }

    pub(super) async fn lose(&self, partition: PartitionId) {
        self.held.forget(partition);
        self.processor(processor::Input::Lost { partition }).await;
    }

    /// Looks at all directories, and tells the machines of what is other than they know.
    async fn look(&self) -> Result<(), Error> {
        let Listed { entries, names } = self.tables().await?;
        for gone in self.directories.keep(&names) {
            self.forget_table(gone.table()).await;
        }
        for entry in &entries {
            self.tell_gateway(entry).await;
            self.tell_processor(entry).await;
        }
        self.look_at_copies(&entries).await;
        metrics::tables_partitions(self.held.count());
        Ok(())
    }

    async fn forget_table(&self, table: TableId) {
        let lost = {
            let mut told = self.held.told.lock();
            told.directories.remove(&table);
            told.rules.remove(&table);
            told.owners.retain(|partition, _| partition.table != table);
            told.partitions.keys().copied().filter(|partition| partition.table == table).collect::<Vec<_>>()
        };
        for partition in lost {
            self.lose(partition).await;
        }
        self.gateway(gateway::Input::Dropped(table)).await;
    }

    /// A directory before who owns its partitions.
    pub(super) async fn tell_gateway(&self, entry: &Entry) {
        let table = entry.table();
        let _turn = self.held.telling.lock().await;
        let order = self.held.told.lock().knows_directory(table, entry.version);
        match order {
            // Somebody read it before it was changed, and says so late.
            Ordering::Less => return,
            Ordering::Equal => {}
            Ordering::Greater => self.gateway(gateway::Input::Directory(entry.directory.clone())).await,
        }
        for part in &entry.directory.partitions {
            let partition = entry.directory.partition_id(part.number);
            let lease = self.lookup.get().and_then(|lookup| Some(lookup.lookup_hash(place(partition))?.lease()));
            let lease = self.lease(partition).or(lease);
            let before = self.held.told.lock().owners.insert(partition, lease);
            if before != Some(lease) {
                self.gateway(gateway::Input::Owner { partition, lease }).await;
            }
        }
    }

    /// A partition's table has the rules of now, whatever this node knew: what the processor is asked next is judged by them.
    pub(super) async fn tell_rules_of(&self, partition: PartitionId) -> Result<(), Error> {
        let known = self.directories.find(partition.table).ok_or(Refusal::Moved)?;
        self.tell_rules(&*self.table(&known.name).await?).await;
        Ok(())
    }

    async fn tell_rules(&self, entry: &Entry) {
        let (table, Directory { properties, acl, .. }) = (entry.table(), &*entry.directory);
        if self.held.told.lock().knows_rules(entry) {
            return;
        }
        let _turn = self.held.telling_rules.lock().await;
        let before = {
            let told = self.held.told.lock();
            if told.knows_rules(entry) {
                return;
            }
            told.rules.get(&table).cloned()
        };
        if before.as_ref().is_none_or(|before| before.properties != *properties) {
            let properties = Box::new(properties.clone());
            self.processor(processor::Input::Altered { table, properties }).await;
        }
        if before.is_some_and(|before| before.acl != *acl) {
            self.processor(processor::Input::Relisted(table)).await;
        }
        let rules = Rules { version: entry.version, properties: properties.clone(), acl: acl.clone() };
        self.held.told.lock().rules.insert(table, rules);
    }

    async fn tell_processor(&self, entry: &Entry) {
        self.tell_rules(entry).await;
        let table = entry.table();
        let parts: Vec<PartitionId> =
            entry.directory.partitions.iter().map(|part| entry.directory.partition_id(part.number)).collect();
        let cut: Vec<PartitionId> = {
            let told = self.held.told.lock();
            let held = told.partitions.keys().copied();
            held.filter(|partition| partition.table == table && !parts.contains(partition)).collect()
        };
        for partition in cut {
            self.lose(partition).await;
        }
        for partition in parts {
            match (self.lease(partition), self.held.get(partition)) {
                (Some(lease), Some(held)) if lease == held => {}
                (Some(_), None) if self.held.is_ceded(partition) => {}
                (Some(lease), _) => self.acquire(entry, partition, lease).await,
                (None, Some(_)) => self.lose(partition).await,
                (None, None) => {}
            }
        }
    }

    /// R1: takes a partition over in the directory, then serves it.
    async fn acquire(&self, entry: &Entry, partition: PartitionId, lease: LeaseNumber) {
        let acquire = |_: &Entry, directory: &mut Directory| match directory.table() == partition.table {
            true => directory.acquire(partition.number, lease),
            false => Err(Refusal::Moved),
        };
        match self.change_table(&entry.name, Growth::Free, acquire).await {
            Ok((_, acquired)) => self.gained(acquired).await,
            Err(error) => tracing::debug!(%error, %partition, "tables: a partition is not acquired"),
        }
    }

    async fn gained(&self, acquired: Acquired) {
        let Acquired { partition, lease, ref entry, .. } = acquired;
        let term = entry.term.get();
        tracing::debug!(%partition, lease = lease.get(), term, "tables: a partition is served here");
        self.held.told.lock().partitions.insert(partition, lease);
        // Rules come along that may be older than those that were told meanwhile.
        let _turn = self.held.telling_rules.lock().await;
        self.processor(processor::Input::Gained(Box::new(acquired))).await;
        self.held.told.lock().rules.remove(&partition.table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_not_told_what_was_before() {
        let mut told = Told::default();
        let table = TableId(7);
        let orders =
            [(3, 1), (3, 2), (3, 1), (3, 2), (2, 9), (4, 1)].map(|version| told.knows_directory(table, version));
        assert_eq!(
            orders,
            [Ordering::Greater, Ordering::Greater, Ordering::Less, Ordering::Equal, Ordering::Less, Ordering::Greater]
        );
        assert_eq!(told.directories[&table], (4, 1));
    }
}
