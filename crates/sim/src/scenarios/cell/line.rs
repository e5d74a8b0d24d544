//! A client's connection to whichever server is master: redirects, time-outs, and noticing that something was lost.
//!
//! The simulated network loses single messages, which connections do not: they break. So the two ends compare notes
//! (a [`Probe`]) every half second, and what the server does not know any more has ended with an unknown outcome.

use super::fact::CellFact;
use crate::kernel::{Effect, HostId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Class, Error, Mono, Now, Outbox, Seeded};
use tidings_wire::v1::{self, control, frame::Body};
use tidings_wire::{Frame, codec, limits};

/// The first byte of a question about a connection, and of its answer. No frame begins so: they would be of fields 0.
const PROBE: u8 = 1;
const PROBE_REPLY: u8 = 2;
/// How often the ends compare notes.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Only of operations this old: younger ones may be under way.
const PROBE_AGE: Duration = Duration::from_millis(300);
/// A server that has answered nothing for so long is not connected.
const SILENCE: Duration = Duration::from_millis(1_600);
/// How often a call is sent on to somebody else before its sender hears of it.
const HOPS: u32 = 6;

/// What the two ends of a connection know of each other's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// An answer.
    pub reply: bool,
    /// Operations below this that are not named were given up.
    pub below: u64,
    /// Asked for; in the answer those that are unknown.
    pub ops: Vec<u64>,
}

impl Probe {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(9 + 8 * self.ops.len());
        bytes.put_u8(if self.reply { PROBE_REPLY } else { PROBE });
        bytes.put_u64_le(self.below);
        self.ops.iter().for_each(|op| bytes.put_u64_le(*op));
        bytes.freeze()
    }

    /// From bytes, if they are one.
    pub fn decode(bytes: &Bytes) -> Option<Probe> {
        let mut bytes = bytes.clone();
        let reply = match *bytes.first()? {
            PROBE => false,
            PROBE_REPLY => true,
            _ => return None,
        };
        bytes.advance(1);
        if !bytes.len().is_multiple_of(8) || bytes.is_empty() {
            return None;
        }
        let below = bytes.get_u64_le();
        let ops = (0..bytes.len() / 8).map(|_| bytes.get_u64_le()).collect();
        Some(Probe { reply, below, ops })
    }
}

struct Pending<W> {
    whose: W,
    message: v1::CellMessage,
    at: HostId,
    sent: Mono,
    until: Mono,
    hops: u32,
    /// It waits for this instant to be sent again.
    again: Option<Mono>,
}

/// What became of a request.
pub struct Outcome<W> {
    /// Whose request it was.
    pub whose: W,
    /// The answer.
    pub result: Result<v1::CellMessage, Error>,
}

/// The connections of one client host.
pub struct Line<W> {
    servers: Vec<HostId>,
    rng: Seeded,
    master: Option<HostId>,
    pending: BTreeMap<u64, Pending<W>>,
    heard: BTreeMap<HostId, Mono>,
    next_op: u64,
    probe_at: Option<Mono>,
}

type Out = Outbox<Effect<CellFact>>;

impl<W: Copy> Line<W> {
    /// Connections to these servers; `start` is different in every life of the host.
    pub fn new(servers: Vec<HostId>, rng: Seeded, start: u64) -> Line<W> {
        let next_op = (start << 32) | 1;
        Line { servers, rng, master: None, pending: BTreeMap::new(), heard: BTreeMap::new(), next_op, probe_at: None }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let first = self.pending.values().map(|pending| pending.again.unwrap_or(Mono::NEVER).min(pending.until)).min();
        [first, self.probe_at].into_iter().flatten().min()
    }

    /// Asks the master, wherever it is.
    pub fn send(&mut self, now: Now, whose: W, message: v1::CellMessage, within: Duration, out: &mut Out) {
        // Now and then somebody else is asked: one that was deposed must say so by itself.
        let known = self.master.filter(|_| !self.rng.one_in(60));
        let at = known.or_else(|| self.rng.pick(&self.servers).copied()).unwrap_or_default();
        let until = now.mono + within;
        self.put(now, Pending { whose, message, at, sent: now.mono, until, hops: 0, again: None }, out);
    }

    fn put(&mut self, now: Now, mut pending: Pending<W>, out: &mut Out) {
        let op = self.next_op;
        self.next_op += 2;
        pending.sent = now.mono;
        pending.again = None;
        let frame = Frame { op, more: false, body: Some(Body::Cell(pending.message.clone())) };
        out.put(Effect::Send { to: pending.at, bytes: codec::to_bytes(&frame) });
        self.heard.entry(pending.at).or_insert(now.mono);
        self.pending.insert(op, pending);
        self.probe_at.get_or_insert(now.mono + PROBE_EVERY);
    }

    /// A message from a server: what became of requests.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) -> Vec<Outcome<W>> {
        self.heard.insert(from, now.mono);
        if let Some(probe) = Probe::decode(bytes) {
            let here = |op: &&u64| self.pending.get(op).is_some_and(|pending| pending.at == from);
            let lost: Vec<u64> = probe.ops.iter().filter(here).copied().collect();
            return lost.into_iter().filter_map(|op| self.lose(op)).collect();
        }
        let Ok(frame) = codec::decode(bytes, limits::NODE_FRAME as u32) else { return Vec::new() };
        if self.pending.get(&frame.op).is_none_or(|pending| pending.at != from || pending.again.is_some()) {
            return Vec::new();
        }
        let error = match frame.body {
            Some(Body::Cell(message)) => {
                self.master = Some(from);
                return self.end(frame.op, Ok(message)).into_iter().collect();
            }
            Some(Body::Control(v1::Control { message: Some(control::Message::Error(error)) })) => Error::from(error),
            _ => return Vec::new(),
        };
        if error.code != "cell.not_master" {
            return self.end(frame.op, Err(error)).into_iter().collect();
        }
        self.redirect(now, frame.op, error, out).into_iter().collect()
    }

    fn redirect(&mut self, now: Now, op: u64, error: Error, out: &mut Out) -> Option<Outcome<W>> {
        let named = error.redirect.as_ref().and_then(|name| name.parse().ok()).map(HostId);
        let named = named.filter(|host| self.servers.contains(host));
        self.master = named;
        let pause = Duration::from_millis(self.rng.between(20, 200));
        let random = self.rng.pick(&self.servers).copied();
        let mut pending = self.pending.remove(&op)?;
        pending.hops += 1;
        if pending.hops > HOPS {
            return Some(Outcome { whose: pending.whose, result: Err(error) });
        }
        pending.at = named.or(random).unwrap_or(pending.at);
        if named.is_some() && pending.hops == 1 {
            self.put(now, pending, out);
        } else {
            pending.again = Some(now.mono + pause);
            self.pending.insert(op, pending);
        }
        None
    }

    fn lose(&mut self, op: u64) -> Option<Outcome<W>> {
        let error = Error::new("control.disconnected", Class::OutcomeUnknown, "the connection broke");
        self.end(op, Err(error))
    }

    fn end(&mut self, op: u64, result: Result<v1::CellMessage, Error>) -> Option<Outcome<W>> {
        self.pending.remove(&op).map(|pending| Outcome { whose: pending.whose, result })
    }

    /// Time has passed: what became of requests.
    pub fn wake(&mut self, now: Now, out: &mut Out) -> Vec<Outcome<W>> {
        let mut ended = Vec::new();
        let due: Vec<u64> = self.pending.iter().filter(|(_, it)| it.until <= now.mono).map(|(op, _)| *op).collect();
        for op in due {
            self.master = None;
            ended.extend(self.lose(op));
        }
        let again = |it: &Pending<W>| it.again.is_some_and(|at| at <= now.mono);
        let again: Vec<u64> = self.pending.iter().filter(|(_, it)| again(it)).map(|(op, _)| *op).collect();
        for op in again {
            if let Some(pending) = self.pending.remove(&op) {
                self.put(now, pending, out);
            }
        }
        if self.probe_at.is_some_and(|at| at <= now.mono) {
            ended.extend(self.probe(now, out));
        }
        ended
    }

    fn probe(&mut self, now: Now, out: &mut Out) -> Vec<Outcome<W>> {
        self.probe_at = (!self.pending.is_empty()).then(|| now.mono + PROBE_EVERY);
        let waiting = self.pending.iter().filter(|(_, it)| it.again.is_none());
        let servers: BTreeSet<HostId> = waiting.map(|(_, it)| it.at).collect();
        self.heard.retain(|server, _| servers.contains(server));
        let mut ended = Vec::new();
        for server in servers {
            let heard = *self.heard.entry(server).or_insert(now.mono);
            let here = self.pending.iter().filter(|(_, it)| it.at == server && it.again.is_none());
            if now.mono.since(heard) > SILENCE {
                let lost: Vec<u64> = here.map(|(op, _)| *op).collect();
                self.heard.remove(&server);
                self.master = self.master.filter(|master| *master != server);
                ended.extend(lost.into_iter().filter_map(|op| self.lose(op)));
                continue;
            }
            let old = |it: &Pending<W>| now.mono.since(it.sent) >= PROBE_AGE;
            let young = here.clone().find(|(_, it)| !old(it)).map(|(op, _)| *op);
            let ops = here.filter(|(_, it)| old(it)).map(|(op, _)| *op).collect();
            let probe = Probe { reply: false, below: young.unwrap_or(self.next_op), ops };
            out.put(Effect::Send { to: server, bytes: probe.encode() });
        }
        ended
    }
}
