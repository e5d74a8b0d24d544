//! A group of 3f + 1 replicas of which f may lie, and its clients (rules F and G of Sketch).
//!
//! ```text
//!   Client ─ signed command ─▶ every replica: Seat ─▶ Pool ─▶ an order of blocks, the same for all
//!     │ ◀─ MACed replies ───── Seat ◀── executed by height ◀──────┘ (`Ordering` of Sketch)
//!     └ 2f + 1 equal in group, client, nonce, σ and result's hash: the group's answer
//! ```
//! - [`membership`]: who is of the group, as a file; keys for all of them. [`keys`], [`command`]: signatures and MACs.
//! - [`pool`]: commands that wait for the order. [`seat`]: a replica beside its order. [`server`]: its door for clients; [`greeting`]: whose
//!   a connection is; [`sink`]: answers to them.
//! - [`snapshot`]: the state at a height; f + 1 equal signed hashes make one that may be taken over.
//! - [`client`]: asks all replicas, by [`tidings_sketch::group`]. [`direct`]: D-Prophecy's, by [`tidings_sketch::direct`]; reads at
//!   the price of one. `lines`, `alarm`: connections and deadlines of both. [`kv`], [`http`]: services.
//!
//! - `engine` (a feature): simplex and marshal of commonware, which make the order. [`mark`]: who may vote.
//!
//! Without the feature replicas run on a model of the order, in tests.
//!
//! What it promises: with at most f liars all honest replicas execute the same commands in the same order, each at most once,
//! and a client takes no answer that was not the service's; of D-Prophecy's reads none returns something older than one of the
//! same request that ended before it began. What it deliberately does not do: change its members while it
//! runs (another life of the group has other keys), hide commands from replicas or from who listens to the wire, or let a
//! replica vote that has lost its journal.

mod alarm;
pub mod client;
pub mod codec;
pub mod command;
pub mod direct;
#[cfg(feature = "engine")]
pub mod engine;
pub mod frame;
pub mod greeting;
pub mod http;
pub mod keys;
pub mod kv;
mod lines;
pub mod mark;
pub mod membership;
#[doc(hidden)]
pub mod mutant;
pub mod pool;
pub mod seat;
pub mod server;
#[doc(hidden)]
pub mod sin;
pub mod sink;
pub mod snapshot;
#[doc(hidden)]
pub mod testing;
