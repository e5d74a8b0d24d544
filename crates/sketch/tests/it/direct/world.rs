//! Clients without a sketcher before four replicas of which one lies, knows everything, and says what suits it; messages are late, lost
//! and doubled, replicas fall far behind, begin again from old states, and take states over.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Incarnation, Machine, Mono, Now, Outbox, Seeded, Wall};
use tidings_sketch::direct::client::{Ask, Client, Input, Options, Output};
use tidings_sketch::direct::overheard::Overheard;
use tidings_sketch::direct::{Question, ReplicaSketcher, Word, replica};
use tidings_sketch::group::{self, Kind, Reply};
use tidings_sketch::mutant::Mutant;
use tidings_sketch::replica::liar::{Liar, Sin};
use tidings_sketch::replica::model::Model;
use tidings_sketch::replica::pages::{self, Pages};
use tidings_sketch::replica::{Command, Ordering, Outcome, Replica};
use tidings_sketch::seen::{Read, Seen};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketching;
use tidings_sketch::sketcher::How;
use tidings_sketch::{CallId, ReplicaId, RequestId};

const REPLICAS: u16 = 4;
const GROUP: u64 = 1;
const LIFE: Incarnation = Incarnation(1);
const MS: u64 = 1_000_000;
/// Names of clients: each life of one takes a new one.
const NAMES: u64 = 1_000;
/// In milliseconds, and steps.
const FAULTS_END: u64 = 4_000;
const ASKING_END: u64 = 5_000;
const END: u64 = 9_000;

/// What is special in a world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub liars: u16,
    pub sin: Sin,
    pub true_in_order: bool,
    /// How many are remembered: few, so that much is evicted.
    pub entries: usize,
    pub pages: u64,
    /// One in so many requests is a write.
    pub writes: u64,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut rng = Seeded::new(seed).fork("plan of direct");
        Plan {
            seed,
            liars: 1,
            sin: if rng.one_in(2) { Sin::Stale } else { Sin::ALL[seed as usize % Sin::ALL.len()] },
            true_in_order: rng.one_in(2),
            entries: [2, 100][rng.below(2) as usize],
            pages: rng.between(1, 4),
            writes: rng.between(4, 12),
        }
    }
}

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        /// How often what happened.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $(pub $name: u64),* }

        impl Counts {
            pub fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }

            pub fn all_happened(&self) -> bool {
                [$(self.$name),*].iter().all(|count| *count > 0)
            }
        }
    };
}

counts!(fast, agreed, stale, writes, errors, lost, doubled, replayed, restarts, take_overs, client_deaths);

struct Seat {
    replica: Replica<Pages>,
    sketcher: ReplicaSketcher,
    liar: Option<Liar>,
    /// What it begins from again.
    snapshot: Replica<Pages>,
    /// The highest block that its disk holds.
    held: u64,
    lags_until: u64,
    waiting: BTreeMap<(u64, u64), (CallId, bool)>,
}

struct Person {
    client: Client,
    name: u64,
    next: u64,
    /// Requests that are not answered.
    open: u64,
}

struct Asked {
    began: u64,
    page: u64,
    read: bool,
    by: u64,
    ended: bool,
}

enum Flying {
    Question(ReplicaId, Question),
    Command(ReplicaId, Command, CallId, bool),
    Word(Word),
    Reply(CallId, Reply<Bytes>),
}

pub struct World {
    plan: Plan,
    mutant: Option<Mutant>,
    rng: Seeded,
    now: u64,
    model: Model,
    reference: Replica<Pages>,
    seats: Vec<Seat>,
    people: Vec<Person>,
    names: u64,
    flying: Vec<Flying>,
    overheard: Overheard,
    asked: Vec<Asked>,
    /// Which request was ordered under which name.
    ordered: BTreeMap<(u64, u64), usize>,
    seen: BTreeMap<u64, Seen>,
    truths: BTreeSet<Bytes>,
    sketching: Sketching,
    counts: Counts,
    broken: Option<String>,
}

impl World {
    pub fn new(plan: Plan, mutant: Option<Mutant>) -> World {
        let rng = Seeded::new(plan.seed).fork("direct");
        let state = Replica::new(LIFE, 0..NAMES, Pages::default());
        let seat = |number: u16| {
            let mut liar = Liar::new(plan.sin, rng.fork(&format!("liar {number}")));
            liar.true_in_order = plan.true_in_order;
            Seat {
                replica: state.clone(),
                sketcher: ReplicaSketcher::new(remembering(number, &plan, mutant), LIFE, 0),
                liar: (number < plan.liars).then_some(liar),
                snapshot: state.clone(),
                held: 0,
                lags_until: 0,
                waiting: BTreeMap::new(),
            }
        };
        let mut world = World {
            seats: (0..REPLICAS).map(seat).collect(),
            model: Model::new(rng.fork("model"), REPLICAS),
            reference: state.clone(),
            people: Vec::new(),
            names: 0,
            flying: Vec::new(),
            overheard: Overheard::default(),
            asked: Vec::new(),
            ordered: BTreeMap::new(),
            seen: BTreeMap::new(),
            truths: BTreeSet::new(),
            sketching: Sketching::new([9; 32]),
            counts: Counts::default(),
            broken: None,
            now: 0,
            plan,
            mutant,
            rng,
        };
        world.people = (0..3).map(|_| world.person()).collect();
        world
    }

    fn person(&mut self) -> Person {
        let name = self.names;
        self.names += 1;
        let group = group::Options {
            group: GROUP,
            client: name,
            last_nonce: 0,
            replicas: REPLICAS,
            kind: Kind::Byzantine { faults: 1, reads_pass_by: true },
            resend: Duration::from_millis(40),
            give_up: Duration::from_millis(800),
            mutant: self.mutant,
        };
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        let options = Options { patience: Duration::from_millis(25), ..Options::of(group, secret) };
        Person { client: Client::new(options).expect("it fits"), name, next: self.now, open: 0 }
    }

    pub fn run(mut self) -> Result<Counts, String> {
        while self.now < END {
            self.now += 1;
            self.step();
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        for (page, seen) in &self.seen {
            seen.finish().map_err(|broken| format!("page {page}: {broken}"))?;
            self.counts.stale += seen.stale();
        }
        let unanswered = self.asked.iter().filter(|asked| asked.began > FAULTS_END && !asked.ended).count();
        if unanswered > 0 {
            return Err(format!("{unanswered} requests are never answered"));
        }
        Ok(self.counts)
    }

    fn time(&self) -> Now {
        Now { mono: Mono(self.now * MS), wall: Wall(0) }
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    fn step(&mut self) {
        self.people_act();
        for _ in 0..self.rng.between(1, 9) {
            self.carry();
        }
        self.model.work();
        self.execute_at_reference();
        for number in 0..usize::from(REPLICAS) {
            let lags = self.now < self.seats[number].lags_until;
            let far = self.reference.height() > self.seats[number].replica.height() + 30;
            let blocks = if lags { 0 } else { self.rng.below(2) + 3 * u64::from(far) };
            for _ in 0..blocks {
                self.execute_next(number);
            }
        }
        if self.faulty() {
            self.trouble();
        }
    }

    fn trouble(&mut self) {
        let honest = self.rng.between(self.plan.liars.into(), u64::from(REPLICAS) - 1) as usize;
        if self.rng.one_in(60) {
            self.seats[honest].lags_until = self.now + self.rng.between(20, 200);
        }
        if self.rng.one_in(100) {
            self.seats[honest].snapshot = self.seats[honest].replica.clone();
        }
        if self.rng.one_in(150) {
            self.restart(honest);
        }
        if self.rng.one_in(150) {
            self.take_over(honest);
        }
        if self.rng.one_in(200) {
            self.counts.client_deaths += 1;
            let who = self.rng.below(self.people.len() as u64) as usize;
            self.people[who] = self.person();
        }
    }

    /// It begins again from an old state, and executes what its disk holds once more.
    fn restart(&mut self, number: usize) {
        self.counts.restarts += 1;
        let (options, held) = (remembering(number as u16, &self.plan, self.mutant), self.seats[number].held);
        let seat = &mut self.seats[number];
        seat.replica = seat.snapshot.clone();
        seat.sketcher = ReplicaSketcher::new(options, LIFE, held);
        seat.waiting.clear();
        self.overheard.forgot(ReplicaId(number as u16));
    }

    /// It takes the state of the one that is furthest, and does not see what was read on the way there.
    fn take_over(&mut self, number: usize) {
        let furthest = self.seats.iter().map(|seat| &seat.replica).max_by_key(|replica| replica.height()).cloned();
        let Some(state) = furthest.filter(|state| state.height() > self.seats[number].held) else { return };
        self.counts.take_overs += 1;
        let seat = &mut self.seats[number];
        (seat.held, seat.replica, seat.snapshot) = (state.height(), state.clone(), state);
        seat.sketcher.took_over(LIFE, seat.held);
        if self.mutant != Some(Mutant::TransferKeepsTable) {
            self.overheard.forgot(ReplicaId(number as u16));
        }
    }

    // ---- people -----------------------------------------------------------------------------------------------------

    fn people_act(&mut self) {
        for who in 0..self.people.len() {
            let now = self.time();
            if self.people[who].client.deadline().is_some_and(|deadline| deadline <= now.mono) {
                let mut out = Outbox::new();
                self.people[who].client.wake(now, &mut out);
                self.perform(self.people[who].name, out);
            }
            if self.now >= self.people[who].next && self.people[who].open < 3 && self.now < ASKING_END {
                self.people[who].next = self.now + self.rng.between(1, 40);
                let (page, read) = (self.rng.below(self.plan.pages), !self.rng.one_in(self.plan.writes));
                let id = self.asked.len();
                let request = if read { format!("r {page}") } else { format!("w {page} {id}") };
                self.people[who].open += 1;
                self.asked.push(Asked { began: self.now, page, read, by: self.people[who].name, ended: false });
                self.tell(who, Input::Ask(Ask { id: RequestId(id as u64), read, request: request.into() }));
            }
        }
    }

    fn tell(&mut self, who: usize, input: Input) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.people[who].client.handle(now, input, &mut out);
        self.perform(self.people[who].name, out);
    }

    fn perform(&mut self, client: u64, out: Outbox<Output>) {
        for output in out {
            match output {
                Output::Fast(to, question) => self.flying.push(Flying::Question(to, question)),
                Output::Send { to, call, id, nonce, whole, request } => {
                    self.ordered.insert((client, nonce), id.0 as usize);
                    self.flying.push(Flying::Command(to, Command { client, nonce, request }, call, whole));
                }
                Output::Answer { id, response, how, .. } => self.answered(id.0 as usize, &response, how),
                Output::Refuse(id, why) => {
                    let asked = self.end(id.0 as usize);
                    if asked.began > FAULTS_END + 1_000 {
                        self.broken = Some(format!("refused without need: {why}"));
                    }
                }
            }
        }
    }

    fn end(&mut self, id: usize) -> &Asked {
        let asked = &mut self.asked[id];
        asked.ended = true;
        if let Some(person) = self.people.iter_mut().find(|person| person.name == asked.by) {
            person.open -= 1;
        }
        asked
    }

    fn answered(&mut self, id: usize, response: &Bytes, how: How) {
        let (ended, version) = (self.now, pages::version_of(response));
        let Asked { began, page, read, .. } = *self.end(id);
        let made_up = version != 0 && !self.truths.contains(response);
        if made_up || pages::page_of_answer(response) != Some(page) {
            self.broken = Some(format!("{response:?}, which answers page {page}, never was"));
            return;
        }
        self.counts.errors += u64::from(pages::is_error(response));
        let seen = self.seen.entry(page).or_default();
        if !read {
            self.counts.writes += 1;
            return seen.write(ended, version);
        }
        self.counts.fast += u64::from(how == How::Fast);
        self.counts.agreed += u64::from(how == How::Agreed);
        // Answers are compared at no one place, so that those of reads that overlap may come in any order.
        let read = Read { began, ended, version, fast: false };
        self.broken = seen.read(read).err().map(|broken| format!("page {page}: {broken}"));
    }

    // ---- the network ------------------------------------------------------------------------------------------------

    fn carry(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let at = self.rng.below(self.flying.len() as u64) as usize;
        let flying = self.flying.swap_remove(at);
        if self.faulty() && self.rng.one_in(50) {
            self.counts.lost += 1;
            return;
        }
        match flying {
            Flying::Question(to, question) => self.question_at(to, &question),
            Flying::Command(to, command, call, whole) => self.command_at(to, command, call, whole),
            Flying::Word(word) => {
                if self.faulty() && self.rng.one_in(20) {
                    self.counts.doubled += 1;
                    self.flying.push(Flying::Word(word.clone()));
                }
                if let Some(who) = self.people.iter().position(|person| person.name == word.client) {
                    self.tell(who, Input::Word(word));
                }
            }
            Flying::Reply(call, reply) => {
                if let Some(who) = self.people.iter().position(|person| person.name == reply.client) {
                    self.tell(who, Input::Reply(call, reply));
                }
            }
        }
    }

    fn question_at(&mut self, to: ReplicaId, question: &Question) {
        if self.faulty() && self.rng.one_in(8) {
            for word in self.overheard.captured(question.client, &question.request) {
                self.counts.replayed += 1;
                self.flying.push(Flying::Word(word));
            }
        }
        let seat = &mut self.seats[usize::from(to.0)];
        let Some(truth) = seat.sketcher.word(seat.replica.service(), question) else { return };
        let said = match &mut seat.liar {
            Some(liar) => {
                liar.awake = self.now > FAULTS_END / 2;
                liar.word(&self.overheard, question, truth)
            }
            None => {
                self.overheard.capture(&question.request, &truth);
                Some(truth)
            }
        };
        self.flying.extend(said.map(Flying::Word));
    }

    fn command_at(&mut self, to: ReplicaId, command: Command, call: CallId, whole: bool) {
        let number = usize::from(to.0);
        match self.seats[number].replica.replied(command.client, command.nonce) {
            Some(Outcome::Done { sigma, result }) => self.reply(number, &command, (call, whole), result, sigma),
            Some(_) => {}
            None => {
                self.seats[number].waiting.insert((command.client, command.nonce), (call, whole));
                self.model.submit(to, command);
            }
        }
    }

    fn reply(&mut self, number: usize, command: &Command, (call, whole): (CallId, bool), result: Bytes, sigma: Sigma) {
        let page = pages::page_of(&command.request).expect("requests are made here");
        let said = match &mut self.seats[number].liar {
            Some(liar) => liar.speak(page, result, Some(sigma)),
            None => Some((result, Some(sigma))),
        };
        let Some((result, sigma)) = said else { return };
        let answer = pages::answer(&self.sketching, page, result, None);
        let (from, result) = (ReplicaId(number as u16), answer.sketch);
        let (client, nonce, whole) = (command.client, command.nonce, whole.then_some(answer));
        self.flying.push(Flying::Reply(call, Reply { from, group: GROUP, client, nonce, sigma, result, whole }));
    }

    // ---- the order --------------------------------------------------------------------------------------------------

    fn execute_at_reference(&mut self) {
        while let Some(block) = self.model.blocks().get(self.reference.height() as usize).cloned() {
            for (command, outcome) in self.reference.execute(&block) {
                let Outcome::Done { result, .. } = outcome else { continue };
                self.truths.insert(result.clone());
                if let Some(asked) = self.ordered.get(&(command.client, command.nonce)).map(|id| &self.asked[*id])
                    && asked.read
                {
                    let seen = self.seen.entry(asked.page).or_default();
                    seen.took_effect(asked.began, pages::version_of(&result));
                }
            }
        }
    }

    fn execute_next(&mut self, number: usize) {
        let seat = &mut self.seats[number];
        let Some(block) = self.model.blocks().get(seat.replica.height() as usize).cloned() else { return };
        let done = seat.replica.execute(&block);
        seat.sketcher.executed(seat.replica.service(), block.height, &done);
        seat.held = seat.held.max(block.height);
        for (command, outcome) in done {
            let Outcome::Done { result, sigma } = outcome else { continue };
            let seat = &mut self.seats[number];
            if command.request.starts_with(b"r") {
                let remembered = seat.sketcher.remembers(&command.request);
                self.overheard.note(ReplicaId(number as u16), &command.request, remembered, &result);
            }
            if let Some(waiting) = seat.waiting.remove(&(command.client, command.nonce)) {
                self.reply(number, &command, waiting, result, sigma);
            }
        }
    }
}

fn remembering(number: u16, plan: &Plan, mutant: Option<Mutant>) -> replica::Options {
    replica::Options { group: GROUP, id: ReplicaId(number), entries: plan.entries, mutant }
}
