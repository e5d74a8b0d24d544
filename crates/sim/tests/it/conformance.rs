//! The model of the agreed log passes the suite that the real binding passes, with bad weather and odd clocks.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard};
use tidings_base::{LogIndex, Machine, Mono, NodeId, Now, OpId, Outbox, Seeded};
use tidings_sim::clock::SimTime;
use tidings_sim::conformance::{Cluster, ListState, ListView, Told, run_all};
use tidings_sim::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat, Step, World};
use tidings_sim::model::{Config, Input, Output, Replica, Temper};
use tidings_sim::mutant::Mutant;
use tidings_sim::network::{CutId, Weather};
use tidings_sim::trace::Printing;

const LEASE: Duration = Duration::from_secs(2);

struct Node {
    replica: Replica<ListState>,
    out: Outbox<Output>,
}

#[derive(Debug)]
struct Said(Heard);

fn host(node: NodeId) -> HostId {
    HostId(node.0 as u32 - 1)
}

fn node(host: HostId) -> NodeId {
    NodeId(u64::from(host.0) + 1)
}

fn translate(from: &mut Outbox<Output>, to: &mut Outbox<Effect<Said>>) {
    for output in from.drain() {
        to.put(match output {
            Output::Send { to, bytes } => Effect::Send { to: host(to), bytes },
            Output::Heard(heard) => Effect::Fact(Said(heard)),
            Output::DiskWait => Effect::DiskWait { token: 0 },
            Output::Durable { .. } => continue,
            Output::Alarm(_) => continue,
            Output::Stop(why) => Effect::Exit { why },
        });
    }
}

impl Machine for Node {
    type Input = Event;
    type Output = Effect<Said>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<Said>>) {
        let input = match input {
            Event::Message { from, bytes } => Input::Message { from: node(from), bytes },
            Event::DiskDone { .. } => Input::DiskDone,
        };
        self.replica.handle(now, input, &mut self.out);
        translate(&mut self.out, out);
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Said>>) {
        self.replica.wake(now, &mut self.out);
        translate(&mut self.out, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.replica.deadline()
    }
}

impl Process for Node {
    type Fact = Said;
}

struct Starter {
    members: Vec<NodeId>,
    views: BTreeMap<HostId, ListView>,
    temper: Temper,
    mutant: Option<Mutant>,
}

impl Boot<Node> for Starter {
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<Said>>) -> Result<Node, NoStart> {
        let config = Config {
            id: node(seat.host),
            members: self.members.clone(),
            lease: LEASE,
            picture_every: 100,
            life: seat.replacements,
            temper: self.temper,
            mutant: self.mutant,
        };
        let view = self.views.entry(seat.host).or_default().clone();
        let mut own = Outbox::new();
        let disk = Arc::new(seat.disk);
        let replica = Replica::start(config, disk, ListState::new(view), seat.now, seat.rng, &mut own)?;
        translate(&mut own, out);
        Ok(Node { replica, out: own })
    }
}

struct ModelCluster {
    world: World<Node>,
    starter: Starter,
    heard: BTreeMap<NodeId, Vec<Told>>,
    cut: Option<CutId>,
    ops: u64,
}

impl ModelCluster {
    fn new(nodes: usize, seed: u64, mutant: Option<Mutant>) -> ModelCluster {
        let rng = Seeded::new(seed);
        let mut world = World::new(&rng, Printing::Off);
        let mut own = rng.fork("cluster");
        let members = (1..=nodes as u64).map(NodeId).collect();
        let temper = if seed.is_multiple_of(3) { Temper { abdicates: 200, hasty: 10 } } else { Temper::default() };
        let mut starter = Starter { members, views: BTreeMap::new(), temper, mutant };
        for _ in 0..nodes {
            world.add_host();
        }
        if seed.is_multiple_of(2) {
            let weather = Weather::bad(&mut own);
            world.network.set_weather(Weather { tail_delay: weather.tail_delay / 5, ..weather });
        }
        for host in 0..nodes {
            world.start(HostId(host as u32), &mut starter).unwrap();
        }
        ModelCluster { world, starter, heard: BTreeMap::new(), cut: None, ops: 0 }
    }

    fn collect(&mut self) {
        for observed in self.world.drain_facts() {
            let Said(heard) = observed.fact;
            let clock = self.world.clock(observed.host);
            let until = match heard {
                Heard::LeaseUntil(until) => Some(Duration::from_nanos(clock.when(until).0)),
                _ => None,
            };
            let told = Told { at: Duration::from_nanos(observed.at.0), heard, until };
            self.heard.entry(node(observed.host)).or_default().push(told);
        }
    }

    fn ask(&mut self, to: NodeId, ask: impl FnOnce(OpId) -> Ask) -> OpId {
        self.ops += 1;
        let op = OpId(self.ops);
        let ask = ask(op);
        self.world.poke(host(to), |process, now, out| {
            process.replica.handle(now, Input::Ask(ask), &mut process.out);
            translate(&mut process.out, out);
        });
        self.collect();
        op
    }
}

impl Cluster for ModelCluster {
    fn nodes(&self) -> Vec<NodeId> {
        self.starter.members.clone()
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.world.now().0)
    }

    fn run(&mut self, time: Duration) {
        self.world.remind(time, 0);
        loop {
            let step = self.world.step();
            self.collect();
            match step {
                Step::Reminder(_) => return,
                Step::Exited(host, why) => panic!("{host} exited: {why}"),
                Step::Ran => {}
                Step::Idle => panic!("the world ended"),
            }
        }
    }

    fn propose(&mut self, node: NodeId, command: Bytes) -> OpId {
        self.ask(node, |op| Ask::Propose { op, command })
    }

    fn barrier(&mut self, node: NodeId) -> OpId {
        self.ask(node, |op| Ask::ReadBarrier { op })
    }

    fn heard(&mut self, node: NodeId) -> Vec<Told> {
        self.heard.remove(&node).unwrap_or_default()
    }

    fn applied(&mut self, node: NodeId) -> Vec<(LogIndex, Bytes)> {
        self.starter.views.get(&host(node)).map(ListView::read).unwrap_or_default()
    }

    fn crash(&mut self, node: NodeId) {
        self.world.power_loss(host(node));
    }

    fn restart(&mut self, node: NodeId) {
        self.world.start(host(node), &mut self.starter).unwrap();
        self.collect();
    }

    fn partition(&mut self, sides: &[Vec<NodeId>]) {
        self.heal();
        let side = |node: &NodeId| sides.iter().position(|side| side.contains(node));
        let mut directions = Vec::new();
        for from in &self.starter.members {
            for to in &self.starter.members {
                if from != to && (side(from).is_none() || side(from) != side(to)) {
                    directions.push((host(*from), host(*to)));
                }
            }
        }
        self.cut = Some(self.world.network.cut(directions));
    }

    fn heal(&mut self) {
        if let Some(cut) = self.cut.take() {
            self.world.network.heal(cut);
        }
    }
}

#[test]
fn the_model_conforms() {
    let mut make = |nodes, seed| Box::new(ModelCluster::new(nodes, seed, None)) as Box<dyn Cluster>;
    let counts = run_all(&mut make, 1..=12).unwrap_or_else(|what| panic!("{what}"));
    assert!(counts.entries > 1_000, "{counts:?}");
}

/// The suite itself is worth something: it notices logs that break the contract.
#[test]
fn the_suite_notices_broken_logs() {
    for mutant in [Mutant::SkippedFsync, Mutant::DoubleApply, Mutant::LostVote, Mutant::StaleRead] {
        let mut make = |nodes, seed| Box::new(ModelCluster::new(nodes, seed, Some(mutant))) as Box<dyn Cluster>;
        let noticed = run_all(&mut make, 1..=30);
        assert!(noticed.is_err(), "{mutant} went unnoticed");
    }
}

#[test]
fn time_begins_at_zero() {
    assert_eq!(ModelCluster::new(1, 1, None).world.now(), SimTime::ZERO);
}
