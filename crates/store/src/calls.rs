//! The traits on top of anything that answers requests: one place that packs and unpacks messages.

use crate::api::{Feed, Store, StoreAndFeed};
use crate::front::{Reply, Request};
use crate::read::join_frames;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tidings_base::{Class, Error, Incarnation};
use tidings_wire::v1;
use tidings_wire::v1::feed_message::Message as FeedMessage;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::v1::store_result::Result as Outcome;

/// Answers requests: a driver of the [`Front`](crate::front::Front), here or behind a connection.
///
/// Whatever implements it is a [`Store`], a [`Feed`] and both in one commit.
#[async_trait]
pub trait Calls: Send + Sync {
    /// Answers one request with all frames of the answer; [`Reply::Error`] comes out as `Err`.
    async fn call(&self, request: Request) -> Result<Vec<Reply>, Error>;
}

#[async_trait]
impl<C: Calls + ?Sized> Calls for Arc<C> {
    async fn call(&self, request: Request) -> Result<Vec<Reply>, Error> {
        (**self).call(request).await
    }
}

async fn store_call(calls: &(impl Calls + ?Sized), message: StoreMessage) -> Result<StoreMessage, Error> {
    let mut replies = calls.call(Request::Store(message)).await?;
    match replies.pop() {
        Some(Reply::Store(last)) if replies.is_empty() => Ok(last),
        Some(Reply::Store(StoreMessage::Rows(last))) => {
            let frames = replies.into_iter().filter_map(|reply| match reply {
                Reply::Store(StoreMessage::Rows(rows)) => Some(rows),
                _ => None,
            });
            Ok(StoreMessage::Rows(join_frames(frames.chain([last]))))
        }
        _ => Err(unexpected()),
    }
}

async fn feed_call(calls: &(impl Calls + ?Sized), message: FeedMessage) -> Result<FeedMessage, Error> {
    match calls.call(Request::Feed(message)).await?.pop() {
        Some(Reply::Feed(message)) => Ok(message),
        _ => Err(unexpected()),
    }
}

#[async_trait]
impl<C: Calls + ?Sized> Store for C {
    async fn apply(&self, batch: v1::Apply) -> Result<v1::Applied, Error> {
        match store_call(self, StoreMessage::Apply(batch)).await? {
            StoreMessage::Applied(applied) => Ok(applied),
            _ => Err(unexpected()),
        }
    }

    async fn get(&self, get: v1::Get) -> Result<Option<v1::Row>, Error> {
        match store_call(self, StoreMessage::Get(get)).await? {
            StoreMessage::Rows(mut rows) => Ok(rows.rows.pop()),
            _ => Err(unexpected()),
        }
    }

    async fn scan(&self, scan: v1::Scan) -> Result<v1::Rows, Error> {
        match store_call(self, StoreMessage::Scan(scan)).await? {
            StoreMessage::Rows(rows) => Ok(rows),
            _ => Err(unexpected()),
        }
    }

    async fn compare_and_set(&self, cas: v1::CompareAndSet) -> Result<v1::CompareAndSetDone, Error> {
        match store_call(self, StoreMessage::CompareAndSet(cas)).await? {
            StoreMessage::CompareAndSetDone(done) => Ok(done),
            _ => Err(unexpected()),
        }
    }

    async fn incarnation(&self) -> Result<Incarnation, Error> {
        match store_call(self, StoreMessage::Status(v1::StoreStatus {})).await? {
            StoreMessage::StatusReply(status) => Ok(Incarnation(status.incarnation)),
            _ => Err(unexpected()),
        }
    }

    async fn raise_incarnation(&self, at_least: Incarnation) -> Result<Incarnation, Error> {
        let command = Command::StoreRaise(v1::StoreRaise { at_least: at_least.0 });
        match self.call(Request::Operate(command)).await?.pop() {
            Some(Reply::Operated(Outcome::StoreRaised(raised))) => Ok(Incarnation(raised.incarnation)),
            _ => Err(unexpected()),
        }
    }
}

#[async_trait]
impl<C: Calls + ?Sized> Feed for C {
    async fn append(&self, topic: Bytes, entries: Vec<Bytes>) -> Result<v1::Appended, Error> {
        match feed_call(self, FeedMessage::Append(v1::Append { topic, entries })).await? {
            FeedMessage::Appended(appended) => Ok(appended),
            _ => Err(unexpected()),
        }
    }

    async fn consume(&self, consume: v1::Consume) -> Result<Vec<v1::Delivery>, Error> {
        match feed_call(self, FeedMessage::Consume(consume)).await? {
            FeedMessage::Deliveries(deliveries) => Ok(deliveries.deliveries),
            _ => Err(unexpected()),
        }
    }

    async fn ack(&self, topic: Bytes, group: Bytes, numbers: Vec<u64>) -> Result<(), Error> {
        match feed_call(self, FeedMessage::Ack(v1::Ack { topic, group, numbers })).await? {
            FeedMessage::Acked(_) => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

#[async_trait]
impl<C: Calls + ?Sized> StoreAndFeed for C {
    async fn apply_and_append(&self, both: v1::ApplyAndAppend) -> Result<v1::AppliedAndAppended, Error> {
        match store_call(self, StoreMessage::ApplyAndAppend(both)).await? {
            StoreMessage::AppliedAndAppended(done) => Ok(done),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::new("store.malformed", Class::Failed, "The answer does not belong to the question.")
        .hint("Client and server run versions too far apart.")
}
