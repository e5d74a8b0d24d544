//! What carries the cell's messages: a connection to the cluster, or the node itself.

use crate::{Client, Request, Retry};
use futures::future::BoxFuture;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::{Body, v1};

/// Carries one request to whoever is master, and its answer back.
///
/// A session asks again by itself, so an implementation need not: it finds the master (redirects are its business) and
/// says truthfully how it went. Class `unreachable` means that nothing happened, `outcome_unknown` that it may have;
/// both are tried again by the session under the same number, which the cell recognises (R8).
pub trait CellTransport: Send + Sync + 'static {
    /// Asks, and gives up after `within`.
    fn call(&self, message: v1::CellMessage, within: Duration) -> BoxFuture<'_, Result<v1::CellMessage, Error>>;

    /// How many nodes it may ask: so many have to say that there is no majority before that is believed.
    fn ways(&self) -> usize {
        1
    }
}

/// Over the connection: redirects to the master are followed and remembered.
impl CellTransport for Client {
    fn call(&self, message: v1::CellMessage, within: Duration) -> BoxFuture<'_, Result<v1::CellMessage, Error>> {
        Box::pin(async move {
            let request = Request::new(Body::Cell(message)).within(within).retry(Retry::Redirected);
            match Client::call(self, request).await? {
                Body::Cell(answer) => Ok(answer),
                _ => Err(unexpected()),
            }
        })
    }

    fn ways(&self) -> usize {
        self.servers()
    }
}

/// The answer is of another kind than the question.
pub(crate) fn unexpected() -> Error {
    Error::new("cell.unexpected", Class::Failed, "the answer is of another kind than the question")
        .hint("The node may be of a later version than this library; upgrade the library.")
}
