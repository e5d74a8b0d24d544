//! What follows a lock: its delay after a loss, and the sequencers that prove it held (R10, R11).

use super::mutations::{Purpose, Work};
use super::places::PlaceId;
use super::reign::{Asker, Caller, Flow, RETRY, Reign, Timer, Turn};
use crate::SessionId;
use crate::error;
use crate::namespace::Delay;
use crate::path::Place;
use bytes::Bytes;
use tidings_base::time::stretched;
use tidings_base::{Error, Mono};
use tidings_wire::v1;
use tidings_wire::v1::LockMode;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_message::Message;

impl Reign {
    /// Waits for a lock-delay, in full, as every new master does: the state has no clock.
    pub(super) fn start_delay(&mut self, now: Mono, id: PlaceId, delay: Delay) {
        let queue = self.locks.queues.entry(id).or_default();
        if queue.delay != Some(delay.number) {
            if queue.delay.replace(delay.number).is_none() {
                self.places.hold_again(id);
            }
            self.timers.set(Timer::Delay(id), now + stretched(delay.length));
        }
    }

    pub(super) fn delay_passed(&mut self, t: &mut Turn<'_>, id: PlaceId) {
        let Some(number) = self.locks.queues.get(&id).and_then(|queue| queue.delay) else { return };
        let place = self.places.get(id).clone();
        let command = Command::EndDelay(v1::EndDelay {
            app: place.app.to_string(),
            path: place.path.as_str().to_owned(),
            instance: t.state.instance(&place).unwrap_or_default(),
            delay: number,
        });
        self.places.hold_again(id);
        self.start(t, Work::own(command, Purpose::EndDelay(id, number)));
    }

    /// `EndDelay` was applied, or was not: the state says which delay there is now.
    pub(super) fn delay_decided(&mut self, t: &mut Turn<'_>, id: PlaceId, number: u64) {
        let present = t.state.lock(self.places.get(id)).and_then(|lock| lock.delay);
        match present {
            Some(delay) if delay.number == number => self.timers.set(Timer::Delay(id), t.mono() + RETRY),
            // A later loss: its delay is waited for in full.
            Some(delay) => self.start_delay(t.mono(), id, delay),
            None => self.forget_delay(id),
        }
        self.pump(t, id);
        self.places.release(id);
    }

    /// The lock is held back no more.
    pub(super) fn forget_delay(&mut self, id: PlaceId) {
        self.timers.cancel(&Timer::Delay(id));
        if let Some(queue) = self.locks.queues.get_mut(&id)
            && queue.delay.take().is_some()
        {
            self.places.release(id);
        }
    }

    pub(super) fn get_sequencer(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        number: u64,
    ) -> Result<Flow, Error> {
        if t.fresh.is_none() {
            return Ok(Flow::Fresh);
        }
        let handle = self.handle(by.slot, number)?.clone();
        let place = self.places.get(handle.place).clone();
        let lock = t.state.lock(&place).filter(|_| t.state.instance(&place) == Some(handle.instance));
        let lock = lock.ok_or_else(|| error::node_gone(&place.path))?;
        if !lock.holders.contains_key(&(SessionId(by.call.session), handle.number)) {
            return Err(error::not_held(&place.path));
        }
        let token = sign(t, &place, handle.instance, lock.mode, lock.generation)?;
        self.reply(t, asker.op, Message::Sequencer(v1::Sequencer { token }));
        Ok(Flow::Taken)
    }
}

/// R11: a claim to a lock, signed.
pub(super) fn sign(
    t: &Turn<'_>,
    place: &Place,
    instance: u64,
    mode: LockMode,
    generation: u64,
) -> Result<Bytes, Error> {
    t.state.keys().sign_sequencer(&v1::SequencerBody {
        incarnation: t.state.incarnation().0,
        app: place.app.to_string(),
        path: place.path.as_str().to_owned(),
        instance,
        mode: mode as i32,
        generation,
    })
}
