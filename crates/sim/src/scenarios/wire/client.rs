//! A client: one connection at a time, to any server, made again when it ends.

use super::end::End;
use super::fact::WireFact;
use crate::carrier::{Carrier, Mutant, Packet};
use crate::kernel::{Effect, HostId, Seat};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};

type Out = Outbox<Effect<WireFact>>;

/// How long a client thinks between two operations, at most, in milliseconds.
const THINK: u64 = 400;
/// The pause before it connects again, at most, in milliseconds.
const PAUSE: u64 = 2_000;

/// A client.
pub struct Client {
    host: HostId,
    rng: Seeded,
    servers: Vec<HostId>,
    mutant: Option<Mutant>,
    /// The connection, with its number.
    connection: Option<(u64, End)>,
    /// Counts connections and operations; no two lives of a host share a number.
    number: u64,
    next_at: Mono,
    stopped: bool,
}

impl Client {
    /// A client of these servers.
    pub fn new(seat: &Seat, servers: Vec<HostId>, mutant: Option<Mutant>) -> Client {
        let (host, rng, number) = (seat.host, seat.rng.clone(), seat.starts << 32);
        Client { host, rng, servers, mutant, connection: None, number, next_at: seat.now.mono, stopped: false }
    }

    /// Begins nothing more.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether nothing that it began is open.
    pub fn is_quiet(&self) -> bool {
        self.connection.as_ref().is_none_or(|(_, end)| end.is_quiet())
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let own = (!self.stopped).then_some(self.next_at);
        let end = self.connection.as_ref().and_then(|(_, end)| end.deadline());
        [own, end].into_iter().flatten().min()
    }

    /// A message of a server.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Some(packet) = Packet::read(bytes) else { return };
        match &mut self.connection {
            Some((number, end)) if *number == packet.connection => end.receive(now, packet, out),
            _ => packet.refuse(from, out),
        }
        self.look(now);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        if let Some((_, end)) = &mut self.connection {
            end.wake(now, out);
        }
        self.look(now);
        if !self.stopped && now.mono >= self.next_at {
            self.next_at = now.mono + Duration::from_millis(self.rng.between(1, THINK));
            self.act(now, out);
        }
        self.look(now);
    }

    fn act(&mut self, now: Now, out: &mut Out) {
        self.number += 1;
        let number = self.number;
        match &mut self.connection {
            None => {
                let server = self.rng.pick(&self.servers).copied().unwrap_or_default();
                let carrier = Carrier::connect(server, number, self.mutant);
                let rng = self.rng.fork(&format!("connection {number}"));
                self.connection = Some((number, End::connect(self.host, carrier, now, rng, out)));
            }
            Some((_, end)) if end.may_begin() => match self.rng.one_in(300) {
                true => end.leave(now, out),
                false => end.begin(now, number, out),
            },
            Some(_) => {}
        }
    }

    fn look(&mut self, now: Now) {
        if self.connection.as_ref().is_some_and(|(_, end)| end.is_closed()) {
            self.connection = None;
            self.next_at = now.mono + Duration::from_millis(self.rng.between(10, PAUSE));
        }
    }
}
