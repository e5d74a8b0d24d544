//! The kernel: one queue of events in the order of (time, sequence), and the hosts that they happen to.
//!
//! ```text
//!   queue ── message, disk done, wake ──▶ process (a Machine) ── Effect ──▶ network, disk, facts, exit
//!     ▲                                                                          │
//!     └────────────────── arrivals, completions, deadlines ◀─────────────────────┘
//! ```
//! One thread, one queue, no wall clock: everything that happens follows from the seed. A process never sees true
//! time; it is told its own host's clock, and what it wants at a point of that clock happens when that clock gets there.

use crate::clock::{HostClock, SimTime};
use crate::disk::{DiskPace, SimDisk};
use crate::network::Network;
use crate::trace::{Kind, Printing, Trace};
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;
use tidings_base::Seeded;
use tidings_base::machine::{Machine, Outbox};
use tidings_base::time::{Mono, Now};

/// Names a host of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    /// Where it stands in tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

/// What a process is fed. Messages are bytes: no two hosts share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message from another host.
    Message {
        /// Who sent it.
        from: HostId,
        /// What it says.
        bytes: Bytes,
    },
    /// The disk took its time for what [`Effect::DiskWait`] asked; now it may be made durable and answered.
    DiskDone {
        /// As in the request.
        token: u64,
    },
}

/// What a process wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<F> {
    /// Send a message.
    Send {
        /// To whom.
        to: HostId,
        /// What it says.
        bytes: Bytes,
    },
    /// Tell me when the disk has had the time for one sync.
    DiskWait {
        /// Comes back with [`Event::DiskDone`].
        token: u64,
    },
    /// Something that invariants want to know. It costs no time and nobody in the world sees it.
    Fact(F),
    /// The process ends by itself.
    Exit {
        /// Why.
        why: String,
    },
}

/// A process: protocol machines under their driver.
pub trait Process: Machine<Input = Event, Output = Effect<Self::Fact>> {
    /// What it tells invariants.
    type Fact: fmt::Debug;
}

/// Builds the process of a host at every start, from nothing but its disk.
pub trait Boot<P: Process> {
    /// Starts the process, or says why it cannot run. What it puts into the outbox is performed.
    fn boot(&mut self, seat: Seat, out: &mut Outbox<Effect<P::Fact>>) -> Result<P, NoStart>;
}

/// Why a process did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoStart {
    /// What is on the disk cannot be trusted: starting again will not help, the operator must act.
    Damaged(String),
    /// Something failed that may succeed the next time.
    Failed(String),
}

impl fmt::Display for NoStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoStart::Damaged(why) => write!(f, "damaged: {why}"),
            NoStart::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// What a starting process finds.
pub struct Seat {
    /// Its host.
    pub host: HostId,
    /// The time there.
    pub now: Now,
    /// The disk as the last process left it.
    pub disk: SimDisk,
    /// Randomness of its own, different at every start.
    pub rng: Seeded,
    /// How often a process was started here before.
    pub starts: u64,
    /// How often the disk was replaced by an empty one.
    pub replacements: u64,
}

/// A fact with its place and time.
#[derive(Clone, Debug)]
pub struct Observed<F> {
    /// The true time.
    pub at: SimTime,
    /// The host that stated it.
    pub host: HostId,
    /// The fact.
    pub fact: F,
}

/// What one step of the world was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is left to happen.
    Idle,
    /// A process did something (or slept through it).
    Ran,
    /// A point of time that was asked for by [`World::remind`] has come.
    Reminder(u64),
    /// A process ended by itself.
    Exited(HostId, String),
}

enum What {
    Deliver { from: HostId, to: HostId, bytes: Bytes },
    DiskDone { host: HostId, life: u64, token: u64 },
    Wake { host: HostId, life: u64, at: SimTime },
    Resume { host: HostId, pause: u64 },
    Reminder(u64),
}

struct Scheduled {
    at: SimTime,
    sequence: u64,
    what: What,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

struct Host<P> {
    clock: HostClock,
    disk: SimDisk,
    pace: DiskPace,
    process: Option<P>,
    /// Grows with every start and stop: what was meant for an earlier life is not delivered.
    life: u64,
    starts: u64,
    replacements: u64,
    /// The earliest wake in the queue for this life.
    wake_at: Option<SimTime>,
    paused: Option<Pause>,
    rng: Seeded,
}

/// A process that does not run for a while.
struct Pause {
    /// Each has a number of its own.
    number: u64,
    /// What waits for its end.
    waiting: VecDeque<What>,
    /// The whole machine sleeps, since then.
    asleep: Option<SimTime>,
}

/// Hosts, network and time of one simulation.
pub struct World<P: Process> {
    now: SimTime,
    sequence: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    hosts: Vec<Host<P>>,
    /// The network between the hosts.
    pub network: Network,
    /// Everything that happened.
    pub trace: Trace,
    facts: Vec<Observed<P::Fact>>,
    pauses: u64,
    rng: Seeded,
    outbox: Outbox<Effect<P::Fact>>,
}

impl<P: Process> World<P> {
    /// An empty world that the generator decides.
    pub fn new(rng: &Seeded, printing: Printing) -> World<P> {
        World {
            now: SimTime::ZERO,
            sequence: 0,
            queue: BinaryHeap::new(),
            hosts: Vec::new(),
            network: Network::new(rng.fork("network")),
            trace: Trace::new(printing),
            facts: Vec::new(),
            pauses: 0,
            rng: rng.fork("hosts"),
            outbox: Outbox::new(),
        }
    }

    /// Adds a host with its own clock and an empty disk; no process runs there yet.
    pub fn add_host(&mut self) -> HostId {
        let id = HostId(u32::try_from(self.hosts.len()).expect("a world has few hosts"));
        let mut rng = self.rng.fork(&format!("host {id}"));
        let reach = crate::clock::MAX_PPM as u64;
        let ppm = rng.below(2 * reach + 1) as i32 - reach as i32;
        let mono = Mono(rng.below(1_000_000_000_000));
        self.hosts.push(Host {
            clock: HostClock::new(mono, ppm),
            disk: SimDisk::new(rng.fork("disk").next_u64()),
            pace: DiskPace::default(),
            process: None,
            life: 0,
            starts: 0,
            replacements: 0,
            wake_at: None,
            paused: None,
            rng,
        });
        self.network.grow(self.hosts.len());
        id
    }

    /// True time.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// When the next event happens, if one is left.
    pub fn next_at(&self) -> Option<SimTime> {
        self.queue.peek().map(|Reverse(next)| next.at)
    }

    /// The process of a host, if one runs.
    pub fn process(&self, host: HostId) -> Option<&P> {
        self.hosts[host.index()].process.as_ref()
    }

    /// The clock of a host.
    pub fn clock(&self, host: HostId) -> &HostClock {
        &self.hosts[host.index()].clock
    }

    /// The disk of a host.
    pub fn disk(&self, host: HostId) -> &SimDisk {
        &self.hosts[host.index()].disk
    }

    /// Sets how long syncs take on a host's disk.
    pub fn set_pace(&mut self, host: HostId, pace: DiskPace) {
        self.hosts[host.index()].pace = pace;
    }

    /// Whether a process runs there (a paused one does).
    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts[host.index()].process.is_some()
    }

    /// How often a process of a host has started.
    pub fn starts(&self, host: HostId) -> u64 {
        self.hosts[host.index()].starts
    }

    /// Whether the process there is paused.
    pub fn is_paused(&self, host: HostId) -> bool {
        self.pause_of(host).is_some()
    }

    /// The pause that the process there is in: each has a number of its own.
    pub fn pause_of(&self, host: HostId) -> Option<u64> {
        self.hosts[host.index()].paused.as_ref().map(|pause| pause.number)
    }

    /// Makes [`Step::Reminder`] come after this time.
    pub fn remind(&mut self, after: Duration, id: u64) {
        self.push(self.now + after, What::Reminder(id));
    }

    /// Takes the facts that were stated since the last call.
    pub fn drain_facts(&mut self) -> Vec<Observed<P::Fact>> {
        std::mem::take(&mut self.facts)
    }

    /// Writes a fault into the trace.
    pub fn note_fault(&mut self, host: HostId, what: &str) {
        self.trace.event(self.now, Kind::Fault, host, what.as_bytes(), || what.to_string());
    }

    /// Starts a process where none runs.
    pub fn start(&mut self, id: HostId, boot: &mut dyn Boot<P>) -> Result<(), NoStart> {
        let host = &mut self.hosts[id.index()];
        assert!(host.process.is_none(), "{id} runs already");
        host.life += 1;
        host.starts += 1;
        host.wake_at = None;
        let seat = Seat {
            host: id,
            now: host.clock.now(self.now),
            disk: host.disk.clone(),
            rng: host.rng.fork(&format!("start {}", host.starts)),
            starts: host.starts,
            replacements: host.replacements,
        };
        self.trace.event(self.now, Kind::Start, id, &[], || format!("start {}", host.starts));
        match boot.boot(seat, &mut self.outbox) {
            Ok(process) => {
                host.process = Some(process);
                self.perform(id).map_or(Ok(()), |why| Err(NoStart::Failed(why)))
            }
            Err(why) => {
                let effects: Vec<_> = self.outbox.drain().collect();
                let facts = effects.into_iter().filter_map(|effect| match effect {
                    Effect::Fact(fact) => Some(Observed { at: self.now, host: id, fact }),
                    _ => None,
                });
                self.facts.extend(facts);
                self.trace.remark(self.now, id, || format!("did not start: {why}"));
                Err(why)
            }
        }
    }

    /// Kills the process; its disk keeps what was written, as after SIGKILL.
    pub fn kill(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        host.life += 1;
        host.paused = None;
        host.clock.go_on(self.now);
        host.wake_at = None;
        if host.process.take().is_some() {
            host.disk.kill();
            self.trace.event(self.now, Kind::Stop, id, &[], || "killed".to_string());
        }
    }

    /// Cuts the power: the process is gone, the disk loses what was not synced, the clock begins anew.
    pub fn power_loss(&mut self, id: HostId) {
        self.kill(id);
        let host = &mut self.hosts[id.index()];
        host.disk.crash(&mut host.rng);
        let boot = Mono(host.rng.below(60_000_000_000));
        host.clock.reboot(self.now, boot);
    }

    /// Puts an empty disk in; no process may run.
    pub fn replace_disk(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        assert!(host.process.is_none(), "{id} still runs");
        host.replacements += 1;
        host.disk = SimDisk::new(host.rng.fork(&format!("disk {}", host.replacements)).next_u64());
    }

    /// Pauses a running process for a time: its clock goes on, what comes for it waits.
    pub fn pause(&mut self, id: HostId, time: Duration) {
        self.rest(id, time, None);
    }

    /// Suspends a host for a time: its process does not run, nothing reaches it, and its timers stand, which the system counts
    /// by another clock than the one that processes are told. That one goes on, unless it stops: a mutant's doing.
    pub fn suspend(&mut self, id: HostId, time: Duration, clock_stops: bool) {
        let now = self.now;
        if self.rest(id, time, Some(now)) && clock_stops {
            self.hosts[id.index()].clock.stop(now);
        }
    }

    /// Whether a process ran there that rests now.
    fn rest(&mut self, id: HostId, time: Duration, asleep: Option<SimTime>) -> bool {
        let host = &mut self.hosts[id.index()];
        if host.process.is_none() || host.paused.is_some() {
            return false;
        }
        self.pauses += 1;
        let pause = self.pauses;
        host.paused = Some(Pause { number: pause, waiting: VecDeque::new(), asleep });
        let how = if asleep.is_some() { "asleep " } else { "" };
        self.trace.event(self.now, Kind::Pause, id, &[], || format!("{how}for {time:?}"));
        self.push(self.now + time, What::Resume { host: id, pause });
        true
    }

    /// Changes the rate of a host's clock.
    pub fn set_rate(&mut self, id: HostId, ppm: i32) {
        let now = self.now;
        self.hosts[id.index()].clock.set_rate(now, ppm);
        self.hosts[id.index()].wake_at = None;
        self.schedule_wake(id);
    }

    /// Makes a host's wall clock jump.
    pub fn jump_wall(&mut self, id: HostId, micros: i64) {
        self.hosts[id.index()].clock.jump_wall(micros);
    }

    /// Feeds a process from outside the network, as a test's hand does. False if none runs.
    pub fn poke(&mut self, id: HostId, act: impl FnOnce(&mut P, Now, &mut Outbox<Effect<P::Fact>>)) -> bool {
        let host = &mut self.hosts[id.index()];
        let now = host.clock.now(self.now);
        let Some(process) = &mut host.process else { return false };
        act(process, now, &mut self.outbox);
        if let Some(why) = self.perform(id) {
            self.trace.remark(self.now, id, || format!("exited: {why}"));
        }
        true
    }

    /// Lets the next event happen.
    pub fn step(&mut self) -> Step {
        let Some(Reverse(next)) = self.queue.pop() else { return Step::Idle };
        debug_assert!(next.at >= self.now, "time does not run backwards");
        self.now = next.at;
        match next.what {
            What::Reminder(id) => Step::Reminder(id),
            What::Resume { host, pause } => self.resume(host, pause),
            what => self.happen(what),
        }
    }

    fn resume(&mut self, id: HostId, pause: u64) -> Step {
        let host = &mut self.hosts[id.index()];
        let Some(Pause { waiting, asleep, .. }) = host.paused.take_if(|current| current.number == pause) else {
            return Step::Ran;
        };
        if let Some(since) = asleep {
            host.clock.go_on(self.now);
            // Timers ring as long after the sleep as they would have rung without it.
            host.wake_at = host.wake_at.map(|at| at + self.now.since(since));
            let (late, life) = (host.wake_at, host.life);
            late.into_iter().for_each(|at| self.push(at, What::Wake { host: id, life, at }));
        }
        self.trace.event(self.now, Kind::Resume, id, &[], || format!("{} waited", waiting.len()));
        for what in waiting {
            if let Step::Exited(host, why) = self.happen(what) {
                return Step::Exited(host, why);
            }
        }
        Step::Ran
    }

    fn happen(&mut self, what: What) -> Step {
        let (id, life) = match &what {
            What::Deliver { to, .. } => (*to, None),
            What::DiskDone { host, life, .. } | What::Wake { host, life, .. } => (*host, Some(*life)),
            What::Resume { .. } | What::Reminder(_) => return Step::Ran,
        };
        let host = &mut self.hosts[id.index()];
        if life.is_some_and(|life| life != host.life) {
            return Step::Ran;
        }
        let Some(process) = &mut host.process else {
            if let What::Deliver { from, bytes, .. } = &what {
                self.trace.event(self.now, Kind::Lost, id, bytes, || format!("from {from}: nobody is there"));
            }
            return Step::Ran;
        };
        if let Some(pause) = &mut host.paused {
            match &what {
                What::Deliver { from, bytes, .. } if pause.asleep.is_some() => {
                    self.trace.event(self.now, Kind::Lost, id, bytes, || format!("from {from}: it sleeps"));
                }
                _ => pause.waiting.push_back(what),
            }
            return Step::Ran;
        }
        let now = host.clock.now(self.now);
        match what {
            What::Deliver { from, bytes, .. } => {
                self.trace.event(self.now, Kind::Deliver, id, &bytes, || format!("from {from}, {} bytes", bytes.len()));
                process.handle(now, Event::Message { from, bytes }, &mut self.outbox);
            }
            What::DiskDone { token, .. } => {
                self.trace.event(self.now, Kind::DiskDone, id, &token.to_le_bytes(), || format!("wait {token}"));
                process.handle(now, Event::DiskDone { token }, &mut self.outbox);
            }
            What::Wake { at, .. } => {
                // An earlier wake was put in after this one, and has looked after the deadline since.
                if host.wake_at != Some(at) {
                    return Step::Ran;
                }
                host.wake_at = None;
                if process.deadline().is_some_and(|at| at <= now.mono) {
                    self.trace.event(self.now, Kind::Wake, id, &[], String::new);
                    process.wake(now, &mut self.outbox);
                }
            }
            What::Resume { .. } | What::Reminder(_) => {}
        }
        self.perform(id).map_or(Step::Ran, |why| Step::Exited(id, why))
    }

    /// Performs what the process put into the outbox; the reason if it ended itself.
    fn perform(&mut self, id: HostId) -> Option<String> {
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut exit = None;
        for effect in outbox.drain() {
            match effect {
                Effect::Send { to, bytes } => self.send(id, to, bytes),
                Effect::DiskWait { token } => {
                    let host = &mut self.hosts[id.index()];
                    let (at, life) = (self.now + host.pace.draw(&mut host.rng), host.life);
                    self.push(at, What::DiskDone { host: id, life, token });
                }
                Effect::Fact(fact) => {
                    self.trace.remark(self.now, id, || format!("{fact:?}"));
                    self.facts.push(Observed { at: self.now, host: id, fact });
                }
                Effect::Exit { why } => exit = Some(why),
            }
        }
        self.outbox = outbox;
        if exit.is_some() {
            self.kill(id);
        } else {
            self.schedule_wake(id);
        }
        exit
    }

    fn send(&mut self, from: HostId, to: HostId, bytes: Bytes) {
        let arrivals = self.network.route(self.now, from, to);
        let kind = if arrivals.first.is_some() { Kind::Send } else { Kind::Drop };
        self.trace.event(self.now, kind, from, &bytes, || format!("to {to}, {} bytes", bytes.len()));
        for at in [arrivals.first, arrivals.second].into_iter().flatten() {
            self.push(at, What::Deliver { from, to, bytes: bytes.clone() });
        }
    }

    /// Puts a wake into the queue, unless an earlier one is there: that one will look again.
    fn schedule_wake(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        let Some(deadline) = host.process.as_ref().and_then(|process| process.deadline()) else { return };
        let at = host.clock.when(deadline).max(self.now);
        if at == SimTime(u64::MAX) || host.wake_at.is_some_and(|earlier| earlier <= at) {
            return;
        }
        host.wake_at = Some(at);
        let life = host.life;
        self.push(at, What::Wake { host: id, life, at });
    }

    fn push(&mut self, at: SimTime, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse(Scheduled { at, sequence: self.sequence, what }));
    }
}
