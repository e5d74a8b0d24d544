//! The driver of one connection: it performs what the session decides.

use super::carrier::{Carrier, HIGH_WATER, Received};
use super::flow::Flow;
use super::operation::{Operation, Requests, Responder};
use super::{Command, Link, MAX_BACKLOG, Piece, Reader};
use futures::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, NodeId, Now, OpId, Outbox};
use tidings_wire::session::{Config, Input, Output, Session, Side};
use tidings_wire::{Limits, error, v1};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;

/// How many frames are taken in at one turn, so that a busy connection lets others run.
const FRAMES_PER_TURN: usize = 256;

/// How long the last words may take to go out.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a node says about a connection that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Who answers.
    pub node: NodeId,
    /// Whom the connection is taken for, as `kind:name`.
    pub principal: String,
    /// What it is allowed.
    pub limits: Limits,
}

/// What a connection does with what the other side begins.
pub trait Handler: Send + Unpin + 'static {
    /// Decides about a connection that said `Hello`. Only the accepting side is asked.
    fn hello(&mut self, hello: v1::Hello) -> BoxFuture<'static, Result<Admission, Error>>;

    /// The handshake is done.
    fn ready(&mut self, link: &Arc<Link>, welcome: &v1::Welcome);

    /// Begins to work on an operation. What cannot be answered at once goes on in the future, which runs as part of
    /// the connection and is dropped when nobody waits for the answer any more.
    fn open(&mut self, operation: Operation) -> Option<BoxFuture<'static, ()>>;
}

/// For whoever connects and expects nothing of the other side but answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefuseAll;

impl Handler for RefuseAll {
    fn hello(&mut self, _: v1::Hello) -> BoxFuture<'static, Result<Admission, Error>> {
        Box::pin(std::future::ready(Err(error::protocol("nobody answers here"))))
    }

    fn ready(&mut self, _: &Arc<Link>, _: &v1::Welcome) {}

    fn open(&mut self, operation: Operation) -> Option<BoxFuture<'static, ()>> {
        operation.responder.fail(error::unsupported());
        None
    }
}

type Work = FuturesUnordered<Abortable<BoxFuture<'static, ()>>>;

/// Runs one connection: a future that ends with the reason why the connection did.
pub struct Driver<C, H> {
    link: Arc<Link>,
    session: Session,
    carrier: C,
    handler: H,
    /// Commands that were taken out of the queue and not performed yet.
    commands: VecDeque<Command>,
    readers: BTreeMap<OpId, Reader>,
    /// Room of operations that were given up here and that the other side has not ended yet.
    given_up: BTreeMap<OpId, OwnedSemaphorePermit>,
    flows: BTreeMap<OpId, Arc<Flow>>,
    requests: BTreeMap<OpId, mpsc::UnboundedSender<Piece>>,
    /// Handlers' futures that have not run yet.
    fresh: Vec<(OpId, BoxFuture<'static, ()>)>,
    /// What handlers go on with, and how to stop it. Idle connections have none and keep no room for it.
    work: Option<Box<Work>>,
    aborts: BTreeMap<OpId, AbortHandle>,
    admission: Option<BoxFuture<'static, Result<Admission, Error>>>,
    timer: Pin<Box<Sleep>>,
    timer_at: Mono,
    /// Whom the timer wakes, if it was polled since it was last set.
    timer_wakes: Option<Waker>,
    reads_while_blocked: bool,
    max_in_flight: u32,
    blocked: bool,
    ended: Option<Error>,
}

impl<C: Carrier, H: Handler> Driver<C, H> {
    /// A driver for the accepting side.
    pub fn accept(link: Arc<Link>, carrier: C, config: Arc<Config>, handler: H) -> Driver<C, H> {
        debug_assert_eq!(config.side, Side::Acceptor);
        let max_in_flight = config.limits.max_operations;
        Driver::new(link, carrier, config, handler, max_in_flight)
    }

    /// A driver for the connecting side, with at most `max_in_flight` operations at once.
    pub fn connect(
        link: Arc<Link>,
        carrier: C,
        config: Arc<Config>,
        handler: H,
        hello: v1::Hello,
        max_in_flight: u32,
    ) -> Driver<C, H> {
        let mut driver = Driver::new(link, carrier, config, handler, max_in_flight);
        driver.handle(Input::Connect(hello));
        driver
    }

    fn new(link: Arc<Link>, carrier: C, config: Arc<Config>, handler: H, max_in_flight: u32) -> Driver<C, H> {
        let reads_while_blocked = config.reads_while_blocked;
        let session = Session::new(config, link.now());
        let timer_at = session.deadline().unwrap_or(Mono::NEVER);
        Driver {
            timer: Box::pin(tokio::time::sleep_until(link.at(timer_at))),
            timer_at,
            timer_wakes: None,
            session,
            carrier,
            handler,
            commands: VecDeque::new(),
            readers: BTreeMap::new(),
            given_up: BTreeMap::new(),
            flows: BTreeMap::new(),
            requests: BTreeMap::new(),
            fresh: Vec::new(),
            work: None,
            aborts: BTreeMap::new(),
            admission: None,
            reads_while_blocked,
            max_in_flight,
            blocked: false,
            ended: None,
            link,
        }
    }

    fn handle(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.session.handle(self.link.now(), input, &mut out);
        self.perform(&mut out);
    }

    fn perform(&mut self, out: &mut Outbox<Output>) {
        for output in out.drain() {
            match output {
                Output::Transmit(frame) => self.carrier.put(frame),
                Output::Hello(hello) => self.admission = Some(self.handler.hello(hello)),
                Output::Ready { welcome, limits } => self.ready(&welcome, limits),
                Output::Answer { op, body, more } => self.answer(op, body, more),
                Output::Failed { op, error } => self.failed(op, error),
                Output::Released { op } => {
                    self.given_up.remove(&op);
                }
                Output::Opened { op, body, more } => self.opened(op, body, more),
                Output::Continued { op, body, more } => {
                    if let Some(requests) = self.requests.get(&op) {
                        // A handler that reads no further is free to.
                        let _ = requests.send((Box::new(body), more));
                    }
                }
                Output::Granted { op, frames } => {
                    if let Some(flow) = self.flows.get(&op) {
                        flow.grant(frames);
                    }
                }
                Output::Dropped { op } => self.forget(op),
                Output::GoAway(away) => {
                    let _ = self.link.left.set(away);
                    self.link.changed.notify_waiters();
                }
                Output::Closed(why) => self.closed(why),
            }
        }
    }

    fn ready(&mut self, welcome: &v1::Welcome, limits: Limits) {
        let room = limits.max_operations.min(self.max_in_flight).max(1);
        let _ = self.link.permits.set(Arc::new(Semaphore::new(room as usize)));
        let _ = self.link.limits.set(limits);
        self.link.changed.notify_waiters();
        self.handler.ready(&self.link, welcome);
    }

    fn answer(&mut self, op: OpId, body: tidings_wire::Body, more: bool) {
        if more {
            match self.readers.get(&op) {
                Some(Reader::Many(frames, _)) => {
                    let _ = frames.send(Ok((Box::new(body), true)));
                }
                Some(Reader::Once(..)) => {
                    if let Some(Reader::Once(answer, permit)) = self.readers.remove(&op) {
                        let _ = answer.send(Err(long_answer()));
                        self.given_up.insert(op, permit);
                    }
                    self.commands.push_front(Command::Session(Input::Cancel { op }));
                }
                None => {}
            }
            return;
        }
        self.end_flow(op);
        match self.readers.remove(&op) {
            Some(Reader::Many(frames, _)) => {
                let _ = frames.send(Ok((Box::new(body), false)));
            }
            Some(Reader::Once(answer, _)) => {
                let _ = answer.send(Ok(body));
            }
            None => {}
        }
    }

    fn failed(&mut self, op: OpId, error: Error) {
        self.end_flow(op);
        let permit = match self.readers.remove(&op) {
            Some(Reader::Many(frames, permit)) => {
                let _ = frames.send(Err(Box::new(error)));
                permit
            }
            Some(Reader::Once(answer, permit)) => {
                let _ = answer.send(Err(error));
                permit
            }
            None => return,
        };
        if self.session.is_abandoned(op) {
            self.given_up.insert(op, permit);
        }
    }

    /// The caller wants no more of an operation begun here.
    fn give_up(&mut self, op: OpId) {
        if let Some(Reader::Once(_, permit) | Reader::Many(_, permit)) = self.readers.remove(&op) {
            self.given_up.insert(op, permit);
        }
    }

    fn opened(&mut self, op: OpId, body: tidings_wire::Body, more: bool) {
        let rest = more.then(|| {
            let (sender, frames) = mpsc::unbounded_channel();
            self.requests.insert(op, sender);
            Requests::new(self.link.clone(), op, frames)
        });
        let responder = Responder::new(self.link.clone(), op);
        if let Some(future) = self.handler.open(Operation { body, rest, responder }) {
            self.fresh.push((op, future));
        }
    }

    /// Runs what handlers just began. Most of it is done at once and never needs a place of its own.
    fn run_fresh(&mut self, cx: &mut Context<'_>) {
        for (op, mut future) in std::mem::take(&mut self.fresh) {
            if future.as_mut().poll(cx).is_pending() && self.session.is_open(op) {
                let (abort, registration) = AbortHandle::new_pair();
                self.aborts.insert(op, abort);
                self.work.get_or_insert_with(Default::default).push(Abortable::new(future, registration));
            }
        }
    }

    fn end_flow(&mut self, op: OpId) {
        if let Some(flow) = self.flows.remove(&op) {
            flow.end();
        }
    }

    /// An operation of the other side is over.
    fn forget(&mut self, op: OpId) {
        self.end_flow(op);
        self.requests.remove(&op);
        if let Some(abort) = self.aborts.remove(&op) {
            abort.abort();
        }
    }

    fn closed(&mut self, why: Error) {
        let mut queue = self.link.queue.lock();
        queue.closed = Some(why.clone());
        self.commands.extend(queue.commands.drain(..));
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        for flow in waiting.into_iter().chain(std::mem::take(&mut self.flows).into_values()) {
            flow.end();
        }
        if let Some(permits) = self.link.permits.get() {
            permits.close();
        }
        self.link.changed.notify_waiters();
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Begin { op, reader, .. } => {
                    self.readers.insert(op, reader);
                    self.failed(op, error::unsent(&why));
                }
                Command::Attach { flow, .. } => flow.end(),
                Command::Session(_) => {}
            }
        }
        self.fresh.clear();
        self.work = None;
        self.aborts.clear();
        self.requests.clear();
        self.given_up.clear();
        self.admission = None;
        self.ended = Some(why);
        let last_words = self.link.now().mono + LAST_WORDS;
        self.set_timer(last_words);
    }

    fn set_timer(&mut self, at: Mono) {
        self.timer_at = at;
        self.timer_wakes = None;
        self.timer.as_mut().reset(self.link.at(at));
    }

    // The turn of the driver.

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut out = Outbox::new();
        let (mut read, mut is_dry) = (0, false);
        self.parked(false);
        loop {
            // Reading comes before the timers: after a pause of this process, what waits in the socket is proof of life.
            let mut progress = false;
            if !is_dry && (!self.blocked || self.reads_while_blocked) {
                is_dry = self.read(cx, &mut out, &mut read);
                progress |= !is_dry;
            }
            progress |= self.poll_admission(cx);
            progress |= self.poll_work(cx);
            progress |= self.take_commands(&mut out);
            if self.ended.is_none() {
                progress |= self.poll_timer(cx, &mut out);
            }
            progress |= self.flush(cx, &mut out);
            if self.ended.is_some() {
                return self.say_last_words(cx);
            }
            if read >= FRAMES_PER_TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !progress && self.park(cx) {
                return Poll::Pending;
            }
        }
    }

    fn parked(&self, parked: bool) {
        self.link.parked.store(parked, Ordering::Release);
    }

    /// Goes to sleep, unless a command came in meanwhile.
    fn park(&mut self, cx: &mut Context<'_>) -> bool {
        self.link.driver.register(cx.waker());
        self.parked(true);
        let has_work = !self.link.queue.lock().commands.is_empty();
        let sleeps = self.blocked || !has_work;
        if !sleeps {
            self.parked(false);
        }
        sleeps
    }

    fn take_commands(&mut self, out: &mut Outbox<Output>) -> bool {
        if self.blocked {
            if self.link.backlog.load(Ordering::Relaxed) > MAX_BACKLOG {
                self.handle(Input::Close(error::slow_reader()));
            }
            return false;
        }
        if self.commands.is_empty() {
            let mut queue = self.link.queue.lock();
            self.commands = std::mem::take(&mut queue.commands).into();
            // Within the lock, so that nothing is counted that is still in the queue.
            self.link.backlog.store(0, Ordering::Relaxed);
        }
        if self.commands.is_empty() {
            return false;
        }
        let now = self.link.now();
        while !self.carrier.is_full() {
            let Some(command) = self.commands.pop_front() else { break };
            match command {
                Command::Begin { op, body, more, deadline, reader } => {
                    self.readers.insert(op, reader);
                    self.session.handle(now, Input::Begin { op, body, more, deadline }, out);
                }
                Command::Attach { op, flow } => self.attach(op, flow),
                Command::Session(input) => self.command(now, input, out),
            }
            self.perform(out);
        }
        true
    }

    fn command(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        let completed = match &input {
            Input::Send { op, more: false, .. } | Input::Fail { op, .. } => Some(*op),
            Input::Cancel { op } => {
                self.give_up(*op);
                Some(*op)
            }
            _ => None,
        };
        if let Some(op) = completed {
            // A handler that ends its operation from its own future is not stopped by that.
            self.requests.remove(&op);
            self.aborts.remove(&op);
            self.end_flow(op);
        }
        self.session.handle(now, input, out);
        if let Some(op) = completed
            && !self.session.is_abandoned(op)
        {
            self.given_up.remove(&op);
        }
    }

    fn attach(&mut self, op: OpId, flow: Arc<Flow>) {
        if !self.session.is_open(op) {
            return flow.end();
        }
        let early = self.session.credit(op).saturating_sub(self.session.limits().initial_credit);
        if early > 0 {
            flow.grant(early);
        }
        self.flows.insert(op, flow);
    }

    fn poll_admission(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(admission) = &mut self.admission else { return false };
        let Poll::Ready(decided) = admission.as_mut().poll(cx) else { return false };
        self.admission = None;
        self.handle(match decided {
            Ok(Admission { node, principal, limits }) => Input::Accept { node, principal, limits },
            Err(error) => Input::Reject(error),
        });
        true
    }

    /// Lets the handlers' futures go on. What they have to say they put into the queue.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(work) = &mut self.work else { return false };
        let mut progress = false;
        loop {
            match work.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(()) | Err(Aborted))) => progress = true,
                Poll::Ready(None) | Poll::Pending => return progress,
            }
        }
    }

    /// Takes in what there is; whether all of it was taken, so that the carrier wakes us when there is more.
    fn read(&mut self, cx: &mut Context<'_>, out: &mut Outbox<Output>, read: &mut usize) -> bool {
        let now = self.link.now();
        while self.ended.is_none() && *read < FRAMES_PER_TURN && self.may_read() {
            let Poll::Ready(received) = self.carrier.poll_receive(cx, self.session.max_frame()) else { return true };
            let input = match received {
                Received::Frame(frame, bytes) => Input::Received { frame, bytes },
                Received::Broken(error) => Input::Broken(error),
                Received::Ended(error) => Input::Lost(error),
            };
            *read += 1;
            self.session.handle(now, input, out);
            self.perform(out);
            if !self.fresh.is_empty() {
                self.run_fresh(cx);
            }
        }
        false
    }

    /// No more requests are taken in than answers can be kept for.
    fn may_read(&self) -> bool {
        self.reads_while_blocked || !self.carrier.is_full() && self.link.backlog.load(Ordering::Relaxed) <= HIGH_WATER
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, out: &mut Outbox<Output>) -> bool {
        let deadline = self.session.deadline().unwrap_or(Mono::NEVER);
        // Later deadlines wait for the timer to fire at the earlier one: most frames move them, few reach them.
        if deadline < self.timer_at {
            self.set_timer(deadline);
        }
        // Once it knows our waker it need not be asked again at every turn.
        let knows_us = self.timer_wakes.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if knows_us && !self.timer.is_elapsed() {
            return false;
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            self.timer_wakes = Some(cx.waker().clone());
            return false;
        }
        self.session.wake(self.link.now(), out);
        self.perform(out);
        self.work = self.work.take().filter(|work| !work.is_empty());
        if self.ended.is_none() {
            self.set_timer(self.session.deadline().unwrap_or(Mono::NEVER));
        }
        true
    }

    /// Sends what waits; whether the carrier takes more than it did before.
    fn flush(&mut self, cx: &mut Context<'_>, out: &mut Outbox<Output>) -> bool {
        if let Poll::Ready(Err(error)) = self.carrier.poll_flush(cx)
            && self.ended.is_none()
        {
            self.session.handle(self.link.now(), Input::Lost(error), out);
            self.perform(out);
        }
        let full = self.carrier.is_full();
        if full == self.blocked || self.ended.is_some() {
            return false;
        }
        self.blocked = full;
        let mut queue = self.link.queue.lock();
        queue.blocked = full;
        let waiting = if full { Vec::new() } else { std::mem::take(&mut queue.waiting) };
        drop(queue);
        for flow in waiting {
            flow.wake();
        }
        self.handle(if full { Input::Blocked } else { Input::Unblocked });
        !full
    }

    fn say_last_words(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(why) = &self.ended else { return Poll::Pending };
        if self.carrier.poll_close(cx, why).is_ready() {
            return Poll::Ready(());
        }
        self.timer.as_mut().poll(cx)
    }
}

impl<C: Carrier, H: Handler> Future for Driver<C, H> {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        std::task::ready!(self.turn(cx));
        Poll::Ready(self.ended.take().unwrap_or_else(error::closed))
    }
}

/// A driver that is dropped (its task was aborted, the runtime stops) still ends what waits for it.
impl<C, H> Drop for Driver<C, H> {
    fn drop(&mut self) {
        let why = error::closed();
        let mut queue = self.link.queue.lock();
        queue.closed.get_or_insert_with(|| why.clone());
        let commands = std::mem::take(&mut queue.commands);
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(commands);
        for flow in waiting.into_iter().chain(std::mem::take(&mut self.flows).into_values()) {
            flow.end();
        }
        if let Some(permits) = self.link.permits.get() {
            permits.close();
        }
        self.link.changed.notify_waiters();
    }
}

fn long_answer() -> Error {
    Error::new("control.long_answer", Class::Invalid, "the answer takes several frames").hint("Read it as a stream.")
}
