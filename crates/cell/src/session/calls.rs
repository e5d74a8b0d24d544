//! Calls of the application: numbered, sent, sent again until their outcome is known, answered once.

mod waits;

use super::cache::Touch;
use super::keepalive::{Own, opening_pause, pause};
use super::lease::Phase;
use super::{Event, Output, STIR, Session, Timer, closed, not_a_call, too_many_calls};
use crate::HandleNumber;
use crate::error;
use crate::link::Ticket;
use crate::path::NodePath;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Class, Error, Mono, OpId, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// The most calls of an application under way in one session.
pub(super) const MAX_CALLS: usize = 4_096;

/// R8: the state keeps results of 1,024 numbers from the first unanswered one on; what would go beyond waits here. The rest
/// is for the session's own cancels and closes.
const WINDOW: u64 = 960;

/// For how long a call is tried at a time, and a call that waits in a queue at the master.
const WITHIN: Duration = Duration::from_secs(10);
const WITHIN_QUEUE: Duration = Duration::from_secs(40);

/// A queued acquire that is told to ask again sooner than this asks after a pause.
const NOT_HELD: Duration = Duration::from_secs(1);

/// How far one attempt of a call is.
#[derive(Clone, Debug, PartialEq)]
enum Attempt {
    /// To be sent as soon as the session may.
    Waiting,
    /// Under way.
    Sent { ticket: Ticket, at: Mono },
    /// A pause after a failure.
    Pausing,
    /// An acquire that nobody waits for: its cancel speaks for it.
    GivenUp,
}

/// One call that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// `None`: nobody waits for the answer any more.
    op: Option<OpId>,
    message: Message,
    /// R8; zero for calls that change nothing.
    number: u64,
    /// An acquire that was given a later number, which the master has not confirmed: the one before.
    former: Option<u64>,
    attempt: Attempt,
    /// Attempts that may have changed something.
    sends: u32,
    failures: u32,
    touch: Option<Touch>,
    /// A read: an own change of what it reads was made since it was sent.
    pub(super) tainted: bool,
    /// A read: how often the cache had been flushed when it was sent.
    pub(super) flushes: u64,
    /// A cancel: the acquire that it ends.
    ends: Option<u64>,
    /// A cancel that makes room in the window: the acquire to make anew.
    anew: Option<Message>,
    /// An open: events that came before its answer.
    early: Vec<v1::CellEvent>,
}

/// All calls that are not answered yet, by the order in which they were made.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    calls: BTreeMap<u64, Call>,
    by_op: BTreeMap<OpId, u64>,
    by_ticket: BTreeMap<Ticket, u64>,
    by_number: BTreeMap<u64, u64>,
    waiting: BTreeSet<u64>,
    /// Those whose answers may be cached.
    reads: BTreeSet<u64>,
    last_id: u64,
    last_number: u64,
    /// A wait that so many later numbers have passed gets one of its own (R8).
    renumber_after: u64,
    /// When the last one was sent.
    last_sent: Mono,
}

/// Whether a call has a number (R8); `None` for what is not a call.
fn numbered(message: &Message) -> Option<bool> {
    match message {
        Message::Open(_)
        | Message::Close(_)
        | Message::SetContents(_)
        | Message::SetAcl(_)
        | Message::Delete(_)
        | Message::Acquire(_)
        | Message::CancelAcquire(_)
        | Message::Release(_)
        | Message::SetQuota(_)
        | Message::EndSession(_)
        | Message::Restore(_) => Some(true),
        Message::Read(_)
        | Message::ReadMany(_)
        | Message::GetSequencer(_)
        | Message::CheckSequencer(_)
        | Message::GetQuota(_)
        | Message::ListSessions(_)
        | Message::ListLocks(_)
        | Message::Keys(_)
        | Message::Backup(_) => Some(false),
        _ => None,
    }
}

/// Whether a call that failed so is worth sending again: nobody could decide, or nobody knows what was decided.
fn worth_repeating(error: &Error) -> bool {
    matches!(error.class, Class::Unreachable | Class::OutcomeUnknown)
        || matches!(error.code.as_ref(), "cell.stale_epoch" | "cell.not_master" | "cell.too_many_outstanding")
}

impl Calls {
    pub(super) fn new() -> Calls {
        Calls {
            calls: BTreeMap::new(),
            by_op: BTreeMap::new(),
            by_ticket: BTreeMap::new(),
            by_number: BTreeMap::new(),
            waiting: BTreeSet::new(),
            reads: BTreeSet::new(),
            last_id: 0,
            last_number: 0,
            renumber_after: waits::RENUMBER,
            last_sent: Mono(0),
        }
    }

    /// All numbers below this are answered.
    pub(super) fn answered_below(&self) -> u64 {
        self.by_number.first_key_value().map_or(self.last_number + 1, |(number, _)| *number)
    }

    fn add(&mut self, op: Option<OpId>, message: Message, numbered: bool, touch: Option<Touch>) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let mut number = 0;
        if numbered {
            self.last_number += 1;
            number = self.last_number;
            self.by_number.insert(number, id);
        }
        if let Some(op) = op {
            self.by_op.insert(op, id);
        }
        if matches!(&message, Message::Read(_) | Message::ReadMany(_) | Message::Open(_)) && touch.is_none() {
            self.reads.insert(id);
        }
        self.waiting.insert(id);
        let call = Call {
            op,
            message,
            number,
            former: None,
            attempt: Attempt::Waiting,
            sends: 0,
            failures: 0,
            touch,
            tainted: false,
            flushes: 0,
            ends: None,
            anew: None,
            early: Vec::new(),
        };
        self.calls.insert(id, call);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Call> {
        let call = self.calls.remove(&id)?;
        if let Some(op) = call.op {
            self.by_op.remove(&op);
        }
        if let Attempt::Sent { ticket, .. } = call.attempt {
            self.by_ticket.remove(&ticket);
        }
        self.by_number.remove(&call.number);
        if let Some(former) = call.former {
            self.by_number.remove(&former);
        }
        self.waiting.remove(&id);
        self.reads.remove(&id);
        Some(call)
    }

    /// Whether a call may be sent with numbers below this. What nobody waits for may go beyond: it makes room.
    fn fits(&self, id: u64, limit: u64) -> bool {
        let makes_room = |call: &Call| call.op.is_none() || call.anew.is_some() || call.former.is_some();
        self.calls.get(&id).is_some_and(|call| call.number < limit || makes_room(call))
    }

    /// Moves a call to another attempt; answers to the one before come too late.
    fn turn(&mut self, id: u64, attempt: Attempt) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Attempt::Sent { ticket, .. } = call.attempt {
            self.by_ticket.remove(&ticket);
        }
        match &attempt {
            Attempt::Sent { ticket, .. } => {
                self.by_ticket.insert(*ticket, id);
                self.waiting.remove(&id);
            }
            Attempt::Waiting => {
                self.waiting.insert(id);
            }
            Attempt::Pausing | Attempt::GivenUp => {
                self.waiting.remove(&id);
            }
        }
        call.attempt = attempt;
    }

    /// Everything unanswered is to be sent again.
    pub(super) fn again(&mut self) {
        let ids: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.attempt != Attempt::GivenUp).map(|(id, _)| *id).collect();
        for id in ids {
            self.turn(id, Attempt::Waiting);
        }
    }

    /// An own change begins: answers to reads that are under way may be older than it.
    pub(super) fn taint(&mut self, touch: &Touch) {
        for id in &self.reads {
            let Some(call) = self.calls.get_mut(id) else { continue };
            // By handle, the path is not looked up: a read too many is not cached, that is all.
            call.tainted |= match (touch, &call.message) {
                (Touch::All, _) => true,
                (touch, Message::Read(read)) => match read.target.as_ref().and_then(|target| target.target.as_ref()) {
                    Some(v1::node_target::Target::Path(path)) => touch.may_change(path),
                    _ => true,
                },
                (touch, Message::ReadMany(many)) => many.paths.iter().any(|path| touch.may_change(path)),
                (touch, Message::Open(open)) => touch.may_change(&open.path),
                _ => true,
            };
        }
    }

    /// An event of a handle whose open is not answered yet waits for the answer; others come back.
    pub(super) fn keep_early(&mut self, event: v1::CellEvent) -> Option<v1::CellEvent> {
        let opening = self.by_number.get(&event.handle).and_then(|id| self.calls.get_mut(id));
        let Some(call) = opening.filter(|call| matches!(call.message, Message::Open(_))) else { return Some(event) };
        // Bounded: one of each kind. Of children only the first names are kept, and that there are more.
        match call.early.iter_mut().find(|early| early.kind == event.kind) {
            Some(early) => early.more |= event.more || early.children != event.children,
            None => call.early.push(event),
        }
        None
    }

    /// The last attempt of a call was refused before anything was proposed for it.
    fn refused(&mut self, id: u64) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.sends = call.sends.saturating_sub(1);
        }
    }

    /// The session is over: everything is answered so. A change that was sent, and not refused, may have happened.
    pub(super) fn fail_all(&mut self, why: &Error, out: &mut Outbox<Output>) {
        for call in std::mem::take(&mut self.calls).into_values() {
            let Some(op) = call.op else { continue };
            let class = if call.number > 0 && call.sends > 0 { Class::OutcomeUnknown } else { why.class };
            out.put(Output::Answer { op, result: Err(Error { class, ..why.clone() }) });
        }
        (self.by_op, self.by_ticket, self.by_number) = Default::default();
        (self.waiting, self.reads) = Default::default();
    }
}

impl Session {
    /// Whether an acquire of this handle was given up, and the cell may still count on it.
    pub fn is_cancelling(&self, handle: HandleNumber) -> bool {
        let of_handle =
            |call: &Call| matches!(&call.message, Message::CancelAcquire(cancel) if cancel.handle == handle.0);
        self.calls.calls.values().any(of_handle)
    }

    /// Whether calls may be sent now: the lease holds, and the master knows the session.
    fn may_send(&self) -> bool {
        matches!(self.phase, Phase::Active { .. }) && self.contact.next == Own::KeepAlive
    }

    /// The application calls.
    pub(super) fn call(&mut self, now: Mono, op: OpId, message: Message, out: &mut Outbox<Output>) {
        let refusal = match (&self.phase, numbered(&message)) {
            (Phase::Expired { why }, _) => Some(why.clone()),
            (Phase::Closing | Phase::Closed, _) => Some(closed()),
            (_, None) => Some(not_a_call()),
            _ if self.calls.by_op.len() >= MAX_CALLS => Some(too_many_calls(MAX_CALLS)),
            _ => None,
        };
        if let Some(error) = refusal {
            return out.put(Output::Answer { op, result: Err(error) });
        }
        self.enqueue(now, Some(op), message, out);
    }

    fn enqueue(&mut self, now: Mono, op: Option<OpId>, message: Message, out: &mut Outbox<Output>) -> u64 {
        let touch = self.touched(&message);
        match &message {
            // From here on the handle is not counted on to hold its lock.
            Message::Release(release) => self.handles.hold(release.handle, false),
            Message::Close(close) => self.handles.hold(close.handle, false),
            _ => {}
        }
        if let Some(touch) = &touch {
            self.block(touch, out);
        }
        let numbered = numbered(&message) == Some(true);
        let id = self.calls.add(op, message, numbered, touch);
        self.send_waiting(now, out);
        id
    }

    /// Sends what waits, in order, as far as it may be sent.
    pub(super) fn send_waiting(&mut self, now: Mono, out: &mut Outbox<Output>) {
        if !self.may_send() || self.calls.waiting.is_empty() {
            return;
        }
        for _ in 0..waits::RENUMBERED {
            let Some(id) = self.calls.pinning() else { break };
            self.calls.renumber(id);
            self.send_call(now, id, out);
        }
        let limit = self.calls.answered_below() + WINDOW;
        let (ready, late): (Vec<u64>, Vec<u64>) =
            self.calls.waiting.iter().copied().partition(|id| self.calls.fits(*id, limit));
        for id in ready {
            self.send_call(now, id, out);
        }
        if !late.is_empty() {
            self.requeue_oldest(now, out);
        }
    }

    fn send_call(&mut self, now: Mono, id: u64, out: &mut Outbox<Output>) {
        let ticket = self.ticket();
        let flushes = self.cache.flushes();
        self.timers.cancel(&Timer::Call(id));
        self.calls.turn(id, Attempt::Sent { ticket, at: now });
        let Some(call) = self.calls.calls.get(&id) else { return };
        let tainted = self.calls.reads.contains(&id) && self.reads_blocked(&call.message);
        let message =
            v1::CellMessage { caller: None, call: self.header(call.number), message: Some(call.message.clone()) };
        let queued = matches!(&call.message, Message::Acquire(acquire) if !acquire.try_only && acquire.waits_as == 0);
        out.put(Output::Send { ticket, message, within: if queued { WITHIN_QUEUE } else { WITHIN } });
        if let Some(call) = self.calls.calls.get_mut(&id) {
            (call.sends, call.flushes, call.tainted) = (call.sends.saturating_add(1), flushes, tainted);
        }
        self.calls.last_sent = now;
        self.timers.cancel(&Timer::Stir);
    }

    /// The cache is in use.
    pub(super) fn served(&mut self, now: Mono) {
        if !self.is_over() && self.timers.at(&Timer::Stir).is_none() {
            self.timers.set(Timer::Stir, now.max(self.calls.last_sent + STIR));
        }
    }

    /// Makes the cheapest call there is: it tells the master that the application is there.
    pub(super) fn stir(&mut self, now: Mono, out: &mut Outbox<Output>) {
        let root = v1::node_target::Target::Path(NodePath::root().as_str().to_owned());
        let target = Some(v1::NodeTarget { target: Some(root) });
        let read = v1::ReadNode { target, contents: false, children: false, uncached: true, ..Default::default() };
        self.enqueue(now, None, Message::Read(read), out);
    }

    /// Whether an own change under way touches what this reads.
    fn reads_blocked(&self, message: &Message) -> bool {
        let blocked =
            |path: NodePath| self.cache.is_blocked(&(path.clone(), false)) || self.cache.is_blocked(&(path, true));
        match message {
            Message::Read(read) => self.target(read.target.as_ref()).is_none_or(blocked),
            Message::Open(open) => NodePath::parse(&open.path).map_or(true, blocked),
            Message::ReadMany(many) => many.paths.iter().any(|path| NodePath::parse(path).map_or(true, blocked)),
            _ => true,
        }
    }

    /// The pause after a failure is over.
    pub(super) fn retry_call(&mut self, now: Mono, id: u64, out: &mut Outbox<Output>) {
        if self.calls.calls.get(&id).is_some_and(|call| call.attempt == Attempt::Pausing) {
            self.calls.turn(id, Attempt::Waiting);
            self.send_waiting(now, out);
        }
    }

    fn pause_call(&mut self, now: Mono, id: u64, pause: Duration) {
        self.calls.turn(id, Attempt::Pausing);
        self.timers.set(Timer::Call(id), now + pause);
    }

    /// Nobody waits for this call any more.
    pub(super) fn cancel_call(&mut self, now: Mono, op: OpId, out: &mut Outbox<Output>) {
        let Some(id) = self.calls.by_op.remove(&op) else { return };
        let Some(call) = self.calls.calls.get_mut(&id) else { return };
        call.op = None;
        if call.sends == 0 || call.number == 0 {
            return self.forget(now, id, out);
        }
        // A change goes on until its outcome is known. An acquire would keep its place, and the lock when its turn comes.
        call.anew = None;
        if matches!(call.message, Message::Acquire(_)) {
            self.give_up(now, id, out);
        }
    }

    /// Drops a call without an answer.
    fn forget(&mut self, now: Mono, id: u64, out: &mut Outbox<Output>) {
        self.timers.cancel(&Timer::Call(id));
        if let Some(touch) = self.calls.remove(id).and_then(|call| call.touch) {
            self.cache.unblock(&touch);
        }
        self.send_waiting(now, out);
    }

    /// The transport's answer to a call.
    pub(super) fn call_answered(
        &mut self,
        now: Mono,
        ticket: Ticket,
        result: Result<v1::CellMessage, Error>,
        out: &mut Outbox<Output>,
    ) {
        let Some(id) = self.calls.by_ticket.get(&ticket).copied() else { return };
        let Some(call) = self.calls.calls.get(&id) else { return };
        let failures = call.failures;
        match result.map(|answer| answer.message) {
            Ok(Some(Message::Waiting(_))) => {
                let asked = if let Attempt::Sent { at, .. } = call.attempt { at } else { now };
                if !self.calls.waits(id) && now.since(asked) < NOT_HELD {
                    let pause = opening_pause(&mut self.rng);
                    return self.pause_call(now, id, pause);
                }
                self.calls.turn(id, Attempt::Waiting);
                self.send_waiting(now, out);
            }
            Ok(Some(message)) => self.settle(now, id, Ok(message), out),
            Ok(None) => self.repeat(now, id, failures),
            Err(error) => match error.code.as_ref() {
                "cell.resume" => {
                    self.calls.turn(id, Attempt::Waiting);
                    self.begin_resume(now, 0, out);
                }
                // Of an operator's request it says that the other session is gone.
                "cell.expired" | "cell.no_session" if !matches!(call.message, Message::EndSession(_)) => {
                    self.calls.turn(id, Attempt::Waiting);
                    self.calls.refused(id);
                    self.ended_by_master(now, &error, out);
                }
                "cell.opening" => {
                    let pause = opening_pause(&mut self.rng);
                    self.pause_call(now, id, pause);
                }
                _ if worth_repeating(&error) => self.repeat(now, id, failures),
                _ => self.settle(now, id, Err(error), out),
            },
        }
    }

    fn repeat(&mut self, now: Mono, id: u64, failures: u32) {
        let pause = pause(failures, &mut self.rng);
        if let Some(call) = self.calls.calls.get_mut(&id) {
            call.failures = failures.saturating_add(1);
        }
        self.pause_call(now, id, pause);
    }

    /// The outcome of a call is known.
    fn settle(&mut self, now: Mono, id: u64, result: Result<Message, Error>, out: &mut Outbox<Output>) {
        let Some(call) = self.calls.remove(id) else { return };
        let result = result.and_then(|answer| self.believed(&call.message, answer));
        self.learn(&call, &result, out);
        if let Some(touch) = &call.touch {
            self.cache.unblock(touch);
        }
        if let Some(ended) = call.ends.filter(|ended| !self.calls.is_ending(*ended)) {
            self.forget(now, ended, out);
        }
        let orphan = match (call.op, &result) {
            (None, Ok(Message::Opened(opened))) => Some(opened.handle),
            _ => None,
        };
        if let (Some(op), Some(acquire)) = (call.op, call.anew) {
            self.enqueue(now, Some(op), acquire, out);
        } else if let Some(op) = call.op {
            out.put(Output::Answer { op, result });
            for event in call.early {
                out.put(Output::Tell(Event::Node(event)));
            }
        }
        // Nobody would ever close what an abandoned open opened.
        if let Some(handle) = orphan {
            self.enqueue(now, None, Message::Close(v1::CloseHandle { handle }), out);
        }
        self.send_waiting(now, out);
    }

    /// A grant that was overtaken by the news that its node is gone, or by its handle's close, is none.
    fn believed(&self, call: &Message, answer: Message) -> Result<Message, Error> {
        let (Message::Acquire(acquire), Message::Acquired(_)) = (call, &answer) else { return Ok(answer) };
        match self.handles.get(acquire.handle) {
            Some(handle) if handle.gone => Err(error::node_gone(handle.path.as_str())),
            Some(_) => Ok(answer),
            None => Err(error::bad_handle("it was closed meanwhile")),
        }
    }

    /// What an answer says about handles, locks and the cache.
    fn learn(&mut self, call: &Call, result: &Result<Message, Error>, out: &mut Outbox<Output>) {
        let epoch = self.me.map_or(0, |me| me.epoch);
        match (&call.message, result) {
            (Message::Open(open), Ok(Message::Opened(opened))) => {
                let Ok(path) = NodePath::parse(&open.path) else { return };
                self.handles.opened(open, path.clone(), opened);
                if call.touch.is_some() {
                    return self.cache.raise_floor(epoch, opened.stamp.as_ref());
                }
                let read = v1::NodeRead { stat: opened.stat.clone(), stamp: opened.stamp, ..Default::default() };
                self.put_node(call, path, read, out);
            }
            (Message::Close(close), _) => {
                self.handles.closed(close.handle);
                if let Ok(Message::Done(done)) = result {
                    self.cache.raise_floor(epoch, done.stamp.as_ref());
                }
            }
            (Message::Read(read), Ok(Message::NodeRead(answer))) => self.learn_read(call, read, answer, out),
            (Message::ReadMany(many), Ok(Message::ManyRead(answers))) => {
                for (path, answer) in many.paths.iter().zip(&answers.nodes) {
                    if let Ok(path) = NodePath::parse(path) {
                        self.put_node(call, path, answer.clone(), out);
                    }
                }
            }
            (Message::Acquire(acquire), Ok(Message::Acquired(acquired))) => {
                self.handles.hold(acquire.handle, true);
                self.cache.raise_floor(epoch, acquired.stamp.as_ref());
            }
            (_, Ok(Message::Done(done))) => self.cache.raise_floor(epoch, done.stamp.as_ref()),
            _ => {}
        }
    }

    fn learn_read(&mut self, call: &Call, read: &v1::ReadNode, answer: &v1::NodeRead, out: &mut Outbox<Output>) {
        let Some(path) = self.target(read.target.as_ref()) else { return };
        if read.children && answer.stat.is_some() {
            let listing = v1::NodeRead { contents: Default::default(), ..answer.clone() };
            self.put_read(call, (path.clone(), true), false, listing, out);
        }
        // Whoever may cache a listing is told of changes of the node, too.
        let node = v1::NodeRead { children: Vec::new(), ..answer.clone() };
        self.put_node(call, path, node, out);
    }

    /// A node's answer, which has its contents if they are as long as the stat says.
    fn put_node(&mut self, call: &Call, path: NodePath, read: v1::NodeRead, out: &mut Outbox<Output>) {
        let full = read.stat.as_ref().is_none_or(|stat| stat.length as usize == read.contents.len());
        self.put_read(call, (path, false), full, read, out);
    }
}
