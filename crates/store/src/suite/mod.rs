//! The conformance suite: what every implementation of [`Store`](crate::Store) and [`Feed`](crate::Feed) must do.
//!
//! Each rule is a case that panics with the rule's name when it is broken. Cases use groups and topics of their own, so
//! that one store serves a whole run. [`store`], [`feed`] and [`store_and_feed`] need an implementation without faults;
//! [`store_under_faults`] and [`feed_under_faults`] hold what remains true when calls fail, come late, happen twice, or
//! end without a known outcome: run them against [`Faulty`](crate::faulty::Faulty).
//!
//! [`Model`] is the reference beside the state: maps and sets that a reader can check by eye; [`random_commands`] makes
//! what both are fed.

mod commands;
mod faults;
mod feeds;
mod model;
mod stores;

use async_trait::async_trait;

pub use commands::random_commands;
pub use faults::{feed_under_faults, store_under_faults};
pub use feeds::{feed, store_and_feed};
pub use model::Model;
pub use stores::store;

/// What the suite runs against: how one is made, and how it is closed and opened again.
#[async_trait]
pub trait Subject: Send + Sync {
    /// A store, a feed, or both.
    type Made: Send + Sync;

    /// An empty one.
    async fn fresh(&self) -> Self::Made;

    /// The same content after a restart: whatever was only in memory is gone.
    async fn reopen(&self, made: Self::Made) -> Self::Made;
}
