//! How an owner behaves.

use super::super::clock::Clock;
use super::hand_over::HandOver;
use super::items::{Items, Stamped};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How an owner behaves. Every field but the first three has a default that fits most.
#[derive(Clone)]
pub struct OwnerOptions {
    /// The namespace.
    pub namespace: String,
    /// The owner's name in it: one live process at a time.
    pub name: String,
    /// Where requests for its keys go; lookups hand it out as it is.
    pub address: String,
    /// Grows with every start of this owner's process; none = counted in [`data_dir`](OwnerOptions::data_dir), or the wall
    /// clock.
    pub incarnation: Option<u64>,
    /// A directory of this owner's own. It is locked, which proves to managers that an earlier process is dead: a restart
    /// then need not wait for the end of that one's leases.
    pub data_dir: Option<PathBuf>,
    /// Moves state to other owners; none = the state of what moves away is lost.
    pub hand_over: Option<Arc<dyn HandOver>>,
    /// The application's own judgement, asked every second and before each renewal: while it is `false` nothing is renewed,
    /// and what was held is given up (paper §2.4: a server that managers reach and clients do not).
    pub health: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// How long [`Owner::join`](super::Owner::join) waits. 90 s: longer than what an earlier process may still hold.
    pub join_within: Duration,
    /// How often to renew until a manager says otherwise. 2.5 s: as often as the fastest recommended namespace.
    pub renew: Duration,
    /// What leases are checked against.
    pub clock: Clock,
    pub(super) stamped: Vec<Arc<dyn Stamped>>,
}

impl OwnerOptions {
    /// An owner of this name in this namespace, which serves at this address.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, address: impl Into<String>) -> OwnerOptions {
        OwnerOptions {
            namespace: namespace.into(),
            name: name.into(),
            address: address.into(),
            incarnation: None,
            data_dir: None,
            hand_over: None,
            health: None,
            join_within: Duration::from_secs(90),
            renew: Duration::from_millis(2_500),
            clock: Clock::boot(),
            stamped: Vec::new(),
        }
    }

    /// The same with items that the owner serves: they are told of clean moves and of what is gone.
    pub fn items<V: Send + 'static>(mut self, items: &Items<V>) -> OwnerOptions {
        self.stamped.push(items.stamped());
        self
    }

    /// The same with a way to move state.
    pub fn hand_over(mut self, hand_over: impl HandOver) -> OwnerOptions {
        self.hand_over = Some(Arc::new(hand_over));
        self
    }

    /// The same with a directory of its own.
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> OwnerOptions {
        self.data_dir = Some(dir.into());
        self
    }

    /// The same with the application's own judgement of its health.
    pub fn health(mut self, health: impl Fn() -> bool + Send + Sync + 'static) -> OwnerOptions {
        self.health = Some(Arc::new(health));
        self
    }

    /// The same with this clock.
    pub fn clock(mut self, clock: Clock) -> OwnerOptions {
        self.clock = clock;
        self
    }
}

impl std::fmt::Debug for OwnerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnerOptions")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("address", &self.address)
            .field("hands_over", &self.hand_over.is_some())
            .finish_non_exhaustive()
    }
}
