//! Who lives where, and how each process is made.

use super::cell::{Cell, SharedAgreed};
use super::fact::{Fact, Life};
use super::operator::Managing;
use super::owner::Mood;
use super::{cell, client, manager, owner};
use crate::faults::Site;
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat};
use std::collections::BTreeMap;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_placement::config::Times;
use tidings_placement::mutant::Mutant;
use tidings_wire::v1;

/// The namespace that everything is about.
pub const NAMESPACE: &str = "pool";

/// A process of this scenario.
pub enum Actor {
    /// The cell.
    Cell(Box<cell::Cell>),
    /// A manager.
    Manager(Box<manager::Host>),
    /// An owner.
    Owner(Box<owner::Host>),
    /// A lookup with its application.
    Client(Box<client::Host>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<Fact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<Fact>>) {
        let Event::Message { from, bytes } = input else { return };
        match self {
            Actor::Cell(cell) => cell.receive(now, from, &bytes, out),
            Actor::Manager(manager) => manager.receive(now, from, &bytes, out),
            Actor::Owner(owner) => owner.receive(now, from, &bytes, out),
            Actor::Client(client) => client.receive(now, from, &bytes, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        match self {
            Actor::Cell(cell) => cell.wake(now),
            Actor::Manager(manager) => manager.wake(now, out),
            Actor::Owner(owner) => owner.wake(now, out),
            Actor::Client(client) => client.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Cell(cell) => cell.deadline(),
            Actor::Manager(manager) => manager.deadline(),
            Actor::Owner(owner) => owner.deadline(),
            Actor::Client(client) => client.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = Fact;
}

impl Managing for Actor {
    fn manager(&self) -> Option<&manager::Host> {
        match self {
            Actor::Manager(manager) => Some(manager),
            _ => None,
        }
    }

    fn manager_mut(&mut self) -> Option<&mut manager::Host> {
        match self {
            Actor::Manager(manager) => Some(manager),
            _ => None,
        }
    }
}

/// What is chosen for an owner's host once and for all.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Its name; two hosts may have the same.
    pub id: String,
    /// Whether its application hands state over.
    pub hands_over: bool,
    /// Whether it can prove that no earlier process of it lives.
    pub proves: bool,
    /// Whether it counts its starts without regard to others of its name: two of them may be of one incarnation (F4).
    pub twin: bool,
}

/// Who lives where.
pub struct Town {
    /// The cell's host.
    pub cell: HostId,
    /// What the cell has agreed.
    pub agreed: SharedAgreed,
    /// The managers' hosts.
    pub managers: Vec<HostId>,
    /// The owners' hosts.
    pub owners: BTreeMap<HostId, Habits>,
    /// The clients' hosts.
    pub clients: Vec<HostId>,
    /// The lease times of the namespace.
    pub times: Times,
    /// A rule that is left out.
    pub mutant: Option<Mutant>,
    /// Trouble is over: processes that start now hand over as they should.
    pub calm: bool,
}

impl Town {
    fn owner(&self, seat: Seat, habits: &Habits, out: &mut Outbox<Effect<Fact>>) -> owner::Host {
        let mut rng = seat.rng.fork("owner");
        // The kernel lets no two processes run on a host, and a kill leaves the machine up: its lock file is proof.
        let proof = habits
            .proves
            .then(|| v1::ExclusivityProof { boot_id: "same".to_owned(), lock_id: format!("{}", seat.host) });
        let options = tidings_placement::owner::Options {
            namespace: NAMESPACE.to_owned(),
            owner: habits.id.clone(),
            address: format!("{}:1", seat.host),
            // It grows with every start; that of another host's process of the same name is another, unless they are twins.
            incarnation: seat.starts * 1_000 + if habits.twin { 0 } else { u64::from(seat.host.0) },
            seed: rng.next_u64(),
            proof,
            hands_over: habits.hands_over,
            renew: self.times.renew,
            mutant: self.mutant,
        };
        let life = Life { host: seat.host, start: seat.starts };
        let mood = if rng.one_in(8) && !self.calm { Mood::Fails } else { Mood::Works };
        owner::Host::start(options, life, self.managers.clone(), self.times.lease, mood, seat.now, out)
    }
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<Fact>>) -> Result<Actor, NoStart> {
        if seat.host == self.cell {
            return Ok(Actor::Cell(Box::new(Cell::start(self.agreed.clone(), seat.now))));
        }
        let mut rng = seat.rng.fork("seed");
        if self.managers.contains(&seat.host) {
            let options = tidings_placement::manager::Options { seed: rng.next_u64(), mutant: self.mutant };
            let host = manager::Host::start(options, self.cell, seat.starts, rng, seat.now, out);
            return Ok(Actor::Manager(Box::new(host)));
        }
        if let Some(habits) = self.owners.get(&seat.host) {
            return Ok(Actor::Owner(Box::new(self.owner(seat, habits, out))));
        }
        let options = tidings_placement::lookup::Options { namespace: NAMESPACE.to_owned(), seed: rng.next_u64() };
        let life = Life { host: seat.host, start: seat.starts };
        let host = client::Host::start(options, life, self.managers.clone(), rng, seat.now, out);
        Ok(Actor::Client(Box::new(host)))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, _process: &Actor) -> bool {
        true
    }
}
