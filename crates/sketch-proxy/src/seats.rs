//! How much one of those behind a site may have under way: one that is stuck takes neither the room of all requests nor connections
//! without end.

use tokio::sync::{Semaphore, SemaphorePermit};

/// What one of them may have under way.
pub(crate) struct Seats {
    /// Everything. As much as may be under way, and as much again: votes end without whoever is slow, who is heard all the same.
    all: Semaphore,
    /// What waits for it and for nobody else. Half of what may be under way, unless there is nobody beside it.
    alone: Semaphore,
}

impl Seats {
    /// One of so many, where so many requests may be under way.
    pub(crate) fn of(replicas: u16, most_requests: usize) -> Seats {
        let alone = if replicas > 1 { most_requests.div_ceil(2) } else { most_requests };
        let bounded = |seats: usize| Semaphore::new(seats.min(Semaphore::MAX_PERMITS));
        Seats { all: bounded(most_requests.saturating_mul(2)), alone: bounded(alone) }
    }

    /// A seat until it is dropped, if one is free. Nobody waits for one: another way is open at once.
    pub(crate) fn take(&self, alone: bool) -> Option<[Option<SemaphorePermit<'_>>; 2]> {
        let alone = alone.then(|| self.alone.try_acquire()).transpose().ok()?;
        Some([Some(self.all.try_acquire().ok()?), alone])
    }
}
