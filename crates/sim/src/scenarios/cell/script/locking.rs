//! Locks: taken, used, given back, and what their sequencers say afterwards.

use super::super::LOCKS;
use super::super::command::Grant;
use super::super::doing::{Doing, Purpose, Slot};
use super::super::fact::{Call, Change, Fact};
use super::{Opened, Script, Touch, Wish};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Mono, Now, OpId};
use tidings_wire::v1::{self, LockMode, cell_message::Message};

/// A lock that the application holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub handle: u64,
    pub path: String,
    pub instance: u64,
    pub generation: u64,
    pub sequencer: Bytes,
    pub exclusive: bool,
    pub delay: Duration,
    pub until: Mono,
    pub next_touch: Mono,
}

impl Script {
    /// While a lock is held the application uses what it protects; in the end it gives it back.
    pub(super) fn hold(&mut self, now: Now) {
        let Some(held) = &mut self.held else { return };
        if held.next_touch <= now.mono {
            held.next_touch = now.mono + Duration::from_millis(self.rng.between(40, 400));
            let order = (held.instance, held.generation);
            let touch = Touch { path: held.path.clone(), session: self.session, sequencer: held.sequencer.clone() };
            let fact = Fact::Touched { session: self.session, path: held.path.clone(), order };
            self.wishes.extend([Wish::State(fact), Wish::Touch(touch)]);
        }
        let Some(held) = self.held.clone() else { return };
        if (held.until <= now.mono || self.stopped) && !self.busy.contains(&Slot::Change) {
            // Whatever becomes of the release: from here on the application does not act on the lock any more.
            self.held = None;
            let Held { handle, path, instance, generation, sequencer, .. } = held;
            let message = Message::Release(v1::ReleaseLock { handle });
            let change = Change::Release { path: path.clone(), handle };
            self.call(Doing::Release, Call::Change(change), message);
            self.spent = Some((path, instance, generation, sequencer));
        }
    }

    pub(super) fn lock(&mut self, now: Now) {
        if self.held.is_some() || !self.free(Slot::Acquire) || !self.free(Slot::Change) {
            return;
        }
        let ready: Vec<Opened> =
            self.handles.values().filter(|opened| opened.purpose == Purpose::Locking).cloned().collect();
        let Some(opened) = self.rng.pick(&ready).filter(|_| ready.len() > 1 || self.rng.one_in(2)).cloned() else {
            if ready.len() < LOCKS.len() {
                let (path, delay) = (self.pick(LOCKS), self.rng.between(2_000, 5_000) as u32);
                let (write, lock, events) = (true, true, 4);
                let lock_delay_ms = Some(delay);
                let open = v1::OpenNode { path, read: true, write, lock, events, lock_delay_ms, ..Default::default() };
                self.open_node(open, Purpose::Locking);
            }
            return;
        };
        let (exclusive, try_only) = (!self.rng.one_in(3), self.rng.one_in(5));
        let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
        let (handle, path, instance) = (opened.number, opened.path, opened.instance);
        let message = Message::Acquire(v1::AcquireLock { handle, mode: mode as i32, try_only, waits_as: 0 });
        let op = OpId(self.next_op);
        let call = Call::Acquire { path: path.clone(), handle, exclusive };
        self.call(Doing::Acquire { handle, path, instance, exclusive }, call, message);
        let patience = Duration::from_millis(self.rng.between(2_000, 20_000));
        self.patience = Some((op, now.mono + patience));
    }

    /// The lock that it holds.
    pub fn grant(&self) -> Option<Grant> {
        let Held { path, instance, generation, exclusive, delay, .. } = self.held.as_ref()?;
        let order = (*instance, *generation);
        Some(Grant { session: self.session, path: path.clone(), order, exclusive: *exclusive, delay: *delay })
    }

    pub(super) fn check(&mut self) {
        let held = self.held.as_ref().map(|it| (it.path.clone(), it.instance, it.generation, it.sequencer.clone()));
        let Some((path, instance, generation, token)) = held.or_else(|| self.spent.clone()) else { return };
        let call = Call::Check { path, instance, generation };
        self.call(Doing::Check, call, Message::CheckSequencer(v1::CheckSequencer { token }));
    }
}
