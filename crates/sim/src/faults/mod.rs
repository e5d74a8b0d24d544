//! What goes wrong, and when: a schedule of faults drawn from the seed, and its end.
//!
//! Every seed has a temper of its own (which kinds of faults, how often): a run with few kinds digs deeper than one with
//! a little of everything. Faults stay within what the platform promises to survive: at most one replica's disk is
//! damaged at a time, and only while all others are whole; clocks stay within ρ.

mod kind;

pub use kind::Kind;

use crate::clock::MAX_PPM;
use crate::disk::DiskPace;
use crate::kernel::{Boot, HostId, NoStart, Process, World};
use crate::network::{CutId, Weather};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use tidings_base::Seeded;

/// What the schedule must know of a scenario's processes.
pub trait Site<P: Process>: Boot<P> {
    /// Whether this replica still holds everything it ever promised (false after its disk was replaced, until it has
    /// caught up).
    fn is_whole(&self, process: &P) -> bool;
}

/// What is still to be done about a fault.
#[derive(Clone, Debug)]
enum Due {
    Strike,
    Heal(CutId),
    Calm,
    Start(HostId),
    Replace(HostId),
    Room(HostId),
    Brisk(HostId),
    Crash(HostId, u64),
    Ambush(HostId),
}

/// The hosts that faults may meet.
#[derive(Clone, Debug)]
pub struct Targets {
    /// Hosts whose disks matter.
    pub replicas: Vec<HostId>,
    /// All others.
    pub clients: Vec<HostId>,
    /// The lease of the protocol: the scale of pauses.
    pub lease: Duration,
}

/// The schedule of one run.
pub struct Chaos {
    rng: Seeded,
    targets: Targets,
    weights: Vec<(Kind, u64)>,
    mean: Duration,
    due: BTreeMap<u64, Due>,
    next_id: u64,
    counts: BTreeMap<&'static str, u64>,
    /// The disk here was damaged, and no sound start has been seen since.
    damaged: Option<HostId>,
    /// This one's disk was found damaged: it stays down until the operator has put in another.
    condemned: Option<HostId>,
    /// Here the disk was replaced and has to catch up.
    replaced: Option<HostId>,
    starting: BTreeSet<HostId>,
    calm: bool,
    base_weather: Weather,
    starts: u64,
    /// The furthest a clock may run from true time, in parts per million.
    reach: i32,
}

/// Once in so many acknowledged writes the power is cut right behind one.
const ACKNOWLEDGED: u64 = 500;

/// How long it takes until a process is started again, in milliseconds: by a supervisor, or after a reboot.
const QUICK_START: (u64, u64) = (5, 300);
const SLOW_START: (u64, u64) = (300, 5_000);

impl Chaos {
    /// A schedule drawn from the generator.
    pub fn new(rng: &Seeded, targets: Targets) -> Chaos {
        let mut rng = rng.fork("faults");
        let weights = Kind::ALL.into_iter().map(|kind| {
            let often = if rng.one_in(4) { 0 } else { rng.between(1, 4) };
            (kind, often)
        });
        let weights: Vec<(Kind, u64)> = weights.collect();
        let mean = Duration::from_secs([5, 10, 20, 40][rng.below(4) as usize]);
        let base_weather = if rng.one_in(2) { Weather::CALM } else { mild(Weather::bad(&mut rng)) };
        Chaos {
            rng,
            targets,
            weights,
            mean,
            due: BTreeMap::new(),
            next_id: 0,
            counts: BTreeMap::new(),
            damaged: None,
            condemned: None,
            replaced: None,
            starting: BTreeSet::new(),
            calm: false,
            base_weather,
            starts: 0,
            reach: MAX_PPM,
        }
    }

    /// The same schedule with clocks within this reach.
    pub fn reaching(mut self, ppm: i32) -> Chaos {
        self.reach = ppm;
        self
    }

    /// The same schedule without these kinds: they would meet nothing in this scenario.
    pub fn without(mut self, kinds: &[Kind]) -> Chaos {
        self.weights.retain(|(kind, _)| !kinds.contains(kind));
        self
    }

    /// How many faults of each kind there were. The network's own are not among them.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// How many starts were tried: each may have refused a sound disk and did not.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Begins.
    pub fn begin<P: Process>(&mut self, world: &mut World<P>) {
        world.network.set_weather(self.base_weather);
        self.later(world, self.mean, Due::Strike);
    }

    /// A reminder of the world that may be this schedule's. An error is a finding.
    pub fn reminded<P: Process>(
        &mut self,
        world: &mut World<P>,
        site: &mut dyn Site<P>,
        id: u64,
    ) -> Result<(), String> {
        let Some(due) = self.due.remove(&id) else { return Ok(()) };
        match due {
            Due::Strike => {
                if self.calm {
                    return Ok(());
                }
                let wait = self.rng.below(2 * nanos(self.mean));
                self.later(world, Duration::from_nanos(wait), Due::Strike);
                self.strike(world, site)
            }
            Due::Heal(cut) => {
                world.network.heal(cut);
                Ok(())
            }
            Due::Calm => {
                world.network.set_weather(if self.calm { Weather::CALM } else { self.base_weather });
                Ok(())
            }
            Due::Start(host) => self.start(world, site, host),
            Due::Replace(host) => self.replace(world, site, host),
            Due::Room(host) => {
                world.disk(host).set_full_at(None);
                Ok(())
            }
            Due::Brisk(host) => {
                world.set_pace(host, DiskPace::default());
                Ok(())
            }
            Due::Crash(host, more) => {
                self.crash_again(world, host, more);
                Ok(())
            }
            Due::Ambush(host) => {
                self.ambush(world, host);
                Ok(())
            }
        }
    }

    /// A process ended by itself: it is started again after a while.
    pub fn exited<P: Process>(&mut self, world: &mut World<P>, host: HostId) {
        self.start_later(world, host);
    }

    /// Something interesting happened at a host (it was elected, say): now and then that is the moment to strike.
    pub fn provoke<P: Process>(&mut self, world: &mut World<P>, host: HostId) {
        if !self.calm && self.rng.one_in(6) {
            let wait = Duration::from_micros(self.rng.below(300_000));
            self.later(world, wait, Due::Ambush(host));
        }
    }

    /// A client was told that its write happened: now and then all replicas lose power at that very moment.
    pub fn acknowledged<P: Process>(&mut self, world: &mut World<P>) {
        let wanted = self.weights.iter().any(|(kind, weight)| *kind == Kind::PowerCut && *weight > 0);
        if wanted && !self.calm && self.rng.one_in(ACKNOWLEDGED) {
            self.power_cut(world);
        }
    }

    fn power_cut<P: Process>(&mut self, world: &mut World<P>) {
        self.count(Kind::PowerCut.name(), world, HostId(0), "");
        for host in self.targets.replicas.clone() {
            world.power_loss(host);
            self.start_later(world, host);
        }
    }

    /// The faults are over: everything heals, everybody is started.
    pub fn heal<P: Process>(&mut self, world: &mut World<P>) {
        self.calm = true;
        world.network.heal_all();
        world.network.set_weather(Weather::CALM);
        let hosts: Vec<HostId> = self.targets.replicas.iter().chain(&self.targets.clients).copied().collect();
        for host in hosts {
            world.disk(host).set_full_at(None);
            world.set_pace(host, DiskPace::default());
            if !world.is_up(host) {
                self.start_later(world, host);
            }
        }
    }

    fn later<P: Process>(&mut self, world: &mut World<P>, wait: Duration, due: Due) {
        self.next_id += 1;
        self.due.insert(self.next_id, due);
        world.remind(wait, self.next_id);
    }

    fn start_later<P: Process>(&mut self, world: &mut World<P>, host: HostId) {
        if self.starting.insert(host) {
            let (least, most) = if self.rng.one_in(2) { QUICK_START } else { SLOW_START };
            let wait = Duration::from_millis(self.rng.between(least, most));
            self.later(world, wait, Due::Start(host));
        }
    }

    fn start<P: Process>(&mut self, world: &mut World<P>, site: &mut dyn Site<P>, host: HostId) -> Result<(), String> {
        self.starting.remove(&host);
        if world.is_up(host) || self.condemned == Some(host) {
            return Ok(());
        }
        self.starts += 1;
        match world.start(host, site) {
            Ok(()) => {
                if self.damaged == Some(host) {
                    self.damaged = None; // The damage was nowhere that matters.
                }
                Ok(())
            }
            Err(NoStart::Failed(_)) => {
                self.start_later(world, host);
                Ok(())
            }
            Err(NoStart::Damaged(what)) if self.damaged == Some(host) => {
                self.count("damage_found", world, host, &what);
                self.condemned = Some(host);
                self.later(world, self.targets.lease, Due::Replace(host));
                Ok(())
            }
            Err(NoStart::Damaged(what)) => Err(format!("{host} refused a disk that nothing had damaged: {what}")),
        }
    }

    /// The operator puts in an empty disk once all other replicas are whole.
    fn replace<P: Process>(
        &mut self,
        world: &mut World<P>,
        site: &mut dyn Site<P>,
        host: HostId,
    ) -> Result<(), String> {
        if !self.others_whole(world, site, host) {
            self.later(world, self.targets.lease, Due::Replace(host));
            return Ok(());
        }
        world.replace_disk(host);
        self.count("replacement", world, host, "an empty disk");
        self.damaged = None;
        self.condemned = None;
        self.replaced = Some(host);
        self.start(world, site, host)
    }

    fn others_whole<P: Process>(&self, world: &World<P>, site: &dyn Site<P>, host: HostId) -> bool {
        let mut others = self.targets.replicas.iter().filter(|other| **other != host);
        others.all(|other| world.process(*other).is_some_and(|process| site.is_whole(process)))
    }

    fn count<P: Process>(&mut self, kind: &'static str, world: &mut World<P>, host: HostId, what: &str) {
        *self.counts.entry(kind).or_default() += 1;
        world.note_fault(host, &format!("{kind} {what}"));
    }

    fn replica(&mut self) -> HostId {
        self.rng.pick(&self.targets.replicas).copied().unwrap_or_default()
    }

    fn anybody(&mut self) -> HostId {
        if self.rng.one_in(4) && !self.targets.clients.is_empty() {
            self.rng.pick(&self.targets.clients).copied().unwrap_or_default()
        } else {
            self.replica()
        }
    }

    fn seconds(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.rng.between(least * 1_000, most * 1_000))
    }

    fn strike<P: Process>(&mut self, world: &mut World<P>, site: &mut dyn Site<P>) -> Result<(), String> {
        match draw(&mut self.rng, &self.weights) {
            Some(kind @ (Kind::BitFlip | Kind::TruncatedFile)) => return self.damage(world, site, kind),
            Some(kind) => self.inject(world, kind),
            None => {}
        }
        Ok(())
    }

    fn inject<P: Process>(&mut self, world: &mut World<P>, kind: Kind) {
        match kind {
            Kind::Partition | Kind::OneWay | Kind::Partial | Kind::Isolation => self.cut(world, kind),
            Kind::Storm => {
                let weather = Weather::bad(&mut self.rng);
                world.network.set_weather(weather);
                self.count(kind.name(), world, HostId(0), &format!("{weather:?}"));
                let time = self.seconds(2, 60);
                self.later(world, time, Due::Calm);
            }
            Kind::Pause => {
                let host = self.anybody();
                let lease = nanos(self.targets.lease);
                let time = Duration::from_nanos(self.rng.between(lease / 2, lease * 3));
                self.count(kind.name(), world, host, &format!("{time:?}"));
                world.pause(host, time);
            }
            Kind::Kill | Kind::PowerLoss => {
                let host = self.anybody();
                self.down(world, host, kind);
            }
            Kind::PowerCut => self.power_cut(world),
            Kind::CrashLoop => {
                let (host, times) = (self.replica(), self.rng.between(3, 8));
                self.count(kind.name(), world, host, &times.to_string());
                self.crash_again(world, host, times);
            }
            Kind::SlowDisk | Kind::FullDisk | Kind::WriteError | Kind::SyncError | Kind::ReadError => {
                self.trouble_disk(world, kind);
            }
            Kind::BitFlip | Kind::TruncatedFile => {}
            Kind::ClockRate => {
                let (host, reach) = (self.anybody(), self.reach);
                let ppm = self.rng.below(2 * reach as u64 + 1) as i32 - reach;
                self.count(kind.name(), world, host, &ppm.to_string());
                world.set_rate(host, ppm);
            }
            Kind::WallJump => {
                let host = self.anybody();
                let micros = self.rng.below(7_200_000_000) as i64 - 3_600_000_000;
                self.count(kind.name(), world, host, &micros.to_string());
                world.jump_wall(host, micros);
            }
        }
    }

    fn down<P: Process>(&mut self, world: &mut World<P>, host: HostId, kind: Kind) {
        self.count(kind.name(), world, host, "");
        if kind == Kind::Kill {
            world.kill(host);
        } else {
            world.power_loss(host);
        }
        self.start_later(world, host);
    }

    fn crash_again<P: Process>(&mut self, world: &mut World<P>, host: HostId, more: u64) {
        if self.calm || more == 0 {
            return;
        }
        world.power_loss(host);
        self.start_later(world, host);
        let wait = self.seconds(0, 6);
        self.later(world, wait, Due::Crash(host, more - 1));
    }

    fn ambush<P: Process>(&mut self, world: &mut World<P>, host: HostId) {
        if self.calm || !world.is_up(host) {
            return;
        }
        *self.counts.entry("ambush").or_default() += 1;
        match self.rng.below(4) {
            0 => self.down(world, host, Kind::PowerLoss),
            1 => self.down(world, host, Kind::Kill),
            2 => {
                let lease = nanos(self.targets.lease);
                let time = Duration::from_nanos(self.rng.between(lease / 2, lease * 3));
                self.count(Kind::Pause.name(), world, host, &format!("{time:?}"));
                world.pause(host, time);
            }
            _ => self.isolate(world, host),
        }
    }

    fn isolate<P: Process>(&mut self, world: &mut World<P>, host: HostId) {
        // Half the time clients still reach it: a leader that is wrong about itself must not mislead them.
        let clients = if self.rng.one_in(2) { &self.targets.clients[..] } else { &[] };
        let everybody = self.targets.replicas.iter().chain(clients);
        let directions = everybody.filter(|other| **other != host).flat_map(|other| [(host, *other), (*other, host)]);
        let directions = directions.collect();
        self.lay(world, Kind::Isolation, host, directions);
    }

    fn cut<P: Process>(&mut self, world: &mut World<P>, kind: Kind) {
        let victim = self.replica();
        let everybody: Vec<HostId> = self.targets.replicas.iter().chain(&self.targets.clients).copied().collect();
        let others: Vec<HostId> = everybody.iter().copied().filter(|other| *other != victim).collect();
        let Some(other) = self.rng.pick(&others).copied() else { return };
        let directions = match kind {
            Kind::OneWay if self.rng.one_in(2) => vec![(victim, other)],
            Kind::OneWay => vec![(other, victim)],
            Kind::Partial => vec![(victim, other), (other, victim)],
            Kind::Isolation => return self.isolate(world, victim),
            _ => {
                let left: BTreeSet<HostId> = everybody.iter().copied().filter(|_| self.rng.one_in(2)).collect();
                let across = |from: &HostId, to: &HostId| left.contains(from) != left.contains(to);
                let pairs = everybody.iter().flat_map(|from| everybody.iter().map(move |to| (*from, *to)));
                pairs.filter(|(from, to)| across(from, to)).collect()
            }
        };
        self.lay(world, kind, victim, directions);
    }

    fn lay<P: Process>(&mut self, world: &mut World<P>, kind: Kind, host: HostId, directions: Vec<(HostId, HostId)>) {
        self.count(kind.name(), world, host, &format!("{} directions", directions.len()));
        let cut = world.network.cut(directions);
        let time = self.seconds(1, 30);
        self.later(world, time, Due::Heal(cut));
    }

    fn trouble_disk<P: Process>(&mut self, world: &mut World<P>, kind: Kind) {
        let host = self.replica();
        self.count(kind.name(), world, host, "");
        let after = self.rng.below(20);
        match kind {
            Kind::SlowDisk => {
                world.set_pace(host, DiskPace::slow());
                let time = self.seconds(2, 30);
                self.later(world, time, Due::Brisk(host));
            }
            Kind::FullDisk => {
                let disk = world.disk(host);
                disk.set_full_at(Some(disk.used() + self.rng.below(2_000)));
                let time = self.seconds(2, 30);
                self.later(world, time, Due::Room(host));
            }
            Kind::WriteError => world.disk(host).fail_write_after(after, io::ErrorKind::Other),
            Kind::SyncError => world.disk(host).fail_sync_after(after, io::ErrorKind::Other),
            _ => {
                // Processes read their disks when they start.
                world.kill(host);
                world.disk(host).fail_read_after(after, io::ErrorKind::Other);
                self.start_later(world, host);
            }
        }
    }

    /// Damages the disk of one replica while all others are whole. The process is killed and started again at once, so that
    /// what it had synced is still marked as such: a flip in the last record behind a power loss cannot be told from a
    /// torn write by anybody.
    fn damage<P: Process>(&mut self, world: &mut World<P>, site: &mut dyn Site<P>, kind: Kind) -> Result<(), String> {
        let host = self.replica();
        let settled = match self.replaced {
            Some(replaced) => world.process(replaced).is_some_and(|process| site.is_whole(process)),
            None => true,
        };
        let healthy = world.is_up(host) && self.others_whole(world, site, host);
        if self.targets.replicas.len() < 3 || self.damaged.is_some() || !settled || !healthy {
            return Ok(());
        }
        let disk = world.disk(host).clone();
        let files: Vec<(String, u64)> = disk.files().into_iter().filter(|(_, len)| *len > 0).collect();
        let Some((name, len)) = self.rng.pick(&files) else { return Ok(()) };
        world.kill(host);
        let what = if kind == Kind::BitFlip {
            let flips = self.rng.between(1, 3);
            format!("{:?}", (0..flips).filter_map(|_| disk.flip_some_bit(&mut self.rng)).collect::<Vec<_>>())
        } else {
            let len = self.rng.below(*len);
            disk.cut_file(name, len);
            format!("{name} to {len}")
        };
        self.count(kind.name(), world, host, &what);
        self.damaged = Some(host);
        self.start(world, site, host)
    }

    /// Whether a damaged replica is still waiting for the operator or catching up.
    pub fn is_mending<P: Process>(&self, world: &World<P>, site: &dyn Site<P>) -> bool {
        let catching_up = |host: HostId| !world.process(host).is_some_and(|process| site.is_whole(process));
        self.damaged.is_some() || self.replaced.is_some_and(catching_up) || !self.starting.is_empty()
    }

    /// True time after which a calm world must serve again, counted from the heal.
    pub fn patience(&self) -> Duration {
        self.targets.lease * 60
    }
}

/// One of these kinds, each as often as its weight says; none if all weights are zero.
pub fn draw<K: Copy>(rng: &mut Seeded, weights: &[(K, u64)]) -> Option<K> {
    let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
    if total == 0 {
        return None;
    }
    let mut left = rng.below(total);
    let drawn = weights.iter().find(|(_, weight)| {
        let hit = left < *weight;
        left = left.saturating_sub(*weight);
        hit
    });
    drawn.map(|(kind, _)| *kind)
}

/// A base weather is with the run all the time: it may not be so bad that nothing gets done.
fn mild(weather: Weather) -> Weather {
    Weather { drop: weather.drop / 5.0, tail: weather.tail / 5.0, tail_delay: weather.tail_delay / 4, ..weather }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4)
}
