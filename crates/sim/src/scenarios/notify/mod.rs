//! Scenario `notify`: from the application's backend over feed, bridges, matchers and registrars to applications on devices.
//!
//! ```text
//!   backend ─ publish ─▶ feed ─▶ node: Bridge ─▶ Matcher ─▶ Registrar ─▶ channel ─▶ device: Client ⇄ application
//!                                  │ ranges: Owner, Lookup ⇄ managers ⇄ cell (model)
//!                                  └ rows: Front ⇄ agreed log (model)
//! ```
//! All machines are the production ones, those of placement and of the store too. Channels lose, repeat and reorder; ranges
//! move as leases lapse; rows fail for a while; the store is wiped; the backend is restored from a backup; devices restart with
//! and without their storage. Mostly nobody sends heartbeats: nothing may depend on them. When the faults are over everybody
//! must have learned the latest version of all that it wants to hear of.
//!
//! Scenario `notify-directed` is a small world of the same kind with aimed trouble instead of random faults (`director`).

pub mod backend;
pub mod device;
pub mod director;
pub mod fact;
pub mod forger;
pub mod leftovers;
pub mod letter;
pub mod node;
pub mod shared;
pub mod town;
pub mod trouble;

use crate::faults::{Chaos, Kind, Targets};
use crate::invariants::every_client_learns_the_latest_version::EveryClientLearnsTheLatestVersion;
use crate::invariants::everybody_returns_after_a_wipe::EverybodyReturnsAfterAWipe;
use crate::invariants::forged_tokens_open_nothing::ForgedTokensOpenNothing;
use crate::invariants::lost_state_becomes_unknown::LostStateBecomesUnknown;
use crate::invariants::only_published_versions_are_told::OnlyPublishedVersionsAreTold;
use crate::invariants::registrations_follow_intent::RegistrationsFollowIntent;
use crate::invariants::{Claims, Violation};
use crate::kernel::{HostId, Observed, World};
use crate::mutant::Mutant;
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::placement::REACH;
use crate::scenarios::placement::fact::Fact as PlacementFact;
use crate::scenarios::stage::{Outline, Play, Rest, Stage};
use bytes::Bytes;
use director::Director;
use fact::{Fact, NotifyFact, OBJECTS, object};
use node::Neighbours;
use shared::{APP, Shared};
use std::time::Duration;
use tidings_base::{KeyRange, Seeded};
use tidings_notify::inspect;
use tidings_placement::config::Times;
use tidings_wire::v1;
use town::{Actor, Town};
use trouble::Trouble;

/// Where there are many objects: more than one replacement takes (F7), and more than one message tells of.
const MANY_OBJECTS: u64 = 320;

/// How long the backend thinks between two publications, on average.
const THINK: [Duration; 4] =
    [Duration::from_millis(150), Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];
/// The same while versions are aimed at registrations, and registrations at versions.
const AIMING: Duration = Duration::from_secs(30);
const AIMED_AT: Duration = Duration::from_secs(5);
/// How long an application thinks between two changes of mind, on average.
const CHANGE: [Duration; 3] = [Duration::from_secs(4), Duration::from_secs(15), Duration::from_secs(60)];
/// How often devices say that they are there, if they do.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Everything learned within the longest pause between repeats, or a lease, and ten seconds (heartbeats are off).
const CONVERGENCE: Duration = Duration::from_secs(24);

/// The claims about Notify.
pub fn notify_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<EveryClientLearnsTheLatestVersion>::default(),
        Box::<OnlyPublishedVersionsAreTold>::default(),
        Box::<LostStateBecomesUnknown>::default(),
        Box::<RegistrationsFollowIntent>::default(),
        Box::<EverybodyReturnsAfterAWipe>::default(),
        Box::<ForgedTokensOpenNothing>::default(),
    ])
}

/// What is timed by the other (F6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// Versions are made just when somebody begins to want them.
    Versions,
    /// Somebody begins to want an object just when a version of it was published.
    Registrations,
}

/// One run.
pub struct Run {
    stage: Stage<Actor, Town>,
    trouble: Trouble,
    /// Aimed trouble instead of random faults.
    director: Option<Director>,
    claims: Claims<Fact>,
    /// Facts that the scenario itself states.
    stated: Vec<Observed<NotifyFact>>,
    aim: Option<Aim>,
    /// The last versions were published.
    last: bool,
    /// Rows of earlier realms that were deleted.
    left_over: u64,
    published: u64,
    acknowledged: u64,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    play(Run::new(seed, options), seed, options)
}

/// Runs one seed under aimed trouble.
pub(super) fn run_directed(seed: u64, options: &Options) -> Report {
    play(Run::directed(seed, options), seed, options)
}

fn play(mut run: Run, seed: u64, options: &Options) -> Report {
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

/// Who is there, and how they behave.
struct Cast {
    nodes: u64,
    devices: u64,
    /// One device in so many cannot keep its client's state; 0 = all can.
    forgetful: u64,
    aim: Option<Aim>,
    heartbeat: Option<Duration>,
    hooks: bool,
    hints: bool,
    room: usize,
    /// How many numbers are drawn under one lease.
    numbers: u32,
    /// How many registrations a client ends under one id.
    ended: u64,
    /// How many objects there are: more than [`OBJECTS`], and somebody wants all of them.
    objects: u64,
    /// How long the backend, and applications, think.
    think: Duration,
    change: Duration,
    reconnect: Duration,
    /// Nothing goes wrong by itself, and nobody does anything by itself.
    calm: bool,
}

impl Cast {
    fn drawn(own: &mut Seeded) -> Cast {
        let aim = [Some(Aim::Versions), Some(Aim::Registrations), None, None][own.below(4) as usize];
        let think = match aim {
            Some(Aim::Versions) => AIMING,
            Some(Aim::Registrations) => AIMED_AT,
            None => THINK[own.below(4) as usize],
        };
        let objects = if own.fork("objects").one_in(8) { MANY_OBJECTS } else { OBJECTS };
        Cast {
            nodes: own.between(2, 4),
            devices: own.between(3, 6),
            forgetful: 4,
            aim,
            heartbeat: own.one_in(4).then_some(HEARTBEAT),
            hooks: own.one_in(4),
            hints: own.one_in(2),
            // What there is no room for waits for the next look, half a second later: many would take too long by fours.
            room: [4, 100, 100_000][own.below(3) as usize].max(if objects > OBJECTS { 100 } else { 0 }),
            numbers: if own.fork("numbers").one_in(4) { 64 } else { u32::MAX },
            ended: if own.fork("ended").one_in(4) { 12 } else { u64::MAX },
            objects,
            think,
            change: CHANGE[own.below(3) as usize],
            reconnect: Duration::from_secs(3),
            calm: false,
        }
    }

    /// What aimed trouble needs: two devices of each user, which keep their state and are back soon.
    fn directed(own: &mut Seeded) -> Cast {
        Cast {
            nodes: 3,
            devices: 6,
            forgetful: 0,
            aim: None,
            heartbeat: None,
            hooks: false,
            hints: own.one_in(2),
            room: 100_000,
            numbers: u32::MAX,
            ended: u64::MAX,
            objects: OBJECTS,
            think: AIMING,
            change: AIMING,
            reconnect: Duration::from_millis(400),
            calm: true,
        }
    }
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("notify");
        let cast = Cast::drawn(&mut rng.fork("cast"));
        let trouble = Trouble::new(&rng, cast.heartbeat.is_some());
        Run::of(&rng, cast, trouble, options)
    }

    fn directed(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("notify-directed");
        let cast = Cast::directed(&mut rng.fork("cast"));
        let trouble = Trouble::none(&rng);
        Run { director: Some(Director::new(&rng)), ..Run::of(&rng, cast, trouble, options) }
    }

    fn of(rng: &Seeded, cast: Cast, trouble: Trouble, options: &Options) -> Run {
        let mut own = rng.fork("town");
        let mut world = World::new(rng, options.trace);
        let cell = world.add_host();
        let managers: Vec<HostId> = (0..2).map(|_| world.add_host()).collect();
        // A wipe begins all of the store anew, which a log with other members does not allow: one member stands for it.
        let servers: Vec<HostId> = vec![world.add_host()];
        let nodes: Vec<HostId> = (0..cast.nodes).map(|_| world.add_host()).collect();
        let devices: Vec<HostId> = (0..cast.devices).map(|_| world.add_host()).collect();
        let backend = world.add_host();
        let forger = world.add_host();
        [cell, servers[0], backend].into_iter().for_each(|host| world.network.connect(host));
        let mutant = options.mutant.and_then(Mutant::of_notify);
        let shared = Shared::of(cast.objects);
        shared.raise_incarnation();
        for (number, device) in (1..).zip(&devices) {
            shared.install(*device);
            shared.installation(*device, |it| {
                it.persistent = cast.forgetful == 0 || number % cast.forgetful != 0;
                it.intended = (0..4).map(|_| object(own.below(cast.objects))).collect();
                if number == 1 && cast.objects > OBJECTS {
                    it.intended = (0..cast.objects).map(object).collect();
                }
            });
        }
        let others = devices.iter().copied().chain([cell, backend]).chain(servers.clone()).collect();
        let replicas: Vec<HostId> = nodes.iter().chain(&managers).copied().collect();
        let times = Times::FAST;
        let targets = Targets { replicas, clients: others, lease: times.lease };
        let chaos = Chaos::new(rng, targets).reaching(REACH).without(&Kind::DISKS).without(&[Kind::PowerCut]);
        let town = Town {
            cell,
            agreed: Default::default(),
            neighbours: Neighbours { managers, servers, nodes, backend },
            devices,
            backend,
            forger,
            shared,
            times,
            nodes: node::Habits {
                hooks: cast.hooks,
                hints: cast.hints,
                room: cast.room,
                numbers: cast.numbers,
                ended: cast.ended,
                offline_after: cast.heartbeat.map_or(Duration::from_secs(24 * 3_600), |every| every * 4),
                mutant,
            },
            habits: device::Habits { heartbeat: cast.heartbeat, think: cast.change, reconnect: cast.reconnect, mutant },
            think: cast.think,
            calm: cast.calm,
        };
        for host in town.everybody() {
            let ppm = own.below(2 * REACH as u64 + 1) as i32 - REACH;
            world.set_rate(host, ppm);
        }
        Run {
            stage: Stage { world, town, chaos },
            trouble,
            director: None,
            claims: notify_claims(),
            stated: Vec::new(),
            aim: cast.aim,
            last: false,
            left_over: 0,
            published: 0,
            acknowledged: 0,
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        for device in self.stage.town.devices.clone() {
            for object in self.stage.town.shared.installation(device, |it| it.intended.clone()) {
                let fact = Fact::Intends { device, object, intends: true };
                self.stage.show(self.stage.world.now(), device, &fact, &mut self.claims)?;
            }
        }
        self.start(self.stage.town.everybody())?;
        self.begin_trouble();
        self.until(Duration::from_secs(10))?;
        if self.director.is_none() {
            self.stage.chaos.begin(&mut self.stage.world);
        }
        self.until(faults)?;
        self.curtain();
        self.stage.chaos.heal(&mut self.stage.world);
        self.end_trouble();
        // A manager's fail-over, a whole lease, then registrations.
        let within = self.stage.town.times.honoured() * 4 + Duration::from_secs(120);
        let rest = Rest { every: Duration::from_secs(5), looks: 2, within, claim: "registrations_follow_intent" };
        self.come_to_rest(&rest)?;
        self.until(CONVERGENCE)?;
        self.claims.conclude()?;
        self.last_round()?;
        if self.director.is_none() {
            self.nothing_is_left()?;
        }
        self.claims.conclude()
    }

    /// Once more a version of everything: it must reach whoever wants it, within bounds.
    fn last_round(&mut self) -> Result<(), Violation> {
        self.with_backend(|backend, now, out| backend.last_round(now, out));
        self.until(CONVERGENCE)?;
        // Whoever was told in vain has said so; those who are long gone are collected.
        self.last = true;
        let claim = "copies_are_of_registrations";
        self.come_to_rest(&Rest { every: Duration::from_secs(5), looks: 1, within: Duration::from_secs(180), claim })?;
        for device in self.stage.town.devices.clone() {
            let agrees = self.agrees(device);
            self.stage.show(self.stage.world.now(), device, &Fact::Agrees(device, agrees), &mut self.claims)?;
        }
        Ok(())
    }

    fn agrees(&self, device: HostId) -> bool {
        matches!(self.stage.world.process(device), Some(Actor::Device(device)) if device.agrees())
    }

    /// F6, F10: registrations of which matchers have copies and registrars know nothing, or the other way round.
    fn zombies(&self) -> Option<String> {
        let Stage { world, town, .. } = &self.stage;
        let Some(Actor::Store(server)) = world.process(town.neighbours.servers[0]) else {
            return Some("the store does not run".to_string());
        };
        let (reader, realm) = (server.member().state().reader(), town.shared.realm());
        let rows = |page: &dyn Fn(Option<Bytes>) -> v1::Scan| {
            let (mut rows, mut from) = (Vec::new(), None);
            loop {
                let Ok(read) = reader.scan(&page(from.take())) else { return rows };
                rows.extend(read.rows);
                match read.next {
                    Some(next) => from = Some(next),
                    None => return rows,
                }
            }
        };
        let mut objects = inspect::Objects::default();
        let copies = rows(&|from| inspect::objects_page(&realm, APP, b"", from));
        copies.iter().for_each(|row| objects.take(&realm, APP, row));
        let copies: u32 = objects.into_list().iter().map(|object| object.registrations).sum();
        let clients = rows(&|from| inspect::clients_page(&realm, from));
        let clients = clients.iter().filter_map(|row| inspect::client(&realm, APP, row));
        let (registrations, pending) =
            clients.fold((0, 0), |(all, pending), it| (all + it.registrations, pending + it.pending));
        (copies != registrations || pending > 0).then(|| {
            format!("matchers have copies of {copies} registrations, registrars {registrations}, {pending} under way")
        })
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let mut invariants = self.claims.counts();
        invariants.insert("copies_are_of_registrations".to_string(), u64::from(self.last));
        if self.director.is_none() {
            invariants.insert(leftovers::NAME.to_string(), self.left_over);
        }
        let told = self.director.iter().flat_map(|director| director.counts().clone());
        let outline = Outline {
            scenario: if self.director.is_some() { "notify-directed" } else { "notify" },
            operations: self.published,
            answered: self.acknowledged,
            faults: self.trouble.counts().clone().into_iter().chain(told).collect(),
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

    fn observe(&mut self, observed: Observed<NotifyFact>) -> Result<(), Violation> {
        match &observed.fact {
            NotifyFact::Notify(fact) => {
                match fact {
                    Fact::Calls(_) => self.published += 1,
                    Fact::Published(_) => self.acknowledged += 1,
                    _ => {}
                }
                self.aim(fact);
                if let Some(director) = &mut self.director {
                    director.observe(fact);
                }
                self.stage.show(observed.at, observed.host, fact, &mut self.claims)
            }
            NotifyFact::Placement(PlacementFact::Leads { .. }) if self.director.is_none() => {
                self.stage.chaos.provoke(&mut self.stage.world, observed.host);
                Ok(())
            }
            NotifyFact::Placement(_) | NotifyFact::Log(_) => Ok(()),
        }
    }

    fn reminded(&mut self, id: u64) -> Result<(), Violation> {
        self.trouble_due(id)?;
        std::mem::take(&mut self.stated).into_iter().try_for_each(|stated| self.observe(stated))
    }

    fn unsettled(&self) -> Option<String> {
        let Stage { world, town, .. } = &self.stage;
        if let Some(host) = town.everybody().into_iter().find(|host| !world.is_up(*host) || world.is_paused(*host)) {
            return Some(format!("{host} does not run"));
        }
        let held = town.neighbours.nodes.iter().map(|host| match world.process(*host) {
            Some(Actor::Node(node)) => node.held(world.clock(*host).mono(world.now())),
            _ => 0,
        });
        if held.sum::<u128>() != KeyRange::FULL.len() {
            return Some("some of the ring is held by nobody".to_string());
        }
        if !matches!(world.process(town.backend), Some(Actor::Backend(backend)) if backend.is_quiet()) {
            return Some("the backend still publishes".to_string());
        }
        if let Some(device) = town.devices.iter().find(|device| !self.agrees(**device)) {
            return Some(format!("{device} and the servers do not agree on what it wants to hear of"));
        }
        self.last.then(|| self.zombies()).flatten()
    }
}
