//! The lock of each node: advisory, shared or exclusive, held back after a loss (R10).

use super::{Acting, Namespace};
use crate::error;
use crate::mutant::Mutant;
use crate::path::Place;
use crate::{HandleNumber, SessionId};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::LockMode;

/// The longest that a lost lock is held back.
pub const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);

/// The lock of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    /// `Unspecified` = free.
    pub mode: LockMode,
    /// Who holds it, with the lock-delay each asked for.
    pub holders: BTreeMap<(SessionId, HandleNumber), Duration>,
    /// Grows when the lock goes from free to held.
    pub generation: u64,
    /// Held back after a loss: for how long, and whether shared requests are held back too.
    pub delay: Option<Delay>,
}

/// A lock held back after its holder was lost. A duration: each new master waits it in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// For how long.
    pub length: Duration,
    /// A lost shared holder holds back exclusive requests only.
    pub exclusive_only: bool,
    /// Names this delay: `EndDelay` does not end a later one.
    pub number: u64,
}

impl LockState {
    /// Whether it is neither held nor held back.
    pub fn is_free(&self) -> bool {
        self.mode == LockMode::Unspecified && self.delay.is_none()
    }

    /// Whether a request of this mode could be granted now. A queue before it is the master's affair.
    pub fn admits(&self, mode: LockMode) -> bool {
        let held_back = self.delay.is_some_and(|delay| !delay.exclusive_only || mode != LockMode::Shared);
        match self.mode {
            _ if held_back => false,
            LockMode::Unspecified => true,
            LockMode::Shared => mode == LockMode::Shared,
            LockMode::Exclusive => false,
        }
    }

    fn grant(&mut self, who: (SessionId, HandleNumber), mode: LockMode, delay: Duration) {
        if self.mode == LockMode::Unspecified {
            self.generation += 1;
        }
        self.mode = mode;
        self.holders.insert(who, delay);
    }

    /// Takes a holder away; `None` = it was none.
    fn release(&mut self, who: (SessionId, HandleNumber)) -> Option<Duration> {
        let delay = self.holders.remove(&who)?;
        if self.holders.is_empty() {
            self.mode = LockMode::Unspecified;
        }
        Some(delay)
    }

    /// Takes a lost holder away; what it asked for as a delay begins, in full even if another one is under way.
    fn lose(&mut self, who: (SessionId, HandleNumber), number: u64) {
        let shared = self.mode == LockMode::Shared;
        let Some(length) = self.release(who).filter(|length| !length.is_zero()) else { return };
        let before = self.delay;
        self.delay = Some(Delay {
            length: before.map_or(length, |before| before.length.max(length)),
            exclusive_only: shared && before.is_none_or(|before| before.exclusive_only),
            number,
        });
    }
}

impl Namespace {
    /// A grant. Everything it stands on is looked at again here: a session that ended, a handle that was closed, a
    /// node that was deleted or a right that was withdrawn after the master decided gets nothing.
    pub(super) fn take_lock(&mut self, acting: &Acting, command: &v1::TakeLock) -> Result<v1::CellApplied, Error> {
        let (app, path) = (command.app.as_str(), command.path.as_str());
        let mode = command.mode();
        if mode == LockMode::Unspecified {
            return Err(error::bad_command("it takes a lock in no mode"));
        }
        let node = self.node_for(acting, (app, path, command.instance), super::Right::Write)?;
        let who = (acting.session, HandleNumber(command.handle));
        if self.is_closed(who.0, who.1) {
            return Err(error::bad_handle("it was closed"));
        }
        if node.lock.holders.contains_key(&who) {
            return Err(error::already_held(path));
        }
        if !node.lock.admits(mode) {
            return Err(error::lock_held(path, node.lock.mode == LockMode::Unspecified));
        }
        let delay = Duration::from_millis(command.lock_delay_ms.into()).min(MAX_LOCK_DELAY);
        let Some((key, node)) = self.tree.get_mut(app, path) else { return Err(error::no_node(path)) };
        node.lock.grant(who, mode, delay);
        let (place, generation, stat) = (key.place.clone(), node.lock.generation, node.stat());
        self.sessions.gained_lock(acting.session, place.clone(), who.1);
        self.changed.stat(&place);
        self.held.insert(place, ());
        Ok(v1::CellApplied { stat: Some(stat), generation, ..Default::default() })
    }

    pub(super) fn free_lock(&mut self, acting: &Acting, command: &v1::FreeLock) -> Result<v1::CellApplied, Error> {
        let node = self.node(&command.app, &command.path, command.instance)?;
        let who = (acting.session, HandleNumber(command.handle));
        if !node.lock.holders.contains_key(&who) {
            return Err(error::not_held(&command.path));
        }
        let generation = node.lock.generation;
        let place = self.place(&command.app, &command.path);
        place.inspect(|place| self.unlock(place, who, false));
        let stat = self.tree.get(&command.app, &command.path).map(|node| node.stat());
        Ok(v1::CellApplied { stat, generation, ..Default::default() })
    }

    /// Takes a holder off a lock, on both sides; `lost` = the lock is held back.
    pub(super) fn unlock(&mut self, place: &Place, who: (SessionId, HandleNumber), lost: bool) {
        let Some((key, node)) = self.tree.at_mut(place) else { return };
        if !node.lock.holders.contains_key(&who) {
            return;
        }
        if lost && self.mutant != Some(Mutant::NoLockDelay) {
            self.next_delay += 1;
            node.lock.lose(who, self.next_delay);
        } else {
            node.lock.release(who);
        }
        if node.lock.is_free() {
            self.held.remove(&key.place);
        }
        self.sessions.gave_lock(who.0, place, who.1);
        self.changed.stat(place);
    }

    pub(super) fn end_delay(&mut self, command: &v1::EndDelay) -> Result<v1::CellApplied, Error> {
        let node = self.node(&command.app, &command.path, command.instance)?;
        if node.lock.delay.is_none_or(|delay| delay.number != command.delay) {
            // It has ended, or a later loss began a new one: both are as they should be.
            return Ok(v1::CellApplied { stat: Some(node.stat()), ..Default::default() });
        }
        let Some((key, node)) = self.tree.get_mut(&command.app, &command.path) else {
            return Err(error::no_node(&command.path));
        };
        node.lock.delay = None;
        if node.lock.is_free() {
            self.held.remove(&key.place);
        }
        self.changed.stat(&key.place);
        Ok(v1::CellApplied { stat: Some(node.stat()), ..Default::default() })
    }

    /// R11: whether a lock is still held as this sequencer says; if not, why. Freed is freed, lock-delay included.
    pub fn check_sequencer(&self, sequencer: &v1::SequencerBody) -> Result<(), &'static str> {
        if sequencer.incarnation != self.incarnation.0 {
            return Err("the cell was restored since");
        }
        let Some(node) = self.tree.get(&sequencer.app, &sequencer.path) else { return Err("the node was deleted") };
        if node.instance != sequencer.instance {
            return Err("the node was deleted and created again");
        }
        if node.lock.generation != sequencer.generation {
            return Err("the lock was freed and taken again");
        }
        if self.mutant == Some(Mutant::SequencerOutlivesLock) {
            return Ok(());
        }
        match node.lock.mode {
            LockMode::Unspecified => Err("the lock was freed"),
            mode if mode != sequencer.mode() => Err("the lock is held in another mode"),
            _ => Ok(()),
        }
    }

    /// Decided at apply: a change whose sequencers are stale does not happen.
    pub(super) fn check_sequencers(&self, sequencers: &[v1::SequencerBody]) -> Result<(), Error> {
        if self.mutant == Some(Mutant::GuardIgnored) {
            return Ok(());
        }
        sequencers.iter().try_for_each(|each| self.check_sequencer(each).map_err(error::stale_sequencer))
    }

    /// The lock of a node; `None` if there is no such node.
    pub fn lock(&self, place: &Place) -> Option<&LockState> {
        self.tree.at(place).map(|node| &node.lock)
    }

    /// All locks that are held or held back, by application and path.
    pub fn locks(&self) -> impl Iterator<Item = (&Place, &LockState)> {
        self.held.iter().filter_map(|(place, ())| Some((place, self.lock(place)?)))
    }

    /// Those of them that come after a path of an application, whether it has a lock or not.
    pub fn locks_after(&self, app: &str, path: &str) -> impl Iterator<Item = (&Place, &LockState)> {
        let order = |place: &Place| (&*place.app, place.path.as_str()).cmp(&(app, path));
        let later = self.held.starting_by(order).skip_while(move |(place, ())| order(place).is_eq());
        later.filter_map(|(place, ())| Some((place, self.lock(place)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (SessionId, HandleNumber) = (SessionId(1), HandleNumber(1));
    const B: (SessionId, HandleNumber) = (SessionId(2), HandleNumber(1));
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_lost_shared_holder_holds_back_exclusive_requests_only() {
        let mut lock = LockState::default();
        lock.grant(A, LockMode::Shared, MINUTE);
        lock.grant(B, LockMode::Shared, MINUTE / 2);
        assert_eq!(lock.generation, 1, "it was not free in between");
        lock.lose(A, 1);
        assert!(lock.admits(LockMode::Shared) && !lock.admits(LockMode::Exclusive));
        lock.lose(B, 2);
        assert_eq!(lock.delay, Some(Delay { length: MINUTE, exclusive_only: true, number: 2 }));
        assert_eq!(lock.mode, LockMode::Unspecified);
        assert!(lock.admits(LockMode::Shared) && !lock.admits(LockMode::Exclusive));
        lock.grant(A, LockMode::Shared, Duration::ZERO);
        assert_eq!(lock.generation, 2);
        lock.lose(A, 3);
        assert!(!lock.admits(LockMode::Exclusive), "a delay outlives later shared holders");
    }

    #[test]
    fn a_lost_exclusive_holder_holds_back_everybody() {
        let mut lock = LockState::default();
        lock.grant(A, LockMode::Exclusive, MINUTE);
        assert!(!lock.admits(LockMode::Shared) && !lock.admits(LockMode::Exclusive));
        lock.lose(A, 1);
        assert!(!lock.admits(LockMode::Shared) && !lock.admits(LockMode::Exclusive) && !lock.is_free());
        lock.delay = None;
        lock.grant(B, LockMode::Exclusive, Duration::ZERO);
        lock.lose(B, 2);
        assert!(lock.is_free(), "a holder that asked for no delay leaves none");
    }
}
