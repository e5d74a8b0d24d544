//! What hosts of the scenario state.

use crate::invariants::LogFact;
use crate::kernel::HostId;
use crate::scenarios::placement::fact::Fact as PlacementFact;
use bytes::Bytes;

/// How many objects there are.
pub const OBJECTS: u64 = 8;
/// Versions of the first generation are above this, those of the second below it.
pub const FIRST_GENERATION: u64 = 1 << 40;

/// The name of an object.
pub fn object(number: u64) -> Bytes {
    Bytes::from(format!("object-{number}"))
}

/// One publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Publication {
    /// The application's generation under which it was accepted (F3).
    pub generation: u32,
    /// The object's number.
    pub object: u64,
    /// The version.
    pub version: u64,
}

/// What is said of Notify.
#[derive(Clone, Debug)]
pub enum Fact {
    /// The backend calls `publish`.
    Calls(Publication),
    /// It was acknowledged.
    Published(Publication),
    /// A device made this version itself.
    Made(HostId, Publication),
    /// An application is told of a version.
    Notified {
        /// Whose.
        device: HostId,
        /// The object.
        object: Bytes,
        /// The version.
        version: u64,
    },
    /// It has dealt with it.
    Handled {
        /// Whose.
        device: HostId,
        /// The object.
        object: Bytes,
        /// The version.
        version: u64,
    },
    /// An application that heard of an unknown version begins to fetch.
    Fetches {
        /// Whose.
        device: HostId,
        /// The object.
        object: Bytes,
        /// Names the fetch.
        fetch: u64,
    },
    /// It has fetched.
    Fetched {
        /// Whose.
        device: HostId,
        /// The object.
        object: Bytes,
        /// Which fetch it was.
        fetch: u64,
    },
    /// An application wants to hear of an object from now on, or no more.
    Intends {
        /// Whose.
        device: HostId,
        /// The object.
        object: Bytes,
        /// Whether it wants to.
        intends: bool,
    },
    /// An installation begins with nothing: what was seen there before is gone.
    Installed(HostId),
    /// A device got a session.
    Granted(HostId),
    /// Everything that servers had stored is lost, and that was noticed.
    Wiped,
    /// The backend was restored from a backup: versions begin anew under this generation.
    Reset(u32),
    /// Somebody presented a token that is not its own; whether it was taken for one.
    Forged {
        /// It was.
        accepted: bool,
    },
    /// At the end: whether a device and the servers agree on its registrations, and these are what is intended.
    Agrees(HostId, bool),
}

/// A fact of the scenario.
#[derive(Clone, Debug)]
pub enum NotifyFact {
    /// Of the store's log; scenario `store` judges these.
    Log(LogFact),
    /// Of placement; scenario `placement` judges these.
    Placement(PlacementFact),
    /// Of Notify.
    Notify(Fact),
}

impl From<LogFact> for NotifyFact {
    fn from(fact: LogFact) -> NotifyFact {
        NotifyFact::Log(fact)
    }
}

impl From<PlacementFact> for NotifyFact {
    fn from(fact: PlacementFact) -> NotifyFact {
        NotifyFact::Placement(fact)
    }
}

impl From<Fact> for NotifyFact {
    fn from(fact: Fact) -> NotifyFact {
        NotifyFact::Notify(fact)
    }
}
