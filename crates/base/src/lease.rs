//! Leases as every part speaks of them: numbers that fence, and until when one holds.

use crate::time::{Mono, Now};
use std::fmt;

/// A fencing token: grows within a namespace whenever the ownership of a key was interrupted; below 2³¹.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseNumber(u32);

impl LeaseNumber {
    /// The largest lease number: everything that becomes part of a timestamp fits in 63 bits.
    pub const MAX: LeaseNumber = LeaseNumber((1 << 31) - 1);

    /// The lease number `n`, or `None` beyond [`LeaseNumber::MAX`].
    pub fn new(n: u32) -> Option<LeaseNumber> {
        (n <= Self::MAX.0).then_some(LeaseNumber(n))
    }

    /// The number itself.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for LeaseNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Something held until a point of this host's monotonic time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The first instant at which it is no longer held.
    pub until: Mono,
}

impl Lease {
    /// Whether the lease holds at `now`.
    pub fn holds(self, now: Now) -> bool {
        now.mono < self.until
    }
}

/// What a check of ownership says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The key is owned, under this number, at the instant of the check.
    Held(LeaseNumber),
    /// The key is not owned here; whoever asked must refuse, not serve.
    NotHeld,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Wall;

    #[test]
    fn a_lease_ends_at_its_deadline_and_not_after() {
        let lease = Lease { until: Mono(10) };
        let at = |mono| Now { mono: Mono(mono), wall: Wall(0) };
        assert!(lease.holds(at(9)));
        assert!(!lease.holds(at(10)));
    }

    #[test]
    fn lease_numbers_fit_in_31_bits() {
        assert_eq!(LeaseNumber::new(u32::MAX >> 1), Some(LeaseNumber::MAX));
        assert_eq!(LeaseNumber::new(1 << 31), None);
    }
}
