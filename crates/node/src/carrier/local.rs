//! The carrier within a process: the door for whoever runs this node in a program of its own.

use crate::connection::{Arrival, Connections};
use crate::principal::{Identity, OperatorBy, Peer, Principal};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tidings_base::Error;
use tidings_client::local::{self, Door, LocalCarrier};

/// The door of a node.
pub struct NodeDoor {
    connections: Arc<Connections>,
}

impl NodeDoor {
    /// A door to these connections.
    pub fn new(connections: Arc<Connections>) -> NodeDoor {
        NodeDoor { connections }
    }
}

impl Door for NodeDoor {
    fn knock(&self, app: Option<&str>) -> Result<LocalCarrier, Error> {
        let (here, there) = local::pair();
        let peer = Peer { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), tls: false, node: None };
        let identity = Identity { principal: Principal::operator(OperatorBy::InProcess), until: None };
        let arrival =
            Arrival { peer: Arc::new(peer), identity: Some(identity), explicit: false, app: app.map(str::to_owned) };
        tokio::spawn(self.connections.serve(there, arrival));
        Ok(here)
    }
}
