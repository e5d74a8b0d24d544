//! What becomes of the machines with the ranges that placement gives and takes.

use super::{Node, Out};
use crate::kernel::{Effect, HostId};
use crate::scenarios::placement::letter::Body;
use crate::scenarios::placement::ring::{Hears, News};
use std::time::Duration;
use tidings_base::{KeyHash, Mono, Now};
use tidings_notify::{matcher, registrar};
use tidings_placement::owner::OwnershipChange;

impl Node {
    /// How much of the ring is held here now.
    pub fn held(&self, now: Mono) -> u128 {
        self.ranges.held(now)
    }

    /// Whether a key is held here now.
    pub fn holds_key(&self, now: Now, key: KeyHash) -> bool {
        self.ranges.lease(now, key).is_some()
    }

    /// From now on the machines hear so much later what has become of ranges.
    pub fn be_busy(&mut self, late: Option<Duration>) {
        self.ranges.be_busy(late);
    }

    /// Hands everything over and leaves.
    pub fn drain(&mut self, now: Now, out: &mut Out) {
        self.ranges.drain(now, Hears { rng: &mut self.rng, calm: self.calm }, out);
    }

    pub(super) fn start_ranges(&mut self, now: Now, out: &mut Out) {
        self.ranges.start(now, Hears { rng: &mut self.rng, calm: self.calm }, out);
    }

    pub(super) fn wake_ranges(&mut self, now: Now, out: &mut Out) {
        for news in self.ranges.wake(now, Hears { rng: &mut self.rng, calm: self.calm }, out) {
            match news {
                News::Changed(change) => self.ranges_changed(now, change, out),
                News::Drained => out.put(Effect::Exit { why: "drained".to_owned() }),
            }
        }
    }

    pub(super) fn manager_said(&mut self, now: Now, from: HostId, id: u64, body: Body, out: &mut Out) {
        self.ranges.manager_said(now, from, (id, body), Hears { rng: &mut self.rng, calm: self.calm }, out);
    }

    fn ranges_changed(&mut self, now: Now, change: OwnershipChange, out: &mut Out) {
        for leased in change.revoked {
            let range = leased.range;
            self.feed_registrar(now, registrar::Input::Lost { range }, out);
            self.feed_matcher(now, matcher::Input::Lost { range }, out);
        }
        // F3: the realm is read after the lease was granted and before it is used.
        self.hear_realm(now, out);
        for (leased, _) in change.granted {
            let (range, lease) = (leased.range, leased.lease);
            self.feed_registrar(now, registrar::Input::Gained { range, lease }, out);
            self.feed_matcher(now, matcher::Input::Gained { range, lease }, out);
        }
    }
}
