//! What a client needs to know.

use crate::link::Operation;
use crate::local::Door;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, NodeId};
use tidings_wire::{Limits, Patience};

/// How a client connects and how long it tries. Every field but the servers has a default that fits most.
#[derive(Clone)]
pub struct ClientConfig {
    /// Nodes, any of which will do: `http://host:port`, `https://host:port`, or `host:port` (encrypted if
    /// [`tls`](ClientConfig::tls) is given).
    pub servers: Vec<String>,
    /// An API key or token, sent as `Authorization: Bearer …`.
    pub credential: Option<String>,
    /// The application to act in, for operators; none = `default`. Everybody else acts in their own.
    pub app: Option<String>,
    /// The node that connects, where one does: believed only by a server that has no authentication configured.
    pub node: Option<NodeId>,
    /// How to check the server's certificate, and which to show. `https` without it trusts nobody.
    pub tls: Option<Tls>,
    /// What frames travel by. gRPC: services have it, and it is the quicker one.
    pub carrier: Carrier,
    /// A node of this process: [`IN_PROCESS`] among the servers is reached by it, without a socket.
    pub door: Option<Arc<dyn Door>>,
    /// What connects, for the server's logs.
    pub agent: String,
    /// How long a call may take when it says nothing itself. 10 s: longer than an election and a retry, shorter than
    /// a person's patience.
    pub deadline: Duration,
    /// How long one attempt to connect may take. 5 s: several round trips over a bad line.
    pub connect_timeout: Duration,
    /// The pause before connecting again; it doubles up to [`longest_pause`](ClientConfig::longest_pause), and a
    /// random half of it is left out, so that the clients of a node that came back do not come all at once.
    pub first_pause: Duration,
    /// The longest pause before connecting again. 3 s: a node that came back is found soon enough.
    pub longest_pause: Duration,
    /// How many operations may be open at once; further callers wait. The server may allow less.
    pub max_in_flight: u32,
    /// When a quiet connection is asked, and when it is given up.
    pub patience: Patience,
    /// What this side takes; the server's limits hold where they are lower.
    pub limits: Limits,
    /// The seed of the jitter; none = drawn from the system.
    pub seed: Option<u64>,
    /// What to do with operations that the server begins; none = they are answered with `control.unsupported`.
    pub on_operation: Option<Arc<dyn Fn(Operation) + Send + Sync>>,
}

/// What frames travel by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// One gRPC stream.
    #[default]
    Grpc,
    /// A WebSocket, as browsers and devices have it; for now only to addresses that are not encrypted.
    WebSocket,
}

/// The TLS side of a client.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificates that are trusted to sign the server's, as PEM.
    pub ca: Vec<u8>,
    /// The certificate and key that this side shows, as PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that the server's certificate must have, if it is not the host of the address.
    pub server_name: Option<String>,
}

impl ClientConfig {
    /// A client of these servers, otherwise with defaults.
    pub fn new<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> ClientConfig {
        ClientConfig {
            servers: servers.into_iter().map(Into::into).collect(),
            credential: None,
            app: None,
            node: None,
            tls: None,
            carrier: Carrier::default(),
            door: None,
            agent: concat!("tidings-client/", env!("CARGO_PKG_VERSION")).into(),
            deadline: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(3),
            max_in_flight: Limits::CLIENT.max_operations,
            patience: Patience::CONNECTOR,
            limits: Limits::NODE,
            seed: None,
            on_operation: None,
        }
    }
}

impl ClientConfig {
    /// A client of the node behind this door, otherwise with defaults. Where that node redirects to is reached as usual.
    pub fn in_process(door: Arc<dyn Door>) -> ClientConfig {
        ClientConfig { door: Some(door), ..ClientConfig::new([IN_PROCESS]) }
    }
}

/// The name of the node behind a client's [`door`](ClientConfig::door), in the place of an address.
pub const IN_PROCESS: &str = "in-process";

/// One server, otherwise with defaults.
impl From<&str> for ClientConfig {
    fn from(server: &str) -> ClientConfig {
        ClientConfig::new([server])
    }
}

/// These servers, otherwise with defaults.
impl<S: Into<String>, const N: usize> From<[S; N]> for ClientConfig {
    fn from(servers: [S; N]) -> ClientConfig {
        ClientConfig::new(servers)
    }
}

/// These servers, otherwise with defaults.
impl<S: Into<String>> From<Vec<S>> for ClientConfig {
    fn from(servers: Vec<S>) -> ClientConfig {
        ClientConfig::new(servers)
    }
}

/// Secrets are not printed.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("servers", &self.servers)
            .field("credential", &self.credential.as_ref().map(|_| "…"))
            .field("tls", &self.tls.is_some())
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

/// Where a node is, parsed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) tls: bool,
    /// `host:port`.
    pub(crate) authority: String,
}

impl Address {
    /// Whether it stands for the node behind the door.
    pub(crate) fn is_in_process(&self) -> bool {
        self.authority.strip_suffix(":0") == Some(IN_PROCESS)
    }

    /// Parses an address as the configuration or a redirect gives it.
    pub(crate) fn parse(text: &str, tls_by_default: bool) -> Result<Address, Error> {
        let bad = |why: &str| {
            Error::new("client.bad_address", Class::Invalid, format!("`{text}` is not the address of a node: {why}"))
                .hint("Write http://host:port or https://host:port.")
        };
        let (tls, rest) = match text.split_once("://") {
            None => (tls_by_default, text),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => return Err(bad(&format!("`{scheme}` is not http or https"))),
        };
        let authority: http::uri::Authority =
            rest.trim_end_matches('/').parse().map_err(|_| bad("a host and a port are expected"))?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(bad("a host and a port are expected, and nothing else"));
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str() == IN_PROCESS => 0,
            None if authority.as_str() == authority.host() => DEFAULT_PORT,
            None => return Err(bad("the port is no number up to 65535")),
        };
        Ok(Address { tls, authority: format!("{}:{port}", authority.host()) })
    }
}

/// The port of a node when an address names none.
pub const DEFAULT_PORT: u16 = 7400;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_once() {
        let parsed = |text, tls| Address::parse(text, tls).map(|a| a.to_string());
        assert_eq!(parsed("http://127.0.0.1:7400/", false).unwrap(), "http://127.0.0.1:7400");
        assert_eq!(parsed("node-1:80", true).unwrap(), "https://node-1:80");
        assert_eq!(parsed("[::1]", false).unwrap(), "http://[::1]:7400");
        for bad in ["", "ftp://x:1", "http://", "http://a b", "http://me@host:1", "http://host:1/path", "host:99999"] {
            assert_eq!(parsed(bad, false).unwrap_err().code, "client.bad_address", "{bad}");
        }
    }

    #[test]
    fn a_printed_configuration_keeps_its_secret() {
        let mut config = ClientConfig::new(["http://127.0.0.1:1"]);
        config.credential = Some("tid_1.secret".into());
        assert!(!format!("{config:?}").contains("secret"));
    }
}
