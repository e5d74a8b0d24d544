//! Who may hold a copy of what, and how a change waits until nobody can (seed §2.7; R5, R15).

use super::failover::Phase;
use super::places::{Key, PlaceId, Places};
use super::reign::{Asker, Reign, Turn};
use super::sessions::{Slot, Standing};
use crate::mutant::Mutant;
use crate::namespace::Touched;
use crate::path::{CacheKey, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::OpId;
use tidings_wire::v1;

/// R15: so many entries a session may have cached; further replies are not cacheable until it has flushed what it has.
const MAX_INTEREST: u32 = 4_096;
/// So many reads of a key are answered while a change of it is under way; further ones wait for the change.
const MAX_BLOCKED_READS: u32 = 256;
/// The same for a change that empties everybody's cache: so many reads of anything that it covers.
const MAX_BLOCKED_READS_OF_ALL: u32 = 4_096;

/// Which session may have cached which key, both ways.
#[derive(Clone, Debug, Default)]
pub(super) struct Interest {
    by_key: BTreeSet<(Key, Slot)>,
    by_session: BTreeSet<(Slot, Key)>,
}

impl Interest {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn contains(&self, slot: Slot, key: Key) -> bool {
        self.by_session.contains(&(slot, key))
    }

    pub(super) fn sessions(&self, key: Key) -> Vec<Slot> {
        self.by_key.range((key, Slot(0))..=(key, Slot(u32::MAX))).map(|entry| entry.1).collect()
    }

    fn is_noted(&self, key: Key) -> bool {
        self.by_key.range((key, Slot(0))..=(key, Slot(u32::MAX))).next().is_some()
    }

    fn of(&self, slot: Slot) -> impl Iterator<Item = Key> {
        self.by_session.range((slot, Key::MIN)..).take_while(move |entry| entry.0 == slot).map(|entry| entry.1)
    }
}

/// What may not be cached, because a change of it is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    keys: BTreeMap<Key, Block>,
    /// What is absent below these, by the number of changes.
    below: BTreeMap<PlaceId, u32>,
    apps: BTreeMap<Arc<str>, Block>,
    /// With at least one change.
    all: Option<Block>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    changes: u32,
    reads: u32,
    parked: Vec<(Asker, v1::CellMessage)>,
}

/// What a change has blocked.
#[derive(Clone, Debug)]
pub(super) enum Blocked {
    Keys { keys: Vec<Key>, below: Vec<PlaceId> },
    App(Arc<str>),
    All,
}

impl Default for Blocked {
    fn default() -> Blocked {
        Blocked::Keys { keys: Vec::new(), below: Vec::new() }
    }
}

/// Where too many reads came while a change was under way.
#[derive(Clone, Debug)]
pub(super) enum Crowd {
    Key(Key),
    App(Arc<str>),
    All,
}

impl Blocks {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.len() + self.below.len() + self.apps.len() + usize::from(self.all.is_some())
    }

    fn has(&self, key: Key, places: &Places) -> bool {
        self.keys.contains_key(&key)
            || self.all.is_some()
            || (!self.apps.is_empty() && self.apps.contains_key(&places.get(key.place()).app))
            || (!self.below.is_empty() && self.has_above(places.get(key.place()), places))
    }

    fn has_above(&self, place: &Place, places: &Places) -> bool {
        let blocked = |at: &Place| places.find(at).is_some_and(|id| self.below.contains_key(&id));
        std::iter::successors(place.parent(), Place::parent).any(|at| blocked(&at))
    }

    fn at(&mut self, crowd: &Crowd) -> Option<&mut Block> {
        match crowd {
            Crowd::Key(key) => self.keys.get_mut(key),
            Crowd::App(app) => self.apps.get_mut(app),
            Crowd::All => self.all.as_mut(),
        }
    }

    /// One more read while changes are under way there, if any are; whether it is one too many.
    fn is_one_too_many(&mut self, crowd: &Crowd) -> bool {
        let most = match crowd {
            Crowd::Key(_) => MAX_BLOCKED_READS,
            Crowd::App(_) | Crowd::All => MAX_BLOCKED_READS_OF_ALL,
        };
        self.at(crowd).is_some_and(|block| {
            block.reads = block.reads.saturating_add(1);
            block.reads > most
        })
    }

    /// One change less; what waited for the last one.
    fn one_less(&mut self, crowd: &Crowd) -> Vec<(Asker, v1::CellMessage)> {
        let Some(block) = self.at(crowd) else { return Vec::new() };
        block.changes -= 1;
        if block.changes > 0 {
            return Vec::new();
        }
        let block = match crowd {
            Crowd::Key(key) => self.keys.remove(key),
            Crowd::App(app) => self.apps.remove(app),
            Crowd::All => self.all.take(),
        };
        block.unwrap_or_default().parked
    }
}

impl Reign {
    /// Stops caching of what a change may touch (a), and has copies of it invalidated (b), the writer's own aside: its
    /// request is its acknowledgement. Gives back what is blocked and for how many acknowledgements to wait.
    pub(super) fn clear(
        &mut self,
        t: &mut Turn<'_>,
        change: OpId,
        touched: Touched,
        writer: Option<Slot>,
    ) -> (Blocked, u32) {
        match touched {
            Touched::Keys { keys, below } => self.clear_keys(t, change, &keys, &below, writer),
            Touched::App(app) => {
                self.blocks.apps.entry(app.clone()).or_default().changes += 1;
                let waits = self.clear_sessions(t, change, Some(&app), writer);
                (Blocked::App(app), waits)
            }
            Touched::All => {
                self.blocks.all.get_or_insert_default().changes += 1;
                let waits = self.clear_sessions(t, change, None, writer);
                (Blocked::All, waits)
            }
        }
    }

    fn clear_keys(
        &mut self,
        t: &mut Turn<'_>,
        change: OpId,
        touched: &[CacheKey],
        below: &[Place],
        writer: Option<Slot>,
    ) -> (Blocked, u32) {
        let mut keys: Vec<Key> = touched.iter().map(|key| self.places.hold(&key.place).key(key.listing)).collect();
        for place in below {
            self.hold_absences(t, place, &mut keys);
        }
        let below: Vec<PlaceId> = below.iter().map(|place| self.places.hold(place)).collect();
        below.iter().for_each(|place| *self.blocks.below.entry(*place).or_default() += 1);
        let mut waits = 0;
        for key in &keys {
            self.blocks.keys.entry(*key).or_default().changes += 1;
            for slot in self.interest.sessions(*key) {
                if Some(slot) != writer {
                    waits += u32::from(self.invalidate(t, slot, *key, change));
                }
            }
        }
        (Blocked::Keys { keys, below }, waits)
    }

    /// Adds what somebody may have cached as absent below a place. What is there is shown by its own access lists, and no
    /// copy of its absence was left when it was created.
    fn hold_absences(&mut self, t: &Turn<'_>, place: &Place, keys: &mut Vec<Key>) {
        let absent = self.places.below(place).filter(|(at, _)| t.state.instance(at).is_none()).map(|(_, id)| id);
        let cached: Vec<Key> =
            (absent.flat_map(|id| [id.key(false), id.key(true)])).filter(|key| self.interest.is_noted(*key)).collect();
        cached.iter().for_each(|key| self.places.hold_again(key.place()));
        keys.extend(cached);
    }

    fn clear_sessions(&mut self, t: &mut Turn<'_>, change: OpId, app: Option<&str>, writer: Option<Slot>) -> u32 {
        let of_app = |session: &super::sessions::Session| app.is_none_or(|app| *session.app == *app);
        let slots: Vec<Slot> = (self.sessions.iter())
            .filter(|(slot, session)| Some(*slot) != writer && session.interest > 0 && of_app(session))
            .map(|(slot, _)| slot)
            .collect();
        slots.into_iter().map(|slot| u32::from(self.invalidate_all(t, slot, change))).sum()
    }

    /// A change was applied, or never will be: its keys may be cached again.
    pub(super) fn unblock(&mut self, blocked: &Blocked) {
        match blocked {
            Blocked::Keys { keys, below } => {
                for key in keys {
                    self.released.extend(self.blocks.one_less(&Crowd::Key(*key)));
                    self.places.release(key.place());
                }
                for place in below {
                    if let Some(changes) = self.blocks.below.get_mut(place) {
                        *changes -= 1;
                        if *changes == 0 {
                            self.blocks.below.remove(place);
                        }
                    }
                    self.places.release(*place);
                }
            }
            Blocked::App(app) => self.released.extend(self.blocks.one_less(&Crowd::App(app.clone()))),
            Blocked::All => self.released.extend(self.blocks.one_less(&Crowd::All)),
        }
    }

    /// A change of a session's own was applied: what it had cached of these keys it dropped when it asked, and the
    /// answer's stamp keeps earlier replies from being cached after it.
    pub(super) fn drop_own_interest(&mut self, slot: Slot, blocked: &Blocked) {
        match blocked {
            Blocked::Keys { keys, .. } => keys.iter().for_each(|key| self.drop_interest(slot, *key)),
            Blocked::App(_) | Blocked::All => self.drop_all_interest(slot),
        }
    }

    /// Whether a read of a key is to wait for changes under way, and for which: too many came meanwhile.
    pub(super) fn is_crowded(&mut self, place: &Place, listing: bool) -> Option<Crowd> {
        if self.blocks.keys.is_empty() && self.blocks.apps.is_empty() && self.blocks.all.is_none() {
            return None;
        }
        let key = self.places.find(place).map(|id| Crowd::Key(id.key(listing)));
        let mut crowds = key.into_iter().chain([Crowd::App(place.app.clone()), Crowd::All]);
        crowds.find(|crowd| self.blocks.is_one_too_many(crowd))
    }

    /// Lets a read wait until what it came too late for is unblocked.
    pub(super) fn park(&mut self, crowd: &Crowd, asker: Asker, request: v1::CellMessage) {
        if let Some(block) = self.blocks.at(crowd) {
            block.parked.push((asker, request));
        }
    }

    /// Records that a session may cache a node or listing, and whether it may.
    pub(super) fn note_interest(&mut self, slot: Slot, place: &Place, listing: bool) -> bool {
        let Some(session) = self.sessions.get(slot) else { return false };
        if !matches!(self.phase, Phase::Serving) || session.standing != Standing::Present || session.is_own() {
            return false;
        }
        let (full, forgetful) = match self.mutant(Mutant::InterestForgotten) {
            true => (session.interest >= 2, true),
            false => (session.interest >= MAX_INTEREST, false),
        };
        let id = self.places.hold(place);
        let key = id.key(listing);
        let blocked = self.blocks.has(key, &self.places) && !self.mutant(Mutant::CachingDuringWrite);
        let pending = session.outgoing.as_ref().is_some_and(|outgoing| outgoing.covers(key));
        let known = self.interest.contains(slot, key);
        if blocked || pending || known || full {
            self.places.release(id);
            if full && !forgetful && !(blocked || pending || known) {
                self.make_room(slot);
            }
            return !blocked && !pending && (known || forgetful);
        }
        self.interest.by_key.insert((key, slot));
        self.interest.by_session.insert((slot, key));
        if let Some(session) = self.sessions.get_mut(slot) {
            session.interest += 1;
        }
        true
    }

    /// R15: what a session may have cached is not known to be needed any more. It is told to flush, for nobody's change, and
    /// its acknowledgement gives all of it back.
    fn make_room(&mut self, slot: Slot) {
        self.queue_flush(slot);
        self.dirty.push(slot);
    }

    pub(super) fn drop_interest(&mut self, slot: Slot, key: Key) {
        if self.interest.by_session.remove(&(slot, key)) {
            self.interest.by_key.remove(&(key, slot));
            self.places.release(key.place());
            if let Some(session) = self.sessions.get_mut(slot) {
                session.interest -= 1;
            }
        }
    }

    pub(super) fn drop_all_interest(&mut self, slot: Slot) {
        let keys: Vec<Key> = self.interest.of(slot).collect();
        keys.into_iter().for_each(|key| self.drop_interest(slot, key));
    }

    /// The stamp of a reply that may be cached.
    pub(super) fn stamp(&self, slot: Slot) -> Option<v1::CacheStamp> {
        let seq = self.sessions.get(slot)?.seq;
        Some(v1::CacheStamp { epoch: self.epoch, seq })
    }

    /// The stamp of the answer to a session's own change: replies from before it are not cached after it.
    pub(super) fn raised_stamp(&mut self, slot: Slot) -> Option<v1::CacheStamp> {
        self.sessions.get_mut(slot)?.seq += 1;
        self.stamp(slot)
    }
}
