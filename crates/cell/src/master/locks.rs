//! Locks: queues first come, first served; grants right behind releases; delays after losses (seed §2.4).
//!
//! The log decides who holds a lock; the queue, in memory, decides for whom the next grant is proposed. A grant is
//! checked again at apply, so a queue that is wrong costs a round and never a lock.

mod repeats;
mod waits;

use super::delays::sign;
use super::handles::{Handle, watched};
use super::mutations::{Purpose, Repeat, Work, cancelled};
use super::places::PlaceId;
use super::reign::{Asker, Caller, Flow, Reign, Turn, Waiting, bad_call};
use super::sessions::{Session, Slot, Standing};
use crate::error;
use crate::mutant::Mutant;
use crate::namespace::{LockState, Right};
use crate::path::Place;
use crate::{HandleNumber, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidings_base::{Error, OpId};
use tidings_wire::v1;
use tidings_wire::v1::CellEventKind as Kind;
use tidings_wire::v1::LockMode;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::cell_result::Result as Outcome;

/// So many acquires may wait in one queue, and in all of them. Of one session, as many as it has numbers in the window (R8).
const MAX_WAITERS: usize = 65_536;
const MAX_QUEUED: usize = 4 * MAX_WAITERS;

/// An acquire that waits, or whose grant is under way.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    slot: Slot,
    session: SessionId,
    handle: HandleNumber,
    number: u64,
    mode: LockMode,
    instance: u64,
    delay_ms: u32,
    /// It does not wait.
    try_only: bool,
    asker: Option<Asker>,
}

/// The queue of one lock, and what is under way for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// From the first ticket on; who left has left a gap.
    waiters: VecDeque<Option<Waiter>>,
    first: u64,
    /// Grants under way.
    taking: Vec<(SessionId, HandleNumber, LockMode)>,
    /// Releases in the log, not yet applied.
    freeing: Vec<(SessionId, HandleNumber)>,
    /// The delay that is being waited for, by its number.
    pub(super) delay: Option<u64>,
}

impl Queue {
    fn head(&mut self) -> Option<&Waiter> {
        while let Some(None) = self.waiters.front() {
            self.waiters.pop_front();
            self.first += 1;
        }
        self.waiters.front()?.as_ref()
    }

    fn pop(&mut self, last: bool) -> Option<Waiter> {
        self.head()?;
        let waiter = if last { self.waiters.pop_back() } else { self.waiters.pop_front() };
        self.first += u64::from(!last);
        waiter.flatten()
    }

    fn get(&mut self, ticket: u64) -> Option<&mut Option<Waiter>> {
        self.waiters.get_mut(usize::try_from(ticket.checked_sub(self.first)?).ok()?)
    }

    fn is_idle(&self) -> bool {
        self.waiters.iter().all(Option::is_none)
            && self.taking.is_empty()
            && self.freeing.is_empty()
            && self.delay.is_none()
    }

    /// Whether a grant would be taken once everything in the log is applied.
    fn admits(&self, lock: &LockState, mode: LockMode) -> bool {
        let held = lock.holders.keys().any(|holder| !self.freeing.contains(holder));
        let held_back = lock.delay.is_some_and(|delay| !delay.exclusive_only || mode == LockMode::Exclusive);
        let shares = |other: LockMode| mode == LockMode::Shared && other == LockMode::Shared;
        !held_back && (!held || shares(lock.mode)) && self.taking.iter().all(|taking| shares(taking.2))
    }
}

/// All queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    pub(super) queues: BTreeMap<PlaceId, Queue>,
    /// Who waits where, by session and number of the acquire.
    waiting: BTreeMap<(Slot, u64), (PlaceId, u64)>,
    /// Acquires that were cancelled: a late copy of one must not wait again.
    cancelled: BTreeSet<(Slot, u64)>,
    /// R8: acquires that were refused because the lock was held, without a result in the window: a late copy of one
    /// must not be granted.
    refused: BTreeSet<(Slot, u64)>,
}

impl Locks {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queues.len() + self.waiting.len() + self.cancelled.len() + self.refused.len()
    }

    pub(super) fn waiters(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiters_of(&self, place: PlaceId) -> u32 {
        self.queues.get(&place).map_or(0, |queue| queue.waiters.iter().flatten().count() as u32)
    }

    /// How many are before this one, at most: some of them may have left.
    pub(super) fn before(&self, place: PlaceId, ticket: u64) -> u32 {
        let ahead = self.queues.get(&place).map_or(0, |queue| ticket.saturating_sub(queue.first));
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// Nobody waits for the answer now; the place is kept.
    pub(super) fn detach(&mut self, place: PlaceId, ticket: u64, op: OpId) {
        let waiter = self.queues.get_mut(&place).and_then(|queue| queue.get(ticket)?.as_mut());
        if let Some(waiter) = waiter {
            waiter.asker.take_if(|asker| asker.op == op);
        }
    }

    /// A release is in the log.
    pub(super) fn freeing(&mut self, place: PlaceId, session: SessionId, handle: HandleNumber) {
        self.queues.entry(place).or_default().freeing.push((session, handle));
    }

    /// The client has the answers of numbers below this: late copies of those are known by that.
    pub(super) fn forget_answered(&mut self, slot: Slot, below: u64) {
        for known in [&mut self.cancelled, &mut self.refused] {
            while let Some(number) = known.range((slot, 0)..(slot, below)).next().copied() {
                known.remove(&number);
            }
        }
    }

    fn take_out(&mut self, slot: Slot, number: u64) -> Option<(PlaceId, Waiter)> {
        let (place, ticket) = self.waiting.remove(&(slot, number))?;
        let waiter = self.queues.get_mut(&place)?.get(ticket)?.take()?;
        Some((place, waiter))
    }
}

impl Reign {
    pub(super) fn acquire(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        acquire: v1::AcquireLock,
    ) -> Result<Flow, Error> {
        let mode = acquire.mode();
        if mode == LockMode::Unspecified {
            return Err(bad_call("a lock is acquired shared or exclusive"));
        }
        if acquire.waits_as != 0 {
            return self.renumber(t, asker, by, acquire);
        }
        match self.repeated(t, asker, by)? {
            Repeat::No => {}
            Repeat::Attached(before) => {
                self.superseded(t, before);
                return Ok(Flow::Taken);
            }
            Repeat::Answered(Outcome::Error(error)) => return Err(error.into()),
            Repeat::Answered(Outcome::Applied(applied)) => {
                return self.granted_before(t, asker, by, &acquire, applied.generation);
            }
            Repeat::Answered(_) => return Err(super::reign::unknown_outcome()),
        }
        if self.asks_again(t, asker, by) {
            return Ok(Flow::Taken);
        }
        let handle = self.handle(by.slot, acquire.handle)?.clone();
        let place = self.places.get(handle.place).clone();
        if self.locks.refused.contains(&(by.slot, by.call.number)) {
            return Err(error::lock_held(&place.path, false));
        }
        self.may_acquire(t, by, &handle, &place)?;
        self.places.hold_again(handle.place);
        let queue = self.locks.queues.entry(handle.place).or_default();
        let admitted = t.state.lock(&place).is_some_and(|lock| queue.admits(lock, mode)) && queue.head().is_none();
        let full = queue.waiters.len() >= MAX_WAITERS || self.locks.waiting.len() >= MAX_QUEUED;
        if (acquire.try_only && !admitted) || full {
            self.tidy(handle.place);
            self.places.release(handle.place);
            let delayed = t.state.lock(&place).is_some_and(|lock| lock.delay.is_some());
            // Without freshness this is no answer yet: it is asked again behind a barrier.
            if acquire.try_only && t.fresh.is_some() {
                self.locks.refused.insert((by.slot, by.call.number));
            }
            return Err(if acquire.try_only {
                error::lock_held(&place.path, delayed)
            } else {
                error::busy("the lock's queue is full")
            });
        }
        let waiter = Waiter {
            slot: by.slot,
            session: SessionId(by.call.session),
            handle: handle.number,
            number: by.call.number,
            mode,
            instance: handle.instance,
            delay_ms: handle.delay_ms,
            try_only: acquire.try_only,
            asker: Some(asker),
        };
        let ticket = queue.first + queue.waiters.len() as u64;
        queue.waiters.push_back(Some(waiter));
        self.locks.waiting.insert((by.slot, by.call.number), (handle.place, ticket));
        self.keep_open(t, asker, Waiting::Lock(handle.place, ticket));
        self.pump(t, handle.place);
        self.places.release(handle.place);
        if !admitted {
            self.tell_holders(t, &place, Kind::ConflictingRequest, None);
        }
        Ok(Flow::Taken)
    }

    /// An acquire that waits already takes its own place again.
    fn asks_again(&mut self, t: &mut Turn<'_>, asker: Asker, by: Caller<'_>) -> bool {
        let Some((place, ticket)) = self.locks.waiting.get(&(by.slot, by.call.number)).copied() else { return false };
        let waiter = self.locks.queues.get_mut(&place).and_then(|queue| queue.get(ticket)?.as_mut());
        let before = waiter.and_then(|waiter| waiter.asker.replace(asker));
        self.keep_open(t, asker, Waiting::Lock(place, ticket));
        self.superseded(t, before);
        true
    }

    fn may_acquire(&self, t: &Turn<'_>, by: Caller<'_>, handle: &Handle, place: &Place) -> Result<(), Error> {
        if self.locks.cancelled.contains(&(by.slot, by.call.number)) {
            return Err(error::answered_already(by.call.number));
        }
        if !handle.rights.lock {
            return Err(error::denied("to lock through a handle that was not opened for locking"));
        }
        if t.state.instance(place) != Some(handle.instance) {
            return Err(error::node_gone(&place.path));
        }
        // Whoever could lock with the right to read alone could keep writers out (seed §2.4).
        t.state.may(by.caller, place, Right::Write)?;
        let holder = (SessionId(by.call.session), handle.number);
        let queue = self.locks.queues.get(&handle.place);
        let freeing = queue.is_some_and(|queue| queue.freeing.contains(&holder));
        let taking = queue.is_some_and(|queue| queue.taking.iter().any(|taking| (taking.0, taking.1) == holder));
        let holds = t.state.lock(place).is_some_and(|lock| lock.holders.contains_key(&holder));
        if taking || (holds && !freeing) {
            return Err(error::already_held(&place.path));
        }
        Ok(())
    }

    /// Proposes grants for the head of a queue, as long as the lock would take them.
    pub(super) fn pump(&mut self, t: &mut Turn<'_>, id: PlaceId) {
        let jumping = self.mutant(Mutant::QueueJumping);
        loop {
            let Some(queue) = self.locks.queues.get_mut(&id) else { return };
            let place = self.places.get(id).clone();
            let Some(mut mode) = queue.head().map(|waiter| waiter.mode) else { break };
            if jumping && let Some(Some(last)) = queue.waiters.back() {
                mode = last.mode;
            }
            if !t.state.lock(&place).is_some_and(|lock| queue.admits(lock, mode)) {
                break;
            }
            let Some(waiter) = queue.pop(jumping) else { break };
            self.locks.waiting.remove(&(waiter.slot, waiter.number));
            self.take(t, id, &place, waiter);
        }
        self.tidy(id);
    }

    /// Proposes a grant, unless its client has lost interest.
    fn take(&mut self, t: &mut Turn<'_>, id: PlaceId, place: &Place, waiter: Waiter) {
        let session = self.sessions.get(waiter.slot).filter(|session| session.id == waiter.session);
        let wanted =
            |session: &&Session| session.standing == Standing::Present && waiter.number >= session.answered_below;
        let Some(session) = session.filter(wanted) else {
            return self.fail_asker(t, waiter.asker, cancelled());
        };
        let call = v1::CellCall {
            session: session.id.0,
            number: waiter.number,
            answered_below: session.answered_below,
            ..Default::default()
        };
        let command = Command::TakeLock(v1::TakeLock {
            app: place.app.to_string(),
            path: place.path.as_str().to_owned(),
            instance: waiter.instance,
            handle: waiter.handle.0,
            mode: waiter.mode as i32,
            lock_delay_ms: waiter.delay_ms,
        });
        self.places.hold_again(id);
        if let Some(queue) = self.locks.queues.get_mut(&id) {
            queue.taking.push((waiter.session, waiter.handle, waiter.mode));
        }
        let asker = waiter.asker;
        let work = Work::of(waiter.slot, &call, command, Purpose::Take { place: id, waiter });
        self.start(
            t,
            match asker {
                Some(asker) => work.asked(asker),
                None => work,
            },
        );
    }

    /// A grant was decided.
    pub(super) fn take_decided(
        &mut self,
        t: &mut Turn<'_>,
        asker: Option<Asker>,
        id: PlaceId,
        waiter: Waiter,
        outcome: Result<Outcome, Error>,
    ) {
        let place = self.places.get(id).clone();
        if let Some(queue) = self.locks.queues.get_mut(&id) {
            queue.taking.retain(|taking| (taking.0, taking.1) != (waiter.session, waiter.handle));
        }
        match outcome {
            Ok(Outcome::Applied(applied)) => {
                let handle = self.sessions.get(waiter.slot).filter(|session| session.id == waiter.session);
                let handle = handle.and_then(|session| session.handle(waiter.handle)).cloned();
                match (asker, handle) {
                    (Some(asker), Some(handle)) => {
                        self.answer_acquired(t, waiter.slot, asker, &handle, waiter.mode, applied.generation);
                    }
                    (asker, _) => self.fail_asker(t, asker, error::bad_handle("it was closed meanwhile")),
                }
                self.tell_watchers(t, &place, watched::LOCK, Kind::LockAcquired, None);
                if self.locks.queues.get_mut(&id).is_some_and(|queue| queue.head().is_some()) {
                    self.tell_holders(t, &place, Kind::ConflictingRequest, None);
                }
            }
            Ok(_) => self.fail_asker(t, asker, super::reign::unknown_outcome()),
            // The lock was not free after all: the place at the head is kept.
            Err(error) if error.code == "cell.lock_held" && self.may_wait(&waiter) => {
                self.requeue(t, id, Waiter { asker, ..waiter });
            }
            Err(error) => {
                let session = self.sessions.get(waiter.slot).filter(|session| session.id == waiter.session);
                let awaited = session.is_some_and(|session| waiter.number >= session.answered_below);
                if error.code == "cell.lock_held" && waiter.try_only && awaited {
                    self.locks.refused.insert((waiter.slot, waiter.number));
                }
                self.fail_asker(t, asker, error);
            }
        }
        self.pump(t, id);
        self.places.release(id);
    }

    fn may_wait(&self, waiter: &Waiter) -> bool {
        let session = self.sessions.get(waiter.slot).filter(|session| session.id == waiter.session);
        let waits =
            |session: &Session| session.standing == Standing::Present && session.handle(waiter.handle).is_some();
        !waiter.try_only && session.is_some_and(waits)
    }

    fn requeue(&mut self, t: &mut Turn<'_>, id: PlaceId, waiter: Waiter) {
        let queue = self.locks.queues.entry(id).or_default();
        // The first ticket is free: it was this waiter's, or one after it.
        queue.first = queue.first.saturating_sub(1);
        let ticket = queue.first;
        let (key, asker) = ((waiter.slot, waiter.number), waiter.asker);
        queue.waiters.push_front(Some(waiter));
        self.locks.waiting.insert(key, (id, ticket));
        if let Some(asker) = asker {
            self.keep_open(t, asker, Waiting::Lock(id, ticket));
        }
    }

    fn answer_acquired(
        &mut self,
        t: &mut Turn<'_>,
        slot: Slot,
        asker: Asker,
        handle: &Handle,
        mode: LockMode,
        generation: u64,
    ) {
        let place = self.places.get(handle.place).clone();
        match sign(t, &place, handle.instance, mode, generation) {
            Ok(sequencer) => {
                let stamp = self.raised_stamp(slot);
                self.reply(t, asker.op, Message::Acquired(v1::LockAcquired { generation, sequencer, stamp }));
            }
            Err(error) => self.fail(t, asker.op, error),
        }
    }

    pub(super) fn release_lock(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        number: u64,
    ) -> Result<Flow, Error> {
        self.change(t, asker, by, |reign, _| {
            let handle = reign.handle(by.slot, number)?.clone();
            reign.places.hold_again(handle.place);
            Ok((
                free(reign.places.get(handle.place), &handle),
                Purpose::Free { place: handle.place, handle: handle.number },
            ))
        })
    }

    /// A release was decided: the queue goes on.
    pub(super) fn free_decided(
        &mut self,
        t: &mut Turn<'_>,
        session: Option<(Slot, SessionId, u64)>,
        id: PlaceId,
        handle: HandleNumber,
    ) {
        if let (Some(queue), Some((_, session, _))) = (self.locks.queues.get_mut(&id), session)
            && let Some(at) = queue.freeing.iter().position(|freeing| *freeing == (session, handle))
        {
            queue.freeing.swap_remove(at);
        }
        self.pump(t, id);
        self.places.release(id);
    }

    /// Leaves the queue, or releases what was granted meanwhile.
    pub(super) fn cancel_acquire(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        cancel: v1::CancelAcquire,
    ) -> Result<Flow, Error> {
        let handle = self.handle(by.slot, cancel.handle)?.clone();
        self.within_window(by.slot, cancel.number)?;
        if self.sessions.get(by.slot).is_some_and(|session| cancel.number >= session.answered_below) {
            self.locks.cancelled.insert((by.slot, cancel.number));
        }
        if self.drop_waiter(t, by.slot, cancel.number, cancelled()) {
            self.reply(t, asker.op, Message::Done(v1::CellDone::default()));
            return Ok(Flow::Taken);
        }
        let taking = self.numbered.get(&(by.slot, cancel.number)).copied();
        let taking = taking.filter(|id| self.takes_for(*id, handle.number));
        if taking.is_some_and(|id| self.abort_take(t, id)) {
            self.reply(t, asker.op, Message::Done(v1::CellDone::default()));
            return Ok(Flow::Taken);
        }
        // Only what the cancelled acquire was granted is released: the handle may hold the lock by another one.
        let granted = t.state.result(SessionId(by.call.session), cancel.number);
        let granted = matches!(granted, Some(v1::CellResult { result: Some(Outcome::Applied(_)) }));
        let place = self.places.get(handle.place).clone();
        let holder = (SessionId(by.call.session), handle.number);
        let holds = granted && t.state.lock(&place).is_some_and(|lock| lock.holders.contains_key(&holder));
        if taking.is_none() && !holds {
            if t.fresh.is_none() {
                return Ok(Flow::Fresh);
            }
            self.reply(t, asker.op, Message::Done(v1::CellDone::default()));
            return Ok(Flow::Taken);
        }
        self.change(t, asker, by, |reign, _| {
            reign.places.hold_again(handle.place);
            Ok((free(&place, &handle), Purpose::Free { place: handle.place, handle: handle.number }))
        })
    }

    /// Takes an acquire out of its queue; whether it waited.
    fn drop_waiter(&mut self, t: &mut Turn<'_>, slot: Slot, number: u64, why: Error) -> bool {
        let Some((id, waiter)) = self.locks.take_out(slot, number) else { return false };
        self.fail_asker(t, waiter.asker, why);
        // Whoever is behind it may go on: a shared request behind an exclusive one.
        self.pump(t, id);
        true
    }

    /// A session ends: it waits for nothing any more.
    pub(super) fn leave_queues(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let session = self.sessions.get(slot).map_or(0, |session| session.id.0);
        self.drop_waiters(t, slot, u64::MAX, &error::expired(session));
    }

    /// Nobody waits for the answers of numbers below this: neither do their acquires.
    pub(super) fn leave_queues_below(&mut self, t: &mut Turn<'_>, slot: Slot, below: u64) {
        self.drop_waiters(t, slot, below, &cancelled());
    }

    fn drop_waiters(&mut self, t: &mut Turn<'_>, slot: Slot, below: u64, why: &Error) {
        let numbers: Vec<u64> = self.locks.waiting.range((slot, 0)..(slot, below)).map(|(key, _)| key.1).collect();
        for number in numbers {
            self.drop_waiter(t, slot, number, why.clone());
        }
    }

    /// A handle is closed: what waits through it waits no more. Whether a grant to it is under way.
    pub(super) fn leave_queue_of(&mut self, t: &mut Turn<'_>, slot: Slot, handle: HandleNumber) -> bool {
        let waits: Vec<(u64, PlaceId, u64)> = (self.locks.waiting.range((slot, 0)..=(slot, u64::MAX)))
            .map(|(key, (place, ticket))| (key.1, *place, *ticket))
            .collect();
        for (number, place, ticket) in waits {
            let waiter = self.locks.queues.get_mut(&place).and_then(|queue| queue.get(ticket)?.as_ref());
            if waiter.is_some_and(|waiter| waiter.handle == handle) {
                self.drop_waiter(t, slot, number, cancelled());
            }
        }
        // A grant that is in the log is followed by the close; one that is not must not come behind it.
        let under_way: Vec<OpId> = self.numbered.range((slot, 0)..=(slot, u64::MAX)).map(|entry| *entry.1).collect();
        let takes: Vec<OpId> = under_way.into_iter().filter(|id| self.takes_for(*id, handle)).collect();
        takes.into_iter().filter(|id| !self.abort_take(t, *id)).count() > 0
    }

    fn takes_for(&self, id: OpId, handle: HandleNumber) -> bool {
        let purpose = self.changes.get(&id).map(|change| &change.purpose);
        matches!(purpose, Some(Purpose::Take { waiter, .. }) if waiter.handle == handle)
    }

    /// Takes a grant back that is not proposed yet; whether that was so.
    fn abort_take(&mut self, t: &mut Turn<'_>, id: OpId) -> bool {
        let takes = self.changes.get(&id).is_some_and(|change| matches!(change.purpose, Purpose::Take { .. }));
        if takes && let Some(Purpose::Take { place, waiter }) = self.abort(t, id) {
            self.take_decided(t, None, place, waiter, Err(cancelled()));
            return true;
        }
        false
    }

    /// The node is gone: nobody can have its lock any more.
    pub(super) fn fail_gone_waiters(&mut self, t: &mut Turn<'_>, id: PlaceId) {
        let place = self.places.get(id).clone();
        let present = t.state.instance(&place);
        let Some(queue) = self.locks.queues.get_mut(&id) else { return };
        let gone: Vec<(Slot, u64)> = (queue.waiters.iter().flatten())
            .filter(|waiter| Some(waiter.instance) != present)
            .map(|waiter| (waiter.slot, waiter.number))
            .collect();
        for (slot, number) in gone {
            if let Some((_, waiter)) = self.locks.take_out(slot, number) {
                self.fail_asker(t, waiter.asker, error::node_gone(&place.path));
            }
        }
        if present.is_none() {
            self.places.hold_again(id);
            self.forget_delay(id);
            self.tidy(id);
            return self.places.release(id);
        }
        self.tidy(id);
    }

    /// A queue without anything is forgotten.
    fn tidy(&mut self, id: PlaceId) {
        if self.locks.queues.get(&id).is_some_and(Queue::is_idle) {
            self.locks.queues.remove(&id);
        }
    }
}

fn free(place: &Place, handle: &Handle) -> Command {
    Command::FreeLock(v1::FreeLock {
        app: place.app.to_string(),
        path: place.path.as_str().to_owned(),
        instance: handle.instance,
        handle: handle.number.0,
    })
}
