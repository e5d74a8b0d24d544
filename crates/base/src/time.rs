//! Two kinds of time that never mix, and the one bound on how clocks may differ.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// The bound on the relative rate of any two clocks, in percent: the platform's one ρ.
pub const RHO_PERCENT: u32 = 10;

/// The bound on the relative rate of any two clocks as a fraction.
pub const RHO: f64 = RHO_PERCENT as f64 / 100.0;

/// A point of monotonic time: nanoseconds of boot time, suspended time included.
///
/// Leases are computed on this and nothing else. Two hosts' `Mono`s cannot be compared.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

/// A point of wall-clock time: microseconds since 1970 in UTC. It may jump; nothing safe may depend on it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub u64);

/// What a driver tells a machine about time with every input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time of this host.
    pub mono: Mono,
    /// Wall-clock time of this host.
    pub wall: Wall,
}

impl Mono {
    /// The largest point of time: a deadline that never comes.
    pub const NEVER: Mono = Mono(u64::MAX);

    /// The time that has passed since `earlier`; zero when `earlier` is in the future.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This point moved back by `by`, stopping at zero.
    pub fn saturating_sub(self, by: Duration) -> Mono {
        Mono(self.0.saturating_sub(nanos(by)))
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    fn add(self, by: Duration) -> Mono {
        Mono(self.0.saturating_add(nanos(by)))
    }
}

impl Sub<Mono> for Mono {
    type Output = Duration;
    fn sub(self, earlier: Mono) -> Duration {
        self.since(earlier)
    }
}

impl Wall {
    /// Milliseconds since 1970.
    pub fn millis(self) -> u64 {
        self.0 / 1_000
    }
}

impl Add<Duration> for Wall {
    type Output = Wall;
    fn add(self, by: Duration) -> Wall {
        Wall(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// RFC 3339 in UTC with microseconds, as in our JSON.
impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, micros) = (self.0 / 86_400_000_000, self.0 % 86_400_000_000);
        let (year, month, day) = civil_from_days(days);
        let seconds = micros / 1_000_000;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
            seconds / 3_600,
            seconds / 60 % 60,
            seconds % 60,
            micros % 1_000_000
        )
    }
}

/// The lease as its holder may use it: shortened by ρ, because the holder's clock may run slow.
pub fn shortened(lease: Duration) -> Duration {
    lease * (100 - RHO_PERCENT) / 100
}

/// The lease as its granter must honour it: stretched by ρ, because the granter's clock may run fast.
pub fn stretched(lease: Duration) -> Duration {
    lease * (100 + RHO_PERCENT) / 100
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The proleptic Gregorian date of a day counted from 1970-01-01 (eras of 400 years, years beginning in March).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_prints_rfc_3339() {
        assert_eq!(Wall(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Wall(951_782_400_000_001).to_string(), "2000-02-29T00:00:00.000001Z");
        assert_eq!(Wall(1_735_689_599_999_999).to_string(), "2024-12-31T23:59:59.999999Z");
    }

    #[test]
    fn a_holder_stops_before_the_granter_at_the_rate_bound() {
        let lease = Duration::from_secs(60);
        assert_eq!(shortened(lease), Duration::from_secs(54));
        assert_eq!(stretched(lease), Duration::from_secs(66));
        assert_eq!(Mono(5).since(Mono(9)), Duration::ZERO);
        assert_eq!(Mono::NEVER + Duration::from_secs(1), Mono::NEVER);
    }
}
