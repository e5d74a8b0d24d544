//! Scenario `placement`: leases and partitioning whole, from applications over owners, lookups and managers to the cell.
//!
//! ```text
//!   owner host: Checks ◀─ Owner (machine) ⇄ ┐                 ┌ manager host: Manager (machine) ⇄ session, lock ┐
//!       ▲ Want                              ├─ OwnerPoll ────▶│                                                 ├▶ cell
//!   client host: application ⇄ Lookup ⇄ ────┘─ LookupPoll ───▶└ manager host: standby                          ┘
//! ```
//! The machines are the production ones; the cell is a model of what managers see of it (files with generations, a lock with
//! a sequencer that is checked at the change, sessions that end), adverse in what it may be. Clocks run at rates whose ratio
//! is at most 1 + ρ, most of them at the bound. Under faults no key may be without an owner for longer than what is whole
//! allows (`gaps`); after them every key must be owned, every lookup right, every client served.
//!
//! Scenario `placement-directed` is a small world of the same kind with aimed faults instead of random ones (`director`).

pub mod asking;
pub mod cell;
pub mod client;
pub mod director;
pub mod fact;
pub mod gaps;
pub mod letter;
pub mod manager;
pub mod operator;
pub mod owner;
pub mod ring;
pub mod town;
pub mod trouble;

use crate::faults::{Chaos, Kind, Targets};
use crate::invariants::a_lapsed_lease_stays_lapsed::ALapsedLeaseStaysLapsed;
use crate::invariants::lease_numbers_only_grow::LeaseNumbersOnlyGrow;
use crate::invariants::leases_are_dated_from_the_question::LeasesAreDatedFromTheQuestion;
use crate::invariants::losses_are_told::LossesAreTold;
use crate::invariants::one_believer_per_key::OneBelieverPerKey;
use crate::invariants::{Claims, Violation};
use crate::kernel::{HostId, Observed, World};
use crate::mutant::Mutant;
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::stage::{Outline, PHASE, Play, Rest, Stage};
use director::Director;
use fact::{Fact, KEYS, place};
use gaps::Gaps;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::time::RHO_PERCENT;
use tidings_base::{KeyRange, LeaseNumber, Mono, Seeded};
use tidings_placement::config::Times;
use tidings_wire::v1;
use town::{Actor, Habits, Town};
use trouble::Trouble;

/// The furthest a clock may run from true time: so far that the fastest and the slowest differ by the factor 1 + ρ, which is
/// what a manager's lease is longer by than an owner's. (Half of ρ to either side would be a little more.)
pub const REACH: i32 = (RHO_PERCENT as i32 * 1_000_000) / (200 + RHO_PERCENT as i32);
/// The reminder to look at everybody.
const LOOK: u64 = PHASE + 1;
/// The reminder of the director.
const CUE: u64 = PHASE + 2;
/// How often everybody is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The claims about placement.
pub fn placement_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<OneBelieverPerKey>::default(),
        Box::<LeasesAreDatedFromTheQuestion>::default(),
        Box::<ALapsedLeaseStaysLapsed>::default(),
        Box::<LeaseNumbersOnlyGrow>::default(),
        Box::<LossesAreTold>::default(),
    ])
}

/// One run.
pub struct Run {
    stage: Stage<Actor, Town>,
    trouble: Trouble,
    /// Aimed faults instead of random ones.
    director: Option<Director>,
    /// What the namespace is made with.
    config: v1::NamespaceConfig,
    claims: Claims<Fact>,
    /// In which pause each paused owner is, and since when, on its own clock.
    asleep: BTreeMap<HostId, (u64, Mono)>,
    slept: u64,
    looks: u64,
    served: u64,
    refused: u64,
    settled: u64,
    /// Ranges that were taken with their state.
    moved: u64,
    gaps: Gaps,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    play(Run::new(seed, options), seed, options)
}

/// Runs one seed under aimed faults.
pub(super) fn run_directed(seed: u64, options: &Options) -> Report {
    play(Run::directed(seed, options), seed, options)
}

fn play(mut run: Run, seed: u64, options: &Options) -> Report {
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

/// Who is there.
struct Cast {
    managers: u64,
    owners: Vec<Habits>,
    clients: u64,
    times: Times,
    /// What the namespace is made with.
    config: v1::NamespaceConfig,
    /// By how much each clock runs wrongly: the cell's, then managers', owners' and clients'.
    rates: Vec<i32>,
}

impl Cast {
    fn drawn(own: &mut Seeded) -> Cast {
        let managers = own.between(2, 3);
        let (owners, virtual_nodes) =
            [(2, 1), (2, 64), (3, 4), (3, 16), (4, 8), (6, 4), (8, 8), (12, 4), (20, 4), (50, 2)]
                [own.below(10) as usize];
        let times = match own.below(8) {
            0 => Times::PAPER,
            1 | 2 => Times { lease: Duration::from_secs(20), renew: Duration::from_secs(5) },
            _ => Times::FAST,
        };
        let hands_over = own.one_in(2);
        let habits = (0..owners).map(|n| {
            // Now and then two hosts go by one name.
            let id = if n > 0 && own.one_in(12) { n - 1 } else { n };
            let (hands_over, proves) = (hands_over && !own.one_in(6), own.one_in(2));
            Habits { id: format!("owner {id}"), hands_over, proves, twin: false }
        });
        let owners: Vec<Habits> = habits.collect();
        let clients = own.between(1, 4);
        let everybody = 1 + managers + owners.len() as u64 + clients;
        // Most clocks at the bound: what is between is no worse.
        let rates = (0..everybody)
            .map(|_| [-REACH, -REACH, REACH, REACH, own.below(2 * REACH as u64) as i32 - REACH][own.below(5) as usize]);
        let rates = rates.collect();
        let mut config = operator::config(times, virtual_nodes);
        // In busy pools policies act, and often.
        if own.one_in(2) {
            config.rebalance_ms = own.between(1, 10) as u32 * 1_000;
            config.policy = ["hottest", "hottest", "paper"][own.below(3) as usize].to_owned();
        }
        Cast { managers, owners, clients, times, config, rates }
    }

    /// What aimed faults need: fast managers and slow owners, which hand over, and two of which are twins.
    fn directed() -> Cast {
        let owner = |n: u32| Habits { id: format!("owner {}", n.min(3)), hands_over: true, proves: true, twin: n >= 3 };
        let rates = [REACH; 4].into_iter().chain([-REACH; 5]).chain([REACH; 2]).collect();
        let owners = (0..5).map(owner).collect();
        let config = operator::config(Times::FAST, 4);
        Cast { managers: 3, owners, clients: 2, times: Times::FAST, config, rates }
    }
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("placement");
        let cast = Cast::drawn(&mut rng.fork("town"));
        Run::of(&rng, cast, options)
    }

    fn directed(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("placement-directed");
        Run { director: Some(Director::new(&rng)), ..Run::of(&rng, Cast::directed(), options) }
    }

    fn of(rng: &Seeded, cast: Cast, options: &Options) -> Run {
        let mut world = World::new(rng, options.trace);
        let cell = world.add_host();
        let managers: Vec<HostId> = (0..cast.managers).map(|_| world.add_host()).collect();
        let owners: BTreeMap<HostId, Habits> =
            cast.owners.into_iter().map(|habits| (world.add_host(), habits)).collect();
        let clients: Vec<HostId> = (0..cast.clients).map(|_| world.add_host()).collect();
        world.network.connect(cell);
        let everybody = [cell].into_iter().chain(managers.clone()).chain(owners.keys().copied()).chain(clients.clone());
        for (host, ppm) in everybody.zip(cast.rates) {
            world.set_rate(host, ppm);
        }
        let replicas = managers.iter().copied().chain(owners.keys().copied()).collect();
        let others = clients.iter().copied().chain([cell]).collect();
        let times = cast.times;
        let targets = Targets { replicas, clients: others, lease: times.lease };
        let mutant = options.mutant.and_then(Mutant::of_placement);
        let chaos = Chaos::new(rng, targets).reaching(REACH).without(&Kind::DISKS);
        let town = Town { cell, agreed: Default::default(), managers, owners, clients, times, mutant, calm: false };
        Run {
            stage: Stage { world, town, chaos },
            trouble: Trouble::new(rng),
            director: None,
            config: cast.config,
            claims: placement_claims(),
            asleep: BTreeMap::new(),
            slept: 0,
            looks: 0,
            served: 0,
            refused: 0,
            settled: 0,
            moved: 0,
            gaps: Gaps::default(),
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        let Town { cell, managers, owners, clients, .. } = &self.stage.town;
        self.start([cell].into_iter().chain(managers).chain(owners.keys()).chain(clients).copied().collect())?;
        self.begin_trouble();
        self.stage.world.remind(LOOK_EVERY, LOOK);
        self.until(Duration::from_secs(10))?;
        match self.director {
            Some(_) => self.stage.world.remind(Duration::ZERO, CUE),
            None => self.stage.chaos.begin(&mut self.stage.world),
        }
        self.until(faults)?;
        self.curtain();
        self.stage.chaos.heal(&mut self.stage.world);
        self.end_trouble();
        self.settle()?;
        self.claims.conclude()
    }

    fn owner(&self, host: HostId) -> Option<(&owner::Host, Mono)> {
        match self.stage.world.process(host) {
            Some(Actor::Owner(owner)) => Some((owner, self.stage.world.clock(host).mono(self.stage.world.now()))),
            _ => None,
        }
    }

    /// Asks every owner's checks for every watched key, each by its own clock: the same claim as of what is published, by the
    /// call that applications use; and whether those who slept for a lease still hold anything.
    fn look(&mut self) -> Result<(), Violation> {
        for key in 0..KEYS {
            let believers = self.believers(key);
            self.looks += 1;
            if believers.len() > 1 {
                let what = format!("key {key} is held by {believers:?} at once");
                return Err(Violation::new("one_believer_per_key", what));
            }
        }
        for host in self.stage.town.owners.keys().copied().collect::<Vec<_>>() {
            let now = self.owner(host).map(|(_, now)| now);
            let (Some(pause), Some(now)) = (self.stage.world.pause_of(host), now) else { continue };
            let (known, since) = *self.asleep.entry(host).or_insert((pause, now));
            if known != pause {
                // It was awake for a moment between two looks.
                self.asleep.insert(host, (pause, now));
                continue;
            }
            let Some((owner, now)) = self.owner(host) else { continue };
            if now.since(since) >= self.stage.town.times.lease {
                let held = owner.checks().held(now);
                self.slept += 1;
                if let Some(held) = held.first() {
                    let what = format!("{host} has slept for {:?} and holds {}", now.since(since), held.range);
                    return Err(Violation::new("a_slept_lease_is_over", what));
                }
            }
        }
        Ok(())
    }

    fn believers(&self, key: u64) -> Vec<(HostId, LeaseNumber)> {
        let held = self.stage.town.owners.keys().filter_map(|host| {
            let (owner, now) = self.owner(*host)?;
            Some((*host, owner.checks().check_now(place(key), || now)?))
        });
        held.collect()
    }

    /// What a client says of a key that is not so.
    fn wrong_hint(&self, key: u64) -> Option<String> {
        let truth = self.believers(key).first().and_then(|(host, lease)| {
            let (owner, _) = self.owner(*host)?;
            Some((owner.address().to_owned(), *lease))
        });
        self.stage.town.clients.iter().find_map(|host| {
            let Some(Actor::Client(client)) = self.stage.world.process(*host) else {
                return Some(format!("{host} does not run"));
            };
            let hint = client.hint(key).map(|(address, lease)| (address.to_owned(), lease));
            (hint != truth).then(|| format!("{host} says that key {key} is at {hint:?}, and it is at {truth:?}"))
        })
    }

    // ---- after the faults -------------------------------------------------------------------------------------------

    /// Everything must be owned, every lookup right and every client served within bounds, and stay so.
    fn settle(&mut self) -> Result<(), Violation> {
        // A manager's fail-over and a whole lease, an owner's refused registration, a drain that was under way, a move that hangs.
        let within = self.stage.town.times.honoured() * 4 + Duration::from_secs(240);
        self.come_to_rest(&Rest {
            every: Duration::from_secs(10),
            looks: 3,
            within,
            claim: "every_key_is_owned_again",
        })?;
        let (before, moved) = (self.client_counts(), self.moved);
        self.until(Duration::from_secs(30))?;
        for (before, after) in before.into_iter().zip(self.client_counts()) {
            self.settled += after.1 - before.1;
            // Hand-overs that failed are tried again after minutes, drains end with a loss, and what moves is refused for a
            // moment.
            let refused = after.2 - before.2 > 2 * (self.moved - moved);
            if after.1 < before.1 + 3 || refused {
                let what = format!(
                    "a client was served {} times and refused {} times in 30 s without faults",
                    after.1 - before.1,
                    after.2 - before.2
                );
                return Err(Violation::new("clients_are_served_again", what));
            }
        }
        Ok(())
    }

    fn client_counts(&self) -> Vec<(u64, u64, u64)> {
        let clients = self.stage.town.clients.iter().map(|host| match self.stage.world.process(*host) {
            Some(Actor::Client(client)) => client.counts(),
            _ => (0, 0, 0),
        });
        clients.collect()
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let mut invariants = self.claims.counts();
        *invariants.entry("one_believer_per_key".to_string()).or_default() += self.looks;
        invariants.insert("a_slept_lease_is_over".to_string(), self.slept);
        invariants.insert("clients_are_served_again".to_string(), self.settled);
        invariants.insert(gaps::CLAIM.to_string(), self.gaps.judged());
        if let Some(director) = &self.director {
            invariants.insert(director::ADDRESSES.to_string(), director.told());
        }
        let told = self.director.iter().flat_map(|director| director.counts().clone());
        let outline = Outline {
            scenario: if self.director.is_some() { "placement-directed" } else { "placement" },
            operations: self.served + self.refused,
            answered: self.served,
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

    fn observe(&mut self, observed: Observed<Fact>) -> Result<(), Violation> {
        self.stage.show(observed.at, observed.host, &observed.fact, &mut self.claims)?;
        match observed.fact {
            Fact::Served { .. } => self.served += 1,
            Fact::Refused => self.refused += 1,
            Fact::Took { .. } => self.moved += 1,
            Fact::Leads { .. } if self.director.is_none() => {
                self.stage.chaos.provoke(&mut self.stage.world, observed.host)
            }
            Fact::Alarm(what) => return Err(Violation::new("clean_grants_bring_their_state", what)),
            _ => {}
        }
        Ok(())
    }

    fn reminded(&mut self, id: u64) -> Result<(), Violation> {
        match id {
            LOOK => {
                self.look()?;
                self.look_for_gaps()?;
                self.stage.world.remind(LOOK_EVERY, LOOK);
            }
            CUE => {
                if let Some(wait) = self.cue()? {
                    self.stage.world.remind(wait, CUE);
                }
            }
            id => self.trouble_due(id),
        }
        Ok(())
    }

    /// What is not yet as it should be.
    fn unsettled(&self) -> Option<String> {
        let everybody =
            self.stage.town.managers.iter().chain(self.stage.town.owners.keys()).chain(&self.stage.town.clients);
        if let Some(host) = everybody.chain([&self.stage.town.cell]).find(|host| self.stage.world.is_paused(**host)) {
            return Some(format!("{host} sleeps"));
        }
        let mut held: u128 = 0;
        for host in self.stage.town.owners.keys() {
            let Some((owner, now)) = self.owner(*host) else { return Some(format!("{host} does not run")) };
            held += owner.checks().held(now).iter().map(|leased| leased.range.len()).sum::<u128>();
        }
        if held != KeyRange::FULL.len() {
            let missing = (KeyRange::FULL.len() - held) as f64 / KeyRange::FULL.len() as f64;
            return Some(format!("{:.3} % of the ring is held by nobody", missing * 100.0));
        }
        (0..KEYS).find_map(|key| self.wrong_hint(key))
    }
}
