//! The agreed log by openraft, bound once behind our own interface.
//!
//! What it promises is written in `tidings_base::agreed`, and one conformance suite holds it and the simulator's model
//! to it. A [`Group`] is one replica of one Raft group: a machine asks on one side, other members call on the other.
//!
//! ```text
//!   machine ── ask ──▶ Group ── pump ──▶ openraft ──▶ LogStore ──▶ tidings-log (group commit, checksums) ──▶ Disk
//!      ◀── heard ──┐     │                │    └────▶ StateMachine ──▶ AgreedState (durable, or with snapshot files)
//!                  │     ▼                ▼
//!          roles, leases, barriers     Network ──▶ Transport ──▶ … other members … ──▶ Group::receive
//! ```
//! - `log_store`, `state`, `snapshot`: what is on disk; `length`: how much of it. `codec`: every byte that comes in is checked there.
//! - `network`, `receive`: calls to and from other members. `identity`: that they are of the same cluster.
//!   `acknowledged`: that they have what they had.
//! - `lease`: promises and leases on our own clock; openraft's lease is trusted for nothing.
//! - `roles`, `barrier`, `proposals`, `announce`: from openraft's events to what a machine hears.
//! - `membership`: members and leadership change while the group serves. `metrics`: what to look at.
//!
//! What it deliberately does not do: interpret commands, carry bytes between nodes (the node does, [`Transport`]), route
//! requests to the leader, or serve reads (the state does, after a barrier).

mod acknowledged;
mod announce;
mod barrier;
mod codec;
mod config;
mod error;
mod group;
mod identity;
mod lease;
mod length;
mod log_store;
mod membership;
pub mod metrics;
mod mutant;
mod network;
mod proposals;
mod receive;
mod roles;
mod runtime;
mod shared;
mod snapshot;
mod state;
#[cfg(test)]
mod suite;
mod types;

pub use codec::Malformed;
pub use config::{Clock, Flush, GroupConfig, Limits, Member, Timings};
pub use error::{ChangeError, LostLog, OtherCluster, ProposeError, StartError};
pub use group::{Group, Missed, Outside};
pub use identity::{ClusterId, Identity, Stranger};
pub use log_store::check;
pub use metrics::{MemberStatus, Standing, Status};
#[doc(hidden)]
pub use mutant::Mutant;
pub use network::{Transport, TransportError};
pub use runtime::Runtime;
