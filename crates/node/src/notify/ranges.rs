//! Ranges by placement: this node is an owner in [`NAMESPACE`], and every node looks owners up there.

use super::NAMESPACE;
use super::hub::Hub;
use crate::placement::joining::{Member, Pool};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, LeaseNumber};
use tidings_client::placement::Owner;
use tidings_notify::{matcher, registrar};

/// What the machines were told that they hold. A call that came before its range is known to the machines would be lost on
/// them, and whoever sent it would wait: it is refused instead, and tried again in a moment.
#[derive(Default)]
pub(super) struct Served {
    /// None wraps.
    ranges: RwLock<Vec<(KeyRange, LeaseNumber)>>,
}

impl Served {
    pub(super) fn holds(&self, key: KeyHash, lease: LeaseNumber) -> bool {
        self.ranges.read().iter().any(|(range, held)| *held == lease && range.contains(key))
    }

    fn gain(&self, range: KeyRange, lease: LeaseNumber) {
        self.lose(range);
        let pieces = match range.last < range.start {
            false => vec![range],
            true => vec![KeyRange::new(range.start, KeyHash(u64::MAX)), KeyRange::new(KeyHash(0), range.last)],
        };
        self.ranges.write().extend(pieces.into_iter().map(|piece| (piece, lease)));
    }

    /// What is left of a range that was cut stays.
    fn lose(&self, range: KeyRange) {
        let mut ranges = self.ranges.write();
        for at in [range.start, KeyHash(range.last.0.wrapping_add(1))] {
            let cut = |(piece, lease): (KeyRange, LeaseNumber)| match piece.split(at) {
                Some((left, right)) => vec![(left, lease), (right, lease)],
                None => vec![(piece, lease)],
            };
            *ranges = std::mem::take(&mut *ranges).into_iter().flat_map(cut).collect();
        }
        ranges.retain(|(piece, _)| !range.contains(piece.start));
    }
}

/// Begins to look up and to own, and tells the machines what is gained and lost.
pub(super) async fn follow(hub: Arc<Hub>) {
    let Some(owner) = begin(&hub).await else { return };
    let mut changes = owner.changes();
    let _: Result<(), Owner> = hub.owner.set(owner.clone());
    while let Some(change) = changes.next().await {
        if change.missed {
            hub.lost(KeyRange::FULL).await;
        }
        for leased in &change.revoked {
            hub.lost(leased.range).await;
        }
        let granted = match change.missed {
            true => owner.held().into_iter().map(|held| held.leased).collect(),
            false => change.granted,
        };
        if !granted.is_empty() {
            // F3: read after the lease was granted, compared with the store, and before anything is served under it.
            hub.refresh_realm().await;
        }
        for leased in granted {
            hub.gained(leased.range, leased.lease).await;
        }
    }
}

/// Begins to look up, and to own if this node serves.
async fn begin(hub: &Arc<Hub>) -> Option<Owner> {
    let told = &hub.told;
    let pool = Pool {
        part: "notify",
        namespace: NAMESPACE,
        lease_ms: millis(told.config.lease.into()),
        renew_ms: millis(told.config.renew.into()),
        through: hub.through.clone(),
    };
    let member =
        told.serves.then(|| Member { node: told.node, address: told.address.clone(), data: told.data.clone() });
    pool.join(&hub.lookup, member, || hub.stored()).await
}

impl Hub {
    async fn lost(&self, range: KeyRange) {
        self.served.lose(range);
        self.matcher(matcher::Input::Lost { range }).await;
        self.registrar(registrar::Input::Lost { range }).await;
    }

    /// F2: few numbers are left under a lease. What is given up comes back under another in a moment.
    pub(super) fn renumber(&self, lease: LeaseNumber) {
        let Some(owner) = self.owner.get() else { return };
        tracing::info!(lease = lease.get(), "ranges are given up and asked for anew: the lease's numbers are used up");
        owner.set_healthy(false);
        owner.set_healthy(true);
    }

    async fn gained(&self, range: KeyRange, lease: LeaseNumber) {
        self.matcher(matcher::Input::Gained { range, lease }).await;
        self.registrar(registrar::Input::Gained { range, lease }).await;
        // Whatever comes from now on reaches the machines after that.
        self.served.gain(range, lease);
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_range_that_was_cut_is_served_still() {
        let range = |start, last| KeyRange::new(KeyHash(start), KeyHash(last));
        let (one, two) = (LeaseNumber::new(1).unwrap(), LeaseNumber::new(2).unwrap());
        let served = Served::default();
        served.gain(range(90, 9), one);
        served.lose(range(95, 99));
        let holds = |lease| [90, 94, 95, 99, 100, u64::MAX, 0, 9, 10].map(|key| served.holds(KeyHash(key), lease));
        assert_eq!(holds(one), [true, true, false, false, true, true, true, true, false]);
        served.gain(range(92, 5), two);
        assert_eq!(holds(one), [true, false, false, false, false, false, false, true, false]);
        assert_eq!(holds(two), [false, true, true, true, true, true, true, false, false]);
        served.lose(KeyRange::FULL);
        assert_eq!(holds(two), [false; 9]);
    }
}
