//! How a matcher is set up, what it hears and what it wants.

use crate::mutant::Mutant;
use crate::names::{Guard, ObjectKey};
use crate::rows::{Realm, StoreId, StoreRequest, StoreResult};
use crate::{CallId, Outcome, RequestId};
use tidings_base::{KeyHash, KeyRange, LeaseNumber};
use tidings_wire::v1;

/// How a matcher behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random: pauses come from it.
    pub seed: u64,
    /// Objects that are being propagated at a time; beyond it jobs are dropped and found again by their markers.
    pub max_jobs: usize,
    /// Whether clients are told before the version is stable (the fast path), at the price of one more scan.
    pub hints: bool,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, max_jobs: 16_384, hints: true, mutant: None }
    }
}

/// What a matcher hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// F3: the realm. Another one than before means that everything is gone.
    Realm(Realm),
    /// A range is held from now on.
    Gained {
        /// The range.
        range: KeyRange,
        /// Its lease.
        lease: LeaseNumber,
    },
    /// A range is held no more.
    Lost {
        /// The range.
        range: KeyRange,
    },
    /// F6: a registrar's call.
    Register {
        /// Names it to the driver.
        request: RequestId,
        /// The lease under which the key was held when it arrived.
        lease: LeaseNumber,
        /// What it says.
        call: Box<v1::MatchRegistration>,
    },
    /// A bridge's call.
    Publish {
        /// Names it to the driver.
        request: RequestId,
        /// The lease under which the key was held when it arrived.
        lease: LeaseNumber,
        /// What it says.
        call: Box<v1::MatchPublication>,
    },
    /// The fast path of a publication that is not stable yet, nor perhaps ever (N2 asks only that it was called for);
    /// `Publish` follows once it is. Nobody is answered.
    Hint {
        /// The lease under which the key was held when it arrived.
        lease: LeaseNumber,
        /// As it will lie in the feed.
        publication: Box<v1::Publication>,
    },
    /// A registrar's answer, or that there is none; with `NotRegistered`, as of which number.
    Notified {
        /// The call.
        id: CallId,
        /// How it ended.
        outcome: Outcome,
    },
    /// The store's answer.
    Stored {
        /// The request.
        id: StoreId,
        /// The answer.
        result: StoreResult,
    },
}

/// What a matcher wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Answer a call. With a guard, the driver first checks that the lease has held all the time, and says `Moved`
    /// if it has not (F1).
    Answer {
        /// The call.
        request: RequestId,
        /// What the answer stands on.
        guard: Option<Guard>,
        /// How it ended.
        outcome: Outcome,
        /// To a registration: the version, 0 if none is known.
        version: u64,
    },
    /// Take this to the registrar that owns the key. Drivers batch what goes to one owner.
    ToRegistrar {
        /// Comes back with the answer; hints have none.
        id: CallId,
        /// Whose it is.
        key: KeyHash,
        /// What to say.
        notify: Box<v1::ClientNotify>,
    },
    /// A version was published after a later one, and is ignored: to be counted.
    Behind {
        /// The object.
        object: ObjectKey,
        /// What was published.
        version: u64,
        /// What is known.
        latest: u64,
        /// Where it was when.
        times: Option<v1::NotifyTimes>,
    },
    /// Ask the store. With a guard, only if the lease has held all the time; otherwise the answer is an error.
    Store {
        /// Comes back with the answer.
        id: StoreId,
        /// What the request stands on (F1): something that is remembered, and not read.
        guard: Option<Guard>,
        /// What.
        request: StoreRequest,
    },
}
