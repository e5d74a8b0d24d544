//! The cell wherever its master is: here, or behind a connection to another node.

use super::{Peers, admin};
use crate::cell::CellGroup;
use crate::group::Refused;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::cell::CellTransport;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Body, error, v1};

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
    /// asks has a session that knows when to try again. Only this process asks so: sessions begun here end with it.
    pub async fn anywhere(&self, mut request: v1::CellMessage, within: Duration) -> Result<v1::CellMessage, Error> {
        if let Some(Message::CreateSession(create)) = &mut request.message {
            create.keeper = self.cell.node().0;
        }
        let redirect = match tokio::time::timeout(within, self.cell.request(request.clone())).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(Refused { error, .. })) if error.redirect.is_some() => error.redirect,
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

/// The way to the cell from inside the node, as the platform itself. It does not keep the cell alive once it is closed.
#[derive(Clone)]
pub(crate) struct Way {
    cells: Arc<Mutex<Option<Cells>>>,
    caller: v1::CellCaller,
}

impl Way {
    /// The way of node `node` into the tree of `app`, which no application can have.
    pub(crate) fn new(cells: Cells, app: &str, node: u64) -> Way {
        let caller = v1::CellCaller { app: app.to_owned(), principal: format!("node:{node}"), privileged: true };
        Way { cells: Arc::new(Mutex::new(Some(cells))), caller }
    }

    /// Refuses at once while the cell has no majority.
    pub(crate) fn refuse_hopeless(&self, code: &'static str) -> Result<(), Error> {
        match &*self.cells.lock() {
            Some(cells) if cells.here().log().led_outside().is_some() => Ok(()),
            Some(cells) => admin::refuse_hopeless(cells.here().log(), code),
            None => Ok(()),
        }
    }

    /// Nothing passes any more.
    pub(crate) fn close(&self) {
        *self.cells.lock() = None;
    }

    async fn carry(&self, message: v1::CellMessage, within: Duration) -> Result<v1::CellMessage, Error> {
        let cells = self.cells.lock().clone();
        let cells = cells.ok_or_else(|| error::unsent(&error::going_away(None)))?;
        cells.anywhere(v1::CellMessage { caller: Some(self.caller.clone()), ..message }, within).await
    }

    /// Asks without a session.
    pub(crate) async fn ask(&self, message: Message, within: Duration) -> Result<Message, Error> {
        let request = v1::CellMessage { message: Some(message), ..Default::default() };
        let answer = self.carry(request, within).await?.message;
        answer.ok_or_else(|| Error::new("cell.malformed", Class::Failed, "the cell's answer is empty"))
    }
}

impl CellTransport for Way {
    fn call(&self, message: v1::CellMessage, within: Duration) -> BoxFuture<'_, Result<v1::CellMessage, Error>> {
        Box::pin(self.carry(message, within))
    }
}
