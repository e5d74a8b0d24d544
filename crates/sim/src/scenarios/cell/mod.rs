//! Scenario `cell`: the lock service whole, from applications over sessions and masters to the agreed state.
//!
//! ```text
//!   client host: script ⇄ Session ┐            server: Master ⇄ replica (model) ⇄ log on a simulated disk
//!                script ⇄ Session ┼─ line ─▶               └─ Namespace ─┘
//!                       LinkLease ┘            resource: verifies sequencers
//! ```
//! Most seeds run three replicas, some one or five. Applications read through caches, write, compare and set, create and
//! delete, list, watch, take locks and act under them; hosts crash, pause, drift and are cut off; sessions end. After the
//! faults everything must converge: the same state at all replicas, every session served, nothing queued, nothing held.

pub mod client;
mod doing;
pub mod fact;
mod forger;
pub mod history;
pub mod line;
pub mod recorded;
pub mod resource;
mod script;
pub mod seat;
pub mod server;

use crate::clock::SimTime;
use crate::faults::{Chaos, Site, Targets};
use crate::invariants::a_masters_word_ends_with_its_epoch::AMastersWordEndsWithItsEpoch;
use crate::invariants::acknowledged_calls_take_effect_once::AcknowledgedCallsTakeEffectOnce;
use crate::invariants::an_event_follows_the_last_change::AnEventFollowsTheLastChange;
use crate::invariants::answers_fit_the_agreed_order::AnswersFitTheAgreedOrder;
use crate::invariants::changes_are_announced::ChangesAreAnnounced;
use crate::invariants::checked_resource_never_goes_back::CheckedResourceNeverGoesBack;
use crate::invariants::ended_sessions_stay_ended::EndedSessionsStayEnded;
use crate::invariants::ephemerals_end_with_their_sessions::EphemeralsEndWithTheirSessions;
use crate::invariants::forged_handles_open_nothing::ForgedHandlesOpenNothing;
use crate::invariants::lost_locks_are_held_back::LostLocksAreHeldBack;
use crate::invariants::no_cached_read_after_its_write_returned::NoCachedReadAfterItsWriteReturned;
use crate::invariants::one_holder_per_exclusive_lock::OneHolderPerExclusiveLock;
use crate::invariants::sequencers_die_with_their_locks::SequencersDieWithTheirLocks;
use crate::invariants::sequencers_grow::SequencersGrow;
use crate::invariants::sessions_end_only_after_their_leases::SessionsEndOnlyAfterTheirLeases;
use crate::invariants::waiters_are_served_in_order::WaitersAreServedInOrder;
use crate::invariants::{Claims, LogFact, Sight, Violation, log_claims};
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat as Place, Step, World};
use crate::model::{self, Temper};
use crate::mutant::Mutant;
use crate::report::{Failure, Report};
use crate::runner::Options;
use bytes::Bytes;
use client::Client;
use fact::{Answer, CellFact, Fact};
use recorded::{SharedSightseer, Sightseer};
use resource::Resource;
use seat::Habits;
use server::{REPLICA_MESSAGE, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};

/// Directories that every application makes sure of.
pub(crate) const DIRECTORIES: &[&str] = &["/d", "/e"];
/// Files whose locks are taken; they are never deleted.
pub(crate) const LOCKS: &[&str] = &["/lock-a", "/d/lock-b"];
/// Files that come and go.
pub(crate) const FILES: &[&str] = &["/a", "/b", "/c", "/d/a", "/d/b"];
/// Files that end with their openers.
pub(crate) const EPHEMERALS: &[&str] = &["/e/one", "/e/two"];
/// Names that are mostly absent, more than a master remembers for one session.
pub(crate) const HERD: u64 = 4_300;
/// Client hosts.
const CLIENTS: usize = 4;
/// The leader's lease. Pauses, elections and patience are counted in it.
const LEASE: Duration = Duration::from_secs(2);
/// The short lease under which anything cached may be used. In some seeds it is longer than an election takes, so that a new
/// master meets copies of its predecessor's time.
const CACHE_LEASE: [Duration; 4] =
    [Duration::from_millis(1_000), Duration::from_millis(1_000), Duration::from_secs(2), Duration::from_secs(4)];
/// The longest that an acquire is held before its client is told to ask again.
const WAIT: Duration = Duration::from_secs(4);
/// A session without a handle and without a call for so long is ended.
const IDLE: Duration = Duration::from_secs(60);
/// How old the newest key may become: several are used in a run.
const ROTATE: Duration = Duration::from_secs(180);
/// How long an application waits in jeopardy.
const GRACE: Duration = Duration::from_secs(12);
/// How long an application thinks between two calls, on average.
const THINK: [Duration; 4] =
    [Duration::from_millis(60), Duration::from_millis(200), Duration::from_millis(200), Duration::from_millis(800)];
/// Applications go on for so long after the faults, to see that they are served again.
const AFTERGLOW: Duration = Duration::from_secs(40);
/// Reminders with this number are the scenario's own.
const LOOK: u64 = 1 << 40;

/// A process of this scenario.
pub enum Actor {
    /// A replica with its master.
    Server(Box<Server>),
    /// A client host.
    Client(Box<Client>),
    /// What locks protect.
    Resource(Box<Resource>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<CellFact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<CellFact>>) {
        match (self, input) {
            (Actor::Server(server), Event::DiskDone { .. }) => server.disk_done(now, out),
            (Actor::Server(server), Event::Message { from, bytes }) if is_replica_message(&bytes) => {
                server.replica_message(now, from, bytes.slice(1..), out);
            }
            (Actor::Server(server), Event::Message { from, bytes }) => server.client_message(now, from, &bytes, out),
            (Actor::Client(client), Event::Message { from, bytes }) => client.receive(now, from, &bytes, out),
            (Actor::Resource(resource), Event::Message { from, bytes }) => resource.receive(now, from, &bytes, out),
            (_, Event::DiskDone { .. }) => {}
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<CellFact>>) {
        match self {
            Actor::Server(server) => server.wake(now, out),
            Actor::Client(client) => client.wake(now, out),
            Actor::Resource(resource) => resource.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Server(server) => server.deadline(),
            Actor::Client(client) => client.deadline(),
            Actor::Resource(resource) => resource.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = CellFact;
}

fn is_replica_message(bytes: &Bytes) -> bool {
    bytes.first() == Some(&REPLICA_MESSAGE)
}

/// Who lives where.
struct Town {
    servers: Vec<HostId>,
    /// With the number of sessions there.
    clients: Vec<(HostId, usize)>,
    resource: HostId,
    habits: BTreeMap<HostId, Habits>,
    sights: SharedSightseer,
    cache_lease: Duration,
    temper: Temper,
    mutant: Option<Mutant>,
    calm: bool,
    afterglow: bool,
}

impl Town {
    fn server(&self, seat: Place, out: &mut Outbox<Effect<CellFact>>) -> Result<Server, NoStart> {
        let config = model::Config {
            id: server::node_of(seat.host),
            members: self.servers.iter().copied().map(server::node_of).collect(),
            lease: LEASE,
            picture_every: 400,
            life: seat.replacements,
            temper: self.temper,
            mutant: self.mutant,
        };
        let mut rng = seat.rng.fork("master");
        let mut secret = [0; 32];
        secret.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&rng.next_u64().to_le_bytes()));
        let options = tidings_cell::master::Options {
            node: config.id,
            secret,
            lease: Duration::from_secs(3),
            cache_lease: self.cache_lease,
            idle: IDLE,
            wait: WAIT,
            rotate: ROTATE,
            mutant: self.mutant.and_then(Mutant::of_cell),
        };
        Server::start(config, options, self.sights.clone(), seat.disk, !self.calm, seat.now, seat.rng, out)
    }
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Place, out: &mut Outbox<Effect<CellFact>>) -> Result<Actor, NoStart> {
        let servers = self.servers.clone();
        if self.servers.contains(&seat.host) {
            return Ok(Actor::Server(Box::new(self.server(seat, out)?)));
        }
        let Some((host, seats)) = self.clients.iter().find(|(host, _)| *host == seat.host).copied() else {
            return Ok(Actor::Resource(Box::new(Resource::new(servers, seat.rng, seat.starts))));
        };
        let Some(habits) = self.habits.get(&host) else {
            return Err(NoStart::Failed("nobody lives here".to_string()));
        };
        let mut client =
            Client::start(host, seat.starts, servers, self.resource, seats, habits, seat.now, seat.rng, out);
        if self.afterglow {
            client.stop();
        }
        Ok(Actor::Client(Box::new(client)))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, process: &Actor) -> bool {
        match process {
            Actor::Server(server) => !server.replica().storage().ballot().learner,
            Actor::Client(_) | Actor::Resource(_) => true,
        }
    }
}

/// The claims about the cell.
pub fn cell_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<OneHolderPerExclusiveLock>::default(),
        Box::<CheckedResourceNeverGoesBack>::default(),
        Box::<SequencersGrow>::default(),
        Box::<SequencersDieWithTheirLocks>::default(),
        Box::<NoCachedReadAfterItsWriteReturned>::default(),
        Box::<AnswersFitTheAgreedOrder>::default(),
        Box::<AcknowledgedCallsTakeEffectOnce>::default(),
        Box::<SessionsEndOnlyAfterTheirLeases>::default(),
        Box::<EndedSessionsStayEnded>::default(),
        Box::<AnEventFollowsTheLastChange>::default(),
        Box::<EphemeralsEndWithTheirSessions>::default(),
        Box::<LostLocksAreHeldBack>::default(),
        Box::<WaitersAreServedInOrder>::default(),
        Box::<ForgedHandlesOpenNothing>::default(),
        Box::<ChangesAreAnnounced>::default(),
        Box::<AMastersWordEndsWithItsEpoch>::default(),
    ])
}

/// One run.
struct Run {
    world: World<Actor>,
    town: Town,
    chaos: Chaos,
    log: Claims<LogFact>,
    cell: Claims<Fact>,
    operations: u64,
    answered: u64,
    /// Operations answered since the heal.
    served: u64,
    healed: bool,
    /// Facts of clients and grants, if somebody wants them.
    record: Option<Vec<(SimTime, Fact)>>,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    let mut run = Run::new(seed, options);
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

/// Runs one seed and keeps what clients asked and were told, for other checkers.
pub fn run_recorded(seed: u64, options: &Options) -> (Report, Vec<(SimTime, Fact)>) {
    let mut run = Run::new(seed, options);
    run.record = Some(Vec::new());
    let outcome = run.play(options.simulated);
    let record = run.record.take().unwrap_or_default();
    (run.report(seed, options, outcome.err()), record)
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("cell");
        let mut own = rng.fork("town");
        let mut world = World::new(&rng, options.trace);
        let replicas = [3, 3, 3, 3, 3, 3, 5, 1][own.below(8) as usize];
        let servers: Vec<HostId> = (0..replicas).map(|_| world.add_host()).collect();
        let clients: Vec<(HostId, usize)> =
            (0..CLIENTS).map(|_| (world.add_host(), own.between(1, 2) as usize)).collect();
        let resource = world.add_host();
        let talkers: Vec<HostId> = clients.iter().map(|(host, _)| *host).collect();
        talkers.iter().chain([&resource]).for_each(|host| world.network.connect(*host));
        let temper = Temper {
            abdicates: [0, 30, 100, 1_000][own.below(4) as usize],
            hasty: [0, 5, 20, 50][own.below(4) as usize],
        };
        let think = THINK[own.below(4) as usize];
        let cache_lease = CACHE_LEASE[own.below(4) as usize];
        let herds = own.one_in(8);
        let habits = talkers.iter().map(|host| {
            let lease = Duration::from_millis(own.between(3_000, 4_000));
            let forges = own.one_in(6);
            let mutant = options.mutant.and_then(Mutant::of_cell);
            (*host, Habits { lease, grace: GRACE, think, herds, forges, mutant })
        });
        let habits = habits.collect();
        let known = ["/", "/acl"].iter().chain(DIRECTORIES).chain(LOCKS).chain(FILES).chain(EPHEMERALS);
        let sights = Arc::new(Mutex::new(Sightseer::new(known.map(|path| path.to_string()))));
        let chaos = Chaos::new(&rng, Targets { replicas: servers.clone(), clients: talkers, lease: LEASE });
        let (mutant, calm, afterglow) = (options.mutant, false, false);
        Run {
            world,
            town: Town { servers, clients, resource, habits, sights, cache_lease, temper, mutant, calm, afterglow },
            chaos,
            log: log_claims(),
            cell: cell_claims(),
            operations: 0,
            answered: 0,
            served: 0,
            healed: false,
            record: None,
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        let clients = self.town.clients.iter().map(|(host, _)| *host);
        let hosts: Vec<HostId> = self.town.servers.iter().copied().chain(clients).chain([self.town.resource]).collect();
        for host in hosts {
            let started = self.world.start(host, &mut self.town);
            started.map_err(|why| Violation::new("sound_disks_are_accepted", format!("{host}: {why}")))?;
        }
        self.chaos.begin(&mut self.world);
        self.until(faults)?;
        self.heal();
        self.serve_again()?;
        self.settle()?;
        self.last_look()
    }

    /// The faults are over, those in the drivers too.
    fn heal(&mut self) {
        self.chaos.heal(&mut self.world);
        self.town.calm = true;
        for host in self.town.servers.clone() {
            self.world.poke(host, |actor, now, _| {
                if let Actor::Server(server) = actor {
                    server.calm(now);
                }
            });
        }
        self.healed = true;
    }

    /// Lets the world run for a time.
    fn until(&mut self, time: Duration) -> Result<(), Violation> {
        self.world.remind(time, LOOK);
        loop {
            let step = self.world.step();
            self.watch()?;
            match step {
                Step::Reminder(LOOK) => return Ok(()),
                Step::Reminder(id) => {
                    let done = self.chaos.reminded(&mut self.world, &mut self.town, id);
                    done.map_err(|what| Violation::new("sound_disks_are_accepted", what))?;
                    self.watch()?;
                }
                Step::Exited(host, _) => self.chaos.exited(&mut self.world, host),
                Step::Ran => {}
                Step::Idle => return Err(Violation::new("time_goes_on", "nothing is left to happen")),
            }
        }
    }

    /// Shows every fact to the claims about it.
    fn watch(&mut self) -> Result<(), Violation> {
        for observed in self.world.drain_facts() {
            let world = &self.world;
            let clock = |host: HostId| world.is_up(host).then(|| world.clock(host).mono(world.now()));
            let sight = Sight { at: observed.at, host: observed.host, clock: &clock };
            match observed.fact {
                CellFact::Log(fact) => {
                    self.log.observe(&sight, &fact)?;
                    if matches!(fact, LogFact::Role(Role::Leader { .. })) {
                        self.chaos.provoke(&mut self.world, observed.host);
                    }
                }
                CellFact::Cell(fact) => {
                    self.cell.observe(&sight, &fact)?;
                    if matches!(fact, Fact::Told { answer: Answer::Done { .. }, .. }) {
                        self.chaos.acknowledged(&mut self.world);
                    }
                    self.count(&fact)?;
                    if let Some(record) = &mut self.record {
                        record.push((observed.at, fact));
                    }
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, fact: &Fact) -> Result<(), Violation> {
        match fact {
            Fact::Asked { .. } => self.operations += 1,
            Fact::Told { answer: Answer::Broken(what), .. } => {
                return Err(Violation::new("requests_are_understood", what.clone()));
            }
            Fact::Told { answer: Answer::Unknown, .. } => {}
            Fact::Told { .. } => {
                self.answered += 1;
                self.served += u64::from(self.healed);
            }
            _ => {}
        }
        Ok(())
    }

    /// After the heal clients must be served again within bounds.
    fn serve_again(&mut self) -> Result<(), Violation> {
        let begin = self.world.now();
        while self.chaos.is_mending(&self.world, &self.town) {
            if self.world.now().since(begin) > self.chaos.patience() {
                return Err(Violation::new("service_returns_after_faults", "a replica never became whole again"));
            }
            self.until(LEASE)?;
        }
        self.until(LEASE * 10)?;
        self.served = 0;
        let before: Vec<u64> = self.seats().map(|(_, seat)| seat.served()).collect();
        self.until(AFTERGLOW)?;
        let late = self.seats().zip(before).find(|((_, seat), before)| seat.served() < before + 3);
        match late {
            Some(((host, seat), _)) => {
                let what = seat.script().waits_for();
                let what = format!("{host} was not served in {AFTERGLOW:?} without faults: {what}");
                Err(Violation::new("service_returns_after_faults", what))
            }
            None => Ok(()),
        }
    }

    fn seats(&self) -> impl Iterator<Item = (HostId, &seat::Seat)> {
        let clients = self.town.clients.iter().filter_map(|(host, _)| match self.world.process(*host) {
            Some(Actor::Client(client)) => Some((*host, client)),
            _ => None,
        });
        clients.flat_map(|(host, client)| client.seats().iter().map(move |seat| (host, seat)))
    }

    /// Clients stop; everything must come to rest.
    fn settle(&mut self) -> Result<(), Violation> {
        self.town.afterglow = true;
        for (host, _) in self.town.clients.clone() {
            self.world.poke(host, |actor, _, _| {
                if let Actor::Client(client) = actor {
                    client.stop();
                }
            });
        }
        let begin = self.world.now();
        loop {
            self.until(LEASE)?;
            match self.unsettled() {
                None => return Ok(()),
                Some(what) if self.world.now().since(begin) > self.chaos.patience() => {
                    return Err(Violation::new("everything_comes_to_rest", what));
                }
                Some(_) => {}
            }
        }
    }

    /// What keeps the world from being at rest.
    fn unsettled(&self) -> Option<String> {
        if let Some((host, seat)) = self.seats().find(|(_, seat)| !seat.script().is_quiet()) {
            return Some(format!("{host} is not quiet: {}", seat.script().waits_for()));
        }
        let alive: BTreeSet<u64> = self.seats().map(|(_, seat)| seat.script().session()).collect();
        let mut position = None;
        for host in &self.town.servers {
            let Some(Actor::Server(server)) = self.world.process(*host) else {
                return Some(format!("{host} does not run"));
            };
            let applied = server.replica().commit();
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

    fn last_look(&mut self) -> Result<(), Violation> {
        for host in self.town.servers.clone() {
            let mut digest = Err("it does not run".to_string());
            self.world.poke(host, |actor, _, _| {
                if let Actor::Server(server) = actor {
                    digest = server.state_digest();
                }
            });
            let (index, state) =
                digest.map_err(|what| Violation::new("replicas_agree", format!("{host} has no digest: {what}")))?;
            let sight = Sight { at: self.world.now(), host, clock: &|_| None };
            self.log.observe(&sight, &LogFact::Final { index, state })?;
        }
        self.log.finish()?;
        self.cell.conclude()
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let network = self.world.network.counts();
        let mut faults = self.chaos.counts().iter().map(|(kind, count)| (kind.to_string(), *count)).collect();
        let messages = [
            ("message_dropped", network.dropped),
            ("message_duplicated", network.duplicated),
            ("message_reordered", network.reordered),
            ("message_delayed", network.delayed),
            ("message_cut", network.cut),
        ];
        Extend::extend(&mut faults, messages.into_iter().map(|(kind, count)| (kind.to_string(), count)));
        let mut invariants = self.log.counts();
        invariants.extend(self.cell.counts());
        invariants.insert("sound_disks_are_accepted".to_string(), self.chaos.starts());
        invariants.insert("requests_are_understood".to_string(), self.answered);
        invariants.insert("service_returns_after_faults".to_string(), self.served);
        let failures = found.map(|violation| Failure {
            seed,
            invariant: violation.invariant,
            message: violation.what,
            at: self.world.now().to_string(),
            replay: replay(seed, options),
            trace: self.world.trace.lines().map(str::to_string).collect(),
        });
        Report {
            scenario: "cell".to_string(),
            seeds_run: 1,
            seeds: Some((seed, seed)),
            simulated_seconds: self.world.now().since(SimTime::ZERO).as_secs_f64(),
            operations: self.operations,
            answered: self.answered,
            events: self.world.trace.events(),
            faults,
            invariants,
            trace_hash: format!("{:016x}", self.world.trace.hash()),
            failures: failures.into_iter().collect(),
        }
    }
}

fn replay(seed: u64, options: &Options) -> String {
    let mutant = options.mutant.map(|mutant| format!(" --mutant {mutant}")).unwrap_or_default();
    format!("tidings sim cell --seed {seed}{mutant}")
}
