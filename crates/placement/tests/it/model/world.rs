//! Two managers, two owners, perhaps a lookup, and the packets between them, one step at a time: the steps, and time.

use super::cell::Cell;
use super::packets::{Asked, Packet};
use super::seats::{LookupSeat, OwnerSeat, seat};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{KeyHash, LeaseNumber, Machine, Mono, Now, Outbox, Wall};
use tidings_placement::manager::{self, Manager};
use tidings_placement::mutant::Mutant;
use tidings_placement::owner;

/// The manager's session with the cell, as it may count on it, and after which the cell has certainly ended it.
const SESSION: Duration = Duration::from_millis(2_700);
const SESSION_OVER: Duration = Duration::from_millis(3_600);

/// Steps within one instant: far more than any exchange takes.
const BUSY: usize = 10_000;

/// What is chosen before the first step.
#[derive(Clone)]
pub struct Setup {
    pub mutant: Option<Mutant>,
    pub lease: Duration,
    pub renew: Duration,
    /// How much real time one tick is.
    pub tick: Duration,
    /// How fast the clocks run, in percent of real time: the managers', and each owner's.
    pub manager_rate: u64,
    pub owner_rates: [u64; 2],
    pub hands_over: bool,
    pub with_lookup: bool,
    /// Whose packets wait on the way until a step delivers or loses them; others arrive at once.
    pub slow: fn(Who) -> bool,
    /// How many slow packets may be on the way; of more the oldest are lost.
    pub in_flight: usize,
    /// Whether the first owner goes on talking to the first manager, whoever leads.
    pub loyal: bool,
    /// In how many states it is tried whether all would be well again without faults: one in so many; 0 = none.
    pub calm_one_in: u64,
    pub budget: Budget,
}

/// How often each kind of step may be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub ticks: u32,
    pub losses: u32,
    pub repeats: u32,
    pub fail_overs: u32,
    pub restarts: u32,
    pub drains: u32,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Tick,
    /// The packet at this place arrives.
    Deliver(usize),
    /// It arrives, and will again.
    Repeat(usize),
    /// It does not.
    Lose(usize),
    /// The leader cannot reach the cell any more, and does not know it.
    Cut,
    /// This manager takes the lock: the other one, or the same under the next generation.
    Elect(usize),
    /// The process of this owner dies, and another one starts.
    Restart(usize),
    /// This owner wants to leave.
    Drain(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Owner(usize),
    Lookup,
    Operator,
}

/// Everything there is.
#[derive(Clone)]
pub struct World {
    /// Real time in nanoseconds.
    pub time: u64,
    /// From when on the other manager may have the lock.
    pub free_at: u64,
    /// How fast clocks run, in percent: the owners', and the managers'.
    pub rates: [u64; 3],
    pub cell: Cell,
    pub managers: [Arc<Manager>; 2],
    pub heard: [u64; 2],
    pub owners: Vec<OwnerSeat>,
    pub lookup: Option<LookupSeat>,
    pub packets: Vec<Packet>,
    pub asked: Arc<Asked>,
    pub last_op: [u64; 2],
    pub states: BTreeMap<LeaseNumber, u64>,
    pub last_state: u64,
    pub left: Budget,
    /// The first thing that must never be.
    pub wrong: Option<String>,
}

/// Two numbers as one.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    KeyHash::of(&bytes).0
}

impl World {
    pub fn holders(&self) -> usize {
        (0..self.owners.len()).filter(|n| self.owners[*n].believes(self.owner_now(*n)).next().is_some()).count()
    }

    /// Who believes to hold a key.
    pub fn holder(&self, key: KeyHash) -> Option<usize> {
        let holds =
            |n: &usize| self.owners[*n].believes(self.owner_now(*n)).any(|held| held.leased.range.contains(key));
        (0..self.owners.len()).find(holds)
    }

    /// Where the oldest packet from or to somebody waits.
    pub fn packet(&self, who: Who) -> Option<usize> {
        self.packets.iter().position(|packet| packet.who == who)
    }

    /// The steps that may be taken.
    pub fn steps(&self, steps: &mut Vec<Step>) {
        if self.wrong.is_some() {
            return;
        }
        for at in 0..self.packets.len() {
            steps.push(Step::Deliver(at));
            steps.extend((self.left.losses > 0).then_some(Step::Lose(at)));
            steps.extend((self.left.repeats > 0).then_some(Step::Repeat(at)));
        }
        steps.extend((self.left.ticks > 0).then_some(Step::Tick));
        let leader = self.cell.leader;
        steps.extend((self.left.fail_overs > 0 && !self.cell.cut[leader]).then_some(Step::Cut));
        steps.extend([1 - leader, leader].map(Step::Elect).into_iter().filter(|_| self.may_elect()));
        for n in 0..self.owners.len() {
            steps.extend((self.left.restarts > 0).then_some(Step::Restart(n)));
            steps.extend((self.left.drains > 0).then_some(Step::Drain(n)));
        }
    }

    /// The cell ends a session that it has not heard of for its length.
    fn may_elect(&self) -> bool {
        self.cell.cut[self.cell.leader] && self.free_at <= self.time
    }

    /// Takes a step.
    pub fn step(&mut self, setup: &Setup, step: &Step) {
        match step {
            Step::Tick => {
                self.left.ticks -= 1;
                self.pass(setup);
            }
            Step::Deliver(at) => {
                let packet = self.packets.remove(*at);
                self.deliver(setup, packet);
            }
            Step::Repeat(at) => {
                self.left.repeats -= 1;
                let packet = self.packets[*at].clone();
                self.deliver(setup, packet);
            }
            Step::Lose(at) => {
                self.left.losses -= 1;
                self.packets.remove(*at);
            }
            Step::Cut => {
                self.left.fail_overs -= 1;
                self.cell.cut[self.cell.leader] = true;
                self.free_at = self.time + SESSION_OVER.as_nanos() as u64;
            }
            Step::Elect(next) => self.elect(setup, *next),
            Step::Restart(n) => {
                self.left.restarts -= 1;
                let incarnation = self.owners[*n].incarnation + 1;
                self.owners[*n] = seat(setup, *n, incarnation);
                self.tell_owner(setup, *n, 0, owner::Input::Start);
            }
            Step::Drain(n) => {
                self.left.drains -= 1;
                self.tell_owner(setup, *n, 0, owner::Input::Drain);
            }
        }
        self.run(setup);
        while self.packets.iter().filter(|packet| packet.slow).count() > setup.in_flight {
            self.packets.remove(0);
        }
        if setup.calm_one_in > 0 && self.print().is_multiple_of(setup.calm_one_in) && self.wrong.is_none() {
            self.wrong = self.lost_for_ever(setup);
        }
    }

    pub fn elect(&mut self, setup: &Setup, next: usize) {
        self.cell.leader = next;
        self.cell.epoch += 1;
        self.cell.cut[next] = false;
        self.reign(setup, next);
    }

    pub fn reign(&mut self, setup: &Setup, next: usize) {
        let until = self.manager_now() + SESSION;
        self.feed(setup, next, 0, manager::Input::Deposed);
        self.feed(setup, next, 0, manager::Input::SessionUntil(until));
        self.feed(setup, next, self.cell.epoch, manager::Input::Elected { epoch: self.cell.epoch });
    }

    /// One tick of time for everybody.
    pub fn pass(&mut self, setup: &Setup) {
        self.time += setup.tick.as_nanos() as u64;
        let leader = self.cell.leader;
        if !self.cell.cut[leader] {
            let until = self.manager_now() + SESSION;
            self.feed(setup, leader, 0, manager::Input::SessionUntil(until));
        }
        self.run(setup);
    }

    /// Everything as one number. Machines are deterministic: what each has heard, and when, says how it is.
    pub fn print(&self) -> u64 {
        let owners = self.owners.iter().map(|seat| seat.print);
        let lookup = self.lookup.iter().map(|seat| seat.print);
        let mut packets: Vec<u64> = self.packets.iter().map(|packet| packet.print).collect();
        packets.sort_unstable();
        let left = &self.left;
        let budget =
            [left.ticks, left.losses, left.repeats, left.fail_overs, left.restarts, left.drains].map(u64::from);
        let cuts = u64::from(self.cell.cut[0]) + 2 * u64::from(self.cell.cut[1]);
        let rest = [self.time, self.free_at, self.cell.print, self.cell.epoch, cuts, u64::from(self.wrong.is_some())];
        self.heard.into_iter().chain(owners).chain(lookup).chain(packets).chain(budget).chain(rest).fold(0, mix)
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    pub fn manager_now(&self) -> Mono {
        local(self.time, self.rates[2])
    }

    pub fn owner_now(&self, n: usize) -> Mono {
        local(self.time, self.rates[n])
    }

    /// Lets everything happen that happens at this instant.
    pub fn run(&mut self, setup: &Setup) {
        for _ in 0..BUSY {
            if let Some(at) = self.packets.iter().position(|packet| !packet.slow) {
                let packet = self.packets.remove(at);
                self.deliver(setup, packet);
            } else if !self.wake(setup) {
                return;
            }
        }
        panic!("time does not pass: something is always due");
    }

    /// Wakes somebody for whom something is due; whether there was somebody.
    fn wake(&mut self, setup: &Setup) -> bool {
        let now = self.manager_now();
        for m in 0..2 {
            if self.managers[m].deadline().is_some_and(|at| at <= now) {
                let mut out = Outbox::new();
                Arc::make_mut(&mut self.managers[m]).wake(at(now), &mut out);
                self.heard[m] = mix(self.heard[m], now.0);
                self.perform_manager(setup, m, out);
                return true;
            }
        }
        for n in 0..self.owners.len() {
            let now = self.owner_now(n);
            if self.owners[n].machine.deadline().is_some_and(|at| at <= now) {
                let mut out = Outbox::new();
                Arc::make_mut(&mut self.owners[n].machine).wake(at(now), &mut out);
                self.owners[n].print = mix(self.owners[n].print, now.0);
                self.perform_owner(setup, n, out);
                return true;
            }
        }
        let now = self.manager_now();
        let Some(seat) = &mut self.lookup else { return false };
        if seat.machine.deadline().is_some_and(|at| at <= now) {
            let mut out = Outbox::new();
            Arc::make_mut(&mut seat.machine).wake(at(now), &mut out);
            seat.print = mix(seat.print, now.0);
            self.perform_lookup(setup, out);
            return true;
        }
        false
    }
}

pub fn at(mono: Mono) -> Now {
    Now { mono, wall: Wall(0) }
}

/// A clock that runs at so many percent of real time.
fn local(time: u64, rate: u64) -> Mono {
    Mono(1_000_000_000_000 + time / 100 * rate)
}
