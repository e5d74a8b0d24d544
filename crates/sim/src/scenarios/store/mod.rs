//! Scenario `store`: store and feed on the agreed log, with clients and consumers.
//!
//! ```text
//!   clients ── frames ──▶ server: front ⇄ replica (model) ⇄ log on a simulated disk
//!   consumers ───────▶          └─ StoreState<MemoryKv>
//! ```
//! Most seeds run three replicas, some one or five. Clients write blindly, compare and set, write under fences, read,
//! scan and append; consumers consume and acknowledge. After the faults everything must converge: the same state at all
//! replicas, every entry acknowledged by every group, every client served again.

pub mod caller;
pub mod client;
pub mod consumer;
pub mod fact;
pub mod line;
pub mod server;

use crate::faults::{Chaos, Site, Targets};
use crate::invariants::batches_are_seen_whole::BatchesAreSeenWhole;
use crate::invariants::compare_and_set_replaces_what_it_saw::CompareAndSetReplacesWhatItSaw;
use crate::invariants::feed_delivers_every_entry::FeedDeliversEveryEntry;
use crate::invariants::fences_never_go_back::FencesNeverGoBack;
use crate::invariants::reads_are_linearizable::ReadsAreLinearizable;
use crate::invariants::refused_writes_leave_no_trace::RefusedWritesLeaveNoTrace;
use crate::invariants::requests_are_understood::RequestsAreUnderstood;
use crate::invariants::service_returns_after_faults::{self, ServiceReturnsAfterFaults};
use crate::invariants::{Claims, LogFact, Violation, log_claims, sound_disks_are_accepted};
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Observed, Process, Seat, World};
use crate::model::Temper;
use crate::mutant::Mutant;
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::member;
use crate::scenarios::stage::{Outline, Play, Rest, Stage};
use bytes::Bytes;
use client::Client;
use consumer::Consumer;
use fact::{ClientFact, Outcome, StoreFact};
use server::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};

/// Groups of rows: the first ones for blind writes, one for compare-and-set, one behind a fence.
pub(crate) const GROUPS: u8 = 4;
/// The group whose cells are only ever compared and set.
pub(crate) const CAS_GROUP: u8 = 2;
/// The group that is written under a fence.
pub(crate) const FENCED_GROUP: u8 = 3;
/// Rows of each group: few, so that clients meet.
pub(crate) const ROWS: u8 = 4;
/// Topics of the feed.
pub(crate) const TOPICS: u8 = 2;
/// Consumer groups of each topic.
const READER_GROUPS: u8 = 2;
/// Clients.
const CLIENTS: usize = 5;
/// The leader's lease. Pauses, elections and patience are counted in it.
const LEASE: Duration = Duration::from_secs(2);
/// How long a client thinks between two operations, on average: most seeds are busy, some so quiet that logs hardly
/// differ and nothing but leases and terms keeps leaders apart.
const THINK: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_millis(1_500), Duration::from_millis(1_500), Duration::from_secs(12)];
/// Clients go on for so long after the faults, to see that they are served again.
const AFTERGLOW: Duration = Duration::from_secs(40);

/// A process of this scenario.
pub enum Actor {
    /// A replica with its front.
    Server(Box<Server<StoreFact>>),
    /// A client.
    Client(Box<Client>),
    /// A consumer.
    Consumer(Box<Consumer>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<StoreFact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<StoreFact>>) {
        match (self, input) {
            (Actor::Server(server), Event::DiskDone { .. }) => server.disk_done(now, out),
            (Actor::Server(server), Event::Message { from, bytes }) => server.message(now, from, &bytes, out),
            (Actor::Client(client), Event::Message { from, bytes }) => client.receive(now, from, &bytes, out),
            (Actor::Consumer(consumer), Event::Message { from, bytes }) => consumer.receive(now, from, &bytes, out),
            (_, Event::DiskDone { .. }) => {}
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<StoreFact>>) {
        match self {
            Actor::Server(server) => server.wake(now, out),
            Actor::Client(client) => client.wake(now, out),
            Actor::Consumer(consumer) => consumer.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Server(server) => server.deadline(),
            Actor::Client(client) => client.deadline(),
            Actor::Consumer(consumer) => consumer.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = StoreFact;
}

/// Who lives where.
struct Town {
    servers: Vec<HostId>,
    clients: Vec<HostId>,
    consumers: Vec<(HostId, (u8, u8))>,
    temper: Temper,
    think: Duration,
    mutant: Option<Mutant>,
    afterglow: bool,
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<StoreFact>>) -> Result<Actor, NoStart> {
        let servers = self.servers.clone();
        if self.servers.contains(&seat.host) {
            let config = member::config(&seat, &servers, LEASE, self.temper, self.mutant);
            let server = Server::start(config, seat.disk, seat.now, seat.rng, out)?;
            return Ok(Actor::Server(Box::new(server)));
        }
        if let Some((_, line)) = self.consumers.iter().find(|(host, _)| *host == seat.host) {
            let consumer = Consumer::new(seat.host, seat.starts, servers, *line, seat.now, seat.rng);
            return Ok(Actor::Consumer(Box::new(consumer)));
        }
        let mut client = Client::new(seat.host, seat.starts, servers, seat.now, seat.rng, self.think);
        if self.afterglow {
            client.stop();
        }
        Ok(Actor::Client(Box::new(client)))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, process: &Actor) -> bool {
        match process {
            Actor::Server(server) => server.member().is_whole(),
            Actor::Client(_) | Actor::Consumer(_) => true,
        }
    }
}

/// One run.
struct Run {
    stage: Stage<Actor, Town>,
    log: Claims<LogFact>,
    clients: Claims<ClientFact>,
    operations: u64,
    understood: RequestsAreUnderstood,
    service: ServiceReturnsAfterFaults,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    let mut run = Run::new(seed, options);
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("store");
        let mut own = rng.fork("town");
        let mut world = World::new(&rng, options.trace);
        let replicas = [3, 3, 3, 3, 3, 3, 5, 1][own.below(8) as usize];
        let servers: Vec<HostId> = (0..replicas).map(|_| world.add_host()).collect();
        let clients: Vec<HostId> = (0..CLIENTS).map(|_| world.add_host()).collect();
        let lines = (0..TOPICS).flat_map(|topic| (0..READER_GROUPS).map(move |group| (topic, group)));
        let consumers: Vec<_> = lines.clone().map(|line| (world.add_host(), line)).collect();
        let talkers: Vec<HostId> = clients.iter().copied().chain(consumers.iter().map(|(host, _)| *host)).collect();
        talkers.iter().for_each(|host| world.network.connect(*host));
        let temper = Temper {
            abdicates: [0, 0, 300, 1_000][own.below(4) as usize],
            hasty: [0, 5, 20, 50][own.below(4) as usize],
        };
        let think = THINK[own.below(4) as usize];
        let chaos = Chaos::new(&rng, Targets { replicas: servers.clone(), clients: talkers, lease: LEASE });
        let claims = Claims::new(vec![
            Box::<ReadsAreLinearizable>::default(),
            Box::<BatchesAreSeenWhole>::default(),
            Box::<CompareAndSetReplacesWhatItSaw>::default(),
            Box::<FencesNeverGoBack>::default(),
            Box::<RefusedWritesLeaveNoTrace>::default(),
            Box::new(FeedDeliversEveryEntry::new(lines.collect())),
        ]);
        let town = Town { servers, clients, consumers, temper, think, mutant: options.mutant, afterglow: false };
        Run {
            stage: Stage { world, town, chaos },
            log: log_claims(),
            clients: claims,
            operations: 0,
            understood: RequestsAreUnderstood::default(),
            service: ServiceReturnsAfterFaults::default(),
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        let Town { servers, clients, consumers, .. } = &self.stage.town;
        let consumers = consumers.iter().map(|(host, _)| *host);
        self.start(servers.iter().chain(clients).copied().chain(consumers).collect())?;
        self.stage.chaos.begin(&mut self.stage.world);
        self.until(faults)?;
        self.stage.chaos.heal(&mut self.stage.world);
        self.serve_again()?;
        self.settle()?;
        self.last_look()
    }

    fn count(&mut self, host: HostId, fact: &ClientFact) -> Result<(), Violation> {
        match fact {
            ClientFact::Asked { .. } => self.operations += 1,
            ClientFact::Told { outcome: Outcome::Broken(what), .. } => {
                return Err(self.understood.broken(what));
            }
            ClientFact::Told { outcome: Outcome::Refused | Outcome::Unknown, .. } => {}
            ClientFact::Told { .. } => {
                self.understood.understood();
                self.service.answered(host);
            }
        }
        Ok(())
    }

    /// After the heal clients must be served again within bounds.
    fn serve_again(&mut self) -> Result<(), Violation> {
        self.mend(LEASE)?;
        self.until(LEASE * 5)?;
        self.service.begin();
        self.until(AFTERGLOW)?;
        self.service.judge_together(&self.stage.town.clients, AFTERGLOW)
    }

    /// Clients stop; replicas and consumers must come to rest.
    fn settle(&mut self) -> Result<(), Violation> {
        self.stage.town.afterglow = true;
        for host in self.stage.town.clients.clone() {
            self.stage.world.poke(host, |actor, _, _| {
                if let Actor::Client(client) = actor {
                    client.stop();
                }
            });
        }
        let within = self.stage.chaos.patience();
        self.come_to_rest(&Rest { every: LEASE, looks: 1, within, claim: service_returns_after_faults::NAME })
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
        self.log.finish()?;
        self.clients.finish()
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let mut invariants = self.log.counts();
        invariants.extend(self.clients.counts());
        invariants.insert(sound_disks_are_accepted::NAME.to_string(), self.stage.chaos.starts());
        invariants.insert(RequestsAreUnderstood::NAME.to_string(), self.understood.checks());
        invariants.insert(service_returns_after_faults::NAME.to_string(), self.service.checks());
        let outline = Outline {
            scenario: "store",
            operations: self.operations,
            answered: self.understood.checks(),
            faults: BTreeMap::new(),
            invariants,
        };
        self.stage.report(seed, options, found, outline)
    }
}

impl Play for Run {
    type Actor = Actor;
    type Town = Town;
    const STARTS: &'static str = sound_disks_are_accepted::NAME;

    fn stage(&mut self) -> &mut Stage<Actor, Town> {
        &mut self.stage
    }

    fn observe(&mut self, observed: Observed<StoreFact>) -> Result<(), Violation> {
        match &observed.fact {
            StoreFact::Log(fact) => {
                self.stage.show(observed.at, observed.host, fact, &mut self.log)?;
                if matches!(fact, LogFact::Role(Role::Leader { .. })) {
                    self.stage.chaos.provoke(&mut self.stage.world, observed.host);
                }
                Ok(())
            }
            StoreFact::Client(fact) => {
                self.stage.show(observed.at, observed.host, fact, &mut self.clients)?;
                if matches!(fact, ClientFact::Told { outcome: Outcome::Done | Outcome::Appended { .. }, .. }) {
                    self.stage.chaos.acknowledged(&mut self.stage.world);
                }
                self.count(observed.host, fact)
            }
        }
    }

    fn reminded(&mut self, _id: u64) -> Result<(), Violation> {
        Ok(())
    }

    /// What keeps the world from being at rest.
    fn unsettled(&self) -> Option<String> {
        for host in &self.stage.town.clients {
            if !matches!(self.stage.world.process(*host), Some(Actor::Client(client)) if client.is_quiet()) {
                return Some(format!("{host} still waits for an answer"));
            }
        }
        let topics: Vec<(Bytes, Vec<Bytes>)> = (0..TOPICS)
            .map(|topic| {
                let groups = (0..READER_GROUPS).map(client::consumer_group_name).collect();
                (client::topic_name(topic), groups)
            })
            .collect();
        let mut position = None;
        for host in &self.stage.town.servers {
            let Some(Actor::Server(server)) = self.stage.world.process(*host) else {
                return Some(format!("{host} does not run"));
            };
            if !server.all_acknowledged(&topics) {
                return Some(format!("at {host} some entries are not acknowledged by every group"));
            }
            let applied = server.member().commit();
            if *position.get_or_insert(applied) != applied {
                return Some(format!("{host} is at {applied}, another replica at {position:?}"));
            }
        }
        None
    }
}
