//! Scenario `placement`: leases and partitioning whole, from applications over owners, lookups and managers to the cell.
//!
//! ```text
//!   owner host: Checks ◀─ Owner (machine) ⇄ ┐                 ┌ manager host: Manager (machine) ⇄ session, lock ┐
//!       ▲ Want                              ├─ OwnerPoll ────▶│                                                 ├▶ cell
//!   client host: application ⇄ Lookup ⇄ ────┘─ LookupPoll ───▶└ manager host: standby                          ┘
//! ```
//! The machines are the production ones; the cell is a model of what managers see of it (files with generations, a lock with
//! a sequencer that is checked at the change, sessions that end), adverse in what it may be. Clocks run at rates whose ratio
//! is at most 1 + ρ, most of them at the bound. After the faults every key must be owned, every lookup right, every client served.

pub mod asking;
pub mod cell;
pub mod client;
pub mod fact;
pub mod letter;
pub mod manager;
pub mod owner;
pub mod town;
pub mod trouble;

use crate::clock::SimTime;
use crate::faults::{Chaos, Kind, Targets};
use crate::invariants::a_lapsed_lease_stays_lapsed::ALapsedLeaseStaysLapsed;
use crate::invariants::lease_numbers_only_grow::LeaseNumbersOnlyGrow;
use crate::invariants::leases_are_dated_from_the_question::LeasesAreDatedFromTheQuestion;
use crate::invariants::losses_are_told::LossesAreTold;
use crate::invariants::one_believer_per_key::OneBelieverPerKey;
use crate::invariants::{Claims, Sight, Violation};
use crate::kernel::{HostId, Step, World};
use crate::mutant::Mutant;
use crate::report::{Failure, Report};
use crate::runner::Options;
use fact::{Fact, KEYS, place};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::time::RHO_PERCENT;
use tidings_base::{KeyRange, LeaseNumber, Mono, Seeded};
use tidings_placement::config::Times;
use town::{Actor, Habits, Town};
use trouble::{FIRST_REMINDER, Trouble};

/// The furthest a clock may run from true time: so far that the fastest and the slowest differ by the factor 1 + ρ, which is
/// what a manager's lease is longer by than an owner's. (Half of ρ to either side would be a little more.)
const REACH: i32 = (RHO_PERCENT as i32 * 1_000_000) / (200 + RHO_PERCENT as i32);
/// Reminders with these numbers are the scenario's own: the end of a phase, and a look at everybody.
const PHASE: u64 = 1 << 40;
const LOOK: u64 = PHASE + 1;
/// How often everybody is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Faults of disks: nothing here has one.
const DISKS: [Kind; 7] = [
    Kind::SlowDisk,
    Kind::FullDisk,
    Kind::WriteError,
    Kind::SyncError,
    Kind::ReadError,
    Kind::BitFlip,
    Kind::TruncatedFile,
];

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
    world: World<Actor>,
    town: Town,
    chaos: Chaos,
    trouble: Trouble,
    virtual_nodes: u32,
    claims: Claims<Fact>,
    /// Since when each paused owner sleeps, on its own clock.
    asleep: BTreeMap<HostId, Mono>,
    slept: u64,
    looks: u64,
    served: u64,
    refused: u64,
    settled: u64,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    let mut run = Run::new(seed, options);
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("placement");
        let mut own = rng.fork("town");
        let mut world = World::new(&rng, options.trace);
        let cell = world.add_host();
        let managers: Vec<HostId> = (0..own.between(2, 3)).map(|_| world.add_host()).collect();
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
            (world.add_host(), Habits { id: format!("owner {id}"), hands_over, proves })
        });
        let owners: BTreeMap<HostId, Habits> = habits.collect();
        let clients: Vec<HostId> = (0..own.between(1, 4)).map(|_| world.add_host()).collect();
        world.network.connect(cell);
        let everybody = [cell].into_iter().chain(managers.clone()).chain(owners.keys().copied()).chain(clients.clone());
        for host in everybody {
            // Most clocks at the bound: what is between is no worse.
            let ppm = [-REACH, -REACH, REACH, REACH, own.below(2 * REACH as u64) as i32 - REACH][own.below(5) as usize];
            world.set_rate(host, ppm);
        }
        let replicas = managers.iter().copied().chain(owners.keys().copied()).collect();
        let others = clients.iter().copied().chain([cell]).collect();
        let targets = Targets { replicas, clients: others, lease: times.lease };
        let mutant = options.mutant.and_then(Mutant::of_placement);
        Run {
            world,
            chaos: Chaos::new(&rng, targets).reaching(REACH).without(&DISKS),
            trouble: Trouble::new(&rng),
            virtual_nodes,
            town: Town { cell, agreed: Default::default(), managers, owners, clients, times, mutant },
            claims: placement_claims(),
            asleep: BTreeMap::new(),
            slept: 0,
            looks: 0,
            served: 0,
            refused: 0,
            settled: 0,
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        let owners: Vec<HostId> = self.town.owners.keys().copied().collect();
        let managers = self.town.managers.clone();
        let clients = self.town.clients.clone();
        for host in [self.town.cell].into_iter().chain(managers).chain(owners).chain(clients) {
            let started = self.world.start(host, &mut self.town);
            started.map_err(|why| Violation::new("processes_start", format!("{host}: {why}")))?;
        }
        self.begin_trouble();
        self.world.remind(LOOK_EVERY, LOOK);
        self.until(Duration::from_secs(10))?;
        self.chaos.begin(&mut self.world);
        self.until(faults)?;
        self.chaos.heal(&mut self.world);
        self.end_trouble();
        self.settle()?;
        self.claims.conclude()
    }

    /// Lets the world run for a time.
    fn until(&mut self, time: Duration) -> Result<(), Violation> {
        self.world.remind(time, PHASE);
        loop {
            let step = self.world.step();
            self.watch()?;
            match step {
                Step::Reminder(PHASE) => return Ok(()),
                Step::Reminder(LOOK) => {
                    self.look()?;
                    self.world.remind(LOOK_EVERY, LOOK);
                }
                Step::Reminder(id) if id >= FIRST_REMINDER => {
                    self.trouble_due(id);
                    self.watch()?;
                }
                Step::Reminder(id) => {
                    let done = self.chaos.reminded(&mut self.world, &mut self.town, id);
                    done.map_err(|what| Violation::new("processes_start", what))?;
                    self.watch()?;
                }
                Step::Exited(host, _) => self.chaos.exited(&mut self.world, host),
                Step::Ran => {}
                Step::Idle => return Err(Violation::new("time_goes_on", "nothing is left to happen")),
            }
        }
    }

    /// Shows every fact to the claims.
    fn watch(&mut self) -> Result<(), Violation> {
        for observed in self.world.drain_facts() {
            let world = &self.world;
            let clock = |host: HostId| world.is_up(host).then(|| world.clock(host).mono(world.now()));
            let sight = Sight { at: observed.at, host: observed.host, clock: &clock };
            self.claims.observe(&sight, &observed.fact)?;
            match observed.fact {
                Fact::Served { .. } => self.served += 1,
                Fact::Refused => self.refused += 1,
                Fact::Leads { .. } => self.chaos.provoke(&mut self.world, observed.host),
                Fact::Alarm(what) => return Err(Violation::new("clean_grants_bring_their_state", what)),
                _ => {}
            }
        }
        Ok(())
    }

    fn owner(&self, host: HostId) -> Option<(&owner::Host, Mono)> {
        match self.world.process(host) {
            Some(Actor::Owner(owner)) => Some((owner, self.world.clock(host).mono(self.world.now()))),
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
        for host in self.town.owners.keys().copied().collect::<Vec<_>>() {
            let Some(now) = self.owner(host).filter(|_| self.world.is_paused(host)).map(|(_, now)| now) else {
                self.asleep.remove(&host);
                continue;
            };
            let since = *self.asleep.entry(host).or_insert(now);
            let Some((owner, now)) = self.owner(host) else { continue };
            if now.since(since) >= self.town.times.lease {
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
        let held = self.town.owners.keys().filter_map(|host| {
            let (owner, now) = self.owner(*host)?;
            Some((*host, owner.checks().check_now(place(key), || now)?))
        });
        held.collect()
    }

    // ---- after the faults -------------------------------------------------------------------------------------------

    /// Everything must be owned, every lookup right and every client served within bounds, and stay so.
    fn settle(&mut self) -> Result<(), Violation> {
        let begin = self.world.now();
        // A manager's fail-over and a whole lease, an owner's refused registration, a drain that was under way, a move that hangs.
        let patience = self.town.times.honoured() * 4 + Duration::from_secs(240);
        let mut quiet = 0;
        while quiet < 3 {
            self.until(Duration::from_secs(10))?;
            match self.unsettled() {
                None => quiet += 1,
                Some(what) if self.world.now().since(begin) > patience => {
                    return Err(Violation::new("every_key_is_owned_again", what));
                }
                Some(_) => quiet = 0,
            }
        }
        let before: Vec<(u64, u64, u64)> = self.client_counts();
        self.until(Duration::from_secs(30))?;
        for (before, after) in before.into_iter().zip(self.client_counts()) {
            self.settled += after.1 - before.1;
            if after.1 < before.1 + 3 || after.2 > before.2 {
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
        let clients = self.town.clients.iter().map(|host| match self.world.process(*host) {
            Some(Actor::Client(client)) => client.counts(),
            _ => (0, 0, 0),
        });
        clients.collect()
    }

    /// What is not yet as it should be.
    fn unsettled(&self) -> Option<String> {
        let everybody = self.town.managers.iter().chain(self.town.owners.keys()).chain(&self.town.clients);
        if let Some(host) = everybody.chain([&self.town.cell]).find(|host| self.world.is_paused(**host)) {
            return Some(format!("{host} sleeps"));
        }
        let mut held: u128 = 0;
        for host in self.town.owners.keys() {
            let Some((owner, now)) = self.owner(*host) else { return Some(format!("{host} does not run")) };
            held += owner.checks().held(now).iter().map(|leased| leased.range.len()).sum::<u128>();
        }
        if held != KeyRange::FULL.len() {
            let missing = (KeyRange::FULL.len() - held) as f64 / KeyRange::FULL.len() as f64;
            return Some(format!("{:.3} % of the ring is held by nobody", missing * 100.0));
        }
        for host in &self.town.clients {
            let Some(Actor::Client(client)) = self.world.process(*host) else {
                return Some(format!("{host} does not run"));
            };
            for key in 0..KEYS {
                let hint = client.hint(key).map(|(address, lease)| (address.to_owned(), lease));
                let truth = self.believers(key).first().map(|(host, lease)| (host.to_string(), *lease));
                if hint != truth {
                    return Some(format!("{host} says that key {key} is at {hint:?}, and it is at {truth:?}"));
                }
            }
        }
        None
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let network = self.world.network.counts();
        let faults = self.chaos.counts().iter().chain(self.trouble.counts());
        let mut faults: BTreeMap<String, u64> = faults.map(|(kind, count)| (kind.to_string(), *count)).collect();
        let messages = [
            ("message_dropped", network.dropped),
            ("message_duplicated", network.duplicated),
            ("message_reordered", network.reordered),
            ("message_delayed", network.delayed),
            ("message_cut", network.cut),
        ];
        faults.extend(messages.into_iter().map(|(kind, count)| (kind.to_string(), count)));
        let mut invariants = self.claims.counts();
        *invariants.entry("one_believer_per_key".to_string()).or_default() += self.looks;
        invariants.insert("a_slept_lease_is_over".to_string(), self.slept);
        invariants.insert("clients_are_served_again".to_string(), self.settled);
        let failures = found.map(|violation| Failure {
            seed,
            invariant: violation.invariant,
            message: violation.what,
            at: self.world.now().to_string(),
            replay: replay(seed, options),
            trace: self.world.trace.lines().map(str::to_string).collect(),
        });
        Report {
            scenario: "placement".to_string(),
            seeds_run: 1,
            seeds: Some((seed, seed)),
            simulated_seconds: self.world.now().since(SimTime::ZERO).as_secs_f64(),
            operations: self.served + self.refused,
            answered: self.served,
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
    format!("tidings sim placement --seed {seed}{mutant}")
}
