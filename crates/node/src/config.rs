//! The configuration of a node: every field, its default, and why that is the default.
//!
//! Only the binary reads files, flags and the environment; it starts from [`Config::load`] or [`Config::embedded`],
//! lays flags and environment over it (all fields are public), and hands the result to [`Node::start`](crate::Node),
//! which calls [`Config::validate`]. Unknown keys are refused: a misspelt limit must not silently be no limit.

mod cell;
mod human;
mod notify;
mod placement;
mod read;
mod tables;

pub use cell::Cell;
pub use human::Time;
pub use notify::{Gather, Notify};
pub use placement::Placement;
pub use tables::Tables;

use crate::authorize::Action;
use crate::principal::AppName;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidings_base::{Class, Error, NodeId};
use tidings_wire::{Limits as FrameLimits, Part, Patience};

/// The port that everything uses unless told otherwise.
pub const DEFAULT_PORT: u16 = 7400;

/// Everything a node can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The node's number in its cluster, chosen by the operator, never reused. 1 suits a node that is alone; 0 is not
    /// allowed, since it means "nobody" on the wire.
    pub node: u64,
    /// Where the node keeps its data. `./tidings-data`: visible, beside whoever started it, easy to delete.
    pub data: PathBuf,
    /// The address to listen on. Loopback: a server without configuration must not be reachable from elsewhere.
    pub listen: SocketAddr,
    /// The address that others reach this node by, as `host:port`. By default the address it listens on, which is
    /// right unless that is a wildcard or behind a translation.
    pub advertise: Option<String>,
    /// What the node does for the cluster. All by default, so that any number of equal nodes is a cluster.
    pub roles: Vec<Role>,
    /// The data centre it stands in; replicas are spread over these. All nodes in one by default.
    pub data_centre: String,
    /// Accept connections from beyond loopback although TLS or authentication is missing. Never by default: whoever
    /// reaches such a node may read what passes, or do anything.
    pub insecure_listen: bool,
    /// Let anybody who reaches the port read `/metrics`. Off: metrics tell names of topics and rates; a scraper can
    /// carry the operator key.
    pub public_metrics: bool,
    /// The members that the cluster begins with, this node among them. None = this node alone. It is read once, when
    /// the data directory is new; later changes go through `tidings member`.
    pub members: Vec<Member>,
    /// This node was made for a cluster that runs (`tidings init DIR --add`): with an empty data directory it starts with
    /// `--join` alone. Off: a node that is told nothing is a cluster of its own.
    pub joins: bool,
    /// Nodes of the cluster, as `host:port`, that this node asks where to send requests while it is no member itself: it
    /// was not added yet, or it is not to be. None by default: until it is added, it answers nobody.
    pub contacts: Vec<String>,
    /// How a node with an empty data directory enters its cluster. Said by a flag, once, never by a file: see
    /// [`Entry`].
    #[serde(skip)]
    pub entry: Option<Entry>,
    /// Encryption of the port. None = plain text, which only loopback may use.
    pub tls: Option<Tls>,
    /// Who may call. Nobody configured = on loopback everyone is the operator.
    pub auth: Auth,
    /// What one caller may take.
    pub limits: Limits,
    /// How long things may take.
    pub timings: Timings,
    /// Sessions, leases and locks.
    pub cell: Cell,
    /// Who owns which key.
    pub placement: Placement,
    /// Who is told of what.
    pub notify: Notify,
    /// Shared tables.
    pub tables: Tables,
    /// What is written about what happens.
    pub log: Log,
}

/// How a node with an empty data directory enters a cluster of several.
///
/// It must be said, because the directory itself cannot tell a new node from one that lost its disk. The latter has
/// voted and acknowledged what it does not remember; were it to vote again under its old number, acknowledged writes
/// could be lost although a majority of the disks survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The cluster is new, and this node one of its first members.
    Found,
    /// The cluster runs; it will add this node, under a number that it never knew.
    Join,
}

/// A member of the cluster's first membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number.
    pub node: u64,
    /// Where other nodes reach it, as `host:port`.
    pub address: String,
}

/// What a node does for its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds a replica of the cell.
    Cell,
    /// Stands for election as placement manager.
    Manager,
    /// Runs matchers, registrars and table processors.
    Services,
    /// Runs the sketcher.
    Sketcher,
    /// Takes connections of clients.
    Edge,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 5] = [Role::Cell, Role::Manager, Role::Services, Role::Sketcher, Role::Edge];
}

/// Files of the node's certificate. Relative paths are seen from the configuration file's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain in PEM, the node's own first.
    pub certificate: PathBuf,
    /// The private key in PEM; only its owner may be able to read it.
    pub key: PathBuf,
    /// The CA whose certificates make a caller a node. Without it no caller can be a node, so a cluster needs it.
    pub client_ca: Option<PathBuf>,
}

/// Who may call, beside applications, whose keys live in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// The Argon2 hash of the operator's key, as `tidings init` writes it.
    pub operator_key_hash: Option<String>,
    /// Who vouches for users.
    pub issuers: Vec<Issuer>,
}

impl Auth {
    /// Whether callers have to say who they are.
    pub fn is_configured(&self) -> bool {
        self.operator_key_hash.is_some() || !self.issuers.is_empty()
    }
}

/// One issuer of user tokens. Everything about it is pinned here; a token decides nothing but which issuer it claims
/// to be from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    /// The exact value of the token's `iss`.
    pub issuer: String,
    /// The value that the token's `aud` must be or contain.
    pub audience: String,
    /// The one algorithm that its tokens are signed with.
    pub algorithm: jsonwebtoken::Algorithm,
    /// A file with its keys as a JSON Web Key Set, read when the node starts. Either this or `public_key`.
    pub jwks: Option<PathBuf>,
    /// A file with its one public key in PEM.
    pub public_key: Option<PathBuf>,
    /// The application that its users belong to.
    pub app: String,
    /// What its users may do with store and feed themselves, such as `"store.read"`. Nothing by default: raw storage
    /// knows no rows of one's own; users normally go through the parts above it.
    #[serde(default)]
    pub grants: Vec<Grant>,
}

/// One thing a user may do: `"part.action"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The part.
    pub part: Part,
    /// The action.
    pub action: Action,
}

impl Serialize for Grant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}.{}", self.part.name(), self.action.name()))
    }
}

impl<'de> Deserialize<'de> for Grant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Grant, D::Error> {
        let text = String::deserialize(deserializer)?;
        let grantable =
            [Part::Cell, Part::Placement, Part::Notify, Part::Tables, Part::Sketch, Part::Store, Part::Feed];
        let mut all =
            grantable.iter().flat_map(|part| [Action::Read, Action::Write].map(|action| Grant { part: *part, action }));
        all.find(|grant| text == format!("{}.{}", grant.part.name(), grant.action.name())).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "expected a grant such as \"store.read\" or \"feed.write\", found \"{}\"",
                crate::principal::clip(&text)
            ))
        })
    }
}

/// What one caller, and all together, may take. Those marked "before authentication" hold for strangers too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections in total, before authentication. 20,000: below the usual limit of file descriptors once that
    /// is raised for a server, and about 240 MB when all of them idle.
    pub connections: usize,
    /// Open connections from one address (an IPv6 /64 counts as one), before authentication. 1,000: a large office
    /// behind one address, not a flood. [`Config::embedded`] allows as many as in total, everyone being local.
    pub connections_per_address: usize,
    /// HTTP requests and TLS handshakes a second from one address, before authentication; 0 = no limit. 2,000: far
    /// above what people and devices do; services hold one connection and send frames. 0 in [`Config::embedded`].
    pub requests_per_second: u32,
    /// Failed authentications a minute from one address before further attempts at the same key are refused unseen. 30:
    /// people mistype a few times; guessing at this rate gets nowhere. Other keys and signed tokens from there are not
    /// kept out: many may share an address.
    pub failures_per_minute: u32,
    /// Bytes of HTTP headers of one request, before authentication. 16 KiB: tokens and cookies fit.
    pub header_bytes: usize,
    /// Bytes of the body of one REST request. 4 MiB: one command of the agreed log (2 MiB) in JSON.
    pub body_bytes: usize,
    /// Bytes of one frame of a client. The protocol's own default: a value of 1 MiB with whatever stands around it.
    /// Nodes among themselves have larger frames, and strangers smaller ones, both fixed by the protocol.
    pub frame_bytes: u32,
    /// Operations open at once on one connection of a client. The protocol's own default.
    pub operations: u32,
    /// Bytes that all frames of one operation of a client may have together in one direction. The protocol's own
    /// default.
    pub operation_bytes: u64,
    /// Frames of a long answer sent before the reader must grant more. The protocol's own default.
    pub initial_credit: u32,
}

/// How long things may take. Of these `lease` alone is a matter of safety.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timings {
    /// From accepting a connection to its TLS handshake being over. 10 s: several round trips of a bad mobile network.
    pub handshake: Time,
    /// From the first byte of a request to the end of its headers, and how long a connection may idle between
    /// requests. 20 s, against callers that send a byte at a time.
    pub header: Time,
    /// From a connection being made to its `Hello` being accepted. 10 s, as for the handshake.
    pub hello: Time,
    /// After how long without a sign a quiet connection is asked for one. 20 s: shorter than what network equipment
    /// forgets connections after.
    pub ping_after: Time,
    /// After how long without a sign a connection is taken for half-open and closed. 50 s: one lost answer is not
    /// death.
    pub dead_after: Time,
    /// How long a reader may take nothing of what waits for it before it is disconnected. 30 s.
    pub stall: Time,
    /// How long the body of a REST request may take to arrive. 30 s: 4 MiB over a slow line.
    pub body: Time,
    /// How long a REST call may take unless it asks to wait. 30 s: longer than a fail-over.
    pub call: Time,
    /// How long a shutdown waits for calls in flight. 10 s: less than what supervisors wait before they kill.
    pub drain: Time,
    /// How long a verified key is believed without looking again whether it was revoked. 10 s, the bound on how long
    /// a revoked key still opens doors.
    pub key_check: Time,
    /// How far an issuer's clock may be off. 30 s.
    pub token_leeway: Time,
    /// How often a leader tells its followers that it leads. 100 ms: cheap, and six fit into a lease.
    pub heartbeat: Time,
    /// For how long a member that heard its leader elects no other; leaders answer reads on their own for most of it.
    /// 600 ms: short fail-overs on a local network. It must be the same at all members, and several round trips long.
    pub lease: Time,
    /// How long a follower waits beyond the lease before it stands for election. 300 ms: several round trips.
    pub election: Time,
}

/// What is written about what happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Text for people, JSON for collectors. Text: a first look happens at a terminal.
    pub format: LogFormat,
    /// What is written, in the syntax of `RUST_LOG`. What an operator wants to know, nothing per
    /// request, and of the engines beneath only what is wrong: `openraft=warn` tells of every message that did not arrive.
    pub filter: String,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For terminals.
    Text,
    /// One object a line.
    Json,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            node: 1,
            data: PathBuf::from("tidings-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)),
            advertise: None,
            roles: Role::ALL.to_vec(),
            data_centre: "default".to_owned(),
            insecure_listen: false,
            public_metrics: false,
            members: Vec::new(),
            joins: false,
            contacts: Vec::new(),
            entry: None,
            tls: None,
            auth: Auth::default(),
            limits: Limits::default(),
            timings: Timings::default(),
            cell: Cell::default(),
            placement: Placement::default(),
            notify: Notify::default(),
            tables: Tables::default(),
            log: Log::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 20_000,
            connections_per_address: 1_000,
            requests_per_second: 2_000,
            failures_per_minute: 30,
            header_bytes: 16 << 10,
            body_bytes: 4 << 20,
            frame_bytes: FrameLimits::CLIENT.max_frame,
            operations: FrameLimits::CLIENT.max_operations,
            operation_bytes: FrameLimits::CLIENT.max_operation_bytes,
            initial_credit: FrameLimits::CLIENT.initial_credit,
        }
    }
}

impl Default for Timings {
    fn default() -> Timings {
        Timings {
            handshake: Time::seconds(10),
            header: Time::seconds(20),
            hello: Time(Patience::ACCEPTOR.handshake),
            ping_after: Time(Patience::ACCEPTOR.ping_after),
            dead_after: Time(Patience::ACCEPTOR.dead_after),
            stall: Time(Patience::ACCEPTOR.stall),
            body: Time::seconds(30),
            call: Time::seconds(30),
            drain: Time::seconds(10),
            key_check: Time::seconds(10),
            token_leeway: Time::seconds(30),
            heartbeat: Time::millis(100),
            lease: Time::millis(600),
            election: Time::millis(300),
        }
    }
}

impl Default for Log {
    fn default() -> Log {
        Log { format: LogFormat::Text, filter: "info,openraft=error,fjall=warn,lsm_tree=warn".to_owned() }
    }
}

impl Config {
    /// Reads a configuration file. What is wrong with it is told with its line and what was expected. Whether the
    /// whole makes sense is for [`Config::validate`] to say, once flags and environment lie over it.
    pub fn load(path: impl AsRef<Path>) -> Result<Config, Error> {
        read::load(path.as_ref())
    }

    /// [`Config::validate`] for a configuration that came from a file: what is wrong is told with its place there, if the
    /// file says it.
    pub fn validate_in(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.validate().map_err(|error| read::locate(path.as_ref(), error))
    }

    /// One node on this machine with embedded storage: what `tidings serve` runs without a file. On loopback callers
    /// are local, so the limits that tell one address from another are off.
    pub fn embedded(data: impl Into<PathBuf>, listen: SocketAddr) -> Config {
        let mut config = Config { data: data.into(), listen, ..Config::default() };
        if listen.ip().is_loopback() {
            config.limits.connections_per_address = config.limits.connections;
            config.limits.requests_per_second = 0;
        }
        config
    }

    /// This node's id.
    pub fn node_id(&self) -> NodeId {
        NodeId(self.node)
    }

    /// The applications that it names: those of issuers, hooks and formats are there without having been made.
    pub fn named_apps(&self) -> impl Iterator<Item = AppName> {
        let issuers = self.auth.issuers.iter().map(|issuer| issuer.app.as_str());
        let notify = self.notify.hooks.keys().chain(self.notify.formats.keys()).map(String::as_str);
        // Names that are none were refused by `validate`.
        issuers.chain(notify).filter_map(|app| AppName::parse(app).ok())
    }

    /// The address that others reach this node by, once it listens on `bound`.
    pub fn advertised(&self, bound: SocketAddr) -> String {
        let own = self.members.iter().find(|member| member.node == self.node);
        let named = self.advertise.clone().or_else(|| own.map(|member| member.address.clone()));
        named.unwrap_or_else(|| bound.to_string())
    }

    /// Whether a caller without credentials is the operator: nothing is configured that could tell callers apart,
    /// and either only this machine can reach the port or the operator insisted.
    pub fn trusts_everyone(&self) -> bool {
        !self.auth.is_configured() && (self.listen.ip().is_loopback() || self.insecure_listen)
    }

    /// What a client may take on one connection.
    pub fn frame_limits(&self) -> FrameLimits {
        FrameLimits {
            max_frame: self.limits.frame_bytes,
            max_operations: self.limits.operations,
            max_operation_bytes: self.limits.operation_bytes,
            initial_credit: self.limits.initial_credit,
        }
    }

    /// When a quiet connection is asked for a sign of life, and when it is given up.
    pub fn patience(&self) -> Patience {
        Patience {
            handshake: self.timings.hello.into(),
            ping_after: self.timings.ping_after.into(),
            dead_after: self.timings.dead_after.into(),
            stall: self.timings.stall.into(),
        }
    }

    /// Checks what single fields cannot: that the whole makes sense and is safe.
    pub fn validate(&self) -> Result<(), Error> {
        self.check_node()?;
        self.check_exposure()?;
        self.check_members()?;
        self.check_issuers()?;
        self.check_limits()?;
        self.cell.check(self)?;
        self.placement.check()?;
        self.notify.check(&self.placement)
    }

    fn check_node(&self) -> Result<(), Error> {
        if self.node == 0 {
            return Err(bad("`node` is 0, which means nobody").hint("Number nodes from 1."));
        }
        if self.roles.is_empty() {
            return Err(bad("`roles` is empty").hint("Leave it out for all roles."));
        }
        let everybodys = [(Role::Cell, "cell"), (Role::Edge, "edge")];
        if let Some((_, name)) = everybodys.iter().find(|(role, _)| !self.roles.contains(role)) {
            return Err(bad(format!("`roles` leaves out `{name}`, which every node does"))
                .hint("Name it too; `manager`, `services` and `sketcher` can be left out."));
        }
        if let Some(address) = &self.advertise {
            check_address("advertise", address)?;
        }
        Ok(())
    }

    fn check_exposure(&self) -> Result<(), Error> {
        if self.listen.ip().is_loopback() || self.insecure_listen {
            return Ok(());
        }
        let missing = match (self.tls.is_some(), self.auth.is_configured()) {
            (true, true) => return Ok(()),
            (false, true) => "TLS is",
            (true, false) => "authentication is",
            (false, false) => "TLS and authentication are",
        };
        Err(Error::new(
            "node.insecure_listen",
            Class::Refused,
            format!("will not listen on {}, which is beyond loopback: {missing} not configured", self.listen),
        )
        .hint(
            "Let `tidings init DIR` make certificates, an operator key and a configuration, or, on a network where \
             everyone may do everything, pass --insecure-listen (`insecure_listen = true`).",
        ))
    }

    fn check_members(&self) -> Result<(), Error> {
        for (i, member) in self.members.iter().enumerate() {
            check_address("members.address", &member.address)?;
            if member.node == 0 || self.members[..i].iter().any(|earlier| earlier.node == member.node) {
                return Err(bad(format!("`members` names node {} twice or as 0", member.node))
                    .hint("Give each member a number of its own, from 1."));
            }
            if self.members[..i].iter().any(|earlier| earlier.address == member.address) {
                return Err(bad(format!("`members` names address {} twice", member.address))
                    .hint("Each member listens at an address of its own."));
            }
        }
        if !self.members.is_empty() && !self.members.iter().any(|member| member.node == self.node) {
            return Err(bad(format!("`members` does not name this node ({})", self.node))
                .hint("List all members of the cluster, this one too."));
        }
        if !matches!(self.members.len(), 0 | 1 | 3 | 5) {
            return Err(bad(format!("`members` names {} nodes", self.members.len()))
                .hint("Use 1, 3 or 5 members: an even number survives no more failures than one less."));
        }
        for contact in &self.contacts {
            check_address("contacts", contact)?;
        }
        let nodes_are_known = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.members.len() > 1 && self.auth.is_configured() && !nodes_are_known {
            return Err(bad("callers must authenticate, but members could not: `tls.client_ca` is missing")
                .hint("Let `tidings init DIR` make a CA and a certificate for every node."));
        }
        Ok(())
    }

    fn check_issuers(&self) -> Result<(), Error> {
        use jsonwebtoken::Algorithm::{HS256, HS384, HS512};
        for (i, issuer) in self.auth.issuers.iter().enumerate() {
            let name = crate::principal::clip(&issuer.issuer);
            AppName::parse(&issuer.app)?;
            if issuer.issuer.is_empty() || issuer.audience.is_empty() {
                return Err(bad(format!("issuer `{name}` needs both `issuer` and `audience`")));
            }
            if self.auth.issuers[..i].iter().any(|earlier| earlier.issuer == issuer.issuer) {
                return Err(bad(format!("issuer `{name}` is configured twice"))
                    .hint("One issuer belongs to one application; put all its keys into one key set."));
            }
            if let Some(other) = self.auth.issuers[..i].iter().find(|earlier| earlier.app == issuer.app) {
                let other = crate::principal::clip(&other.issuer);
                return Err(bad(format!("issuers `{other}` and `{name}` both speak for application `{}`", issuer.app))
                    .hint("People are known by application and subject: the same subject of both would be one person. Give each an application of its own."));
            }
            if issuer.jwks.is_some() == issuer.public_key.is_some() {
                return Err(bad(format!("issuer `{name}` needs exactly one of `jwks` and `public_key`")));
            }
            if issuer.public_key.is_some() && matches!(issuer.algorithm, HS256 | HS384 | HS512) {
                return Err(bad(format!("issuer `{name}` has a public key but an algorithm with a shared secret"))
                    .hint("Whoever knows a public key could sign with it; put a shared secret into a key set."));
            }
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), Error> {
        let l = &self.limits;
        let counts = [
            ("connections", l.connections),
            ("connections_per_address", l.connections_per_address),
            ("failures_per_minute", l.failures_per_minute as usize),
            ("operations", l.operations as usize),
            ("initial_credit", l.initial_credit as usize),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Err(bad(format!("`limits.{name}` is 0, so nobody could use the server")));
        }
        // hyper refuses smaller buffers; frames stay between what strangers and what nodes may send.
        use tidings_wire::limits::{HELLO_FRAME, NODE_FRAME};
        let sizes = [
            ("header_bytes", l.header_bytes, 8 << 10, 1 << 20),
            ("frame_bytes", l.frame_bytes as usize, HELLO_FRAME, NODE_FRAME),
            ("body_bytes", l.body_bytes, 1 << 10, 64 << 20),
        ];
        for (name, value, least, most) in sizes {
            if !(least..=most).contains(&value) {
                return Err(bad(format!("`limits.{name}` is {value}")).hint(format!("Use {least} to {most} bytes.")));
            }
        }
        if l.operation_bytes < u64::from(l.frame_bytes) {
            return Err(bad(format!("`limits.operation_bytes` is {}, less than one frame", l.operation_bytes))
                .hint("Use at least as much as `limits.frame_bytes`."));
        }
        self.check_timings()
    }

    fn check_timings(&self) -> Result<(), Error> {
        let t = &self.timings;
        let times = [
            ("handshake", t.handshake),
            ("header", t.header),
            ("hello", t.hello),
            ("ping_after", t.ping_after),
            ("stall", t.stall),
            ("body", t.body),
            ("call", t.call),
        ];
        if let Some((name, _)) = times.iter().find(|(_, time)| time.0.is_zero()) {
            return Err(bad(format!("`timings.{name}` is zero, so that nothing would be in time")));
        }
        if self.timings.dead_after.0 <= self.timings.ping_after.0 {
            return Err(bad("`timings.dead_after` is not longer than `timings.ping_after`")
                .hint("A connection must have time to answer before it is taken for dead."));
        }
        let Timings { heartbeat, lease, election, .. } = self.timings;
        if heartbeat.0.is_zero() || lease.0 < heartbeat.0 * 3 {
            return Err(bad("`timings.lease` is less than three times `timings.heartbeat`")
                .hint("One lost heartbeat must not cost a fail-over; the default is six times."));
        }
        if election <= heartbeat || election >= lease {
            return Err(bad("`timings.election` is not between `timings.heartbeat` and `timings.lease`"));
        }
        Ok(())
    }
}

/// A configuration that cannot be: always this code, so that scripts can tell.
pub(crate) fn bad(message: impl Into<String>) -> Error {
    Error::new("node.bad_config", Class::Invalid, message)
}

/// Accepts `host:port` and nothing that would mean something else in a file or a URL.
pub(crate) fn check_address(key: &str, address: &str) -> Result<(), Error> {
    let plain = |host: &str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
    let is_host = |host: &str| match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && plain(host),
    };
    match address.rsplit_once(':').map(|(host, port)| (is_host(host), port.parse::<u16>())) {
        Some((true, Ok(port))) if port != 0 => Ok(()),
        _ => Err(bad(format!("`{key}` is `{}`", crate::principal::clip(address)))
            .hint("Give a host and a port, such as `10.0.0.1:7400` or `a.example.org:7400`.")),
    }
}
