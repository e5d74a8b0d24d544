//! Store and feed, behind the node's services: answered here or by whoever leads them.

use super::{Peers, admin};
use crate::group::{Refused, StoreGroup};
use crate::hindrance::Hindered;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Class, Error, NodeId};
use tidings_store::front::{Reply, Request};
use tidings_store::read::join_frames;
use tidings_wire::error;
use tidings_wire::v1::frame::Body;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_message::Message as StoreMessage;
use tidings_wire::v1::store_result::Result as Outcome;
use tidings_wire::v1::{self, feed_message};
use tokio::time::Instant;

/// A consumer's wait comes on top of this when its deadline is set: time for the answer itself.
const ANSWER_SLACK: Duration = Duration::from_secs(10);

/// How long another node may take to answer a forwarded request, beside what it waits for: longer than an election.
const FORWARD: Duration = Duration::from_secs(10);

/// The pause before a request is tried again that found nobody who leads.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Store and feed wherever their leader is: here, or behind a connection to another node.
#[derive(Clone)]
pub struct Stored {
    pub(super) store: StoreGroup,
    pub(super) peers: Arc<Peers>,
    /// Only where that is measured.
    pub(super) hindered: Option<Hindered>,
}

impl Stored {
    /// Store and feed with a member on this node.
    pub(super) fn new(store: StoreGroup, peers: Arc<Peers>) -> Stored {
        Stored { store, peers, hindered: None }
    }

    /// Answers a request of store or feed if this node leads their group.
    async fn here(&self, request: Body) -> Result<Vec<Body>, Refused> {
        let patience = waits(&request).map(|wait| wait + ANSWER_SLACK);
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

    /// The same for a caller that is let go when the node stops.
    pub(super) async fn here_unless_leaving(&self, request: Body) -> Result<Vec<Body>, Error> {
        let waits = waits(&request);
        self.unless_leaving(waits, async { self.here(request).await.map_err(|refused| refused.error) }).await
    }

    /// An answer; who waits for something to happen hears instead that the node stops, when it does. Nothing was delivered
    /// to it then.
    pub(super) async fn unless_leaving<T>(
        &self,
        waits: Option<Duration>,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if waits.is_none() {
            return answer.await;
        }
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.store.lets_go() => Err(error::going_away(None)),
        }
    }

    /// Answers a request of store or feed, asking the leader if that is another node. What certainly was not done is asked
    /// again of whoever leads then: a leader that has died is believed in for a lease.
    pub(super) async fn anywhere(&self, request: Body) -> Result<Vec<Body>, Error> {
        let until = Instant::now() + FORWARD + waits(&request).unwrap_or_default();
        let mut sent_on = None;
        loop {
            let answer = match self.here(request.clone()).await {
                Err(Refused { error: Error { redirect: Some(address), .. }, leader }) => {
                    self.there(leader, &sent_on.take().unwrap_or(address), &request, until).await
                }
                answer => answer.map_err(|refused| refused.error),
            };
            match answer {
                Err(error) if is_nobodys(&error) && Instant::now() + ASK_AGAIN < until => {
                    // Whoever led may know its successor before this node hears of one.
                    sent_on = error.redirect;
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    /// Lets the leader answer.
    async fn there(
        &self,
        leader: Option<NodeId>,
        address: &str,
        request: &Body,
        until: Instant,
    ) -> Result<Vec<Body>, Error> {
        let left = until.saturating_duration_since(Instant::now());
        let forwarded = self.peers.forward(address, request.clone(), left);
        if changes_something(request) {
            return forwarded.await;
        }
        // One that is deposed, or stopped without a word, has nothing to say that is worth waiting for.
        let mut role = self.store.log().role();
        let deposed = async {
            match leader {
                Some(_) => drop(role.wait_for(|role| *role != Role::Follower { leader }).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = forwarded => answer,
            () = deposed => Err(error::closed()),
        }
    }

    /// Refuses at once while the store has no majority.
    pub(crate) fn refuse_hopeless(&self, code: &'static str) -> Result<(), Error> {
        if self.store.log().led_outside().is_some() {
            return Ok(());
        }
        admin::refuse_hopeless(self.store.log(), code)
    }

    /// Whether this node is no member.
    pub(crate) fn is_outside(&self) -> bool {
        self.store.log().is_outside()
    }

    /// Refuses what waits for words of other nodes, where this node is no member: members know each other's addresses alone.
    pub(crate) fn refuse_outside(&self, code: &'static str) -> Result<(), Error> {
        if !self.is_outside() {
            return Ok(());
        }
        // Any member will do.
        let member = self.peers.any_member().or_else(|| self.store.log().led_outside());
        let hint =
            member.as_ref().map_or("Ask a member.".to_owned(), |member| format!("Ask a member, such as {member}."));
        Err(Error::new(code, Class::Unreachable, "This node is no member of the cluster.").hint(hint).redirect(member))
    }

    /// Where other nodes reach a member.
    pub(crate) fn address_of(&self, node: NodeId) -> Option<String> {
        self.store.log().address(node)
    }

    /// Where the other members are reached.
    pub(crate) fn other_addresses(&self) -> Vec<String> {
        let here = self.peers.node();
        let members = self.store.log().status().members.into_iter();
        members.filter(|member| member.node != here).map(|member| member.address).collect()
    }

    /// How many members have everything that is stored.
    pub(crate) fn voters(&self) -> usize {
        self.store.log().status().members.iter().filter(|member| member.voter).count()
    }

    /// The way to the other nodes.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// One message to the feed, one message back.
    pub(crate) async fn feed(&self, message: feed_message::Message) -> Result<feed_message::Message, Error> {
        let request = Body::Feed(v1::FeedMessage { message: Some(message) });
        match one(self.anywhere(request).await?)? {
            Body::Feed(v1::FeedMessage { message: Some(message) }) => Ok(message),
            _ => Err(Error::new("store.malformed", Class::Failed, "the feed's answer is none of the feed")),
        }
    }

    /// Makes a topic forget a consumer group, if this node leads.
    pub(crate) async fn leave(&self, topic: &[u8], group: &[u8]) -> Result<(), Error> {
        let leave = v1::FeedLeave { topic: topic.to_vec().into(), group: group.to_vec().into() };
        let left = self.store.request(Request::Operate(Command::FeedLeave(leave)), None).await;
        left.map(drop).map_err(|refused| refused.error)
    }

    /// One step of a look through a group's tombstones, if this node leads.
    pub(crate) async fn collect(&self, step: v1::StoreCollect) -> Result<v1::StoreCollected, Error> {
        let replies = self.store.request(Request::Operate(Command::StoreCollect(step)), None).await;
        match replies.map_err(|refused| refused.error)?.pop() {
            Some(Reply::Operated(Outcome::StoreCollected(collected))) => Ok(collected),
            _ => Err(Error::new("store.malformed", Class::Failed, "the store's answer is none to a collection")),
        }
    }

    /// One message to the store, one message back.
    pub(crate) async fn ask(&self, message: StoreMessage) -> Result<StoreMessage, Error> {
        if let Some(hindered) = &self.hindered
            && let Some(answer) = hindered.ask(&message).await
        {
            return answer;
        }
        let request = Body::Store(v1::StoreMessage { message: Some(message) });
        match one(self.anywhere(request).await?)? {
            Body::Store(v1::StoreMessage { message: Some(message) }) => Ok(message),
            _ => Err(Error::new("store.malformed", Class::Failed, "the store's answer is none of the store")),
        }
    }
}

/// Whether nobody took a request who could answer it, which may change in a moment.
fn is_nobodys(error: &Error) -> bool {
    let leaderless = matches!(error.code.as_ref(), "store.not_leader" | "feed.not_leader");
    let lost = error.code.starts_with("control.") || error.code.starts_with("client.");
    error.class == Class::Unreachable && (leaderless || lost)
}

/// Whether a request that may have arrived must not be given up lightly.
fn changes_something(request: &Body) -> bool {
    use feed_message::Message::Consume;
    match request {
        Body::Store(v1::StoreMessage { message: Some(message) }) => {
            !matches!(message, StoreMessage::Get(_) | StoreMessage::Scan(_) | StoreMessage::Status(_))
        }
        Body::Feed(v1::FeedMessage { message: Some(message) }) => !matches!(message, Consume(_)),
        _ => true,
    }
}

/// How long a request wants to wait for something to happen; `None` if it wants its answer at once.
pub(super) fn waits(request: &Body) -> Option<Duration> {
    match request {
        Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Consume(consume)) }) => {
            Some(Duration::from_millis(consume.wait_ms.into()))
        }
        _ => None,
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
pub(super) fn one(mut frames: Vec<Body>) -> Result<Body, Error> {
    if frames.len() > 1 {
        let rows = frames.into_iter().filter_map(|frame| match frame {
            Body::Store(v1::StoreMessage { message: Some(StoreMessage::Rows(rows)) }) => Some(rows),
            _ => None,
        });
        return Ok(Body::Store(v1::StoreMessage { message: Some(StoreMessage::Rows(join_frames(rows))) }));
    }
    frames.pop().ok_or_else(|| Error::new("store.malformed", Class::Failed, "the store gave no answer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A consumer may wait for longer than a forwarded request otherwise takes.
    #[test]
    fn only_consumers_wait() {
        let body = |message| Body::Feed(v1::FeedMessage { message: Some(message) });
        let consume = v1::Consume { wait_ms: 30_000, ..Default::default() };
        assert_eq!(waits(&body(feed_message::Message::Consume(consume))), Some(Duration::from_secs(30)));
        assert_eq!(waits(&body(feed_message::Message::Append(v1::Append::default()))), None);
    }
}
