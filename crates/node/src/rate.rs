//! How often an address, or whatever else is counted by, may do something: token buckets, a bounded number of them.

use parking_lot::Mutex;
use std::net::IpAddr;
use std::time::Duration;
use tidings_base::Mono;
use tidings_base::bounded::BoundedMap;

/// The most that are told apart; the least recently seen are forgotten first, which makes their buckets
/// full again. An attacker with more addresses than this has stronger weapons than forgotten buckets.
const MAX_BUCKETS: usize = 16_384;

/// Allows each address `burst` events at once and `burst` a `period` in the long run.
pub struct Rate<K = IpAddr> {
    burst: u32,
    period: Duration,
    buckets: Mutex<BoundedMap<K, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Mono,
}

impl<K: Ord + Clone> Rate<K> {
    /// `burst` events a `period`; 0 = any number.
    pub fn new(burst: u32, period: Duration) -> Rate<K> {
        Rate { burst, period, buckets: Mutex::new(BoundedMap::new(MAX_BUCKETS)) }
    }

    /// Counts one event; whether it is allowed.
    pub fn allow(&self, who: K, now: Mono) -> bool {
        self.take(who, now, 1.0)
    }

    /// Whether one more event would be allowed, without counting it.
    pub fn would_allow(&self, who: K, now: Mono) -> bool {
        self.take(who, now, 0.0)
    }

    fn take(&self, who: K, now: Mono, cost: f64) -> bool {
        if self.burst == 0 {
            return true;
        }
        let full = f64::from(self.burst);
        let mut buckets = self.buckets.lock();
        let Some(bucket) = buckets.get(&who) else {
            if cost > 0.0 {
                buckets.insert(who, Bucket { tokens: full - cost, at: now });
            }
            return true;
        };
        let gained = now.since(bucket.at).as_secs_f64() / self.period.as_secs_f64() * full;
        bucket.tokens = (bucket.tokens + gained).min(full);
        bucket.at = now;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= cost;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let rate = Rate::new(3, Duration::from_secs(3));
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let start = Mono(1_000);
        assert!((0..3).all(|_| rate.allow(a, start)));
        assert!(!rate.allow(a, start) && !rate.would_allow(a, start));
        assert!(rate.allow(b, start), "one address does not pay for another");
        let later = start + Duration::from_secs(1);
        assert!(rate.would_allow(a, later) && rate.allow(a, later) && !rate.allow(a, later));
        assert!((0..3).all(|_| rate.allow(a, later + Duration::from_secs(60))));
        assert!((0..1000).all(|_| Rate::new(0, Duration::from_secs(1)).allow(a, start)));
    }
}
