//! Lease times of a namespace.

use std::time::Duration;
use tidings_base::time::stretched;
use tidings_base::{Class, Error};
use tidings_wire::v1;

/// Points on the ring that an owner begins with.
pub const VIRTUAL_NODES: u32 = 64;

/// How long a drain may take before what is left is lost.
pub const DRAIN: Duration = Duration::from_secs(60);

/// The pause between two rounds of a policy.
pub const ROUND: Duration = Duration::from_secs(60);

/// The policy of a namespace that names none.
pub const POLICY: &str = "hottest";

/// A namespace's configuration as people should see it: zero and empty are replaced by what they stand for.
pub fn effective(config: &v1::NamespaceConfig) -> v1::NamespaceConfig {
    let times = Times::new(config.lease_ms, config.renew_ms);
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let or = |said: u32, default: u32| if said == 0 { default } else { said };
    v1::NamespaceConfig {
        lease_ms: millis(times.lease),
        renew_ms: millis(times.renew),
        policy: if config.policy.is_empty() { POLICY.to_owned() } else { config.policy.clone() },
        virtual_nodes: or(config.virtual_nodes, VIRTUAL_NODES),
        drain_ms: or(config.drain_ms, millis(DRAIN)),
        rebalance_ms: or(config.rebalance_ms, millis(ROUND)),
    }
}

/// How long owners hold leases, and how often they renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For how long an owner may use a lease, on its own clock, from the send time of the message it answers.
    pub lease: Duration,
    /// How often an owner renews, and the longest that a manager holds its poll.
    pub renew: Duration,
}

impl Times {
    /// The paper's: 60 s leases, renewed every 15 s, so that three renewals in a row must be lost (§2.3).
    pub const PAPER: Times = Times { lease: Duration::from_secs(60), renew: Duration::from_secs(15) };
    /// For fast fail-over, and for our own parts.
    pub const FAST: Times = Times { lease: Duration::from_secs(12), renew: Duration::from_millis(2_500) };

    /// Times from a namespace's configuration: zero means the default.
    pub fn new(lease_ms: u32, renew_ms: u32) -> Times {
        let lease = if lease_ms == 0 { Times::PAPER.lease } else { Duration::from_millis(lease_ms.into()) };
        let renew = if renew_ms == 0 { lease / 4 } else { Duration::from_millis(renew_ms.into()) };
        Times { lease, renew }
    }

    /// For how long the manager must honour a lease after its last renewal left: the owner's clock may run slow by ρ.
    pub fn honoured(&self) -> Duration {
        stretched(self.lease)
    }

    /// For how long a poll is held at most: half of a renewal interval, so that a lease is never older than one
    /// interval when the poll that renews it is lost with its manager (F10 counts on that).
    pub fn hold(&self) -> Duration {
        self.renew / 2
    }

    /// F10: a leader's fail-over must fit between the last renewal and the lease's end, or a healthy owner would lose
    /// its leases whenever a manager dies.
    pub fn check(&self, fail_over: &FailOver) -> Result<(), Error> {
        let needed = fail_over.session + fail_over.cell + fail_over.round_trip;
        if self.renew.is_zero() || self.lease.saturating_sub(self.renew) < needed {
            let what = format!(
                "a lease of {:?} renewed every {:?} does not outlast a fail-over of the manager ({needed:?})",
                self.lease, self.renew
            );
            return Err(Error::new("placement.bad_times", Class::Invalid, what)
                .hint("Use longer leases or shorter renewals; 12 s and 2.5 s are known to work."));
        }
        Ok(())
    }
}

/// F10: what a lease must outlast after its last renewal, so that a manager's death costs no healthy owner anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailOver {
    /// The manager's own cell session: so long its lock outlives it.
    pub session: Duration,
    /// The cell's own fail-over, which may come at the same time.
    pub cell: Duration,
    /// One round trip of an owner.
    pub round_trip: Duration,
}

impl Default for FailOver {
    fn default() -> FailOver {
        FailOver { session: Duration::from_secs(3), cell: Duration::from_secs(5), round_trip: Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_shown_as_it_is() {
        let shown = effective(&v1::NamespaceConfig { lease_ms: 12_000, ..Default::default() });
        assert_eq!((shown.lease_ms, shown.renew_ms, shown.policy.as_str()), (12_000, 3_000, POLICY));
        assert_eq!((shown.virtual_nodes, shown.drain_ms, shown.rebalance_ms), (64, 60_000, 60_000));
        assert_eq!(effective(&shown), shown);
    }

    #[test]
    fn both_recommended_settings_outlast_a_fail_over() {
        let fail_over = FailOver::default();
        for times in [Times::PAPER, Times::FAST, Times::new(0, 0)] {
            times.check(&fail_over).unwrap();
        }
        assert_eq!(Times::PAPER.honoured(), Duration::from_secs(66));
        assert_eq!(Times::FAST.honoured(), Duration::from_millis(13_200));
        let tight = Times::new(10_000, 2_000).check(&fail_over).unwrap_err();
        assert_eq!(tight.code, "placement.bad_times");
        assert!(Times { lease: Times::PAPER.lease, renew: Duration::ZERO }.check(&fail_over).is_err());
    }
}
