//! The local lease: how it is dated (R3), what follows its end, and who may say that the session is safe (R7).

use super::keepalive::Own;
use super::{CacheChange, Event, Output, Session, Timer, closed, expired};
use crate::mutant::Mutant;
use std::time::Duration;
use tidings_base::{Error, Mono, Outbox, time};

/// How long a close in order may take before the session is left to its lease.
const CLOSING: Duration = Duration::from_secs(5);

/// Where a session stands in its life.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Nothing was asked of it yet.
    New,
    /// A master is asked to create it.
    Starting,
    /// It exists, and will until then.
    Active {
        /// By the local clock.
        until: Mono,
    },
    /// The lease ran out here; a master may still know the session.
    Jeopardy,
    /// A master is asked to end it.
    Closing,
    /// It is gone.
    Expired {
        /// What every call is answered.
        why: Error,
    },
    /// It was closed in order.
    Closed,
}

impl Session {
    /// R3: the master's lease began when it replied, at the earliest `held` after the request was sent; the local clock may
    /// run slow by ρ all the while.
    pub(super) fn date(&self, sent: Mono, now: Mono, held_us: u64, lease_us: u64) -> Mono {
        let (held, lease) = (Duration::from_micros(held_us), Duration::from_micros(lease_us));
        match self.mutant(Mutant::LeaseFromArrival) {
            true => now + lease,
            false => sent + time::shortened(held.saturating_add(lease)),
        }
    }

    /// A reply proved that the session exists and gave it a lease until then.
    pub(super) fn extend(&mut self, now: Mono, until: Mono, out: &mut Outbox<Output>) {
        // Each reply is a promise of its own: one that arrives late takes nothing back.
        let until = self.lease_until().map_or(until, |known| known.max(until));
        if until <= now {
            return;
        }
        let was = std::mem::replace(&mut self.phase, Phase::Active { until });
        self.timers.set(Timer::Lease, until);
        self.update_until(now, out);
        if was == Phase::Jeopardy {
            self.timers.cancel(&Timer::Grace);
            self.timers.cancel(&Timer::Doubt);
            let (survived, lost) = (self.handles.holding(), self.handles.take_lost());
            out.put(Output::Tell(Event::Safe { survived, lost }));
            // What was under way when contact was lost is sent again: its number makes the repeat harmless (R8).
            self.calls.again();
        }
    }

    /// The local lease ran out: nothing cached may be served, calls wait, the application hears of it.
    pub(super) fn lease_ended(&mut self, now: Mono, out: &mut Outbox<Output>) {
        let Phase::Active { until } = self.phase else { return };
        self.phase = Phase::Jeopardy;
        self.cache_off(out);
        self.handles.take_lost();
        out.put(Output::Tell(Event::Jeopardy));
        self.timers.set(Timer::Grace, until + self.options.grace);
        self.doubt(now, out);
    }

    /// A master said that the session has ended: nobody can say the contrary any more (R7).
    pub(super) fn ended_by_master(&mut self, now: Mono, error: &Error, out: &mut Outbox<Output>) {
        if self.mutant(Mutant::Resurrection) && matches!(self.phase, Phase::Active { .. } | Phase::Jeopardy) {
            let until = now + self.contact.lease;
            self.phase = Phase::Active { until };
            self.timers.set(Timer::Lease, until);
            self.timers.cancel(&Timer::Grace);
            out.put(Output::Tell(Event::Safe { survived: self.handles.holding(), lost: Vec::new() }));
            self.pause_contact(now);
            return;
        }
        if self.phase == Phase::Closing {
            return self.end_closed(out);
        }
        self.expire(expired(&error.message), out);
    }

    /// The end: everything of the session is gone.
    pub(super) fn expire(&mut self, why: Error, out: &mut Outbox<Output>) {
        self.leave(&why, out);
        self.phase = Phase::Expired { why };
        out.put(Output::Tell(Event::Expired));
    }

    /// Asks a master to create the session.
    pub(super) fn begin(&mut self, now: Mono, out: &mut Outbox<Output>) {
        if self.phase != Phase::New {
            return;
        }
        self.phase = Phase::Starting;
        self.timers.set(Timer::GiveUp, now + self.options.grace);
        self.contact.next = Own::Create;
        self.send_contact(now, out);
    }

    /// Ends the session in order. What was not answered by now never will be.
    pub(super) fn close(&mut self, now: Mono, out: &mut Outbox<Output>) {
        match self.phase {
            // A session that a master may be creating at this moment has nothing: its lease will end it.
            Phase::New | Phase::Starting => self.end_closed(out),
            Phase::Active { .. } | Phase::Jeopardy => {
                // A resume that is under way comes first: the master would not know the session.
                let resuming = self.contact.next == Own::Resume;
                self.leave(&closed(), out);
                self.phase = Phase::Closing;
                self.timers.set(Timer::GiveUp, now + CLOSING);
                self.contact.next = if resuming { Own::Resume } else { Own::Close };
                self.send_contact(now, out);
            }
            Phase::Closing | Phase::Expired { .. } | Phase::Closed => {}
        }
    }

    /// Starting or closing took too long.
    pub(super) fn gave_up(&mut self, out: &mut Outbox<Output>) {
        match self.phase {
            Phase::Starting => {
                let why = self.contact.last_error.take();
                self.expire(why.unwrap_or_else(|| expired("no master answered")), out);
            }
            Phase::Closing => self.end_closed(out),
            _ => {}
        }
    }

    /// The session is over in order, or left to its lease.
    pub(super) fn end_closed(&mut self, out: &mut Outbox<Output>) {
        self.leave(&closed(), out);
        self.phase = Phase::Closed;
        out.put(Output::Tell(Event::Closed));
    }

    /// Lets go of everything: nothing cached, nothing under way, no timer.
    fn leave(&mut self, why: &Error, out: &mut Outbox<Output>) {
        self.cache_off(out);
        out.put(Output::Cache(CacheChange::Until(Mono(0))));
        self.contact.sent.clear();
        self.timers = Default::default();
        self.calls.fail_all(why, out);
    }
}
