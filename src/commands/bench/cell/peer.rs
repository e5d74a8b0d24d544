//! What the load generator asks of a lock service, so that others can be measured with the same load.

use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tidings_base::Error;

/// A running service that clients can be made for.
#[async_trait]
pub trait Peer: Send + Sync {
    /// So many clients, each with a session of its own, over at least so many connections.
    async fn clients(&self, count: usize, connections: usize) -> Result<Vec<Arc<dyn PeerClient>>, Error>;
}

/// One client. Paths have one part (`/file`); how a service names them is its own business.
#[async_trait]
pub trait PeerClient: Send + Sync {
    /// Writes a file whole, which is made if it is missing; returns once it is durable on a majority.
    async fn write(&self, path: &str, contents: Bytes) -> Result<(), Error>;
    /// Reads a file, linearizably and not from a cache.
    async fn read(&self, path: &str) -> Result<Bytes, Error>;
    /// Waits for the exclusive lock of a file.
    async fn lock(&self, path: &str) -> Result<Box<dyn PeerLock>, Error>;
    /// Begins to watch a file.
    async fn watch(&self, path: &str) -> Result<Box<dyn PeerWatch>, Error>;
}

/// A lock that is held.
#[async_trait]
pub trait PeerLock: Send {
    /// Gives it up; returns when the service knows.
    async fn release(self: Box<Self>) -> Result<(), Error>;
}

/// A watch that is on.
#[async_trait]
pub trait PeerWatch: Send {
    /// Waits for the next change.
    async fn next(&mut self) -> Result<(), Error>;
}
