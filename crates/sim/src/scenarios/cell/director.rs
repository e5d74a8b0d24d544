//! Aimed faults: each strikes at the moment at which a rule of the cell is needed.
//!
//! Random faults meet such moments rarely: a word of a deposed master that comes when it leads again, a client that dozes
//! with the renewal of its lease under way. The director waits for the moment and makes it happen, again and again, in an
//! otherwise quiet world; who, when exactly and for how long is drawn from the seed.

use super::fact::{CellFact, Fact};
use super::{Actor, Town};
use crate::invariants::LogFact;
use crate::kernel::{HostId, Observed, World};
use crate::network::CutId;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::Seeded;
use tidings_base::agreed::Role;
use tidings_wire::v1::cell_result;

/// How often a scene that waits for something looks whether it has come.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A renewal has left and its answer cannot be back: the network takes twice this at least.
const JUST_SENT: Duration = Duration::from_micros(100);
/// The answer has arrived at the dozing host, where it waits.
const ANSWERED: Duration = Duration::from_millis(20);
/// How often the leader is unseated until the one that is wanted leads again.
const ATTEMPTS: u32 = 6;
/// A scene that waits for longer than this in vain is over.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the director is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// Nothing is wrong.
    Rest,
    /// Somebody is cut off; the next cue ends it.
    Cut,
    /// R3: a client is about to renew its cache lease; it will doze with the answer under way.
    Renewing(HostId),
    /// It dozes, the answer waits for it; now it is cut off, so that nothing else reaches it.
    Dozing(HostId),
    /// R1: what this master asks of its log is held up.
    HeldUp(HostId),
    /// It is cut off from the others until one of them is master: so many there had been before.
    Deposed(HostId, u64),
    /// It is to lead again: what it asked then comes before it knows of its successor.
    Returning(HostId, u32),
    /// The leader is cut off so that another one leads.
    Unseating(HostId, HostId, u32),
}

/// Whose faults strike in `cell-directed` and `cell-guarded`.
pub(super) struct Director {
    rng: Seeded,
    /// Only whoever runs a command is cut off.
    guarded: bool,
    scene: Scene,
    leader: Option<HostId>,
    /// How many masters were agreed on.
    masters: u64,
    cuts: Vec<CutId>,
    /// Whose word is held back.
    held_back: Option<HostId>,
    waited: Duration,
    counts: BTreeMap<&'static str, u64>,
}

impl Director {
    /// A director whose choices the generator decides.
    pub(super) fn new(rng: &Seeded, guarded: bool) -> Director {
        Director {
            rng: rng.fork("director"),
            guarded,
            scene: Scene::Rest,
            leader: None,
            masters: 0,
            cuts: Vec::new(),
            held_back: None,
            waited: Duration::ZERO,
            counts: BTreeMap::new(),
        }
    }

    /// How often each scene was played.
    pub(super) fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Looks at what happens, to know who leads.
    pub(super) fn observe(&mut self, observed: &Observed<CellFact>) {
        match &observed.fact {
            CellFact::Log(LogFact::Role(Role::Leader { .. })) => self.leader = Some(observed.host),
            CellFact::Log(LogFact::Role(_)) if self.leader == Some(observed.host) => self.leader = None,
            CellFact::Cell(Fact::Applied(applied)) => {
                let new = matches!(applied.result.result, Some(cell_result::Result::NewMaster(_)));
                self.masters += u64::from(new);
            }
            _ => {}
        }
    }

    /// It is the director's turn; says when it is next.
    pub(super) fn cue(&mut self, world: &mut World<Actor>, town: &Town) -> Duration {
        match self.scene {
            Scene::Rest => self.begin(world, town),
            Scene::Cut => self.rest(world),
            Scene::Renewing(client) => {
                let time = self.millis(600, 950);
                self.count("doze", world, client);
                world.pause(client, time);
                self.scene = Scene::Dozing(client);
                ANSWERED
            }
            Scene::Dozing(client) => {
                let around: Vec<HostId> = town.servers.clone();
                self.cut(world, &[client], &around);
                self.scene = Scene::Cut;
                town.cache_lease + self.millis(1_500, 2_500)
            }
            Scene::HeldUp(master) => {
                self.scene = Scene::Deposed(master, self.masters);
                self.cut_from_replicas(world, town, master);
                LOOK_AGAIN
            }
            Scene::Deposed(master, before) => {
                if self.masters == before {
                    return self.wait(world);
                }
                self.heal(world);
                self.scene = Scene::Returning(master, ATTEMPTS);
                self.millis(500, 2_000)
            }
            Scene::Returning(master, left) => self.unseat(world, town, master, left),
            Scene::Unseating(master, unseated, left) => match self.leader {
                Some(leader) if leader != unseated => {
                    self.heal(world);
                    self.scene = Scene::Returning(master, left - 1);
                    self.millis(500, 1_500)
                }
                _ => self.wait(world),
            },
        }
    }

    /// Chooses what comes next; nothing without a leader.
    fn begin(&mut self, world: &mut World<Actor>, town: &Town) -> Duration {
        let Some(leader) = self.leader else { return LOOK_AGAIN };
        self.waited = Duration::ZERO;
        if self.guarded {
            return self.cut_off(world, town);
        }
        match self.rng.below(3) {
            0 => self.alone_together(world, town, leader),
            1 => self.await_renewal(world, town),
            _ => {
                let held = world.poke(leader, |actor, _, _| {
                    if let Actor::Server(server) = actor {
                        server.hold_back();
                    }
                });
                if !held {
                    return LOOK_AGAIN;
                }
                self.held_back = Some(leader);
                self.count("late_word", world, leader);
                self.scene = Scene::HeldUp(leader);
                self.millis(300, 1_500)
            }
        }
    }

    /// R2, fail-over step 2: the master is cut off together with one client, to which it is the master still. The others
    /// elect another one, and write.
    fn alone_together(&mut self, world: &mut World<Actor>, town: &Town, leader: HostId) -> Duration {
        let clients: Vec<HostId> = town.clients.iter().map(|(host, _)| *host).collect();
        let Some(client) = self.rng.pick(&clients).copied() else { return LOOK_AGAIN };
        self.count("alone_together", world, leader);
        let all = town.servers.iter().chain(&clients).chain([&town.resource]);
        let others: Vec<HostId> = all.copied().filter(|host| *host != leader && *host != client).collect();
        self.cut(world, &[leader, client], &others);
        self.scene = Scene::Cut;
        self.millis(6_000, 12_000)
    }

    /// R10: a client runs a command under its lock and is cut off for longer than its lease and the lock-delay last.
    fn cut_off(&mut self, world: &mut World<Actor>, town: &Town) -> Duration {
        let runs = |host: &HostId| match world.process(*host) {
            Some(Actor::Client(client)) => client.runs_a_command(),
            _ => false,
        };
        let busy: Vec<HostId> = town.clients.iter().map(|(host, _)| *host).filter(runs).collect();
        let Some(client) = self.rng.pick(&busy).copied() else { return LOOK_AGAIN };
        self.count("cut_off", world, client);
        self.cut(world, &[client], &town.servers.clone());
        self.scene = Scene::Cut;
        self.millis(8_000, 20_000)
    }

    fn await_renewal(&mut self, world: &mut World<Actor>, town: &Town) -> Duration {
        let clients: Vec<HostId> = town.clients.iter().map(|(host, _)| *host).collect();
        let Some(client) = self.rng.pick(&clients).copied() else { return LOOK_AGAIN };
        let next = match world.process(client) {
            Some(Actor::Client(process)) => process.next_renewal(),
            _ => None,
        };
        let Some(at) = next.map(|at| world.clock(client).when(at)) else { return LOOK_AGAIN };
        self.scene = Scene::Renewing(client);
        at.since(world.now()) + JUST_SENT
    }

    /// Cuts off whoever leads, unless it is the wanted one, which has come back then.
    fn unseat(&mut self, world: &mut World<Actor>, town: &Town, master: HostId, left: u32) -> Duration {
        match self.leader {
            Some(leader) if leader == master || left == 0 => self.rest(world),
            Some(leader) => {
                self.scene = Scene::Unseating(master, leader, left);
                self.cut_from_replicas(world, town, leader);
                LOOK_AGAIN
            }
            None => self.wait(world),
        }
    }

    fn wait(&mut self, world: &mut World<Actor>) -> Duration {
        self.waited += LOOK_AGAIN;
        if self.waited > PATIENCE {
            return self.rest(world);
        }
        LOOK_AGAIN
    }

    /// The scene is over: everything heals.
    fn rest(&mut self, world: &mut World<Actor>) -> Duration {
        self.heal(world);
        self.scene = Scene::Rest;
        // If the moment never came.
        if let Some(host) = self.held_back.take() {
            world.poke(host, |actor, now, _| {
                if let Actor::Server(server) = actor {
                    server.calm(now);
                }
            });
        }
        self.millis(3_000, 6_000)
    }

    fn heal(&mut self, world: &mut World<Actor>) {
        self.waited = Duration::ZERO;
        self.cuts.drain(..).for_each(|cut| world.network.heal(cut));
    }

    fn cut_from_replicas(&mut self, world: &mut World<Actor>, town: &Town, host: HostId) {
        let others: Vec<HostId> = town.servers.iter().copied().filter(|other| *other != host).collect();
        self.cut(world, &[host], &others);
    }

    fn cut(&mut self, world: &mut World<Actor>, left: &[HostId], right: &[HostId]) {
        let pairs = left.iter().flat_map(|from| right.iter().flat_map(move |to| [(*from, *to), (*to, *from)]));
        self.cuts.push(world.network.cut(pairs.collect()));
    }

    fn count(&mut self, scene: &'static str, world: &mut World<Actor>, host: HostId) {
        *self.counts.entry(scene).or_default() += 1;
        world.note_fault(host, scene);
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.rng.between(least, most))
    }
}
