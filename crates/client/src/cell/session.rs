//! One session as it runs: the machine behind a lock, and what its outputs do to the outside.
//!
//! ```text
//!   calls, cancels ─▶ ┌ Core: lock, Session::handle, perform ┐ ─▶ cache (at once, in order)
//!   link's leases  ─▶ │                                      │ ─▶ answers, events, lost locks
//!   task: answers, ─▶ └──────────────────────────────────────┘ ─▶ requests to the session's task
//!         timers
//! ```
//! Whoever brings an input runs the machine on the spot, so a lease that is renewed wakes no session's task, and a
//! call costs one hop. Nothing in here waits.

use super::cache::Cache;
use super::clock::Clock;
use super::errors;
use super::events::{Inbox, SessionEvent};
use super::link::Shared;
use super::observed::{Counters, Observed};
use super::opened::{Alike, Asked, Grant, Opened};
use super::trace;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, OpId, Outbox};
use tidings_cell::link::{Lease, Ticket};
use tidings_cell::mutant::Mutant;
use tidings_cell::session::{Event, Input, Options, Output, Session};
use tidings_cell::{HandleNumber, error};
use tidings_wire::v1::{self, cell_message::Message};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// The most calls of one session that are under way at once, and the most acquires that wait for their locks; further
/// callers wait. Together less than the 1,024 numbers that the cell keeps answers for, so that closes and releases, which
/// nobody waits for, always have room; apart, so that whoever waits for a lock keeps nobody from anything else.
const MAX_CALLS: usize = 512;
const MAX_WAITS: usize = 256;

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being created.
    Starting,
    /// All is well.
    Active,
    /// The local lease ran out; calls wait.
    Jeopardy,
    /// It is gone.
    Expired,
    /// It was closed.
    Closed,
}

impl State {
    /// Whether nothing comes after it.
    pub fn is_over(self) -> bool {
        matches!(self, State::Expired | State::Closed)
    }
}

/// A request on its way to the transport.
pub(crate) struct Outgoing {
    pub(crate) ticket: Ticket,
    pub(crate) message: v1::CellMessage,
    pub(crate) within: Duration,
}

/// What a call came to.
// A message is moved once, to who waits for it: a box would only cost.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Answer {
    /// The master's answer.
    Message(Message),
    /// A handle, known to the session before anything happens to it.
    Opened(Arc<Opened>),
    /// A lock, known to the session before it can be lost.
    Granted(Arc<Grant>),
}

/// What an answer means to the session, besides being an answer.
#[derive(Clone)]
pub(crate) enum Meaning {
    /// Nothing.
    Plain,
    /// A handle begins.
    Open(Asked),
    /// A lock is granted to this handle.
    Acquire(Arc<Opened>),
    /// The lock of this handle is free again.
    Release(Arc<Opened>),
}

struct Waiter {
    /// `None` = nobody waits.
    answer: Option<oneshot::Sender<Result<Answer, Error>>>,
    meaning: Meaning,
    _permit: Option<OwnedSemaphorePermit>,
}

pub(crate) struct Core {
    pub(crate) link: Arc<Shared>,
    pub(crate) cache: Cache,
    pub(crate) clock: Clock,
    pub(crate) mutant: Option<Mutant>,
    counters: Counters,
    inner: Mutex<Inner>,
    session: AtomicU64,
    state: watch::Sender<State>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    /// The machine wants to be woken earlier than the task knows.
    pub(crate) alarm: Notify,
    /// Everybody who could be asked has said that the cell has no majority.
    pub(crate) hopeless: Notify,
    permits: Arc<Semaphore>,
    waits: Arc<Semaphore>,
}

struct Inner {
    machine: Session,
    outbox: Outbox<Output>,
    next_op: u64,
    calls: HashMap<OpId, Waiter>,
    /// With everybody who has each open: more than one where opens were answered from the cache.
    handles: HashMap<HandleNumber, Vec<Arc<Opened>>>,
    /// Handles that may be shared.
    alike: HashMap<Alike, HandleNumber>,
    readers: Vec<Weak<Inbox<SessionEvent>>>,
    /// Handles with acquires that were given up, until the cell has forgotten them.
    cancelling: Vec<Arc<Opened>>,
    /// What the session itself has to call, such as closing a handle that nobody took.
    chores: Vec<(Message, Meaning)>,
    /// When the task will wake the machine.
    armed: Mono,
    /// Why the session could not begin.
    last: Option<Error>,
    /// How often the answer was that the cell has no majority.
    hopeless: usize,
    /// How many hits of the cache the machine knows of.
    hits: u64,
}

impl Core {
    pub(crate) fn new(link: Arc<Shared>, options: Options) -> (Arc<Core>, mpsc::UnboundedReceiver<Outgoing>) {
        let (outgoing, requests) = mpsc::unbounded_channel();
        let (clock, mutant) = (link.clock, options.mutant);
        let inner = Inner {
            machine: Session::new(options),
            outbox: Outbox::new(),
            next_op: 1,
            calls: HashMap::new(),
            handles: HashMap::new(),
            alike: HashMap::new(),
            readers: Vec::new(),
            cancelling: Vec::new(),
            chores: Vec::new(),
            armed: Mono::NEVER,
            last: None,
            hopeless: 0,
            hits: 0,
        };
        let core = Core {
            link,
            cache: Cache::new(clock),
            clock,
            mutant,
            counters: Counters::default(),
            inner: Mutex::new(inner),
            session: AtomicU64::new(0),
            state: watch::Sender::new(State::Starting),
            outgoing,
            alarm: Notify::new(),
            hopeless: Notify::new(),
            permits: Arc::new(Semaphore::new(MAX_CALLS)),
            waits: Arc::new(Semaphore::new(MAX_WAITS)),
        };
        (Arc::new(core), requests)
    }

    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn lease(&self) -> Duration {
        self.inner.lock().machine.lease()
    }

    pub(crate) fn lease_until(&self) -> Option<Mono> {
        self.inner.lock().machine.lease_until()
    }

    pub(crate) fn states(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(crate) fn observed(&self) -> Observed {
        self.counters.observed(self.clock.mono(), self.cache.hits())
    }

    /// The one clear error of a session that is over.
    pub(crate) fn over(&self) -> Option<Error> {
        match self.state() {
            State::Expired => Some(self.expired()),
            State::Closed => Some(errors::closed()),
            _ => None,
        }
    }

    /// What a call of a session that is over is answered.
    fn refusal(&self) -> Error {
        let over = self.over().unwrap_or_else(errors::closed);
        self.counters.answered::<()>(&Err(over.clone()));
        over
    }

    fn expired(&self) -> Error {
        error::expired(self.session())
    }

    /// Why the session could not begin, as far as it is known.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.inner.lock().last.clone()
    }

    pub(crate) fn events(&self) -> Arc<Inbox<SessionEvent>> {
        let inbox = Arc::new(Inbox::default());
        let mut inner = self.inner.lock();
        if self.state().is_over() {
            inbox.end();
        }
        inner.readers.retain(|r| r.strong_count() > 0);
        inner.readers.push(Arc::downgrade(&inbox));
        inbox
    }

    /// Calls, and waits for the answer. Dropping the future gives the call up: an acquire leaves the queue, and what
    /// came of it meanwhile is undone; a mutation may still happen.
    pub(crate) async fn call(self: &Arc<Self>, message: Message, meaning: Meaning) -> Result<Answer, Error> {
        let room = match &message {
            Message::Acquire(acquire) if !acquire.try_only => &self.waits,
            _ => &self.permits,
        };
        let permit = room.clone().acquire_owned().await;
        let permit = permit.map_err(|_| self.refusal())?;
        let begun = trace::begin(self);
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { answer: Some(answer), meaning: meaning.clone(), _permit: Some(permit) };
        let op = self.begin(message, waiter)?;
        let mut pending = Pending { core: self, op, answered, meaning, settled: false };
        let result = (&mut pending.answered).await;
        pending.settled = true;
        trace::end(self, begun);
        result.unwrap_or_else(|_| Err(self.over().unwrap_or_else(errors::closed)))
    }

    /// Whether as many acquires wait for their locks as may.
    pub(crate) fn waits_are_full(&self) -> bool {
        self.waits.available_permits() == 0
    }

    /// The same where only the message counts.
    pub(crate) async fn ask(self: &Arc<Self>, message: Message) -> Result<Message, Error> {
        match self.call(message, Meaning::Plain).await? {
            Answer::Message(message) => Ok(message),
            Answer::Opened(_) | Answer::Granted(_) => Err(super::transport::unexpected()),
        }
    }

    /// Calls at once, whoever waits for it: closes and releases, which must happen even if nobody does.
    pub(crate) fn start(&self, message: Message, meaning: Meaning) -> oneshot::Receiver<Result<Answer, Error>> {
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { answer: Some(answer), meaning: meaning.clone(), _permit: None };
        if self.begin(message, waiter).is_err()
            && let Meaning::Release(opened) = meaning
        {
            opened.settle();
        }
        answered
    }

    /// Waits for what was [started](Core::start).
    pub(crate) async fn finished(&self, answered: oneshot::Receiver<Result<Answer, Error>>) -> Result<Answer, Error> {
        answered.await.unwrap_or_else(|_| Err(self.over().unwrap_or_else(errors::closed)))
    }

    /// A handle is closed: it hears nothing any more. Whether nobody shares it, and the cell is to close it.
    pub(crate) fn forget(&self, opened: &Opened) -> bool {
        let last = self.inner.lock().remove(opened);
        opened.lose(errors::released(opened.asked.path.as_str()));
        opened.end();
        last
    }

    /// An open like one that is in use, of a node that is cached and has not changed since: the same handle once more,
    /// without asking. Ephemeral nodes are none of these: who has one open is agreed on (R9).
    pub(crate) fn open_again(&self, asked: &Asked) -> Option<Arc<Opened>> {
        let mut inner = self.inner.lock();
        let number = *inner.alike.get(asked.alike.as_ref()?)?;
        let users = inner.handles.get_mut(&number)?;
        let like = users.first()?;
        let file = self.cache.unchanged(asked.path.as_str(), like.stamp?)?;
        let stat = file.stat();
        let agreed = stat.ephemeral && self.mutant != Some(Mutant::OpensShared);
        if stat.instance != like.stat.instance || agreed {
            return None;
        }
        let opened = like.again(stat.clone());
        users.push(opened.clone());
        trace::hit();
        Some(opened)
    }

    /// Begins to end the session in order. Locks are not counted on from here on: the next holder does not wait (L1).
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        if self.state().is_over() {
            return;
        }
        inner.handles.values().flatten().for_each(|opened| opened.lose(errors::closed()));
        self.handle(&mut inner, Input::Close);
    }

    fn begin(&self, message: Message, waiter: Waiter) -> Result<OpId, Error> {
        let mut inner = self.inner.lock();
        if self.state().is_over() {
            return Err(self.refusal());
        }
        let op = inner.take_op(waiter);
        self.handle(&mut inner, Input::Call { op, message });
        Ok(op)
    }

    /// Brings an input that is not a call.
    pub(crate) fn input(&self, input: Input) {
        let mut inner = self.inner.lock();
        if !self.state().is_over() {
            self.handle(&mut inner, input);
        }
    }

    /// The link's cache lease moved. The machine hears at the same time whether anything is read under it.
    pub(crate) fn renewed(&self, lease: Lease) {
        let hits = self.cache.hits();
        if std::mem::replace(&mut self.inner.lock().hits, hits) != hits {
            self.input(Input::Served);
        }
        self.input(Input::CacheLease(lease));
    }

    /// The transport's answer.
    pub(crate) fn answered(&self, ticket: Ticket, result: Result<v1::CellMessage, Error>) {
        let mut inner = self.inner.lock();
        if self.state().is_over() {
            return;
        }
        if let Err(error) = &result {
            if matches!(error.class, Class::Unreachable | Class::OutcomeUnknown) {
                self.counters.unanswered();
            }
            inner.last = Some(error.clone());
            inner.hopeless += usize::from(error.lacks_majority());
            if inner.hopeless >= self.link.transport.ways() {
                self.hopeless.notify_one();
            }
        }
        self.handle(&mut inner, Input::Answered { ticket, result });
    }

    /// Lets due timers act, and says when the machine next wants to be woken.
    pub(crate) fn wake(&self) -> Mono {
        let mut inner = self.inner.lock();
        if self.state().is_over() {
            return Mono::NEVER;
        }
        let now = self.clock.now();
        if inner.machine.deadline().is_some_and(|at| at <= now.mono) {
            let Inner { machine, outbox, .. } = &mut *inner;
            machine.wake(now, outbox);
            self.perform(&mut inner);
        }
        inner.armed = inner.machine.deadline().unwrap_or(Mono::NEVER);
        inner.armed
    }

    /// Whether the machine should have been woken: tokio's timers do not count the time a host was suspended.
    pub(crate) fn is_overdue(&self) -> bool {
        self.inner.lock().machine.deadline().is_some_and(|at| at <= self.clock.mono())
    }

    fn handle(&self, inner: &mut Inner, input: Input) {
        let Inner { machine, outbox, .. } = inner;
        machine.handle(self.clock.now(), input, outbox);
        self.perform(inner);
    }

    /// Performs the outbox in the machine's order, then what that led to.
    fn perform(&self, inner: &mut Inner) {
        loop {
            let mut outbox = std::mem::take(&mut inner.outbox);
            for output in outbox.drain() {
                self.perform_one(inner, output);
            }
            inner.outbox = outbox;
            let Some((message, meaning)) = inner.chores.pop() else { break };
            if self.state().is_over() {
                continue;
            }
            let op = inner.take_op(Waiter { answer: None, meaning, _permit: None });
            let Inner { machine, outbox, .. } = inner;
            machine.handle(self.clock.now(), Input::Call { op, message }, outbox);
        }
        let Inner { machine, cancelling, .. } = inner;
        cancelling.retain(|opened| {
            let under_way = machine.is_cancelling(HandleNumber(opened.number));
            if !under_way {
                opened.settle();
            }
            under_way
        });
        if !self.state().is_over() {
            let deadline = inner.machine.deadline().unwrap_or(Mono::NEVER);
            if deadline < inner.armed {
                inner.armed = deadline;
                self.alarm.notify_one();
            }
        }
    }

    fn perform_one(&self, inner: &mut Inner, output: Output) {
        match output {
            Output::Send { ticket, message, within } => {
                self.counters.sent();
                // Without a task the session is over, and nobody waits.
                let _ = self.outgoing.send(Outgoing { ticket, message, within });
            }
            Output::Answer { op, result } => self.answer(inner, op, result),
            Output::Tell(event) => self.tell(inner, event),
            Output::Cache(change) => self.cache.change(change),
        }
    }

    fn answer(&self, inner: &mut Inner, op: OpId, result: Result<Message, Error>) {
        let Some(waiter) = inner.calls.remove(&op) else { return };
        self.counters.answered(&result);
        let answer = result.map(|message| match (message, &waiter.meaning) {
            (Message::Opened(opened), Meaning::Open(asked)) => {
                let opened = Opened::new(&opened, asked.clone());
                inner.add(&opened);
                Answer::Opened(opened)
            }
            (Message::Acquired(acquired), Meaning::Acquire(opened)) => Answer::Granted(opened.granted(&acquired)),
            (message, _) => Answer::Message(message),
        });
        let untaken = match waiter.answer {
            Some(sender) => sender.send(answer).err(),
            None => Some(answer),
        };
        if let Meaning::Release(opened) = &waiter.meaning {
            opened.settle();
        }
        if let Some(Ok(answer)) = untaken {
            inner.undo(answer, &waiter.meaning);
        }
    }

    fn tell(&self, inner: &mut Inner, event: Event) {
        let now = self.clock.mono();
        match event {
            Event::Begun(session) => {
                self.session.store(session.0, Ordering::Relaxed);
                self.counters.began(now);
                self.state.send_replace(State::Active);
                self.link.began();
            }
            Event::Jeopardy => {
                self.counters.jeopardy(now);
                self.state.send_replace(State::Jeopardy);
                inner.tell(SessionEvent::Jeopardy);
            }
            Event::Safe { survived, lost } => {
                self.counters.safe(now);
                self.state.send_replace(State::Active);
                let path = |opened: &Arc<Opened>| opened.asked.path.as_str().to_owned();
                let survived = inner.first_of(&survived).map(path).collect();
                let lost = inner.first_of(&lost).inspect(|opened| opened.lose(errors::lock_lost(&path(opened))));
                let lost = lost.map(path).collect();
                inner.tell(SessionEvent::Safe { survived, lost });
            }
            Event::Node(event) => {
                for opened in inner.handles.get(&HandleNumber(event.handle)).into_iter().flatten() {
                    opened.event(event.clone());
                }
            }
            Event::Expired => self.finish(inner, State::Expired),
            Event::Closed => self.finish(inner, State::Closed),
        }
    }

    /// The session is over: everybody who waits hears so.
    fn finish(&self, inner: &mut Inner, state: State) {
        self.counters.ended(self.clock.mono());
        self.cache.change(tidings_cell::session::CacheChange::Until(Mono(0)));
        self.cache.flush();
        self.state.send_replace(state);
        let why = self.over().unwrap_or_else(errors::closed);
        inner.outbox = Outbox::new();
        for waiter in std::mem::take(&mut inner.calls).into_values() {
            self.counters.answered::<()>(&Err(why.clone()));
            if let Meaning::Release(opened) = &waiter.meaning {
                opened.settle();
            }
            if let Some(answer) = waiter.answer {
                let _ = answer.send(Err(why.clone()));
            }
        }
        inner.alike.clear();
        for opened in std::mem::take(&mut inner.handles).into_values().flatten() {
            opened.lose(why.clone());
            opened.end();
        }
        inner.tell(if state == State::Expired { SessionEvent::Expired } else { SessionEvent::Closed });
        for reader in std::mem::take(&mut inner.readers).iter().filter_map(Weak::upgrade) {
            reader.end();
        }
        self.permits.close();
        self.waits.close();
        self.alarm.notify_one();
    }

    /// The session's task ends before the cell said goodbye.
    pub(crate) fn abandon(&self) {
        let mut inner = self.inner.lock();
        if !self.state().is_over() {
            self.finish(&mut inner, State::Closed);
        }
    }

    /// Nobody waits for this call any more; the machine sees to it that nothing is left of an open or an acquire.
    fn give_up(&self, op: OpId, meaning: &Meaning) {
        let mut inner = self.inner.lock();
        if inner.calls.remove(&op).is_none() {
            return;
        }
        if let Meaning::Acquire(opened) = meaning {
            opened.unsettle();
            inner.cancelling.push(opened.clone());
        }
        self.handle(&mut inner, Input::Cancel { op });
    }
}

impl Inner {
    fn take_op(&mut self, waiter: Waiter) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.calls.insert(op, waiter);
        op
    }

    fn add(&mut self, opened: &Arc<Opened>) {
        let number = HandleNumber(opened.number);
        self.handles.entry(number).or_insert_with(|| Vec::with_capacity(1)).push(opened.clone());
        if let Some(alike) = opened.asked.alike.clone().filter(|_| opened.stamp.is_some()) {
            self.alike.insert(alike, number);
        }
    }

    /// Those of these handles that somebody has open; lock handles are not shared.
    fn first_of(&self, numbers: &[HandleNumber]) -> impl Iterator<Item = &Arc<Opened>> {
        numbers.iter().filter_map(|number| self.handles.get(number)?.first())
    }

    /// One less has a handle open; whether that was the last.
    fn remove(&mut self, opened: &Opened) -> bool {
        let number = HandleNumber(opened.number);
        let Some(users) = self.handles.get_mut(&number) else { return true };
        users.retain(|user| !std::ptr::eq(&**user, opened));
        if !users.is_empty() {
            return false;
        }
        self.handles.remove(&number);
        if let Some(alike) = &opened.asked.alike
            && self.alike.get(alike) == Some(&number)
        {
            self.alike.remove(alike);
        }
        true
    }

    /// Nobody took what was given.
    fn undo(&mut self, answer: Answer, meaning: &Meaning) {
        match (answer, meaning) {
            (Answer::Opened(opened), _) => {
                let last = self.remove(&opened);
                if last {
                    let close = v1::CloseHandle { handle: opened.number };
                    self.chores.push((Message::Close(close), Meaning::Plain));
                }
            }
            (Answer::Granted(_), Meaning::Acquire(opened)) => {
                opened.unsettle();
                opened.lose(errors::released(opened.asked.path.as_str()));
                let release = v1::ReleaseLock { handle: opened.number };
                self.chores.push((Message::Release(release), Meaning::Release(opened.clone())));
            }
            _ => {}
        }
    }

    fn tell(&mut self, event: SessionEvent) {
        for reader in self.readers.iter().filter_map(Weak::upgrade) {
            reader.tell(event.clone());
        }
    }
}

/// A call that somebody waits for.
struct Pending<'a> {
    core: &'a Arc<Core>,
    op: OpId,
    answered: oneshot::Receiver<Result<Answer, Error>>,
    meaning: Meaning,
    settled: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        self.answered.close();
        match self.answered.try_recv() {
            // It was answered, and nobody looked.
            Ok(Ok(answer)) => {
                let mut inner = self.core.inner.lock();
                inner.undo(answer, &self.meaning);
                self.core.perform(&mut inner);
            }
            Ok(Err(_)) => {}
            Err(_) => self.core.give_up(self.op, &self.meaning),
        }
    }
}
