//! Store and feed: traits, merge rules, the deterministic state, the front machine, the conformance suite.

pub mod acks;
pub mod api;
pub mod calls;
pub mod command;
pub mod delivery;
pub mod front;
pub mod key;
pub mod kv;
pub mod limits;
pub mod memory;
pub mod merge;
pub mod read;
mod snapshot;
pub mod state;
pub mod topic;
mod work;

pub use api::{Feed, Store, StoreAndFeed};
pub use calls::Calls;
pub use front::{Front, Input, Options, Output, Reply, Request};
pub use kv::{Batch, Kv, KvReader, KvView, MemoryKv};
pub use memory::MemoryStore;
pub use read::{FeedAnswer, FeedQuery, Query, StoreReader};
pub use state::StoreState;
