//! A client's channel: its messages to the registrar that owns its place, and the registrar's back to it.

use super::channels::Down;
use super::hooks::Claims;
use super::hub::Hub;
use crate::connection::{Requests, Responder};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, NodeId};
use tidings_notify::names::{Caller, Channel};
use tidings_notify::registrar::{self, Registrar};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, error, v1};
use tokio::sync::mpsc;

/// How long another node may take to pass a message on.
const FORWARD: Duration = Duration::from_secs(2);
/// The pause before a message is tried again whose owner has changed or does not answer.
const PAUSE: Duration = Duration::from_millis(100);
/// How often: for about as long as a range may be without an owner. What is lost after that the client says again.
const ATTEMPTS: u32 = 200;
/// How soon a node notices that it is a member no more.
const OUTSIDE: Duration = Duration::from_secs(1);
/// Messages of one client that wait to be passed on; whoever says more waits.
const SAID: usize = 16;

/// Serves one channel to its end.
pub(super) async fn serve(
    hub: Arc<Hub>,
    caller: v1::NotifyCaller,
    first: v1::NotifyUp,
    rest: Option<Requests>,
    mut responder: Responder,
) {
    let Some(mut rest) = rest else { return responder.fail(one_frame()) };
    if let Err(elsewhere) = hub.refuse_outside() {
        return responder.fail(elsewhere);
    }
    let claims = claims_of(caller.claims);
    let caller = Caller { app: caller.app, principal: caller.principal };
    let (channel, mut downs) = hub.channels.open(&caller.app, claims);
    let _gone = Gone { hub: hub.clone(), caller: caller.clone(), channel };
    let ups = async {
        let mut up = first;
        loop {
            // Boxed: what it takes to pass a message on is not kept while there is none.
            Box::pin(hub.up(&caller, channel, up)).await;
            up = match rest.next().await {
                Ok(Some(Body::Notify(v1::NotifyMessage { message: Some(Message::Up(up)), .. }))) => up,
                Ok(Some(_)) => return Some(error::unsupported()),
                Ok(None) | Err(_) => return None,
            };
        }
    };
    let sent = async {
        while let Some(Down::Message(down)) = downs.recv().await {
            let message = Some(Message::Down(*down));
            if responder.send(Body::Notify(v1::NotifyMessage { caller: None, message })).await.is_err() {
                return None;
            }
        }
        Some(error::going_away(None))
    };
    let why = tokio::select! {
        why = ups => why,
        why = sent => why,
    };
    match why {
        Some(error) => responder.fail(error),
        None => responder.fail(error::closed()),
    }
}

/// Closes the channels of a node that is a member no more: its clients find another.
pub(super) async fn close_outside(hub: Arc<Hub>) {
    loop {
        tokio::time::sleep(OUTSIDE).await;
        if hub.refuse_outside().is_err() {
            hub.channels.close();
        }
    }
}

fn one_frame() -> Error {
    Error::new("notify.no_channel", Class::Invalid, "a channel is an operation whose request goes on")
        .hint("Send the first message with `more`, and further ones under the same operation.")
}

/// However a channel ends, its client is offline from now on.
struct Gone {
    hub: Arc<Hub>,
    caller: Caller,
    channel: Channel,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.hub.channels.forget(self.channel);
        let (hub, caller, channel) = (self.hub.clone(), self.caller.clone(), self.channel);
        self.hub.spawn(async move {
            let closed = v1::ChannelClosed { channel: Some(to_message(channel)) };
            hub.pass(&caller, Message::ChannelClosed(closed)).await;
        });
    }
}

/// A channel of somebody who has no connection of frames. It closes when it is dropped.
pub struct Spoken {
    ups: mpsc::Sender<v1::NotifyUp>,
    downs: mpsc::Receiver<Down>,
    _gone: Gone,
}

impl Spoken {
    /// Opens a channel; what is said goes up by a task of its own.
    pub(super) fn open(hub: &Arc<Hub>, caller: v1::NotifyCaller) -> Spoken {
        let claims = claims_of(caller.claims);
        let caller = Caller { app: caller.app, principal: caller.principal };
        let (channel, downs) = hub.channels.open(&caller.app, claims);
        let gone = Gone { hub: hub.clone(), caller: caller.clone(), channel };
        let (ups, mut queue) = mpsc::channel(SAID);
        let up = hub.clone();
        hub.spawn(async move {
            while let Some(message) = queue.recv().await {
                up.up(&caller, channel, message).await;
            }
        });
        Spoken { ups, downs, _gone: gone }
    }

    /// The way up.
    pub(super) fn ups(&self) -> mpsc::Sender<v1::NotifyUp> {
        self.ups.clone()
    }

    /// The next message; `None` once the channel is closed.
    pub(super) async fn next(&mut self) -> Option<v1::NotifyDown> {
        match self.downs.recv().await {
            Some(Down::Message(down)) => Some(*down),
            Some(Down::Close) | None => None,
        }
    }

    /// A message that waits already, if one does.
    pub(super) fn waiting(&mut self) -> Option<v1::NotifyDown> {
        match self.downs.try_recv() {
            Ok(Down::Message(down)) => Some(*down),
            // The next look finds the end.
            Ok(Down::Close) => {
                self.downs.close();
                None
            }
            Err(_) => None,
        }
    }
}

impl Hub {
    /// A channel at a node that is no member would hear nothing.
    pub(super) fn refuse_outside(&self) -> Result<(), Error> {
        self.stored()?.refuse_outside("notify.no_member")
    }

    async fn up(&self, caller: &Caller, channel: Channel, up: v1::NotifyUp) {
        let forward = v1::ForwardUp { channel: Some(to_message(channel)), up: Some(up) };
        self.pass(caller, Message::ForwardUp(forward)).await;
    }

    /// Passes a message to whoever owns the caller's place.
    async fn pass(&self, caller: &Caller, message: Message) {
        let place = Registrar::place_of(caller);
        for _ in 0..ATTEMPTS {
            if self.pass_once(caller, place, message.clone()).await {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::debug!(app = caller.app, "notify: nobody owns a client's place; its message is dropped");
    }

    async fn pass_once(&self, caller: &Caller, place: KeyHash, message: Message) -> bool {
        let Some(address) = self.owner_of(place) else { return false };
        let named = v1::NotifyCaller { app: caller.app.clone(), principal: caller.principal.clone(), claims: None };
        if address == self.told.address {
            return match message {
                Message::ForwardUp(forward) => self.up_forwarded(named, forward).await.taken,
                Message::ChannelClosed(closed) => self.close_forwarded(&named, closed).await.taken,
                _ => true,
            };
        }
        self.forward(&address, Some(named), message).await.unwrap_or(false)
    }

    /// Asks another node something that has one answer.
    pub(super) async fn ask_node(
        &self,
        address: &str,
        caller: Option<v1::NotifyCaller>,
        message: Message,
    ) -> Result<Message, Error> {
        let body = Body::Notify(v1::NotifyMessage { caller, message: Some(message) });
        let peers = self.stored()?.peers().clone();
        match peers.begin(address, body, FORWARD).await?.next().await.transpose()? {
            Some(Body::Notify(v1::NotifyMessage { message: Some(message), .. })) => Ok(message),
            _ => Err(malformed()),
        }
    }

    /// Lets another node take a message; whether it did.
    async fn forward(&self, address: &str, caller: Option<v1::NotifyCaller>, message: Message) -> Result<bool, Error> {
        match self.ask_node(address, caller, message).await? {
            Message::Forwarded(forwarded) => Ok(forwarded.taken),
            _ => Err(malformed()),
        }
    }

    /// What the token says by which a channel of another node was opened; `None` if nobody knows.
    pub(super) async fn ask_claims(&self, channel: Channel) -> Option<Claims> {
        let address = self.stored().ok()?.address_of(NodeId(channel.node))?;
        let asked = Message::ChannelClaims(v1::ChannelClaims { channel: Some(to_message(channel)) });
        match self.ask_node(&address, None, asked).await.ok()? {
            Message::ChannelClaimsReply(v1::ChannelClaimsReply { known: true, claims }) => Some(claims_of(claims)),
            _ => None,
        }
    }

    /// Answers a registrar elsewhere what a channel's token says.
    pub(super) fn channel_claims(&self, asked: v1::ChannelClaims) -> v1::ChannelClaimsReply {
        let found = asked.channel.and_then(|channel| self.channels.claims(of_message(channel)));
        let known = found.is_some();
        let claims = found.flatten().map(|objects| v1::NotifyClaims { objects: objects.to_vec() });
        v1::ChannelClaimsReply { known, claims }
    }

    /// A client's message arrived where its place may be owned.
    pub(super) async fn up_forwarded(&self, caller: v1::NotifyCaller, forward: v1::ForwardUp) -> v1::Forwarded {
        let caller = Caller { app: caller.app, principal: caller.principal };
        let lease = self.lease(Registrar::place_of(&caller));
        let (Some(lease), Some(channel), Some(up)) = (lease, forward.channel, forward.up) else {
            return v1::Forwarded { taken: false };
        };
        let (channel, message) = (of_message(channel), Box::new(up));
        self.registrar(registrar::Input::Up { caller, channel, lease, message }).await;
        v1::Forwarded { taken: true }
    }

    /// A client's channel closed, wherever it was.
    pub(super) async fn close_forwarded(&self, caller: &v1::NotifyCaller, closed: v1::ChannelClosed) -> v1::Forwarded {
        let caller = Caller { app: caller.app.clone(), principal: caller.principal.clone() };
        let lease = self.lease(Registrar::place_of(&caller));
        let (Some(_), Some(channel)) = (lease, closed.channel) else { return v1::Forwarded { taken: false } };
        self.registrar(registrar::Input::Closed(of_message(channel))).await;
        v1::Forwarded { taken: true }
    }

    /// A registrar elsewhere has a message for a channel of this node.
    pub(super) fn down_forwarded(&self, forward: v1::ForwardDown) -> v1::Forwarded {
        let taken = match (forward.channel, forward.down) {
            (Some(channel), Some(down)) => self.channels.send(of_message(channel), Box::new(down)),
            _ => false,
        };
        v1::Forwarded { taken }
    }

    /// Sends a registrar's message to a channel, here or elsewhere; a channel that is not there is closed.
    pub(super) fn down(self: &Arc<Self>, channel: Channel, message: Box<v1::NotifyDown>) {
        if channel.node == self.told.node {
            if !self.channels.send(channel, message) {
                let hub = self.clone();
                self.spawn(async move { hub.registrar(registrar::Input::Closed(channel)).await });
            }
            return;
        }
        let hub = self.clone();
        self.spawn(async move {
            let forward = v1::ForwardDown { channel: Some(to_message(channel)), down: Some(*message) };
            let there = match hub.stored().ok().and_then(|stored| stored.address_of(NodeId(channel.node))) {
                // A node that does not answer may still have its clients; they are told again, or come by another.
                Some(address) => hub.forward(&address, None, Message::ForwardDown(forward)).await.unwrap_or(true),
                None => false,
            };
            if !there {
                hub.registrar(registrar::Input::Closed(channel)).await;
            }
        });
    }
}

fn claims_of(claims: Option<v1::NotifyClaims>) -> Claims {
    claims.map(|claims| claims.objects.into())
}

fn malformed() -> Error {
    Error::new("notify.malformed", Class::Failed, "another node's answer is of another kind than the question")
}

fn to_message(Channel { node, number }: Channel) -> v1::NotifyChannel {
    v1::NotifyChannel { node, number }
}

fn of_message(channel: v1::NotifyChannel) -> Channel {
    Channel { node: channel.node, number: channel.number }
}
