//! The connection: one stream to any of several nodes, multiplexed, reconnecting.
//!
//! ```text
//!   Client ── keeper: connects to any of the servers, again and again
//!     │ call, stream
//!     ├─▶ home Link ────────▶ any node ── "not here, but there" (redirect)
//!     └─▶ redirected Link ──▶ the node that can answer
//! ```
//! A [`Client`] keeps one connection up and multiplexes all operations over it. A call that certainly did not happen
//! (it was never sent, was redirected, or was answered `unreachable`) is tried again until its deadline; one that may
//! have happened ends with class `outcome_unknown`, unless its caller says that twice is as good as once.
//!
//! [`cell`] is the client of the lock service: sessions, files, locks, elections. [`placement`] is for pools of servers:
//! owners, who hold leases on keys, and lookups, who know whom to ask. [`notify`] tells of the latest versions of objects.
//! [`tables`] reads, writes and watches records.
//!
//! [`link`] is one live connection, for either end: nodes accept connections with the same driver. [`grpc`], [`ws`]
//! and, within a process, [`local`] are its carriers.
//!
//! What it deliberately does not do: know what the messages mean (but for those of the parts above), or keep anything beyond the
//! process.

mod backoff;
pub mod cell;
mod client;
mod config;
mod dial;
pub mod grpc;
mod keeper;
pub mod link;
pub mod local;
pub mod notify;
pub mod placement;
pub mod tables;
pub mod ws;

pub use client::{Client, Connection, ConnectionEvent, Request, Retry};
pub use config::{Carrier, ClientConfig, DEFAULT_PORT, IN_PROCESS, Tls};
pub use link::{Answers, Link};
