//! A manager's host: the machine, its session with the cell, and the lock that says who leads.

use super::cell::SESSION;
use super::fact::Fact;
use super::letter::{Body, CellAsk, CellSays, Commit, Letter, Paths, Request, send};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidings_base::time::shortened;
use tidings_base::{Class, Error, Machine, Mono, Now, OpId, Outbox, Seeded};
use tidings_placement::manager::{Input, Manager, Options, Outcome, Output};
use tidings_wire::v1::OwnerPoll;
use tidings_wire::v1::placement_message::Message;

/// How often the session is kept alive, and how often a standby tries for the lock.
const KEEP_ALIVE: Duration = Duration::from_millis(800);
const TRY: (u64, u64) = (200, 700);
/// How long the driver waits for the cell; then nobody knows.
const PATIENCE: Duration = Duration::from_secs(2);

/// Letters of one owner that are remembered.
const REMEMBERED: usize = 8;

/// What a request to the cell was for.
#[derive(Debug)]
enum Errand {
    Open,
    KeepAlive { session: u64, asked: Mono },
    Acquire { session: u64 },
    Release { generation: u64 },
    Commit { id: u64 },
    Read { ids: Vec<u64> },
    List,
}

/// A manager's process.
#[derive(Debug)]
pub struct Host {
    machine: Manager,
    cell: HostId,
    rng: Seeded,
    session: Option<u64>,
    /// The generation of the lock that is held.
    holds: Option<u64>,
    /// The last under which it was elected: an answer that comes late must not elect it twice.
    reigned: u64,
    /// One that is to be given up before another may be tried for.
    resigns: Option<u64>,
    errands: BTreeMap<u64, (Errand, Mono)>,
    last_id: u64,
    asked: BTreeMap<OpId, (HostId, u64)>,
    last_op: u64,
    next_try: Mono,
    next_keep_alive: Mono,
    /// What each owner's present process said while it held nothing: its nonce, and the letters.
    claimless: BTreeMap<HostId, (u64, Vec<Bytes>)>,
    /// The answers to operators, by their numbers.
    told: BTreeMap<OpId, Result<Message, String>>,
}

impl Host {
    /// Starts: stands by, and asks for a session.
    pub fn start<F: From<Fact>>(
        options: Options,
        cell: HostId,
        start: u64,
        rng: Seeded,
        now: Now,
        out: &mut Outbox<Effect<F>>,
    ) -> Host {
        let mut host = Host {
            machine: Manager::new(options),
            cell,
            rng,
            session: None,
            holds: None,
            reigned: 0,
            resigns: None,
            errands: BTreeMap::new(),
            last_id: start << 32,
            asked: BTreeMap::new(),
            last_op: 0,
            next_try: now.mono,
            next_keep_alive: now.mono,
            claimless: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        host.go_on(now, out);
        host
    }

    /// Whether it leads and answers.
    pub fn leads(&self) -> bool {
        self.machine.leads()
    }

    /// How many wishes of policies it has made its own since it started.
    pub fn wishes(&self) -> u64 {
        self.machine.counts().wishes
    }

    /// An operator asks; the answer is found by [`Host::told`].
    pub fn operate<F: From<Fact>>(&mut self, now: Now, request: Message, out: &mut Outbox<Effect<F>>) -> OpId {
        self.last_op += 1;
        let op = OpId(self.last_op);
        self.feed(now, Input::Operate { op, request }, out);
        op
    }

    /// The answer to an operator, once.
    pub fn told(&mut self, op: OpId) -> Option<Result<Message, String>> {
        self.told.remove(&op)
    }

    /// What an owner's process said while it held nothing: to be repeated by whoever directs faults.
    pub fn claimless(&self, owner: HostId) -> Option<Vec<Bytes>> {
        self.claimless.get(&owner).map(|(_, letters)| letters.clone())
    }

    fn remember(&mut self, from: HostId, bytes: &Bytes, poll: &OwnerPoll) {
        let (nonce, letters) = self.claimless.entry(from).or_default();
        if *nonce != poll.nonce {
            (*nonce, *letters) = (poll.nonce, Vec::new());
        }
        if poll.claims.is_empty() && letters.len() < REMEMBERED {
            letters.push(bytes.clone());
        }
    }

    /// Takes a letter.
    pub fn receive<F: From<Fact>>(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Outbox<Effect<F>>) {
        match Letter::of(bytes) {
            Some((id, Body::Ask(ask))) => {
                self.last_op += 1;
                let op = OpId(self.last_op);
                self.asked.insert(op, (from, id));
                match ask.message {
                    Some(Message::OwnerPoll(poll)) => {
                        self.remember(from, bytes, &poll);
                        self.feed(now, Input::Owner { op, poll: Box::new(poll) }, out);
                    }
                    Some(Message::LookupPoll(poll)) => self.feed(now, Input::Lookup { op, poll }, out),
                    _ => {}
                }
            }
            Some((id, Body::Says(says))) => {
                if let Some((errand, _)) = self.errands.remove(&id) {
                    self.said(now, errand, says, out);
                }
            }
            _ => {}
        }
        self.go_on(now, out);
    }

    /// Lets timers act.
    pub fn wake<F: From<Fact>>(&mut self, now: Now, out: &mut Outbox<Effect<F>>) {
        let mut outputs = Outbox::new();
        self.machine.wake(now, &mut outputs);
        self.perform(now, outputs, out);
        self.go_on(now, out);
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let errands = self.errands.values().map(|(_, deadline)| *deadline).min();
        let tries = self.session.filter(|_| self.holds.is_none()).map(|_| self.next_try);
        [self.machine.deadline(), errands, Some(self.next_keep_alive), tries].into_iter().flatten().min()
    }

    // ---- the cell ---------------------------------------------------------------------------------------------------

    /// Asks the cell for what is due.
    fn go_on<F: From<Fact>>(&mut self, now: Now, out: &mut Outbox<Effect<F>>) {
        let late: Vec<u64> = self.errands.iter().filter(|(_, (_, at))| *at <= now.mono).map(|(id, _)| *id).collect();
        for id in late {
            if let Some((errand, _)) = self.errands.remove(&id) {
                self.unanswered(now, errand, out);
            }
        }
        if self.next_keep_alive <= now.mono {
            self.next_keep_alive = now.mono + KEEP_ALIVE;
            match self.session {
                Some(session) => {
                    let errand = Errand::KeepAlive { session, asked: now.mono };
                    self.ask_cell(now, errand, Request::KeepAlive(true), out);
                }
                None if !self.errands.values().any(|(errand, _)| matches!(errand, Errand::Open)) => {
                    self.ask_cell(now, Errand::Open, Request::Open(true), out);
                }
                None => {}
            }
        }
        if let (Some(session), None) = (self.session, self.holds)
            && self.next_try <= now.mono
        {
            self.next_try = now.mono + Duration::from_millis(self.rng.between(TRY.0, TRY.1));
            // A generation that is given up must be gone before another is taken, or two reigns would share an epoch.
            match self.resigns {
                Some(generation) => {
                    self.ask_cell(now, Errand::Release { generation }, Request::Release(generation), out);
                }
                None => self.ask_cell(now, Errand::Acquire { session }, Request::Acquire(true), out),
            }
        }
    }

    fn ask_cell<F: From<Fact>>(&mut self, now: Now, errand: Errand, request: Request, out: &mut Outbox<Effect<F>>) {
        self.last_id += 1;
        self.errands.insert(self.last_id, (errand, now.mono + PATIENCE));
        let ask = CellAsk { session: self.session.unwrap_or_default(), request: Some(request) };
        send(out, self.cell, self.last_id, Body::Cell(ask));
    }

    fn said<F: From<Fact>>(&mut self, now: Now, errand: Errand, says: CellSays, out: &mut Outbox<Effect<F>>) {
        match errand {
            Errand::Open => {
                if self.session.is_none() {
                    self.session = Some(says.number);
                    self.next_keep_alive = now.mono;
                }
            }
            Errand::KeepAlive { session, asked } if self.session == Some(session) => {
                if says.known {
                    // The session's lease as its holder may use it (R3 of the cell), from before it asked.
                    self.feed(now, Input::SessionUntil(asked + shortened(SESSION)), out);
                } else {
                    self.lost_session(now, out);
                }
            }
            Errand::Acquire { session } if self.session == Some(session) => {
                if !says.known {
                    self.lost_session(now, out);
                } else if says.number > self.reigned && self.holds.is_none() && self.resigns.is_none() {
                    (self.holds, self.reigned) = (Some(says.number), says.number);
                    out.put(Effect::Fact(Fact::Leads { epoch: says.number }.into()));
                    self.feed(now, Input::Elected { epoch: says.number }, out);
                }
            }
            Errand::Release { generation } => {
                if self.resigns == Some(generation) {
                    self.resigns = None;
                }
            }
            Errand::Commit { id } => {
                let outcome = match says.number {
                    0 => Outcome::Conflict,
                    generation => Outcome::Done { generation },
                };
                self.feed(now, Input::Committed { id, outcome }, out);
            }
            Errand::Read { ids } if says.known => {
                for (id, file) in ids.into_iter().zip(says.files) {
                    let contents = (file.generation > 0).then_some((file.generation, file.bytes));
                    self.feed(now, Input::FileRead { id, contents: Ok(contents) }, out);
                }
            }
            Errand::List if says.known => self.feed(now, Input::Listed { names: Ok(says.names) }, out),
            errand => self.unanswered(now, errand, out),
        }
    }

    /// Nobody knows what became of it.
    fn unanswered<F: From<Fact>>(&mut self, now: Now, errand: Errand, out: &mut Outbox<Effect<F>>) {
        match errand {
            Errand::Commit { id } => self.feed(now, Input::Committed { id, outcome: Outcome::Unknown }, out),
            Errand::Read { ids } => {
                for id in ids {
                    self.feed(now, Input::FileRead { id, contents: Err(silent()) }, out);
                }
            }
            Errand::List => self.feed(now, Input::Listed { names: Err(silent()) }, out),
            Errand::Open | Errand::KeepAlive { .. } | Errand::Acquire { .. } | Errand::Release { .. } => {}
        }
    }

    fn lost_session<F: From<Fact>>(&mut self, now: Now, out: &mut Outbox<Effect<F>>) {
        (self.session, self.resigns) = (None, None);
        self.next_keep_alive = now.mono;
        if self.holds.take().is_some() {
            self.feed(now, Input::Deposed, out);
        }
    }

    // ---- the machine ------------------------------------------------------------------------------------------------

    fn feed<F: From<Fact>>(&mut self, now: Now, input: Input, out: &mut Outbox<Effect<F>>) {
        let mut outputs = Outbox::new();
        self.machine.handle(now, input, &mut outputs);
        self.perform(now, outputs, out);
    }

    fn perform<F: From<Fact>>(&mut self, now: Now, outputs: Outbox<Output>, out: &mut Outbox<Effect<F>>) {
        let mut outputs: VecDeque<Output> = outputs.into_iter().collect();
        let (mut ids, mut paths) = (Vec::new(), Vec::new());
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Commit { id, file, expected, bytes } => {
                    let epoch = self.holds.unwrap_or_default();
                    let commit = Commit { epoch, path: file.path(), expected, bytes };
                    self.ask_cell(now, Errand::Commit { id }, Request::Commit(commit), out);
                }
                Output::Read { id, file } => {
                    ids.push(id);
                    paths.push(file.path());
                }
                Output::List => self.ask_cell(now, Errand::List, Request::List(true), out),
                Output::Answer { op, message } => self.answer(op, message, out),
                Output::Push { ops, message } => ops.into_iter().for_each(|op| self.answer(op, message.clone(), out)),
                Output::Fail { op, error } => match self.asked.remove(&op) {
                    Some((to, id)) => send(out, to, id, Body::Failed(error.code.into_owned())),
                    None => drop(self.told.insert(op, Err(error.code.into_owned()))),
                },
                Output::StepDown => {
                    self.resigns = self.holds.take();
                    self.next_try = now.mono;
                }
            }
        }
        if !ids.is_empty() {
            self.ask_cell(now, Errand::Read { ids }, Request::Read(Paths { paths }), out);
        }
    }

    fn answer<F: From<Fact>>(&mut self, op: OpId, message: Message, out: &mut Outbox<Effect<F>>) {
        match self.asked.remove(&op) {
            Some((to, id)) => {
                let answer = tidings_wire::v1::PlacementMessage { message: Some(message) };
                send(out, to, id, Body::Answer(answer));
            }
            None => drop(self.told.insert(op, Ok(message))),
        }
    }
}

fn silent() -> Error {
    Error::new("cell.unreachable", Class::OutcomeUnknown, "the cell does not answer")
}
