//! Long waits: an acquire that waits moves to a later number, and the window of results with it (R8).

use super::{Asker, Caller, Flow, Locks, Reign, Slot, Turn};
use crate::SessionId;
use crate::error;
use crate::master::reign::bad_call;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

impl Locks {
    /// Gives a wait another number and keeps its place; who waited for its answer.
    fn renumber(&mut self, slot: Slot, first: u64, number: u64) -> Option<Asker> {
        let (place, ticket) = self.waiting.remove(&(slot, first))?;
        self.waiting.insert((slot, number), (place, ticket));
        let waiter = self.queues.get_mut(&place)?.get(ticket)?.as_mut()?;
        waiter.number = number;
        waiter.asker.take()
    }
}

impl Reign {
    /// A wait goes on under another number, so that the results of those in between need not be kept (R8). It is answered
    /// at once: until then the client counts the first number as unanswered.
    pub(super) fn renumber(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        acquire: v1::AcquireLock,
    ) -> Result<Flow, Error> {
        let (first, number) = (acquire.waits_as, by.call.number);
        if number <= first {
            return Err(bad_call("a wait goes on under a later number"));
        }
        let acquire = v1::AcquireLock { waits_as: 0, ..acquire };
        let is_decided = |reign: &Reign, number: u64| {
            reign.numbered.contains_key(&(by.slot, number))
                || t.state.result(SessionId(by.call.session), number).is_some()
        };
        // Its turn came under either number: that is the answer.
        if is_decided(self, number) {
            return self.acquire(t, asker, by, acquire);
        }
        if is_decided(self, first) {
            let call = v1::CellCall { number: first, ..*by.call };
            return self.acquire(t, asker, Caller { call: &call, ..by }, acquire);
        }
        let answered = self.sessions.get(by.slot).is_some_and(|session| number < session.answered_below);
        if answered || self.locks.cancelled.contains(&(by.slot, number)) {
            return Err(error::answered_already(number));
        }
        self.within_window(by.slot, number)?;
        let before = self.locks.renumber(by.slot, first, number);
        self.superseded(t, before);
        // A late copy of the first must not wait again.
        if self.sessions.get(by.slot).is_some_and(|session| first >= session.answered_below) {
            self.locks.cancelled.insert((by.slot, first));
        }
        let place = self.locks.waiting.get(&(by.slot, number)).copied();
        let before = place.map_or(0, |(place, ticket)| self.locks.before(place, ticket));
        self.reply(t, asker.op, Message::Waiting(v1::LockWaiting { before }));
        Ok(Flow::Taken)
    }
}
