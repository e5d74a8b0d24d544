//! The clocks of this host, read in one place.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::Arc;
use tidings_base::{Mono, Now, Wall};

/// Where `Now` comes from: the host's clocks in production, something obedient in tests.
pub trait Clock: Send + Sync + 'static {
    /// Both times, read together.
    fn now(&self) -> Now;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Now {
        (**self).now()
    }
}

/// The host's own clocks: boot time, which counts suspended time as leases need it, and the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let boot = clock_gettime(ClockId::Boottime);
        let wall = clock_gettime(ClockId::Realtime);
        Now { mono: Mono(in_units(boot, 1)), wall: Wall(in_units(wall, 1_000)) }
    }
}

/// A point of time in units of `unit` nanoseconds; a clock before its epoch reads as zero.
fn in_units(time: Timespec, unit: u64) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000 / unit).saturating_add(nanos / unit)
}

/// Follows tokio's paused time.
#[cfg(test)]
pub(crate) struct PausedClock(tokio::time::Instant);

#[cfg(test)]
impl PausedClock {
    pub(crate) fn start() -> PausedClock {
        PausedClock(tokio::time::Instant::now())
    }
}

#[cfg(test)]
impl Clock for PausedClock {
    fn now(&self) -> Now {
        let passed = self.0.elapsed();
        Now { mono: Mono(0) + passed, wall: Wall(1_000_000) + passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_units_are_nanoseconds_and_microseconds() {
        let time = Timespec { tv_sec: 3, tv_nsec: 5_000_007 };
        assert_eq!((in_units(time, 1), in_units(time, 1_000)), (3_005_000_007, 3_005_000));
        let now = SystemClock.now();
        assert!(now.wall > Wall(1_700_000_000_000_000), "the wall clock counts microseconds since 1970");
        assert!(SystemClock.now().mono >= now.mono);
    }
}
