//! The world: four replicas of which one lies, two sketching nodes of two threads each, clients, and time that is made here.
//!
//! A phase of faults, then one without, in which every request must be answered (S5).

mod checker;
mod nodes;
mod plan;
mod replicas;

pub use plan::{Carries, Counts, Plan};

use bytes::Bytes;
use checker::Checker;
use nodes::{Node, Table};
use replicas::Seat;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidings_base::{Incarnation, Mono, Now, Seeded, Wall};
use tidings_sketch::group::{self, Reply};
use tidings_sketch::history::Carried;
use tidings_sketch::mutant::Mutant;
use tidings_sketch::replica::liar::Liar;
use tidings_sketch::replica::model::Model;
use tidings_sketch::replica::pages::{self, Pages};
use tidings_sketch::replica::{Command, Ordering, Outcome};
use tidings_sketch::seen::Read;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::{Sketch, Sketching};
use tidings_sketch::sketcher::{self, Ask, How, Kind, Refusal, Way};
use tidings_sketch::{Answer, CallId, ReplicaId, RequestId};

const MS: u64 = 1_000_000;
const REPLICAS: u16 = 4;
const NODES: usize = 2;
const THREADS: usize = 2;
const SESSIONS: u64 = 3;
const FAULTS_END: u64 = 4_000 * MS;
const ASKING_END: u64 = FAULTS_END + 1_500 * MS;
const END: u64 = ASKING_END + 1_500 * MS;
/// Clients of the group: threads by node and life, then writers that pass sketchers by.
const CLIENTS: u64 = 1_000;
const OUTSIDE: u64 = 999;
/// More than the model puts into one.
const COMMANDS_IN_A_BLOCK: u32 = 1_000;

/// A thread of a node, as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Where {
    node: usize,
    life: u64,
    thread: usize,
}

enum Event {
    /// Clients ask.
    Ask,
    /// The engine works, and replicas execute.
    Work,
    Sketcher(Where, sketcher::Input<Bytes, Bytes>),
    Group(Where, group::Input<Bytes, Bytes>),
    WakeSketcher(Where),
    WakeGroup(Where),
    /// A fast read reaches a replica.
    FastAt(ReplicaId, Where, CallId, Bytes),
    /// A command reaches a replica.
    CommandAt(ReplicaId, Where, CallId, bool, Command),
    /// A client hears.
    Heard(RequestId, Bytes, How, Option<Sigma>),
    /// A range changes hands.
    Move,
    /// A move ends that began in this life of its owner.
    Settle(usize, u64),
    /// Its owner stops answering for it; its entries are copied already.
    Freeze(usize),
    Crash,
    Rebirth,
    Lag,
}

/// What a client asked.
struct Asked {
    began: u64,
    page: u64,
    write: bool,
    session: Option<u64>,
    own: Option<u64>,
    ended: bool,
    /// Where it is under way, so that a crash ends it.
    at: Where,
}

/// The last write of a session: its page, its version, its place.
type LastWrite = (u64, u64, Sigma);

pub struct World {
    now: u64,
    rng: Seeded,
    plan: Plan,
    mutant: Option<Mutant>,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    sketching: Sketching,
    model: Model,
    seats: Vec<Seat>,
    /// Executes every block at once: what is true.
    reference: tidings_sketch::replica::Replica<Pages>,
    life: Incarnation,
    nodes: Vec<Node>,
    table: Arc<Table>,
    /// Entries on their way with a half that moves.
    carried: [Option<Carried>; 2],
    asked: Vec<Asked>,
    sessions: BTreeMap<u64, LastWrite>,
    /// Writes that pass the sketchers by, until they are executed somewhere.
    outside: BTreeMap<u64, u64>,
    next_nonce: u64,
    /// Replies that an attacker has seen, by client and page.
    /// A mutant's: reads that wait for another one's answer.
    joined: BTreeMap<RequestId, Vec<RequestId>>,
    captured: BTreeMap<(u64, u64), VecDeque<Reply<Bytes>>>,
    /// The last answer that stood on a state: which state, and which answer.
    tickets: ((Incarnation, u64), u32),
    checker: Checker,
    counts: Counts,
    broken: Option<String>,
}

impl World {
    pub fn new(plan: Plan, mutant: Option<Mutant>) -> World {
        let rng = Seeded::new(plan.seed).fork("world");
        let seats = (0..usize::from(REPLICAS)).map(|number| Seat {
            replica: replicas::replica(CLIENTS).without(mutant),
            liar: (number < plan.liars).then(|| Liar::new(plan.sin, rng.fork(&format!("replica {number}")))),
            lags_until: 0,
            waiting: BTreeMap::new(),
        });
        let seats = seats.collect();
        let mut world = World {
            now: 0,
            model: Model::new(rng.fork("model"), REPLICAS),
            rng,
            events: BTreeMap::new(),
            next_event: 0,
            sketching: Sketching::new([9; 32]),
            seats,
            reference: replicas::replica(CLIENTS).without(mutant),
            life: Incarnation(1),
            nodes: Vec::new(),
            table: Arc::new(Table::default()),
            carried: [None, None],
            asked: Vec::new(),
            sessions: BTreeMap::new(),
            outside: BTreeMap::new(),
            next_nonce: 0,
            joined: BTreeMap::new(),
            captured: BTreeMap::new(),
            tickets: ((Incarnation(0), 0), 0),
            checker: Checker::default(),
            counts: Counts::default(),
            broken: None,
            plan,
            mutant,
        };
        for node in 0..NODES {
            let made = world.make_node(node, 0);
            world.nodes.push(made);
        }
        world.schedule();
        world
    }

    fn schedule(&mut self) {
        self.after(MS, Event::Ask);
        self.after(MS, Event::Work);
        for (happens, event) in
            [(self.plan.moves, Event::Move), (self.plan.crashes, Event::Crash), (self.plan.lags, Event::Lag)]
        {
            if happens {
                self.after(300 * MS, event);
            }
        }
        if let Some(at) = self.plan.rebirth_at {
            self.after(at, Event::Rebirth);
        }
    }

    pub fn run(&mut self) -> Result<Counts, String> {
        let mut steps = 0u64;
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > END {
                break;
            }
            self.now = at;
            self.happen(event);
            steps += 1;
            assert!(steps < 2_000_000, "the world does not come to rest");
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        self.check()?;
        Ok(self.counts.clone())
    }

    fn check(&mut self) -> Result<(), String> {
        self.checker.finish()?;
        self.counts.stale = self.checker.stale();
        self.counts.own_writes_read = self.checker.own_writes_read;
        self.counts.redelivered = self.model.redelivered();
        for node in &self.nodes {
            for standing in node.threads.iter().flat_map(|thread| thread.sketcher.standing(Mono(self.now))) {
                self.counts.mismatches += standing.mismatches;
                self.counts.silences += standing.silences;
            }
        }
        // S5: everything that was asked after the faults is answered.
        let unanswered = self.asked.iter().filter(|asked| asked.began > FAULTS_END && !asked.ended).count();
        match unanswered {
            0 => Ok(()),
            _ => Err(format!("{unanswered} requests are never answered")),
        }
    }

    fn time(&self) -> Now {
        Now { mono: Mono(self.now), wall: Wall(self.now / 1_000) }
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((self.now + delay, self.next_event), event);
    }

    /// Mostly quick, now and then slow while there are faults.
    fn delay(&mut self) -> u64 {
        match self.faulty() && self.rng.one_in(10) {
            true => self.rng.between(5, 60) * MS,
            false => self.rng.between(1, 30) * MS / 10,
        }
    }

    fn lost(&mut self) -> bool {
        self.faulty() && self.rng.one_in(40)
    }

    fn lives(&self, at: Where) -> bool {
        self.nodes[at.node].life == at.life
    }

    fn key(&self, page: u64) -> Sketch {
        pages::key(&self.sketching, page)
    }

    fn answer(&self, request: &[u8], response: Bytes) -> Answer<Bytes> {
        pages::answer(&self.sketching, replicas::page_of(request), response, self.mutant)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask => self.clients_ask(),
            Event::Work => self.engine_works(),
            Event::Sketcher(at, input) if self.lives(at) => self.tell_sketcher(at, input),
            Event::Group(at, input) if self.lives(at) => self.tell_group(at, input),
            Event::WakeSketcher(at) if self.lives(at) => self.wake_sketcher(at),
            Event::WakeGroup(at) if self.lives(at) => self.wake_group(at),
            Event::Sketcher(..) | Event::Group(..) | Event::WakeSketcher(_) | Event::WakeGroup(_) => {}
            Event::FastAt(replica, at, call, request) => self.fast_at(replica, at, call, &request),
            Event::CommandAt(replica, at, call, whole, command) => self.command_at(replica, at, call, whole, command),
            Event::Heard(id, response, how, sigma) => self.client_hears(id, &response, how, sigma),
            Event::Move => self.move_range(),
            Event::Settle(half, life) => self.settle(half, life),
            Event::Freeze(half) => self.freeze(half),
            Event::Crash => self.crash(),
            Event::Rebirth => self.rebirth(),
            Event::Lag => {
                let replica = self.rng.below(REPLICAS.into()) as usize;
                self.seats[replica].lags_until = self.now + self.rng.between(50, 400) * MS;
                if self.faulty() {
                    self.after(200 * MS, Event::Lag);
                }
            }
        }
    }

    // ---- clients ----------------------------------------------------------------------------------------------------

    fn clients_ask(&mut self) {
        for _ in 0..self.rng.between(1, 4) {
            // Four pages that everybody reads, and many that press upon the table.
            let page = if self.rng.one_in(3) { self.rng.between(4, 60) } else { self.rng.below(4) };
            match self.rng.below(16) {
                0 => self.write_outside(page),
                1 => self.ask(page, true),
                _ => self.ask(page, false),
            }
        }
        if self.now < ASKING_END {
            let pause = self.rng.between(1, 8) * MS;
            self.after(pause, Event::Ask);
        }
    }

    fn ask(&mut self, page: u64, write: bool) {
        let node = match self.rng.one_in(20) {
            true => self.rng.below(NODES as u64) as usize,
            false => self.table.owner(self.key(page).position()),
        };
        let at = Where { node, life: self.nodes[node].life, thread: self.rng.below(THREADS as u64) as usize };
        let session = self.rng.one_in(3).then(|| self.rng.below(SESSIONS));
        let last = session.and_then(|session| self.sessions.get(&session)).copied();
        let own = last.filter(|(of, ..)| *of == page).map(|(_, version, _)| version);
        let id = RequestId(self.asked.len() as u64);
        let request = if write { format!("w {page} {}", id.0) } else { format!("r {page}") };
        let kind = match write {
            true => Kind::Write,
            false => Kind::Read { way: Way::Usual, after: last.map(|(.., sigma)| sigma) },
        };
        let joins = |other: &&Asked| !other.write && !other.ended && other.page == page && other.at == at;
        let other = self.asked.iter().rev().take(50).position(|other| joins(&other));
        let other = other.filter(|_| self.mutant == Some(Mutant::Joined) && !write);
        self.asked.push(Asked { began: self.now, page, write, session, own, ended: false, at });
        if let Some(back) = other {
            self.joined.entry(RequestId(id.0 - 1 - back as u64)).or_default().push(id);
            return;
        }
        let ask = Ask { id, key: self.key(page), kind, client: 0, request: request.into() };
        let delay = self.delay();
        self.after(delay, Event::Sketcher(at, sketcher::Input::Ask(ask)));
    }

    /// An external writer (§3.3): no sketcher sees it.
    fn write_outside(&mut self, page: u64) {
        self.next_nonce += 1;
        let nonce = self.next_nonce;
        let command = Command { client: OUTSIDE, nonce, request: format!("w {page} outside {nonce}").into() };
        self.outside.insert(nonce, page);
        for replica in 0..REPLICAS {
            self.model.submit(ReplicaId(replica), command.clone());
        }
    }

    fn client_hears(&mut self, id: RequestId, response: &[u8], how: How, sigma: Option<Sigma>) {
        let (now, asked) = (self.now, &mut self.asked[id.0 as usize]);
        asked.ended = true;
        let version = pages::version_of(response);
        // S1.
        if !self.checker.truths.contains(response) && version != 0 {
            self.broken = Some(format!("{:?} never was", String::from_utf8_lossy(response)));
            return;
        }
        if pages::page_of_answer(response) != Some(asked.page) {
            self.broken = Some(format!("{:?} answers page {}", String::from_utf8_lossy(response), asked.page));
            return;
        }
        self.counts.errors += u64::from(pages::is_error(response));
        if asked.write {
            self.counts.writes += 1;
            self.checker.write(asked.page, now, version);
            if let (Some(session), Some(sigma)) = (asked.session, sigma) {
                let newer = self.sessions.get(&session).is_none_or(|(.., last)| *last < sigma);
                if newer {
                    self.sessions.insert(session, (asked.page, version, sigma));
                }
            }
        } else {
            self.counts.reads += 1;
            let read = Read { began: asked.began, ended: now, version, fast: how == How::Fast };
            self.broken = self.checker.read(asked.page, read, asked.own).err();
        }
    }

    // ---- replicas ---------------------------------------------------------------------------------------------------

    fn engine_works(&mut self) {
        self.model.work();
        self.execute_at_reference();
        for number in 0..usize::from(REPLICAS) {
            if self.now < self.seats[number].lags_until && self.faulty() {
                continue;
            }
            for _ in 0..self.rng.below(3) {
                let Some(block) = self.model.next(ReplicaId(number as u16)) else { break };
                self.execute(number, &block);
            }
            // What a stale one remembers is renewed rarely.
            let seat = &mut self.seats[number];
            if self.rng.one_in(400)
                && let Some(liar) = &mut seat.liar
            {
                liar.old = seat.replica.service().clone();
            }
        }
        let pause = self.rng.between(1, 4) * MS;
        self.after(pause, Event::Work);
        let waiting: Vec<u64> = self.outside.keys().copied().collect();
        for nonce in waiting.into_iter().filter(|_| self.now.is_multiple_of(7)) {
            let (client, request) = (OUTSIDE, format!("w {} outside {nonce}", self.outside[&nonce]).into());
            self.model.submit(ReplicaId(0), Command { client, nonce, request });
        }
    }

    fn execute_at_reference(&mut self) {
        while let Some(block) = self.model.blocks().get(self.reference.height() as usize).cloned() {
            for (_, outcome) in self.reference.execute(&block) {
                if let Outcome::Done { result, .. } = outcome {
                    self.checker.truths.insert(result.to_vec());
                }
            }
        }
        if let Some(twice) = &self.reference.service().twice {
            self.broken = Some(format!("{twice:?} took effect twice"));
        }
    }

    fn execute(&mut self, number: usize, block: &tidings_sketch::replica::Block) {
        let done = self.seats[number].replica.execute(block);
        self.model.executed(ReplicaId(number as u16), block.height);
        let seat = &self.seats[number];
        // S4: the reference has executed the same blocks, and no replica diverges from it.
        if seat.replica.height() == self.reference.height() && seat.replica.service() != self.reference.service() {
            self.broken = Some(format!("replica {number} diverges at height {}", block.height));
        }
        for (command, outcome) in done {
            let Outcome::Done { result, sigma } = outcome else { continue };
            if command.client == OUTSIDE {
                if let Some(page) = self.outside.remove(&command.nonce) {
                    self.checker.write(page, self.now, pages::version_of(&result));
                }
            } else if let Some((at, call, whole)) = self.seats[number].waiting.remove(&(command.client, command.nonce))
            {
                self.reply(number, at, call, whole, &command, result, sigma);
            }
        }
    }

    fn fast_at(&mut self, replica: ReplicaId, at: Where, call: CallId, request: &[u8]) {
        let page = replicas::page_of(request);
        let awake = self.now > FAULTS_END / 2;
        let seat = &mut self.seats[usize::from(replica.0)];
        let truth = seat.replica.service().read(page);
        if let Some((response, _)) = seat.speak(awake, truth, page, None) {
            let answer = self.answer(request, response);
            let delay = self.delay();
            self.after(delay, Event::Sketcher(at, sketcher::Input::Fast(call, Some(answer))));
        }
    }

    fn command_at(&mut self, replica: ReplicaId, at: Where, call: CallId, whole: bool, command: Command) {
        let number = usize::from(replica.0);
        if self.plan.tolerant && command.request.starts_with(b"r") {
            let (result, sigma) = self.newest(number, replicas::page_of(&command.request));
            return self.reply(number, at, call, whole, &command, result, sigma);
        }
        match self.seats[number].replica.replied(command.client, command.nonce) {
            Some(Outcome::Done { sigma, result }) => self.reply(number, at, call, whole, &command, result, sigma),
            Some(_) => {}
            None => {
                self.seats[number].waiting.insert((command.client, command.nonce), (at, call, whole));
                self.model.submit(replica, command);
            }
        }
    }

    /// What a member of a crash-tolerant group says of a page when it is asked for the newest: the state that is agreed on, and which
    /// of the answers on that state it is. Behind all commands of the last block.
    fn newest(&mut self, number: usize, page: u64) -> (Bytes, Sigma) {
        let state = match self.mutant {
            Some(Mutant::AppliedIsNewest) => &self.seats[number].replica,
            _ => &self.reference,
        };
        let on = (state.incarnation(), state.height());
        self.tickets = (on, if self.tickets.0 == on { self.tickets.1 + 1 } else { COMMANDS_IN_A_BLOCK });
        let sigma = Sigma::new(on.0, on.1, self.tickets.1).expect("it fits");
        (state.service().read(page), sigma)
    }

    #[expect(clippy::too_many_arguments, reason = "a reply has many parts")]
    fn reply(
        &mut self,
        number: usize,
        at: Where,
        call: CallId,
        whole: bool,
        command: &Command,
        result: Bytes,
        sigma: Sigma,
    ) {
        let page = replicas::page_of(&command.request);
        let awake = self.now > FAULTS_END / 2;
        let Some((said, sigma)) = self.seats[number].speak(awake, result, page, Some(sigma)) else { return };
        let answer = self.answer(&command.request, said);
        let reply = Reply {
            from: ReplicaId(number as u16),
            group: 1,
            client: command.client,
            nonce: command.nonce,
            sigma,
            result: answer.sketch,
            whole: whole.then_some(answer),
        };
        let kept = self.captured.entry((command.client, page)).or_default();
        kept.push_back(reply.clone());
        if kept.len() > 12 {
            kept.pop_front();
        }
        if !self.lost() {
            let delay = self.delay();
            self.after(delay, Event::Group(at, group::Input::Reply(call, reply)));
        }
    }

    /// Rule F: whoever can listen can send again what honest replicas have signed.
    fn replay(&mut self, at: Where, call: CallId, command: &Command) {
        if !self.plan.replays || !self.faulty() || !self.rng.one_in(4) {
            return;
        }
        let page = replicas::page_of(&command.request);
        let kept = self.captured.get(&(command.client, page)).cloned().unwrap_or_default();
        self.counts.replayed += u64::from(!kept.is_empty());
        for reply in kept {
            self.after(MS / 20, Event::Group(at, group::Input::Reply(call, reply)));
        }
    }

    /// The group is restored and begins a new life: all continue from the same state, and the order begins anew.
    fn rebirth(&mut self) {
        self.counts.reborn += 1;
        self.execute_at_reference();
        self.life = self.life.next();
        self.reference = self.reference.clone().reborn(self.life);
        for seat in &mut self.seats {
            seat.replica = self.reference.clone();
        }
        self.model.begin_again();
    }

    fn refused(&mut self, id: RequestId, why: Refusal) {
        for joined in self.joined.remove(&id).into_iter().flatten() {
            self.refused(joined, why);
        }
        self.counts.refused += 1;
        let asked = &mut self.asked[id.0 as usize];
        asked.ended = true;
        // After the faults there is no reason to refuse, but that a client asked the wrong node.
        if asked.began > FAULTS_END + 500 * MS && why != Refusal::Moved {
            self.broken = Some(format!("refused without need: {why}"));
        }
    }

    fn answered(&mut self, id: RequestId, response: Bytes, how: How, sigma: Option<Sigma>) {
        match how {
            How::Fast => self.counts.fast += 1,
            How::Agreed => self.counts.agreed += 1,
            How::Unverified => {}
        }
        // A read ends when its answer leaves: what a client hears later ends later, which would hide something.
        let mut ids = vec![id];
        while let Some(id) = ids.pop() {
            ids.extend(self.joined.remove(&id).into_iter().flatten());
            self.after(0, Event::Heard(id, response.clone(), how, sigma));
        }
    }
}
