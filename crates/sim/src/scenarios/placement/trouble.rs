//! What befalls a pool beside broken networks and machines: drains, departures, illness, hand-overs that fail or hang, a
//! namespace deleted and made again, a cell that is away for minutes; in busy seeds a load that policies want elsewhere.

use super::Run;
use super::fact::place;
use super::operator::{self, Operator};
use super::owner::Mood;
use super::town::{Actor, NAMESPACE};
use crate::faults::draw;
use crate::kernel::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyRange, OpId, Seeded};
use tidings_placement::Leased;
use tidings_placement::owner::Input;
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// Reminders from here on are this schedule's.
pub const FIRST_REMINDER: u64 = 1 << 41;
/// How often the operator looks whether the namespace is there.
const OPERATE: Duration = Duration::from_secs(2);

/// What is still to be done.
#[derive(Clone, Debug)]
enum Due {
    Strike,
    Operate,
    Start(HostId),
    Well(HostId),
    Mood(HostId, Mood),
    Cancel(String),
}

/// The schedule of one run.
pub struct Trouble {
    rng: Seeded,
    mean: u64,
    /// How often each kind comes up: one to four, or never in this run.
    weights: Vec<(Kind, u64)>,
    due: BTreeMap<u64, Due>,
    next_id: u64,
    counts: BTreeMap<&'static str, u64>,
    operator: Operator,
    /// Rounds of the operator until a deleted namespace is made again.
    away: u64,
    /// Owners that were ill or told to leave: from then on nobody counts on them to hold anything.
    troubled: BTreeSet<HostId>,
    /// The wishes of policies that each manager's process was last seen to have.
    wished: BTreeMap<HostId, u64>,
}

/// How often policies wanted something elsewhere.
pub const WISHES: &str = "policy_wishes";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Drain,
    OperatorsDrain,
    Departure,
    Illness,
    FailingHandOver,
    HangingHandOver,
    CellOutage,
    NamespaceDeleted,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Drain,
        Kind::OperatorsDrain,
        Kind::Departure,
        Kind::Illness,
        Kind::FailingHandOver,
        Kind::HangingHandOver,
        Kind::CellOutage,
        Kind::NamespaceDeleted,
    ];

    fn name(self) -> &'static str {
        match self {
            Kind::Drain => "drain",
            Kind::OperatorsDrain => "operators_drain",
            Kind::Departure => "departure",
            Kind::Illness => "illness",
            Kind::FailingHandOver => "failing_hand_over",
            Kind::HangingHandOver => "hanging_hand_over",
            Kind::CellOutage => "cell_outage",
            Kind::NamespaceDeleted => "namespace_deleted",
        }
    }
}

/// All names of these kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name)
}

impl Trouble {
    /// A schedule drawn from the generator.
    pub fn new(rng: &Seeded) -> Trouble {
        let mut rng = rng.fork("trouble");
        let weights = Kind::ALL.map(|kind| {
            let often = if rng.one_in(4) { 0 } else { rng.between(1, 4) };
            // A deleted namespace ends everything for everybody: seldom.
            (kind, if kind == Kind::NamespaceDeleted { often / 3 } else { often })
        });
        let mean = [10, 20, 40, 80][rng.below(4) as usize];
        Trouble {
            rng,
            mean,
            weights: weights.to_vec(),
            due: BTreeMap::new(),
            next_id: FIRST_REMINDER,
            counts: BTreeMap::new(),
            operator: Operator::default(),
            away: 0,
            troubled: BTreeSet::new(),
            wished: BTreeMap::new(),
        }
    }

    /// How many of each kind there were.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }
}

impl Run {
    /// Begins.
    pub(super) fn begin_trouble(&mut self) {
        self.later(Duration::ZERO, Due::Operate);
        // Aimed faults are all there is where there is a director.
        if self.director.is_none() {
            let mean = self.trouble.mean;
            self.later(Duration::from_secs(mean), Due::Strike);
        }
    }

    /// Trouble is over: whatever is down or ill is mended.
    pub(super) fn end_trouble(&mut self) {
        self.stage.town.calm = true;
        self.trouble.away = 0;
        for host in self.stage.town.owners.keys().copied().collect::<Vec<_>>() {
            self.tell_owner(host, Input::Healthy(true));
            self.set_mood(host, Mood::Works);
        }
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.trouble.next_id += 1;
        self.trouble.due.insert(self.trouble.next_id, due);
        self.stage.world.remind(after, self.trouble.next_id);
    }

    /// A reminder of the world that is this schedule's.
    pub(super) fn trouble_due(&mut self, id: u64) {
        let Some(due) = self.trouble.due.remove(&id) else { return };
        match due {
            Due::Strike if self.stage.town.calm => {}
            Due::Strike => {
                let wait = self.trouble.rng.between(1, 2 * self.trouble.mean);
                self.later(Duration::from_secs(wait), Due::Strike);
                if let Some(kind) = draw(&mut self.trouble.rng, &self.trouble.weights) {
                    *self.trouble.counts.entry(kind.name()).or_default() += 1;
                    self.strike(kind);
                }
            }
            Due::Operate => {
                self.operator();
                if self.config.rebalance_ms > 0 {
                    self.measure();
                }
                self.later(OPERATE, Due::Operate);
            }
            Due::Start(host) => {
                if !self.stage.world.is_up(host) {
                    // Nothing here can fail to start; if it did, the end would notice.
                    drop(self.stage.world.start(host, &mut self.stage.town));
                }
            }
            Due::Well(host) => self.tell_owner(host, Input::Healthy(true)),
            Due::Mood(host, mood) => self.set_mood(host, mood),
            Due::Cancel(owner) => self.drain(owner, true),
        }
    }

    fn strike(&mut self, kind: Kind) {
        let owners: Vec<HostId> = self.stage.town.owners.keys().copied().collect();
        let Some(host) = self.trouble.rng.pick(&owners).copied() else { return };
        // Sometimes so long that whoever is away is forgotten.
        let longest = if self.trouble.rng.one_in(6) { 400 } else { 120 };
        let a_while = Duration::from_secs(self.trouble.rng.between(5, longest));
        self.stage.world.note_fault(host, kind.name());
        if matches!(kind, Kind::Drain | Kind::OperatorsDrain | Kind::Illness) {
            self.trouble.troubled.insert(host);
        }
        match kind {
            Kind::Drain => self.tell_owner(host, Input::Drain),
            Kind::OperatorsDrain => {
                let owner = self.stage.town.owners.get(&host).map(|habits| habits.id.clone()).unwrap_or_default();
                self.drain(owner.clone(), false);
                self.later(a_while, Due::Cancel(owner));
            }
            Kind::Departure => {
                self.stage.world.kill(host);
                self.later(a_while, Due::Start(host));
            }
            Kind::Illness => {
                self.tell_owner(host, Input::Healthy(false));
                self.later(a_while, Due::Well(host));
            }
            Kind::FailingHandOver | Kind::HangingHandOver => {
                let mood = if kind == Kind::FailingHandOver { Mood::Fails } else { Mood::Hangs };
                self.set_mood(host, mood);
                self.later(a_while, Due::Mood(host, Mood::Works));
            }
            Kind::CellOutage => {
                self.stage.world.kill(self.stage.town.cell);
                let most = 2 * self.stage.town.times.lease.as_secs() + 60;
                let time = Duration::from_secs(self.trouble.rng.between(2, most));
                self.later(time, Due::Start(self.stage.town.cell));
            }
            Kind::NamespaceDeleted => {
                let delete = v1::NamespaceDelete { namespace: NAMESPACE.to_owned() };
                if self.ask_leader(Message::NamespaceDelete(delete)).is_some() {
                    self.trouble.operator = Operator::default();
                    self.trouble.away = self.trouble.rng.between(1, 20);
                }
            }
        }
    }

    /// Whether the namespace is there, as far as its operator knows.
    pub(super) fn has_namespace(&self) -> bool {
        self.trouble.operator.made && self.trouble.away == 0
    }

    /// Whether an owner has been ill or told to leave.
    pub(super) fn is_troubled(&self, host: HostId) -> bool {
        self.trouble.troubled.contains(&host)
    }

    pub(super) fn tell_owner(&mut self, host: HostId, input: Input) {
        self.stage.world.poke(host, |actor, now, out| {
            if let Actor::Owner(owner) = actor {
                owner.feed(now, input, out);
            }
        });
    }

    fn set_mood(&mut self, host: HostId, mood: Mood) {
        self.stage.world.poke(host, |actor, _, _| {
            if let Actor::Owner(owner) = actor {
                owner.set_mood(mood);
            }
        });
    }

    pub(super) fn drain(&mut self, owner: String, cancel: bool) {
        let drain = v1::OwnerDrain { namespace: NAMESPACE.to_owned(), owner, cancel };
        self.ask_leader(Message::OwnerDrain(drain));
    }

    fn ask_leader(&mut self, request: Message) -> Option<(HostId, OpId)> {
        operator::ask_leader(&mut self.stage.world, &self.stage.town.managers, request)
    }

    /// The operator sees to it that the namespace is there.
    fn operator(&mut self) {
        if self.trouble.away > 0 {
            self.trouble.operator.hear(&mut self.stage.world);
            self.trouble.away -= 1;
            return;
        }
        self.trouble.operator.look(&mut self.stage.world, &self.stage.town.managers, NAMESPACE, &self.config);
    }

    /// Applications say what they are asked for: most of it lies in one quarter of the ring, and much of it on one key. Without
    /// trouble they are asked for nothing, so that policies let everything come to rest.
    fn measure(&mut self) {
        for host in self.stage.town.owners.keys().copied().collect::<Vec<_>>() {
            let Some((owner, now)) = self.owner(host).filter(|_| !self.stage.world.is_paused(host)) else { continue };
            let load = match self.stage.town.calm {
                true => v1::OwnerLoad::default(),
                false => load(&owner.checks().held(now)),
            };
            self.tell_owner(host, Input::Load(load));
        }
        for host in &self.stage.town.managers {
            let Some(Actor::Manager(manager)) = self.stage.world.process(*host) else { continue };
            let (seen, last) = (manager.wishes(), self.trouble.wished.entry(*host).or_default());
            // Another process counts anew.
            *self.trouble.counts.entry(WISHES).or_default() += seen.checked_sub(*last).unwrap_or(seen);
            *last = seen;
        }
    }
}

/// What an application that holds these ranges measures.
fn load(held: &[Leased]) -> v1::OwnerLoad {
    let hottest = place(0);
    let (mut rate, mut hot) = (0.0, Vec::new());
    for Leased { range, .. } in held {
        let weight = if range.start.0 >> 62 == 0 { 4_000.0 } else { 1_000.0 };
        let on_one = if range.contains(hottest) { 700.0 } else { 0.0 };
        let whole = on_one + weight * range.len() as f64 / KeyRange::FULL.len() as f64;
        rate += whole;
        hot.push(v1::HotRange { start: range.start.0, last: range.last.0, rate: whole });
        if on_one > 0.0 && range.len() > 1 {
            hot.push(v1::HotRange { start: hottest.0, last: hottest.0, rate: on_one });
        }
    }
    v1::OwnerLoad { rate, hot, samples: 20_000 }
}
