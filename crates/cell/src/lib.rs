//! The cell: a lock service with small files, sessions, consistent caching and events (the Chubby row).
//!
//! ```text
//!   application ─ Call ─▶ Session (client) ─ CellMessage ─▶ Master ─ CellCommand ─▶ agreed log ─▶ Namespace
//!       ▲  cache ◀─ CacheChange ─┘  ▲                        │ ▲                                     │ at every
//!       └─ events ──────────────────┴── KeepAlive replies ◀──┘ └──────────── reads ◀─────────────────┘ replica
//!                         LinkLease ─ RenewCache ─▶ (one short cache lease for all sessions of a link)
//! ```
//! - [`namespace`]: the agreed state: tree, metadata, locks, sessions, result windows. Deterministic, no clock.
//! - [`master`]: what the leader adds in memory: leases, handles, lock queues, who may cache what, events, fail-over.
//! - [`session`]: the client's side: its own view of the lease, jeopardy and grace, the cache, recovery of handles.
//! - [`link`]: the short lease under which anything cached may be used.
//! - [`tether`]: for how long a command may go on under a lock that nobody has heard of.
//!
//! What it promises: L1–L5 of the platform's guarantees. What it deliberately does not do: read clocks, draw randomness,
//! know what carries its messages, or check who a caller is (the node has done so).

// Inputs and outputs are moved, not kept: boxing their messages would only cost.
#![allow(clippy::large_enum_variant)]

pub mod error;
pub mod link;
pub mod master;
#[doc(hidden)]
pub mod mutant;
pub mod namespace;
pub mod path;
pub mod session;
pub mod tether;
pub mod token;

pub use path::{CacheKey, NodePath, Place};

/// Names a session of a cell, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Names a handle within its session; never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleNumber(pub u64);
