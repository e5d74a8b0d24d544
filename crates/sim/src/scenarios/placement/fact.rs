//! What hosts of the scenario state.

use crate::kernel::HostId;
use std::time::Duration;
use tidings_base::{KeyHash, LeaseNumber, Mono};
use tidings_placement::Leased;
use tidings_placement::check::Holding;

/// How many keys are watched one by one; ranges are watched whole.
pub const KEYS: u64 = 32;

/// Where a watched key stands on the ring.
pub fn place(key: u64) -> KeyHash {
    KeyHash::of(format!("key {key}").as_bytes())
}

/// The watched keys of a range.
pub fn keys_of(leased: Leased) -> impl Iterator<Item = u64> {
    (0..KEYS).filter(move |key| leased.range.contains(place(*key)))
}

/// One start of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    /// Where it runs.
    pub host: HostId,
    /// Which start it is.
    pub start: u64,
}

/// A fact.
#[derive(Clone, Debug)]
pub enum Fact {
    /// An owner's process started, and holds nothing.
    Started(Life),
    /// An owner's threads check against this from now on.
    Published {
        /// Whose.
        life: Life,
        /// What may be served, and until when on its own clock.
        held: Vec<Holding>,
        /// When it last asked a manager, on its own clock.
        asked: Mono,
        /// The lease of the namespace.
        lease: Duration,
    },
    /// An owner's application was given a range.
    Took {
        /// Whose.
        life: Life,
        /// What.
        leased: Leased,
        /// Its state came along.
        clean: bool,
        /// The state of its watched keys from now on.
        states: Vec<(u64, u64)>,
    },
    /// An owner's application lost a range.
    Dropped {
        /// Whose.
        life: Life,
        /// What.
        leased: Leased,
    },
    /// A lookup says from now on who owns a watched key.
    Row {
        /// Whose.
        life: Life,
        /// The key.
        key: u64,
        /// Under which number; `None` = nobody.
        lease: Option<LeaseNumber>,
    },
    /// A lookup told its application of lost state.
    Lost {
        /// Whose.
        life: Life,
        /// The watched keys in it.
        keys: Vec<u64>,
        /// All of it: another namespace of that name.
        everything: bool,
    },
    /// An owner served a watched key.
    Served {
        /// Whose.
        life: Life,
        /// The key.
        key: u64,
        /// Under which number.
        lease: LeaseNumber,
        /// Its state, if it has one.
        state: Option<u64>,
    },
    /// An owner refused a watched key that it does not hold.
    Refused,
    /// A manager leads.
    Leads {
        /// Under this epoch.
        epoch: u64,
    },
    /// The machine or its driver noticed what must not be.
    Alarm(String),
}
