//! The front of store and feed: requests in, replies out, everything that matters through the agreed log.
//!
//! ```text
//!   Request ──▶ checked ──▶ write: Ask::Propose ──▶ … Heard::Applied ──▶ Reply
//!                      └──▶ read:  Ask::ReadBarrier (one for many) ──▶ Heard::Passed ──▶ Output::Read
//!                      └──▶ consume: delivery ──▶ Output::Look after a barrier ──▶ Input::Looked ──▶ Reply
//! ```
//! A reply that depends on a write is withheld until the write is heard applied; a driver cannot get it wrong. A read
//! leaves the machine with [`Output::Read`]: the driver answers it from the state, which is fresh enough then.

use crate::command;
use crate::delivery::{Delivery, DeliveryInput, DeliveryOutput, LineId};
use crate::limits::{self, Part};
use crate::read::{FeedAnswer, FeedQuery, Query};
use crate::work::part_of;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard, Refusal, Role};
use tidings_base::{Class, Error, Machine, Mono, NodeId, Now, OpId, Outbox, Timers};
use tidings_wire::v1;
use tidings_wire::v1::feed_message::Message as FeedMessage;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::v1::store_result::Result as Outcome;

/// What a client or a part asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Of the store.
    Store(StoreMessage),
    /// Of the feed.
    Feed(FeedMessage),
    /// Of the operator, or of a part that detected a loss: trim, retain, leave, collect, raise.
    Operate(Command),
}

/// What it gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The store's answer.
    Store(StoreMessage),
    /// The feed's answer.
    Feed(FeedMessage),
    /// The answer to an operator's command.
    Operated(Outcome),
    /// No answer. The driver turns `leader` into the error's redirect.
    Error {
        /// What happened.
        error: Error,
        /// Who can answer instead, if that is known.
        leader: Option<NodeId>,
    },
}

/// What the front hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request. Its operation must be odd and never used before with this machine.
    Request {
        /// Names the request.
        op: OpId,
        /// What is asked.
        request: Request,
        /// When the client gives up; `None` = after [`Options::timeout`].
        deadline: Option<Mono>,
    },
    /// Nobody waits for this operation any more. What it wrote stays written.
    Cancel {
        /// The request.
        op: OpId,
    },
    /// From the agreed log.
    Heard(Heard),
    /// The answer to [`Output::Look`].
    Looked {
        /// The look.
        line: LineId,
        /// What the state said, or why it could not be read.
        answer: Result<FeedAnswer, Error>,
    },
}

/// What the front wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask the agreed log.
    Ask(Ask),
    /// Answer the operation from the state as it is now or later. The front has done its part and forgets it.
    Read {
        /// The request.
        op: OpId,
        /// What to read.
        query: Query,
    },
    /// Read the feed and bring the answer back as [`Input::Looked`].
    Look {
        /// Comes back with the answer.
        line: LineId,
        /// What to read.
        query: FeedQuery,
    },
    /// Answer the operation, for good.
    Reply {
        /// The request.
        op: OpId,
        /// The answer.
        reply: Reply,
    },
}

/// How the front behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many operations may be open at once; more are refused with `store.busy`. 16,384 ten-kilobyte requests are
    /// 160 MB: what a node can carry.
    pub max_operations: usize,
    /// How long an operation may take unless its request says otherwise. Ten seconds outlast an election.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { max_operations: 16_384, timeout: Duration::from_secs(10) }
    }
}

/// An operation that is not answered yet.
#[derive(Clone, Debug)]
enum Open {
    /// Waits for its barrier.
    Read(Query),
    /// Waits for its proposal.
    Write(Write),
}

#[derive(Clone, Debug)]
enum Write {
    Store,
    Append { topic: Bytes },
    ApplyAndAppend { topic: Bytes },
    Ack { topic: Bytes, group: Bytes, numbers: Vec<u64> },
    Operate,
    Join { line: LineId },
}

impl Write {
    fn part(&self) -> Part {
        match self {
            Write::Store | Write::ApplyAndAppend { .. } | Write::Operate => Part::Store,
            Write::Append { .. } | Write::Ack { .. } | Write::Join { .. } => Part::Feed,
        }
    }
}

/// What a barrier lets go.
#[derive(Clone, Debug)]
enum Behind {
    Read(OpId),
    Look(LineId, FeedQuery),
}

/// The timers of the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// An operation has taken too long.
    Operation(OpId),
    /// The barrier has taken too long: what is behind it fails, and the next one is asked.
    Barrier,
}

/// The front machine of one replica.
#[derive(Clone, Debug)]
pub struct Front {
    options: Options,
    role: Role,
    open: BTreeMap<OpId, Open>,
    timers: Timers<Timer>,
    /// The barrier under way, and what is behind it.
    barrier: Option<(OpId, Vec<Behind>)>,
    /// What came since: it needs a later barrier.
    next_barrier: Vec<Behind>,
    delivery: Delivery,
    last_own: OpId,
}

impl Front {
    /// A front that has heard of no leader yet.
    pub fn new(options: Options) -> Front {
        Front {
            options,
            role: Role::Follower { leader: None },
            open: BTreeMap::new(),
            timers: Timers::new(),
            barrier: None,
            next_barrier: Vec::new(),
            delivery: Delivery::new(),
            last_own: OpId(0),
        }
    }

    /// How many operations are open, waiting consumers included.
    pub fn open_operations(&self) -> usize {
        self.open.len() + self.delivery.waiting()
    }

    /// How many feed entries are with consumers.
    pub fn outstanding_entries(&self) -> usize {
        self.delivery.outstanding()
    }

    fn request(&mut self, now: Now, op: OpId, request: Request, deadline: Option<Mono>, out: &mut Outbox<Output>) {
        assert!(op.0 % 2 == 1, "requests have odd operation ids; even ones are the front's own");
        let until = deadline.unwrap_or(now.mono + self.options.timeout);
        if self.open_operations() >= self.options.max_operations {
            return fail(out, op, busy(part_of_request(&request)), None);
        }
        match request {
            Request::Store(message) => self.store_request(now, op, message, until, out),
            Request::Feed(message) => self.feed_request(now, op, message, until, out),
            Request::Operate(command) => self.write(op, command, Write::Operate, until, out),
        }
    }

    fn store_request(&mut self, now: Now, op: OpId, message: StoreMessage, until: Mono, out: &mut Outbox<Output>) {
        match message {
            StoreMessage::Apply(apply) => self.write(op, Command::Apply(apply), Write::Store, until, out),
            StoreMessage::CompareAndSet(cas) => self.write(op, Command::CompareAndSet(cas), Write::Store, until, out),
            StoreMessage::ApplyAndAppend(both) => {
                let topic = both.append.as_ref().map(|a| a.topic.clone()).unwrap_or_default();
                self.write(op, Command::ApplyAndAppend(both), Write::ApplyAndAppend { topic }, until, out);
            }
            StoreMessage::Get(get) => match limits::get(&get) {
                Ok(()) => self.read(now, op, Query::Get(get), until, out),
                Err(invalid) => fail(out, op, invalid.into_error(Part::Store), None),
            },
            StoreMessage::Scan(scan) => match limits::scan(&scan) {
                Ok(()) => self.read(now, op, Query::Scan(scan), until, out),
                Err(invalid) => fail(out, op, invalid.into_error(Part::Store), None),
            },
            StoreMessage::Status(_) => self.read(now, op, Query::Status, until, out),
            _ => fail(out, op, limits::Invalid::Malformed.into_error(Part::Store), None),
        }
    }

    fn feed_request(&mut self, now: Now, op: OpId, message: FeedMessage, until: Mono, out: &mut Outbox<Output>) {
        match message {
            FeedMessage::Append(append) => {
                let topic = append.topic.clone();
                self.write(op, Command::Append(append), Write::Append { topic }, until, out);
            }
            FeedMessage::Ack(ack) => {
                let (topic, group, numbers) = (ack.topic.clone(), ack.group.clone(), ack.numbers.clone());
                self.write(op, Command::Ack(ack), Write::Ack { topic, group, numbers }, until, out);
            }
            FeedMessage::Consume(consume) => match (limits::consume(&consume), self.role) {
                (Err(invalid), _) => fail(out, op, invalid.into_error(Part::Feed), None),
                (Ok(()), Role::Follower { leader }) => fail(out, op, not_leader(Part::Feed), leader),
                (Ok(()), Role::Leader { .. }) => self.deliver(now, DeliveryInput::Consume { op, consume }, out),
            },
            _ => fail(out, op, limits::Invalid::Malformed.into_error(Part::Feed), None),
        }
    }

    fn write(&mut self, op: OpId, command: Command, write: Write, until: Mono, out: &mut Outbox<Output>) {
        if let Err(invalid) = limits::check(&command) {
            return fail(out, op, invalid.into_error(part_of(&command)), None);
        }
        self.open.insert(op, Open::Write(write));
        self.timers.set(Timer::Operation(op), until);
        out.put(Output::Ask(Ask::Propose { op, command: command::encode(command) }));
    }

    fn read(&mut self, now: Now, op: OpId, query: Query, until: Mono, out: &mut Outbox<Output>) {
        self.open.insert(op, Open::Read(query));
        self.timers.set(Timer::Operation(op), until);
        self.behind_barrier(now, Behind::Read(op), out);
    }

    // ---- barriers: one under way for all reads that came before it was asked ---------------------------------------

    fn behind_barrier(&mut self, now: Now, what: Behind, out: &mut Outbox<Output>) {
        self.next_barrier.push(what);
        self.ask_barrier(now, out);
    }

    fn ask_barrier(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.barrier.is_some() || self.next_barrier.is_empty() {
            return;
        }
        let op = self.own_op();
        self.barrier = Some((op, std::mem::take(&mut self.next_barrier)));
        self.timers.set(Timer::Barrier, now.mono + self.options.timeout);
        out.put(Output::Ask(Ask::ReadBarrier { op }));
    }

    fn take_barrier(&mut self, op: OpId) -> Option<Vec<Behind>> {
        if self.barrier.as_ref()?.0 != op {
            return None;
        }
        self.timers.cancel(&Timer::Barrier);
        self.barrier.take().map(|(_, behind)| behind)
    }

    fn passed(&mut self, now: Now, op: OpId, out: &mut Outbox<Output>) {
        for behind in self.take_barrier(op).unwrap_or_default() {
            match behind {
                Behind::Look(line, query) => out.put(Output::Look { line, query }),
                Behind::Read(op) => {
                    // One that ran out of time meanwhile is gone already.
                    if let Some(Open::Read(query)) = self.close(op) {
                        out.put(Output::Read { op, query });
                    }
                }
            }
        }
        self.ask_barrier(now, out);
    }

    fn barrier_failed(
        &mut self,
        now: Now,
        behind: Vec<Behind>,
        error_of: impl Fn(Part) -> Error,
        leader: Option<NodeId>,
        out: &mut Outbox<Output>,
    ) {
        for behind in behind {
            match behind {
                Behind::Read(op) => {
                    if self.close(op).is_some() {
                        fail(out, op, error_of(Part::Store), leader);
                    }
                }
                Behind::Look(line, _) => {
                    let answer = Err(error_of(Part::Feed));
                    self.deliver(now, DeliveryInput::Looked { line, answer }, out);
                }
            }
        }
        self.ask_barrier(now, out);
    }

    // ---- what the log says -----------------------------------------------------------------------------------------

    fn heard(&mut self, now: Now, heard: Heard, out: &mut Outbox<Output>) {
        match heard {
            Heard::Applied { op, result, .. } => self.applied(now, op, result, out),
            Heard::Passed { op, .. } => self.passed(now, op, out),
            Heard::Refused { op, refusal } => self.refused(now, op, refusal, out),
            Heard::Unknown { op } => {
                if let Some(Open::Write(write)) = self.close(op) {
                    self.write_failed(now, op, &write, outcome_unknown(write.part()), None, out);
                }
            }
            Heard::Role(role) => self.role_changed(now, role, out),
            Heard::LeaseUntil(_) => {}
        }
    }

    fn applied(&mut self, now: Now, op: OpId, result: Bytes, out: &mut Outbox<Output>) {
        // An operation that ran out of time was answered as unknown; its topic's consumers look again by themselves.
        let Some(Open::Write(write)) = self.close(op) else { return };
        let outcome = match command::decode_outcome(result) {
            Ok(outcome) => outcome,
            Err(error) => return self.write_failed(now, op, &write, error, None, out),
        };
        let (reply, input) = match (write, outcome) {
            (Write::Join { line }, _) => {
                return self.deliver(now, DeliveryInput::Joined { line, result: Ok(()) }, out);
            }
            (Write::Operate, outcome) => (Reply::Operated(outcome), None),
            (_, Outcome::Applied(applied)) => (Reply::Store(StoreMessage::Applied(applied)), None),
            (_, Outcome::CompareAndSetDone(done)) => (Reply::Store(StoreMessage::CompareAndSetDone(done)), None),
            (Write::Append { topic }, Outcome::Appended(appended)) => {
                (Reply::Feed(FeedMessage::Appended(appended)), Some(DeliveryInput::Appended { topic }))
            }
            (Write::ApplyAndAppend { topic }, Outcome::AppliedAndAppended(done)) => {
                let input = done.appended.is_some().then_some(DeliveryInput::Appended { topic });
                (Reply::Store(StoreMessage::AppliedAndAppended(done)), input)
            }
            (Write::Ack { topic, group, numbers }, Outcome::Acked(acked)) => {
                (Reply::Feed(FeedMessage::Acked(acked)), Some(DeliveryInput::Acked { topic, group, numbers }))
            }
            (write, _) => {
                let error = Error::new("store.malformed", Class::Failed, "The state answered another question.");
                return self.write_failed(now, op, &write, error, None, out);
            }
        };
        if let Some(input) = input {
            self.deliver(now, input, out);
        }
        out.put(Output::Reply { op, reply });
    }

    fn refused(&mut self, now: Now, op: OpId, refusal: Refusal, out: &mut Outbox<Output>) {
        let leader = match refusal {
            Refusal::NotLeader { leader } => leader,
            _ => None,
        };
        if let Some(behind) = self.take_barrier(op) {
            return self.barrier_failed(now, behind, |part| refusal_error(part, refusal), leader, out);
        }
        if let Some(Open::Write(write)) = self.close(op) {
            self.write_failed(now, op, &write, refusal_error(write.part(), refusal), leader, out);
        }
    }

    fn write_failed(
        &mut self,
        now: Now,
        op: OpId,
        write: &Write,
        error: Error,
        leader: Option<NodeId>,
        out: &mut Outbox<Output>,
    ) {
        match write {
            Write::Join { line } => {
                self.deliver(now, DeliveryInput::Joined { line: *line, result: Err(error) }, out);
            }
            _ => fail(out, op, error, leader),
        }
    }

    fn role_changed(&mut self, now: Now, role: Role, out: &mut Outbox<Output>) {
        if role == self.role {
            return;
        }
        // Under another epoch somebody else may have delivered in between: consumers begin anew there too.
        let led = matches!(self.role, Role::Leader { .. });
        self.role = role;
        if led {
            self.deliver(now, DeliveryInput::Reset { error: not_leader(Part::Feed) }, out);
        }
    }

    // ---- delivery --------------------------------------------------------------------------------------------------

    fn deliver(&mut self, now: Now, input: DeliveryInput, out: &mut Outbox<Output>) {
        let mut wanted = Outbox::new();
        self.delivery.handle(now, input, &mut wanted);
        self.perform_deliveries(now, wanted, out);
    }

    fn perform_deliveries(&mut self, now: Now, wanted: Outbox<DeliveryOutput>, out: &mut Outbox<Output>) {
        for wanted in wanted {
            match wanted {
                DeliveryOutput::Look { line, query } => self.behind_barrier(now, Behind::Look(line, query), out),
                DeliveryOutput::Join { line, topic, group } => {
                    let op = self.own_op();
                    let command = Command::FeedJoin(v1::FeedJoin { topic, group });
                    self.write(op, command, Write::Join { line }, now.mono + self.options.timeout, out);
                }
                DeliveryOutput::Deliver { op, deliveries } => {
                    let reply = Reply::Feed(FeedMessage::Deliveries(v1::Deliveries { deliveries }));
                    out.put(Output::Reply { op, reply });
                }
                DeliveryOutput::Fail { op, error } => {
                    let leader = match self.role {
                        Role::Follower { leader } => leader,
                        Role::Leader { .. } => None,
                    };
                    fail(out, op, error, leader);
                }
            }
        }
    }

    // ---- bookkeeping -----------------------------------------------------------------------------------------------

    fn close(&mut self, op: OpId) -> Option<Open> {
        let open = self.open.remove(&op)?;
        self.timers.cancel(&Timer::Operation(op));
        Some(open)
    }

    fn timed_out(&mut self, now: Now, op: OpId, out: &mut Outbox<Output>) {
        match self.open.remove(&op) {
            Some(Open::Read(_)) => {
                let error = Error::new("store.timeout", Class::Unreachable, "The read took too long.");
                fail(out, op, error.hint("Try again; if it lasts, ask `tidings status` for a leader."), None);
            }
            Some(Open::Write(write)) => {
                self.write_failed(now, op, &write, outcome_unknown(write.part()), None, out);
            }
            None => {}
        }
    }

    /// A name for what the front asks on its own account: even, where requests are odd.
    fn own_op(&mut self) -> OpId {
        self.last_own = OpId(self.last_own.0 + 2);
        self.last_own
    }
}

impl Machine for Front {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Request { op, request, deadline } => self.request(now, op, request, deadline, out),
            Input::Cancel { op } => {
                // A write goes on in the log whoever waits, and the delivery must hear of it: only reads and waits end.
                if !matches!(self.open.get(&op), Some(Open::Write(_))) {
                    self.close(op);
                    self.deliver(now, DeliveryInput::Cancel { op }, out);
                }
            }
            Input::Heard(heard) => self.heard(now, heard, out),
            Input::Looked { line, answer } => self.deliver(now, DeliveryInput::Looked { line, answer }, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Operation(op) => self.timed_out(now, op, out),
                Timer::Barrier => {
                    if let Some((_, behind)) = self.barrier.take() {
                        self.barrier_failed(now, behind, barrier_lost, None, out);
                    }
                }
            }
        }
        let mut wanted = Outbox::new();
        self.delivery.wake(now, &mut wanted);
        self.perform_deliveries(now, wanted, out);
    }

    fn deadline(&self) -> Option<Mono> {
        [self.timers.deadline(), self.delivery.deadline()].into_iter().flatten().min()
    }
}

fn fail(out: &mut Outbox<Output>, op: OpId, error: Error, leader: Option<NodeId>) {
    out.put(Output::Reply { op, reply: Reply::Error { error, leader } });
}

fn part_of_request(request: &Request) -> Part {
    match request {
        Request::Feed(_) => Part::Feed,
        Request::Store(_) | Request::Operate(_) => Part::Store,
    }
}

fn named(part: Part, store: &'static str, feed: &'static str) -> &'static str {
    match part {
        Part::Store => store,
        Part::Feed => feed,
    }
}

fn not_leader(part: Part) -> Error {
    let code = named(part, "store.not_leader", "feed.not_leader");
    Error::new(code, Class::Unreachable, "This node does not lead the store's group.")
        .hint("Ask the leader; clients that know several servers do so by themselves.")
}

fn busy(part: Part) -> Error {
    let code = named(part, "store.busy", "feed.busy");
    Error::new(code, Class::Unreachable, "Too many operations are waiting.").hint("Try again after a pause.")
}

fn outcome_unknown(part: Part) -> Error {
    let code = named(part, "store.outcome_unknown", "feed.outcome_unknown");
    Error::new(code, Class::OutcomeUnknown, "The write was sent, but whether it happened is not known.")
        .hint("Read before writing again, or write the same cells with the same timestamps: that is harmless.")
}

fn barrier_lost(part: Part) -> Error {
    let code = named(part, "store.timeout", "feed.timeout");
    Error::new(code, Class::Unreachable, "Nobody confirmed in time that this node still leads.")
        .hint("Try again; if it lasts, ask `tidings status` for a leader.")
}

fn refusal_error(part: Part, refusal: Refusal) -> Error {
    match refusal {
        Refusal::NotLeader { .. } => not_leader(part),
        Refusal::Busy => busy(part),
        Refusal::TooLarge => {
            let message = "The request is larger than the log takes.";
            Error::new(named(part, "store.too_large", "feed.too_large"), Class::Invalid, message)
                .hint("Split it into several requests.")
        }
        Refusal::Stopped => {
            let message = "This node is stopping, or its disk has failed.";
            Error::new(named(part, "store.stopped", "feed.stopped"), Class::Unreachable, message)
                .hint("Ask another node; `tidings doctor` on this one says what is wrong.")
        }
    }
}
