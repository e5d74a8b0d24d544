//! What everything of Notify on a node shares: the machines' inputs, the ways out, and what is known.

use super::channels::Channels;
use super::exchange::Asked;
use super::feeding::Taken;
use super::gathering::{Gathering, Write};
use super::hooks::Judges;
use super::lines::Lines;
use super::ranges::Served;
use super::realm::{Entered, Kept};
use super::stages::Stages;
use super::{APP, Told};
use crate::clock::Clock;
use crate::driver::Handle;
use crate::services::{Cells, Ground, Placed, Stored, Way};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, LeaseNumber};
use tidings_notify::names::Guard;
use tidings_notify::rows::{MATCHER, REGISTRAR, SCRATCH, StoreId, StoreReply, StoreRequest, StoreResult};
use tidings_notify::{bridge, matcher, registrar};
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::{error, v1};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a request to the store may take: longer than an election; after it the machine hears of an error.
pub(super) const STORE: Duration = Duration::from_secs(10);

/// The machines' inputs.
pub(super) struct Machines {
    pub(super) registrar: Handle<registrar::Input>,
    pub(super) matcher: Handle<matcher::Input>,
    pub(super) bridge: Handle<bridge::Input>,
}

/// A machine of Notify.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    Registrar,
    Matcher,
    Bridge,
}

/// What everything of Notify on a node shares.
pub(super) struct Hub {
    pub(super) told: Told,
    pub(super) clock: Arc<dyn Clock>,
    machines: OnceLock<Machines>,
    ground: Ground,
    pub(super) kept: watch::Sender<Option<Arc<Kept>>>,
    /// One enters a realm at a time; what was entered last.
    pub(super) entered: tokio::sync::Mutex<Entered>,
    /// F3: the incarnation under which a loss of entries was noticed that is not noted yet.
    pub(super) lost: Mutex<Option<u64>>,
    pub(super) served: Served,
    pub(super) channels: Channels,
    pub(super) asked: Asked,
    pub(super) lines: Lines,
    pub(super) gathering: Gathering,
    pub(super) judges: Judges,
    pub(super) taken: Taken,
    pub(super) stages: Stages,
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
        clock: Arc<dyn Clock>,
        seed: u64,
        judges: Judges,
    ) -> Arc<Hub> {
        Arc::new(Hub {
            ground: Ground::new("notify", stored, placed, Way::new(cells, APP, told.node)),
            channels: Channels::new(told.node, seed),
            told,
            clock,
            machines: OnceLock::new(),
            kept: watch::Sender::new(None),
            entered: tokio::sync::Mutex::default(),
            lost: Mutex::default(),
            served: Served::default(),
            asked: Asked::default(),
            lines: Lines::default(),
            gathering: Gathering::new(),
            judges,
            taken: Taken::default(),
            stages: Stages::default(),
        })
    }

    pub(super) fn begin(&self, machines: Machines) {
        let _: Result<(), Machines> = self.machines.set(machines);
    }

    // ---- tasks ------------------------------------------------------------------------------------------------------

    /// Ends a machine when Notify stops.
    pub(super) fn run<I, M: Send + 'static>(&self, driven: (Handle<I>, JoinHandle<M>)) -> Handle<I> {
        self.tasks().run(driven)
    }

    /// Gives up what ranges are left, and lets clients go.
    pub(super) fn leave(&self) {
        self.ground.leave();
        self.channels.close();
    }

    pub(super) async fn stop(&self) {
        self.leave();
        self.ground.stop().await;
        self.lines.close();
    }

    /// Waits until a machine has stopped by itself; which.
    pub(super) async fn broken(&self) -> &'static str {
        let Some(machines) = self.machines.get() else { return std::future::pending().await };
        tokio::select! {
            () = machines.registrar.ended() => "registrar",
            () = machines.matcher.ended() => "matcher",
            () = machines.bridge.ended() => "bridge",
        }
    }

    // ---- the machines' inputs ---------------------------------------------------------------------------------------

    pub(super) async fn registrar(&self, input: registrar::Input) {
        if let Some(machines) = self.machines.get() {
            // A machine that has stopped needs no input.
            let _ = machines.registrar.send(input).await;
        }
    }

    pub(super) async fn matcher(&self, input: matcher::Input) {
        if let Some(machines) = self.machines.get() {
            let _ = machines.matcher.send(input).await;
        }
    }

    pub(super) async fn bridge(&self, input: bridge::Input) {
        if let Some(machines) = self.machines.get() {
            let _ = machines.bridge.send(input).await;
        }
    }

    /// Tells a machine without waiting; whether there was room.
    pub(super) fn tell_registrar(&self, input: registrar::Input) -> bool {
        self.machines.get().is_some_and(|machines| machines.registrar.try_send(input).is_ok())
    }

    pub(super) fn tell_matcher(&self, input: matcher::Input) -> bool {
        self.machines.get().is_some_and(|machines| machines.matcher.try_send(input).is_ok())
    }

    pub(super) fn tell_bridge(&self, input: bridge::Input) -> bool {
        self.machines.get().is_some_and(|machines| machines.bridge.try_send(input).is_ok())
    }

    // ---- leases (F1) ------------------------------------------------------------------------------------------------

    /// The lease under which a point is held here at this instant, if the machines know; counts as a request for it.
    pub(super) fn lease(&self, key: KeyHash) -> Option<LeaseNumber> {
        let lease = self.owner.get()?.check_hash(key)?;
        self.served.holds(key, lease).then_some(lease)
    }

    /// Whether what an answer stands on has held all the time.
    pub(super) fn holds(&self, guard: Option<Guard>) -> bool {
        let Some(Guard { key, lease }) = guard else { return true };
        let held = self.owner.get().and_then(|owner| owner.remaining(key));
        held.is_some_and(|held| held.leased.lease == lease)
    }

    /// Whose a point is, as far as is known: here if it is held here, whatever the table says.
    pub(super) fn owner_of(&self, key: KeyHash) -> Option<String> {
        if self.owner.get().is_some_and(|owner| owner.remaining(key).is_some()) {
            return Some(self.told.address.clone());
        }
        self.lookup.get()?.lookup_hash(key).map(|hint| hint.address().to_owned())
    }

    // ---- the store --------------------------------------------------------------------------------------------------

    /// Asks the store for a machine; each request is answered exactly once.
    pub(super) fn store(self: &Arc<Self>, to: To, id: StoreId, request: StoreRequest) {
        match request {
            StoreRequest::Write(apply) => self.write(Write { to, id, apply }),
            request => self.store_alone(to, id, request),
        }
    }

    /// The same, without company.
    pub(super) fn store_alone(self: &Arc<Self>, to: To, id: StoreId, request: StoreRequest) {
        let hub = self.clone();
        self.spawn(async move { hub.store_now(to, id, request).await });
    }

    pub(super) async fn store_now(&self, to: To, id: StoreId, request: StoreRequest) {
        let result = tokio::time::timeout(STORE, self.ask_store(request)).await;
        self.stored_for(to, id, result.unwrap_or_else(|_| Err(error::deadline()))).await;
    }

    /// Takes the store's answer to a machine.
    pub(super) async fn stored_for(&self, to: To, id: StoreId, result: StoreResult) {
        match to {
            To::Registrar => self.registrar(registrar::Input::Stored { id, result }).await,
            To::Matcher => self.matcher(matcher::Input::Stored { id, result }).await,
            To::Bridge => self.bridge(bridge::Input::Stored { id, result }).await,
        }
    }

    pub(super) async fn ask_store(&self, request: StoreRequest) -> StoreResult {
        let message = match request {
            StoreRequest::Write(apply) => StoreMessage::Apply(apply),
            StoreRequest::Get(get) => StoreMessage::Get(get),
            StoreRequest::Scan(scan) => return self.scan(scan).await.map(StoreReply::Rows),
        };
        match self.stored()?.ask(message).await? {
            StoreMessage::Applied(v1::Applied { failures }) => match failures.into_iter().next() {
                None => Ok(StoreReply::Written),
                Some(v1::GroupFailure { code, message, .. }) => {
                    Err(Error::new("notify.not_written", Class::Failed, format!("{code}: {message}")))
                }
            },
            StoreMessage::Rows(rows) => Ok(StoreReply::Row(rows.rows.into_iter().next())),
            _ => Err(malformed()),
        }
    }

    /// Whether anything of Notify is stored, or may be: what cannot be read may.
    pub(super) async fn has_rows(&self) -> bool {
        for group in [REGISTRAR, MATCHER, SCRATCH] {
            let all = v1::Scan { group: group.into(), limit: 1, ..Default::default() };
            if !self.scan(all).await.is_ok_and(|rows| rows.rows.is_empty()) {
                return true;
            }
        }
        false
    }

    /// Rows in order.
    pub(super) async fn scan(&self, scan: v1::Scan) -> Result<v1::Rows, Error> {
        match self.stored()?.ask(StoreMessage::Scan(scan)).await? {
            StoreMessage::Rows(rows) => Ok(rows),
            _ => Err(malformed()),
        }
    }
}

fn malformed() -> Error {
    Error::new("store.malformed", Class::Failed, "the store's answer is of another kind than the question")
}
