//! Notify on this node: bridge, matcher and registrar on tokio, ranges by placement, rows and feed in the store.
//!
//! ```text
//!   publisher ─ Publish ─▶ feed ─▶ feeding ─▶ Bridge ──┐            ┌─ channels ◀─ frames ─▶ clients of this node
//!                                                      ▼            ▼
//!                          lookup: whose is the key? ─ lines ─▶ exchange ─▶ Matcher, Registrar (here or elsewhere)
//!                                                                 ▲  check of the lease on the way in and out (F1)
//!                          ranges: Gained, Lost ◀─ Owner          └─ realm: incarnation, generations, keys, in the cell (F3)
//! ```
//! Every node takes clients and publications; nodes with the role `services` own ranges. One namespace of placement,
//! [`NAMESPACE`], serves both roles: whoever owns a point of the ring is the matcher of the objects and the registrar of the
//! clients that stand there. Whatever a line cannot carry is lost, and said again by the machines.

mod adapter;
mod asking;
mod channels;
mod exchange;
mod feeding;
mod formats;
mod frames;
mod gathering;
mod hooks;
mod http;
mod hub;
mod lines;
mod listening;
mod load;
mod performing;
mod ranges;
mod realm;
mod stages;
mod sweeping;
mod traces;

pub use adapter::{Adapter, Seat};
pub(crate) use asking::MAX_LISTED;
pub use formats::Format;
pub use hooks::Hook;
pub use http::{HttpChannels, Reading};
pub(crate) use traces::MAX_TRACES;

use crate::clock::Clock;
use crate::config;
use crate::connection::{Requests, Responder};
use crate::driver;
use crate::services::{Cells, Placed, Stored};
use futures::future::BoxFuture;
use hub::Hub;
use performing::{ForBridge, ForMatcher, ForRegistrar};
use std::path::PathBuf;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_notify::bridge::{self, Bridge};
use tidings_notify::matcher::{self, Matcher};
use tidings_notify::registrar::Registrar;
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, error, v1};

/// The namespace of placement that Notify's ranges are leased in: no application can reach it.
pub const NAMESPACE: &str = ".notify";

/// The tree of the cell that what ranges are bound to lies in.
const APP: &str = ".notify";

/// Inputs that may wait for a machine; whoever brings more waits.
const QUEUE: usize = 16_384;

/// What Notify on a node is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// This node's number.
    pub node: u64,
    /// Where others reach this node.
    pub address: String,
    /// Whether it owns ranges.
    pub serves: bool,
    /// A directory of its own: its lock proves that an earlier process of this node is dead.
    pub data: PathBuf,
    /// F8: what tokens are bound to.
    pub data_centre: String,
    /// What can be set.
    pub config: config::Notify,
}

/// Notify on this node. Cheap to clone.
#[derive(Clone)]
pub struct Notify {
    hub: Arc<Hub>,
}

impl Notify {
    /// Begins to serve: what is not there yet (a cell, a manager, a realm) is waited for in the background.
    pub fn start(
        told: Told,
        stored: Stored,
        cells: Cells,
        placed: Placed,
        clock: Arc<dyn Clock>,
    ) -> Result<Notify, Error> {
        let seed = || {
            getrandom::u64()
                .map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}")))
        };
        let registrar = Registrar::new(told.config.registrar(seed()?, told.data_centre.clone()));
        let matcher = Matcher::new(matcher::Options { seed: seed()?, ..Default::default() });
        let bridge = Bridge::new(bridge::Options { seed: seed()?, ..Default::default() });
        let judges = hooks::Judges::new(&told.config.hooks)?;
        let hub = Hub::new(told, stored, cells, placed, clock.clone(), seed()?, judges);
        let (acks, acked) = feeding::acks();
        let machines = hub::Machines {
            registrar: hub.run(driver::spawn("registrar", registrar, ForRegistrar::new(&hub), clock.clone(), QUEUE)),
            matcher: hub.run(driver::spawn("matcher", matcher, ForMatcher::new(&hub), clock.clone(), QUEUE)),
            bridge: hub.run(driver::spawn("bridge", bridge, ForBridge::new(&hub, acks), clock, QUEUE)),
        };
        hub.begin(machines);
        hub.spawn(realm::keep(hub.clone()));
        hub.spawn(hooks::follow(hub.clone()));
        hub.spawn(ranges::follow(hub.clone()));
        hub.spawn(listening::close_outside(hub.clone()));
        hub.spawn(gathering::run(hub.clone()));
        hub.spawn(feeding::consume(hub.clone()));
        hub.spawn(feeding::acknowledge(hub.clone(), acked));
        hub.spawn(sweeping::run(hub.clone()));
        Ok(Notify { hub })
    }

    /// How many ranges this node owns.
    pub fn ranges(&self) -> usize {
        self.hub.owner.get().map_or(0, |owner| owner.held().len())
    }

    /// How many notifications were sent from here.
    pub fn sent(&self) -> u64 {
        self.hub.stages.notifications()
    }

    /// Answers what has one answer; `request.caller` says who asks.
    pub async fn call(&self, request: v1::NotifyMessage) -> Result<v1::NotifyMessage, Error> {
        let hub = &self.hub;
        let caller = request.caller.unwrap_or_default();
        hub.refuse_hopeless(request.message.as_ref())?;
        let answer = match request.message {
            Some(Message::Publish(publish)) => {
                asking::refuse_reserved(&publish)?;
                Message::Published(hub.publish(&caller.app, publish).await?)
            }
            Some(Message::ObjectList(list)) => Message::ObjectListReply(hub.objects(&caller.app, &list).await?),
            Some(Message::ClientList(list)) => Message::ClientListReply(hub.clients(&caller.app, list.limit).await?),
            Some(Message::Reset(reset)) => Message::ResetDone(hub.reset(&caller.app, reset).await?),
            Some(Message::Rotate(_)) => Message::Rotated(hub.rotate_keys().await?),
            Some(Message::TraceList(list)) => Message::TraceListReply(hub.traces(caller, list).await),
            Some(Message::Load(load)) => Message::LoadReply(hub.load(load).await?),
            Some(Message::Count(_)) => Message::CountReply(hub.count(&caller.app).await?),
            Some(Message::ForwardUp(forward)) => Message::Forwarded(hub.up_forwarded(caller, forward).await),
            Some(Message::ChannelClosed(closed)) => Message::Forwarded(hub.close_forwarded(&caller, closed).await),
            Some(Message::ForwardDown(forward)) => Message::Forwarded(hub.down_forwarded(forward)),
            Some(Message::ChannelClaims(asked)) => Message::ChannelClaimsReply(hub.channel_claims(asked)),
            _ => return Err(error::unsupported()),
        };
        Ok(v1::NotifyMessage { caller: None, message: Some(answer) })
    }

    /// Publishes what is the platform's own, in an application: names that it has for itself are not refused.
    pub(crate) async fn publish_own(&self, app: &str, publications: Vec<v1::Publication>) -> Result<(), Error> {
        self.hub.refuse_hopeless(Some(&Message::Publish(v1::Publish::default())))?;
        self.hub.publish(app, v1::Publish { publications }).await.map(drop)
    }

    /// Answers what may go on: channels of clients, batches of nodes.
    pub fn serve(
        &self,
        request: v1::NotifyMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> BoxFuture<'static, ()> {
        let hub = self.hub.clone();
        match request {
            v1::NotifyMessage { caller, message: Some(Message::Up(up)) } => {
                Box::pin(frames::serve(hub, caller.unwrap_or_default(), up, rest, responder))
            }
            v1::NotifyMessage { message: Some(message @ (Message::Match(_) | Message::Notify(_))), .. } => {
                Box::pin(exchange::serve(hub, message, responder))
            }
            request => {
                let notify = self.clone();
                Box::pin(async move { responder.finish(notify.call(request).await.map(Body::Notify)) })
            }
        }
    }

    /// A place for the channel of somebody who has no connection of frames.
    pub fn channel(&self, caller: v1::NotifyCaller) -> Result<Seat, Error> {
        Seat::take(&self.hub, caller)
    }

    /// Waits until a machine has stopped by itself; which.
    pub async fn broken(&self) -> &'static str {
        self.hub.broken().await
    }

    /// Hands the ranges over, so that others serve them at once.
    pub async fn hand_over(&self) {
        self.hub.hand_over().await;
    }

    /// Lets clients go: they find another node.
    pub fn retire(&self) {
        self.hub.leave();
    }

    /// Stops at once.
    pub async fn stop(&self) {
        self.hub.stop().await;
    }
}
