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
    told: Mutex<Told>,
    /// The application knows more.
    changed: Notify,
    /// The lease of the namespace in microseconds, as a manager told it; 0 = not yet.
    lease_us: AtomicU64,
}

#[derive(Default)]
struct Told {
    /// How often something was told.
    count: u64,
    until: BTreeMap<Leased, Belief>,
}

struct Belief {
    end: Mono,
    /// When it was told last, by the count.
    told: u64,
}

/// What was told in one answer.
pub(super) struct Telling {
    /// Which answer it was.
    pub(super) count: u64,
    /// What is held, and for how long that may be believed.
    pub(super) held: Vec<(Leased, Duration)>,
}

impl Beliefs {
    /// Tells what is held, and for how long that may be believed on a clock that may run slow by ρ. What is held is
    /// looked at under the same lock that a release looks at: either the release finds the belief, or the look finds
    /// nothing.
    pub(super) fn tell(&self, now: Mono, held: impl FnOnce() -> Vec<Held>) -> Telling {
        let mut told = self.told.lock();
        let Told { count, until } = &mut *told;
        *count += 1;
        let held = held().into_iter().map(|held| (held.leased, shortened(held.remaining).min(HORIZON)));
        let held: Vec<(Leased, Duration)> = held.collect();
        for (leased, belief) in &held {
            let end = now + stretched(*belief);
            let known = until.entry(*leased).or_insert(Belief { end, told: *count });
            *known = Belief { end: known.end.max(end), told: *count };
        }
        Telling { count: *count, held }
    }

    /// The application took an answer to its word: it holds nothing but these. What it was told after that answer, by a
    /// check meanwhile, it may still believe.
    pub(super) fn only(&self, held: &[Leased], count: u64) {
        let held: Vec<v1::LeasedRange> = held.iter().map(|leased| (*leased).into()).collect();
        self.told.lock().until.retain(|leased, belief| belief.told > count || covered(&held, *leased));
        self.changed.notify_waiters();
    }

    /// The application knows that it does not hold this.
    pub(super) fn forget(&self, leased: Leased) {
        self.told
            .lock()
            .until
            .retain(|believed, _| !leased.range.covers(believed.range) || believed.lease != leased.lease);
        self.changed.notify_waiters();
    }

    /// The application believes nothing.
    pub(super) fn clear(&self) {
        self.told.lock().until.clear();
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
        let until = &mut self.told.lock().until;
        until.retain(|_, belief| now < belief.end);
        until.iter().filter(|(leased, _)| !covered(claims, **leased)).map(|(_, belief)| belief.end).max()
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
        assert_eq!(told.held, [(one.leased, HORIZON)], "nothing is believed for long");
        // What is still claimed is not released.
        beliefs.within(&[claim(0, 9, 1)], &SystemClock).await;
        let released = beliefs.within(&[], &SystemClock);
        let mut released = std::pin::pin!(released);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut released).await.is_err());
        beliefs.only(&[], told.count);
        tokio::time::timeout(Duration::from_secs(1), released).await.expect("it was acknowledged");
        let short = Held { remaining: Duration::from_millis(40), ..one };
        let told = beliefs.tell(SystemClock.now().mono, || vec![short]);
        assert!(told.held[0].1 < short.remaining, "the application's clock may be slow");
        let ended = tokio::time::timeout(Duration::from_secs(1), beliefs.within(&[], &SystemClock)).await;
        assert!(ended.is_ok(), "a belief ends by itself");
    }

    #[test]
    fn an_acknowledgement_ends_no_belief_that_was_told_after_what_it_acknowledges() {
        let beliefs = Beliefs::default();
        let held = |leased| Held { leased, remaining: Duration::from_secs(60) };
        let now = SystemClock.now().mono;
        let picture = beliefs.tell(now, || vec![held(leased(0, 4, 1)), held(leased(5, 9, 1))]);
        // A check finds a range that was granted meanwhile.
        let checked = beliefs.tell(now, || vec![held(leased(20, 29, 2))]);
        let of_picture: Vec<Leased> = picture.held.iter().map(|(leased, _)| *leased).collect();
        beliefs.only(&of_picture, picture.count);
        assert!(beliefs.last_beyond(&[claim(0, 9, 1)], now).is_some(), "the check's word is believed still");
        beliefs.only(&of_picture, checked.count);
        assert!(beliefs.last_beyond(&[claim(0, 9, 1)], now).is_none(), "it was taken back");
        // The ranges of a picture were one when a check spoke of them: it is still believed.
        let joined = beliefs.tell(now, || vec![held(leased(0, 9, 1))]);
        beliefs.only(&of_picture, joined.count);
        assert!(beliefs.last_beyond(&[], now).is_some());
    }
}
