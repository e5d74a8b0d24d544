//! Notify: every client learns the latest version of what it has registered (the Thialfi row).
//!
//! ```text
//!   publisher ─▶ feed ─▶ Bridge ─▶ Matcher (by object) ─▶ Registrar (by client) ─▶ Client ─▶ application
//!                          │          │  ▲ registrations      │  ▲ registrations, acks     │
//!                          ▼          ▼  └────────────────────┤  └─────────────────────────┘
//!                       scratch    versions, copies        registrations, logs, presence        (rows of the store)
//! ```
//! Reliable *signalling*: for each object a client has registered it eventually learns the latest version, or that the
//! version is unknown and must be fetched, whatever crashed, was lost or was offline. Repeated, reordered and spurious
//! notifications are allowed; a missed last version never is.
//!
//! - [`bridge`]: takes publications from the feed to matchers; scratch when it cannot (F11).
//! - [`matcher`]: versions, and copies of registrations, by object (F6, F12).
//! - [`registrar`]: sessions, registrations, unacknowledged notifications, presence, by client (F4, F5, F8–F10).
//! - [`client`]: the intended registrations, and that is all a server needs to rebuild itself (F7).
//! - [`rows`]: how state lies in the store; [`leftovers`]: what becomes of it after a loss or a reset;
//!   [`inspect`]: what people see of it; [`names`]: keys; [`digest`]: F7's sums; [`token`]: F8's.
//!
//! All server state is soft: each operation commits with one blind write to one row, with a marker beside it from which
//! the rest follows, idempotently. What it deliberately does not do: deliver data, keep queues, compare and set, know
//! who owns a range (drivers look that up), or trust a lease for anything but its answers (F1).

mod held;

pub mod bridge;
pub mod client;
pub mod digest;
pub mod inspect;
pub mod leftovers;
pub mod matcher;
#[doc(hidden)]
pub mod mutant;
pub mod names;
pub mod registrar;
pub mod rows;
pub mod token;

use std::time::Duration;
use tidings_base::Seeded;
use tidings_wire::v1;

/// Names a call of one machine to another until it is answered; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names a call that a driver brought, until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// How a call between servers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is stable.
    Done,
    /// F1: the range is, or may be, somebody else's.
    Moved,
    /// The store could not do it, there was no room, or nobody answered.
    Failed,
    /// F6: the client is not registered as of this number.
    NotRegistered(u64),
}

impl Outcome {
    /// The outcome in a message.
    pub fn of_message(outcome: v1::NotifyOutcome, seqno: u64) -> Outcome {
        match outcome {
            v1::NotifyOutcome::Done => Outcome::Done,
            v1::NotifyOutcome::Moved => Outcome::Moved,
            v1::NotifyOutcome::NotRegistered if seqno > 0 => Outcome::NotRegistered(seqno),
            _ => Outcome::Failed,
        }
    }

    /// The outcome as a message says it, and its number.
    pub fn to_message(self) -> (v1::NotifyOutcome, u64) {
        match self {
            Outcome::Done => (v1::NotifyOutcome::Done, 0),
            Outcome::Moved => (v1::NotifyOutcome::Moved, 0),
            Outcome::Failed => (v1::NotifyOutcome::Failed, 0),
            Outcome::NotRegistered(seqno) => (v1::NotifyOutcome::NotRegistered, seqno),
        }
    }
}

/// The pause after so many failures: doubling, and spread over its second half.
fn backoff(rng: &mut Seeded, failures: u32, first: Duration, longest: Duration) -> Duration {
    let pause = first.saturating_mul(1 << failures.min(16)).min(longest);
    let half = u64::try_from(pause.as_nanos() / 2).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(half + rng.below(half))
}
