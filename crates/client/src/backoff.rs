//! Pauses between attempts: they double, and each is shortened at random.

use std::time::Duration;
use tidings_base::Seeded;

/// The pauses of one series of attempts.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
    rng: Seeded,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration, rng: Seeded) -> Backoff {
        Backoff { first, longest, attempts: 0, rng }
    }

    /// The next pause: between half of the doubled pause and the whole of it.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.attempts.min(20)).min(self.longest);
        self.attempts = self.attempts.saturating_add(1);
        let nanos = u64::try_from(doubled.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.between(nanos / 2, nanos))
    }

    /// All is well again: the next pause is a short one.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(3));
        let pauses = |seed| {
            let mut backoff = Backoff::new(first, longest, Seeded::new(seed));
            (0..100).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        for (i, pause) in pauses(1).into_iter().enumerate() {
            let whole = first.saturating_mul(1 << i.min(20)).min(longest);
            assert!(pause >= whole / 2 && pause <= whole, "pause {i} is {pause:?}");
        }
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
