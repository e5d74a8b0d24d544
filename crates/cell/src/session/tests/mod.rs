//! The session against a scripted master.

mod caching;
mod calling;
mod living;

use super::*;
use std::collections::VecDeque;
use tidings_wire::v1::node_target::Target;

const LEASE: Duration = Duration::from_secs(12);
const EPOCH: u64 = 5;
const ME: u64 = 42;

/// A session, and everything it wanted that was not looked at yet.
struct Bench {
    session: Session,
    now: Mono,
    sent: VecDeque<(Ticket, v1::CellMessage, Duration)>,
    rest: VecDeque<Output>,
    /// The same outputs in one order, by name.
    order: Vec<&'static str>,
    next_op: u64,
}

fn options() -> Options {
    Options { lease: LEASE, grace: Duration::from_secs(45), secret: 9, link: 3, cache: 100, seed: 1, mutant: None }
}

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

fn failure(code: &'static str, class: Class) -> Error {
    Error::new(code, class, "as the script says")
}

fn unreachable() -> Error {
    failure("control.lost", Class::OutcomeUnknown)
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap()
}

fn target(text: &str) -> Option<v1::NodeTarget> {
    Some(v1::NodeTarget { target: Some(Target::Path(text.into())) })
}

fn read(text: &str) -> Message {
    Message::Read(v1::ReadNode { target: target(text), contents: true, ..Default::default() })
}

fn write(text: &str) -> Message {
    Message::SetContents(v1::SetContents { target: target(text), ..Default::default() })
}

fn open(text: &str) -> v1::OpenNode {
    v1::OpenNode { path: text.into(), read: true, ..Default::default() }
}

fn acquire(handle: u64) -> Message {
    Message::Acquire(v1::AcquireLock { handle, mode: v1::LockMode::Exclusive as i32, try_only: false, waits_as: 0 })
}

fn stamp(seq: u64) -> Option<v1::CacheStamp> {
    Some(v1::CacheStamp { epoch: EPOCH, seq })
}

fn found(seq: u64) -> Message {
    let stat = Some(v1::NodeStat { length: 1, ..Default::default() });
    Message::NodeRead(v1::NodeRead { stat, contents: "x".into(), stamp: stamp(seq), ..Default::default() })
}

fn done(seq: u64) -> Message {
    Message::Done(v1::CellDone { stamp: stamp(seq), ..Default::default() })
}

fn event(handle: u64, kind: v1::CellEventKind) -> v1::CellEvent {
    v1::CellEvent { handle, kind: kind as i32, ..Default::default() }
}

fn batch(seq: u64, paths: &[&str], events: Vec<v1::CellEvent>) -> Message {
    let invalidations = paths.iter().map(|path| v1::Invalidation { path: (*path).into(), listing: false }).collect();
    let batch = Some(v1::CellBatch { seq, invalidations, flush: false, events });
    Message::KeptAlive(v1::KeptAlive { epoch: EPOCH, batch, ..Default::default() })
}

fn kept_alive(held: Duration) -> Message {
    let (held_us, lease_us) = (held.as_micros() as u64, LEASE.as_micros() as u64);
    Message::KeptAlive(v1::KeptAlive { epoch: EPOCH, held_us, lease_us, batch: None })
}

impl Bench {
    fn new(options: Options) -> Bench {
        let mut bench = Bench {
            session: Session::new(options),
            now: Mono(1_000_000_000_000),
            sent: VecDeque::new(),
            rest: VecDeque::new(),
            order: Vec::new(),
            next_op: 1,
        };
        bench.input(Input::Begin);
        bench
    }

    /// A session that exists, with its first KeepAlive under way.
    fn begun(options: Options) -> Bench {
        let mut bench = Bench::new(options);
        let (ticket, request) = bench.take_sent();
        assert!(matches!(request, Message::CreateSession(create) if create.link == 3 && create.secret == 9));
        let lease_us = LEASE.as_micros() as u64;
        let created = v1::SessionCreated { session: ME, epoch: EPOCH, incarnation: 1, held_us: 0, lease_us };
        bench.answer(ticket, Message::SessionCreated(created));
        assert_eq!(bench.take_told(), [Event::Begun(SessionId(ME))]);
        bench
    }

    /// The same with a cache that serves.
    fn caching(options: Options) -> Bench {
        let mut bench = Bench::begun(options);
        bench.renew_link(seconds(1_000.0), &[]);
        bench.rest.clear();
        bench
    }

    fn input(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.session.handle(Now { mono: self.now, ..Now::default() }, input, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Outbox<Output>) {
        for output in out {
            self.order.push(match &output {
                Output::Send { .. } => "send",
                Output::Answer { .. } => "answer",
                Output::Tell(_) => "tell",
                Output::Cache(CacheChange::Put { .. }) => "put",
                Output::Cache(CacheChange::Drop { .. }) => "drop",
                Output::Cache(CacheChange::Flush) => "flush",
                Output::Cache(CacheChange::Until(_)) => "until",
            });
            match output {
                Output::Send { ticket, message, within } => self.sent.push_back((ticket, message, within)),
                other => self.rest.push_back(other),
            }
        }
    }

    /// Lets time pass, with wakes when they are asked for.
    fn pass(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.session.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let mut out = Outbox::new();
            self.session.wake(Now { mono: self.now, ..Now::default() }, &mut out);
            self.take(out);
        }
        self.now = end;
    }

    fn answer(&mut self, ticket: Ticket, message: Message) {
        let result = Ok(v1::CellMessage { message: Some(message), ..Default::default() });
        self.input(Input::Answered { ticket, result });
    }

    fn fail(&mut self, ticket: Ticket, error: Error) {
        self.input(Input::Answered { ticket, result: Err(error) });
    }

    fn call(&mut self, message: Message) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 2;
        self.input(Input::Call { op, message });
        op
    }

    fn renew_link(&mut self, lasts: Duration, owing: &[u64]) {
        let lease = Lease { epoch: EPOCH, asked: Mono(self.now.0 + 1), until: self.now + lasts, owing: owing.to_vec() };
        self.input(Input::CacheLease(lease));
    }

    fn take_sent(&mut self) -> (Ticket, Message) {
        let (ticket, message, _) = self.sent.pop_front().expect("something was sent");
        (ticket, message.message.expect("it is a message"))
    }

    fn take_call(&mut self) -> (Ticket, v1::CellCall, Message) {
        let (ticket, message, _) = self.sent.pop_front().expect("something was sent");
        (ticket, message.call.expect("it is a call"), message.message.expect("it is a message"))
    }

    /// The KeepAlive under way, which must be the only thing sent.
    fn keep_alive(&mut self) -> (Ticket, v1::KeepAlive) {
        match self.take_sent() {
            (ticket, Message::KeepAlive(keep_alive)) => {
                assert!(self.sent.is_empty(), "more was sent: {:?}", self.sent);
                (ticket, keep_alive)
            }
            (_, other) => panic!("no KeepAlive: {other:?}"),
        }
    }

    fn take_told(&mut self) -> Vec<Event> {
        let (told, rest) = std::mem::take(&mut self.rest).into_iter().partition(|o| matches!(o, Output::Tell(_)));
        self.rest = rest;
        let told: VecDeque<Output> = told;
        told.into_iter()
            .filter_map(|output| match output {
                Output::Tell(event) => Some(event),
                _ => None,
            })
            .collect()
    }

    fn take_cache(&mut self) -> Vec<CacheChange> {
        let mut changes = Vec::new();
        self.rest.retain(|output| match output {
            Output::Cache(change) => {
                changes.push(change.clone());
                false
            }
            _ => true,
        });
        changes
    }

    /// What was put into the cache since the last look.
    fn take_put(&mut self) -> Vec<String> {
        self.take_cache()
            .into_iter()
            .filter_map(|change| match change {
                CacheChange::Put { path, listing, .. } => {
                    Some(format!("{}{}", path.as_str(), if listing { "/*" } else { "" }))
                }
                _ => None,
            })
            .collect()
    }

    fn take_answers(&mut self) -> Vec<(OpId, Result<Message, Error>)> {
        let mut answers = Vec::new();
        self.rest.retain(|output| match output {
            Output::Answer { op, result } => {
                answers.push((*op, result.clone()));
                false
            }
            _ => true,
        });
        answers
    }

    /// Opens a handle; its number.
    fn opened(&mut self, request: v1::OpenNode) -> u64 {
        let token = format!("token of {}", request.path).into();
        self.call(Message::Open(request));
        let (ticket, call, _) = self.take_call();
        let opened =
            v1::NodeOpened { handle: call.number, token, stat: Some(Default::default()), ..Default::default() };
        self.answer(ticket, Message::Opened(opened));
        self.take_answers();
        call.number
    }

    /// Opens a handle that holds its lock; its number.
    fn locked(&mut self, request: v1::OpenNode) -> u64 {
        let handle = self.opened(v1::OpenNode { lock: true, ..request });
        self.call(acquire(handle));
        let (ticket, _) = self.take_sent();
        self.answer(ticket, Message::Acquired(v1::LockAcquired::default()));
        self.take_answers();
        handle
    }
}
