//! Repeats of acquires that were granted: the answer was lost, and the lock may be since (R8).

use super::{Asker, Caller, Flow, Reign, Turn};
use crate::SessionId;
use crate::error;
use tidings_base::Error;
use tidings_wire::v1;

impl Reign {
    /// Answers as the first one was, if the handle still holds the lock as it was granted then.
    pub(super) fn granted_before(
        &mut self,
        t: &mut Turn<'_>,
        asker: Asker,
        by: Caller<'_>,
        acquire: &v1::AcquireLock,
        generation: u64,
    ) -> Result<Flow, Error> {
        let handle = self.handle(by.slot, acquire.handle)?.clone();
        let place = self.places.get(handle.place);
        let holder = (SessionId(by.call.session), handle.number);
        if t.state.instance(place) != Some(handle.instance) {
            return Err(error::node_gone(&place.path));
        }
        let lock = t.state.lock(place).filter(|lock| lock.generation == generation);
        if !lock.is_some_and(|lock| lock.holders.contains_key(&holder)) {
            return Err(error::not_held(&place.path));
        }
        self.answer_acquired(t, by.slot, asker, &handle, acquire.mode(), generation);
        Ok(Flow::Taken)
    }
}
