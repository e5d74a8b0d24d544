//! A client's host: a lookup, and an application that asks owners by its hints.

use super::asking::Asking;
use super::fact::{Fact, KEYS, Life, place};
use super::letter::{Body, Letter, host_at, send};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Seeded};
use tidings_placement::lookup::{Input, Lookup, Options, Output};
use tidings_wire::v1::placement_message::Message;

/// How long the application thinks between two questions.
const THINK: (u64, u64) = (200, 3_000);

/// A client's process.
pub struct Host {
    machine: Lookup,
    life: Life,
    asking: Asking,
    rng: Seeded,
    rows: Vec<Option<LeaseNumber>>,
    next: Mono,
    last_id: u64,
    asked: u64,
    served: u64,
    refused: u64,
}

impl Host {
    /// Starts: knows nothing, and asks.
    pub fn start(
        options: Options,
        life: Life,
        managers: Vec<HostId>,
        rng: Seeded,
        now: Now,
        out: &mut Outbox<Effect<Fact>>,
    ) -> Host {
        let mut host = Host {
            machine: Lookup::new(options),
            life,
            asking: Asking::new(managers, life.start),
            rng,
            rows: vec![None; KEYS as usize],
            next: now.mono,
            last_id: 0,
            asked: 0,
            served: 0,
            refused: 0,
        };
        let mut outputs = Outbox::new();
        host.machine.handle(now, Input::Start, &mut outputs);
        host.perform(outputs, out);
        host
    }

    /// Questions asked, served and refused so far.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.asked, self.served, self.refused)
    }

    /// Under which number its table says that a watched key is held, and where.
    pub fn hint(&self, key: u64) -> Option<(&str, LeaseNumber)> {
        self.machine.table().find(place(key)).map(|(owner, lease)| (owner.address.as_str(), lease))
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Outbox<Effect<Fact>>) {
        match Letter::of(bytes) {
            Some((_, Body::Held(true))) => self.served += 1,
            Some((_, Body::Held(false))) => self.refused += 1,
            Some((id, body)) => {
                let Some((ticket, result)) = self.asking.answered(from, id, body) else { return };
                let result = result.and_then(|message| match message {
                    Message::LookupAnswer(answer) => Ok(answer),
                    _ => Err(tidings_placement::manager::not_leader()),
                });
                let mut outputs = Outbox::new();
                self.machine.handle(now, Input::Answered { ticket, result }, &mut outputs);
                self.perform(outputs, out);
            }
            None => {}
        }
    }

    /// Lets timers act.
    pub fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        let mut outputs = Outbox::new();
        self.machine.wake(now, &mut outputs);
        self.perform(outputs, out);
        if self.next <= now.mono {
            self.next = now.mono + Duration::from_millis(self.rng.between(THINK.0, THINK.1));
            self.question(out);
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        Some(self.machine.deadline().map_or(self.next, |at| at.min(self.next)))
    }

    fn question(&mut self, out: &mut Outbox<Effect<Fact>>) {
        let key = self.rng.below(KEYS);
        let host = self.hint(key).and_then(|(address, _)| host_at(address));
        if let Some(host) = host {
            (self.last_id, self.asked) = (self.last_id + 1, self.asked + 1);
            send(out, host, self.last_id, Body::Want(key));
        }
    }

    fn perform(&mut self, outputs: Outbox<Output>, out: &mut Outbox<Effect<Fact>>) {
        let mut changed = false;
        for output in outputs {
            match output {
                Output::Send { ticket, to, poll, .. } => self.asking.ask(to, ticket, Message::LookupPoll(poll), out),
                Output::Changed => changed = true,
                Output::Lost(ranges) => {
                    let everything = ranges == [KeyRange::FULL];
                    let hit = |key: &u64| ranges.iter().any(|range| range.contains(place(*key)));
                    let keys = (0..KEYS).filter(hit).collect();
                    out.put(Effect::Fact(Fact::Lost { life: self.life, keys, everything }));
                }
                Output::Refused(_) => {}
            }
        }
        if changed {
            for key in 0..KEYS {
                let lease = self.machine.table().find(place(key)).map(|(_, lease)| lease);
                if self.rows[key as usize] != lease {
                    self.rows[key as usize] = lease;
                    out.put(Effect::Fact(Fact::Row { life: self.life, key, lease }));
                }
            }
        }
    }
}
