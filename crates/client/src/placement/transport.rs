//! What carries placement's messages: a connection to the cluster, or the node itself.

use super::errors;
use crate::{Client, Request, Retry};
use futures::future::BoxFuture;
use std::time::Duration;
use tidings_base::Error;
use tidings_placement::To;
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, v1};

/// Carries one request to a manager, and its answer back.
///
/// Owners and lookups ask again by themselves, so an implementation need not: it finds the leader (redirects are its
/// business) and says truthfully how it went.
pub trait PlacementTransport: Send + Sync + 'static {
    /// Asks, and gives up after `within`.
    fn call(
        &self,
        to: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>>;

    /// How many nodes it may ask: so many have to say that there is no majority before that is believed.
    fn ways(&self) -> usize {
        1
    }
}

/// Over the connection. [`To::Leader`]: redirects are followed and remembered. [`To::Everyone`]: all configured servers
/// are asked, and the first answer of no lower epoch than the request's counts.
impl PlacementTransport for Client {
    fn call(
        &self,
        to: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        Box::pin(async move {
            let answer = match to {
                To::Leader => {
                    let request = Request::new(Body::Placement(message)).within(within).retry(Retry::Redirected);
                    Client::call(self, request).await?
                }
                To::Everyone => {
                    let known = epoch(&message);
                    let enough = |body: &Body| matches!(body, Body::Placement(answer) if epoch(answer) >= known);
                    self.call_everyone(Body::Placement(message), within, enough).await?
                }
            };
            match answer {
                Body::Placement(answer) => Ok(answer),
                _ => Err(errors::unexpected()),
            }
        })
    }

    fn ways(&self) -> usize {
        self.servers()
    }
}

/// A transport that several share.
impl<T: PlacementTransport + ?Sized> PlacementTransport for std::sync::Arc<T> {
    fn call(
        &self,
        to: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        (**self).call(to, message, within)
    }

    fn ways(&self) -> usize {
        (**self).ways()
    }
}

/// The leader's epoch that a message knows or speaks under.
fn epoch(message: &v1::PlacementMessage) -> u64 {
    match &message.message {
        Some(Message::OwnerPoll(poll)) => poll.epoch,
        Some(Message::LookupPoll(poll)) => poll.epoch,
        Some(Message::OwnerAnswer(answer)) => answer.epoch,
        Some(Message::LookupAnswer(answer)) => answer.epoch,
        _ => 0,
    }
}
