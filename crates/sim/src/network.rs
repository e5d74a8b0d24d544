//! The simulated network: it drops, duplicates, reorders and delays, and it can be cut in one direction or both.

use crate::clock::SimTime;
use crate::kernel::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::Seeded;

/// How the network treats messages while nothing is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// The least delay.
    pub delay: Duration,
    /// Added evenly on top.
    pub jitter: Duration,
    /// The share of messages that are dropped.
    pub drop: f64,
    /// The share that arrive twice.
    pub duplicate: f64,
    /// The share that are held up far longer than the rest, so that later ones overtake them.
    pub tail: f64,
    /// How long those are held up at most.
    pub tail_delay: Duration,
}

impl Weather {
    /// A quiet local network.
    pub const CALM: Weather = Weather {
        delay: Duration::from_micros(200),
        jitter: Duration::from_micros(800),
        drop: 0.0,
        duplicate: 0.0,
        tail: 0.0,
        tail_delay: Duration::ZERO,
    };

    /// A bad day, its strength drawn from the seed.
    pub fn bad(rng: &mut Seeded) -> Weather {
        let share = |rng: &mut Seeded, most: u64| rng.below(most + 1) as f64 / 1_000.0;
        Weather {
            delay: Duration::from_micros(rng.between(100, 5_000)),
            jitter: Duration::from_micros(rng.between(100, 20_000)),
            drop: share(rng, 50),
            duplicate: share(rng, 50),
            tail: share(rng, 50),
            tail_delay: Duration::from_millis(rng.between(50, 5_000)),
        }
    }
}

/// What the network did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages handed to the network.
    pub sent: u64,
    /// Dropped at random.
    pub dropped: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Overtook an earlier message of the same direction.
    pub reordered: u64,
    /// Held up by a long tail.
    pub delayed: u64,
    /// Stopped by a cut.
    pub cut: u64,
}

/// Names a cut, so that it can be healed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CutId(u64);

/// When a message arrives: not at all, once, or twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The first arrival, if there is one.
    pub first: Option<SimTime>,
    /// The second, if it is duplicated.
    pub second: Option<SimTime>,
}

/// The network of one world.
#[derive(Debug)]
pub struct Network {
    rng: Seeded,
    weather: Weather,
    hosts: usize,
    /// How many cuts lie on each direction, by `from * hosts + to`.
    blocked: Vec<u16>,
    /// The latest arrival so far on each direction, to tell what was overtaken.
    latest: Vec<SimTime>,
    cuts: BTreeMap<CutId, Vec<(HostId, HostId)>>,
    /// Directions on which everything takes so much longer.
    late: BTreeMap<(HostId, HostId), Duration>,
    /// Hosts that talk over connections.
    connecting: BTreeSet<HostId>,
    next_cut: u64,
    counts: Counts,
}

impl Network {
    /// A calm network.
    pub fn new(rng: Seeded) -> Network {
        Network {
            rng,
            weather: Weather::CALM,
            hosts: 0,
            blocked: Vec::new(),
            latest: Vec::new(),
            cuts: BTreeMap::new(),
            late: BTreeMap::new(),
            connecting: BTreeSet::new(),
            next_cut: 0,
            counts: Counts::default(),
        }
    }

    /// Makes room for this many hosts. Cuts made before are kept.
    pub fn grow(&mut self, hosts: usize) {
        self.hosts = hosts;
        self.blocked = vec![0; hosts * hosts];
        self.latest = vec![SimTime::ZERO; hosts * hosts];
        for (from, to) in self.cuts.values().flatten() {
            self.blocked[from.index() * hosts + to.index()] += 1;
        }
    }

    /// This host talks over connections, as clients do: its messages are dropped and delayed, never duplicated.
    pub fn connect(&mut self, host: HostId) {
        self.connecting.insert(host);
    }

    /// Changes the weather.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// The present weather.
    pub fn weather(&self) -> Weather {
        self.weather
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Cuts these directions until the cut is healed.
    pub fn cut(&mut self, directions: Vec<(HostId, HostId)>) -> CutId {
        for (from, to) in &directions {
            self.blocked[from.index() * self.hosts + to.index()] += 1;
        }
        let id = CutId(self.next_cut);
        self.next_cut += 1;
        self.cuts.insert(id, directions);
        id
    }

    /// Heals one cut; nothing happens if it is healed already.
    pub fn heal(&mut self, id: CutId) {
        for (from, to) in self.cuts.remove(&id).unwrap_or_default() {
            self.blocked[from.index() * self.hosts + to.index()] -= 1;
        }
    }

    /// What is sent in this direction from now on takes so much longer; zero = no longer. What is on its way stays late.
    pub fn hold_up(&mut self, from: HostId, to: HostId, by: Duration) {
        self.late.insert((from, to), by);
    }

    /// Heals everything.
    pub fn heal_all(&mut self) {
        self.cuts.clear();
        self.late.clear();
        self.blocked.fill(0);
    }

    /// Whether messages pass in this direction.
    pub fn connected(&self, from: HostId, to: HostId) -> bool {
        self.blocked[from.index() * self.hosts + to.index()] == 0
    }

    /// Decides when a message that is sent now arrives.
    pub fn route(&mut self, now: SimTime, from: HostId, to: HostId) -> Arrivals {
        self.counts.sent += 1;
        if !self.connected(from, to) {
            self.counts.cut += 1;
            return Arrivals::default();
        }
        if self.weather.drop > 0.0 && self.rng.chance(self.weather.drop) {
            self.counts.dropped += 1;
            return Arrivals::default();
        }
        let first = self.arrival(now, from, to);
        let connected = self.connecting.contains(&from) || self.connecting.contains(&to);
        let twice = self.weather.duplicate > 0.0 && !connected && self.rng.chance(self.weather.duplicate);
        let second = twice.then(|| {
            self.counts.duplicated += 1;
            self.arrival(now, from, to)
        });
        Arrivals { first: Some(first), second }
    }

    fn arrival(&mut self, now: SimTime, from: HostId, to: HostId) -> SimTime {
        let weather = self.weather;
        let jitter = self.rng.below(nanos(weather.jitter) + 1);
        let late = self.late.get(&(from, to)).copied().unwrap_or_default();
        let mut at = now + weather.delay + late + Duration::from_nanos(jitter);
        if weather.tail > 0.0 && self.rng.chance(weather.tail) {
            at = at + Duration::from_nanos(self.rng.below(nanos(weather.tail_delay) + 1));
            self.counts.delayed += 1;
        }
        let latest = &mut self.latest[from.index() * self.hosts + to.index()];
        if at < *latest {
            self.counts.reordered += 1;
        }
        *latest = (*latest).max(at);
        at
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX - 1)
}
