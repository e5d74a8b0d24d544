//! Calls between nodes, and what they forward for devices.

use super::{Later, Node, Out};
use crate::kernel::{Effect, HostId};
use crate::scenarios::notify::shared::caller;
use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::{KeyHash, Now};
use tidings_notify::names::{Channel, client_hash, object_hash};
use tidings_notify::{CallId, Outcome, RequestId, bridge, matcher, registrar};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::v1::{self, frame::Body, match_call};
use tidings_wire::{Frame, codec, limits};

/// Calls and requests that are remembered; machines have timers of their own, so that what is forgotten is asked again.
const REMEMBERED: usize = 4_096;

/// Whose call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The registrar's.
    Registrar,
    /// The matcher's.
    Matcher,
    /// The bridge's, and which bridge it was.
    Bridge(u64),
}

/// Calls under way, ours and those of others.
#[derive(Debug)]
pub struct Calls {
    last: u64,
    ours: BTreeMap<u64, (Asker, CallId)>,
    theirs: BTreeMap<RequestId, (HostId, u64)>,
}

impl Calls {
    /// None; numbers begin behind those of earlier processes.
    pub fn new(start: u64) -> Calls {
        Calls { last: start << 32, ours: BTreeMap::new(), theirs: BTreeMap::new() }
    }

    fn ask(&mut self, asker: Asker, id: CallId) -> u64 {
        self.last += 1;
        self.ours.insert(self.last, (asker, id));
        while self.ours.len() > REMEMBERED {
            self.ours.pop_first();
        }
        self.last
    }

    /// Somebody else's call.
    pub fn request(&mut self, from: HostId, id: u64) -> RequestId {
        self.last += 1;
        self.theirs.insert(RequestId(self.last), (from, id));
        while self.theirs.len() > REMEMBERED {
            self.theirs.pop_first();
        }
        RequestId(self.last)
    }
}

/// Sends a message to a node.
fn send(out: &mut Out, to: HostId, caller: Option<v1::NotifyCaller>, message: Message) {
    let message = v1::NotifyMessage { caller, message: Some(message) };
    let frame = Frame { op: 1, more: false, body: Some(Body::Notify(message)) };
    out.put(Effect::Send { to, bytes: codec::to_bytes(&frame) });
}

fn channel_of(channel: Option<v1::NotifyChannel>) -> Option<Channel> {
    channel.map(|channel| Channel { node: channel.node, number: channel.number })
}

fn to_message(channel: Channel) -> Option<v1::NotifyChannel> {
    Some(v1::NotifyChannel { node: channel.node, number: channel.number })
}

/// Where the object of a call stands on the ring.
fn place(call: &match_call::Call) -> KeyHash {
    match call {
        match_call::Call::Registration(call) => {
            object_hash(call.client.as_ref().map_or("", |client| &client.app), &call.object)
        }
        match_call::Call::Publication(call) => {
            call.publication.as_ref().map_or(KeyHash(0), |it| object_hash(&it.app, &it.object))
        }
    }
}

impl Node {
    pub(super) fn peer_said(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Ok(frame) = codec::decode(bytes, limits::NODE_FRAME as u32) else { return };
        let Some(Body::Notify(message)) = frame.body else { return };
        let caller = message.caller;
        match message.message {
            Some(Message::ForwardUp(up)) => self.up_arrived(now, caller, up, out),
            Some(Message::ForwardDown(down)) => {
                if let (Some(channel), Some(message)) = (channel_of(down.channel), down.down) {
                    self.down_arrived(from, channel, message, out);
                }
            }
            Some(Message::ChannelClosed(closed)) => {
                if let Some(channel) = channel_of(closed.channel) {
                    self.feed_registrar(now, registrar::Input::Closed(channel), out);
                }
            }
            Some(Message::Match(batch)) => {
                for call in batch.calls {
                    self.match_arrived(now, from, call, out);
                }
            }
            Some(Message::Notify(batch)) => {
                for notify in batch.notifications {
                    self.notify_arrived(now, from, notify, out);
                }
            }
            Some(Message::Publish(publish)) => {
                for publication in publish.publications {
                    self.hint_arrived(now, publication, out);
                }
            }
            Some(Message::Matched(answers)) => {
                for answer in answers.answers {
                    let outcome = Outcome::of_message(answer.outcome(), 0);
                    self.answered(now, answer.id, outcome, answer.version, out);
                }
            }
            Some(Message::Notified(answers)) => {
                for answer in answers.answers {
                    let outcome = Outcome::of_message(answer.outcome(), answer.seqno);
                    self.answered(now, answer.id, outcome, 0, out);
                }
            }
            _ => {}
        }
    }

    fn up_arrived(&mut self, now: Now, caller: Option<v1::NotifyCaller>, up: v1::ForwardUp, out: &mut Out) {
        let (Some(channel), Some(message), Some(caller)) = (channel_of(up.channel), up.up, caller) else { return };
        let caller = tidings_notify::names::Caller { app: caller.app, principal: caller.principal };
        // Whoever is not served sends again.
        let Some(lease) = self.ranges.lease(now, client_hash(&caller.app, &caller.principal)) else { return };
        let message = Box::new(message);
        self.feed_registrar(now, registrar::Input::Up { caller, channel, lease, message }, out);
    }

    fn match_arrived(&mut self, now: Now, from: HostId, call: v1::MatchCall, out: &mut Out) {
        let Some(what) = call.call else { return };
        let request = self.calls.request(from, call.id);
        let Some(lease) = self.ranges.lease(now, place(&what)) else {
            return self.matched(request, Outcome::Moved, 0, out);
        };
        let input = match what {
            match_call::Call::Registration(call) => matcher::Input::Register { request, lease, call: Box::new(call) },
            match_call::Call::Publication(call) => matcher::Input::Publish { request, lease, call: Box::new(call) },
        };
        self.feed_matcher(now, input, out);
    }

    /// The fast path of what the backend is about to append to the feed.
    fn hint_arrived(&mut self, now: Now, publication: v1::Publication, out: &mut Out) {
        if let Some(lease) = self.ranges.lease(now, object_hash(&publication.app, &publication.object)) {
            self.feed_matcher(now, matcher::Input::Hint { lease, publication: Box::new(publication) }, out);
        }
    }

    fn notify_arrived(&mut self, now: Now, from: HostId, notify: v1::ClientNotify, out: &mut Out) {
        let request = self.calls.request(from, notify.id);
        let key = notify.client.as_ref().map_or(KeyHash(0), |client| client_hash(&client.app, &client.user));
        match self.ranges.lease(now, key) {
            Some(lease) => {
                let notify = Box::new(notify);
                self.feed_registrar(now, registrar::Input::Notify { request, lease, notify }, out);
            }
            None => self.notified(request, Outcome::Moved, out),
        }
    }

    /// Takes a call to the matcher that is said to own the key.
    pub(super) fn call_matcher(
        &mut self,
        now: Now,
        asker: Asker,
        id: CallId,
        key: KeyHash,
        call: match_call::Call,
        out: &mut Out,
    ) {
        let Some((owner, _)) = self.ranges.find(key) else { return self.nobody(now, asker, id) };
        let id = self.calls.ask(asker, id);
        send(out, owner, None, Message::Match(v1::MatchBatch { calls: vec![v1::MatchCall { id, call: Some(call) }] }));
    }

    /// Takes a call to the registrar that is said to own the key.
    pub(super) fn call_registrar(
        &mut self,
        now: Now,
        id: CallId,
        key: KeyHash,
        mut notify: v1::ClientNotify,
        out: &mut Out,
    ) {
        let Some((owner, _)) = self.ranges.find(key) else { return self.nobody(now, Asker::Matcher, id) };
        notify.id = self.calls.ask(Asker::Matcher, id);
        send(out, owner, None, Message::Notify(v1::NotifyBatch { notifications: vec![notify] }));
    }

    /// Nobody is known to own it: that is heard a little later, as any answer.
    fn nobody(&mut self, now: Now, asker: Asker, id: CallId) {
        let later = match asker {
            Asker::Registrar => Later::Registrar(registrar::Input::Matched { id, outcome: Outcome::Moved, version: 0 }),
            Asker::Matcher => Later::Matcher(matcher::Input::Notified { id, outcome: Outcome::Moved }),
            Asker::Bridge(bridge) => Later::Bridge(bridge, bridge::Input::Matched { id, outcome: Outcome::Moved }),
        };
        self.after(now, 1, 20, later);
    }

    fn answered(&mut self, now: Now, id: u64, outcome: Outcome, version: u64, out: &mut Out) {
        let Some((asker, id)) = self.calls.ours.remove(&id) else { return };
        match asker {
            Asker::Registrar => self.feed_registrar(now, registrar::Input::Matched { id, outcome, version }, out),
            Asker::Matcher => self.feed_matcher(now, matcher::Input::Notified { id, outcome }, out),
            Asker::Bridge(bridge) if bridge == self.bridges => {
                self.feed_bridge(now, bridge::Input::Matched { id, outcome }, out);
            }
            Asker::Bridge(_) => {}
        }
    }

    /// The matcher answers a call.
    pub(super) fn matched(&mut self, request: RequestId, outcome: Outcome, version: u64, out: &mut Out) {
        let Some((to, id)) = self.calls.theirs.remove(&request) else { return };
        let (outcome, _) = outcome.to_message();
        let answer = v1::MatchAnswer { id, outcome: outcome.into(), version };
        send(out, to, None, Message::Matched(v1::MatchAnswers { answers: vec![answer] }));
    }

    /// The registrar answers a call.
    pub(super) fn notified(&mut self, request: RequestId, outcome: Outcome, out: &mut Out) {
        let Some((to, id)) = self.calls.theirs.remove(&request) else { return };
        let (outcome, seqno) = outcome.to_message();
        let answer = v1::NotifyAnswer { id, outcome: outcome.into(), seqno };
        send(out, to, None, Message::Notified(v1::NotifyAnswers { answers: vec![answer] }));
    }

    // ---- for devices ------------------------------------------------------------------------------------------------

    /// Takes a device's message to the registrar of its user.
    pub(super) fn forward_up(&mut self, device: HostId, number: u64, up: v1::NotifyUp, out: &mut Out) {
        let caller = caller(device);
        let Some((owner, _)) = self.ranges.find(client_hash(&caller.app, &caller.principal)) else { return };
        let channel = to_message(Channel { node: u64::from(self.host.0), number });
        let caller = v1::NotifyCaller { app: caller.app, principal: caller.principal, claims: None };
        send(out, owner, Some(caller), Message::ForwardUp(v1::ForwardUp { channel, up: Some(up) }));
    }

    /// Takes a message to the node that has the channel.
    pub(super) fn send_down(&mut self, channel: Channel, down: v1::NotifyDown, out: &mut Out) {
        let to = HostId(channel.node as u32);
        let down = v1::ForwardDown { channel: to_message(channel), down: Some(down) };
        send(out, to, None, Message::ForwardDown(down));
    }

    /// Tells the registrar of a device's user that a channel is closed.
    pub(super) fn forward_closed(&mut self, device: HostId, number: u64, out: &mut Out) {
        let caller = caller(device);
        if let Some((owner, _)) = self.ranges.find(client_hash(&caller.app, &caller.principal)) {
            self.tell_closed(owner, Channel { node: u64::from(self.host.0), number }, out);
        }
    }

    /// Tells a node that a channel is closed.
    pub(super) fn tell_closed(&mut self, node: HostId, channel: Channel, out: &mut Out) {
        send(out, node, None, Message::ChannelClosed(v1::ChannelClosed { channel: to_message(channel) }));
    }
}
