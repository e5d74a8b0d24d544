//! Partitions are cut and joined (R1): asked for by somebody, for their size or load, or because that has passed.
//!
//! ```text
//!   split: owner gives it up ─▶ directory                           merge: ─▶ owner of the left asks the owner of the right
//!                                                                            ─▶ both give up ─▶ directory
//! ```
//! What is given up is served by nobody until the directory says what came of it. If it says nothing it is taken back.

use super::directories::{Entry, Growth, TableName};
use super::hub::Hub;
use super::serving::for_partition;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, LeaseNumber};
use tidings_predicate::Key;
use tidings_tables::directory::{Directory, MAX_PARTITIONS, Opened};
use tidings_tables::names::{PartitionId, Term};
use tidings_tables::refusal::Refusal;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};
use tokio::time::Instant;

/// How long another node may take to give a partition up.
const CEDE: Duration = Duration::from_secs(2);
/// How long a partition that was given up is not taken back: longer than a change of the directory takes.
const CEDED: Duration = Duration::from_secs(4);

/// Why a partition is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Somebody has asked for it: it stays.
    Asked,
    /// It has grown.
    Grown,
    /// It is busy.
    Busy,
}

impl Hub {
    /// Cuts a partition that is served here before a key.
    pub(super) async fn split(
        &self,
        name: &TableName,
        partition: PartitionId,
        at: &Key,
        why: Why,
    ) -> Result<Arc<Entry>, Error> {
        let opened = self.opened(partition).await?;
        let split = |directory: &mut Directory| match why {
            Why::Asked => directory.split(opened, at).map(drop),
            Why::Grown | Why::Busy => directory.split_by_itself(opened, at).map(drop),
        };
        self.recut(name, &[partition], split).await
    }

    /// Joins a partition that is served here with the one behind it, wherever that is served.
    pub(super) async fn merge(self: &Arc<Self>, name: &TableName, both: [PartitionId; 2]) -> Result<Arc<Entry>, Error> {
        let left = self.opened(both[0]).await?;
        let owner = self.owner_of(both[1]).ok_or(Refusal::Moved)?;
        if owner == self.told.address {
            let right = self.opened(both[1]).await?;
            return self.recut(name, &both, |directory| directory.merge([left, right]).map(drop)).await;
        }
        // Once it has given its part up nobody serves that for seconds, whatever becomes of it here.
        check_joins(&self.table(name).await?.directory, left, both)?;
        let right = self.ceded_by(&owner, both[1]).await?;
        self.recut(name, &both[..1], |directory| directory.merge([left, right]).map(drop)).await
    }

    /// The partition behind another.
    pub(super) async fn neighbour(&self, name: &TableName, partition: PartitionId) -> Result<PartitionId, Error> {
        let entry = self.table(name).await?;
        let parts = &entry.directory.partitions;
        let at = parts.iter().position(|part| part.number == partition.number).ok_or(Refusal::Moved)?;
        parts.get(at + 1).map(|part| entry.directory.partition_id(part.number)).ok_or_else(|| {
            Error::new("tables.no_neighbour", Class::Refused, "there is no partition behind this one")
                .hint("Name a key of the partition before the last.")
        })
    }

    /// Nobody answers for what is cut before the directory says so. What the directory would refuse is refused before anything
    /// is given up here.
    async fn recut(
        &self,
        name: &TableName,
        parents: &[PartitionId],
        mut cut: impl FnMut(&mut Directory) -> Result<(), Refusal>,
    ) -> Result<Arc<Entry>, Error> {
        let mut recut =
            |directory: &mut Directory| match parents.iter().all(|partition| partition.table == directory.table()) {
                true => cut(directory),
                false => Err(Refusal::Moved),
            };
        let entry = self.table(name).await?;
        let mut directory = (*entry.directory).clone();
        recut(&mut directory)?;
        drop(self.room_to_grow(&entry, &directory).await?);
        let changed = async {
            for partition in parents {
                self.cede(*partition).await?;
            }
            self.change_table(name, Growth::Bounded, |_, directory| recut(directory)).await
        };
        let changed = changed.await;
        self.held.settle(parents);
        self.changed.notify_one();
        Ok(changed?.0)
    }

    /// Gives a partition up that is served here.
    pub(super) async fn cede(&self, partition: PartitionId) -> Result<Opened, Error> {
        let ceded = self.ceded(partition).await?;
        self.held.cede(partition, Instant::now() + CEDED);
        Ok(ceded)
    }

    /// Lets another node give a partition up.
    async fn ceded_by(&self, address: &str, partition: PartitionId) -> Result<Opened, Error> {
        let body = for_partition(&v1::TablesCaller::default(), partition, Message::Cede(v1::PartitionCede {}));
        match self.peers()?.ask(address, body, CEDE).await? {
            Body::Tables(v1::TablesMessage { message: Some(Message::Ceded(ceded)), .. }) => {
                let (lease, term) = (LeaseNumber::new(ceded.lease), Term::new(ceded.term));
                let (lease, term) = lease.zip(term).ok_or_else(super::serving::malformed)?;
                Ok(Opened::elsewhere(partition.number, lease, term))
            }
            _ => Err(super::serving::malformed()),
        }
    }

    /// Cuts a partition by itself; if it cannot be cut now, it is as it was.
    pub(super) fn cut_by_itself(self: &Arc<Self>, partition: PartitionId, at: Key, why: Why) {
        let Some(entry) = self.directories.find(partition.table) else { return };
        if why == Why::Busy {
            // Halves of the same owner would be as busy; and parts that grow must be able to be cut.
            let others = self.lookup.get().is_some_and(|lookup| lookup.directory().owner(1).is_some());
            if !others || entry.directory.partitions.len() >= MAX_PARTITIONS / 2 {
                return;
            }
        }
        let hub = self.clone();
        self.spawn(async move {
            if let Err(error) = hub.split(&entry.name, partition, &at, why).await {
                tracing::warn!(%error, %partition, "tables: a large or busy partition was not cut");
            }
        });
    }

    /// Joins a quiet partition with the one behind it, if they were cut apart by themselves and that one is as quiet. One at a
    /// time on this node: it is never urgent.
    pub(super) fn join_by_itself(self: &Arc<Self>, partition: PartitionId) {
        let Some(entry) = self.directories.find(partition.table) else { return };
        let Some(next) = entry.directory.joins_by_itself(partition.number) else { return };
        let (hub, next) = (self.clone(), entry.directory.partition_id(next));
        self.spawn(async move {
            let Ok(_turn) = hub.joining.try_lock() else { return };
            // Whatever the table's level is.
            let level = v1::TableLevel::User.into();
            let caller = v1::TablesCaller { level, ..Default::default() };
            for part in [partition, next] {
                if !hub.size(&caller, part).await.is_some_and(|size| size.quiet) {
                    return;
                }
            }
            if let Err(error) = hub.merge(&entry.name, [partition, next]).await {
                tracing::debug!(%error, %partition, "tables: a quiet partition was not joined");
            }
        });
    }
}

/// Refuses what the directory would refuse of two partitions of which one is opened here, as far as this node knows it.
fn check_joins(directory: &Directory, left: Opened, both: [PartitionId; 2]) -> Result<(), Refusal> {
    let parts = &directory.partitions;
    let at = parts.iter().position(|part| part.number == both[0].number);
    let part = at.map(|at| &parts[at]).filter(|_| both.iter().all(|partition| partition.table == directory.table()));
    let part = part.ok_or(Refusal::Moved)?;
    if (part.lease, part.term) != (left.lease().get(), left.term()) {
        return Err(Refusal::Moved);
    }
    match at.and_then(|at| parts.get(at + 1)).is_some_and(|next| next.number == both[1].number) {
        true => Ok(()),
        false => Err(Refusal::Moved),
    }
}

/// What a partition's owner says when it has given it up.
pub(super) fn ceded_to(opened: Opened) -> Message {
    Message::Ceded(v1::PartitionCeded { lease: opened.lease().get(), term: opened.term().get() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_predicate::Packed;
    use tidings_tables::calls::{Access, Caller};
    use tidings_tables::directory::Properties;
    use tidings_tables::names::TableId;

    #[test]
    fn another_node_gives_nothing_up_for_what_cannot_be_joined() {
        let maker = Caller {
            access: Access::App,
            app: "shop".to_owned(),
            user: String::new(),
            principal: "app:shop/k".to_owned(),
            claims: Packed::empty(),
            expires: None,
        };
        let cuts = ["g", "p"].map(Key::from).to_vec();
        let mut directory = Directory::create(TableId(7), &maker, Properties::default(), cuts).unwrap();
        let lease = LeaseNumber::new(5).unwrap();
        let [one, two, three] = [0, 1, 2].map(|at: usize| directory.partitions[at].number);
        let term = directory.acquire(one, lease).unwrap().entry.term;
        let left = Opened::elsewhere(one, lease, term);
        let check = |directory: &Directory, left: Opened, right: u32| {
            check_joins(directory, left, [one, right].map(|number| directory.partition_id(number)))
        };
        assert_eq!(check(&directory, left, two), Ok(()));
        assert_eq!(check(&directory, left, three), Err(Refusal::Moved));
        let elsewhere = PartitionId { table: TableId(8), number: two };
        assert_eq!(check_joins(&directory, left, [directory.partition_id(one), elsewhere]), Err(Refusal::Moved));
        // Somebody else has opened it since.
        directory.acquire(one, LeaseNumber::new(6).unwrap()).unwrap();
        assert_eq!(check(&directory, left, two), Err(Refusal::Moved));
    }
}
