//! The cell wherever its master is: here, or behind a connection to another node.

use super::Peers;
use crate::cell::CellGroup;
use crate::group::Refused;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::{Body, v1};

/// The cell wherever its master is. Cheap to clone.
#[derive(Clone)]
pub struct Cells {
    cell: CellGroup,
    peers: Arc<Peers>,
}

impl Cells {
    /// The cell of which this node is a member.
    pub fn new(cell: CellGroup, peers: Arc<Peers>) -> Cells {
        Cells { cell, peers }
    }

    /// The replica on this node.
    pub fn here(&self) -> &CellGroup {
        &self.cell
    }

    /// Answers a request, asking the master if that is another node; `request.caller` says for whom. Tried once: whoever
    /// asks has a session that knows when to try again.
    pub async fn anywhere(&self, request: v1::CellMessage, within: Duration) -> Result<v1::CellMessage, Error> {
        let redirect = match tokio::time::timeout(within, self.cell.request(request.clone())).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(Refused { error, leader: Some(_) })) if error.redirect.is_some() => error.redirect,
            Ok(Err(refused)) => return Err(refused.error),
            Err(_) => return Err(tidings_wire::error::deadline()),
        };
        let address = redirect.unwrap_or_default();
        match self.peers.ask(&address, Body::Cell(request), within).await? {
            Body::Cell(answer) => Ok(answer),
            _ => Err(Error::new("cell.malformed", Class::Failed, "the master's answer is none of the cell")),
        }
    }
}
