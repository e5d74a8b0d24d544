//! Tables on this node: processor and gateway on tokio, partitions by placement, directories in the cell, records in the store.
//!
//! ```text
//!   caller ─▶ serving, reading ─ directory (cell, cached) ─▶ whose is the partition? ─▶ requests ─▶ Processor (here)
//!                                                             │ lookup                      └─▶ the same on its node
//!   watcher ─▶ watching ─▶ Gateway ─ Install … ─▶ lines ─▶ Processor, here or elsewhere
//!                 ▲            ▲                               │ Frame, Progress
//!                 └── Event ───┴──────────── lines ◀───────────┘
//!   copying: many reads of a partition of another node ─▶ Follow ─▶ Processor: a copy, fed by its owner through lines
//!   dropping: marks of dropped tables (cell) ─▶ Deleter ─▶ store
//!   owning: leases by placement ─▶ acquired in the directory (R1) ─▶ Gained, Lost ─▶ Processor ─▶ store, fenced (R2)
//! ```
//! Every node takes callers; nodes with the role `services` own partitions. Whatever is said between nodes about live queries
//! may be lost: the machines say it again.

mod console;
mod convert;
mod copying;
mod cutting;
mod directories;
mod dropping;
mod hearing;
mod hub;
mod lines;
mod looking_up;
mod owning;
mod performing;
mod processing;
mod reading;
mod requests;
mod rereading;
mod room;
mod sealing;
mod serving;
mod sweeping;
mod untaken;
mod watching;

// What a program needs to register a function.
pub use tidings_predicate::{BadFunction, Fault, Functions, Kinds, Udf, Value};
pub use watching::Watching;

use crate::clock::Clock;
use crate::connection::{Requests, Responder};
use crate::driver;
use crate::notify::Notify;
use crate::services::{Cells, Placed, Stored};
use futures::future::BoxFuture;
use hearing::Hearing;
use hub::{Hub, Machines};
use performing::{ForGateway, ForProcessor};
use processing::Processing;
use sealing::Sealing;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_tables::gateway::{self, Gateway};
use tidings_tables::processor::{self, Processor};
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};

/// The namespace of placement that partitions are leased in: no application can reach it.
pub const NAMESPACE: &str = ".tables";

/// The tree of the cell that directories lie in.
const APP: &str = ".tables";

/// Inputs that may wait for a machine; whoever brings more waits.
const QUEUE: usize = 4_096;

/// What a live query is refused with at a node that is no member.
const NO_MEMBER: &str = "tables.no_member";

/// What Tables on a node is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// This node's number.
    pub node: u64,
    /// Where others reach this node.
    pub address: String,
    /// Whether it owns partitions.
    pub serves: bool,
    /// A directory of its own: its lock proves that an earlier process of this node is dead.
    pub data: PathBuf,
    /// How long a partition may be served without renewing, in milliseconds.
    pub lease_ms: u32,
    /// How often it is renewed.
    pub renew_ms: u32,
    /// How long the store remembers rows that were deleted.
    pub keep_tombstones: Duration,
    /// Reads a second of a partition of another node that are worth a copy here; 0 = none are.
    pub copy_reads: u64,
    /// Bytes from which on a partition is cut by itself.
    pub cut_bytes: u64,
    /// How long partitions that were cut apart by themselves are quiet before they are joined.
    pub quiet: Duration,
    /// Functions that the program around this node has registered: predicates and queries may call them.
    pub functions: Functions,
}

/// Tables on this node. Cheap to clone.
#[derive(Clone)]
pub struct Tables {
    hub: Arc<Hub>,
}

impl Tables {
    /// How many partitions this node serves.
    pub fn partitions(&self) -> usize {
        self.hub.held.count()
    }

    /// Begins to serve: what is not there yet (a cell, a manager) is waited for in the background.
    pub fn start(
        told: Told,
        stored: Stored,
        cells: Cells,
        placed: Placed,
        notify: Option<Notify>,
        clock: Arc<dyn Clock>,
    ) -> Result<Tables, Error> {
        let functions = told.functions.clone();
        let (grown, quiet) = (told.cut_bytes, told.quiet);
        let options = processor::Options { seed: hub::random()?, functions, grown, quiet, ..Default::default() };
        let (hub, saying) = Hub::new(told, stored, cells, placed, notify, clock.clone())?;
        let processor = Processing(Processor::new(options));
        let options = gateway::Options::new(hub.gateway_id);
        let gateway = Hearing(Gateway::new(options, Box::new(Sealing(hub.seal.clone()))));
        let (for_processor, for_gateway) = (ForProcessor(hub.clone()), ForGateway(hub.clone()));
        let tasks = hub.tasks();
        hub.begin(Machines {
            processor: tasks.run(driver::spawn("processor", processor, for_processor, clock.clone(), QUEUE)),
            gateway: tasks.run(driver::spawn("gateway", gateway, for_gateway, clock, QUEUE)),
        });
        hub.spawn(lines::pass_on(hub.clone(), saying));
        hub.spawn(owning::keep_session(hub.clone()));
        hub.spawn(owning::follow(hub.clone()));
        if hub.told.serves {
            hub.spawn(dropping::delete_dropped(hub.clone()));
        }
        hub.spawn(sweeping::run(hub.clone()));
        Ok(Tables { hub })
    }

    /// Answers what has one answer; `request.caller` says who asks.
    pub async fn call(&self, request: v1::TablesMessage) -> Result<v1::TablesMessage, Error> {
        self.hub.call(request).await
    }

    /// Answers what may go on: live queries, and reads of other nodes.
    pub fn serve(
        &self,
        request: v1::TablesMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> BoxFuture<'static, ()> {
        let hub = self.hub.clone();
        match request {
            v1::TablesMessage { caller, message: Some(Message::Watch(query)), .. } => {
                if let Err(elsewhere) = hub.stored().and_then(|stored| stored.refuse_outside(NO_MEMBER)) {
                    responder.fail(elsewhere);
                    return Box::pin(std::future::ready(()));
                }
                Box::pin(hub.serve_watch(caller.unwrap_or_default(), query, rest, responder))
            }
            v1::TablesMessage { caller, partition: Some(partition), message: Some(Message::Read(read)) } => {
                let (caller, partition) = (caller.unwrap_or_default(), convert::partition_of(partition));
                Box::pin(hub.serve_read(caller, partition, read, responder))
            }
            request => Box::pin(async move { responder.finish(hub.call(request).await.map(Body::Tables)) }),
        }
    }

    /// Begins a live query for somebody who has no connection of frames.
    pub async fn watch(&self, caller: v1::TablesCaller, query: v1::LiveQuery) -> Result<Watching, Error> {
        self.hub.stored()?.refuse_outside(NO_MEMBER)?;
        self.hub.watch(caller, query, None).await
    }

    /// Waits until a machine has stopped by itself; which.
    pub async fn broken(&self) -> &'static str {
        self.hub.broken().await
    }

    /// Hands the partitions over, so that others serve them at once.
    pub async fn hand_over(&self) {
        self.hub.hand_over().await;
    }

    /// Lets watchers go: they find another node.
    pub fn retire(&self) {
        self.hub.leave();
    }

    /// Stops at once.
    pub async fn stop(&self) {
        self.hub.stop().await;
    }
}
