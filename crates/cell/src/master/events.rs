//! Events: who has a node open, what they hear, coalesced so that nothing grows without bound (seed §2.5).
//!
//! An event follows the change it tells of. Of each kind a handle has at most one that is not sent yet: the last change
//! of everything watched is followed by an event, however slow the watcher.

use super::handles::{Handle, watched};
use super::places::PlaceId;
use super::reign::{Reign, Turn};
use super::sessions::Slot;
use crate::path::Place;
use crate::{HandleNumber, SessionId};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1;
use tidings_wire::v1::CellEventKind as Kind;

/// So many children are named in one event; of more it is only said that there are.
const MAX_CHILDREN: usize = 16;

/// So many bytes of events go with one batch; the rest goes with the next. Together with its invalidations a batch fits
/// a client's frame.
const MAX_BATCHED: usize = 256 << 10;

/// Every open handle by its node, and those that watch it once more: a lock with ten thousand waiters may have no
/// watcher at all.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenHandles {
    all: BTreeSet<(PlaceId, Slot, HandleNumber)>,
    watching: BTreeSet<(PlaceId, Slot, HandleNumber)>,
}

impl OpenHandles {
    pub(super) fn add(&mut self, slot: Slot, handle: &Handle) {
        self.all.insert((handle.place, slot, handle.number));
        if handle.events != 0 {
            self.watching.insert((handle.place, slot, handle.number));
        }
    }

    pub(super) fn remove(&mut self, slot: Slot, handle: &Handle) {
        self.all.remove(&(handle.place, slot, handle.number));
        self.watching.remove(&(handle.place, slot, handle.number));
    }

    fn of(&self, place: PlaceId, watching: bool) -> Vec<(Slot, HandleNumber)> {
        let set = if watching { &self.watching } else { &self.all };
        let first = (place, Slot(0), HandleNumber(0));
        set.range(first..).take_while(|entry| entry.0 == place).map(|entry| (entry.1, entry.2)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// A session's events that are not sent yet, in the order of their first cause.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    queue: Vec<v1::CellEvent>,
    at: BTreeMap<(HandleNumber, i32), usize>,
}

impl Events {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The first ones, as many as a batch carries; at least one.
    pub(super) fn take(&mut self) -> Vec<v1::CellEvent> {
        let mut size = 0;
        let mut fits = |event: &v1::CellEvent| {
            size += event.encoded_len() + 4;
            size <= MAX_BATCHED
        };
        let count = self.queue.iter().take_while(|event| fits(event)).count().max(1).min(self.queue.len());
        let rest = self.queue.split_off(count);
        let key = |event: &v1::CellEvent| (HandleNumber(event.handle), event.kind);
        self.at = rest.iter().enumerate().map(|(at, event)| (key(event), at)).collect();
        std::mem::replace(&mut self.queue, rest)
    }

    fn put(&mut self, handle: HandleNumber, kind: Kind, child: Option<&str>) {
        let at = *self.at.entry((handle, kind as i32)).or_insert_with(|| {
            self.queue.push(v1::CellEvent { handle: handle.0, kind: kind as i32, ..Default::default() });
            self.queue.len() - 1
        });
        let event = &mut self.queue[at];
        match child {
            Some(child) if event.children.iter().any(|known| known == child) => {}
            Some(child) if event.children.len() < MAX_CHILDREN => event.children.push(child.to_owned()),
            Some(_) => event.more = true,
            None => {}
        }
    }
}

impl Reign {
    pub(super) fn contents_changed(&mut self, t: &Turn<'_>, place: &Place) {
        self.tell_watchers(t, place, watched::CONTENTS, Kind::ContentsChanged, None);
        self.child_changed(t, place);
    }

    /// A child was added, removed or changed: whoever watches the parent's children hears of it.
    pub(super) fn child_changed(&mut self, t: &Turn<'_>, place: &Place) {
        if let Some(parent) = place.parent() {
            self.tell_watchers(t, &parent, watched::CHILDREN, Kind::ChildrenChanged, Some(place.path.name()));
        }
    }

    pub(super) fn node_created(&mut self, t: &Turn<'_>, place: &Place) {
        self.child_changed(t, place);
    }

    /// A node is gone: its handles are of no use any more, and whoever held or awaited its lock hears of it.
    pub(super) fn node_removed(&mut self, t: &mut Turn<'_>, place: &Place) {
        self.child_changed(t, place);
        let Some(id) = self.places.find(place) else { return self.reap(t) };
        let present = t.state.instance(place);
        for (slot, number) in self.open_handles.of(id, false) {
            let handle = self.sessions.get(slot).and_then(|session| session.handle(number));
            if handle.is_some_and(|handle| Some(handle.instance) != present) {
                self.tell(slot, number, Kind::HandleInvalid, None);
            }
        }
        self.fail_gone_waiters(t, id);
        // An ephemeral directory may have lost its last child.
        self.reap(t);
    }

    /// A lock went with its node: its holders hear of it.
    pub(super) fn locks_lost(&mut self, holders: &[(SessionId, HandleNumber)]) {
        for (session, number) in holders {
            if let Some(slot) = self.sessions.find(*session) {
                self.tell(slot, *number, Kind::LockLost, None);
            }
        }
    }

    /// Tells one handle.
    pub(super) fn tell(&mut self, slot: Slot, number: HandleNumber, kind: Kind, child: Option<&str>) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.outgoing.get_or_insert_default().events().put(number, kind, child);
            self.dirty.push(slot);
        }
    }

    /// Tells the handles of a node that watch this.
    pub(super) fn tell_watchers(&mut self, t: &Turn<'_>, place: &Place, bit: u32, kind: Kind, child: Option<&str>) {
        let Some(id) = self.places.find(place) else { return };
        for (slot, number) in self.open_handles.of(id, true) {
            if self.may_hear(t, place, slot, number, bit) {
                self.tell(slot, number, kind, child);
            }
        }
    }

    /// Whether a handle watches this, and whoever opened it may read the node still (R12).
    fn may_hear(&self, t: &Turn<'_>, place: &Place, slot: Slot, number: HandleNumber, bit: u32) -> bool {
        let Some(session) = self.sessions.get(slot) else { return false };
        session.handle(number).is_some_and(|handle| u32::from(handle.events) & bit != 0)
            && t.state.may_watch(session.id, place)
    }

    /// Tells whoever holds a lock that somebody waits for it.
    pub(super) fn tell_holders(&mut self, t: &Turn<'_>, place: &Place, kind: Kind, but: Option<SessionId>) {
        let Some(lock) = t.state.lock(place) else { return };
        for (session, number) in lock.holders.keys() {
            let Some(slot) = self.sessions.find(*session).filter(|_| Some(*session) != but) else { continue };
            if self.may_hear(t, place, slot, *number, watched::LOCK) {
                self.tell(slot, *number, kind, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_kind_coalesce_and_name_children_up_to_a_bound() {
        let mut events = Events::default();
        for child in 0..40 {
            events.put(HandleNumber(1), Kind::ChildrenChanged, Some(&child.to_string()));
            events.put(HandleNumber(2), Kind::ContentsChanged, None);
        }
        let taken = events.take();
        assert_eq!(taken.len(), 2);
        assert_eq!((taken[0].children.len(), taken[0].more), (MAX_CHILDREN, true));
        assert!(events.is_empty() && events.at.is_empty());
    }

    #[test]
    fn a_batch_carries_what_fits_and_the_next_one_the_rest() {
        let mut events = Events::default();
        let put = |events: &mut Events| {
            for (handle, child) in (0..1_000).flat_map(|handle| (0..16).map(move |child| (handle, child))) {
                events.put(HandleNumber(handle), Kind::ChildrenChanged, Some(&format!("{child:0>200}")));
            }
        };
        put(&mut events);
        let mut taken = events.take();
        assert!(taken.len() > 10 && taken.iter().map(|event| event.encoded_len()).sum::<usize>() <= 256 << 10);
        let left = events.len();
        put(&mut events);
        assert_eq!(events.len(), left + taken.len(), "those that wait still coalesce");
        while !events.is_empty() {
            taken.extend(events.take());
        }
        assert_eq!(taken.len(), 1_000 + (1_000 - left));
    }
}
