//! What this node can do, behind the gate: store and feed, replication, administration.
//!
//! ```text
//!   Gate ─▶ NodeServices ─┬─ store, feed ─▶ StoreGroup (leads here) or the leader, through Peers
//!                         ├─ raft ────────▶ consensus::Group::receive
//!                         └─ admin ───────▶ status, members, incarnation; Apps on the keys in the store
//! ```

mod admin;
mod keys;
mod peers;

pub use peers::Peers;

use crate::apps::Apps;
use crate::clock::Clock;
use crate::gate::{Answers, Services};
use crate::group::{Refused, StoreGroup};
use crate::principal::Principal;
use async_trait::async_trait;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Class, Error};
use tidings_store::front::{Reply, Request};
use tidings_store::read::join_frames;
use tidings_wire::v1::frame::Body;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::v1::{self, feed_message};

/// A consumer's wait comes on top of this when its deadline is set: time for the answer itself.
const ANSWER_SLACK: Duration = Duration::from_secs(10);

/// The services of a node that is a member of the store's group.
pub struct NodeServices {
    stored: Stored,
    apps: Apps,
    clock: Arc<dyn Clock>,
}

impl NodeServices {
    /// Services on these members' store.
    pub fn new(store: StoreGroup, peers: Arc<Peers>, clock: Arc<dyn Clock>) -> NodeServices {
        let stored = Stored { store, peers };
        let apps = Apps::new(Arc::new(stored.clone()), clock.clone());
        NodeServices { stored, apps, clock }
    }

    /// The store as the node itself uses it, wherever its leader is.
    pub fn stored(&self) -> &Stored {
        &self.stored
    }
}

#[async_trait]
impl Services for NodeServices {
    async fn call(&self, _: &Principal, request: Body) -> Result<Body, Error> {
        match request {
            Body::Raft(message) => Ok(Body::Raft(self.stored.store.log().receive(message).await)),
            Body::Admin(v1::AdminMessage { message: Some(message) }) => {
                let answer = match self.apps.call(&message).await {
                    Some(answer) => answer?,
                    None => admin::call(&self.stored.store, &*self.clock, message).await?,
                };
                Ok(Body::Admin(v1::AdminMessage { message: Some(answer) }))
            }
            request => one(self.stored.here(request).await.map_err(|refused| refused.error)?),
        }
    }

    async fn call_anywhere(&self, caller: &Principal, request: Body) -> Result<Body, Error> {
        match request {
            Body::Store(_) | Body::Feed(_) => one(self.stored.anywhere(request).await?),
            request => self.call(caller, request).await,
        }
    }

    async fn stream(&self, _: &Principal, request: Body) -> Result<Answers, Error> {
        let frames = self.stored.here(request).await.map_err(|refused| refused.error)?;
        Ok(futures::stream::iter(frames.into_iter().map(Ok)).boxed())
    }

    fn ready(&self) -> Result<(), Error> {
        let log = self.stored.store.log();
        let why = match *log.role().borrow() {
            Role::Follower { leader: None } => "no leader of the store's group is known",
            _ if !log.in_touch() => "this node is not in touch with a majority of the store's group",
            _ => return Ok(()),
        };
        Err(Error::new("node.not_ready", Class::Unreachable, why)
            .hint("A majority of the members must run and reach each other."))
    }

    async fn shutdown(&self) {
        self.stored.store.shutdown().await;
    }
}

/// Store and feed wherever their leader is: here, or behind a connection to another node.
#[derive(Clone)]
pub struct Stored {
    store: StoreGroup,
    peers: Arc<Peers>,
}

impl Stored {
    /// Answers a request of store or feed if this node leads their group.
    async fn here(&self, request: Body) -> Result<Vec<Body>, Refused> {
        let patience = match &request {
            Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Consume(consume)) }) => {
                Some(Duration::from_millis(consume.wait_ms.into()) + ANSWER_SLACK)
            }
            _ => None,
        };
        let request = match request {
            Body::Store(v1::StoreMessage { message: Some(message) }) => Request::Store(message),
            Body::Feed(v1::FeedMessage { message: Some(message) }) => Request::Feed(message),
            _ => {
                let error = Error::new("control.unsupported", Class::Invalid, "this node does not take this request");
                return Err(error.into());
            }
        };
        let replies = self.store.request(request, patience).await?;
        Ok(replies.into_iter().filter_map(body_of).collect())
    }

    /// Answers a request of store or feed, asking the leader if that is another node.
    async fn anywhere(&self, request: Body) -> Result<Vec<Body>, Error> {
        match self.here(request.clone()).await {
            Ok(frames) => Ok(frames),
            Err(Refused { error, leader: Some(_) }) if error.redirect.is_some() => {
                let address = error.redirect.unwrap_or_default();
                self.peers.forward(&address, request).await
            }
            Err(refused) => Err(refused.error),
        }
    }

    /// One message to the store, one message back.
    async fn ask(&self, message: StoreMessage) -> Result<StoreMessage, Error> {
        let request = Body::Store(v1::StoreMessage { message: Some(message) });
        match one(self.anywhere(request).await?)? {
            Body::Store(v1::StoreMessage { message: Some(message) }) => Ok(message),
            _ => Err(Error::new("store.malformed", Class::Failed, "the store's answer is none of the store")),
        }
    }
}

fn body_of(reply: Reply) -> Option<Body> {
    match reply {
        Reply::Store(message) => Some(Body::Store(v1::StoreMessage { message: Some(message) })),
        Reply::Feed(message) => Some(Body::Feed(v1::FeedMessage { message: Some(message) })),
        Reply::Operated(_) | Reply::Error { .. } => None,
    }
}

/// The frames of an answer as one message, where its kind allows it.
fn one(mut frames: Vec<Body>) -> Result<Body, Error> {
    if frames.len() > 1 {
        let rows = frames.into_iter().filter_map(|frame| match frame {
            Body::Store(v1::StoreMessage { message: Some(StoreMessage::Rows(rows)) }) => Some(rows),
            _ => None,
        });
        return Ok(Body::Store(v1::StoreMessage { message: Some(StoreMessage::Rows(join_frames(rows))) }));
    }
    frames.pop().ok_or_else(|| Error::new("store.malformed", Class::Failed, "the store gave no answer"))
}
