//! Placement wherever its leader is: here, or behind a connection to another node.

use super::Peers;
use crate::placement::Placement;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::{Body, v1};

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
