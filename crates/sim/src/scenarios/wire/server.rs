//! A server: any number of connections, each answered; now and then it asks its clients something, or leaves.

use super::end::End;
use super::fact::WireFact;
use crate::carrier::{Carrier, Mutant, Packet};
use crate::kernel::{Effect, HostId, Seat};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};

type Out = Outbox<Effect<WireFact>>;

/// How often it has something to do by itself, at most, in milliseconds.
const OWN: u64 = 3_000;

/// A server.
pub struct Server {
    host: HostId,
    rng: Seeded,
    mutant: Option<Mutant>,
    ends: BTreeMap<(HostId, u64), End>,
    number: u64,
    next_at: Mono,
    calm: bool,
}

impl Server {
    /// A server without connections.
    pub fn new(seat: &Seat, mutant: Option<Mutant>) -> Server {
        let (host, rng, number) = (seat.host, seat.rng.clone(), seat.starts << 32);
        Server { host, rng, mutant, ends: BTreeMap::new(), number, next_at: seat.now.mono, calm: false }
    }

    /// Whether it begins nothing by itself.
    pub fn set_calm(&mut self, calm: bool) {
        self.calm = calm;
    }

    /// Whether nothing that it began is open.
    pub fn is_quiet(&self) -> bool {
        self.ends.values().all(End::is_quiet)
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let own = (!self.calm).then_some(self.next_at);
        self.ends.values().filter_map(End::deadline).chain(own).min()
    }

    /// A message of a client.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Some(packet) = Packet::read(bytes) else { return };
        let key = (from, packet.connection);
        // Whoever comes late with the first message of a connection that is over begins one that hears nothing more.
        if packet.opens() && !self.ends.contains_key(&key) {
            let token = self.rng.between(1, u64::MAX);
            let rng = self.rng.fork(&format!("connection {from} {token}"));
            let carrier = Carrier::accept(from, packet.connection, token, self.mutant);
            self.ends.insert(key, End::accept(self.host, carrier, now, rng));
        }
        match self.ends.get_mut(&key) {
            Some(end) => end.receive(now, packet, out),
            None => packet.refuse(from, out),
        }
        self.ends.retain(|_, end| !end.is_closed());
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        for end in self.ends.values_mut() {
            end.wake(now, out);
        }
        if !self.calm && now.mono >= self.next_at {
            self.next_at = now.mono + Duration::from_millis(self.rng.between(1, OWN));
            self.act(now, out);
        }
        self.ends.retain(|_, end| !end.is_closed());
    }

    fn act(&mut self, now: Now, out: &mut Out) {
        self.number += 1;
        let open: Vec<(HostId, u64)> = self.ends.iter().filter(|(_, end)| end.may_begin()).map(|(k, _)| *k).collect();
        let Some(end) = self.rng.pick(&open).and_then(|key| self.ends.get_mut(key)) else { return };
        match self.rng.one_in(20) {
            true => end.leave(now, out),
            false => end.begin(now, self.number, out),
        }
    }
}
