//! Who may hold a copy of what, and how a change waits until nobody can (seed §2.7; R5, R15).

use super::failover::Phase;
use super::places::{Key, Places};
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

    fn of(&self, slot: Slot) -> impl Iterator<Item = Key> {
        self.by_session.range((slot, Key::MIN)..).take_while(move |entry| entry.0 == slot).map(|entry| entry.1)
    }
}

/// What may not be cached, because a change of it is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    keys: BTreeMap<Key, Block>,
    apps: BTreeMap<Arc<str>, u32>,
    all: u32,
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
    Keys(Vec<Key>),
    App(Arc<str>),
    All,
}

impl Blocks {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.len() + self.apps.len() + self.all as usize
    }

    fn has(&self, key: Key, places: &Places) -> bool {
        self.keys.contains_key(&key)
            || self.all > 0
            || (!self.apps.is_empty() && self.apps.contains_key(&places.get(key.place()).app))
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
            Touched::Keys(keys) => self.clear_keys(t, change, keys, writer),
            Touched::App(app) => {
                *self.blocks.apps.entry(app.clone()).or_default() += 1;
                let waits = self.clear_sessions(t, change, Some(&app), writer);
                (Blocked::App(app), waits)
            }
            Touched::All => {
                self.blocks.all += 1;
                let waits = self.clear_sessions(t, change, None, writer);
                (Blocked::All, waits)
            }
        }
    }

    fn clear_keys(
        &mut self,
        t: &mut Turn<'_>,
        change: OpId,
        touched: Vec<CacheKey>,
        writer: Option<Slot>,
    ) -> (Blocked, u32) {
        let keys: Vec<Key> = touched.iter().map(|key| self.places.hold(&key.place).key(key.listing)).collect();
        let mut waits = 0;
        for key in &keys {
            self.blocks.keys.entry(*key).or_default().changes += 1;
            for slot in self.interest.sessions(*key) {
                if Some(slot) != writer {
                    waits += u32::from(self.invalidate(t, slot, *key, change));
                }
            }
        }
        (Blocked::Keys(keys), waits)
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
            Blocked::Keys(keys) => {
                for key in keys {
                    if let Some(block) = self.blocks.keys.get_mut(key) {
                        block.changes -= 1;
                        if block.changes == 0 {
                            let block = self.blocks.keys.remove(key).unwrap_or_default();
                            self.released.extend(block.parked);
                        }
                    }
                    self.places.release(key.place());
                }
            }
            Blocked::App(app) => {
                if let Some(count) = self.blocks.apps.get_mut(app) {
                    *count -= 1;
                    if *count == 0 {
                        self.blocks.apps.remove(app);
                    }
                }
            }
            Blocked::All => self.blocks.all -= 1,
        }
    }

    /// A change of a session's own was applied: what it had cached of these keys it dropped when it asked, and the
    /// answer's stamp keeps earlier replies from being cached after it.
    pub(super) fn drop_own_interest(&mut self, slot: Slot, blocked: &Blocked) {
        match blocked {
            Blocked::Keys(keys) => keys.iter().for_each(|key| self.drop_interest(slot, *key)),
            Blocked::App(_) | Blocked::All => self.drop_all_interest(slot),
        }
    }

    /// Whether a read of a key is to wait for the changes under way: too many came meanwhile.
    pub(super) fn is_crowded(&mut self, place: &Place, listing: bool) -> Option<Key> {
        let key = self.places.find(place)?.key(listing);
        let block = self.blocks.keys.get_mut(&key)?;
        block.reads += 1;
        (block.reads > MAX_BLOCKED_READS).then_some(key)
    }

    /// Lets a read wait until its key is unblocked.
    pub(super) fn park(&mut self, key: Key, asker: Asker, request: v1::CellMessage) {
        if let Some(block) = self.blocks.keys.get_mut(&key) {
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
