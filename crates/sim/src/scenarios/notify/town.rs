//! Who lives where, and how each process is made.

use super::backend::Backend;
use super::device::{self, Device};
use super::fact::NotifyFact;
use super::forger::Forger;
use super::node::{self, Neighbours, Node};
use super::shared::Shared;
use crate::faults::Site;
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat};
use crate::model::Temper;
use crate::scenarios::member;
use crate::scenarios::placement::cell::{Cell, SharedAgreed};
use crate::scenarios::placement::manager;
use crate::scenarios::placement::operator::Managing;
use crate::scenarios::store::server::Server;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_placement::config::Times;

/// The namespace of ranges.
pub const NAMESPACE: &str = ".notify";
/// The lease of the store's leader.
const STORE_LEASE: Duration = Duration::from_secs(2);

/// A process of this scenario.
pub enum Actor {
    /// What managers see of the cell.
    Cell(Box<Cell>),
    /// A manager of placement.
    Manager(Box<manager::Host>),
    /// A server of the store and the feed.
    Store(Box<Server<NotifyFact>>),
    /// A node.
    Node(Box<Node>),
    /// A device.
    Device(Box<Device>),
    /// The application's backend.
    Backend(Box<Backend>),
    /// Somebody who presents tokens that are not its own.
    Forger(Box<Forger>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<NotifyFact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<NotifyFact>>) {
        match (self, input) {
            (Actor::Store(server), Event::DiskDone { .. }) => server.disk_done(now, out),
            (Actor::Store(server), Event::Message { from, bytes }) => server.message(now, from, &bytes, out),
            (Actor::Cell(cell), Event::Message { from, bytes }) => cell.receive(now, from, &bytes, out),
            (Actor::Manager(manager), Event::Message { from, bytes }) => manager.receive(now, from, &bytes, out),
            (Actor::Node(node), Event::Message { from, bytes }) => node.receive(now, from, &bytes, out),
            (Actor::Device(device), Event::Message { from, bytes }) => device.receive(now, from, &bytes, out),
            (Actor::Backend(backend), Event::Message { from, bytes }) => backend.receive(now, from, &bytes, out),
            (Actor::Forger(forger), Event::Message { from, bytes }) => forger.receive(from, &bytes, out),
            (_, Event::DiskDone { .. }) => {}
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<NotifyFact>>) {
        match self {
            Actor::Cell(cell) => cell.wake(now),
            Actor::Manager(manager) => manager.wake(now, out),
            Actor::Store(server) => server.wake(now, out),
            Actor::Node(node) => node.wake(now, out),
            Actor::Device(device) => device.wake(now, out),
            Actor::Backend(backend) => backend.wake(now, out),
            Actor::Forger(_) => {}
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Cell(cell) => cell.deadline(),
            Actor::Manager(manager) => manager.deadline(),
            Actor::Store(server) => server.deadline(),
            Actor::Node(node) => node.deadline(),
            Actor::Device(device) => device.deadline(),
            Actor::Backend(backend) => backend.deadline(),
            Actor::Forger(_) => None,
        }
    }
}

impl Process for Actor {
    type Fact = NotifyFact;
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

/// Who lives where.
pub struct Town {
    /// The cell's host.
    pub cell: HostId,
    /// What the cell has agreed.
    pub agreed: SharedAgreed,
    /// Who nodes talk to.
    pub neighbours: Neighbours,
    /// The devices' hosts.
    pub devices: Vec<HostId>,
    /// The backend's host.
    pub backend: HostId,
    /// The forger's host.
    pub forger: HostId,
    /// What outlives processes.
    pub shared: Shared,
    /// The lease times of ranges.
    pub times: Times,
    /// How nodes behave.
    pub nodes: node::Habits,
    /// How devices behave.
    pub habits: device::Habits,
    /// How long the backend thinks between two publications, on average.
    pub think: Duration,
    /// The faults are over.
    pub calm: bool,
}

impl Town {
    /// Everybody, those first that others need.
    pub fn everybody(&self) -> Vec<HostId> {
        let Neighbours { managers, servers, nodes, .. } = &self.neighbours;
        let hosts = [self.cell].into_iter().chain(managers.iter().chain(servers).chain(nodes).copied());
        hosts.chain(self.devices.iter().copied()).chain([self.backend, self.forger]).collect()
    }

    fn node(&self, mut seat: Seat, out: &mut Outbox<Effect<NotifyFact>>) -> Node {
        let ranges = tidings_placement::owner::Options {
            namespace: NAMESPACE.to_owned(),
            owner: format!("{}", seat.host),
            address: format!("{}:1", seat.host),
            incarnation: seat.starts,
            seed: seat.rng.next_u64(),
            proof: None,
            hands_over: false,
            renew: self.times.renew,
            mutant: None,
        };
        let (neighbours, shared) = (self.neighbours.clone(), self.shared.clone());
        let mut node = Node::start(seat, neighbours, self.nodes, ranges, shared, out);
        if self.calm {
            node.calm();
        }
        node
    }

    fn device(&self, seat: Seat, out: &mut Outbox<Effect<NotifyFact>>) -> Device {
        let (me, nodes) = ((seat.host, seat.starts), self.neighbours.nodes.clone());
        let mut device = Device::start(me, self.shared.clone(), nodes, &self.habits, seat.rng, seat.now, out);
        if self.calm {
            device.calm();
        }
        device
    }

    fn backend(&self, seat: Seat) -> Backend {
        let (servers, others) =
            (self.neighbours.servers.clone(), (self.devices.clone(), self.neighbours.nodes.clone()));
        let own = (seat.rng, seat.starts);
        let mut backend = Backend::start(servers, others, self.shared.clone(), self.think, own, seat.now);
        if self.calm {
            backend.calm();
        }
        backend
    }
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<NotifyFact>>) -> Result<Actor, NoStart> {
        let Neighbours { managers, servers, nodes, .. } = &self.neighbours;
        if seat.host == self.cell {
            return Ok(Actor::Cell(Box::new(Cell::start(self.agreed.clone(), seat.now))));
        }
        if managers.contains(&seat.host) {
            let mut rng = seat.rng.fork("seed");
            let options = tidings_placement::manager::Options { seed: rng.next_u64(), mutant: None };
            let host = manager::Host::start(options, self.cell, seat.starts, rng, seat.now, out);
            return Ok(Actor::Manager(Box::new(host)));
        }
        if servers.contains(&seat.host) {
            let mut config = member::config(&seat, servers, STORE_LEASE, Temper { abdicates: 0, hasty: 0 }, None);
            // A store that was wiped begins anew, all of it.
            config.life = 0;
            let server = Server::start(config, seat.disk, seat.now, seat.rng, out)?;
            return Ok(Actor::Store(Box::new(server)));
        }
        if nodes.contains(&seat.host) {
            return Ok(Actor::Node(Box::new(self.node(seat, out))));
        }
        if seat.host == self.backend {
            return Ok(Actor::Backend(Box::new(self.backend(seat))));
        }
        if seat.host == self.forger {
            return Ok(Actor::Forger(Box::new(Forger::start(nodes.clone(), seat.rng, seat.starts))));
        }
        Ok(Actor::Device(Box::new(self.device(seat, out))))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, _process: &Actor) -> bool {
        true
    }
}
