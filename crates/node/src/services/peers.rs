//! Connections to the other nodes: one for replication, one for requests that another node must answer.

use crate::clock::Clock;
use crate::config::Config;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error, NodeId, Wall};
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

/// Another node, as it says itself.
pub struct Met {
    /// What it says.
    pub status: v1::StatusReply,
    /// Its wall clock beside this node's; absent if it does not tell it.
    pub clock: Option<ClockGap>,
}

/// How far another node's wall clock is before this one's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockGap {
    /// In microseconds; below zero = it is behind.
    pub ahead_us: i64,
    /// By how much that can be wrong: half the round trip.
    pub error_us: u64,
}

impl ClockGap {
    /// Beyond this, tokens and certificates begin and end at noticeably other times there.
    pub const TOO_FAR: Duration = Duration::from_secs(2);

    fn between(asked: Wall, there: Wall, answered: Wall) -> Option<ClockGap> {
        let half = answered.0.saturating_sub(asked.0) / 2;
        let ahead_us = i64::try_from(i128::from(there.0) - i128::from(asked.0 + half)).ok()?;
        (there.0 > 0).then_some(ClockGap { ahead_us, error_us: half })
    }

    /// Whether the clocks are too far apart, however long the answer was under way.
    pub fn is_too_far(self) -> bool {
        u128::from(self.ahead_us.unsigned_abs().saturating_sub(self.error_us)) > ClockGap::TOO_FAR.as_micros()
    }
}

impl fmt::Display for ClockGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.ahead_us < 0 { "behind" } else { "ahead" };
        match self.ahead_us.unsigned_abs() {
            us if us <= self.error_us => write!(f, "the same within {:.1} ms", self.error_us as f64 / 1e3),
            us @ 0..1_000_000 => write!(f, "{:.1} ms {way}", us as f64 / 1e3),
            us => write!(f, "{:.1} s {way}", us as f64 / 1e6),
        }
    }
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

    /// What a member says of itself, and how its clock goes beside this one.
    pub async fn meet(&self, address: &str, within: Duration, clock: &dyn Clock) -> Result<Met, Error> {
        let asked = clock.now().wall;
        let status = status_of(&self.client(Lane::Requests, address)?, within).await?;
        let clock = ClockGap::between(asked, Wall(status.wall_us), clock.now().wall);
        Ok(Met { status, clock })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_judged_by_what_the_round_trip_leaves_sure() {
        let gap = |there, answered| ClockGap::between(Wall(10_000_000), Wall(there), Wall(answered)).unwrap();
        let near = gap(10_051_000, 10_100_000);
        assert_eq!((near.ahead_us, near.error_us, near.is_too_far()), (1_000, 50_000, false));
        assert_eq!(near.to_string(), "the same within 50.0 ms");
        let far = gap(12_950_000, 10_100_000);
        assert!(far.is_too_far());
        assert_eq!(far.to_string(), "2.9 s ahead");
        // It was under way for so long that the clocks may be the same.
        assert!(!gap(13_000_000, 14_000_000).is_too_far());
        let behind = gap(7_000_000, 10_000_000);
        assert!(behind.is_too_far());
        assert_eq!(behind.to_string(), "3.0 s behind");
        // An older version does not say what time it is.
        assert_eq!(ClockGap::between(Wall(1), Wall(0), Wall(2)), None);
    }
}
