//! What everything of Tables on a node shares: the machines' inputs, the ways out, and what is known.

use super::copying::Copies;
use super::directories::Directories;
use super::hearing;
use super::lines::Lines;
use super::owning::Held;
use super::processing;
use super::requests::Requests;
use super::sealing::Seal;
use super::watching::Watchers;
use super::{APP, Told};
use crate::clock::Clock;
use crate::driver::Handle;
use crate::notify::Notify;
use crate::services::{Cells, Ground, Peers, Placed, Stored, Way};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, LeaseNumber};
use tidings_client::tables::Operations;
use tidings_predicate::Dialect;
use tidings_tables::directory::{Opened, Properties};
use tidings_tables::names::{GatewayId, Object, PartitionId, Position};
use tidings_tables::processor::{Guard, StoreId, StoreReply, StoreRequest, StoreResult};
use tidings_tables::refusal::Refusal;
use tidings_tables::{gateway, processor};
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::{error, v1};
use tokio::sync::{mpsc, oneshot};

/// How long a request to the store may take: longer than an election; after it the machine hears of an error.
pub(super) const STORE: Duration = Duration::from_secs(10);

/// Writes whose callers gave no names that may be under way at a time; more wait.
const WRITES: usize = 16_384;

/// The machines' inputs.
pub(super) struct Machines {
    pub(super) processor: Handle<processing::Input>,
    pub(super) gateway: Handle<hearing::Input>,
}

/// What one machine here has for another, in order.
#[derive(Debug)]
pub(super) enum Said {
    Processor(processor::Input),
    Gateway(gateway::Input),
}

/// What everything of Tables on a node shares.
pub(super) struct Hub {
    pub(super) told: Told,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) gateway_id: GatewayId,
    machines: OnceLock<Machines>,
    said: mpsc::UnboundedSender<Said>,
    ground: Ground,
    pub(super) directories: Directories,
    pub(super) held: Held,
    /// One at a time is joined by itself.
    pub(super) joining: tokio::sync::Mutex<()>,
    /// Something changed that partitions depend on.
    pub(super) changed: tokio::sync::Notify,
    pub(super) requests: Requests,
    pub(super) watchers: Watchers,
    pub(super) lines: Lines,
    pub(super) copies: Copies,
    /// R6: names of writes whose callers gave none; they are different people, and wait for nobody.
    pub(super) operations: Operations,
    pub(super) seal: Arc<OnceLock<Seal>>,
    /// Absent where Notify is not served.
    notify: Option<Notify>,
}

impl Deref for Hub {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

impl Hub {
    pub(super) fn new(
        told: Told,
        stored: Stored,
        cells: Cells,
        placed: Placed,
        notify: Option<Notify>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Arc<Hub>, mpsc::UnboundedReceiver<Said>), Error> {
        // As much as the machines have under way, which they bound themselves.
        let (said, saying) = mpsc::unbounded_channel();
        let copy_reads = told.copy_reads;
        let hub = Hub {
            ground: Ground::new("tables", stored, placed, Way::new(cells, APP, told.node)),
            told,
            clock,
            // A gateway that has lost its memory has another name.
            gateway_id: GatewayId(random()?),
            machines: OnceLock::new(),
            said,
            directories: Directories::default(),
            held: Held::default(),
            joining: tokio::sync::Mutex::default(),
            changed: tokio::sync::Notify::new(),
            requests: Requests::default(),
            watchers: Watchers::default(),
            lines: Lines::default(),
            copies: Copies::new(copy_reads),
            operations: Operations::of_strangers(WRITES)?,
            seal: Arc::default(),
            notify,
        };
        Ok((Arc::new(hub), saying))
    }

    pub(super) fn begin(&self, machines: Machines) {
        let _: Result<(), Machines> = self.machines.set(machines);
    }

    /// What new texts over a table's records may name at this node.
    pub(super) fn strict_dialect(&self, properties: &Properties) -> Dialect {
        Dialect { functions: self.told.functions.clone(), ..properties.strict_dialect() }
    }

    /// The same of texts that were taken before.
    pub(super) fn dialect(&self, properties: &Properties) -> Dialect {
        Dialect { functions: self.told.functions.clone(), ..properties.dialect() }
    }

    // ---- tasks ------------------------------------------------------------------------------------------------------

    /// Waits until a machine has stopped by itself; which.
    pub(super) async fn broken(&self) -> &'static str {
        let Some(machines) = self.machines.get() else { return std::future::pending().await };
        tokio::select! {
            () = machines.processor.ended() => "processor",
            () = machines.gateway.ended() => "gateway",
        }
    }

    /// Gives up what partitions are left, and lets watchers go.
    pub(super) fn leave(&self) {
        self.ground.leave();
        self.watchers.close();
    }

    pub(super) async fn stop(&self) {
        self.leave();
        self.ground.stop().await;
        self.lines.close();
    }

    // ---- the machines' inputs ---------------------------------------------------------------------------------------

    pub(super) async fn processor(&self, input: processor::Input) {
        if let Some(machines) = self.machines.get() {
            // A machine that has stopped needs no input.
            let _ = machines.processor.send(processing::Input::Machine(input)).await;
        }
    }

    /// What the processor says of a partition that it has opened; whoever cuts one waits until it has.
    pub(super) async fn opened(&self, partition: PartitionId) -> Result<Opened, Refusal> {
        let (reply, opened) = oneshot::channel();
        if let Some(machines) = self.machines.get() {
            let _ = machines.processor.send(processing::Input::Opened(partition, reply)).await;
        }
        opened.await.ok().flatten().ok_or(Refusal::Moved)
    }

    /// The same, once it has given the partition up.
    pub(super) async fn ceded(&self, partition: PartitionId) -> Result<Opened, Refusal> {
        let (reply, ceded) = oneshot::channel();
        if let Some(machines) = self.machines.get() {
            let _ = machines.processor.send(processing::Input::Cede(partition, reply)).await;
        }
        ceded.await.ok().flatten().ok_or(Refusal::Moved)
    }

    pub(super) async fn gateway(&self, input: gateway::Input) {
        if let Some(machines) = self.machines.get() {
            let _ = machines.gateway.send(hearing::Input::Machine(input)).await;
        }
    }

    /// How many partitions live queries here hear, and how many of those have not answered.
    pub(super) async fn hears(&self, numbers: Vec<u64>) -> BTreeMap<u64, (usize, usize)> {
        let Some(machines) = self.machines.get() else { return BTreeMap::new() };
        let (reply, hears) = oneshot::channel();
        let _ = machines.gateway.send(hearing::Input::Hears(numbers, reply)).await;
        hears.await.unwrap_or_default()
    }

    /// Takes an input to a machine here without waiting, after those that were said before.
    pub(super) fn say(&self, said: Said) {
        // Without whoever takes it the node is stopping.
        let _ = self.said.send(said);
    }

    // ---- leases (R2) ------------------------------------------------------------------------------------------------

    /// Whether the lease that an answer stands on has held all the time.
    pub(super) fn holds(&self, guard: Option<Guard>) -> bool {
        guard.is_none_or(|guard| self.lease(guard.partition) == Some(guard.lease))
    }

    /// The lease under which a partition is held here at this instant.
    pub(super) fn lease(&self, partition: PartitionId) -> Option<LeaseNumber> {
        self.owner.get()?.remaining(place(partition)).map(|held| held.leased.lease)
    }

    /// Where a partition is served, as far as is known: here if it is held here, whatever the table says.
    pub(super) fn owner_of(&self, partition: PartitionId) -> Option<String> {
        if self.lease(partition).is_some() {
            return Some(self.told.address.clone());
        }
        self.lookup.get()?.lookup_hash(place(partition)).map(|hint| hint.address().to_owned())
    }

    // ---- the store and other nodes ----------------------------------------------------------------------------------

    pub(super) fn peers(&self) -> Result<Arc<Peers>, Error> {
        Ok(self.stored()?.peers().clone())
    }

    /// R3: whoever is away hears from Notify that there is something to read. What Notify does not take is published again.
    pub(super) fn publish(self: &Arc<Self>, partition: PartitionId, number: u64, all: Vec<(Object, Position)>) {
        let hub = self.clone();
        self.spawn(async move {
            let published = tokio::time::timeout(STORE, hub.published(partition, all)).await;
            let published = published.unwrap_or_else(|_| Err(error::deadline()));
            if let Err(error) = &published {
                tracing::debug!(%error, %partition, "tables: nobody who is away was told");
            }
            hub.processor(processor::Input::Published { partition, number, done: published.is_ok() }).await;
        });
    }

    async fn published(&self, partition: PartitionId, all: Vec<(Object, Position)>) -> Result<(), Error> {
        // Only whoever holds the partition publishes for it.
        let entry = self.directories.find(partition.table).filter(|_| self.lease(partition).is_some());
        self.tell_notify(&entry.ok_or(Refusal::Moved)?.name.app, all).await
    }

    pub(super) async fn tell_notify(&self, app: &str, all: Vec<(Object, Position)>) -> Result<(), Error> {
        // Where Notify is not served nobody listens.
        let Some(notify) = &self.notify else { return Ok(()) };
        let publication = |(object, position): (Object, Position)| v1::Publication {
            object: object.to_string().into(),
            version: position.get(),
            ..Default::default()
        };
        notify.publish_own(app, all.into_iter().map(publication).collect()).await
    }

    /// Asks the store for the processor; each request is answered exactly once.
    pub(super) fn store(self: &Arc<Self>, id: StoreId, request: StoreRequest) {
        let hub = self.clone();
        self.spawn(async move {
            let result = tokio::time::timeout(STORE, hub.ask_store(request)).await;
            let result = result.unwrap_or_else(|_| Err(error::deadline()));
            hub.processor(processor::Input::Stored { id, result }).await;
        });
    }

    pub(super) async fn ask_store(&self, request: StoreRequest) -> StoreResult {
        let (message, scans) = match request {
            StoreRequest::Apply(apply) => (StoreMessage::Apply(apply), false),
            StoreRequest::Get(get) => (StoreMessage::Get(get), false),
            StoreRequest::Scan(scan) => (StoreMessage::Scan(scan), true),
        };
        match self.stored()?.ask(message).await? {
            StoreMessage::Applied(v1::Applied { failures }) => match failures.into_iter().next() {
                None => Ok(StoreReply::Applied),
                Some(v1::GroupFailure { code, message, .. }) => {
                    let mut error = Error::new("store.failed", Class::Failed, message);
                    error.code = code.into();
                    Err(error)
                }
            },
            StoreMessage::Rows(rows) if scans => Ok(StoreReply::Rows(rows)),
            StoreMessage::Rows(rows) => Ok(StoreReply::Row(rows.rows.into_iter().next())),
            _ => Err(Error::new("store.malformed", Class::Failed, "the store's answer is of another kind")),
        }
    }
}

/// A number that nobody can guess.
pub(super) fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}")))
}

/// Where a partition stands on the ring: what placement leases is its name.
pub(super) fn place(partition: PartitionId) -> KeyHash {
    KeyHash::of(partition.to_string().as_bytes())
}
