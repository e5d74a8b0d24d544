//! Store and feed: what every part keeps its data in, and hears of changes through.
//!
//! **Store**: rows of columns of timestamped cells, in groups. The writer chooses timestamps; newest wins, at equal
//! timestamps a tombstone, then the larger bytes ([`merge`]). A batch is atomic in each group; a fence keeps a deposed
//! owner out; compare-and-set decides where the order must be agreed. **Feed**: topics of numbered entries that
//! consumer groups acknowledge, delivered again until they do. Both live in one agreed log, so that a feed entry and
//! the state it makes can share one commit.
//!
//! ```text
//!   Store, Feed (api)            what parts call; one suite holds every implementation to it (suite, faulty)
//!        │
//!   Front (front, delivery)      a machine: requests in, replies out; at the leader: who was given which entry
//!        │ Propose, ReadBarrier            ▲ Applied, Refused, Unknown, Passed, Role
//!   agreed log                             │                  (tidings-consensus, or the simulator's model)
//!        │ entries, the same at every replica
//!   StoreState (state, work) ──▶ Kv        cells, fences, topics as ordered pairs (kv, key)
//!        ▲                                 MemoryKv here; fjall in tidings-store-local
//!   StoreReader (read)           frozen pictures for any thread, after a barrier
//! ```
//! Who talks to whom: a driver (the node's, the simulator's, or [`MemoryStore`], the smallest) brings requests to the
//! [`Front`], carries its [`Ask`](tidings_base::agreed::Ask)s to the log, answers [`Output::Read`] by a
//! [`StoreReader`], and returns what the log and the reader say. A reply that depends on a write is withheld by the
//! machine until the write is applied.
//!
//! Decided here:
//! - **Deletion** is a tombstone like any write and stays until `StoreCollect` commands of its group have removed it: one
//!   that sees it for the first time marks it with the time that the caller gives, a later one removes what was marked long
//!   enough ago. After that an older write of the cell would be new again, so the caller waits for longer than any is late.
//! - **A fence** counts as seen when a write under it happens; a group write with a fence and no rows seals the group.
//! - **A consumer group** is known from its first consume on, by an agreed `FeedJoin`; it begins with what the topic
//!   still keeps. What a topic keeps is said in [`topic`]: while groups are known, everything that one of them has not
//!   acknowledged, up to a bound at which appends are refused; while none is known, the latest entries up to a bound.
//! - **Deliveries** are in the leader's memory alone. A new leader delivers everything unacknowledged again.
//! - **Bad input** is refused before it reaches the log, and again by the state, identically at every replica
//!   ([`limits`]).
//!
//! What it deliberately does not do: transactions across groups (save [`StoreAndFeed::apply_and_append`]), secondary
//! indices, time-outs of cells, exactly-once delivery, reading clocks.

pub mod acks;
pub mod api;
pub mod calls;
pub mod command;
pub mod delivery;
pub mod faulty;
pub mod front;
pub mod key;
pub mod kv;
pub mod limits;
pub mod memory;
pub mod merge;
pub mod messages;
pub mod read;
mod snapshot;
pub mod state;
pub mod suite;
pub mod sweep;
pub mod topic;
mod work;

pub use api::{Feed, Store, StoreAndFeed};
pub use calls::Calls;
pub use front::{Front, Input, Options, Output, Reply, Request};
pub use kv::{Batch, Kv, KvReader, KvView, MemoryKv};
pub use memory::MemoryStore;
pub use read::{FeedAnswer, FeedQuery, Query, StoreReader};
pub use state::StoreState;
