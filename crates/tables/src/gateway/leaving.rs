//! R3: a device that leaves before all partitions have answered. Their owners do not know it, and nobody else would tell them:
//! each is told that it has gone until it has answered that.
//!
//! ```text
//!   Unwatch ─▶ answered: Remove, once; the owner has the query, and what concerns it is owed
//!           └▶ not answered: Remove ─ again ─ again ─▶ its owner's frame ─▶ forgotten
//! ```
//! A gateway that dies takes that with it. So a device is given no cursor before all have answered: one that has none of this
//! watch has not begun, and knows that it has to come again.

use super::{Gateway, Output, Watch};
use crate::live::{Body, Frame};
use crate::mutant::Mutant;
use crate::names::{NetId, PartitionId};
use tidings_base::{Now, Outbox};

impl Gateway {
    /// Whom Notify is to tell: it has the table's application alone.
    pub(super) fn told_by_notify(&self, watch: &Watch) -> Option<NetId> {
        let app = &self.directories.get(&watch.table)?.properties.app;
        watch.endpoint.as_ref().filter(|endpoint| endpoint.app == *app).map(|endpoint| endpoint.netid)
    }

    /// A client wants no more, or is gone.
    pub(super) fn leave(&mut self, now: Now, number: u64, out: &mut Outbox<Output>) {
        let query = self.id(number);
        let Some(watched) = self.queries.get(&number) else { return };
        let netid = self.told_by_notify(&watched.watch).filter(|_| !self.is(Mutant::LeftOnce));
        let is_known = watched.parts.values().all(|part| part.live);
        if netid.is_none() || is_known {
            return self.unwatch(number, false, out);
        }
        self.timers.cancel(&super::Timer::Expiry(number));
        let table = watched.watch.table;
        let live = watched.parts.iter().filter(|(_, part)| part.live).map(|(part, _)| *part);
        for part in live.collect::<Vec<_>>() {
            let partition = PartitionId { table, number: part };
            out.put(Output::Remove { partition, query, over: false, netid });
            self.left(number, partition);
        }
        let Some(watched) = self.queries.get_mut(&number) else { return };
        watched.leaving = netid;
        for part in watched.parts.keys().copied().collect::<Vec<_>>() {
            self.leave_word(now, number, PartitionId { table, number: part }, out);
        }
    }

    /// Tells an owner that a device has gone that it may not know; silence sees to it that it is told again.
    pub(super) fn leave_word(&mut self, now: Now, number: u64, partition: PartitionId, out: &mut Outbox<Output>) {
        let query = self.id(number);
        let Some(watched) = self.queries.get_mut(&number) else { return };
        let netid = watched.leaving;
        let Some(part) = watched.parts.get_mut(&partition.number) else { return };
        (part.live, part.asked) = (false, now.mono);
        if self.owners.contains_key(&partition) {
            out.put(Output::Remove { partition, query, over: false, netid });
        }
    }

    /// Whether a frame is of a query whose client has gone, as far as the gateway knows: then its owner knows the query, and
    /// learns what it has missed.
    pub(super) fn is_over_here(&mut self, number: u64, frame: Option<&Frame>, out: &mut Outbox<Output>) -> bool {
        let Some(frame) = frame else { return true };
        let (partition, query) = (frame.partition, self.id(number));
        let netid = match self.queries.get(&number) {
            None => None,
            Some(watched) if watched.leaving.is_none() => return false,
            Some(watched) => watched.leaving,
        };
        // Whoever does not own it, or not yet, says so and forgets it: the owner is still to be told.
        if let (Some(_), Body::Ended(refusal)) = (netid, &frame.body)
            && refusal.is_passing()
        {
            return true;
        }
        if netid.is_some() {
            self.left(number, partition);
        }
        // The word that its client has gone was lost: it would stay for nobody.
        if !matches!(frame.body, Body::Ended(_)) {
            out.put(Output::Remove { partition, query, over: false, netid });
        }
        true
    }

    /// A partition knows that the client has gone; with the last one the query goes.
    fn left(&mut self, number: u64, partition: PartitionId) {
        self.unlisten(number, partition);
        let Some(watched) = self.queries.get_mut(&number) else { return };
        watched.parts.remove(&partition.number);
        if watched.parts.is_empty() {
            self.queries.remove(&number);
        }
    }
}
