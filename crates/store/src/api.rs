//! The traits that parts use: whatever stands behind them, the agreed log or an engine, behaves the same.

use async_trait::async_trait;
use bytes::Bytes;
use tidings_base::{Error, Incarnation};
use tidings_wire::v1;

/// Rows of columns of timestamped cells, in groups.
///
/// - Newest wins; at equal timestamps a tombstone wins, then the larger bytes ([`crate::merge`]).
/// - A batch is atomic in each group, not across groups; what failed is in the answer.
/// - A write that was answered survives; after an error of the class `OutcomeUnknown` it may or may not have happened.
/// - Reads are linearizable.
#[async_trait]
pub trait Store: Send + Sync {
    /// Blind writes. `Ok` names the groups that failed; none = everything happened.
    async fn apply(&self, batch: v1::Apply) -> Result<v1::Applied, Error>;

    /// One row's live cells, in the order of columns; `None` if there is none.
    async fn get(&self, get: v1::Get) -> Result<Option<v1::Row>, Error>;

    /// Rows of a group in order, those without live cells left out; `next` says where to go on if there is more.
    async fn scan(&self, scan: v1::Scan) -> Result<v1::Rows, Error>;

    /// Writes a cell if the column's newest timestamp is as expected. A fence that is too low is the error
    /// `store.fenced`.
    async fn compare_and_set(&self, cas: v1::CompareAndSet) -> Result<v1::CompareAndSetDone, Error>;

    /// Grows whenever a loss was detected.
    async fn incarnation(&self) -> Result<Incarnation, Error>;

    /// Notes a detected loss: the incarnation grows, to at least `at_least`.
    async fn raise_incarnation(&self, at_least: Incarnation) -> Result<Incarnation, Error>;
}

/// Topics of entries, each entry delivered to one consumer of every group until it is acknowledged.
///
/// - An append that was answered survives; entries of a topic are numbered one after the other, in the order of answers.
/// - An entry that was not acknowledged in time is delivered again, to any consumer of the group.
/// - An entry is not delivered to a group again once its acknowledgement was answered.
/// - A group is made known by its first [`consume`](Feed::consume), and hears what the topic still keeps then.
#[async_trait]
pub trait Feed: Send + Sync {
    /// Appends entries in order; answered after they are durable.
    async fn append(&self, topic: Bytes, entries: Vec<Bytes>) -> Result<v1::Appended, Error>;

    /// Waits for entries on behalf of a consumer group; none if there was none within the wait.
    async fn consume(&self, consume: v1::Consume) -> Result<Vec<v1::Delivery>, Error>;

    /// Acknowledges entries.
    async fn ack(&self, topic: Bytes, group: Bytes, numbers: Vec<u64>) -> Result<(), Error>;
}

/// Store and feed of one group, where a feed entry and the state it makes share one commit.
#[async_trait]
pub trait StoreAndFeed: Store + Feed {
    /// Writes and appends, all or nothing across groups and topic. `Ok` with failures = nothing happened.
    async fn apply_and_append(&self, both: v1::ApplyAndAppend) -> Result<v1::AppliedAndAppended, Error>;
}
