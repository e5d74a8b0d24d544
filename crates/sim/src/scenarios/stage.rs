//! What every scenario does alike: its hosts are started, faults strike, claims watch, everything heals and comes to rest, and
//! a report says what was seen.

use crate::clock::SimTime;
use crate::faults::{Chaos, Site};
use crate::invariants::{Claims, Sight, Violation, service_returns_after_faults};
use crate::kernel::{HostId, Observed, Process, Step, World};
use crate::report::{Failure, Report};
use crate::runner::Options;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::LogIndex;

/// A reminder with this number ends a phase. Those below are the faults' own, those above a scenario's.
pub const PHASE: u64 = 1 << 40;

/// A world, who lives in it, and what befalls it.
pub struct Stage<P: Process, T> {
    /// The hosts, the network, the time.
    pub world: World<P>,
    /// Who lives where.
    pub town: T,
    /// The faults.
    pub chaos: Chaos,
}

/// What a scenario adds to a report.
pub struct Outline {
    /// Its name.
    pub scenario: &'static str,
    /// Operations that clients began.
    pub operations: u64,
    /// Operations that were answered with what they asked for.
    pub answered: u64,
    /// Faults beside those of the schedule.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often each claim was checked.
    pub invariants: BTreeMap<String, u64>,
}

impl<P: Process, T: Site<P>> Stage<P, T> {
    /// Shows a fact to the claims about it.
    pub fn show<F>(&self, at: SimTime, host: HostId, fact: &F, claims: &mut Claims<F>) -> Result<(), Violation> {
        let clock = |host: HostId| self.world.is_up(host).then(|| self.world.clock(host).mono(self.world.now()));
        claims.observe(&Sight { at, host, clock: &clock }, fact)
    }

    /// How far each of these replicas is at the end, and a digest of its state.
    pub fn last_states(
        &mut self,
        replicas: &[HostId],
        digest: impl Fn(&mut P) -> Result<(LogIndex, u64), String>,
    ) -> Result<Vec<(HostId, LogIndex, u64)>, Violation> {
        let mut states = Vec::new();
        for host in replicas {
            let mut state = Err("it does not run".to_string());
            self.world.poke(*host, |process, _, _| state = digest(process));
            let none = |what| Violation::new("replicas_agree", format!("{host} has no digest: {what}"));
            let (index, state) = state.map_err(none)?;
            states.push((*host, index, state));
        }
        Ok(states)
    }

    /// What the run says of itself.
    pub fn report(&self, seed: u64, options: &Options, found: Option<Violation>, outline: Outline) -> Report {
        let network = self.world.network.counts();
        let messages = [
            ("message_dropped", network.dropped),
            ("message_duplicated", network.duplicated),
            ("message_reordered", network.reordered),
            ("message_delayed", network.delayed),
            ("message_cut", network.cut),
        ];
        let faults = self.chaos.counts().iter().chain(&outline.faults).map(|(kind, count)| (*kind, *count));
        let mutant = options.mutant.map(|mutant| format!(" --mutant {mutant}")).unwrap_or_default();
        let minutes = options.simulated.as_secs_f64() / 60.0;
        let usual = super::ALL.iter().any(|known| known.name == outline.scenario && known.minutes as f64 == minutes);
        let length = if usual { String::new() } else { format!(" --length {minutes}") };
        let failures = found.map(|violation| Failure {
            seed,
            invariant: violation.invariant,
            message: violation.what,
            at: self.world.now().to_string(),
            replay: format!("tidings sim {} --seed {seed}{mutant}{length}", outline.scenario),
            trace: self.world.trace.lines().map(str::to_string).collect(),
        });
        Report {
            scenario: outline.scenario.to_string(),
            seeds_run: 1,
            seeds: Some((seed, seed)),
            simulated_seconds: self.world.now().since(SimTime::ZERO).as_secs_f64(),
            operations: outline.operations,
            answered: outline.answered,
            events: self.world.trace.events(),
            faults: faults.chain(messages).map(|(kind, count)| (kind.to_string(), count)).collect(),
            replicas: BTreeMap::new(),
            invariants: outline.invariants,
            trace_hash: format!("{:016x}", self.world.trace.hash()),
            failures: failures.into_iter().collect(),
        }
    }
}

/// How a world comes to rest.
pub struct Rest {
    /// How often it is looked at.
    pub every: Duration,
    /// How many looks in a row must find nothing.
    pub looks: u32,
    /// Until when that must have happened.
    pub within: Duration,
    /// The claim that is broken otherwise.
    pub claim: &'static str,
}

/// One run of a scenario.
pub trait Play {
    /// Its processes.
    type Actor: Process;
    /// Who lives where.
    type Town: Site<Self::Actor>;
    /// What a process that does not start breaks.
    const STARTS: &'static str;

    /// Where it plays.
    fn stage(&mut self) -> &mut Stage<Self::Actor, Self::Town>;

    /// Looks at a fact.
    fn observe(&mut self, observed: Observed<<Self::Actor as Process>::Fact>) -> Result<(), Violation>;

    /// What keeps the world from being at rest.
    fn unsettled(&self) -> Option<String>;

    /// A reminder above [`PHASE`]: the scenario's own.
    fn reminded(&mut self, id: u64) -> Result<(), Violation>;

    /// Starts hosts, in this order.
    fn start(&mut self, hosts: Vec<HostId>) -> Result<(), Violation> {
        let stage = self.stage();
        for host in hosts {
            let started = stage.world.start(host, &mut stage.town);
            started.map_err(|why| Violation::new(Self::STARTS, format!("{host}: {why}")))?;
        }
        Ok(())
    }

    /// Lets the world run for a time.
    fn until(&mut self, time: Duration) -> Result<(), Violation> {
        self.stage().world.remind(time, PHASE);
        loop {
            let step = self.stage().world.step();
            self.watch()?;
            match step {
                Step::Reminder(PHASE) => return Ok(()),
                Step::Reminder(id) if id > PHASE => {
                    self.reminded(id)?;
                    self.watch()?;
                }
                Step::Reminder(id) => {
                    let stage = self.stage();
                    let done = stage.chaos.reminded(&mut stage.world, &mut stage.town, id);
                    done.map_err(|what| Violation::new(Self::STARTS, what))?;
                    self.watch()?;
                }
                Step::Exited(host, _) => {
                    let stage = self.stage();
                    stage.chaos.exited(&mut stage.world, host);
                }
                Step::Ran => {}
                Step::Idle => return Err(Violation::new("time_goes_on", "nothing is left to happen")),
            }
        }
    }

    /// Shows every fact to the claims about it.
    fn watch(&mut self) -> Result<(), Violation> {
        for observed in self.stage().world.drain_facts() {
            self.observe(observed)?;
        }
        Ok(())
    }

    /// After the heal: waits until every replica is whole again.
    fn mend(&mut self, every: Duration) -> Result<(), Violation> {
        let begin = self.stage().world.now();
        loop {
            let stage = self.stage();
            if !stage.chaos.is_mending(&stage.world, &stage.town) {
                return Ok(());
            }
            if stage.world.now().since(begin) > stage.chaos.patience() {
                return Err(Violation::new(service_returns_after_faults::NAME, "a replica never became whole again"));
            }
            self.until(every)?;
        }
    }

    /// Waits until nothing is left to be done.
    fn come_to_rest(&mut self, rest: &Rest) -> Result<(), Violation> {
        let begin = self.stage().world.now();
        let mut quiet = 0;
        while quiet < rest.looks {
            self.until(rest.every)?;
            match self.unsettled() {
                None => quiet += 1,
                Some(what) if self.stage().world.now().since(begin) > rest.within => {
                    return Err(Violation::new(rest.claim, what));
                }
                Some(_) => quiet = 0,
            }
        }
        Ok(())
    }
}
