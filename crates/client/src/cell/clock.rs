//! The clock that leases are checked against.

use rustix::time::{ClockId, clock_gettime};
use tidings_base::{Mono, Now, Wall};
use tokio::time::Instant;

/// Where a session's time comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// Boot time, which counts suspended time as leases need it (spec: clocks).
    Boot,
    /// Tokio's time since this instant, which tests pause and move.
    Tokio(Instant),
}

impl Clock {
    /// The instant now.
    pub(crate) fn mono(self) -> Mono {
        match self {
            Clock::Boot => {
                let time = clock_gettime(ClockId::Boottime);
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
                Mono(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
            }
            // A session never reads zero: zero is "no time at all" for a lease's end.
            Clock::Tokio(since) => Mono(1) + since.elapsed(),
        }
    }

    /// The same for a machine. The cell's client has no use for the wall clock.
    pub(crate) fn now(self) -> Now {
        Now { mono: self.mono(), wall: Wall::default() }
    }
}
