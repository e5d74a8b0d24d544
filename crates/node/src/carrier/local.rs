//! The carrier within a process: the door for whoever runs this node in a program of its own.

use crate::connection::{Arrival, Connections};
use crate::port::Admission;
use crate::principal::{Identity, OperatorBy, Peer, Principal};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_client::local::{self, Door, LocalCarrier};

/// The door of a node.
pub struct NodeDoor {
    connections: Arc<Connections>,
    admission: Arc<Admission>,
}

impl NodeDoor {
    /// A door to these connections, which are counted like those with sockets: a stop waits for them too.
    pub fn new(connections: Arc<Connections>, admission: Arc<Admission>) -> NodeDoor {
        NodeDoor { connections, admission }
    }
}

impl Door for NodeDoor {
    fn knock(&self, app: Option<&str>) -> Result<LocalCarrier, Error> {
        let ip = Ipv4Addr::LOCALHOST;
        let slot = self.admission.admit(ip.into()).map_err(|refused| {
            let message = format!("the node takes no further connections: {}", refused.name());
            Error::new("control.busy", Class::Unreachable, message)
        })?;
        let (here, there) = local::pair();
        let peer = Peer { address: SocketAddr::from((ip, 0)), tls: false, node: None };
        let identity = Identity { principal: Principal::operator(OperatorBy::InProcess), until: None };
        let arrival = Arrival {
            peer: Arc::new(peer),
            identity: Some(identity),
            explicit: false,
            app: app.map(str::to_owned),
            marker: None,
        };
        let connection = self.connections.serve(there, arrival);
        tokio::spawn(async move {
            connection.await;
            drop(slot);
        });
        Ok(here)
    }
}
