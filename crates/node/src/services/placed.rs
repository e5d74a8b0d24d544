//! Placement wherever its leader is: here, or behind a connection to another node.

use super::Peers;
use crate::placement::Placement;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::{PlacementTransport, To};
use tidings_wire::{Body, error, v1};

/// Placement wherever its leader is. Cheap to clone.
#[derive(Clone)]
pub struct Placed {
    placement: Placement,
    peers: Arc<Peers>,
}

impl Placed {
    /// Placement with a manager on this node.
    pub fn new(placement: Placement, peers: Arc<Peers>) -> Placed {
        Placed { placement, peers }
    }

    /// The manager on this node.
    pub fn here(&self) -> &Placement {
        &self.placement
    }

    /// Answers a request, asking the leader if that is another node. Tried once: owners and lookups ask again by
    /// themselves.
    pub async fn anywhere(
        &self,
        request: v1::PlacementMessage,
        within: Duration,
    ) -> Result<v1::PlacementMessage, Error> {
        let here = tokio::time::timeout(within, self.placement.request(request.clone())).await;
        let address = match here.unwrap_or_else(|_| Err(tidings_wire::error::deadline())) {
            Err(Error { redirect: Some(address), .. }) => address,
            answer => return answer,
        };
        match self.peers.ask(&address, Body::Placement(request), within).await? {
            Body::Placement(answer) => Ok(answer),
            _ => Err(Error::new("placement.malformed", Class::Failed, "the leader's answer is none of placement")),
        }
    }
}

/// The way to placement's leader from inside the node, under full names. It does not keep placement alive once it is closed.
pub(crate) struct Through {
    placed: Mutex<Option<Placed>>,
}

impl Through {
    pub(crate) fn new(placed: Placed) -> Through {
        Through { placed: Mutex::new(Some(placed)) }
    }

    /// Nothing passes any more.
    pub(crate) fn close(&self) {
        *self.placed.lock() = None;
    }
}

impl PlacementTransport for Through {
    /// Every node knows who leads, so asking one is asking all.
    fn call(
        &self,
        _: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        let placed = self.placed.lock().clone();
        Box::pin(async move {
            let placed = placed.ok_or_else(|| error::unsent(&error::going_away(None)))?;
            placed.anywhere(message, within).await
        })
    }
}
