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
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1;
use tidings_wire::v1::CellEventKind as Kind;

/// So many children are named in one event; of more it is only said that there are.
const MAX_CHILDREN: usize = 16;

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

    pub(super) fn take(&mut self) -> Vec<v1::CellEvent> {
        self.at.clear();
        std::mem::take(&mut self.queue)
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
    pub(super) fn contents_changed(&mut self, place: &Place) {
        self.tell_watchers(place, watched::CONTENTS, Kind::ContentsChanged, None);
        self.child_changed(place);
    }

    /// A child was added, removed or changed: whoever watches the parent's children hears of it.
    pub(super) fn child_changed(&mut self, place: &Place) {
        if let Some(parent) = place.parent() {
            self.tell_watchers(&parent, watched::CHILDREN, Kind::ChildrenChanged, Some(place.path.name()));
        }
    }

    pub(super) fn node_created(&mut self, place: &Place) {
        self.child_changed(place);
    }

    /// A node is gone: its handles are of no use any more, and whoever held or awaited its lock hears of it.
    pub(super) fn node_removed(&mut self, t: &mut Turn<'_>, place: &Place) {
        self.child_changed(place);
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
    pub(super) fn tell_watchers(&mut self, place: &Place, bit: u32, kind: Kind, child: Option<&str>) {
        let Some(id) = self.places.find(place) else { return };
        for (slot, number) in self.open_handles.of(id, true) {
            let handle = self.sessions.get(slot).and_then(|session| session.handle(number));
            if handle.is_some_and(|handle| u32::from(handle.events) & bit != 0) {
                self.tell(slot, number, kind, child);
            }
        }
    }

    /// Tells whoever holds a lock that somebody waits for it.
    pub(super) fn tell_holders(&mut self, t: &Turn<'_>, place: &Place, kind: Kind, but: Option<SessionId>) {
        let Some(lock) = t.state.lock(place) else { return };
        for (session, number) in lock.holders.keys() {
            let Some(slot) = self.sessions.find(*session).filter(|_| Some(*session) != but) else { continue };
            let handle = self.sessions.get(slot).and_then(|session| session.handle(*number));
            if handle.is_some_and(|handle| u32::from(handle.events) & watched::LOCK != 0) {
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
}
