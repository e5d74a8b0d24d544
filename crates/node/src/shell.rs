//! What everything behind the port shares.

use crate::auth::Authenticator;
use crate::clock::Clock;
use crate::config::Config;
use crate::gate::{Gate, Shell};
use crate::gateway::Gateway;
use crate::notify::HttpChannels;
use crate::placement::sidecar::Sidecar;
use crate::port::Admission;
use crate::shutdown::Shutdown;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Mono, NodeId};
use tidings_wire::v1;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What carriers and REST need to serve a request.
#[derive(Clone)]
pub struct Shared {
    /// The configuration.
    pub config: Arc<Config>,
    /// The way to the services.
    pub gate: Gate,
    /// Sessions of the cell for callers that keep none.
    pub gateway: Arc<Gateway>,
    /// Owners and lookups for applications that speak HTTP.
    pub sidecar: Arc<Sidecar>,
    /// Channels of Notify for clients that speak HTTP.
    pub channels: Arc<HttpChannels>,
    /// Tells who is calling.
    pub auth: Arc<Authenticator>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tells when to stop.
    pub shutdown: Shutdown,
}

impl Shared {
    /// This node's id.
    pub fn node(&self) -> NodeId {
        self.config.node_id()
    }
}

/// What the node knows of itself, for the status.
pub struct Facts {
    /// Its id.
    pub node: NodeId,
    /// The address that others reach it by.
    pub address: String,
    /// When it started.
    pub started: Mono,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Its open connections.
    pub admission: Arc<Admission>,
    /// For how long it elects nobody after it heard a leader.
    pub lease: Duration,
}

impl Shell for Facts {
    fn describe(&self, status: &mut v1::StatusReply) {
        status.node = self.node.0;
        status.version = VERSION.to_owned();
        status.address = self.address.clone();
        let now = self.clock.now();
        status.wall_us = now.wall.0;
        let uptime = now.mono.since(self.started);
        status.uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
        status.connections = u32::try_from(self.admission.open()).unwrap_or(u32::MAX);
        status.lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        let other = status.nodes.iter().filter(|node| node.lease_ms != status.lease_ms);
        let other: Vec<String> = other.map(|node| unequal(node, status.lease_ms)).collect();
        status.problems.extend(other);
    }
}

/// A leader answers reads by itself for as long as it believes that nobody elects another.
fn unequal(node: &v1::NodeStatus, lease_ms: u32) -> String {
    format!(
        "Node {} has `timings.lease` {} ms, this node {lease_ms} ms: reads may be stale after a change of leader. Stop all nodes \
         and start them with the same.",
        node.node, node.lease_ms
    )
}
