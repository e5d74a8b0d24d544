//! One run of a scenario of the cell: the world, what happens to it, and what is claimed of it.

use super::director::Director;
use super::fact::{Answer, CellFact, Fact};
use super::recorded::Sightseer;
use super::seat::{self, Habits};
use super::server;
use super::{Actor, CLOSED, DIRECTORIES, DOORS, EPHEMERALS, FILES, LEASE, LOCKS, ROOM, ROOM_FILES, Town, cell_claims};
use crate::faults::{Chaos, Targets};
use crate::invariants::requests_are_understood::RequestsAreUnderstood;
use crate::invariants::{
    Claims, LogFact, Violation, log_claims, service_returns_after_faults, sound_disks_are_accepted,
};
use crate::kernel::{HostId, Observed, World};
use crate::model::Temper;
use crate::mutant::Mutant;
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::stage::{Outline, PHASE, Play, Rest, Stage};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::Seeded;
use tidings_base::agreed::Role;

/// Client hosts.
const CLIENTS: usize = 4;
/// The short lease under which anything cached may be used. In some seeds it is longer than an election takes, so that a new
/// master meets copies of its predecessor's time.
const CACHE_LEASE: [Duration; 4] =
    [Duration::from_millis(1_000), Duration::from_millis(1_000), Duration::from_secs(2), Duration::from_secs(4)];
/// How long an application waits in jeopardy.
const GRACE: Duration = Duration::from_secs(12);
/// How long an application thinks between two calls, on average.
const THINK: [Duration; 4] =
    [Duration::from_millis(60), Duration::from_millis(200), Duration::from_millis(200), Duration::from_millis(800)];
/// Applications go on for so long after the faults, to see that they are served again.
const AFTERGLOW: Duration = Duration::from_secs(40);
/// The director's reminder.
const CUE: u64 = PHASE + 1;
/// The director waits for so long before the first scene: everybody is to have something cached.
const PROLOGUE: Duration = Duration::from_secs(5);

/// What is special about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Random,
    Directed,
    Guarded,
}

impl Kind {
    fn scenario(self) -> &'static str {
        match self {
            Kind::Random => "cell",
            Kind::Directed => "cell-directed",
            Kind::Guarded => "cell-guarded",
        }
    }
}

/// One run.
struct Run {
    kind: Kind,
    stage: Stage<Actor, Town>,
    /// Aimed faults instead of the random ones.
    director: Option<Director>,
    log: Claims<LogFact>,
    cell: Claims<Fact>,
    operations: u64,
    understood: RequestsAreUnderstood,
    /// Operations answered since the heal.
    served: u64,
    healed: bool,
    /// Facts about the cell, if somebody wants them.
    record: Option<Vec<Fact>>,
}

/// Runs one seed.
pub(in crate::scenarios) fn run(seed: u64, options: &Options) -> Report {
    run_kind(seed, options, Kind::Random)
}

/// Runs one seed under aimed faults.
pub(in crate::scenarios) fn run_directed(seed: u64, options: &Options) -> Report {
    run_kind(seed, options, Kind::Directed)
}

/// Runs one seed with a directory behind an access list, and commands whose hosts are cut off.
pub(in crate::scenarios) fn run_guarded(seed: u64, options: &Options) -> Report {
    run_kind(seed, options, Kind::Guarded)
}

fn run_kind(seed: u64, options: &Options, kind: Kind) -> Report {
    let mut run = Run::new(seed, options, kind);
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

/// Runs one seed without the claims about the cell, and keeps what clients asked and were told, in order: for checkers
/// that know nothing of the log.
pub fn run_recorded(seed: u64, options: &Options, directed: bool) -> (Report, Vec<Fact>) {
    let mut run = Run::new(seed, options, if directed { Kind::Directed } else { Kind::Random });
    run.cell = Claims::new(Vec::new());
    run.record = Some(Vec::new());
    let outcome = run.play(options.simulated);
    let record = run.record.take().unwrap_or_default();
    (run.report(seed, options, outcome.err()), record)
}

impl Run {
    fn new(seed: u64, options: &Options, kind: Kind) -> Run {
        let (directed, visits) = (kind != Kind::Random, kind == Kind::Guarded);
        let rng = Seeded::new(seed).fork("cell");
        let mut own = rng.fork("town");
        let mut world = World::new(&rng, options.trace);
        let replicas = if directed { 3 } else { [3, 3, 3, 3, 3, 3, 5, 1][own.below(8) as usize] };
        let servers: Vec<HostId> = (0..replicas).map(|_| world.add_host()).collect();
        let clients: Vec<(HostId, usize)> =
            (0..CLIENTS).map(|_| (world.add_host(), own.between(1, 2) as usize)).collect();
        let resource = world.add_host();
        let talkers: Vec<HostId> = clients.iter().map(|(host, _)| *host).collect();
        talkers.iter().chain([&resource]).for_each(|host| world.network.connect(*host));
        let known = ["/", "/acl", DOORS, CLOSED].iter().chain(DIRECTORIES).chain(LOCKS).chain(FILES).chain(EPHEMERALS);
        let known = known.chain([ROOM].iter().chain(ROOM_FILES).filter(|_| visits));
        let sights = Arc::new(Mutex::new(Sightseer::new(known.map(|path| path.to_string()))));
        let temper = Temper {
            abdicates: [0, 30, 100, 1_000][own.below(4) as usize],
            hasty: [0, 5, 20, 50][own.below(4) as usize],
        };
        let temper = if directed { Temper { abdicates: 0, hasty: 0 } } else { temper };
        let think = if directed { THINK[0] } else { THINK[own.below(4) as usize] };
        // Aimed faults need the shortest for some rules and the longest for others.
        let cache_lease = CACHE_LEASE[if directed { 3 * own.below(2) } else { own.below(4) } as usize];
        let herds = own.one_in(8) && !directed;
        let principals: Arc<[String]> = talkers.iter().map(|host| server::caller(*host).principal).collect();
        let renumber_after = rng.fork("renumber").one_in(2).then_some(8);
        let habits = talkers.iter().map(|host| {
            let lease = Duration::from_millis(own.between(3_000, 4_000));
            let forges = own.one_in(6);
            let mutant = options.mutant.and_then(Mutant::of_cell);
            let principals = principals.clone();
            (*host, Habits { lease, grace: GRACE, think, herds, forges, visits, renumber_after, principals, mutant })
        });
        let habits = habits.collect();
        let chaos = Chaos::new(&rng, Targets { replicas: servers.clone(), clients: talkers, lease: LEASE });
        let (mutant, calm, afterglow) = (options.mutant, directed, false);
        let town = Town { servers, clients, resource, habits, sights, cache_lease, temper, mutant, calm, afterglow };
        Run {
            kind,
            stage: Stage { world, town, chaos },
            director: directed.then(|| Director::new(&rng, visits)),
            log: log_claims(),
            cell: cell_claims(),
            operations: 0,
            understood: RequestsAreUnderstood::default(),
            served: 0,
            healed: false,
            record: None,
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        let Town { servers, clients, resource, .. } = &self.stage.town;
        let clients = clients.iter().map(|(host, _)| *host);
        self.start(servers.iter().copied().chain(clients).chain([*resource]).collect())?;
        match self.director {
            Some(_) => self.stage.world.remind(PROLOGUE, CUE),
            None => self.stage.chaos.begin(&mut self.stage.world),
        }
        self.until(faults)?;
        self.heal();
        self.serve_again()?;
        self.settle()?;
        self.last_look()
    }

    /// The faults are over, those in the drivers too.
    fn heal(&mut self) {
        self.stage.chaos.heal(&mut self.stage.world);
        self.stage.town.calm = true;
        for host in self.stage.town.servers.clone() {
            self.stage.world.poke(host, |actor, now, _| {
                if let Actor::Server(server) = actor {
                    server.calm(now);
                }
            });
        }
        self.healed = true;
    }

    fn count(&mut self, fact: &Fact) -> Result<(), Violation> {
        match fact {
            Fact::Asked { .. } => self.operations += 1,
            Fact::Told { answer: Answer::Broken(what), .. } => {
                return Err(self.understood.broken(what));
            }
            Fact::Told { answer: Answer::Unknown, .. } => {}
            Fact::Told { .. } => {
                self.understood.understood();
                self.served += u64::from(self.healed);
            }
            _ => {}
        }
        Ok(())
    }

    /// After the heal clients must be served again within bounds.
    fn serve_again(&mut self) -> Result<(), Violation> {
        self.mend(LEASE)?;
        self.until(LEASE * 10)?;
        self.served = 0;
        let before: Vec<u64> = self.seats().map(|(_, seat)| seat.served()).collect();
        self.until(AFTERGLOW)?;
        self.seats().zip(before).try_for_each(|((host, seat), before)| {
            let waits_for = seat.script().waits_for();
            service_returns_after_faults::served(host, seat.served() - before, AFTERGLOW, &waits_for)
        })
    }

    fn seats(&self) -> impl Iterator<Item = (HostId, &seat::Seat)> {
        let clients = self.stage.town.clients.iter().filter_map(|(host, _)| match self.stage.world.process(*host) {
            Some(Actor::Client(client)) => Some((*host, client)),
            _ => None,
        });
        clients.flat_map(|(host, client)| client.seats().iter().map(move |seat| (host, seat)))
    }

    /// Clients stop; everything must come to rest.
    fn settle(&mut self) -> Result<(), Violation> {
        self.stage.town.afterglow = true;
        for (host, _) in self.stage.town.clients.clone() {
            self.stage.world.poke(host, |actor, _, _| {
                if let Actor::Client(client) = actor {
                    client.stop();
                }
            });
        }
        let within = self.stage.chaos.patience();
        self.come_to_rest(&Rest { every: LEASE, looks: 1, within, claim: "everything_comes_to_rest" })
    }

    fn last_look(&mut self) -> Result<(), Violation> {
        let servers = self.stage.town.servers.clone();
        let states = self.stage.last_states(&servers, |actor| match actor {
            Actor::Server(server) => server.member_mut().state_digest(),
            _ => Err("it is no server".to_string()),
        })?;
        for (host, index, state) in states {
            let fact = LogFact::Final { index, state };
            self.stage.show(self.stage.world.now(), host, &fact, &mut self.log)?;
        }
        match self.director {
            // Nobody is restarted there.
            Some(_) => self.log.conclude()?,
            None => self.log.finish()?,
        }
        self.cell.conclude()
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let mut invariants = self.log.counts();
        invariants.extend(self.cell.counts());
        invariants.insert(sound_disks_are_accepted::NAME.to_string(), self.stage.chaos.starts());
        invariants.insert(RequestsAreUnderstood::NAME.to_string(), self.understood.checks());
        invariants.insert(service_returns_after_faults::NAME.to_string(), self.served);
        let outline = Outline {
            scenario: self.kind.scenario(),
            operations: self.operations,
            answered: self.understood.checks(),
            faults: self.director.as_ref().map(|director| director.counts().clone()).unwrap_or_default(),
            invariants,
        };
        let replicas = [(self.stage.town.servers.len(), 1)].into();
        Report { replicas, ..self.stage.report(seed, options, found, outline) }
    }
}

impl Play for Run {
    type Actor = Actor;
    type Town = Town;
    const STARTS: &'static str = sound_disks_are_accepted::NAME;

    fn stage(&mut self) -> &mut Stage<Actor, Town> {
        &mut self.stage
    }

    fn observe(&mut self, observed: Observed<CellFact>) -> Result<(), Violation> {
        if let Some(director) = &mut self.director {
            director.observe(&observed);
        }
        match observed.fact {
            CellFact::Log(fact) => {
                self.stage.show(observed.at, observed.host, &fact, &mut self.log)?;
                if matches!(fact, LogFact::Role(Role::Leader { .. })) && self.director.is_none() {
                    self.stage.chaos.provoke(&mut self.stage.world, observed.host);
                }
            }
            CellFact::Cell(fact) => {
                self.stage.show(observed.at, observed.host, &fact, &mut self.cell)?;
                if matches!(fact, Fact::Told { answer: Answer::Done { .. }, .. }) && self.director.is_none() {
                    self.stage.chaos.acknowledged(&mut self.stage.world);
                }
                self.count(&fact)?;
                if let Some(record) = &mut self.record {
                    record.push(fact);
                }
            }
        }
        Ok(())
    }

    fn reminded(&mut self, _id: u64) -> Result<(), Violation> {
        if let Some(director) = self.director.as_mut().filter(|_| !self.healed) {
            let wait = director.cue(&mut self.stage.world, &self.stage.town);
            self.stage.world.remind(wait, CUE);
        }
        Ok(())
    }

    /// What keeps the world from being at rest.
    fn unsettled(&self) -> Option<String> {
        if let Some((host, seat)) = self.seats().find(|(_, seat)| !seat.script().is_quiet()) {
            return Some(format!("{host} is not quiet: {}", seat.script().waits_for()));
        }
        let alive: BTreeSet<u64> = self.seats().map(|(_, seat)| seat.script().session()).collect();
        let mut position = None;
        for host in &self.stage.town.servers {
            let Some(Actor::Server(server)) = self.stage.world.process(*host) else {
                return Some(format!("{host} does not run"));
            };
            let applied = server.member().commit();
            if *position.get_or_insert(applied) != applied {
                return Some(format!("{host} is at {applied}, another replica at {position:?}"));
            }
            let state = server.state().read();
            let agreed: BTreeSet<u64> = state.sessions().map(|(session, _)| session.0).collect();
            if agreed != alive {
                return Some(format!("{host} knows sessions {agreed:?}, alive are {alive:?}"));
            }
            if let Some((place, lock)) = state.locks().next() {
                return Some(format!("{host} has {place:?} as {lock:?}"));
            }
            if let Some(left) = state.reapable().first() {
                return Some(format!("{host} has not reaped {left:?}"));
            }
        }
        None
    }
}
