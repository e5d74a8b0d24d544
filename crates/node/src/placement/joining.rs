//! How a part of this node joins a pool of its own: it makes the namespace if it is not there, looks owners up in it, and owns
//! what it is leased, where the node serves.

use crate::services::{Stored, Through};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::{Lookup, NamespaceConfig, Owner, OwnerOptions, Placement};

/// The pause before another attempt to begin.
const AGAIN: Duration = Duration::from_millis(250);

/// Points of the ring that an owner begins with: each range it gains is looked through.
const VIRTUAL_NODES: u32 = 16;

/// A part's pool.
pub(crate) struct Pool {
    /// The part, as in logs.
    pub(crate) part: &'static str,
    /// Its namespace: no application can reach it.
    pub(crate) namespace: &'static str,
    /// How long a lease is, and how often it is renewed, in milliseconds.
    pub(crate) lease_ms: u32,
    pub(crate) renew_ms: u32,
    /// The way to placement's leader.
    pub(crate) through: Arc<Through>,
}

/// A member of a pool.
pub(crate) struct Member {
    /// This node's number.
    pub(crate) node: u64,
    /// Where others reach it.
    pub(crate) address: String,
    /// A directory of its own: its lock proves that an earlier process of this node is dead.
    pub(crate) data: PathBuf,
}

impl Pool {
    /// Begins to look up, and to own for a member; none if there is no member.
    pub(crate) async fn join(
        &self,
        lookup: &OnceLock<Lookup>,
        member: Option<Member>,
        stored: impl Fn() -> Result<Stored, Error>,
    ) -> Option<Owner> {
        let Pool { part, namespace, .. } = *self;
        self.make().await;
        match Lookup::start(self.through.clone(), namespace) {
            Ok(started) => {
                let _: Result<(), Lookup> = lookup.set(started);
            }
            Err(error) => tracing::error!(%error, "{part}: this node cannot look up who serves what"),
        }
        let Member { node, address, data } = member?;
        // Members could not send what is for its clients.
        while stored().is_ok_and(|stored| stored.is_outside()) {
            tokio::time::sleep(AGAIN).await;
        }
        let options = OwnerOptions::new(namespace, format!("node-{node}"), address).data_dir(data);
        let owner = Owner::start(self.through.clone(), options);
        owner.inspect_err(|error| tracing::error!(%error, "{part}: this node cannot serve its share")).ok()
    }

    /// Makes the namespace, as soon as there is a manager.
    async fn make(&self) {
        let Pool { part, namespace, lease_ms, renew_ms, .. } = *self;
        let placement = Placement::new(self.through.clone());
        let config = NamespaceConfig { lease_ms, renew_ms, virtual_nodes: VIRTUAL_NODES, ..NamespaceConfig::default() };
        let mut warned = false;
        loop {
            match placement.create(namespace, config.clone()).await {
                Ok(()) => return,
                Err(error) if error.code == "placement.namespace_exists" => return,
                Err(error) if !warned => {
                    warned = true;
                    tracing::info!(%error, "{part}: nothing is leased yet");
                }
                Err(error) => tracing::debug!(%error, "{part}: nothing is leased yet"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}
