//! A consumer of the feed: waits, now and then forgets to acknowledge, never stops.

use super::caller::{Caller, Ended};
use super::client::{consumer_body, read_answer};
use super::fact::{Action, ClientFact, OpName, Outcome, StoreFact};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};

/// Longer than the wait of a consume.
const TIMEOUT: Duration = Duration::from_secs(6);

/// A consumer of one topic for one group.
pub struct Consumer {
    host: HostId,
    topic: u8,
    group: u8,
    rng: Seeded,
    caller: Caller,
    number: u64,
    open: Option<(OpName, Action)>,
    next_at: Mono,
    /// Numbers to acknowledge next.
    holds: Vec<u64>,
}

type Out = Outbox<Effect<StoreFact>>;

impl Consumer {
    /// A consumer that begins at once.
    pub fn new(
        host: HostId,
        start: u64,
        servers: Vec<HostId>,
        (topic, group): (u8, u8),
        now: Now,
        rng: Seeded,
    ) -> Consumer {
        let caller = Caller::new(servers, rng.fork("calls"));
        Consumer {
            host,
            topic,
            group,
            rng,
            caller,
            number: start << 32,
            open: None,
            next_at: now.mono,
            holds: Vec::new(),
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        if self.open.is_some() { self.caller.deadline() } else { Some(self.next_at) }
    }

    /// A message from a server.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if let Some(ended) = self.caller.receive(now, from, bytes, out) {
            self.ended(now, ended, out);
        }
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        if self.open.is_some() {
            if let Some(ended) = self.caller.wake(now, out) {
                self.ended(now, ended, out);
            }
        } else if now.mono >= self.next_at {
            self.begin(now, out);
        }
    }

    fn begin(&mut self, now: Now, out: &mut Out) {
        self.number += 1;
        let op = OpName { client: self.host, number: self.number };
        let (topic, group) = (self.topic, self.group);
        let action = match std::mem::take(&mut self.holds) {
            numbers if numbers.is_empty() => Action::Consume { topic, group },
            numbers => Action::Ack { topic, group, numbers },
        };
        out.put(Effect::Fact(StoreFact::Client(ClientFact::Asked { op, action: action.clone() })));
        let body = consumer_body(&action);
        self.open = Some((op, action));
        // A consume that may have been answered into the void is asked again: what it took is delivered again.
        self.caller.call(now, body, true, TIMEOUT, out);
    }

    fn ended(&mut self, now: Now, ended: Ended, out: &mut Out) {
        let Some((op, action)) = self.open.take() else { return };
        let outcome = match ended {
            Ended::Answer(body) => read_answer(&action, body),
            Ended::Refused => Outcome::Refused,
            Ended::Unknown => Outcome::Unknown,
            Ended::Broken(what) => Outcome::Broken(what),
        };
        if let Outcome::Delivered(entries) = &outcome {
            // Now and then a consumer dies over an entry; it must come again.
            self.holds = entries.iter().map(|(number, _)| *number).filter(|_| !self.rng.one_in(20)).collect();
        }
        out.put(Effect::Fact(StoreFact::Client(ClientFact::Told { op, outcome })));
        self.next_at = now.mono + Duration::from_millis(self.rng.between(1, 100));
    }
}
