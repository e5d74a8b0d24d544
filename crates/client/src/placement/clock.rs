//! The clock that leases are checked against.

use super::tsc::Tsc;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use tidings_base::{Mono, Now, Wall};
use tokio::time::Instant;

/// Where an owner's time comes from. Each reads the hardware at every call: no thread updates it, so a process that slept
/// cannot be shown an old time.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    source: Source,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    Boot,
    Tsc(Arc<Tsc>),
    Tokio(Instant),
}

impl Clock {
    /// Boot time, which counts suspended time as leases need it.
    pub fn boot() -> Clock {
        Clock::default()
    }

    /// The processor's time-stamp counter where it is fit for it, else boot time.
    ///
    /// It is several times quicker to read. It is used only if the processor calls it invariant, the kernel keeps its own
    /// time by it, and this host was never suspended; it is compared with boot time ten times a second by whoever reads it,
    /// and given up for good at the first doubt.
    pub fn fast() -> Clock {
        Tsc::calibrate().map_or_else(Clock::boot, |tsc| Clock { source: Source::Tsc(Arc::new(tsc)) })
    }

    /// Tokio's time, which tests pause and move.
    pub fn tokio() -> Clock {
        Clock { source: Source::Tokio(Instant::now()) }
    }

    /// Whether it reads the time-stamp counter at this moment.
    pub fn is_fast(&self) -> bool {
        matches!(&self.source, Source::Tsc(tsc) if tsc.is_trusted())
    }

    /// The instant now.
    #[inline]
    pub fn mono(&self) -> Mono {
        match &self.source {
            Source::Boot => boot(),
            Source::Tsc(tsc) => tsc.mono(),
            // Zero is "no time at all" for a lease's end, so no clock reads it.
            Source::Tokio(since) => Mono(1) + since.elapsed(),
        }
    }

    /// The same for a machine. Placement has no use for the wall clock.
    pub(crate) fn now(&self) -> Now {
        Now { mono: self.mono(), wall: Wall::default() }
    }
}

/// Boot time: monotonic, suspended time included.
#[inline]
pub(crate) fn boot() -> Mono {
    nanos(ClockId::Boottime)
}

/// Monotonic time without suspended time: the difference says whether the host was ever suspended.
pub(crate) fn awake() -> Mono {
    nanos(ClockId::Monotonic)
}

fn nanos(clock: ClockId) -> Mono {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Mono(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}
