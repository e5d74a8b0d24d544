//! Connections to the other nodes: one for replication, one for requests that another node must answer.

use crate::config::Config;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error, NodeId};
use tidings_client::{Answers, Client, ClientConfig, Request, Retry, Tls};
use tidings_consensus::{Transport, TransportError};
use tidings_wire::v1::{self, RaftMessage, admin_message};
use tidings_wire::{Body, Limits, Patience};

/// Replication notices a dead member by its own time-outs; this only bounds what a call can take in the connection.
const RAFT_CALL: Duration = Duration::from_secs(120);

/// A member that came back is to be found within a heartbeat or two.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a connection is for: replication has its own, so that a flood of requests cannot hold back a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Raft,
    Requests,
}

/// The way to the other nodes of the cluster.
pub struct Peers {
    node: NodeId,
    tls: Option<Tls>,
    contacts: Vec<String>,
    /// Members by hearsay, while this node is none; a few.
    heard: Mutex<Vec<String>>,
    /// How often somebody was sent to one of them.
    sent: AtomicUsize,
    /// As many as there are members, former members and contacts, twice.
    clients: Mutex<BTreeMap<(Lane, String), Client>>,
}

impl Peers {
    /// The way from this node to others, with its own certificate.
    pub fn new(config: &Config) -> Result<Peers, Error> {
        let read = |path: &std::path::Path| {
            std::fs::read(path)
                .map_err(|e| Error::new("node.bad_tls", Class::Failed, format!("cannot read {}: {e}", path.display())))
        };
        let tls = match &config.tls {
            None => None,
            Some(tls) => {
                let ca = tls.client_ca.as_deref().map(read).transpose()?.unwrap_or_default();
                let identity = Some((read(&tls.certificate)?, read(&tls.key)?));
                Some(Tls { ca, identity, server_name: None })
            }
        };
        let contacts = config.contacts.clone();
        let (heard, sent) = (Mutex::default(), AtomicUsize::new(0));
        Ok(Peers { node: config.node_id(), tls, contacts, heard, sent, clients: Mutex::default() })
    }

    /// Lets the node at `address` answer a request that is already authorised and has full names. Without a connection it
    /// fails at once: whoever asks may know somebody else by then.
    pub async fn forward(&self, address: &str, request: Body, within: Duration) -> Result<Vec<Body>, Error> {
        let client = self.client(Lane::Requests, address)?;
        let mut answers = client.stream(Request::new(request).within(within).retry(Retry::Never)).await?;
        let mut frames = Vec::new();
        while let Some(frame) = answers.next().await {
            frames.push(frame?);
        }
        Ok(frames)
    }

    /// Lets the node at `address` answer bit by bit, within so much time to the first of it; a connection that is not
    /// there yet is waited for.
    pub async fn begin(&self, address: &str, request: Body, within: Duration) -> Result<Answers, Error> {
        let client = self.client(Lane::Requests, address)?;
        client.stream(Request::new(request).within(within).retry(Retry::Redirected)).await
    }

    /// Lets the node at `address` answer once; whoever asks decides about attempts and redirects.
    pub async fn ask(&self, address: &str, request: Body, within: Duration) -> Result<Body, Error> {
        let client = self.client(Lane::Requests, address)?;
        client.call(Request::new(request).within(within).retry(Retry::Never)).await
    }

    /// What the node at `address` says of itself; it may be no member and be asked this once.
    pub async fn status_at(&self, address: &str, within: Duration) -> Result<v1::StatusReply, Error> {
        status_of(&self.connect(address)?, within).await
    }

    /// What a member says of itself.
    pub async fn status_of_member(&self, address: &str, within: Duration) -> Result<v1::StatusReply, Error> {
        status_of(&self.client(Lane::Requests, address)?, within).await
    }

    /// Where to ask about the cluster while no members are known.
    pub fn contacts(&self) -> &[String] {
        &self.contacts
    }

    /// Takes who the members are, as they say themselves, while this node is none of them.
    pub fn hear(&self, members: Vec<String>) {
        *self.heard.lock() = members;
    }

    /// Whom this node asks about the cluster while it is no member.
    pub fn asked(&self) -> Vec<String> {
        let heard = self.heard.lock();
        self.contacts.iter().chain(heard.iter().filter(|heard| !self.contacts.contains(heard))).cloned().collect()
    }

    /// A member for somebody who cannot stay here; each time another, so that not all go to one.
    pub fn any_member(&self) -> Option<String> {
        let heard = self.heard.lock();
        let at = self.sent.fetch_add(1, Ordering::Relaxed).checked_rem(heard.len())?;
        heard.get(at).cloned()
    }

    /// Which node this is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    fn client(&self, lane: Lane, address: &str) -> Result<Client, Error> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(&(lane, address.to_owned())) {
            return Ok(client.clone());
        }
        let client = self.connect(address)?;
        clients.insert((lane, address.to_owned()), client.clone());
        Ok(client)
    }

    fn connect(&self, address: &str) -> Result<Client, Error> {
        Client::new(ClientConfig {
            node: Some(self.node),
            tls: self.tls.clone(),
            agent: format!("tidings-node/{} {}", env!("CARGO_PKG_VERSION"), self.node),
            longest_pause: LONGEST_PAUSE,
            max_in_flight: Limits::NODE.max_operations,
            patience: Patience::CONNECTOR,
            limits: Limits::NODE,
            ..ClientConfig::new([address])
        })
    }
}

#[async_trait]
impl Transport for Peers {
    async fn call(&self, _: NodeId, address: &str, message: RaftMessage) -> Result<RaftMessage, TransportError> {
        let client = self.client(Lane::Raft, address).map_err(lost)?;
        // Raft repeats what was lost by itself, and knows better when.
        let request = Request::new(Body::Raft(message)).within(RAFT_CALL).retry(Retry::Never);
        match client.call(request).await.map_err(lost)? {
            Body::Raft(reply) => Ok(reply),
            _ => Err(TransportError("the answer is none of Raft".into())),
        }
    }
}

async fn status_of(client: &Client, within: Duration) -> Result<v1::StatusReply, Error> {
    let status = admin_message::Message::Status(v1::StatusRequest { alone: true });
    let request = Request::new(Body::Admin(v1::AdminMessage { message: Some(status) }));
    match client.call(request.within(within)).await? {
        Body::Admin(v1::AdminMessage { message: Some(admin_message::Message::StatusReply(reply)) }) => Ok(reply),
        _ => Err(Error::new("node.malformed", Class::Failed, "the node's answer is no status")),
    }
}

fn lost(error: Error) -> TransportError {
    TransportError(error.to_string())
}
