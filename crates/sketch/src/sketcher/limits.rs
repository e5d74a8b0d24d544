//! How many replicated reads one client may cause (rule L): queries made up to miss the table cost N executions each.

use std::time::Duration;
use tidings_base::Mono;
use tidings_base::bounded::BoundedMap;

/// So many at once, and one more every `every` in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// How many at once.
    pub burst: u32,
    /// How long until one more.
    pub every: Duration,
}

/// All requests, as a share of them.
pub const WHOLE: u32 = 1 << 16;

/// The most clients that are told apart; the least recently seen begin anew with a full allowance.
const MOST_CLIENTS: usize = 16_384;

#[derive(Debug)]
pub(super) struct Limits {
    allowance: Option<Allowance>,
    /// When each client's allowance would be whole again.
    whole_at: BoundedMap<u64, Mono>,
}

impl Limits {
    pub(super) fn new(allowance: Option<Allowance>) -> Limits {
        Limits { allowance, whole_at: BoundedMap::new(MOST_CLIENTS) }
    }

    /// Counts one replicated read; whether it is allowed. Of sketchers that share their requests each allows a client the part
    /// that it has of them (`share`, in [`WHOLE`]ths), so that all of them together allow what one would.
    pub(super) fn allow(&mut self, now: Mono, client: u64, share: u32) -> bool {
        let Some(Allowance { burst, every }) = self.allowance else { return true };
        let share = share.clamp(1, WHOLE);
        let every = every.saturating_mul(WHOLE) / share;
        let burst = u64::from(burst).saturating_mul(share.into()).div_ceil(WHOLE.into());
        let whole_at = self.whole_at.get(&client).map_or(now, |at| (*at).max(now)) + every;
        let allowed = whole_at.since(now) <= every.saturating_mul(u32::try_from(burst).unwrap_or(u32::MAX));
        if allowed {
            self.whole_at.insert(client, whole_at);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_burst_and_then_a_rate() {
        let mut limits = Limits::new(Some(Allowance { burst: 3, every: Duration::from_secs(1) }));
        let at = |seconds| Mono(0) + Duration::from_secs(seconds);
        let allowed: Vec<bool> = [0, 0, 0, 0, 1, 1].map(|second| limits.allow(at(second), 7, WHOLE)).to_vec();
        assert_eq!(allowed, [true, true, true, false, true, false]);
        assert!(limits.allow(at(1), 8, WHOLE), "others are not held back");
        assert!((0..3).all(|_| limits.allow(at(100), 7, WHOLE)) && !limits.allow(at(100), 7, WHOLE));
    }

    #[test]
    fn parts_of_a_whole_allow_together_what_it_would() {
        let allowance = Some(Allowance { burst: 100, every: Duration::from_secs(1) });
        let allowed = |share, second| {
            let mut limits = Limits::new(allowance);
            let at = |second| Mono(0) + Duration::from_secs(second);
            let at_once = (0..200).filter(|_| limits.allow(at(0), 7, share)).count();
            // From then on, in so many seconds.
            let later = (0..=second).map(at).map(|at| (0..200).filter(|_| limits.allow(at, 7, share)).count());
            (at_once, later.sum::<usize>())
        };
        assert_eq!(allowed(WHOLE, 60), (100, 60));
        assert_eq!(allowed(WHOLE / 4, 60), (25, 15));
        assert_eq!(allowed(WHOLE / 4 * 3, 60), (75, 45));
        assert_eq!(allowed(1, 0), (1, 0), "a part may be small, and is one");
    }
}
