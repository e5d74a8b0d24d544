//! How fast a client's clock runs. R3 counts on ρ: no clock gains or loses more than that on another. A client says its
//! clock with every renewal, and what it says now and half a minute later is held against the clock here.
//!
//! A message that was long on its way makes the client's clock look late. So the one that was shortest on its way counts,
//! of all that came within some seconds: a pause of either side or a slow line accuses nobody.

use std::time::Duration;
use tidings_base::Mono;
use tidings_base::time::{shortened, stretched};

/// For so long renewals are looked at, each half a second after the one before, for the one that was quickest.
const COLLECT: Duration = Duration::from_secs(5);
/// Then not again until so long after they were first: two that are compared lie at least half a minute apart.
const EVERY: Duration = Duration::from_secs(35);
/// The quickest of ten may have been so much slower than another such: much less than ρ makes of half a minute.
const SLACK: Duration = Duration::from_millis(500);

/// What is known of one client's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// When it is looked at, or next will be.
    since: Option<Mono>,
    quickest: Option<Said>,
    earlier: Option<Said>,
    /// By the last comparison it ran too fast or too slow.
    pub(super) out_of_bound: bool,
}

/// A clock as a client said it, and when that came here.
#[derive(Clone, Copy, Debug)]
struct Said {
    here: Mono,
    there_us: u64,
}

impl Said {
    /// How far the client's clock is ahead; the shorter the way, the more.
    fn ahead(&self) -> i128 {
        i128::from(self.there_us) * 1_000 - i128::from(self.here.0)
    }
}

/// How much passed by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) ours: Duration,
    pub(super) theirs: Duration,
}

impl Compared {
    fn is_within(&self) -> bool {
        let fast = self.theirs > stretched(self.ours).saturating_add(SLACK);
        let slow = self.theirs.saturating_add(SLACK) < shortened(self.ours);
        !fast && !slow
    }
}

impl Pace {
    /// The client said its clock; what that came to, if it was compared now.
    pub(super) fn said(&mut self, now: Mono, there_us: u64) -> Option<Compared> {
        let said = Said { here: now, there_us };
        let since = *self.since.get_or_insert(now);
        if now < since {
            return None;
        }
        if now < since + COLLECT {
            let quickest = self.quickest.get_or_insert(said);
            if said.ahead() > quickest.ahead() {
                *quickest = said;
            }
            return None;
        }
        let Some(quickest) = self.quickest.take() else {
            // It was silent for long: what it said before then is not compared with.
            (self.since, self.quickest, self.earlier) = (Some(now), Some(said), None);
            return None;
        };
        self.since = Some(since + EVERY);
        let earlier = self.earlier.replace(quickest)?;
        let theirs = Duration::from_micros(quickest.there_us.saturating_sub(earlier.there_us));
        let compared = Compared { ours: quickest.here.since(earlier.here), theirs };
        self.out_of_bound = !compared.is_within();
        Some(compared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Seeded;

    /// Whether a clock that runs at so many hundredths of ours is found out of bound, and when first.
    fn found(percent: u64, delay: impl Fn(u64) -> u64) -> Option<u64> {
        let mut pace = Pace::default();
        (0..400).map(|turn| turn * 500).find(|ms| {
            let there_us = 77 + ms * 10 * percent;
            pace.said(Mono((1_000_000 + ms + delay(*ms)) * 1_000_000), there_us);
            pace.out_of_bound
        })
    }

    #[test]
    fn clocks_beyond_the_bound_are_found_within_a_minute() {
        for percent in [80, 120, 50, 300, 1] {
            assert!(found(percent, |_| 1).is_some_and(|ms| ms < 60_000), "{percent}");
        }
        for percent in [90, 95, 100, 105, 110] {
            assert_eq!(found(percent, |_| 1), None, "{percent}");
        }
    }

    #[test]
    fn slow_lines_and_pauses_accuse_nobody() {
        for seed in 0..20 {
            let jitter = |ms: u64| Seeded::new(seed * 1_000 + ms).below(1_000);
            assert_eq!(found(100, jitter), None, "seed {seed}");
            // Every message of ten seconds arrives at their end.
            let paused = |ms: u64| if (20_000..30_000).contains(&(ms % 60_000)) { 30_000 - ms % 60_000 } else { 1 };
            assert_eq!(found(100, paused), None);
        }
    }

    #[test]
    fn a_clock_that_was_set_right_is_good_again() {
        let mut pace = Pace::default();
        let mut there_us = 0;
        let mut say = |from: u64, to: u64, rate: u64| {
            (from..to).for_each(|turn| {
                there_us += 500 * 10 * rate;
                pace.said(Mono((turn * 500 + 1) * 1_000_000), there_us);
            });
            pace.out_of_bound
        };
        assert!(say(0, 100, 120));
        assert!(!say(100, 300, 100));
    }
}
