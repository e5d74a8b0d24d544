//! Who lives where, and how each process is made.

use super::client::{Client, Writer};
use super::fact::Fact;
use super::letter::Post;
use super::node::{Node, Taken};
use super::order::{Order, SharedAgreed};
use super::reader::Reader;
use super::ring::Ring;
use super::seat::{self, Captured, Disk};
use crate::faults::Site;
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_sketch::mutant::Mutant;
use tidings_sketch::sketch::Sketching;

/// Clients that the group knows: every thread of a node takes a new name at each start.
pub const CLIENTS: u64 = 20_000;

/// How a run is.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// N.
    pub replicas: u16,
    /// f, and so many liars there are.
    pub faults: u16,
    /// Whether clients ask the replicas themselves (D-Prophecy), and not sketching nodes.
    pub direct: bool,
    /// Sites that share the ring and its leases, each with a table and threads of its own; pages take turns. All are before the one
    /// group.
    pub sites: usize,
    /// Entries that tables are made for: few, so that much is evicted.
    pub entries: usize,
    /// Bits of tags that count: few, so that requests are taken for one another.
    pub tag_bits: u32,
    /// Whether liars send captured replies again.
    pub replays: bool,
    /// How long clients think, on average.
    pub think: Duration,
    /// A rule left out.
    pub mutant: Option<Mutant>,
}

impl Habits {
    /// The sketchers' secret.
    pub fn sketching(&self) -> Sketching {
        Sketching::new([9; 32])
    }
}

/// Numbers that are given once.
#[derive(Clone, Debug, Default)]
pub struct Numbers(Arc<AtomicU64>);

impl Numbers {
    /// The next one.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }
}

/// A process of this scenario: its role, and where its letters lie.
pub struct Actor {
    post: Post,
    /// What it does.
    pub role: Role,
}

/// What a process does.
pub enum Role {
    /// What makes the group's order.
    Order(Box<Order>),
    /// A replica.
    Replica(Box<seat::Seat>),
    /// A sketching node.
    Node(Box<Node>),
    /// Who writes past the sketchers.
    Writer(Box<Writer>),
    /// Who asks them.
    Client(Box<Client>),
    /// Who asks the replicas.
    Reader(Box<Reader>),
}

/// Who lives where.
pub struct Town {
    /// Where the order is made.
    pub order: HostId,
    /// The replicas, liars first.
    pub replicas: Vec<HostId>,
    /// Sketching nodes.
    pub nodes: Vec<HostId>,
    /// Who writes past them.
    pub writer: HostId,
    /// Who asks them.
    pub clients: Vec<HostId>,
    /// What was agreed on.
    pub agreed: SharedAgreed,
    /// What replicas have executed.
    pub disks: Vec<Disk>,
    /// Who holds what.
    pub ring: Ring,
    /// Where letters lie.
    pub post: Post,
    /// What whoever listens has kept.
    pub captured: Captured,
    /// Which requests have reached nodes.
    pub taken: Taken,
    /// Numbers of requests.
    pub requests: Numbers,
    /// Names of the group's clients.
    pub names: Numbers,
    /// How the run is.
    pub habits: Habits,
    /// The faults are over.
    pub calm: bool,
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<Fact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<Fact>>) {
        let Event::Message { from, bytes } = input else { return };
        let Some(letter) = self.post.open(&bytes) else { return };
        match &mut self.role {
            Role::Order(order) => order.receive(now, from, letter, out),
            Role::Replica(seat) => seat.receive(letter, out),
            Role::Node(node) => node.receive(now, from, letter, out),
            Role::Writer(writer) => writer.receive(now, letter, out),
            Role::Client(client) => client.receive(letter),
            Role::Reader(reader) => reader.receive(now, letter, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        match &mut self.role {
            Role::Order(order) => order.wake(now, out),
            Role::Replica(_) => {}
            Role::Node(node) => node.wake(now, out),
            Role::Writer(writer) => writer.wake(now, out),
            Role::Client(client) => client.wake(now, out),
            Role::Reader(reader) => reader.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match &self.role {
            Role::Order(order) => order.deadline(),
            Role::Replica(_) => None,
            Role::Node(node) => node.deadline(),
            Role::Writer(writer) => writer.deadline(),
            Role::Client(client) => client.deadline(),
            Role::Reader(reader) => reader.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = Fact;
}

impl Town {
    /// Everybody, those first that others need.
    pub fn everybody(&self) -> Vec<HostId> {
        let served = [self.order].into_iter().chain(self.replicas.iter().chain(&self.nodes).copied());
        served.chain([self.writer]).chain(self.clients.iter().copied()).collect()
    }

    fn role(&mut self, seat: Seat) -> Role {
        let (host, post, habits) = (seat.host, self.post.clone(), self.habits);
        let (replicas, requests) = (self.replicas.clone(), self.requests.clone());
        if host == self.order {
            let order = Order::start(self.agreed.clone(), replicas, post, seat.rng, seat.now);
            return Role::Order(Box::new(order));
        }
        if let Some(number) = self.replicas.iter().position(|replica| *replica == host) {
            let (disk, shared) = (self.disks[number].clone(), (post, self.captured.clone()));
            let seat = seat::Seat::start(number as u16, disk, self.order, shared, habits, seat.rng);
            return Role::Replica(Box::new(seat));
        }
        if let Some(number) = self.nodes.iter().position(|node| *node == host) {
            let (names, post) = (self.names.clone(), (post, self.taken.clone()));
            let node = Node::start(seat, number, self.ring.clone(), replicas, post, habits, || name(&names));
            return Role::Node(Box::new(node));
        }
        if host == self.writer {
            let mut writer = Writer::start(seat, replicas, post, requests, habits, name(&self.names));
            if self.calm {
                writer.calm();
            }
            return Role::Writer(Box::new(writer));
        }
        if habits.direct {
            let mut reader = Reader::start(seat, replicas, post, requests, habits, name(&self.names));
            if self.calm {
                reader.calm();
            }
            return Role::Reader(Box::new(reader));
        }
        let mut client = Client::start(seat, self.nodes.clone(), self.ring.clone(), post, requests, habits);
        if self.calm {
            client.calm();
        }
        Role::Client(Box::new(client))
    }
}

fn name(names: &Numbers) -> u64 {
    let name = names.next();
    assert!(name < CLIENTS, "more lives than clients are registered");
    name
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Seat, _out: &mut Outbox<Effect<Fact>>) -> Result<Actor, NoStart> {
        Ok(Actor { post: self.post.clone(), role: self.role(seat) })
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, _process: &Actor) -> bool {
        true
    }
}
