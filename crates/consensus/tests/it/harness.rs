//! Whole groups in one process: every replica real, everything around it simulated.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Position, Role, SnapshotChunks, StateFailure};
use tidings_base::{Epoch, GroupId, LogIndex, Mono, NodeId, OpId, Seeded};
use tidings_consensus::{
    Clock, ClusterId, Flush, Group, GroupConfig, Identity, Limits, Member, Mutant, StartError, Timings, Transport,
    TransportError,
};
use tidings_log::testing::SimDisk;
use tidings_sim::conformance::{Cluster, ListState, ListView, Told};
use tidings_wire::v1::RaftMessage;
use tidings_wire::v1::raft_message::Body;
use tokio::time::Instant;

pub const LEASE: Duration = Duration::from_millis(600);

pub fn timings() -> Timings {
    Timings {
        heartbeat: Duration::from_millis(100),
        lease: LEASE,
        election: Duration::from_millis(300),
        call: Duration::from_millis(900),
        install: Duration::from_secs(5),
        answer: Duration::from_secs(5),
        hand_over: Duration::from_secs(5),
        catch_up: Duration::from_secs(20),
    }
}

/// A clock that runs at a rate of its own, from an origin of its own.
struct SimClock {
    began: Instant,
    origin: u64,
    per_mille: u64,
}

impl Clock for SimClock {
    fn mono(&self) -> Mono {
        Mono(self.origin + (self.began.elapsed().as_nanos() as u64) / 1_000 * self.per_mille)
    }
}

impl SimClock {
    /// A point of this clock in the cluster's time.
    fn cluster_time(&self, mono: Mono) -> Duration {
        Duration::from_nanos((mono.0 - self.origin) / self.per_mille * 1_000)
    }
}

/// The network: who reaches whom, how long it takes, how often something is lost.
pub struct Net {
    running: Mutex<BTreeMap<NodeId, Group>>,
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Who answers at the address of another one.
    stand_ins: Mutex<BTreeMap<NodeId, NodeId>>,
    rng: Mutex<Seeded>,
    lose_one_in: Mutex<u64>,
    /// How much longer a piece of a snapshot takes, and to put it in place.
    snapshots_take: Mutex<(Duration, Duration)>,
    /// Who is at that, and neither hears nor says anything else.
    installing: Mutex<BTreeSet<NodeId>>,
    /// What happens to messages on the way.
    spoil: Mutex<Option<Spoil>>,
}

type Spoil = Box<dyn FnMut(&mut RaftMessage) + Send>;

impl Net {
    fn passes(&self, from: NodeId, to: NodeId) -> bool {
        !self.cut.lock().contains(&(from, to)) && !self.rng.lock().one_in(*self.lose_one_in.lock())
    }

    async fn travel(&self, from: NodeId, to: NodeId) -> Result<(), TransportError> {
        let micros = self.rng.lock().between(100, 4_000);
        tokio::time::sleep(Duration::from_micros(micros)).await;
        if self.passes(from, to) { Ok(()) } else { std::future::pending().await }
    }
}

struct Line {
    from: NodeId,
    net: Arc<Net>,
}

#[async_trait]
impl Transport for Line {
    async fn call(&self, to: NodeId, _address: &str, message: RaftMessage) -> Result<RaftMessage, TransportError> {
        let bytes = message.encode_to_vec();
        self.net.travel(self.from, to).await?;
        match &message.body {
            Some(Body::Snapshot(chunk)) => {
                let (piece, all) = *self.net.snapshots_take.lock();
                tokio::time::sleep(piece).await;
                if chunk.last {
                    self.net.installing.lock().insert(to);
                    tokio::time::sleep(all).await;
                    self.net.installing.lock().remove(&to);
                }
            }
            _ if [self.from, to].iter().any(|node| self.net.installing.lock().contains(node)) => {
                std::future::pending().await
            }
            _ => {}
        }
        let there = self.net.stand_ins.lock().get(&to).copied().unwrap_or(to);
        let group = self.net.running.lock().get(&there).cloned();
        let group = group.ok_or_else(|| TransportError("nobody listens there".into()))?;
        let mut message = RaftMessage::decode(&bytes[..]).map_err(|e| TransportError(e.to_string()))?;
        if let Some(spoil) = self.net.spoil.lock().as_mut() {
            spoil(&mut message);
        }
        // The called side works on even if the caller hangs up.
        let reply = tokio::spawn(async move { group.receive(message).await }).await;
        let reply = reply.map_err(|e| TransportError(e.to_string()))?;
        self.net.travel(to, self.from).await?;
        Ok(reply)
    }
}

type Flushed = Option<(Position, Vec<Bytes>)>;

/// A state that keeps itself: what it flushed is there after a restart, what it did not is lost with the power.
struct DurableState {
    list: ListState,
    flushed: Arc<Mutex<Flushed>>,
}

struct Pieces(std::vec::IntoIter<Bytes>);

impl SnapshotChunks for Pieces {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        Ok(self.0.next())
    }
}

impl DurableState {
    fn open(mut list: ListState, flushed: Arc<Mutex<Flushed>>) -> DurableState {
        if let Some((position, pieces)) = flushed.lock().clone() {
            list.restore(position, &mut Pieces(pieces.into_iter())).unwrap();
        }
        DurableState { list, flushed }
    }
}

impl AgreedState for DurableState {
    fn position(&self) -> Position {
        self.list.position()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        self.list.apply(entries, note)
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        let (mut picture, mut pieces) = (self.list.snapshot()?, Vec::new());
        while let Some(piece) = picture.next_chunk()? {
            pieces.push(piece);
        }
        *self.flushed.lock() = Some((self.list.position(), pieces));
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        self.list.snapshot()
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        self.list.restore(position, chunks)
    }
}

struct Host {
    disk: SimDisk,
    clock: Arc<SimClock>,
    view: ListView,
    /// What a durable state has flushed.
    flushed: Arc<Mutex<Flushed>>,
    told: Arc<Mutex<Vec<Told>>>,
    /// Which cluster it has written down that it belongs to.
    cluster: Arc<Mutex<Option<ClusterId>>>,
    group: Option<Group>,
    starts: u64,
}

/// A group of replicas on one paused runtime.
pub struct World {
    runtime: tokio::runtime::Runtime,
    began: Instant,
    hosts: BTreeMap<NodeId, Host>,
    members: Vec<NodeId>,
    pub net: Arc<Net>,
    pub rng: Seeded,
    ops: u64,
    pub timings: Timings,
    pub limits: Limits,
    pub flush: Flush,
    /// A guard that replicas which start from now on leave out.
    pub mutant: Option<Mutant>,
    /// Whether the states of replicas that start from now on survive restarts themselves.
    pub durable: bool,
    /// Whether replicas that start from now on give their cluster a number.
    pub named: bool,
    seed: u64,
}

pub fn limits() -> Limits {
    Limits { snapshot_every: 200, keep_entries: 50, cache_bytes: 4 << 10, segment_bytes: 64 << 10, ..Limits::default() }
}

impl World {
    /// A world whose hosts `1..=hosts` exist; the first `members` of them found the group when started.
    pub fn new(hosts: u64, members: u64, seed: u64) -> World {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let rng = Seeded::new(seed);
        let began = runtime.block_on(async { Instant::now() });
        let net = Arc::new(Net {
            running: Mutex::default(),
            cut: Mutex::default(),
            stand_ins: Mutex::default(),
            rng: Mutex::new(rng.fork("network")),
            lose_one_in: Mutex::new(0),
            snapshots_take: Mutex::default(),
            installing: Mutex::default(),
            spoil: Mutex::default(),
        });
        let mut clocks = rng.fork("clocks");
        let host = |n: u64| {
            let clock = SimClock { began, origin: clocks.below(1 << 40), per_mille: clocks.between(956, 1_044) };
            let host = Host {
                disk: SimDisk::new(seed ^ n),
                clock: Arc::new(clock),
                view: ListView::new(),
                flushed: Arc::default(),
                told: Arc::default(),
                cluster: Arc::default(),
                group: None,
                starts: 0,
            };
            (NodeId(n), host)
        };
        let hosts = (1..=hosts).map(host).collect();
        let members = (1..=members).map(NodeId).collect();
        let (timings, limits) = (timings(), limits());
        World {
            runtime,
            began,
            hosts,
            members,
            net,
            rng,
            ops: 0,
            timings,
            limits,
            flush: Flush::Inline,
            mutant: None,
            durable: false,
            named: false,
            seed,
        }
    }

    /// A world in which all hosts run and found the group.
    pub fn running(hosts: u64, seed: u64) -> World {
        World::running_without(None, hosts, seed)
    }

    /// The same, with a guard left out.
    pub fn running_without(mutant: Option<Mutant>, hosts: u64, seed: u64) -> World {
        let mut world = World::new(hosts, hosts, seed);
        world.mutant = mutant;
        for node in world.members.clone() {
            world.start(node);
        }
        world
    }

    /// Lets these found a group of their own when they start next.
    pub fn founders(&mut self, nodes: &[u64]) {
        self.members = nodes.iter().copied().map(NodeId).collect();
    }

    /// The cluster that a host has written down.
    pub fn cluster(&self, node: NodeId) -> Option<ClusterId> {
        *self.hosts[&node].cluster.lock()
    }

    pub fn start(&mut self, node: NodeId) {
        self.try_start(node).unwrap_or_else(|e| panic!("{node} did not start: {e}"));
    }

    pub fn try_start(&mut self, node: NodeId) -> Result<(), StartError> {
        let founders = if self.members.contains(&node) { self.members.clone() } else { Vec::new() };
        let members = founders.iter().map(|n| Member { node: *n, address: format!("host-{n}") }).collect();
        let host = self.hosts.get_mut(&node).unwrap();
        host.starts += 1;
        let mut config = GroupConfig::new(GroupId(7), node, members, Arc::new(host.disk.clone()));
        config.timings = self.timings;
        config.limits = self.limits;
        config.flush = self.flush;
        config.mutant = self.mutant;
        config.candidate = ClusterId::new(u64::from(self.named) * (node.0 << 32 | host.starts));
        let (known, kept) = (*host.cluster.lock(), host.cluster.clone());
        config.identity = Arc::new(Identity::new(known, move |cluster| {
            *kept.lock() = Some(cluster);
            Ok(())
        }));
        config.seed = Some(Seeded::new(self.seed).fork(&format!("{node} {}", host.starts)).next_u64());
        let list = ListState::new(host.view.clone());
        let state: Box<dyn AgreedState> =
            if self.durable { Box::new(DurableState::open(list, host.flushed.clone())) } else { Box::new(list) };
        let line = Arc::new(Line { from: node, net: self.net.clone() });
        let group = self.runtime.block_on(Group::start(config, state, line, host.clock.clone()))?;
        let (mut heard, told, clock, began) = (group.heard(), host.told.clone(), host.clock.clone(), self.began);
        self.runtime.spawn(async move {
            while let Some(heard) = heard.recv().await {
                let until = if let Heard::LeaseUntil(until) = &heard { Some(clock.cluster_time(*until)) } else { None };
                told.lock().push(Told { at: began.elapsed(), heard, until });
            }
        });
        self.net.running.lock().insert(node, group.clone());
        host.group = Some(group);
        Ok(())
    }

    /// Stops a replica as power loss does.
    pub fn power_off(&mut self, node: NodeId) {
        let group = self.unplug(node);
        let host = self.hosts.get_mut(&node).unwrap();
        host.disk.crash(&mut self.rng.fork(&format!("crash {node} {}", host.starts)));
        self.runtime.block_on(group.stop());
    }

    /// Stops a replica in order.
    pub fn shut_down(&mut self, node: NodeId) {
        let group = self.hosts.get_mut(&node).unwrap().group.take().unwrap();
        self.runtime.block_on(group.shutdown());
        self.net.running.lock().remove(&node);
    }

    fn unplug(&mut self, node: NodeId) -> Group {
        self.net.running.lock().remove(&node);
        self.hosts.get_mut(&node).unwrap().group.take().unwrap()
    }

    pub fn group(&self, node: NodeId) -> Group {
        self.hosts[&node].group.clone().unwrap()
    }

    pub fn disk(&self, node: NodeId) -> SimDisk {
        self.hosts[&node].disk.clone()
    }

    /// Puts another disk into a host that does not run.
    pub fn replace_disk(&mut self, node: NodeId, disk: SimDisk) {
        self.hosts.get_mut(&node).unwrap().disk = disk;
    }

    pub fn list(&self, node: NodeId) -> Vec<(LogIndex, Bytes)> {
        self.hosts[&node].view.read()
    }

    pub fn told(&self, node: NodeId) -> Vec<Told> {
        self.hosts[&node].told.lock().clone()
    }

    /// Runs a future while everything else runs too.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), future).await }).expect("in time")
    }

    pub fn sleep(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    pub fn elapsed(&self) -> Duration {
        self.runtime.block_on(async { self.began.elapsed() })
    }

    /// The leader, when one of the running replicas has announced itself and holds a lease by its own word.
    pub fn leader(&self) -> (NodeId, Epoch) {
        for _ in 0..1_000 {
            let running: Vec<(NodeId, Group)> = self.net.running.lock().iter().map(|(n, g)| (*n, g.clone())).collect();
            let leads = |(node, group): (NodeId, Group)| match *group.role().borrow() {
                Role::Leader { epoch } => Some((node, epoch)),
                Role::Follower { .. } => None,
            };
            if let Some(found) = running.into_iter().filter_map(leads).max_by_key(|(_, epoch)| *epoch) {
                return found;
            }
            self.sleep(LEASE / 10);
        }
        panic!("no leader in 100 leases");
    }

    /// Proposes at whoever leads until it is applied.
    pub fn put(&self, command: impl Into<Bytes>) -> LogIndex {
        let command: Bytes = command.into();
        for _ in 0..100 {
            let (leader, _) = self.leader();
            if let Ok((index, _)) = self.wait(self.group(leader).propose(command.clone())) {
                return index;
            }
            self.sleep(LEASE / 4);
        }
        panic!("nothing was applied in 100 tries");
    }

    /// Waits until `done`.
    pub fn until(&self, what: &str, mut done: impl FnMut(&World) -> bool) {
        for _ in 0..1_000 {
            if done(self) {
                return;
            }
            self.sleep(LEASE / 10);
        }
        panic!("waited 100 leases in vain: {what}");
    }

    /// From now on messages are shown to `spoil` on their way.
    pub fn spoil(&self, spoil: impl FnMut(&mut RaftMessage) + Send + 'static) {
        *self.net.spoil.lock() = Some(Box::new(spoil));
    }

    /// Each piece of a snapshot takes so much longer, and putting it in place so long.
    pub fn snapshots_take(&self, piece: Duration, all: Duration) {
        *self.net.snapshots_take.lock() = (piece, all);
    }

    pub fn lose_one_in(&self, n: u64) {
        *self.net.lose_one_in.lock() = n;
    }

    /// Cuts the way from one host to another, in this direction.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.net.cut.lock().insert((from, to));
    }

    pub fn isolate(&self, node: NodeId) {
        for other in self.hosts.keys().filter(|other| **other != node) {
            self.cut(node, *other);
            self.cut(*other, node);
        }
    }

    /// From now on `node` has the address of another one.
    pub fn stands_in(&self, node: NodeId, other: NodeId) {
        self.net.stand_ins.lock().insert(other, node);
    }

    pub fn mend(&self) {
        self.net.cut.lock().clear();
        self.lose_one_in(0);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let running = std::mem::take(&mut *self.net.running.lock());
        for group in running.into_values() {
            self.runtime.block_on(group.stop());
        }
    }
}

impl Cluster for World {
    fn nodes(&self) -> Vec<NodeId> {
        self.members.clone()
    }

    fn lease(&self) -> Duration {
        self.timings.lease
    }

    fn now(&self) -> Duration {
        self.elapsed()
    }

    fn run(&mut self, time: Duration) {
        self.sleep(time);
    }

    fn propose(&mut self, node: NodeId, command: Bytes) -> OpId {
        self.ops += 1;
        let op = OpId(self.ops);
        let group = self.group(node);
        self.runtime.block_on(async { group.ask(Ask::Propose { op, command }) });
        op
    }

    fn barrier(&mut self, node: NodeId) -> OpId {
        self.ops += 1;
        let op = OpId(self.ops);
        let group = self.group(node);
        self.runtime.block_on(async { group.ask(Ask::ReadBarrier { op }) });
        op
    }

    fn heard(&mut self, node: NodeId) -> Vec<Told> {
        std::mem::take(&mut *self.hosts[&node].told.lock())
    }

    fn applied(&mut self, node: NodeId) -> Vec<(LogIndex, Bytes)> {
        self.list(node)
    }

    fn crash(&mut self, node: NodeId) {
        self.power_off(node);
    }

    fn restart(&mut self, node: NodeId) {
        self.start(node);
    }

    fn partition(&mut self, sides: &[Vec<NodeId>]) {
        let together = |a: &NodeId, b: &NodeId| sides.iter().any(|side| side.contains(a) && side.contains(b));
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        let mut cut = self.net.cut.lock();
        cut.clear();
        for a in &nodes {
            cut.extend(nodes.iter().filter(|b| *b != a && !together(a, b)).map(|b| (*a, *b)));
        }
    }

    fn heal(&mut self) {
        self.mend();
    }
}
