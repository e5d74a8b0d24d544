//! One leadership: what it remembers, how a request finds its way, how operations end.

use super::caching::{Blocks, Interest};
use super::closing::Closing;
use super::events::OpenHandles;
use super::failover::Phase;
use super::gate::{Gate, Gated};
use super::leases::{BEFORE_DEADLINE, Load};
use super::locks::Locks;
use super::mutations::Change;
use super::places::{PlaceId, Places};
use super::reads::Tickets;
use super::sessions::{Links, Session, Sessions, Slot};
use super::wheel::Wheel;
use super::{Measure, Options, Output};
use crate::error;
use crate::mutant::Mutant;
use crate::namespace::Namespace;
use crate::{HandleNumber, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard, Refusal};
use tidings_base::{Class, Error, Mono, NodeId, Now, OpId, Outbox, Timers};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// How many operations may be open at once, held KeepAlives and acquires in queues aside; more are refused with `cell.busy`.
const MAX_OPEN: usize = 65_536;
/// How long an operation may take unless its request says otherwise. Ten seconds outlast an election.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that an operation may take, whatever its request says: the span of the wheel.
const LONGEST: Duration = Duration::from_secs(60);
/// How often the gauges are measured.
const GAUGES: Duration = Duration::from_secs(5);
/// After so long a proposal of the master's own that the log had no room for is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// The precise timers of a master; what exists by the hundred thousand is in wheels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Propose `NewMaster` again.
    Begin,
    /// Whoever has not come back can hold no cached copy any more: open.
    Open,
    /// A session that owes an acknowledgement can hold no cached copy any more: whoever waits for it goes on.
    CacheBound(Slot),
    /// A lock-delay has passed in full; try to end it.
    Delay(PlaceId),
    /// End a session: its lease is over, or the log had no room the last time.
    Stop(Slot),
    /// The clients of a link's ended sessions cannot believe them alive any more.
    Link(u32),
    /// R12: have new keys.
    Rotate,
    /// Try again to delete ephemeral nodes that nobody has open.
    Reap,
    /// Leases longer than the ceiling that is now needed have run out: lower it (R6).
    LowerCeiling,
    /// R6: cache leases longer than this master's have run out: have its own agreed on.
    LowerCacheLease,
    /// No further piece of a backup came: drop what there is.
    Unstage,
    /// Decide what became of proposals whose outcome is unknown.
    Decide,
    /// Have closes agreed on that the log had no room for.
    Close,
    /// Measure.
    Gauges,
}

/// One call of the machine.
pub(super) struct Turn<'a> {
    pub(super) now: Now,
    pub(super) state: &'a Namespace,
    pub(super) out: &'a mut Outbox<Output>,
    /// R2: nobody else led at this instant, so an answer from the state is linearizable and a lease may be dated from
    /// it. `None` = that is not known.
    pub(super) fresh: Option<Mono>,
}

impl Turn<'_> {
    pub(super) fn mono(&self) -> Mono {
        self.now.mono
    }
}

/// Who asks, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) op: OpId,
    pub(super) deadline: Mono,
}

/// What became of a request that was not refused.
pub(super) enum Flow {
    /// It was answered, or something waits for it.
    Taken,
    /// It must wait until the state is known to be fresh.
    Fresh,
}

/// What an open operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// A KeepAlive that is held in its session.
    Held(Slot),
    /// A barrier, or a write that its key is blocked by.
    Parked,
    /// A change.
    Change(OpId),
    /// Its turn in a lock's queue.
    Lock(PlaceId, u64),
    /// The end of a session.
    End(Slot),
    /// The agreement that a handle is closed.
    Close(SessionId, HandleNumber),
}

/// Everything in memory that belongs to one leadership.
#[derive(Clone, Debug)]
pub(super) struct Reign {
    pub(super) options: Options,
    pub(super) last_op: u64,
    pub(super) phase: Phase,
    /// R1: what `NewMaster` was answered; 0 before that.
    pub(super) epoch: u64,
    /// When leadership was first heard of.
    pub(super) since: Mono,
    /// The leader lease.
    pub(super) lease_until: Mono,
    pub(super) places: Places,
    pub(super) sessions: Sessions,
    pub(super) links: Links,
    pub(super) interest: Interest,
    pub(super) blocks: Blocks,
    pub(super) open_handles: OpenHandles,
    pub(super) changes: BTreeMap<OpId, Change>,
    /// R8: numbered changes under way, so that a repeat finds its first.
    pub(super) numbered: BTreeMap<(Slot, u64), OpId>,
    pub(super) locks: Locks,
    pub(super) closing: Closing,
    pub(super) ops: BTreeMap<OpId, Waiting>,
    /// How many of them are held KeepAlives, and how many acquires in queues.
    pub(super) held: usize,
    pub(super) queued: usize,
    pub(super) gate: Gate,
    pub(super) tickets: Tickets,
    pub(super) timers: Timers<Timer>,
    pub(super) session_wheel: Wheel<Slot>,
    pub(super) op_wheel: Wheel<OpId>,
    /// Sessions with something new to carry.
    pub(super) dirty: Vec<Slot>,
    /// Ephemeral nodes whose deletion is under way.
    pub(super) reaping: BTreeSet<crate::path::Place>,
    /// Requests that can go on, now that a key is unblocked.
    pub(super) released: Vec<(Asker, v1::CellMessage)>,
    pub(super) load: Load,
}

impl Reign {
    pub(super) fn new(options: Options, now: Mono, last_op: u64) -> Reign {
        Reign {
            load: Load::new(options.lease),
            options,
            last_op,
            phase: Phase::Starting,
            epoch: 0,
            since: now,
            lease_until: Mono(0),
            places: Places::default(),
            sessions: Sessions::default(),
            links: Links::default(),
            interest: Interest::default(),
            blocks: Blocks::default(),
            open_handles: OpenHandles::default(),
            changes: BTreeMap::new(),
            numbered: BTreeMap::new(),
            locks: Locks::default(),
            closing: Closing::default(),
            ops: BTreeMap::new(),
            held: 0,
            queued: 0,
            gate: Gate::default(),
            tickets: Tickets::default(),
            timers: Timers::new(),
            session_wheel: Wheel::new(),
            op_wheel: Wheel::new(),
            dirty: Vec::new(),
            reaping: BTreeSet::new(),
            released: Vec::new(),
        }
    }

    pub(super) fn turn<'a>(&self, now: Now, state: &'a Namespace, out: &'a mut Outbox<Output>) -> Turn<'a> {
        let sure = now.mono < self.lease_until || self.mutant(Mutant::ReadWithoutLease);
        Turn { now, state, out, fresh: sure.then_some(now.mono) }
    }

    pub(super) fn mutant(&self, mutant: Mutant) -> bool {
        self.options.mutant == Some(mutant)
    }

    /// A name for a proposal or barrier.
    pub(super) fn new_op(&mut self) -> OpId {
        self.last_op += 2;
        OpId(self.last_op)
    }

    /// Takes a request.
    pub(super) fn request(&mut self, t: &mut Turn<'_>, op: OpId, request: v1::CellMessage, deadline: Option<Mono>) {
        let limit = t.mono() + TIMEOUT;
        let keeping = matches!(request.message, Some(Message::KeepAlive(_)));
        let waiting = matches!(request.message, Some(Message::Acquire(_)));
        let deadline = match deadline {
            _ if waiting => {
                let given_up = deadline.unwrap_or(Mono::NEVER).saturating_sub(BEFORE_DEADLINE);
                given_up.min(t.mono() + self.options.wait)
            }
            Some(deadline) if keeping => deadline,
            Some(deadline) => deadline.min(t.mono() + LONGEST),
            None if keeping => Mono::NEVER,
            None => limit,
        };
        // What frees something is never refused for want of room.
        let frees = matches!(
            request.message,
            Some(Message::Release(_) | Message::Close(_) | Message::CloseSession(_) | Message::CancelAcquire(_))
        );
        if !keeping && !frees && self.ops.len() - self.held - self.queued >= MAX_OPEN {
            return self.fail(t, op, error::busy("too many calls are open"));
        }
        self.serve(t, Asker { op, deadline }, request);
    }

    /// Serves a request, now or after a barrier. Whatever this master would say from memory, a refusal included, may
    /// be out of date unless nobody else can lead (R2).
    pub(super) fn serve(&mut self, t: &mut Turn<'_>, asker: Asker, request: v1::CellMessage) {
        let spare = t.fresh.is_none().then(|| request.clone());
        match (self.attempt(t, asker, request), spare) {
            (Ok(Flow::Taken), _) => {}
            (Ok(Flow::Fresh) | Err(_), Some(request)) => self.await_barrier(t, Gated::Request(asker, request)),
            (Err(error), None) => self.fail(t, asker.op, error),
            (Ok(Flow::Fresh), None) => self.fail(t, asker.op, error::not_master()),
        }
    }

    fn attempt(&mut self, t: &mut Turn<'_>, asker: Asker, request: v1::CellMessage) -> Result<Flow, Error> {
        if matches!(self.phase, Phase::Starting) {
            return Err(error::opening());
        }
        let v1::CellMessage { caller, call, message } = request;
        let caller = caller.ok_or_else(|| bad_call("it does not say who calls"))?;
        let message = message.ok_or_else(|| bad_call("it asks for nothing that is known here"))?;
        match message {
            Message::CreateSession(create) => return self.create_session(t, asker, caller, &create),
            Message::ResumeSession(resume) => return self.resume_session(t, asker, &caller, call.as_ref(), &resume),
            Message::RenewCache(renew) => return self.renew_cache(t, asker, &caller, &renew),
            Message::KeepAlive(keep) => return self.keep_alive(t, asker, &caller, call.as_ref(), &keep),
            _ => {}
        }
        if let (Message::CloseSession(_), Some(call)) = (&message, &call)
            && let Some(slot) = self.closes_ending(t, &caller, call)
        {
            return self.close_session(t, asker, slot);
        }
        // A session that has not come back must hear so at once, or the cell would wait for it in vain.
        let slot = match &call {
            Some(call) => Some(self.session_of(t, &caller, call)?),
            None => None,
        };
        if !matches!(self.phase, Phase::Serving) {
            return Err(error::opening());
        }
        let Some((slot, call)) = slot.zip(call) else {
            return self.sessionless(t, asker, &caller, message);
        };
        self.sessions.called(slot, t.mono(), &call);
        self.locks.forget_answered(slot, call.answered_below);
        self.leave_queues_below(t, slot, call.answered_below);
        self.call(t, asker, Caller { slot, caller: &caller, call: &call }, message)
    }

    fn call(&mut self, t: &mut Turn<'_>, asker: Asker, by: Caller<'_>, message: Message) -> Result<Flow, Error> {
        match message {
            Message::CloseSession(_) => self.close_session(t, asker, by.slot),
            Message::Open(open) => self.open(t, asker, by, open),
            Message::Close(close) => self.close(t, asker, by, close.handle),
            Message::Read(read) => self.read(t, asker, Some(by.slot), by.caller, read),
            Message::ReadMany(read) => self.read_many(t, asker, Some(by.slot), by.caller, read),
            Message::SetContents(set) => self.set_contents(t, asker, by, set),
            Message::SetAcl(set) => self.set_acl(t, asker, by, set),
            Message::Delete(delete) => self.delete(t, asker, by, delete),
            Message::Acquire(acquire) => self.acquire(t, asker, by, acquire),
            Message::CancelAcquire(cancel) => self.cancel_acquire(t, asker, by, cancel),
            Message::Release(release) => self.release_lock(t, asker, by, release.handle),
            Message::GetSequencer(get) => self.get_sequencer(t, asker, by, get.handle),
            other => self.sessionless(t, asker, by.caller, other),
        }
    }

    /// Answers an operation, for good.
    pub(super) fn reply(&mut self, t: &mut Turn<'_>, op: OpId, message: Message) {
        self.forget_op(op);
        t.out.put(Output::Reply { op, message });
    }

    /// Refuses an operation, for good.
    pub(super) fn fail(&mut self, t: &mut Turn<'_>, op: OpId, error: Error) {
        self.forget_op(op);
        t.out.put(Output::Fail { op, error, leader: None });
    }

    fn forget_op(&mut self, op: OpId) {
        let before = self.ops.remove(&op);
        self.count_off(before);
    }

    fn count_off(&mut self, before: Option<Waiting>) {
        match before {
            Some(Waiting::Held(_)) => self.held -= 1,
            Some(Waiting::Lock(..)) => self.queued -= 1,
            _ => {}
        }
    }

    /// Keeps an operation open.
    pub(super) fn keep_open(&mut self, t: &Turn<'_>, asker: Asker, waiting: Waiting) {
        let before = self.ops.insert(asker.op, waiting);
        match waiting {
            Waiting::Held(_) => self.held += 1,
            Waiting::Lock(..) => self.queued += 1,
            _ => {}
        }
        self.count_off(before);
        // A held KeepAlive is its session's entry in the wheel.
        if before.is_none() && !matches!(waiting, Waiting::Held(_)) {
            self.op_wheel.put(t.mono(), asker.deadline, asker.op);
        }
    }

    /// Nobody waits for this operation any more. What it changes is changed all the same; a place in a lock's queue is
    /// kept for the client to ask again.
    pub(super) fn cancel(&mut self, op: OpId) {
        if let Some(waiting) = self.ops.get(&op).copied() {
            self.detach(op, waiting);
            self.forget_op(op);
        }
    }

    /// Takes an operation from what it waits for.
    fn detach(&mut self, op: OpId, waiting: Waiting) {
        match waiting {
            Waiting::Held(slot) => {
                self.sessions.take_held(slot, op);
            }
            Waiting::Parked => {}
            Waiting::Close(session, handle) => self.closing.cancel(session, handle, op),
            Waiting::Change(change) => {
                if let Some(change) = self.changes.get_mut(&change) {
                    change.asker.take_if(|asker| asker.op == op);
                }
            }
            Waiting::Lock(place, ticket) => self.locks.detach(place, ticket, op),
            Waiting::End(slot) => self.sessions.detach_end(slot, op),
        }
    }

    /// An operation's time is up.
    fn time_out(&mut self, t: &mut Turn<'_>, op: OpId) {
        let Some(waiting) = self.ops.get(&op).copied() else { return };
        if let Waiting::Held(_) = waiting {
            return;
        }
        if let Waiting::Lock(place, ticket) = waiting {
            let before = self.locks.before(place, ticket);
            self.detach(op, waiting);
            return self.reply(t, op, Message::Waiting(v1::LockWaiting { before }));
        }
        // What ends by order goes with its lease at the latest: that is decided, however long it takes.
        if let Waiting::End(slot) = waiting
            && self.sessions.get(slot).is_some_and(Session::ends_by_order)
        {
            self.detach(op, waiting);
            return self.reply(t, op, Message::Done(v1::CellDone::default()));
        }
        let proposed = match waiting {
            Waiting::Change(id) => self.changes.get(&id).is_some_and(Change::is_proposed),
            _ => false,
        };
        self.detach(op, waiting);
        let error = if proposed { unknown_outcome() } else { error::busy("the call took too long") };
        self.fail(t, op, error);
    }

    /// From the agreed log.
    pub(super) fn heard(&mut self, t: &mut Turn<'_>, heard: Heard) {
        match heard {
            Heard::Applied { op, result, .. } => self.applied(t, op, &result),
            Heard::Refused { op, refusal } => {
                if !self.barrier_refused(t, op, refusal) {
                    self.refused(t, op, refusal);
                }
            }
            Heard::Unknown { op } => self.doubtful(t, op),
            Heard::Passed { op, .. } => self.passed(t, op),
            Heard::Role(_) | Heard::LeaseUntil(_) => {}
        }
    }

    /// Lets due timers act.
    pub(super) fn wake(&mut self, t: &mut Turn<'_>) {
        while let Some(timer) = self.timers.pop_due(t.mono()) {
            match timer {
                Timer::Begin => self.begin(t),
                Timer::Open => self.open_cell(t),
                Timer::CacheBound(slot) => self.cache_bound_passed(t, slot),
                Timer::Delay(place) => self.delay_passed(t, place),
                Timer::Stop(slot) => self.try_stop(t, slot),
                Timer::Link(link) => self.links.tidy(link, t.mono()),
                Timer::Rotate => self.rotate_keys(t),
                Timer::Reap => self.reap(t),
                Timer::LowerCeiling => self.lower_ceiling(t),
                Timer::LowerCacheLease => self.lower_cache_lease(t),
                Timer::Unstage => self.unstage(t),
                Timer::Decide => self.decide(t),
                Timer::Close => self.propose_closes(t),
                Timer::Gauges => self.measure(t),
            }
        }
        loop {
            let due = self.session_wheel.pop_due(t.mono());
            if due.is_empty() {
                break;
            }
            due.into_iter().for_each(|slot| self.check_session(t, slot));
        }
        loop {
            let due = self.op_wheel.pop_due(t.mono());
            if due.is_empty() {
                break;
            }
            due.into_iter().for_each(|op| self.time_out(t, op));
        }
    }

    /// Ends a turn: what was unblocked goes on, and sessions hear their news, everything of the turn in one batch.
    pub(super) fn finish(&mut self, t: &mut Turn<'_>) {
        while !self.released.is_empty() {
            for (asker, request) in std::mem::take(&mut self.released) {
                if self.ops.contains_key(&asker.op) {
                    self.serve(t, asker, request);
                }
            }
        }
        while let Some(slot) = self.dirty.pop() {
            self.settle(t, slot);
        }
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        [self.timers.deadline(), self.session_wheel.deadline(), self.op_wheel.deadline()].into_iter().flatten().min()
    }

    /// The reign is over: refuses everything that is open.
    pub(super) fn abandon(&mut self, t: &mut Turn<'_>, leader: Option<NodeId>) {
        for (op, waiting) in std::mem::take(&mut self.ops) {
            let proposed = match waiting {
                Waiting::Change(id) => self.changes.get(&id).is_some_and(Change::is_proposed),
                _ => false,
            };
            let error = if proposed { unknown_outcome() } else { error::not_master() };
            t.out.put(Output::Fail { op, error, leader });
        }
    }

    fn measure(&mut self, t: &mut Turn<'_>) {
        t.out.put(Output::Measured(Measure::Gauges {
            sessions: self.sessions.len(),
            handles: self.open_handles.len(),
            interest: self.interest.len(),
            waiters: self.locks.waiters(),
            undelivered: self.sessions.undelivered(),
        }));
        self.timers.set(Timer::Gauges, t.mono() + GAUGES);
    }

    /// For tests: what is not forgotten.
    #[cfg(test)]
    pub(super) fn left_behind(&self) -> String {
        let counts = [
            ("places", self.places.len()),
            ("sessions", self.sessions.len()),
            ("links", self.links.len()),
            ("interest", self.interest.len()),
            ("blocks", self.blocks.len()),
            ("handles", self.open_handles.len()),
            ("changes", self.changes.len()),
            ("numbered", self.numbered.len()),
            ("queues", self.locks.len()),
            ("closes", self.closing.len()),
            ("operations", self.ops.len()),
            ("held", self.held),
            ("queued", self.queued),
            ("reaping", self.reaping.len()),
        ];
        counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name} ")).collect()
    }

    pub(super) fn ask(&mut self, t: &mut Turn<'_>, ask: Ask) {
        t.out.put(Output::Ask(ask));
    }
}

/// Who calls within a session.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) slot: Slot,
    pub(super) caller: &'a v1::CellCaller,
    pub(super) call: &'a v1::CellCall,
}

/// A call that no client of ours makes.
pub(super) fn bad_call(why: &str) -> Error {
    Error::new("cell.bad_call", Class::Invalid, format!("the call makes no sense: {why}"))
        .hint("Send calls as crates/wire/proto describes them.")
}

/// The proposal went out and nothing more is known.
pub(super) fn unknown_outcome() -> Error {
    Error::new("cell.outcome_unknown", Class::OutcomeUnknown, "the change may or may not have been made")
        .hint("Send the same call again under the same number: it is answered as the first one was decided.")
}

/// Why the log did not take a proposal, as a client hears it.
pub(super) fn refusal_error(refusal: Refusal) -> (Error, Option<NodeId>) {
    match refusal {
        Refusal::NotLeader { leader } => (error::not_master(), leader),
        Refusal::Busy => (error::busy("the log has no room"), None),
        Refusal::TooLarge => (bad_call("it is larger than the log takes"), None),
        Refusal::Stopped => (error::busy("the replica is stopping"), None),
    }
}
