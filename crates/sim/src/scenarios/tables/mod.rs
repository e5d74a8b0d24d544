//! Scenario `tables`: clients that write, read and watch a table whose partitions move, are cut and joined.
//!
//! ```text
//!   client ─ write, read, watch ─▶ node: routing, Gateway ─▶ node: Processor ─▶ rows: Front ⇄ agreed log (model)
//!                                    │ partitions: Owner, Lookup ⇄ managers ⇄ cell (model)
//!                                    └ directories: files of the cell
//! ```
//! All machines are the production ones, those of placement and of the store too. Messages are lost, repeated and late;
//! partitions move as leases lapse, and former owners hear of it late; nodes, store and clients crash; the store is slow, or
//! does not reach some rows; tables are dropped and made again; clients return with cursors, say something else of
//! themselves, and lose their claims; in some worlds one reads all again whenever it is told that something may have changed
//! (R9); devices leave, hear through Notify (a map of versions here), and come back. When the
//! faults are over every operation must have an outcome, every live query must have told what a fresh read says, and so must
//! what a device has that is away and was told nothing; and again after each of a few moments in which links fail for a blink
//! and nothing follows.

pub mod client;
pub mod fact;
pub mod files;
pub mod letter;
mod moments;
pub mod node;
pub mod notify;
pub mod town;
pub mod trouble;

use crate::faults::{Chaos, Kind, Targets};
use crate::invariants::acknowledged_changes_are_kept::AcknowledgedChangesAreKept;
use crate::invariants::an_operation_has_one_outcome::AnOperationHasOneOutcome;
use crate::invariants::cursors_are_sealed::CursorsAreSealed;
use crate::invariants::dropped_tables_stay_dropped::DroppedTablesStayDropped;
use crate::invariants::hidden_records_stay_hidden::HiddenRecordsStayHidden;
use crate::invariants::live_queries_equal_fresh_reads::LiveQueriesEqualFreshReads;
use crate::invariants::live_queries_have_no_clock::LiveQueriesHaveNoClock;
use crate::invariants::live_queries_never_go_back::LiveQueriesNeverGoBack;
use crate::invariants::reads_fit_the_definitions::ReadsFitTheDefinitions;
use crate::invariants::reads_keep_their_floors::ReadsKeepTheirFloors;
use crate::invariants::the_same_cursor_holds_the_same_rows::TheSameCursorHoldsTheSameRows;
use crate::invariants::whoever_is_away_is_told::WhoeverIsAwayIsTold;
use crate::invariants::{Claims, Violation};
use crate::kernel::{Effect, HostId, Observed, World};
use crate::mutant::Mutant;
use crate::report::Report;
use crate::runner::Options;
use crate::scenarios::placement::REACH;
use crate::scenarios::placement::fact::Fact as PlacementFact;
use crate::scenarios::stage::{Outline, Play, Rest, Stage};
use client::Client;
use fact::{Fact, TablesFact, key};
use files::{LASTING, PASSING};
use node::Neighbours;
use std::time::Duration;
use tidings_base::{KeyRange, Now, Outbox, Seeded};
use tidings_placement::config::Times;
use town::{Actor, Around, Town};
use trouble::Trouble;

/// How long a client thinks, on average.
const THINK: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(3)];
/// Everything is told within a silence that is noticed, a channel that is opened again, and ten seconds.
const CONVERGENCE: Duration = Duration::from_secs(24);

/// The claims about Tables.
pub fn tables_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<AcknowledgedChangesAreKept>::default(),
        Box::<AnOperationHasOneOutcome>::default(),
        Box::<ReadsFitTheDefinitions>::default(),
        Box::<ReadsKeepTheirFloors>::default(),
        Box::<LiveQueriesEqualFreshReads>::default(),
        Box::<LiveQueriesNeverGoBack>::default(),
        Box::<TheSameCursorHoldsTheSameRows>::default(),
        Box::<HiddenRecordsStayHidden>::default(),
        Box::<CursorsAreSealed>::default(),
        Box::<LiveQueriesHaveNoClock>::default(),
        Box::<DroppedTablesStayDropped>::default(),
        Box::<WhoeverIsAwayIsTold>::default(),
    ])
}

type Out = Outbox<Effect<TablesFact>>;

/// One run.
pub struct Run {
    stage: Stage<Actor, Town>,
    trouble: Trouble,
    /// What is drawn for the moments at the end.
    moments: Seeded,
    claims: Claims<Fact>,
    /// Facts that the scenario itself states.
    stated: Vec<Observed<TablesFact>>,
    begun: u64,
    answered: u64,
}

/// Runs one seed.
pub(super) fn run(seed: u64, options: &Options) -> Report {
    let mut run = Run::new(seed, options);
    let outcome = run.play(options.simulated);
    run.report(seed, options, outcome.err())
}

impl Run {
    fn new(seed: u64, options: &Options) -> Run {
        let rng = Seeded::new(seed).fork("tables");
        let mut own = rng.fork("town");
        let mut world = World::new(&rng, options.trace);
        let cell = world.add_host();
        let managers: Vec<HostId> = (0..2).map(|_| world.add_host()).collect();
        let servers: Vec<HostId> = vec![world.add_host()];
        let nodes: Vec<HostId> = (0..own.between(2, 4)).map(|_| world.add_host()).collect();
        let clients: Vec<HostId> = (0..4).map(|_| world.add_host()).collect();
        [cell, servers[0]].into_iter().for_each(|host| world.network.connect(host));
        let around = Around::default();
        around.files.create(LASTING, if own.one_in(2) { vec![key(4)] } else { Vec::new() });
        around.files.create(PASSING, Vec::new());
        // Not drawn: seeds that are kept for what they showed without copies, scans and devices go on as they did.
        let (copies, devices) = ((seed % 5).is_multiple_of(2), matches!(seed % 5, 2 | 4));
        let rereads = seed % 10 == 5;
        let others = clients.iter().copied().chain([cell]).chain(servers.clone()).collect();
        let replicas: Vec<HostId> = nodes.iter().chain(&managers).copied().collect();
        let times = Times::FAST;
        let targets = Targets { replicas, clients: others, lease: times.lease };
        // A wall clock that jumps would end claims at another time at every node.
        let chaos = Chaos::new(&rng, targets).reaching(REACH).without(&Kind::DISKS);
        let chaos = chaos.without(&[Kind::PowerCut, Kind::WallJump]);
        let whole = own.one_in(2);
        let town = Town {
            cell,
            agreed: Default::default(),
            around,
            neighbours: Neighbours { managers, servers, nodes },
            clients: (0..).zip(clients).map(|(number, host)| (host, (number, Default::default()))).collect(),
            times,
            nodes: node::Habits {
                piece: if whole { 256 << 10 } else { 150 },
                log: [12, 1_000][own.below(2) as usize],
                copies,
                devices,
                mutant: options.mutant.and_then(Mutant::of_tables),
            },
            habits: client::Habits { think: THINK[own.below(3) as usize], whole, scans: copies, devices, rereads },
            calm: false,
        };
        for host in town.everybody() {
            let ppm = own.below(2 * REACH as u64 + 1) as i32 - REACH;
            world.set_rate(host, ppm);
        }
        Run {
            stage: Stage { world, town, chaos },
            trouble: Trouble::new(&rng),
            moments: rng.fork("moments"),
            claims: tables_claims(),
            stated: Vec::new(),
            begun: 0,
            answered: 0,
        }
    }

    /// Everything from the first start to the last look.
    fn play(&mut self, faults: Duration) -> Result<(), Violation> {
        self.start(self.stage.town.everybody())?;
        self.begin_trouble();
        self.until(Duration::from_secs(10))?;
        self.stage.chaos.begin(&mut self.stage.world);
        self.until(faults)?;
        self.stage.chaos.heal(&mut self.stage.world);
        self.end_trouble();
        // A manager's fail-over, a whole lease, then every operation.
        let within = self.stage.town.times.honoured() * 4 + Duration::from_secs(120);
        let claim = "operations_get_outcomes";
        self.come_to_rest(&Rest { every: Duration::from_secs(5), looks: 2, within, claim })?;
        // Once more a few changes: whoever went deaf misses them.
        self.some_devices_leave()?;
        for _ in 0..2 {
            self.everybody_does(Client::begin)?;
        }
        self.until(CONVERGENCE)?;
        let rest = Rest { every: Duration::from_secs(1), looks: 1, within, claim };
        self.come_to_rest(&rest)?;
        self.everybody_does(Client::compare)?;
        self.come_to_rest(&rest)?;
        self.moments(&rest)?;
        self.visits(&rest)?;
        let first = self.stage.town.clients.keys().next().copied().unwrap_or_default();
        self.with_client(first, |client, now, out| client.read_last(now, out));
        self.come_to_rest(&rest)?;
        self.claims.conclude()
    }

    fn everybody_does(&mut self, mut act: impl FnMut(&mut Client, Now, &mut Out)) -> Result<(), Violation> {
        for host in self.stage.town.clients.keys().copied().collect::<Vec<_>>() {
            self.with_client(host, &mut act);
        }
        self.watch()
    }

    fn report(&self, seed: u64, options: &Options, found: Option<Violation>) -> Report {
        let outline = Outline {
            scenario: "tables",
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

    fn observe(&mut self, observed: Observed<TablesFact>) -> Result<(), Violation> {
        match &observed.fact {
            TablesFact::Tables(fact) => {
                match fact {
                    Fact::Begins { .. } | Fact::Asks { .. } => self.begun += 1,
                    Fact::Ends { .. } | Fact::Read { .. } | Fact::Passing { .. } => self.answered += 1,
                    _ => {}
                }
                self.stage.show(observed.at, observed.host, fact, &mut self.claims)
            }
            TablesFact::Placement(PlacementFact::Leads { .. }) => {
                self.stage.chaos.provoke(&mut self.stage.world, observed.host);
                Ok(())
            }
            TablesFact::Placement(_) | TablesFact::Log(_) => Ok(()),
        }
    }

    fn reminded(&mut self, id: u64) -> Result<(), Violation> {
        self.trouble_due(id);
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
        let waits = |host: &&HostId| !matches!(world.process(**host), Some(Actor::Client(client)) if client.is_quiet());
        town.clients.keys().find(waits).map(|client| format!("{client} still waits for an answer"))
    }
}
