//! Scenario `wire`: the session machine of connections over the simulated carrier.
//!
//! ```text
//!   client: session ── frames ──▶ carrier ~~ network ~~ carrier ──▶ session: server
//! ```
//! Clients connect to one of three servers, ask, listen to long answers and pour long requests, with deadlines and changes of
//! mind; servers ask clients too, say goodbye, hang up; readers are slow, carriers take nothing for a while. Connections
//! break with every lost message and are made again.

pub mod client;
pub mod end;
pub mod fact;
pub mod server;

use crate::carrier;
use crate::faults::{Chaos, Kind, Site, Targets};
use crate::invariants::answers_are_whole::AnswersAreWhole;
use crate::invariants::operations_end_once::OperationsEndOnce;
use crate::invariants::readers_are_not_overrun::ReadersAreNotOverrun;
use crate::invariants::service_returns_after_faults::{self, ServiceReturnsAfterFaults};
use crate::invariants::unsent_requests_never_arrive::UnsentRequestsNeverArrive;
use crate::invariants::{Claims, Violation};
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Observed, Process, Seat, World};
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::stage::{Outline, Play, Rest, Stage};
use client::Client;
use fact::{End, WireFact};
use server::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_wire::{Limits, Patience};

/// Small limits, so that they are met.
pub(crate) const LIMITS: Limits =
    Limits { max_frame: 64 << 10, max_operations: 8, max_operation_bytes: 4 << 10, initial_credit: 4 };

/// Short patience, so that it ends.
pub(crate) const PATIENCE: Patience = Patience {
    handshake: Duration::from_secs(5),
    ping_after: Duration::from_secs(4),
    dead_after: Duration::from_secs(10),
    stall: Duration::from_secs(12),
};

const SERVERS: usize = 3;
const CLIENTS: usize = 5;
/// The scale of pauses: some are longer than a silent peer is waited for.
const SCALE: Duration = Duration::from_secs(5);
/// How long clients go on after the faults.
const AFTERGLOW: Duration = Duration::from_secs(40);

/// A process of this scenario.
pub enum Actor {
    /// Accepts connections.
    Server(Server),
    /// Makes them.
    Client(Box<Client>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<WireFact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<WireFact>>) {
        let Event::Message { from, bytes } = input else { return };
        match self {
            Actor::Server(server) => server.receive(now, from, &bytes, out),
            Actor::Client(client) => client.receive(now, from, &bytes, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<WireFact>>) {
        match self {
            Actor::Server(server) => server.wake(now, out),
            Actor::Client(client) => client.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Server(server) => server.deadline(),
            Actor::Client(client) => client.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = WireFact;
}

/// Who lives where.
struct Town {
    servers: Vec<HostId>,
    clients: Vec<HostId>,
    mutant: Option<carrier::Mutant>,
    stopped: bool,
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<WireFact>>) -> Result<Actor, NoStart> {
        out.put(Effect::Fact(WireFact::Started));
        if self.servers.contains(&seat.host) {
            let mut server = Server::new(&seat, self.mutant);
            server.set_calm(self.stopped);
            return Ok(Actor::Server(server));
        }
        let mut client = Client::new(&seat, self.servers.clone(), self.mutant);
        if self.stopped {
            client.stop();
        }
        Ok(Actor::Client(Box::new(client)))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, _process: &Actor) -> bool {
        true
    }
}

struct Run {
    stage: Stage<Actor, Town>,
    claims: Claims<WireFact>,
    operations: u64,
    answered: u64,
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
        let rng = Seeded::new(seed).fork("wire");
        let mut world = World::new(&rng, options.trace);
        let servers: Vec<HostId> = (0..SERVERS).map(|_| world.add_host()).collect();
        let clients: Vec<HostId> = (0..CLIENTS).map(|_| world.add_host()).collect();
        let targets = Targets { replicas: servers.clone(), clients: clients.clone(), lease: SCALE };
        let chaos = Chaos::new(&rng, targets).without(&Kind::DISKS);
        let claims = Claims::new(vec![
            Box::<OperationsEndOnce>::default(),
            Box::<AnswersAreWhole>::default(),
            Box::<UnsentRequestsNeverArrive>::default(),
            Box::<ReadersAreNotOverrun>::default(),
        ]);
        let mutant = options.mutant.and_then(crate::mutant::Mutant::of_carrier);
        let town = Town { servers, clients, mutant, stopped: false };
        let stage = Stage { world, town, chaos };
        Run { stage, claims, operations: 0, answered: 0, service: ServiceReturnsAfterFaults::default() }
    }

    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        let Town { servers, clients, .. } = &self.stage.town;
        self.start(servers.iter().chain(clients).copied().collect())?;
        self.stage.chaos.begin(&mut self.stage.world);
        self.until(faults)?;
        self.stage.chaos.heal(&mut self.stage.world);
        self.serve_again()?;
        self.settle()?;
        self.claims.finish()
    }

    /// After the heal every client must be served again within bounds.
    fn serve_again(&mut self) -> Result<(), Violation> {
        // What is paused or silent is found out, what stalls is hung up, and all are connected again.
        self.until(SCALE * 8)?;
        self.service.begin();
        self.until(AFTERGLOW)?;
        self.service.judge(&self.stage.town.clients, AFTERGLOW)
    }

    /// Nothing begins any more; all that is open must end.
    fn settle(&mut self) -> Result<(), Violation> {
        self.stage.town.stopped = true;
        let Town { servers, clients, .. } = &self.stage.town;
        for host in servers.iter().chain(clients) {
            self.stage.world.poke(*host, |actor, _, _| match actor {
                Actor::Client(client) => client.stop(),
                Actor::Server(server) => server.set_calm(true),
            });
        }
        let within = AFTERGLOW * 4;
        self.come_to_rest(&Rest { every: SCALE, looks: 1, within, claim: "operations_end_once" })
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let mut invariants = self.claims.counts();
        invariants.insert(service_returns_after_faults::NAME.to_string(), self.service.checks());
        let outline = Outline {
            scenario: "wire",
            operations: self.operations,
            answered: self.answered,
            faults: BTreeMap::new(),
            invariants,
        };
        self.stage.report(seed, options, found, outline)
    }
}

impl Play for Run {
    type Actor = Actor;
    type Town = Town;
    const STARTS: &'static str = "processes_start";

    fn stage(&mut self) -> &mut Stage<Actor, Town> {
        &mut self.stage
    }

    fn observe(&mut self, observed: Observed<WireFact>) -> Result<(), Violation> {
        let Observed { at, host, fact } = observed;
        self.stage.show(at, host, &fact, &mut self.claims)?;
        match fact {
            WireFact::Began(_) => self.operations += 1,
            WireFact::Ended(_, End::Answered(_)) => {
                self.answered += 1;
                self.service.answered(host);
            }
            WireFact::Alarm(what) => return Err(Violation::new("sessions_keep_their_word", format!("{host}: {what}"))),
            _ => {}
        }
        Ok(())
    }

    fn reminded(&mut self, _id: u64) -> Result<(), Violation> {
        Ok(())
    }

    fn unsettled(&self) -> Option<String> {
        let Town { servers, clients, .. } = &self.stage.town;
        servers.iter().chain(clients).find_map(|host| match self.stage.world.process(*host) {
            Some(Actor::Server(server)) => (!server.is_quiet()).then(|| format!("{host} waits for a client")),
            Some(Actor::Client(client)) => (!client.is_quiet()).then(|| format!("{host} waits for a server")),
            None => Some(format!("{host} does not run")),
        })
    }
}
