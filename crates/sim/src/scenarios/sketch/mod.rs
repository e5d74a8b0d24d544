//! Scenario `sketch`: sketching nodes in front of a group with liars in it.
//!
//! ```text
//!   client ─ read, write, session ─▶ node { threads of Sketcher and Group, one History a site } ─ fast ─▶ one replica
//!                                      │ parts of the ring by lease (a model of placement)  └ commands ─▶ all replicas
//!   writer ─ Group, past the nodes ────┼──────────────────────────────────────────────────────▶   │
//!                                      └────────────── blocks ◀── order (the model of an engine) ◀┘
//! ```
//! The machines are the production ones: sketcher, history, the group's client, the replica's execution, sessions. Of 3f + 1
//! replicas f lie, each in its own way; replies that honest ones have signed are sent again. Messages are lost, repeated and
//! late; everybody crashes and pauses; ranges move, and moves are called off; in every third seed two sites share the leases; the group begins new lives. When the faults are
//! over every request must be answered.
//!
//! `sketch-direct` is the same town without sketching nodes: clients of D-Prophecy ask the replicas what they remember, and the liars
//! know what everybody remembers.

pub mod client;
pub mod fact;
pub mod letter;
pub mod node;
pub mod order;
pub mod reader;
pub mod ring;
pub mod seat;
pub mod town;
pub mod trouble;

use crate::faults::{Chaos, Kind, Targets};
use crate::invariants::answers_were_true::AnswersWereTrue;
use crate::invariants::calm_requests_are_answered::CalmRequestsAreAnswered;
use crate::invariants::correct_replicas_never_diverge::CorrectReplicasNeverDiverge;
use crate::invariants::fast_answers_were_agreed_on::FastAnswersWereAgreedOn;
use crate::invariants::reads_are_delayed_once::ReadsAreDelayedOnce;
use crate::invariants::remembered_answers_were_ordered::RememberedAnswersWereOrdered;
use crate::invariants::sessions_read_their_writes::SessionsReadTheirWrites;
use crate::invariants::writes_are_linearizable::WritesAreLinearizable;
use crate::invariants::{Claims, Violation};
use crate::kernel::{Effect, HostId, Observed, World};
use crate::mutant::Mutant;
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::stage::{Outline, Play, Rest, Stage};
use fact::Fact;
use std::time::Duration;
use tidings_base::{Incarnation, Outbox, Seeded};
use tidings_sketch::replica::Replica;
use tidings_sketch::replica::liar::{Liar, Sin};
use tidings_sketch::replica::pages::Pages;
use tidings_sketch::sketcher::How;
use town::{Actor, CLIENTS, Habits, Role, Town};
use trouble::Trouble;

/// How long clients think, on average.
const THINK: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1)];
/// The scale of pauses.
const LEASE: Duration = Duration::from_secs(1);
/// Everybody has started, no pause goes on, and no call of before does.
const MENDING: Duration = Duration::from_secs(12);
/// How long clients go on after that.
const CALM: Duration = Duration::from_secs(15);

/// The claims about Sketch.
pub fn sketch_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<AnswersWereTrue>::default(),
        Box::<ReadsAreDelayedOnce>::default(),
        Box::<SessionsReadTheirWrites>::default(),
        Box::<FastAnswersWereAgreedOn>::default(),
        Box::<WritesAreLinearizable>::default(),
        Box::<CorrectReplicasNeverDiverge>::default(),
        Box::<CalmRequestsAreAnswered>::default(),
    ])
}

/// The claims about D-Prophecy.
pub fn direct_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<AnswersWereTrue>::default(),
        Box::<ReadsAreDelayedOnce>::default(),
        Box::<RememberedAnswersWereOrdered>::default(),
        Box::<WritesAreLinearizable>::default(),
        Box::<CorrectReplicasNeverDiverge>::default(),
        Box::<CalmRequestsAreAnswered>::default(),
    ])
}

/// One run.
pub struct Run {
    stage: Stage<Actor, Town>,
    trouble: Trouble,
    claims: Claims<Fact>,
    begun: u64,
    answered: u64,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    play(seed, options, false)
}

/// Runs one seed with D-Prophecy's clients in the place of sketching nodes and theirs.
pub(super) fn run_direct(seed: u64, options: &Options) -> Report {
    play(seed, options, true)
}

fn play(seed: u64, options: &Options, direct: bool) -> Report {
    let mut run = Run::new(seed, options, direct);
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

/// Liars of different sins; a pair of the same would agree. Of D-Prophecy's every other seed has one at least that says what somebody
/// says who is behind: the others are found out at once.
fn liar(seed: u64, number: u16, direct: bool, rng: &Seeded) -> Liar {
    let stale = direct && number == 0 && seed % 4 < 2;
    let sin = if stale { Sin::Stale } else { Sin::ALL[(seed as usize + 2 * usize::from(number)) % Sin::ALL.len()] };
    let mut rng = rng.fork(&format!("liar {number}"));
    let true_in_order = direct && rng.one_in(2);
    let mut liar = Liar::new(sin, rng);
    liar.true_in_order = true_in_order;
    liar
}

impl Run {
    fn new(seed: u64, options: &Options, direct: bool) -> Run {
        let rng = Seeded::new(seed).fork("sketch");
        let mut own = rng.fork("town");
        let mutant = options.mutant.and_then(Mutant::of_sketch);
        let faults = if own.one_in(4) { 2 } else { 1 };
        let habits = Habits {
            replicas: 3 * faults + 1,
            faults,
            direct,
            sites: if seed.is_multiple_of(3) { 2 } else { 1 },
            entries: [10, 200][own.below(2) as usize],
            tag_bits: if own.one_in(4) { 2 } else { 32 },
            replays: own.one_in(2),
            think: THINK[own.below(3) as usize],
            mutant,
        };
        let mut world = World::new(&rng, options.trace);
        let order = world.add_host();
        let replicas: Vec<HostId> = (0..habits.replicas).map(|_| world.add_host()).collect();
        let nodes = if direct { 0 } else { own.between(2, 3) };
        let nodes: Vec<HostId> = (0..nodes).map(|_| world.add_host()).collect();
        let writer = world.add_host();
        let clients: Vec<HostId> = (0..3).map(|_| world.add_host()).collect();
        let state = Replica::new(Incarnation(1), 0..CLIENTS, Pages::default()).without(mutant);
        let disks = (0..habits.replicas).map(|number| {
            let liar = (number < faults).then(|| liar(seed, number, direct, &own));
            seat::Disk::new(state.clone(), liar)
        });
        let targets = Targets {
            replicas: replicas.iter().chain(&nodes).copied().collect(),
            clients: clients.iter().copied().chain([order, writer]).collect(),
            lease: LEASE,
        };
        let chaos = Chaos::new(&rng, targets).without(&Kind::DISKS).without(&[Kind::WallJump]);
        let ring = ring::Ring::default();
        if !direct {
            (0..ring::PARTS).for_each(|part| ring.grant(part, part % nodes.len()));
        }
        let town = Town {
            disks: disks.collect(),
            agreed: order::SharedAgreed::new(own.fork("order"), habits.replicas, state),
            order,
            replicas,
            nodes,
            writer,
            clients,
            ring,
            post: Default::default(),
            captured: Default::default(),
            taken: Default::default(),
            requests: Default::default(),
            names: Default::default(),
            habits,
            calm: false,
        };
        Run {
            stage: Stage { world, town, chaos },
            trouble: Trouble::new(&rng),
            claims: if direct { direct_claims() } else { sketch_claims() },
            begun: 0,
            answered: 0,
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        self.start(self.stage.town.everybody())?;
        self.begin_trouble();
        self.until(Duration::from_secs(5))?;
        self.stage.chaos.begin(&mut self.stage.world);
        self.until(faults / 2)?;
        self.stage.town.disks.iter().for_each(seat::Disk::awake);
        self.until(faults / 2)?;
        self.stage.chaos.heal(&mut self.stage.world);
        self.end_trouble();
        self.until(MENDING)?;
        self.stage.town.calm = true;
        self.clients_do(|role, _| match role {
            Role::Client(client) => client.calm(),
            Role::Reader(reader) => reader.calm(),
            Role::Writer(writer) => writer.calm(),
            _ => {}
        });
        self.until(CALM)?;
        self.clients_do(|role, _| match role {
            Role::Client(client) => client.stop(),
            Role::Reader(reader) => reader.stop(),
            Role::Writer(writer) => writer.stop(),
            _ => {}
        });
        let within = Duration::from_secs(30);
        let claim = "everything_is_executed";
        self.come_to_rest(&Rest { every: Duration::from_secs(1), looks: 2, within, claim })?;
        self.claims.conclude()
    }

    fn clients_do(&mut self, act: impl Fn(&mut Role, &mut Outbox<Effect<Fact>>)) {
        for host in self.stage.town.everybody() {
            self.stage.world.poke(host, |actor, _, out| act(&mut actor.role, out));
        }
    }

    fn report(&mut self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        for (number, host) in self.stage.town.replicas.clone().into_iter().enumerate() {
            if let Some(Role::Replica(seat)) = self.stage.world.process(host).map(|actor| &actor.role) {
                let replayed = seat.replayed();
                self.trouble.count("replayed_reply", replayed);
            }
            if number < usize::from(self.stage.town.habits.faults) {
                let direct = self.stage.town.habits.direct;
                self.trouble.count(liar(seed, number as u16, direct, &Seeded::new(0)).sin.name(), 1);
            }
        }
        let outline = Outline {
            scenario: if self.stage.town.habits.direct { "sketch-direct" } else { "sketch" },
            operations: self.begun,
            answered: self.answered,
            faults: self.trouble.counts().clone(),
            invariants: self.claims.counts(),
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
        match &observed.fact {
            Fact::Asks { .. } => self.begun += 1,
            Fact::Answered { how, .. } => {
                self.answered += 1;
                self.trouble.count(if *how == How::Fast { "fast_answer" } else { "agreed_answer" }, 1);
            }
            _ => {}
        }
        self.stage.show(observed.at, observed.host, &observed.fact, &mut self.claims)
    }

    fn reminded(&mut self, id: u64) -> Result<(), Violation> {
        self.trouble_due(id);
        Ok(())
    }

    fn unsettled(&self) -> Option<String> {
        let Stage { world, town, .. } = &self.stage;
        if let Some(host) = town.everybody().into_iter().find(|host| !world.is_up(*host) || world.is_paused(*host)) {
            return Some(format!("{host} does not run"));
        }
        for host in town.everybody() {
            let quiet = match world.process(host).map(|actor| &actor.role) {
                Some(Role::Client(client)) => client.is_quiet(),
                Some(Role::Reader(reader)) => reader.is_quiet(),
                Some(Role::Node(node)) => node.is_quiet(),
                _ => true,
            };
            if !quiet {
                return Some(format!("{host} still waits for an answer"));
            }
        }
        let behind = |number: &usize| !town.agreed.is_done(*number, town.disks[*number].height());
        (0..town.disks.len()).find(behind).map(|number| format!("replica {number} has not executed everything"))
    }
}
