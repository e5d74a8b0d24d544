//! What befalls Notify beside broken networks and machines: rows that fail, a store that is slow or away, a node that is away,
//! everything wiped, a backend restored from a backup, devices installed anew.

use super::backend::Backend;
use super::device::Device;
use super::fact::{Fact, NotifyFact, OBJECTS, object};
use super::forger;
use super::node::Node;
use super::shared::caller;
use super::town::{Actor, NAMESPACE};
use super::{Aim, Run, leftovers};
use crate::disk::DiskPace;
use crate::faults::draw;
use crate::invariants::Violation;
use crate::kernel::{Effect, HostId, Observed};
use crate::scenarios::placement::operator::{self, Operator};
use crate::scenarios::stage::PHASE;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Now, Outbox, Seeded};

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
    Tidy,
    Start(HostId),
    RowsBack(u64),
    Brisk,
    Publish(u64),
    Want(u64),
    Cue,
}

type Out = Outbox<Effect<NotifyFact>>;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FailingRows,
    SlowStore,
    StoreOutage,
    NodeAway,
    Drain,
    Disconnection,
    NewInstallation,
    ClonedStorage,
    Forgery,
    Wipe,
    Reset,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::FailingRows,
        Kind::SlowStore,
        Kind::StoreOutage,
        Kind::NodeAway,
        Kind::Drain,
        Kind::Disconnection,
        Kind::NewInstallation,
        Kind::ClonedStorage,
        Kind::Forgery,
        Kind::Wipe,
        Kind::Reset,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::FailingRows => "failing_rows",
            Kind::SlowStore => "slow_store",
            Kind::StoreOutage => "store_outage",
            Kind::NodeAway => "node_away",
            Kind::Drain => "drain",
            Kind::Disconnection => "disconnection",
            Kind::NewInstallation => "new_installation",
            Kind::ClonedStorage => "cloned_storage",
            Kind::Forgery => "forgery",
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

    /// None of its own.
    pub fn none(rng: &Seeded) -> Trouble {
        Trouble { weights: Vec::new(), ..Trouble::new(rng, false) }
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
        if self.director.is_some() {
            self.later(Duration::from_secs(10), Due::Cue);
        } else {
            self.later(leftovers::EVERY, Due::Tidy);
        }
    }

    /// Trouble is over: whatever fails is mended.
    pub(super) fn end_trouble(&mut self) {
        self.trouble.calm = true;
        self.stage.town.calm = true;
        self.stage.town.shared.fail_rows([]);
        self.speed_up();
        for host in self.stage.town.everybody() {
            self.stage.world.poke(host, |actor, _, _| match actor {
                Actor::Node(node) => node.calm(),
                Actor::Device(device) => device.calm(),
                Actor::Backend(backend) => backend.calm(),
                Actor::Cell(_) | Actor::Manager(_) | Actor::Store(_) | Actor::Forger(_) => {}
            });
        }
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.trouble.last_id += 1;
        self.trouble.due.insert(self.trouble.last_id, due);
        self.stage.world.remind(after, self.trouble.last_id);
    }

    pub(super) fn trouble_due(&mut self, id: u64) -> Result<(), Violation> {
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
            Some(Due::Tidy) => {
                self.tidy();
                self.later(leftovers::EVERY, Due::Tidy);
            }
            Some(Due::Start(host)) => {
                if !self.stage.world.is_up(host) {
                    // Nothing here can fail to start; if it did, the end would notice.
                    drop(self.stage.world.start(host, &mut self.stage.town));
                }
            }
            Some(Due::RowsBack(outage)) if outage == self.trouble.outages => self.stage.town.shared.fail_rows([]),
            Some(Due::Brisk) => self.speed_up(),
            Some(Due::Publish(object)) if !self.trouble.calm => {
                self.with_backend(|backend, now, out| backend.make(now, object, out));
            }
            Some(Due::Want(number)) if !self.trouble.calm => {
                let (devices, shared) = (self.stage.town.devices.clone(), self.stage.town.shared.clone());
                let others = devices.into_iter().filter(|device| !shared.intends(*device, &object(number)));
                let others: Vec<HostId> = others.collect();
                if let Some(device) = self.trouble.rng.pick(&others).copied() {
                    self.intend(device, object(number), true);
                }
            }
            Some(Due::Cue) => {
                if let Some(wait) = self.cue()? {
                    self.later(wait, Due::Cue);
                }
            }
            Some(Due::Strike | Due::RowsBack(_) | Due::Publish(_) | Due::Want(_)) | None => {}
        }
        Ok(())
    }

    /// Somebody begins to want an object: a version is made while that is on its way. Or a version is published: somebody
    /// begins to want it while that is on its way.
    pub(super) fn aim(&mut self, fact: &Fact) {
        let due = match (self.aim, fact) {
            (Some(Aim::Versions), Fact::Intends { object: name, intends: true, .. }) => {
                (0..OBJECTS).find(|number| object(*number) == name).map(Due::Publish)
            }
            (Some(Aim::Registrations), Fact::Published(publication)) => Some(Due::Want(publication.object)),
            _ => None,
        };
        if let Some(due) = due.filter(|_| !self.trouble.calm) {
            let wait = self.trouble.rng.between(0, 60);
            self.later(Duration::from_millis(wait), due);
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
            Kind::SlowStore => {
                for server in self.stage.town.neighbours.servers.clone() {
                    self.stage.world.set_pace(server, DiskPace::slow());
                }
                self.later(a_while, Due::Brisk);
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
                self.with_node(node, |node, now, out| node.drain(now, out));
            }
            Kind::Disconnection => {
                self.with_device(device, |device, now, out| device.disconnect(now, out));
            }
            Kind::NewInstallation => {
                self.stage.town.shared.install(device);
                self.begin_anew(device);
            }
            Kind::ClonedStorage => {
                self.copy_storage(device);
            }
            Kind::Forgery => self.forge(device),
            Kind::Wipe => self.wipe(),
            Kind::Reset => self.reset(),
        }
    }

    fn state(&mut self, host: HostId, fact: Fact) {
        let at = self.stage.world.now();
        self.stated.push(Observed { at, host, fact: NotifyFact::Notify(fact) });
    }

    /// Another device of the same user begins with a copy of this one's storage. False if there is none, or nothing to copy.
    pub(super) fn copy_storage(&mut self, device: HostId) -> bool {
        let town = &self.stage.town;
        let same = |other: &&HostId| **other != device && caller(**other) == caller(device);
        let other = town.devices.iter().find(same).copied();
        let other = other.filter(|other| town.shared.copy(device, *other));
        other.map(|other| self.begin_anew(other)).is_some()
    }

    /// Somebody presents a token of this device: as it is if that is another user's, otherwise forged.
    pub(super) fn forge(&mut self, device: HostId) {
        let town = &self.stage.town;
        let state = town.shared.installation(device, |it| it.state.clone());
        let token = state.as_ref().and_then(forger::token);
        let token = match caller(device) == caller(town.forger) {
            true => token.as_ref().and_then(forger::forge),
            false => token,
        };
        let Some(token) = token else { return };
        self.stage.world.poke(town.forger, |actor, _, out| {
            if let Actor::Forger(forger) = actor {
                forger.present(token, out);
            }
        });
    }

    /// A device's storage is another one.
    pub(super) fn begin_anew(&mut self, device: HostId) {
        self.stage.world.kill(device);
        self.state(device, Fact::Installed(device));
        self.later(Duration::from_millis(300), Due::Start(device));
    }

    /// The store is lost, the feed with it; that is noticed before it serves again (F3).
    pub(super) fn wipe(&mut self) {
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
            self.with_node(node, |node, now, out| node.hear_realm(now, out));
        }
    }

    /// The store is as fast as it was.
    fn speed_up(&mut self) {
        for server in self.stage.town.neighbours.servers.clone() {
            self.stage.world.set_pace(server, DiskPace::default());
        }
    }

    // ---- whom it strikes, if they run -------------------------------------------------------------------------------

    /// An application begins or ceases to want an object.
    pub(super) fn intend(&mut self, host: HostId, object: Bytes, intends: bool) {
        self.with_device(host, |device, now, out| device.intend(now, object, intends, out));
    }

    pub(super) fn with_node(&mut self, host: HostId, act: impl FnOnce(&mut Node, Now, &mut Out)) {
        self.stage.world.poke(host, |actor, now, out| {
            if let Actor::Node(node) = actor {
                act(node, now, out);
            }
        });
    }

    pub(super) fn with_device(&mut self, host: HostId, act: impl FnOnce(&mut Device, Now, &mut Out)) {
        self.stage.world.poke(host, |actor, now, out| {
            if let Actor::Device(device) = actor {
                act(device, now, out);
            }
        });
    }

    pub(super) fn with_backend(&mut self, act: impl FnOnce(&mut Backend, Now, &mut Out)) {
        self.stage.world.poke(self.stage.town.backend, |actor, now, out| {
            if let Actor::Backend(backend) = actor {
                act(backend, now, out);
            }
        });
    }
}
