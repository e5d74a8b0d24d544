//! One call at a time to whichever server answers: redirects, retries, time-outs. What a careful client does.

use super::fact::StoreFact;
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Class, Error, Mono, Now, Outbox, Seeded};
use tidings_wire::v1::{control, frame::Body};
use tidings_wire::{Frame, codec, limits};

/// How often a call is tried before it counts as refused.
const ATTEMPTS: u32 = 12;

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // Short-lived, one at a time.
pub enum Ended {
    /// An answer.
    Answer(Body),
    /// Nothing happened, for certain.
    Refused,
    /// It may have happened.
    Unknown,
    /// An error that is no fault of circumstances.
    Broken(String),
}

struct Call {
    op: u64,
    body: Body,
    writes: bool,
    timeout: Duration,
    attempts: u32,
    at: HostId,
    /// When to give up on this attempt, or to begin the next.
    due: Mono,
    waiting: bool,
}

/// Makes calls for one process.
pub struct Caller {
    servers: Vec<HostId>,
    rng: Seeded,
    leader: Option<HostId>,
    next_op: u64,
    call: Option<Call>,
}

type Out = Outbox<Effect<StoreFact>>;

impl Caller {
    /// A caller that knows these servers.
    pub fn new(servers: Vec<HostId>, rng: Seeded) -> Caller {
        Caller { servers, rng, leader: None, next_op: 1, call: None }
    }

    /// Whether a call is under way.
    pub fn is_busy(&self) -> bool {
        self.call.is_some()
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.call.as_ref().map(|call| call.due)
    }

    /// Begins a call; none may be under way. `writes` says that it must not be tried again once it may have happened.
    pub fn call(&mut self, now: Now, body: Body, writes: bool, timeout: Duration, out: &mut Out) {
        assert!(self.call.is_none(), "one call at a time");
        // Readers do not always ask the leader they know: one that was deposed must send them away by itself.
        let known = self.leader.filter(|_| writes || !self.rng.one_in(4));
        let at = known.or_else(|| self.rng.pick(&self.servers).copied()).unwrap_or_default();
        self.call = Some(Call { op: 0, body, writes, timeout, attempts: 0, at, due: now.mono, waiting: false });
        self.attempt(now, out);
    }

    fn attempt(&mut self, now: Now, out: &mut Out) {
        let Some(call) = &mut self.call else { return };
        call.op = self.next_op;
        self.next_op += 2;
        call.attempts += 1;
        call.waiting = true;
        call.due = now.mono + call.timeout;
        let frame = Frame { op: call.op, more: false, body: Some(call.body.clone()) };
        out.put(Effect::Send { to: call.at, bytes: codec::to_bytes(&frame) });
    }

    /// A message from a server: what became of the call, if that is decided.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) -> Option<Ended> {
        let frame = codec::decode(bytes, limits::NODE_FRAME as u32).ok()?;
        let call = self.call.as_ref().filter(|call| call.waiting && call.op == frame.op && call.at == from)?;
        if frame.more {
            return self.end(Ended::Broken("an answer in several frames".to_string()));
        }
        let error = match frame.body? {
            Body::Control(control) => match control.message? {
                control::Message::Error(error) => Error::from(error),
                _ => return None,
            },
            body => {
                self.leader = Some(call.at);
                return self.end(Ended::Answer(body));
            }
        };
        match error.class {
            Class::Unreachable => self.try_elsewhere(now, error.redirect.as_deref(), out),
            Class::OutcomeUnknown if call.writes => self.end(Ended::Unknown),
            Class::OutcomeUnknown => self.try_elsewhere(now, None, out),
            _ => self.end(Ended::Broken(error.to_string())),
        }
    }

    fn try_elsewhere(&mut self, now: Now, redirect: Option<&str>, out: &mut Out) -> Option<Ended> {
        let named = redirect.and_then(|name| name.parse().ok()).map(HostId);
        self.leader = named;
        let pause = Duration::from_millis(self.rng.between(50, 800));
        let random = self.rng.pick(&self.servers).copied();
        let call = self.call.as_mut()?;
        if call.attempts >= ATTEMPTS {
            return self.end(Ended::Refused);
        }
        call.at = named.or(random).unwrap_or(call.at);
        call.waiting = false;
        call.due = now.mono + pause;
        // The first redirect is followed at once; after that there may be no leader yet.
        if named.is_some() && call.attempts == 1 {
            self.attempt(now, out);
        }
        None
    }

    /// Time has passed: what became of the call, if that is decided.
    pub fn wake(&mut self, now: Now, out: &mut Out) -> Option<Ended> {
        let call = self.call.as_ref().filter(|call| call.due <= now.mono)?;
        if !call.waiting {
            self.attempt(now, out);
            return None;
        }
        self.leader = None;
        if call.writes { self.end(Ended::Unknown) } else { self.try_elsewhere(now, None, out) }
    }

    fn end(&mut self, ended: Ended) -> Option<Ended> {
        self.call = None;
        Some(ended)
    }
}
