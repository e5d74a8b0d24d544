//! Acquires that wait: how they leave the queue, and how a long wait does not hold other calls up (R8).

use super::{Attempt, Call, Calls, WINDOW};
use crate::session::{Output, Session, Timer};
use tidings_base::{Mono, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// An acquire that waits gets a later number when so many have been given out since its own, this many at a time: there is
/// room in the window then for the calls that come meanwhile.
pub(super) const RENUMBER: u64 = WINDOW / 2;
pub(super) const RENUMBERED: usize = 4;

impl Calls {
    /// The oldest acquire that waits at the master under a number which holds the window back.
    pub(super) fn pinning(&self) -> Option<u64> {
        let (number, id) = self.by_number.iter().find(|(number, id)| {
            self.calls.get(id).is_some_and(|call| call.number == **number && call.former.is_none())
        })?;
        let call = self.calls.get(id)?;
        let waits = matches!(&call.message, Message::Acquire(acquire) if !acquire.try_only);
        let sent = call.sends > 0 && call.attempt != Attempt::GivenUp;
        // Within the master's own window: after a long silence there may be no room any more.
        let room = self.last_number < self.answered_below() + WINDOW + 32;
        (waits && sent && room && self.last_number >= number + self.renumber_after).then_some(*id)
    }

    /// Gives an acquire that waits the next number. The former one counts as unanswered until the master confirms it.
    pub(super) fn renumber(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Message::Acquire(acquire) = &mut call.message else { return };
        self.last_number += 1;
        acquire.waits_as = call.number;
        call.former = Some(call.number);
        call.number = self.last_number;
        self.by_number.insert(call.number, id);
    }

    /// The master lets an acquire wait under its number, and under no other.
    pub(super) fn waits(&mut self, id: u64) -> bool {
        let Some(call) = self.calls.get_mut(&id) else { return false };
        if let Message::Acquire(acquire) = &mut call.message {
            acquire.waits_as = 0;
        }
        let former = call.former.take();
        former.is_some_and(|former| self.by_number.remove(&former).is_some())
    }

    /// Whether another cancel of the same acquire is under way.
    pub(super) fn is_ending(&self, id: u64) -> bool {
        self.calls.values().any(|call| call.ends == Some(id))
    }
}

impl Session {
    /// Lets waits move on to later numbers after fewer calls than usual, so that short tests see it.
    pub fn renumber_after(&mut self, calls: u64) {
        self.calls.renumber_after = calls;
    }

    /// Results of every number after an acquire's own are kept while it waits. Should they fill the window before it has a
    /// later number, it is cancelled and made anew, at the end of the queue, rather than stop every other call.
    pub(super) fn requeue_oldest(&mut self, now: Mono, out: &mut Outbox<Output>) {
        let Some(id) = self.calls.by_number.first_key_value().map(|(_, id)| *id) else { return };
        let Some(call) = self.calls.calls.get_mut(&id) else { return };
        if !matches!(call.message, Message::Acquire(_)) || call.sends == 0 || call.former.is_some() {
            return;
        }
        let (Some(op), anew) = (call.op.take(), call.message.clone()) else { return };
        let cancel = self.give_up(now, id, out);
        self.calls.by_op.insert(op, cancel);
        if let Some(call) = self.calls.calls.get_mut(&cancel) {
            (call.op, call.anew) = (Some(op), Some(anew));
        }
    }

    /// Leaves the queue of an acquire that was sent; the cancel's id.
    pub(super) fn give_up(&mut self, now: Mono, id: u64, out: &mut Outbox<Output>) -> u64 {
        self.calls.turn(id, Attempt::GivenUp);
        self.timers.cancel(&Timer::Call(id));
        let (handle, number, former) = match self.calls.calls.get(&id) {
            Some(Call { message: Message::Acquire(acquire), number, former, .. }) => (acquire.handle, *number, *former),
            _ => (0, 0, None),
        };
        // Nobody knows under which of two numbers it waits.
        if let Some(former) = former {
            self.send_cancel(now, id, v1::CancelAcquire { handle, number: former }, out);
        }
        self.send_cancel(now, id, v1::CancelAcquire { handle, number }, out)
    }

    fn send_cancel(&mut self, now: Mono, id: u64, cancel: v1::CancelAcquire, out: &mut Outbox<Output>) -> u64 {
        let message = Message::CancelAcquire(cancel);
        let touch = self.touched(&message);
        if let Some(touch) = &touch {
            self.block(touch, out);
        }
        let cancel = self.calls.add(None, message, true, touch);
        if let Some(call) = self.calls.calls.get_mut(&cancel) {
            call.ends = Some(id);
        }
        if self.may_send() {
            self.send_call(now, cancel, out);
        }
        cancel
    }
}
