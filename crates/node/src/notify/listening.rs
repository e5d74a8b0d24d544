//! Messages of clients on their way to the registrar that owns their place, and the registrar's on their way back.

use super::hooks::Claims;
use super::hub::Hub;
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, NodeId};
use tidings_notify::names::{Caller, Channel};
use tidings_notify::registrar::{self, Registrar};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, v1};

/// How long another node may take to pass a message on.
const FORWARD: Duration = Duration::from_secs(2);
/// The pause before a message is tried again whose owner has changed or does not answer.
const PAUSE: Duration = Duration::from_millis(100);
/// How often: for about as long as a range may be without an owner. What is lost after that the client says again.
const ATTEMPTS: u32 = 200;
/// How soon a node notices that it is a member no more.
const OUTSIDE: Duration = Duration::from_secs(1);

/// Closes the channels of a node that is a member no more: its clients find another.
pub(super) async fn close_outside(hub: Arc<Hub>) {
    loop {
        tokio::time::sleep(OUTSIDE).await;
        if hub.stored().is_ok_and(|stored| stored.is_outside()) {
            hub.channels.close();
        }
    }
}

impl Hub {
    /// A channel at a node that is no member would hear nothing.
    pub(super) fn refuse_outside(&self) -> Result<(), Error> {
        self.stored()?.refuse_outside("notify.no_member")
    }

    pub(super) async fn up(&self, caller: &Caller, channel: Channel, up: v1::NotifyUp) {
        let forward = v1::ForwardUp { channel: Some(to_message(channel)), up: Some(up) };
        self.pass(caller, Message::ForwardUp(forward)).await;
    }

    /// Passes a message to whoever owns the caller's place.
    pub(super) async fn pass(&self, caller: &Caller, message: Message) {
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

    /// Asks all other members something that has one answer; one that does not answer has nothing to tell.
    pub(super) async fn ask_others(&self, caller: Option<v1::NotifyCaller>, message: Message) -> Vec<Message> {
        let others = self.stored().map(|stored| stored.other_addresses()).unwrap_or_default();
        let asking = others.iter().map(|address| self.ask_node(address, caller.clone(), message.clone()));
        join_all(asking).await.into_iter().flatten().collect()
    }

    /// Lets another node take a message; whether it did.
    async fn forward(&self, address: &str, caller: Option<v1::NotifyCaller>, message: Message) -> Result<bool, Error> {
        match self.ask_node(address, caller, message).await? {
            Message::Forwarded(forwarded) => Ok(forwarded.taken),
            _ => Err(malformed()),
        }
    }

    /// Whether a node answers.
    pub(super) async fn answers(&self, node: NodeId) -> bool {
        if node.0 == self.told.node {
            return true;
        }
        let Some(address) = self.stored().ok().and_then(|stored| stored.address_of(node)) else { return false };
        // A message for no channel: nobody is told anything.
        self.forward(&address, None, Message::ForwardDown(v1::ForwardDown::default())).await.is_ok()
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

pub(super) fn claims_of(claims: Option<v1::NotifyClaims>) -> Claims {
    claims.map(|claims| claims.objects.into())
}

fn malformed() -> Error {
    Error::new("notify.malformed", Class::Failed, "another node's answer is of another kind than the question")
}

pub(super) fn to_message(Channel { node, number }: Channel) -> v1::NotifyChannel {
    v1::NotifyChannel { node, number }
}

fn of_message(channel: v1::NotifyChannel) -> Channel {
    Channel { node: channel.node, number: channel.number }
}
