//! Placement: who owns which key (the Centrifuge row).
//!
//! ```text
//!   server ─ Owner (machine) ─ OwnerPoll ──▶ Manager ── one compare-and-set of one file ──▶ cell
//!      │ check_now: lock-free    ◀─ answer ─┘   ▲ │       under the leader's sequencer
//!      ▼                                        │ └ nothing is told before it is committed
//!   front end ─ Lookup (machine) ─ LookupPoll ──┘
//! ```
//! A manager divides a ring of 2⁶⁴ points among the servers of a pool and leases each piece to one of them. The lease
//! message *is* the assignment: an answer names the complete set of ranges that an owner should hold.
//!
//! - [`owner`]: what a server holds, and until when; [`check`] is what its threads ask, without locks.
//! - [`lookup`]: the whole table, maybe stale, and what was lost; [`directory`] is what a front end's threads search.
//! - [`published`]: how both get there: a picture that is replaced, and read without a write that threads share.
//! - [`manager`]: divides, leases, recalls, moves; its state lies in files of a cell.
//! - [`config`]: lease times, validated against the one clock-rate bound.
//!
//! What it promises: at most one owner of a key at any instant, as long as clock rates differ by no more than ρ; every
//! loss of state is followed by a loss notification at every lookup. What it deliberately does not do: store
//! application data, or let an owner ask for a lease.

pub mod check;
pub mod config;
pub mod directory;
pub mod lookup;
pub mod manager;
#[doc(hidden)]
pub mod mutant;
pub mod owner;
pub mod policy;
pub mod published;

use tidings_base::{Class, Error, KeyHash, KeyRange, LeaseNumber};
use tidings_wire::v1;

/// The longest key, in bytes.
pub const MAX_KEY: usize = 1_024;

/// Where a key stands on the ring, if it is not too long to be one.
pub fn key_hash(key: &[u8]) -> Result<KeyHash, Error> {
    if key.len() > MAX_KEY {
        let what = format!("a key of {} bytes is too long", key.len());
        return Err(Error::new("placement.key_too_long", Class::Invalid, what)
            .hint(format!("Use keys of at most {MAX_KEY} bytes; hash longer ones yourself.")));
    }
    Ok(KeyHash::of(key))
}

/// Names one request to a manager until it is answered; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The manager that answered last, or any if none did.
    Leader,
    /// All managers: the leader is silent. The first answer of the highest epoch counts.
    Everyone,
}

/// A leased piece of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leased {
    /// The piece.
    pub range: KeyRange,
    /// Its lease number.
    pub lease: LeaseNumber,
}

impl Leased {
    /// The lease as it came in a message; `None` if its number is none or it wraps (managers cut at zero).
    pub fn of(message: &v1::LeasedRange) -> Option<Leased> {
        if message.last < message.start {
            return None;
        }
        let range = KeyRange::new(KeyHash(message.start), KeyHash(message.last));
        Some(Leased { range, lease: LeaseNumber::new(message.lease)? })
    }
}

impl From<Leased> for v1::LeasedRange {
    fn from(leased: Leased) -> v1::LeasedRange {
        v1::LeasedRange { start: leased.range.start.0, last: leased.range.last.0, lease: leased.lease.get() }
    }
}
