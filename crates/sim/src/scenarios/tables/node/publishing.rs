//! What a node tells Notify (R3): late, and now and then in vain.

use super::{Later, Node, Out, place};
use tidings_base::Now;
use tidings_tables::names::{Object, PartitionId, Position};
use tidings_tables::processor;

/// One of so many publications fails, or nobody hears that it did not; without faults, too: it is published again.
const FAILS: u64 = 6;

/// What the owner of a partition publishes.
pub(super) struct Publication {
    pub partition: PartitionId,
    /// Names the answer.
    pub number: u64,
    pub publications: Vec<(Object, Position)>,
}

impl Node {
    pub(super) fn publish(&mut self, now: Now, publication: Publication, out: &mut Out) {
        match self.devices {
            true => self.after(now, 1, 300, Later::Publishes(publication)),
            // Nobody listens.
            false => self.published(now, &publication, true, out),
        }
    }

    /// Only whoever holds the partition publishes for it.
    pub(super) fn publishes(&mut self, now: Now, publication: Publication) {
        let lost = self.rng.one_in(FAILS);
        let holds = self.ring.lease(now, place(publication.partition)).is_some();
        let done = holds && !(lost && self.rng.one_in(2));
        if done {
            self.notify.take(&publication.publications);
        }
        let most = if lost { 2_000 } else { 50 };
        self.after(now, 1, most, Later::Published(publication, done && !lost));
    }

    pub(super) fn published(&mut self, now: Now, publication: &Publication, done: bool, out: &mut Out) {
        let Publication { partition, number, .. } = *publication;
        self.feed_processor(now, processor::Input::Published { partition, number, done }, out);
    }
}
