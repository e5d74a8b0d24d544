//! Placement's client: owners, who hold leases on keys, and lookups, who know whom to ask.
//!
//! ```text
//!   server ─ Owner ── check_now, with: lock-free ──▶ Checks ◀─ publish ─┐
//!     │        └─▶ changes(), hand-over                                  │
//!     │                        task: one poll at a time ── owner machine ┴──▶ PlacementTransport ─▶ manager
//!   front end ─ Lookup ── lookup: lock-free ──▶ Directory ◀─ lookup machine ──▶      (a connection, or the node itself)
//!                 └─▶ losses()
//! ```
//! - A server never asks for a lease: it is told what it holds, and checks before it serves. [`Owner::with`] is the
//!   check, the operation and the check again, in one call that cannot be done wrong.
//! - An answer of a [`Lookup`] is a hint: the owner checks and refuses, the caller looks up again after a short pause.
//! - Every loss of state is followed by a [`Loss`] at every lookup; a hand-over ([`HandOver`]) loses nothing.
//! - [`LeaseNumber`] grows whenever ownership of a key was interrupted: send it along as a fencing token.
//!
//! [`testing`] is a pool inside the process, for tests of what uses one. [`Placement`] is what operators ask.

mod clock;
mod driver;
mod errors;
mod lookup;
mod operate;
mod owner;
mod stream;
pub mod testing;
mod transport;
mod tsc;

pub use clock::Clock;
pub use lookup::{Hint, Lookup, LookupOptions, Loss, Losses, Placed, Tables};
pub use operate::{Placement, add_part};
pub use owner::{Changes, HandOver, Held, Interrupted, Items, Owner, OwnerOptions, OwnerState, OwnershipChange};
pub use tidings_base::{KeyHash, KeyRange, LeaseNumber};
pub use tidings_placement::directory::Directory;
pub use tidings_placement::lookup::TableOwner;
pub use tidings_placement::owner::Move;
pub use tidings_placement::{Leased, MAX_KEY, To};
pub use tidings_wire::v1::{NamespaceConfig, NamespaceInfo, OwnerInfo, RebalanceReply, TableReply};
pub use transport::PlacementTransport;
