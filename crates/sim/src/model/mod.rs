//! The agreed log as a model: what stands in the place of `tidings-consensus` in simulations.
//!
//! ```text
//!   Ask ─▶ replica ─ Vote, Append, Snapshot ─▶ other replicas
//!   Heard ◀─┘  └─ real tidings-log and SmallFile on the simulated disk
//! ```
//! A compact replica in the manner of Raft: terms, votes, a log with the matching rule, commitment by majority, a
//! leader lease with the share for ρ taken off, pictures of the state for those who lag. It exists to be *adverse*:
//! leaders abdicate for no reason, elections come early, barriers sometimes ignore the lease, so that what stands on
//! it meets every kind of `Heard` often. The same conformance suite holds it and the openraft binding to one contract.
//!
//! What it deliberately does not do: change its members, pipeline snapshots, or be fast with large logs.
//!
//! Safety beyond plain Raft:
//! - *Lease.* A replica that heard a leader does not vote for another for one lease of its own clock; a restarted one
//!   cannot remember and waits (1+ρ) leases; the leader counts its lease from when it *sent* what a majority answered.
//! - *Replaced disk.* A replica whose disk was replaced has forgotten what it acknowledged and whom it voted for. It
//!   neither votes nor counts ([`storage::Ballot::learner`]) until every other member has told it a term (none of its
//!   forgotten votes was for a higher one) and a leader of at least that term has brought it up to what is committed.

mod applying;
mod election;
mod following;
mod leading;
pub mod message;
mod replica;
pub mod storage;

pub use replica::{Config, Input, Output, Replica, Temper};
