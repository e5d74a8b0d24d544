//! Batches: what a session has to hear, sent again until it is acknowledged (R4).
//!
//! Per session there is what waits to be sent, coalesced, and at most one batch that was sent and is not acknowledged.
//! A session *owes* while an invalidation waits or a batch is unacknowledged: its leases are not extended meanwhile,
//! so whoever waits for it waits no longer than for its cache lease.

use super::events::Events;
use super::places::Key;
use super::reign::{Reign, Timer, Turn};
use super::sessions::{Slot, Standing};
use crate::mutant::Mutant;
use std::collections::BTreeSet;
use tidings_base::OpId;
use tidings_wire::v1;

/// More invalidations than this in one batch, and everything is flushed instead.
const MAX_INVALIDATIONS: usize = 512;

/// What a session has to hear.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    keys: BTreeSet<Key>,
    flush: bool,
    events: Events,
    /// Changes that wait for what is not sent yet.
    waits: Vec<OpId>,
    flight: Option<Flight>,
}

/// A batch that is not acknowledged.
#[derive(Clone, Debug)]
struct Flight {
    batch: v1::CellBatch,
    keys: BTreeSet<Key>,
    waits: Vec<OpId>,
}

impl Outgoing {
    pub(super) fn is_in_flight(&self) -> bool {
        self.flight.is_some()
    }

    pub(super) fn has_news(&self) -> bool {
        self.flush || !self.keys.is_empty() || !self.events.is_empty()
    }

    fn owes(&self) -> bool {
        self.flush || !self.keys.is_empty() || self.flight.is_some()
    }

    pub(super) fn batch(&self) -> Option<&v1::CellBatch> {
        self.flight.as_ref().map(|flight| &flight.batch)
    }

    /// Whether an invalidation of this key is on its way: until it is acknowledged nothing new of it may be cached,
    /// or the acknowledgement would be taken for the new copy, too.
    pub(super) fn covers(&self, key: Key) -> bool {
        let in_flight = |flight: &Flight| flight.batch.flush || flight.keys.contains(&key);
        self.flush || self.keys.contains(&key) || self.flight.as_ref().is_some_and(in_flight)
    }

    pub(super) fn len(&self) -> usize {
        let in_flight = |flight: &Flight| flight.batch.invalidations.len() + flight.batch.events.len();
        self.keys.len() + usize::from(self.flush) + self.events.len() + self.flight.as_ref().map_or(0, in_flight)
    }

    pub(super) fn events(&mut self) -> &mut Events {
        &mut self.events
    }
}

impl Reign {
    /// Has a session's copy of a key invalidated; whether the change has to wait for it.
    pub(super) fn invalidate(&mut self, t: &mut Turn<'_>, slot: Slot, key: Key, change: OpId) -> bool {
        let Some(session) = self.sessions.get_mut(slot) else { return false };
        let outgoing = session.outgoing.get_or_insert_default();
        if !outgoing.covers(key) {
            outgoing.keys.insert(key);
            self.places.hold_again(key.place());
            if outgoing.keys.len() > MAX_INVALIDATIONS {
                outgoing.flush = true;
                for key in std::mem::take(&mut outgoing.keys) {
                    self.places.release(key.place());
                }
            }
        }
        let queued = outgoing.flush || outgoing.keys.contains(&key);
        self.update_owing(slot);
        if self.cache_bound(slot) <= t.mono() {
            self.drop_interest(slot, key);
        }
        self.wait_for(t, slot, queued, change)
    }

    /// Has everything that a session cached invalidated; whether the change has to wait for it.
    pub(super) fn invalidate_all(&mut self, t: &mut Turn<'_>, slot: Slot, change: OpId) -> bool {
        let queued = self.queue_flush(slot);
        if self.cache_bound(slot) <= t.mono() {
            self.drop_all_interest(slot);
        }
        self.wait_for(t, slot, queued, change)
    }

    /// Has a session flush everything; whether that is not under way already.
    pub(super) fn queue_flush(&mut self, slot: Slot) -> bool {
        let Some(session) = self.sessions.get_mut(slot) else { return false };
        let outgoing = session.outgoing.get_or_insert_default();
        let flushing = outgoing.flight.as_ref().is_some_and(|flight| flight.batch.flush);
        if !flushing {
            outgoing.flush = true;
            for key in std::mem::take(&mut outgoing.keys) {
                self.places.release(key.place());
            }
        }
        self.update_owing(slot);
        !flushing
    }

    /// Lets a change wait for a session's acknowledgement, or its cache bound, whichever comes first; whether it has to.
    fn wait_for(&mut self, t: &mut Turn<'_>, slot: Slot, queued: bool, change: OpId) -> bool {
        self.dirty.push(slot);
        let bound = self.cache_bound(slot);
        if bound <= t.mono() || self.mutant(Mutant::NoInvalidationWait) {
            return false;
        }
        let Some(outgoing) = self.sessions.get_mut(slot).and_then(|session| session.outgoing.as_mut()) else {
            return false;
        };
        let waits = match &mut outgoing.flight {
            Some(flight) if !queued => &mut flight.waits,
            _ => &mut outgoing.waits,
        };
        if waits.last() == Some(&change) {
            return false;
        }
        waits.push(change);
        self.timers.set(Timer::CacheBound(slot), bound);
        true
    }

    /// Lets a change wait until a session can use nothing that it cached; whether it has to.
    pub(super) fn outwait(&mut self, t: &mut Turn<'_>, slot: Slot, change: OpId) -> bool {
        let bound = self.cache_bound(slot);
        let Some(session) = self.sessions.get_mut(slot) else { return false };
        if bound <= t.mono() || self.options.mutant == Some(Mutant::NoInvalidationWait) {
            return false;
        }
        session.outgoing.get_or_insert_default().waits.push(change);
        self.timers.set(Timer::CacheBound(slot), bound);
        true
    }

    /// From the moment a session owes, its link's renewals do not count for it.
    fn update_owing(&mut self, slot: Slot) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        let ending = matches!(session.standing, Standing::Ending(_));
        let owes = ending || session.outgoing.as_ref().is_some_and(|outgoing| outgoing.owes());
        let Some(link) = session.link.and_then(|link| self.links.get_mut(link)) else { return };
        if owes && link.owing.insert(slot) {
            session.cache_end = session.cache_end.max(link.end);
        } else if !owes {
            link.owing.remove(&slot);
        }
    }

    /// Makes a batch of all that a session has to hear.
    pub(super) fn form_batch(&mut self, slot: Slot) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        let Some(outgoing) = &mut session.outgoing else { return };
        session.seq += 1;
        let keys = std::mem::take(&mut outgoing.keys);
        let invalidations = keys.iter().map(|key| v1::Invalidation {
            path: self.places.get(key.place()).path.as_str().to_owned(),
            listing: key.is_listing(),
        });
        let batch = v1::CellBatch {
            seq: session.seq,
            invalidations: invalidations.collect(),
            flush: std::mem::take(&mut outgoing.flush),
            events: outgoing.events.take(),
        };
        outgoing.flight = Some(Flight { batch, keys, waits: std::mem::take(&mut outgoing.waits) });
        self.update_owing(slot);
    }

    /// R4: an acknowledgement is explicit, names the epoch, and covers everything up to its number. A KeepAlive as such
    /// acknowledges nothing.
    pub(super) fn acknowledged(&mut self, t: &mut Turn<'_>, slot: Slot, ack: Option<&v1::CellAck>) {
        let implicit = self.mutant(Mutant::ImplicitAck);
        let epoch = self.epoch;
        let Some(outgoing) = self.sessions.get_mut(slot).and_then(|session| session.outgoing.as_mut()) else {
            return;
        };
        let covered =
            |flight: &mut Flight| implicit || ack.is_some_and(|ack| ack.epoch == epoch && ack.seq >= flight.batch.seq);
        let Some(flight) = outgoing.flight.take_if(covered) else { return };
        if flight.batch.flush {
            self.drop_all_interest(slot);
        }
        for key in flight.keys {
            self.drop_interest(slot, key);
            self.places.release(key.place());
        }
        self.update_owing(slot);
        self.drop_if_empty(slot);
        flight.waits.into_iter().for_each(|change| self.one_less_wait(t, change));
    }

    fn drop_if_empty(&mut self, slot: Slot) {
        let Some(session) = self.sessions.get_mut(slot) else { return };
        let empty =
            |outgoing: &mut Box<Outgoing>| !outgoing.owes() && !outgoing.has_news() && outgoing.waits.is_empty();
        if session.outgoing.take_if(empty).is_some() {
            self.timers.cancel(&Timer::CacheBound(slot));
        }
    }

    /// A session that owes can use no copy any more: nobody waits for it longer, now or later. What it has to hear
    /// stays, and until it has acknowledged that, it may cache nothing of it.
    pub(super) fn cache_bound_passed(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let bound = self.cache_bound(slot);
        if bound > t.mono() {
            return self.timers.set(Timer::CacheBound(slot), bound);
        }
        if let Some(outgoing) = self.sessions.get(slot).and_then(|session| session.outgoing.as_ref()) {
            let flight = outgoing.flight.as_ref();
            if outgoing.flush || flight.is_some_and(|flight| flight.batch.flush) {
                self.drop_all_interest(slot);
            } else {
                let in_flight = flight.into_iter().flat_map(|flight| flight.keys.iter());
                let keys: Vec<Key> = outgoing.keys.iter().chain(in_flight).copied().collect();
                keys.into_iter().for_each(|key| self.drop_interest(slot, key));
            }
        }
        self.release_waits(t, slot);
    }

    /// Nobody waits for this session any more.
    pub(super) fn release_waits(&mut self, t: &mut Turn<'_>, slot: Slot) {
        let Some(outgoing) = self.sessions.get_mut(slot).and_then(|session| session.outgoing.as_mut()) else {
            return;
        };
        let mut waits = std::mem::take(&mut outgoing.waits);
        if let Some(flight) = &mut outgoing.flight {
            waits.append(&mut flight.waits);
        }
        waits.into_iter().for_each(|change| self.one_less_wait(t, change));
    }

    /// Forgets what a session has to hear.
    pub(super) fn drop_outgoing(&mut self, slot: Slot) {
        let Some(outgoing) = self.sessions.get_mut(slot).and_then(|session| session.outgoing.take()) else { return };
        let in_flight = outgoing.flight.map(|flight| flight.keys).unwrap_or_default();
        outgoing.keys.into_iter().chain(in_flight).for_each(|key| self.places.release(key.place()));
    }
}
