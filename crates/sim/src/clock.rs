//! Virtual time and the clocks that hosts read it by.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;
use tidings_base::time::{Mono, Now, RHO_PERCENT, Wall};

/// True time of a simulation in nanoseconds since its beginning. No host can read it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(pub u64);

impl SimTime {
    /// The beginning.
    pub const ZERO: SimTime = SimTime(0);

    /// How much has passed since `earlier`; zero when that is in the future.
    pub fn since(self, earlier: SimTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for SimTime {
    type Output = SimTime;
    fn add(self, by: Duration) -> SimTime {
        SimTime(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<SimTime> for SimTime {
    type Output = Duration;
    fn sub(self, earlier: SimTime) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Seconds with microseconds, as traces show it.
impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

/// The furthest a clock may run from true time, in parts per million: half of ρ to either side, so that two hosts
/// never differ by more than ρ.
pub const MAX_PPM: i32 = (RHO_PERCENT as i32) * 10_000 / 2;

/// Wall-clock time at the beginning of every simulation: 2026-01-01 in microseconds, so that stamps look real.
const WALL_EPOCH: u64 = 1_767_225_600_000_000;

const MILLION: i128 = 1_000_000;

/// The clock of one host: a rate that may change within the bound, and a wall clock that may jump.
#[derive(Clone, Debug)]
pub struct HostClock {
    base_true: SimTime,
    base_mono: Mono,
    ppm: i32,
    wall_offset: i64,
    /// It stands still: a mutant's doing.
    stands: bool,
}

impl HostClock {
    /// A clock that shows `mono` at the beginning and runs at this rate (clamped to [`MAX_PPM`]).
    pub fn new(mono: Mono, ppm: i32) -> HostClock {
        let ppm = ppm.clamp(-MAX_PPM, MAX_PPM);
        HostClock { base_true: SimTime::ZERO, base_mono: mono, ppm, wall_offset: 0, stands: false }
    }

    /// What the host reads at a true instant.
    pub fn now(&self, at: SimTime) -> Now {
        let wall = (WALL_EPOCH + at.0 / 1_000).saturating_add_signed(self.wall_offset);
        Now { mono: self.mono(at), wall: Wall(wall) }
    }

    /// The monotonic clock at a true instant (never before the clock's last adjustment).
    pub fn mono(&self, at: SimTime) -> Mono {
        if self.stands {
            return self.base_mono;
        }
        let passed = i128::from(at.0.saturating_sub(self.base_true.0));
        let counted = passed * (MILLION + i128::from(self.ppm)) / MILLION;
        Mono(self.base_mono.0.saturating_add(u64::try_from(counted).unwrap_or(u64::MAX)))
    }

    /// The first true instant at which the monotonic clock shows at least `mono`.
    pub fn when(&self, mono: Mono) -> SimTime {
        if mono == Mono::NEVER {
            return SimTime(u64::MAX);
        }
        let ahead = i128::from(mono.0.saturating_sub(self.base_mono.0)) * MILLION;
        let rate = MILLION + i128::from(self.ppm);
        let passed = (ahead + rate - 1) / rate;
        SimTime(self.base_true.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// Changes the rate from now on, without a jump.
    pub fn set_rate(&mut self, at: SimTime, ppm: i32) {
        self.base_mono = self.mono(at);
        self.base_true = at;
        self.ppm = ppm.clamp(-MAX_PPM, MAX_PPM);
    }

    /// The rate as parts per million away from true time.
    pub fn ppm(&self) -> i32 {
        self.ppm
    }

    /// Stands still from now on, as `CLOCK_MONOTONIC` does while its machine sleeps: what no clock of leases may do (F11).
    pub fn stop(&mut self, at: SimTime) {
        self.set_rate(at, self.ppm);
        self.stands = true;
    }

    /// Goes on from where it stood, if it did.
    pub fn go_on(&mut self, at: SimTime) {
        if self.stands {
            (self.base_true, self.stands) = (at, false);
        }
    }

    /// The machine booted: its monotonic clock begins anew.
    pub fn reboot(&mut self, at: SimTime, mono: Mono) {
        self.base_true = at;
        self.base_mono = mono;
        self.stands = false;
    }

    /// The wall clock jumps by this many microseconds.
    pub fn jump_wall(&mut self, micros: i64) {
        self.wall_offset = self.wall_offset.saturating_add(micros);
    }
}
