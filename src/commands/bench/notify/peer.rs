//! What the load generator asks of a notification service, so that others can be measured with the same load.

use async_trait::async_trait;
use std::sync::Arc;
use tidings_base::Error;

/// A running service.
#[async_trait]
pub trait Peer: Send + Sync {
    /// A connection of its own, by whatever devices would use.
    async fn device(&self) -> Result<Arc<dyn PeerConnection>, Error>;
    /// A connection of its own, by whatever services would use.
    async fn service(&self) -> Result<Arc<dyn PeerConnection>, Error>;
}

/// One connection. Objects are numbered; how a service names them is its own business.
#[async_trait]
pub trait PeerConnection: Send + Sync {
    /// One more client on this connection, which hears of these objects; returns once it will hear of whatever is
    /// published from now on. It listens until what is returned is dropped.
    async fn listen(&self, objects: Vec<usize>, hears: Arc<dyn Hears>) -> Result<Box<dyn Send + Sync>, Error>;
    /// Publishes a version; returns once it is durable.
    async fn publish(&self, object: usize, version: u64) -> Result<(), Error>;
}

/// Whoever is called back.
pub trait Hears: Send + Sync {
    /// An object has this version, or a later one.
    fn hears(&self, object: usize, version: u64);
}
