//! What befalls Notify beside broken networks and machines: rows that fail, a store or a node that is away, everything wiped,
//! a backend restored from a backup, devices installed anew.

use super::Run;
use super::fact::{Fact, NotifyFact, OBJECTS, object};
use super::shared::caller;
use super::town::{Actor, NAMESPACE};
use crate::faults::draw;
use crate::kernel::{HostId, Observed};
use crate::scenarios::placement::operator::{self, Operator};
use crate::scenarios::stage::PHASE;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::Seeded;

/// How often the operator looks whether the namespace is there.
const OPERATE: Duration = Duration::from_secs(2);
/// A store that is wiped stays away for so long at least: what was on its way to it is gone by then.
const WIPED_FOR: Duration = Duration::from_secs(6);
/// Ranges of the namespace that an owner begins with.
const VIRTUAL_NODES: u32 = 4;

#[derive(Clone, Copy, Debug)]
enum Due {
    Strike,
    Operate,
    Start(HostId),
    RowsBack(u64),
    Publish(u64),
}

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FailingRows,
    StoreOutage,
    NodeAway,
    Drain,
    Disconnection,
    NewInstallation,
    ClonedStorage,
    Wipe,
    Reset,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::FailingRows,
        Kind::StoreOutage,
        Kind::NodeAway,
        Kind::Drain,
        Kind::Disconnection,
        Kind::NewInstallation,
        Kind::ClonedStorage,
        Kind::Wipe,
        Kind::Reset,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::FailingRows => "failing_rows",
            Kind::StoreOutage => "store_outage",
            Kind::NodeAway => "node_away",
            Kind::Drain => "drain",
            Kind::Disconnection => "disconnection",
            Kind::NewInstallation => "new_installation",
            Kind::ClonedStorage => "cloned_storage",
            Kind::Wipe => "wipe",
            Kind::Reset => "reset",
        }
    }
}

/// All names of these kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name)
}

/// The schedule of one run.
pub struct Trouble {
    rng: Seeded,
    mean: u64,
    weights: Vec<(Kind, u64)>,
    due: BTreeMap<u64, Due>,
    last_id: u64,
    counts: BTreeMap<&'static str, u64>,
    operator: Operator,
    outages: u64,
    calm: bool,
}

impl Trouble {
    /// A schedule drawn from the generator. Storage is cloned only where there are heartbeats: who is superseded learns of it
    /// with the next one at the latest.
    pub fn new(rng: &Seeded, heartbeats: bool) -> Trouble {
        let mut rng = rng.fork("trouble");
        let weights = Kind::ALL.map(|kind| {
            let often = match kind {
                // They begin everything anew for everybody: seldom, and in some runs never.
                Kind::Wipe | Kind::Reset => u64::from(rng.one_in(2)),
                Kind::ClonedStorage if !heartbeats => 0,
                _ if rng.one_in(4) => 0,
                _ => rng.between(1, 5),
            };
            (kind, often)
        });
        let mean = [4, 8, 15, 30][rng.below(4) as usize];
        Trouble {
            rng,
            mean,
            weights: weights.to_vec(),
            due: BTreeMap::new(),
            last_id: PHASE,
            counts: BTreeMap::new(),
            operator: Operator::default(),
            outages: 0,
            calm: false,
        }
    }

    /// How many of each kind there were.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }
}

impl Run {
    pub(super) fn begin_trouble(&mut self) {
        self.later(Duration::ZERO, Due::Operate);
        let mean = self.trouble.mean;
        self.later(Duration::from_secs(10 + mean), Due::Strike);
    }

    /// Trouble is over: whatever fails is mended.
    pub(super) fn end_trouble(&mut self) {
        self.trouble.calm = true;
        self.stage.town.calm = true;
        self.stage.town.shared.fail_rows([]);
        for host in self.stage.town.everybody() {
            self.stage.world.poke(host, |actor, _, _| match actor {
                Actor::Node(node) => node.calm(),
                Actor::Device(device) => device.calm(),
                Actor::Backend(backend) => backend.calm(),
                Actor::Cell(_) | Actor::Manager(_) | Actor::Store(_) => {}
            });
        }
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.trouble.last_id += 1;
        self.trouble.due.insert(self.trouble.last_id, due);
        self.stage.world.remind(after, self.trouble.last_id);
    }

    pub(super) fn trouble_due(&mut self, id: u64) {
        match self.trouble.due.remove(&id) {
            Some(Due::Strike) if !self.trouble.calm => {
                let wait = self.trouble.rng.between(1, 2 * self.trouble.mean);
                self.later(Duration::from_secs(wait), Due::Strike);
                if let Some(kind) = draw(&mut self.trouble.rng, &self.trouble.weights) {
                    self.strike(kind);
                }
            }
            Some(Due::Operate) => {
                let (stage, trouble) = (&mut self.stage, &mut self.trouble);
                let managers = &stage.town.neighbours.managers;
                let config = operator::config(stage.town.times, VIRTUAL_NODES);
                trouble.operator.look(&mut stage.world, managers, NAMESPACE, &config);
                self.later(OPERATE, Due::Operate);
            }
            Some(Due::Start(host)) => {
                if !self.stage.world.is_up(host) {
                    // Nothing here can fail to start; if it did, the end would notice.
                    drop(self.stage.world.start(host, &mut self.stage.town));
                }
            }
            Some(Due::RowsBack(outage)) if outage == self.trouble.outages => self.stage.town.shared.fail_rows([]),
            Some(Due::Publish(object)) if !self.trouble.calm => {
                self.stage.world.poke(self.stage.town.backend, |actor, now, out| {
                    if let Actor::Backend(backend) = actor {
                        backend.make(now, object, out);
                    }
                });
            }
            Some(Due::Strike | Due::RowsBack(_) | Due::Publish(_)) | None => {}
        }
    }

    /// Somebody begins to want an object: a version is made while that is on its way.
    pub(super) fn aim(&mut self, name: &Bytes) {
        let number = (0..OBJECTS).find(|number| object(*number) == name);
        if let Some(number) = number.filter(|_| !self.trouble.calm) {
            let wait = self.trouble.rng.between(0, 60);
            self.later(Duration::from_millis(wait), Due::Publish(number));
        }
    }

    fn strike(&mut self, kind: Kind) {
        let town = &self.stage.town;
        let node = self.trouble.rng.pick(&town.neighbours.nodes).copied().unwrap_or_default();
        let device = self.trouble.rng.pick(&town.devices).copied().unwrap_or_default();
        let a_while = Duration::from_millis(self.trouble.rng.between(500, 60_000));
        *self.trouble.counts.entry(kind.name()).or_default() += 1;
        self.stage.world.note_fault(node, kind.name());
        match kind {
            Kind::FailingRows => {
                let first = self.trouble.rng.below(256) as u8;
                let many = self.trouble.rng.between(1, 80) as u8;
                self.stage.town.shared.fail_rows((0..many).map(|more| first.wrapping_add(more)));
                self.trouble.outages += 1;
                self.later(a_while, Due::RowsBack(self.trouble.outages));
            }
            Kind::StoreOutage => {
                for server in self.stage.town.neighbours.servers.clone() {
                    self.stage.world.kill(server);
                    self.later(a_while / 4, Due::Start(server));
                }
            }
            Kind::NodeAway => {
                self.stage.world.kill(node);
                self.later(a_while, Due::Start(node));
            }
            Kind::Drain => {
                self.stage.world.poke(node, |actor, now, out| {
                    if let Actor::Node(node) = actor {
                        node.drain(now, out);
                    }
                });
            }
            Kind::Disconnection => {
                self.stage.world.poke(device, |actor, now, out| {
                    if let Actor::Device(device) = actor {
                        device.disconnect(now, out);
                    }
                });
            }
            Kind::NewInstallation => {
                self.stage.town.shared.install(device);
                self.begin_anew(device);
            }
            Kind::ClonedStorage => {
                let town = &self.stage.town;
                let same = |other: &&HostId| **other != device && caller(**other) == caller(device);
                let other = town.devices.iter().find(same).copied();
                if let Some(other) = other.filter(|other| town.shared.copy(device, *other)) {
                    self.begin_anew(other);
                }
            }
            Kind::Wipe => self.wipe(),
            Kind::Reset => self.reset(),
        }
    }

    fn state(&mut self, host: HostId, fact: Fact) {
        let at = self.stage.world.now();
        self.stated.push(Observed { at, host, fact: NotifyFact::Notify(fact) });
    }

    /// A device's storage is another one.
    fn begin_anew(&mut self, device: HostId) {
        self.stage.world.kill(device);
        self.state(device, Fact::Installed(device));
        self.later(Duration::from_millis(300), Due::Start(device));
    }

    /// The store is lost, the feed with it; that is noticed before it serves again (F3).
    fn wipe(&mut self) {
        for server in self.stage.town.neighbours.servers.clone() {
            self.stage.world.kill(server);
            self.stage.world.replace_disk(server);
            self.later(WIPED_FOR, Due::Start(server));
        }
        self.stage.town.shared.raise_incarnation();
        self.state(self.stage.town.cell, Fact::Wiped);
        self.enter_realm();
    }

    /// The backend is restored from a backup: versions begin anew, and the operator resets the application (F3). Once.
    fn reset(&mut self) {
        self.trouble.weights.retain(|(kind, _)| *kind != Kind::Reset);
        let generation = self.stage.town.shared.reset();
        self.state(self.stage.town.cell, Fact::Reset(generation));
        self.enter_realm();
    }

    /// The cell's cache is consistent: no node goes on with the old realm.
    fn enter_realm(&mut self) {
        for node in self.stage.town.neighbours.nodes.clone() {
            self.stage.world.poke(node, |actor, now, out| {
                if let Actor::Node(node) = actor {
                    node.hear_realm(now, out);
                }
            });
        }
    }
}
