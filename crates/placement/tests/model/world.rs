//! Two managers, two owners, perhaps a lookup, and the packets between them, one step at a time.

use crate::cell::Cell;
use crate::seats::{KEY, LookupSeat, OwnerSeat};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Error, KeyHash, LeaseNumber, Machine, Mono, Now, OpId, Outbox, Wall};
use tidings_placement::manager::{self, Manager};
use tidings_placement::mutant::Mutant;
use tidings_placement::{Ticket, lookup, owner};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

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

#[derive(Clone, Debug)]
struct Packet {
    who: Who,
    ticket: Ticket,
    manager: usize,
    slow: bool,
    /// Which start of the owner it belongs to.
    incarnation: u64,
    print: u64,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Request(Message),
    Reply(Result<Message, Error>),
}

/// By manager and request: who asked under which ticket, whether its packets are slow, and which start of it asked.
type Asked = BTreeMap<(usize, OpId), (Who, Ticket, bool, u64)>;

/// Everything there is.
#[derive(Clone)]
pub struct World {
    /// Real time in nanoseconds.
    time: u64,
    /// From when on the other manager may have the lock.
    free_at: u64,
    /// How fast clocks run, in percent: the owners', and the managers'.
    rates: [u64; 3],
    cell: Cell,
    managers: [Arc<Manager>; 2],
    heard: [u64; 2],
    pub owners: Vec<OwnerSeat>,
    pub lookup: Option<LookupSeat>,
    packets: Vec<Packet>,
    asked: Arc<Asked>,
    last_op: [u64; 2],
    states: BTreeMap<LeaseNumber, u64>,
    last_state: u64,
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
    /// The first manager leads a namespace without owners.
    fn empty(setup: &Setup) -> World {
        let manager = |seed| Arc::new(Manager::new(manager::Options { seed, mutant: setup.mutant }));
        let mut world = World {
            time: 0,
            free_at: 0,
            rates: [setup.owner_rates[0], setup.owner_rates[1], setup.manager_rate],
            cell: Cell::new(),
            managers: [manager(1), manager(2)],
            heard: [1, 2],
            owners: Vec::new(),
            lookup: None,
            packets: Vec::new(),
            asked: Arc::default(),
            last_op: [0, 0],
            states: BTreeMap::new(),
            last_state: 0,
            left: setup.budget.clone(),
            wrong: None,
        };
        world.reign(setup, 0);
        let config = v1::NamespaceConfig {
            lease_ms: setup.lease.as_millis() as u32,
            renew_ms: setup.renew.as_millis() as u32,
            virtual_nodes: 1,
            drain_ms: 10_000,
            ..Default::default()
        };
        let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
        let op = world.op(0, Who::Operator, Ticket(0), false, 0);
        world.feed(setup, 0, 0, manager::Input::Operate { op, request: Message::NamespaceCreate(create) });
        world
    }

    /// Both owners hold their part, the lookup knows it, and nothing is on its way but held polls.
    pub fn begun(setup: &Setup) -> World {
        let fast = Setup { slow: |_| false, ..setup.clone() };
        let mut world = World::empty(&fast);
        world.join(&fast, 0);
        world.join(&fast, 1);
        world.look(&fast);
        world.come_to_rest(&fast, 2);
        world.slowed(setup)
    }

    /// The second owner holds everything, and the first has sent its first poll.
    pub fn joining(setup: &Setup) -> World {
        let fast = Setup { slow: |_| false, ..setup.clone() };
        let mut world = World::empty(&fast);
        // The first is made first, so that it has the first place, and starts last.
        world.owners.push(seat(setup, 0, 1));
        world.owners.push(seat(setup, 1, 1));
        world.tell_owner(&fast, 1, 0, owner::Input::Start);
        world.look(&fast);
        world.come_to_rest(&fast, 1);
        let mut world = world.slowed(setup);
        world.tell_owner(setup, 0, 0, owner::Input::Start);
        world.run(setup);
        world
    }

    /// The first owner holds everything, and its next poll is on its way; the second has joined, and its part is recalled.
    pub fn recalling(setup: &Setup) -> World {
        let fast = Setup { slow: |_| false, ..setup.clone() };
        let mut world = World::empty(&fast);
        world.owners.push(seat(setup, 0, 1));
        world.owners.push(seat(setup, 1, 1));
        world.tell_owner(setup, 0, 0, owner::Input::Start);
        world.run(setup);
        while world.holders() < 1 {
            world.step(setup, &Step::Deliver(0));
        }
        world.tell_owner(setup, 1, 0, owner::Input::Start);
        world.run(setup);
        assert_eq!((world.holders(), &world.wrong), (1, &None));
        world.slowed(setup)
    }

    /// The first owner holds its part and wants to leave: the leader knows it, and the owner does not know that yet. A
    /// repetition of the owner's first poll is still on its way.
    pub fn leaving(setup: &Setup) -> World {
        let mut world = World::joining(setup);
        world.left = Budget { repeats: 1, drains: 1, ..Budget::default() };
        world.step(setup, &Step::Repeat(0));
        while world.holders() < 2 {
            world.step(setup, &Step::Deliver(1));
        }
        world.step(setup, &Step::Drain(0));
        world.step(setup, &Step::Deliver(world.packets.len() - 1));
        assert_eq!((world.holders(), &world.wrong), (2, &None));
        world.slowed(setup)
    }

    fn come_to_rest(&mut self, fast: &Setup, holders: usize) {
        let lookups = |world: &World| world.lookup.as_ref().is_none_or(|seat| seat.machine.table().find(KEY).is_some());
        self.run(fast);
        while self.holders() < holders || !lookups(self) {
            self.pass(fast);
            assert!(self.time < 1_000_000_000_000, "nobody holds anything");
        }
        self.pass(fast);
        assert_eq!(self.wrong, None);
    }

    /// From here on what is held is as slow as the setup says, and nothing has happened yet.
    fn slowed(mut self, setup: &Setup) -> World {
        for (who, _, slow, _) in Arc::make_mut(&mut self.asked).values_mut() {
            *slow = (setup.slow)(*who);
        }
        self.left = setup.budget.clone();
        self
    }

    fn holders(&self) -> usize {
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

    /// How many packets wait on the way.
    pub fn on_the_way(&self) -> usize {
        self.packets.len()
    }

    fn join(&mut self, setup: &Setup, n: usize) {
        self.owners.push(seat(setup, n, 1));
        self.tell_owner(setup, n, 0, owner::Input::Start);
        self.run(setup);
    }

    fn look(&mut self, setup: &Setup) {
        if setup.with_lookup {
            self.lookup =
                Some(LookupSeat::new(lookup::Lookup::new(lookup::Options { namespace: "n".into(), seed: 3 })));
            self.tell_lookup(setup, 0, lookup::Input::Start);
        }
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

    fn elect(&mut self, setup: &Setup, next: usize) {
        self.cell.leader = next;
        self.cell.epoch += 1;
        self.cell.cut[next] = false;
        self.reign(setup, next);
    }

    fn reign(&mut self, setup: &Setup, next: usize) {
        let until = self.manager_now() + SESSION;
        self.feed(setup, next, 0, manager::Input::Deposed);
        self.feed(setup, next, 0, manager::Input::SessionUntil(until));
        self.feed(setup, next, self.cell.epoch, manager::Input::Elected { epoch: self.cell.epoch });
    }

    /// One tick of time for everybody.
    fn pass(&mut self, setup: &Setup) {
        self.time += setup.tick.as_nanos() as u64;
        let leader = self.cell.leader;
        if !self.cell.cut[leader] {
            let until = self.manager_now() + SESSION;
            self.feed(setup, leader, 0, manager::Input::SessionUntil(until));
        }
        self.run(setup);
    }

    /// Whether, without further faults, somebody would hold every key in the end; what is wrong if not.
    pub fn lost_for_ever(&self, setup: &Setup) -> Option<String> {
        let calm =
            Setup { slow: |_| false, loyal: false, tick: Duration::from_millis(500), calm_one_in: 0, ..setup.clone() };
        let mut world = self.clone();
        world.packets.iter_mut().for_each(|packet| packet.slow = false);
        Arc::make_mut(&mut world.asked).values_mut().for_each(|(_, _, slow, _)| *slow = false);
        if world.cell.cut[world.cell.leader] {
            world.elect(&calm, 1 - self.cell.leader);
        }
        world.cell.cut = [false; 2];
        let lease = setup.lease.max(Duration::from_secs(30)).as_millis() as u64;
        for _ in 0..(3 * lease + 2 * setup.renew.as_millis() as u64) / 500 {
            world.pass(&calm);
            if world.wrong.is_some() {
                return world.wrong;
            }
        }
        let held: u128 = (0..world.owners.len())
            .flat_map(|n| {
                world.owners[n]
                    .believes(world.owner_now(n))
                    .map(|holding| holding.leased.range.len())
                    .collect::<Vec<_>>()
            })
            .sum();
        (held != tidings_base::KeyRange::FULL.len()).then(|| "a range is lost for ever".to_string())
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

    fn manager_now(&self) -> Mono {
        local(self.time, self.rates[2])
    }

    fn owner_now(&self, n: usize) -> Mono {
        local(self.time, self.rates[n])
    }

    /// Lets everything happen that happens at this instant.
    fn run(&mut self, setup: &Setup) {
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

    // ---- packets --------------------------------------------------------------------------------------------------

    fn deliver(&mut self, setup: &Setup, packet: Packet) {
        match packet.body {
            Body::Request(message) => {
                let (m, slow) = (packet.manager, packet.slow);
                let op = self.op(m, packet.who, packet.ticket, slow, packet.incarnation);
                let input = match message {
                    Message::OwnerPoll(poll) => manager::Input::Owner { op, poll: Box::new(poll) },
                    Message::LookupPoll(poll) => manager::Input::Lookup { op, poll },
                    request => manager::Input::Operate { op, request },
                };
                self.feed(setup, m, packet.print, input);
            }
            Body::Reply(result) => match packet.who {
                Who::Owner(n) if self.owners[n].incarnation == packet.incarnation => {
                    let result = result.map(|message| match message {
                        Message::OwnerAnswer(answer) => answer,
                        other => panic!("not an answer to an owner: {other:?}"),
                    });
                    self.tell_owner(setup, n, packet.print, owner::Input::Answered { ticket: packet.ticket, result });
                }
                Who::Lookup => {
                    let result = result.map(|message| match message {
                        Message::LookupAnswer(answer) => answer,
                        other => panic!("not an answer to a lookup: {other:?}"),
                    });
                    self.tell_lookup(setup, packet.print, lookup::Input::Answered { ticket: packet.ticket, result });
                }
                Who::Owner(_) | Who::Operator => {}
            },
        }
    }

    fn op(&mut self, m: usize, who: Who, ticket: Ticket, slow: bool, incarnation: u64) -> OpId {
        self.last_op[m] += 1;
        let op = OpId(self.last_op[m]);
        Arc::make_mut(&mut self.asked).insert((m, op), (who, ticket, slow, incarnation));
        op
    }

    fn reply(&mut self, m: usize, op: OpId, result: Result<Message, Error>) {
        let Some((who, ticket, slow, incarnation)) = Arc::make_mut(&mut self.asked).remove(&(m, op)) else { return };
        let print = mix(self.heard[m], op.0);
        self.packets.push(Packet { who, ticket, manager: m, slow, incarnation, print, body: Body::Reply(result) });
    }

    fn send(&mut self, setup: &Setup, who: Who, ticket: Ticket, message: Message) {
        let loyal = setup.loyal && who == Who::Owner(0);
        let manager = if loyal { 0 } else { self.cell.leader };
        let (print, incarnation) = match who {
            Who::Owner(n) => (self.owners[n].print, self.owners[n].incarnation),
            _ => (self.lookup.as_ref().map_or(0, |seat| seat.print), 0),
        };
        let (slow, print) = ((setup.slow)(who), mix(print, ticket.0));
        self.packets.push(Packet { who, ticket, manager, slow, incarnation, print, body: Body::Request(message) });
    }

    // ---- machines -------------------------------------------------------------------------------------------------

    fn feed(&mut self, setup: &Setup, m: usize, print: u64, input: manager::Input) {
        let (now, mut out) = (self.manager_now(), Outbox::new());
        self.heard[m] = mix(mix(self.heard[m], now.0), mix(print, self.cell.print));
        Arc::make_mut(&mut self.managers[m]).handle(at(now), input, &mut out);
        self.perform_manager(setup, m, out);
    }

    fn perform_manager(&mut self, setup: &Setup, m: usize, out: Outbox<manager::Output>) {
        let mut outputs: VecDeque<manager::Output> = out.into_iter().collect();
        while let Some(output) = outputs.pop_front() {
            match output {
                manager::Output::Answer { op, message } => self.reply(m, op, Ok(message)),
                manager::Output::Push { ops, message } => {
                    ops.into_iter().for_each(|op| self.reply(m, op, Ok(message.clone())));
                }
                manager::Output::Fail { op, error } => self.reply(m, op, Err(error)),
                // The lock is given up and taken again, under the next generation.
                manager::Output::StepDown if m == self.cell.leader && !self.cell.cut[m] => {
                    self.cell.epoch += 1;
                    self.reign(setup, m);
                }
                manager::Output::StepDown => {}
                output => {
                    let Some(input) = self.cell.perform(m, output) else { continue };
                    let (now, mut more) = (self.manager_now(), Outbox::new());
                    Arc::make_mut(&mut self.managers[m]).handle(at(now), input, &mut more);
                    outputs.extend(more);
                }
            }
        }
    }

    fn tell_owner(&mut self, setup: &Setup, n: usize, print: u64, input: owner::Input) {
        let (now, mut out) = (self.owner_now(n), Outbox::new());
        self.owners[n].print = mix(mix(self.owners[n].print, now.0), print);
        Arc::make_mut(&mut self.owners[n].machine).handle(at(now), input, &mut out);
        self.perform_owner(setup, n, out);
    }

    fn perform_owner(&mut self, setup: &Setup, n: usize, out: Outbox<owner::Output>) {
        for output in out {
            match output {
                owner::Output::Send { ticket, poll, .. } => {
                    self.send(setup, Who::Owner(n), ticket, Message::OwnerPoll(*poll));
                }
                owner::Output::Holdings(mut held) => {
                    held.sort_by_key(|holding| holding.leased.range.start);
                    self.owners[n].held = Arc::new(held);
                    self.check(n);
                }
                owner::Output::Changed(change) => self.changed(n, &change),
                owner::Output::Export(to) => {
                    let there = to.owner != name(n);
                    if let Some(state) = self.owners[n].state.filter(|_| there) {
                        self.owners[1 - n].arrived.push((to.leased.range, state));
                    }
                    self.tell_owner(setup, 1 - n, to.token, owner::Input::Imported { token: to.token, done: there });
                    self.tell_owner(setup, n, to.token, owner::Input::Exported { token: to.token, done: there });
                }
                owner::Output::Import(_) | owner::Output::Refused(_) | owner::Output::Drained => {}
            }
        }
    }

    fn changed(&mut self, n: usize, change: &owner::OwnershipChange) {
        if change.revoked.iter().any(|leased| leased.range.contains(KEY)) {
            self.owners[n].state = None;
        }
        for (leased, token) in change.granted.iter().filter(|(leased, _)| leased.range.contains(KEY)) {
            let came = self.owners[n].arrived.iter().rev().find(|(range, _)| range.contains(KEY)).map(|(_, s)| *s);
            let state = came.filter(|_| token.is_some()).unwrap_or_else(|| {
                self.last_state += 1;
                self.last_state
            });
            self.owners[n].state = Some(state);
            self.states.insert(leased.lease, state);
        }
    }

    fn tell_lookup(&mut self, setup: &Setup, print: u64, input: lookup::Input) {
        let (now, mut out) = (self.manager_now(), Outbox::new());
        let Some(seat) = &mut self.lookup else { return };
        seat.print = mix(mix(seat.print, now.0), print);
        Arc::make_mut(&mut seat.machine).handle(at(now), input, &mut out);
        self.perform_lookup(setup, out);
    }

    fn perform_lookup(&mut self, setup: &Setup, out: Outbox<lookup::Output>) {
        let (mut changed, mut lost) = (false, Vec::new());
        for output in out {
            match output {
                lookup::Output::Send { ticket, poll, .. } => {
                    self.send(setup, Who::Lookup, ticket, Message::LookupPoll(poll));
                }
                lookup::Output::Changed => changed = true,
                lookup::Output::Lost(ranges) => lost = ranges,
                lookup::Output::Refused(_) => {}
            }
        }
        let Some(seat) = &mut self.lookup else { return };
        let judged = seat.settle(&self.states);
        seat.lost(&lost);
        if changed {
            seat.changed();
        }
        let judged = judged.and_then(|()| seat.settle(&self.states));
        if let Err(what) = judged {
            self.wrong.get_or_insert(what);
        }
    }

    /// What must hold whenever an owner's belief changes.
    fn check(&mut self, n: usize) {
        let now = self.owner_now(n);
        if let Some(number) = self.owners[n].revived(now) {
            self.wrong.get_or_insert(format!("owner {n} holds {number:?} again"));
        }
        let Some(other) = (n < 2).then_some(1 - n).filter(|other| *other < self.owners.len()) else { return };
        let mut theirs = self.owners[other].believes(self.owner_now(other)).peekable();
        for ours in self.owners[n].believes(now) {
            while theirs.next_if(|b| b.leased.range.last < ours.leased.range.start).is_some() {}
            if let Some(both) = theirs.peek().filter(|b| b.leased.range.start <= ours.leased.range.last) {
                let what =
                    format!("both owners hold {}: {:?}, {:?}", both.leased.range, both.leased.lease, ours.leased.lease);
                self.wrong.get_or_insert(what);
                return;
            }
        }
    }
}

fn at(mono: Mono) -> Now {
    Now { mono, wall: Wall(0) }
}

/// A clock that runs at so many percent of real time.
fn local(time: u64, rate: u64) -> Mono {
    Mono(1_000_000_000_000 + time / 100 * rate)
}

fn name(n: usize) -> String {
    format!("owner {n}")
}

fn seat(setup: &Setup, n: usize, incarnation: u64) -> OwnerSeat {
    let options = owner::Options {
        namespace: "n".into(),
        owner: name(n),
        address: format!("{}:{incarnation}", name(n).replace(' ', "-")),
        incarnation,
        seed: 10 * incarnation + n as u64,
        proof: None,
        hands_over: setup.hands_over,
        renew: setup.renew,
        mutant: setup.mutant,
    };
    OwnerSeat::new(owner::Owner::new(options), incarnation, mix(n as u64, incarnation))
}
