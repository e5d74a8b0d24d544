//! What an application was told that it holds, and until when it may believe so.

use crate::clock::Clock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::time::{shortened, stretched};
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};
use tidings_client::placement::{Held, Leased};
use tidings_wire::v1;
use tokio::sync::Notify;

/// The longest that an answer may be believed, and so the longest that a recall waits for an application that does not
/// ask: less than what is left of the shortest recommended lease between two renewals.
pub(super) const HORIZON: Duration = Duration::from_secs(2);

/// What an application believes. At most as many entries as its owner has held in the last two seconds.
#[derive(Default)]
pub(super) struct Beliefs {
    until: Mutex<BTreeMap<Leased, Mono>>,
    /// The application knows more.
    changed: Notify,
    /// The lease of the namespace in microseconds, as a manager told it; 0 = not yet.
    lease_us: AtomicU64,
}

impl Beliefs {
    /// Tells what is held, and for how long that may be believed on a clock that may run slow by ρ. What is held is
    /// looked at under the same lock that a release looks at: either the release finds the belief, or the look finds
    /// nothing.
    pub(super) fn tell(&self, now: Mono, held: impl FnOnce() -> Vec<Held>) -> Vec<(Leased, Duration)> {
        let mut until = self.until.lock();
        let told = held().into_iter().map(|held| (held.leased, shortened(held.remaining).min(HORIZON)));
        let told: Vec<(Leased, Duration)> = told.collect();
        for (leased, belief) in &told {
            let end = now + stretched(*belief);
            let known = until.entry(*leased).or_insert(end);
            *known = (*known).max(end);
        }
        told
    }

    /// The application knows that it holds nothing but these.
    pub(super) fn only(&self, held: &[Leased]) {
        self.until.lock().retain(|leased, _| held.contains(leased));
        self.changed.notify_waiters();
    }

    /// The application knows that it does not hold this.
    pub(super) fn forget(&self, leased: Leased) {
        self.until.lock().retain(|believed, _| !leased.range.covers(believed.range) || believed.lease != leased.lease);
        self.changed.notify_waiters();
    }

    /// The application believes nothing.
    pub(super) fn clear(&self) {
        self.until.lock().clear();
        self.changed.notify_waiters();
    }

    /// Waits until the application believes in nothing but these claims.
    pub(super) async fn within(&self, claims: &[v1::LeasedRange], clock: &dyn Clock) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = clock.now().mono;
            let Some(end) = self.last_beyond(claims, now) else { return };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(end.since(now)) => {}
            }
        }
    }

    /// When the last belief ends that the claims do not cover.
    fn last_beyond(&self, claims: &[v1::LeasedRange], now: Mono) -> Option<Mono> {
        let mut until = self.until.lock();
        until.retain(|_, end| now < *end);
        until.iter().filter(|(leased, _)| !covered(claims, **leased)).map(|(_, end)| *end).max()
    }

    /// A manager said how long leases are.
    pub(super) fn lease_is(&self, lease_us: u64) {
        self.lease_us.store(lease_us, Ordering::Relaxed);
    }

    pub(super) fn lease(&self) -> Option<Duration> {
        let lease = self.lease_us.load(Ordering::Relaxed);
        (lease > 0).then(|| Duration::from_micros(lease))
    }
}

/// Whether claims under the same number cover a range; a manager may have cut it since.
fn covered(claims: &[v1::LeasedRange], leased: Leased) -> bool {
    let same = claims.iter().filter(|claim| LeaseNumber::new(claim.lease) == Some(leased.lease));
    let mut same: Vec<(u64, u64)> = same.map(|claim| (claim.start, claim.last)).collect();
    same.sort_unstable();
    let KeyRange { start: KeyHash(mut at), last: KeyHash(last) } = leased.range;
    for (start, end) in same {
        if start <= at && at <= end {
            if end >= last {
                return true;
            }
            at = end + 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn leased(start: u64, last: u64, lease: u32) -> Leased {
        let range = KeyRange::new(KeyHash(start), KeyHash(last));
        Leased { range, lease: LeaseNumber::new(lease).unwrap() }
    }

    fn claim(start: u64, last: u64, lease: u32) -> v1::LeasedRange {
        v1::LeasedRange { start, last, lease }
    }

    #[test]
    fn claims_cover_what_was_cut_since_and_only_under_the_same_number() {
        assert!(covered(&[claim(6, 9, 1), claim(0, 5, 1)], leased(0, 9, 1)));
        assert!(covered(&[claim(0, u64::MAX, 1)], leased(3, u64::MAX, 1)));
        assert!(!covered(&[claim(0, 5, 1), claim(7, 9, 1)], leased(0, 9, 1)));
        assert!(!covered(&[claim(0, 9, 2)], leased(0, 9, 1)));
    }

    #[tokio::test]
    async fn a_release_waits_for_the_end_of_the_belief_or_its_acknowledgement() {
        let beliefs = Beliefs::default();
        let remaining = Duration::from_secs(60);
        let one = Held { leased: leased(0, 9, 1), remaining };
        let told = beliefs.tell(SystemClock.now().mono, || vec![one]);
        assert_eq!(told, [(one.leased, HORIZON)], "nothing is believed for long");
        // What is still claimed is not released.
        beliefs.within(&[claim(0, 9, 1)], &SystemClock).await;
        let released = beliefs.within(&[], &SystemClock);
        let mut released = std::pin::pin!(released);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut released).await.is_err());
        beliefs.only(&[]);
        tokio::time::timeout(Duration::from_secs(1), released).await.expect("it was acknowledged");
        let short = Held { remaining: Duration::from_millis(40), ..one };
        let told = beliefs.tell(SystemClock.now().mono, || vec![short]);
        assert!(told[0].1 < short.remaining, "the application's clock may be slow");
        let ended = tokio::time::timeout(Duration::from_secs(1), beliefs.within(&[], &SystemClock)).await;
        assert!(ended.is_ok(), "a belief ends by itself");
    }
}
