//! Who lives where, and how each process is made.

use super::client::{self, Client, Disk};
use super::fact::TablesFact;
use super::files::Files;
use super::letter::Post;
use super::node::{self, Neighbours, Node};
use super::notify::Notify;
use crate::faults::Site;
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat};
use crate::model::Temper;
use crate::scenarios::member;
use crate::scenarios::placement::cell::{Cell, SharedAgreed};
use crate::scenarios::placement::manager;
use crate::scenarios::placement::operator::Managing;
use crate::scenarios::store::server::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_placement::config::Times;

/// The namespace of partitions.
pub const NAMESPACE: &str = ".tables";
/// The lease of the store's leader.
const STORE_LEASE: Duration = Duration::from_secs(2);

/// A process of this scenario.
pub enum Actor {
    /// What managers see of the cell.
    Cell(Box<Cell>),
    /// A manager of placement.
    Manager(Box<manager::Host>),
    /// A server of the store.
    Store(Box<Server<TablesFact>>),
    /// A node.
    Node(Box<Node>),
    /// A client.
    Client(Box<Client>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<TablesFact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<TablesFact>>) {
        match (self, input) {
            (Actor::Store(server), Event::DiskDone { .. }) => server.disk_done(now, out),
            (Actor::Store(server), Event::Message { from, bytes }) => server.message(now, from, &bytes, out),
            (Actor::Cell(cell), Event::Message { from, bytes }) => cell.receive(now, from, &bytes, out),
            (Actor::Manager(manager), Event::Message { from, bytes }) => manager.receive(now, from, &bytes, out),
            (Actor::Node(node), Event::Message { from, bytes }) => node.receive(now, from, &bytes, out),
            (Actor::Client(client), Event::Message { from, bytes }) => client.receive(now, from, &bytes, out),
            (_, Event::DiskDone { .. }) => {}
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<TablesFact>>) {
        match self {
            Actor::Cell(cell) => cell.wake(now),
            Actor::Manager(manager) => manager.wake(now, out),
            Actor::Store(server) => server.wake(now, out),
            Actor::Node(node) => node.wake(now, out),
            Actor::Client(client) => client.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Cell(cell) => cell.deadline(),
            Actor::Manager(manager) => manager.deadline(),
            Actor::Store(server) => server.deadline(),
            Actor::Node(node) => node.deadline(),
            Actor::Client(client) => client.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = TablesFact;
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

/// What outlives processes, and where letters lie.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The directories of tables.
    pub files: Files,
    /// What was published.
    pub notify: Notify,
    /// Where letters lie.
    pub post: Post,
}

/// Who lives where.
pub struct Town {
    /// The cell's host.
    pub cell: HostId,
    /// What the cell has agreed for managers.
    pub agreed: SharedAgreed,
    /// What it has agreed for nodes, and what all share.
    pub around: Around,
    /// Who nodes talk to.
    pub neighbours: Neighbours,
    /// The clients' hosts, their numbers and what they remember.
    pub clients: BTreeMap<HostId, (u32, Disk)>,
    /// The lease times of partitions.
    pub times: Times,
    /// How nodes behave.
    pub nodes: node::Habits,
    /// How clients behave.
    pub habits: client::Habits,
    /// The faults are over.
    pub calm: bool,
}

impl Town {
    /// Everybody, those first that others need.
    pub fn everybody(&self) -> Vec<HostId> {
        let Neighbours { managers, servers, nodes } = &self.neighbours;
        let hosts = [self.cell].into_iter().chain(managers.iter().chain(servers).chain(nodes).copied());
        hosts.chain(self.clients.keys().copied()).collect()
    }

    fn node(&self, mut seat: Seat, out: &mut Outbox<Effect<TablesFact>>) -> Node {
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
        let mut node = Node::start(seat, self.neighbours.clone(), self.nodes, ranges, self.around.clone(), out);
        if self.calm {
            node.calm();
        }
        node
    }
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<TablesFact>>) -> Result<Actor, NoStart> {
        let Neighbours { managers, servers, nodes } = &self.neighbours;
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
            let config = member::config(&seat, servers, STORE_LEASE, Temper { abdicates: 0, hasty: 0 }, None);
            let server = Server::start(config, seat.disk, seat.now, seat.rng, out)?;
            return Ok(Actor::Store(Box::new(server)));
        }
        if nodes.contains(&seat.host) {
            return Ok(Actor::Node(Box::new(self.node(seat, out))));
        }
        let (number, disk) = self.clients.get(&seat.host).cloned().unwrap_or_default();
        let mut client = Client::start(seat, number, nodes.clone(), self.around.clone(), disk, self.habits, out);
        if self.calm {
            client.calm();
        }
        Ok(Actor::Client(Box::new(client)))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, _process: &Actor) -> bool {
        true
    }
}
