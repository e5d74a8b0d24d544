//! A node: the one port, its carriers, principals, authorisation, and the drivers of machines.
//!
//! ```text
//!                       ┌─────────────────────────── Node ───────────────────────────┐
//!   curl, browsers ──▶  │  port ─▶ routes ─▶ rest      ─┐                             │
//!   devices, services ─▶│  (TLS,   (who is   carriers  ─┼─▶ gate ─▶ Services          │
//!   other nodes ─────▶  │  limits) it: auth) reflection ┘   (authorize, tenant)       │
//!                       └─────────────────────────────────────────────────────────────┘
//! ```
//! Promises: nothing is served to somebody unknown except liveness, readiness and the public schema; every piece of
//! every request is authorised in one place ([`authorize`]) on the one way to the services ([`gate`]); whatever
//! strangers send is bounded in size, number and time before they have said who they are ([`port`]); a node that
//! cannot start says why and what to do.
//!
//! [`config`] says what can be set and why the defaults are what they are; [`data_dir`] and [`pki`] guard what lies on
//! disk; [`driver`] runs machines; [`clock`] is the only place that reads the host's clocks for them.
//!
//! What it deliberately does not do: read flags or the environment (the binary does), decide anything that a machine
//! decides, or fetch anything that a caller names.

pub mod apps;
pub mod auth;
pub mod authorize;
pub mod carrier;
pub mod cell;
pub mod clock;
pub mod config;
pub mod connection;
pub mod data_dir;
pub mod driver;
pub mod gate;
pub mod gateway;
pub mod group;
pub mod hindrance;
pub mod keys;
mod load;
pub mod logs;
pub mod memory;
pub mod metrics;
pub mod notify;
pub mod pki;
pub mod placement;
pub mod port;
pub mod principal;
pub mod rate;
pub mod rest;
pub mod routes;
pub mod services;
pub mod shell;
pub mod shutdown;
pub mod status;
pub mod tables;
mod tasks;
pub mod waiting;

pub use clock::{Clock, SystemClock};
pub use config::Config;
pub use gate::{Gate, Services};
pub use principal::{AppName, Identity, Peer, Principal};

use crate::auth::{Authenticator, Trust};
use crate::cell::CellGroup;
use crate::config::Entry;
use crate::connection::{ConnectionConfig, Connections, GateDispatcher};
use crate::data_dir::DataDir;
use crate::gateway::Gateway;
use crate::group::StoreGroup;
use crate::hindrance::Hindrance;
use crate::keys::KeyStore;
use crate::placement::sidecar::Sidecar;
use crate::port::{Admission, Port};
use crate::services::{NodeServices, Peers};
use crate::shell::{Facts, Shared};
use crate::shutdown::Shutdown;
use axum::Router;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::disk::Disk;
use tidings_base::{Class, Error, GroupId, NodeId};
use tidings_client::local::Door;
use tidings_consensus::{ClusterId, GroupConfig, Member, Timings};
use tidings_log::RealDisk;
use tidings_predicate::Functions;
use tidings_store::state::StoreState;
use tidings_store_local::FjallKv;
use tokio::task::{JoinHandle, JoinSet};

/// How often metrics that nobody scrapes are folded together, so that they do not grow.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// How long connections may take to close once they were told to.
const CLOSING: Duration = Duration::from_secs(1);

/// A running node. Dropping it stops it without waiting; [`Node::shutdown`] waits.
pub struct Node {
    address: SocketAddr,
    is_tls: bool,
    trigger: shutdown::Trigger,
    serving: JoinHandle<Left>,
    admission: Arc<Admission>,
    services: Arc<dyn Services>,
    gateway: Arc<Gateway>,
    sidecar: Arc<Sidecar>,
    channels: Arc<notify::HttpChannels>,
    gate: Gate,
    connections: Arc<Connections>,
    /// Given back last, when nothing writes to it any more.
    _data: Option<DataDir>,
}

impl Node {
    /// Starts a node: opens its data directory, binds its port, serves.
    pub async fn start(config: Config) -> Result<Node, Error> {
        Node::start_hindered(config, Hindrance::default()).await
    }

    /// Starts a node whose predicates and queries may call these functions too. All nodes of a cluster must have the same: a
    /// record whose audience calls what a node does not have is shown to nobody there.
    pub async fn start_with_functions(config: Config, functions: Functions) -> Result<Node, Error> {
        Node::start_whole(config, Hindrance::default(), functions).await
    }

    /// Starts a node that is made worse than it is, for measurements and tests.
    pub async fn start_hindered(config: Config, hindrance: Hindrance) -> Result<Node, Error> {
        Node::start_whole(config, hindrance, Functions::default()).await
    }

    async fn start_whole(config: Config, hindrance: Hindrance, functions: Functions) -> Result<Node, Error> {
        config.validate()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let trust = Trust::load(&config)?;
        let data = DataDir::open(&config.data)?;
        let begun = async {
            let port = Port::bind(&config, clock.clone()).await?;
            // Installed before the cell opens, which is measured.
            metrics::recorder();
            let services = start_services(&config, &hindrance, functions, &data, port.address(), clock.clone()).await?;
            Ok::<_, Error>((port, Arc::new(services)))
        };
        let (port, services) = match begun.await {
            Ok(begun) => begun,
            Err(error) => {
                data.abandon();
                return Err(error);
            }
        };
        let keys = Arc::new(services.stored().clone());
        let auth = Authenticator::new(trust, keys, clock.clone());
        let node = Node::serve(config, clock, port, services, auth, Some(data))?;
        node.sidecar.hindered(&hindrance);
        Ok(node)
    }

    /// Starts a node in front of these services, without a data directory: for tests of the shell.
    pub async fn start_with(
        config: Config,
        services: Arc<dyn Services>,
        keys: Arc<dyn KeyStore>,
        clock: Arc<dyn Clock>,
    ) -> Result<Node, Error> {
        config.validate()?;
        let trust = Trust::load(&config)?;
        let port = Port::bind(&config, clock.clone()).await?;
        let auth = Authenticator::new(trust, keys, clock.clone());
        Node::serve(config, clock, port, services, auth, None)
    }

    fn serve(
        config: Config,
        clock: Arc<dyn Clock>,
        port: Port,
        services: Arc<dyn Services>,
        auth: Authenticator,
        data: Option<DataDir>,
    ) -> Result<Node, Error> {
        // Installed before the first connection is counted.
        metrics::recorder();
        let address = port.address();
        let admission = port.admission();
        let (trigger, shutdown) = shutdown::channel();
        let facts = Facts {
            node: config.node_id(),
            address: config.advertised(address),
            started: clock.now().mono,
            clock: clock.clone(),
            admission: admission.clone(),
            lease: config.timings.lease.into(),
        };
        let is_tls = config.tls.is_some();
        let auth = Arc::new(auth);
        let load = load::Load::watch(services.clone(), clock.clone());
        let gate = Gate::new(services.clone(), Arc::new(facts), load);
        let connections = Connections::new(
            ConnectionConfig {
                limits: config.frame_limits(),
                patience: config.patience(),
                ..ConnectionConfig::new(config.node_id())
            },
            auth.clone(),
            Arc::new(GateDispatcher::new(gate.clone())),
        );
        let recheck_every = config.timings.key_check.into();
        let bounds = gateway::Bounds {
            sessions: config.cell.rest_sessions,
            // Before the master ends it for idling, so that no caller meets a session that is just ending.
            idle: config.cell.rest_idle.0.min(config.cell.idle.0 * 3 / 4),
            begin: config.timings.call.into(),
        };
        let gateway = Gateway::new(gate.clone(), bounds, clock.clone());
        let (owners, tables) = (config.placement.http_owners, config.placement.tables);
        let sidecar = Sidecar::new(gate.clone(), config.node_id(), owners, tables, clock.clone());
        let channels = notify::HttpChannels::new(clock.clone(), config.notify.ids as usize);
        let shared = Arc::new(Shared {
            channels: channels.clone(),
            auth,
            gate: gate.clone(),
            gateway: gateway.clone(),
            sidecar: sidecar.clone(),
            config: Arc::new(config),
            clock,
            shutdown: shutdown.clone(),
        });
        let router = routes::router(shared, connections.clone())?;
        let serving = tokio::spawn(serve(port, router, connections.clone(), shutdown, recheck_every));
        tracing::info!(%address, tls = is_tls, "serving");
        Ok(Node {
            address,
            is_tls,
            trigger,
            serving,
            admission,
            services,
            gateway,
            sidecar,
            channels,
            gate,
            connections,
            _data: data,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL that reaches it from this machine.
    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The way in for the process that runs this node: `ClientConfig::in_process(node.door())`. Whoever has it is the
    /// operator, unless its configuration shows a credential.
    pub fn door(&self) -> Arc<dyn Door> {
        Arc::new(carrier::local::NodeDoor::new(self.connections.clone(), self.admission.clone()))
    }

    /// A place for the channel of one client of Notify that comes by a way of the application's own; whoever brings it has
    /// made sure who it is. Let its [`notify::Adapter`] be served there.
    pub async fn channel(&self, principal: &Principal) -> Result<notify::Seat, Error> {
        self.gate.notify_channel(principal, self.gate.listener(principal)?).await
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.admission.open()
    }

    /// Whether requests can be served now; if not, why.
    pub fn ready(&self) -> Result<(), Error> {
        self.services.ready()
    }

    /// Waits until the node has failed for good; why. What is left to do then is to stop and start it again.
    pub async fn failed(&self) -> Error {
        self.services.failed().await
    }

    /// Hands over what others can take, takes nothing new, lets calls in flight end within the drain time, stops the
    /// services, releases the data.
    pub async fn shutdown(self) -> Result<(), Error> {
        self.trigger.leave();
        // While everybody reaches this node: who takes over must be heard here, and who asks here is answered.
        self.services.hand_over().await;
        self.trigger.begin();
        let retire = async {
            self.sidecar.close();
            self.channels.close_all();
            self.gateway.close().await;
            self.services.retire().await;
        };
        // Together: whoever is held here would otherwise keep its connection open until it is let go.
        let (served, ()) = tokio::join!(self.serving, retire);
        self.services.shutdown().await;
        let served = match served {
            Ok(left) => {
                left.close().await;
                Ok(())
            }
            Err(e) => Err(Error::new("node.serving_failed", Class::Failed, format!("serving ended badly: {e}"))),
        };
        // Whoever comes next finds state and directory free.
        drop((self.services, self.gate, self.gateway, self.sidecar));
        served
    }

    /// Stops as a crash would, without a word to anybody; what was handed to the disk stays. For tests of what others do
    /// then.
    pub async fn crash(self) {
        self.serving.abort();
        let _ = self.serving.await;
        self.services.stop().await;
    }
}

/// Opens the cell's group and the store's in the data directory.
async fn start_services(
    config: &Config,
    hindrance: &Hindrance,
    functions: Functions,
    data: &DataDir,
    bound: SocketAddr,
    clock: Arc<dyn Clock>,
) -> Result<NodeServices, Error> {
    let peers = Arc::new(Peers::new(config)?);
    check_entry(config, data)?;
    // Both are looked at before either is begun.
    let group = |group| group_config(config, hindrance, data, bound, group);
    let (mut cell, mut store) = (group(GroupId::CELL)?, group(GroupId::STORE)?);
    if data.is_new()? {
        data.enter(config.entry.unwrap_or(Entry::Found))?;
    }
    let identity = Arc::new(data.identity()?);
    (cell.identity, store.identity) = (identity.clone(), identity);
    // One group gives the cluster its number; the other hears of it.
    cell.candidate = ClusterId::new(getrandom::u64().map_err(no_randomness)?);
    let kv = FjallKv::open(&data.state_of(GroupId::STORE)?, Default::default())?;
    let state = StoreState::open(kv).map_err(|e| Error::new("node.bad_data_dir", Class::Failed, e.to_string()))?;
    let store = StoreGroup::start(store, state, peers.clone(), clock.clone()).await?;
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(no_randomness)?;
    let options = config.cell.options(config, secret);
    let cell = CellGroup::start(cell, options, peers.clone(), clock.clone()).await?;
    data.begin()?;
    let told = placement::Told {
        node: config.node,
        address: config.advertised(bound),
        stands: config.roles.contains(&config::Role::Manager),
        fail_over: config.placement.fail_over(),
    };
    let nodes = config.cell.spares.iter().map(|m| cell::Spare { node: NodeId(m.node), address: m.address.clone() });
    let spares = cell::Spares { nodes: nodes.collect(), names: config.cell.spare_names.clone(), peers: peers.clone() };
    let notify = notify::Told {
        node: config.node,
        address: config.advertised(bound),
        serves: config.roles.contains(&config::Role::Services),
        data: data.path().join("notify"),
        data_centre: config.data_centre.clone(),
        config: config.notify.clone(),
    };
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let tables = tables::Told {
        node: config.node,
        address: config.advertised(bound),
        serves: config.roles.contains(&config::Role::Services),
        data: data.path().join("tables"),
        // What is served by lease of placement waits for a dead node equally long.
        lease_ms: millis(config.notify.lease.into()),
        renew_ms: millis(config.notify.renew.into()),
        // A write is late in all groups of the store alike.
        keep_tombstones: config.notify.keep_tombstones.into(),
        copy_reads: config.tables.copy_reads,
        cut_bytes: config.tables.cut_bytes,
        quiet: config.tables.quiet.into(),
        functions,
    };
    let services = NodeServices::new(cell, store, peers, clock.clone()).hindered(hindrance);
    let services = services.with_apps(config.named_apps());
    let services = services.with_placement(told)?.with_notify(notify)?.with_tables(tables)?;
    let services = services.leaving_with_membership();
    Ok(services.with_spares(spares, config.cell.replace_after.into(), clock))
}

fn no_randomness(e: getrandom::Error) -> Error {
    Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}"))
}

/// What a group of this node is told: all of them have the same members at first.
fn group_config(
    config: &Config,
    hindrance: &Hindrance,
    data: &DataDir,
    bound: SocketAddr,
    group: GroupId,
) -> Result<GroupConfig, Error> {
    let failed = |what: String| Error::new("node.bad_data_dir", Class::Failed, what);
    let log = data.log_of(group)?;
    let disk = RealDisk::open(&log).map_err(|e| failed(format!("cannot open {}: {e}", log.display())))?;
    let is_new = disk.list().map_err(|e| failed(format!("cannot read {}: {e}", log.display())))?.is_empty();
    if is_new && config.entry.is_none() && (config.members.len() > 1 || config.joins) {
        return Err(entry_unsaid(&log, config.joins));
    }
    // Whoever joined waits to be added, however often it is started.
    let joined = data.entered()?.entry == Some(Entry::Join);
    let members = if joined || config.entry == Some(Entry::Join) {
        Vec::new()
    } else if config.members.is_empty() {
        vec![Member { node: config.node_id(), address: config.advertised(bound) }]
    } else {
        config.members.iter().map(|m| Member { node: NodeId(m.node), address: m.address.clone() }).collect()
    };
    Ok(GroupConfig {
        timings: Timings {
            heartbeat: config.timings.heartbeat.into(),
            lease: config.timings.lease.into(),
            election: config.timings.election.into(),
            ..Timings::default()
        },
        ..GroupConfig::new(group, config.node_id(), members, hindrance.disk(disk))
    })
}

/// A directory that has a cluster cannot enter another: its log and its votes are not of that one, and members who took
/// them for theirs would follow a stranger. And one that has lost the log of a group cannot begin it again: it would vote
/// a second time.
fn check_entry(config: &Config, data: &DataDir) -> Result<(), Error> {
    if config.joins && config.entry == Some(Entry::Found) {
        let message =
            "the configuration says that this node joins a cluster (joins = true), and --found makes a new one";
        return Err(Error::new("node.founds_and_joins", Class::Refused, message).hint("Start it with --join."));
    }
    if let Some(log) = data_dir::lost_logs(data.path())?.first() {
        let message =
            format!("{} is empty, and the node has begun it before: its log and its votes are lost", log.display());
        return Err(Error::new("node.lost_group", Class::Refused, message).hint(data_dir::LOST_HINT));
    }
    if data.is_new()? {
        return Ok(());
    }
    let (did, hint) = match (data.entered()?.entry, config.entry) {
        (Some(Entry::Found), Some(Entry::Join)) => (
            "has founded a cluster of its own, and cannot join another",
            "Give the node an empty directory (--data) to join with, under a number that the cluster never knew. To go on \
             with the cluster that is in this one, start without --join.",
        ),
        (Some(Entry::Join), Some(Entry::Found)) => (
            "has joined a cluster, and cannot found another",
            "Start without --found to go on as its member, or give the node an empty directory (--data).",
        ),
        _ => return Ok(()),
    };
    let message = format!("{} {did}", data.path().display());
    Err(Error::new("node.entered_already", Class::Refused, message).hint(hint))
}

fn entry_unsaid(log: &Path, joins: bool) -> Error {
    let message = format!("{} is empty, and this node is one of several members", log.display());
    let error = Error::new("node.empty_member", Class::Refused, message);
    if joins {
        return error.hint("Start it with --join, then add it: `tidings member add NUMBER HOST:PORT`.");
    }
    error.hint(
        "If the whole cluster is new, start each member with --found, once. If this member lost its data, let the others \
         remove it and add it under a new number, started with --join: under its old number it could undo what it \
         promised.",
    )
}

/// What is still open when the services stop: the connections of other nodes.
struct Left {
    connections: Arc<Connections>,
    sockets: JoinSet<()>,
}

impl Left {
    async fn close(mut self) {
        self.connections.close_all(&tidings_wire::error::going_away(None));
        // Each closes in a moment; one that does not ends with the process.
        let _ = tokio::time::timeout(CLOSING, self.connections.emptied()).await;
        self.sockets.shutdown().await;
    }
}

/// Serves until the shutdown: nothing new, what is in flight may end, the rest but the other nodes' is closed.
async fn serve(
    port: Port,
    router: Router,
    connections: Arc<Connections>,
    shutdown: Shutdown,
    recheck_every: Duration,
) -> Left {
    let rechecking = async {
        loop {
            tokio::time::sleep(recheck_every).await;
            connections.recheck().await;
        }
    };
    let upkeep = async {
        loop {
            tokio::time::sleep(METRICS_UPKEEP).await;
            metrics::recorder().run_upkeep();
        }
    };
    let farewell = {
        let (mut shutdown, connections) = (shutdown.clone(), connections.clone());
        async move {
            shutdown.begun().await;
            connections.go_away("the node is stopping", None);
        }
    };
    let sockets = tokio::select! {
        (sockets, ()) = async { tokio::join!(port.serve(router, shutdown), farewell) } => sockets,
        never = rechecking => never,
        never = upkeep => never,
    };
    connections.close_clients(&tidings_wire::error::going_away(None));
    Left { connections, sockets }
}
