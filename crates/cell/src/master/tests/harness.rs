//! An instant log: proposals are applied at once, or when the test says so.

use crate::master::{Input, Master, Measure, Options, Output};
use crate::mutant::Mutant;
use crate::namespace::Namespace;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard, Refusal, Role};
use tidings_base::{Epoch, Error, LogIndex, Mono, NodeId, Now, OpId, Outbox, Wall};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::node_target::Target;

pub(super) const LEASE: Duration = Duration::from_secs(12);
pub(super) const CACHE_LEASE: Duration = Duration::from_millis(1_800);

pub(super) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A cell of one master.
pub(super) struct Cell {
    pub(super) master: Master,
    pub(super) state: Namespace,
    pub(super) now: Now,
    /// Proposals that are not applied yet.
    pub(super) log: VecDeque<(OpId, Bytes)>,
    pub(super) barriers: VecDeque<OpId>,
    /// Apply proposals and pass barriers at once.
    pub(super) instant: bool,
    pub(super) answers: BTreeMap<OpId, Result<Message, Error>>,
    pub(super) measured: Vec<Measure>,
    mutant: Option<Mutant>,
    last_op: u64,
    leadership: u64,
}

pub(super) fn options(mutant: Option<Mutant>) -> Options {
    Options {
        node: NodeId(1),
        secret: [7; 32],
        lease: LEASE,
        cache_lease: CACHE_LEASE,
        idle: secs(60),
        wait: secs(25),
        rotate: secs(24 * 3_600),
        alone: false,
        mutant,
    }
}

impl Cell {
    pub(super) fn new() -> Cell {
        Cell::with(None)
    }

    /// A cell that leaves a rule out.
    pub(super) fn with(mutant: Option<Mutant>) -> Cell {
        let mut cell = Cell {
            master: Master::new(options(mutant)),
            state: Namespace::with_mutant(mutant),
            now: Now { mono: Mono(1_000_000_000_000), wall: Wall(1_700_000_000_000_000) },
            log: VecDeque::new(),
            barriers: VecDeque::new(),
            instant: true,
            answers: BTreeMap::new(),
            measured: Vec::new(),
            mutant,
            last_op: 1,
            leadership: 0,
        };
        cell.lead();
        cell
    }

    /// Leads, with a leader lease for ever.
    pub(super) fn lead(&mut self) {
        self.leadership += 1;
        self.hear(Heard::Role(Role::Leader { epoch: Epoch(self.leadership) }));
        self.hear(Heard::LeaseUntil(Mono::NEVER));
    }

    /// Another master takes over: what this one knew is gone, what it proposed is not.
    pub(super) fn fail_over(&mut self) {
        self.restart(false);
    }

    /// The same, in a process that began as the only voter, or not.
    pub(super) fn restart(&mut self, alone: bool) {
        self.hear(Heard::Role(Role::Follower { leader: None }));
        self.master = Master::new(Options { alone, ..options(self.mutant) });
        self.log.clear();
        self.barriers.clear();
        self.lead();
    }

    pub(super) fn hear(&mut self, heard: Heard) {
        self.input(Input::Heard(heard));
    }

    pub(super) fn input(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.master.handle(self.now, input, &self.state, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Outbox<Output>) {
        for output in out {
            match output {
                Output::Ask(Ask::Propose { op, command }) => self.log.push_back((op, command)),
                Output::Ask(Ask::ReadBarrier { op }) => self.barriers.push_back(op),
                Output::Reply { op, message } => self.answered(op, Ok(message)),
                Output::Fail { op, error, .. } => self.answered(op, Err(error)),
                Output::Measured(measure) => self.measured.push(measure),
            }
        }
        if self.instant {
            while self.apply_one() {}
            while let Some(op) = self.barriers.pop_front() {
                self.hear(Heard::Passed { op, index: LogIndex(1) });
            }
        }
    }

    fn answered(&mut self, op: OpId, answer: Result<Message, Error>) {
        assert!(self.answers.insert(op, answer).is_none(), "{op:?} was answered twice");
    }

    /// Applies the oldest proposal.
    pub(super) fn apply_one(&mut self) -> bool {
        let Some((op, command)) = self.log.pop_front() else { return false };
        let result = self.apply(&command);
        self.hear(Heard::Applied { op, index: LogIndex(1), result });
        true
    }

    /// Applies a command without telling the master. What it changes must be within what was cleared before it.
    pub(super) fn apply(&mut self, command: &Bytes) -> Bytes {
        let command = v1::CellCommand::decode(command.clone()).unwrap();
        Bytes::from(self.state.apply(&command).encode_to_vec())
    }

    pub(super) fn refuse_one(&mut self, refusal: Refusal) {
        let (op, _) = self.log.pop_front().unwrap();
        self.hear(Heard::Refused { op, refusal });
    }

    /// Lets time pass, with every timer on the way.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now.mono + time;
        while let Some(next) = self.master.deadline().filter(|next| *next <= end) {
            self.now.mono = self.now.mono.max(next);
            self.wake();
        }
        self.now.mono = end;
        self.wake();
    }

    fn wake(&mut self) {
        let mut out = Outbox::new();
        self.master.wake(self.now, &self.state, &mut out);
        self.perform(out);
    }

    pub(super) fn send(&mut self, request: v1::CellMessage) -> OpId {
        self.send_until(request, None)
    }

    pub(super) fn send_until(&mut self, request: v1::CellMessage, deadline: Option<Mono>) -> OpId {
        self.last_op += 2;
        let op = OpId(self.last_op);
        self.input(Input::Request { op, request, deadline });
        op
    }

    pub(super) fn take(&mut self, op: OpId) -> Option<Result<Message, Error>> {
        self.answers.remove(&op)
    }

    /// Sends and expects an answer at once.
    pub(super) fn ask(&mut self, request: v1::CellMessage) -> Result<Message, Error> {
        let op = self.send(request);
        self.take(op).expect("answered at once")
    }

    /// A client with a session.
    pub(super) fn client(&mut self, name: &str) -> Client {
        self.client_with(name, 0)
    }

    pub(super) fn client_with(&mut self, name: &str, lease_ms: u32) -> Client {
        let mut client = Client::new(name);
        let create = v1::CreateSession { lease_ms, secret: client.secret, link: client.link, keeper: 0 };
        let request = client.outside(Message::CreateSession(create));
        let Ok(Message::SessionCreated(created)) = self.ask(request) else { panic!("no session") };
        client.session = created.session;
        client.epoch = created.epoch;
        client
    }

    /// Everything below the given client's name is one application.
    pub(super) fn call(&mut self, client: &mut Client, message: Message) -> Result<Message, Error> {
        let request = client.numbered(message);
        self.ask(request)
    }

    pub(super) fn code(&mut self, client: &mut Client, message: Message) -> String {
        self.call(client, message).expect_err("refused").code.into_owned()
    }

    pub(super) fn open(&mut self, client: &mut Client, open: v1::OpenNode) -> v1::NodeOpened {
        match self.call(client, Message::Open(open)) {
            Ok(Message::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    /// Creates a file and a handle with all rights.
    pub(super) fn file(&mut self, client: &mut Client, path: &str) -> u64 {
        self.open(client, all(path, Some(v1::CreateNode::default()))).handle
    }

    pub(super) fn read(&mut self, client: &Client, path: &str) -> v1::NodeRead {
        match self.ask(client.inside(0, read(path))) {
            Ok(Message::NodeRead(read)) => read,
            other => panic!("{other:?}"),
        }
    }

    /// A KeepAlive that is held, or what it was answered.
    pub(super) fn keep_alive(&mut self, client: &mut Client) -> Option<v1::KeptAlive> {
        let keep = v1::KeepAlive {
            link: client.link,
            ack: Some(v1::CellAck { epoch: client.epoch, seq: client.processed }),
            wait_ms: 0,
        };
        let op = self.send(client.inside(0, Message::KeepAlive(keep)));
        client.held = Some(op);
        self.kept(client)
    }

    /// Takes all news, until a KeepAlive is held.
    pub(super) fn hold(&mut self, client: &mut Client) {
        while self.keep_alive(client).is_some() {}
    }

    /// What the held KeepAlive was answered; its batch counts as processed.
    pub(super) fn kept(&mut self, client: &mut Client) -> Option<v1::KeptAlive> {
        let answer = self.take(client.held?)?;
        client.held = None;
        let Ok(Message::KeptAlive(kept)) = answer else { panic!("{answer:?}") };
        if let Some(batch) = &kept.batch {
            client.processed = client.processed.max(batch.seq);
        }
        Some(kept)
    }

    pub(super) fn renew(&mut self, client: &Client) -> Result<v1::CacheRenewed, Error> {
        match self.ask(client.outside(Message::RenewCache(v1::RenewCache { link: client.link, clock_us: None })))? {
            Message::CacheRenewed(renewed) => Ok(renewed),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn resume(&mut self, client: &mut Client, handles: Vec<Bytes>) -> Result<v1::SessionResumed, Error> {
        let mut resume = v1::ResumeSession { link: client.link, handles, epoch: client.epoch };
        let mut answer = self.ask(client.inside(0, Message::ResumeSession(resume.clone())))?;
        if let Message::ResumeNeeded(needed) = answer {
            resume.epoch = needed.epoch;
            answer = self.ask(client.inside(0, Message::ResumeSession(resume)))?;
        }
        match answer {
            Message::SessionResumed(resumed) => {
                client.epoch = resumed.epoch;
                client.processed = 0;
                Ok(resumed)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn waits(&self) -> Vec<Duration> {
        let wait = |measure: &Measure| match measure {
            Measure::InvalidationWait(wait) => Some(*wait),
            _ => None,
        };
        self.measured.iter().filter_map(wait).collect()
    }
}

/// A client as the protocol sees it: it remembers what it has to say, and nothing is checked for it.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) caller: v1::CellCaller,
    pub(super) session: u64,
    pub(super) secret: u64,
    pub(super) link: u64,
    pub(super) epoch: u64,
    pub(super) number: u64,
    pub(super) answered_below: u64,
    pub(super) processed: u64,
    pub(super) held: Option<OpId>,
}

impl Client {
    pub(super) fn new(name: &str) -> Client {
        let caller = v1::CellCaller { app: "app".into(), principal: format!("app:app/{name}"), privileged: false };
        let secret = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
        Client {
            caller,
            session: 0,
            secret,
            link: secret + 1,
            epoch: 0,
            number: 0,
            answered_below: 0,
            processed: 0,
            held: None,
        }
    }

    pub(super) fn operator() -> Client {
        let caller = v1::CellCaller { app: "app".into(), principal: "operator".into(), privileged: true };
        Client { caller, ..Client::new("operator") }
    }

    pub(super) fn outside(&self, message: Message) -> v1::CellMessage {
        v1::CellMessage { caller: Some(self.caller.clone()), call: None, message: Some(message) }
    }

    /// A call of the session under this number.
    pub(super) fn inside(&self, number: u64, message: Message) -> v1::CellMessage {
        let (session, secret, answered_below, epoch) = (self.session, self.secret, self.answered_below, self.epoch);
        let call = Some(v1::CellCall { session, secret, number, answered_below, epoch });
        v1::CellMessage { caller: Some(self.caller.clone()), call, message: Some(message) }
    }

    /// A call of the session under its next number.
    pub(super) fn numbered(&mut self, message: Message) -> v1::CellMessage {
        self.number += 1;
        self.inside(self.number, message)
    }
}

/// Opens with all rights and events.
pub(super) fn all(path: &str, create: Option<v1::CreateNode>) -> v1::OpenNode {
    v1::OpenNode { path: path.into(), read: true, write: true, lock: true, events: 7, create, ..Default::default() }
}

pub(super) fn directory() -> Option<v1::CreateNode> {
    Some(v1::CreateNode { directory: true, ..Default::default() })
}

pub(super) fn ephemeral() -> Option<v1::CreateNode> {
    Some(v1::CreateNode { ephemeral: true, ..Default::default() })
}

pub(super) fn at_path(path: &str) -> Option<v1::NodeTarget> {
    Some(v1::NodeTarget { target: Some(Target::Path(path.into())) })
}

pub(super) fn at_handle(handle: u64) -> Option<v1::NodeTarget> {
    Some(v1::NodeTarget { target: Some(Target::Handle(handle)) })
}

pub(super) fn read(path: &str) -> Message {
    Message::Read(v1::ReadNode { target: at_path(path), contents: true, ..Default::default() })
}

pub(super) fn write(target: Option<v1::NodeTarget>, contents: &str) -> Message {
    Message::SetContents(v1::SetContents {
        target,
        contents: Bytes::copy_from_slice(contents.as_bytes()),
        ..Default::default()
    })
}

pub(super) fn delete(target: Option<v1::NodeTarget>) -> Message {
    Message::Delete(v1::DeleteNode { target, ..Default::default() })
}

pub(super) fn acquire(handle: u64, mode: v1::LockMode) -> Message {
    Message::Acquire(v1::AcquireLock { handle, mode: mode as i32, try_only: false, waits_as: 0 })
}

pub(super) fn try_acquire(handle: u64, mode: v1::LockMode) -> Message {
    Message::Acquire(v1::AcquireLock { handle, mode: mode as i32, try_only: true, waits_as: 0 })
}

pub(super) fn release(handle: u64) -> Message {
    Message::Release(v1::ReleaseLock { handle })
}

pub(super) fn close(handle: u64) -> Message {
    Message::Close(v1::CloseHandle { handle })
}
