//! Calls to the store, many at a time: redirects, retries while nothing can have happened, time-outs.

use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Class, Error, Mono, Now, Outbox, Seeded};
use tidings_wire::v1::{control, frame::Body};
use tidings_wire::{Frame, codec, limits};

/// How long a call may take; then nobody knows.
const WITHIN: Duration = Duration::from_secs(3);
/// How often a call is sent on to somebody else.
const HOPS: u32 = 5;

struct Pending<W> {
    whose: W,
    body: Body,
    at: HostId,
    until: Mono,
    hops: u32,
    /// It waits for this instant to be sent again.
    again: Option<Mono>,
}

/// What became of a call.
pub struct Ended<W> {
    /// Whose it was.
    pub whose: W,
    /// The answer.
    pub result: Result<Body, Error>,
}

/// The calls of one host.
pub struct Line<W> {
    servers: Vec<HostId>,
    rng: Seeded,
    leader: Option<HostId>,
    pending: BTreeMap<u64, Pending<W>>,
    next_op: u64,
}

impl<W> Line<W> {
    /// Calls to these servers; `start` is different in every life of the host.
    pub fn new(servers: Vec<HostId>, rng: Seeded, start: u64) -> Line<W> {
        Line { servers, rng, leader: None, pending: BTreeMap::new(), next_op: (start << 32) | 1 }
    }

    /// Whether somebody waits for an answer.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What waits for an answer.
    pub fn under_way(&self) -> impl Iterator<Item = &Body> {
        self.pending.values().map(|pending| &pending.body)
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.pending.values().map(|pending| pending.again.unwrap_or(Mono::NEVER).min(pending.until)).min()
    }

    /// Calls whoever leads.
    pub fn call<F>(&mut self, now: Now, whose: W, body: Body, out: &mut Outbox<Effect<F>>) {
        let at = self.leader.or_else(|| self.rng.pick(&self.servers).copied()).unwrap_or_default();
        self.put(Pending { whose, body, at, until: now.mono + WITHIN, hops: 0, again: None }, out);
    }

    fn put<F>(&mut self, pending: Pending<W>, out: &mut Outbox<Effect<F>>) {
        let op = self.next_op;
        self.next_op += 2;
        let frame = Frame { op, more: false, body: Some(pending.body.clone()) };
        out.put(Effect::Send { to: pending.at, bytes: codec::to_bytes(&frame) });
        self.pending.insert(op, pending);
    }

    /// A frame of a server: what became of a call, if that is decided.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes) -> Option<Ended<W>> {
        let frame = codec::decode(bytes, limits::NODE_FRAME as u32).ok()?;
        let pending = self.pending.remove(&frame.op)?;
        if pending.at != from || pending.again.is_some() {
            self.pending.insert(frame.op, pending);
            return None;
        }
        let error = match frame.body? {
            Body::Control(control) => match control.message? {
                control::Message::Error(error) => Error::from(error),
                _ => return None,
            },
            body => {
                self.leader = Some(from);
                return Some(Ended { whose: pending.whose, result: Ok(body) });
            }
        };
        if error.class == Class::Unreachable && pending.hops < HOPS {
            self.elsewhere(now, frame.op, pending, error.redirect.as_deref());
            return None;
        }
        Some(Ended { whose: pending.whose, result: Err(error) })
    }

    fn elsewhere(&mut self, now: Now, op: u64, mut pending: Pending<W>, redirect: Option<&str>) {
        let named = redirect.and_then(|name| name.parse().ok()).map(HostId);
        self.leader = named.filter(|host| self.servers.contains(host));
        let random = self.rng.pick(&self.servers).copied();
        pending.at = self.leader.or(random).unwrap_or(pending.at);
        pending.hops += 1;
        pending.again = Some(now.mono + Duration::from_millis(self.rng.between(20, 400)));
        self.pending.insert(op, pending);
    }

    /// Time has passed: what became of calls.
    pub fn wake<F>(&mut self, now: Now, out: &mut Outbox<Effect<F>>) -> Vec<Ended<W>> {
        let mut ended = Vec::new();
        let over = |pending: &Pending<W>| pending.until <= now.mono;
        let again = |pending: &Pending<W>| pending.again.is_some_and(|at| at <= now.mono);
        let due = self.pending.iter().filter(|(_, pending)| over(pending) || again(pending)).map(|(op, _)| *op);
        for op in due.collect::<Vec<_>>() {
            let Some(mut pending) = self.pending.remove(&op) else { continue };
            if over(&pending) {
                self.leader = None;
                let error = Error::new("store.silent", Class::OutcomeUnknown, "the store did not answer");
                ended.push(Ended { whose: pending.whose, result: Err(error) });
            } else {
                pending.again = None;
                self.put(pending, out);
            }
        }
        ended
    }
}
