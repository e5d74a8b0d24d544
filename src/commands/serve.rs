//! `tidings serve`: one node, or a member of a cluster, until it is told to stop.

use super::{probe, runtime};
use crate::cli::{LogFormat, Serve, quoted};
use crate::output::{self, broken};
use std::io::{IsTerminal, stderr};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_node::hindrance::Hindrance;
use tidings_node::memory::MemoryServices;
use tidings_node::{Config, Node, SystemClock, config, logs};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Where client commands look unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:7400";

/// Libraries that tell about themselves at `info`, and openraft, which warns of every message that it cannot deliver; whoever
/// names one in the filter hears it all the same.
const QUIET: &str = "openraft=error,fjall=warn,lsm_tree=warn,h2=warn,hyper=warn";

/// How often a starting node is asked whether it can take calls.
const LOOK: Duration = Duration::from_millis(10);

/// Runs a node until SIGINT or SIGTERM; a second one ends it at once.
pub fn run(args: Serve) -> Result<(), Error> {
    run_hindered(args, Hindrance::default())
}

/// The same with a node that is made worse than it is.
pub fn run_hindered(args: Serve, hindrance: Hindrance) -> Result<(), Error> {
    let config = prepare(args)?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let mut stop = Stop::listen()?;
        let insecure = config.insecure_listen.then_some(config.listen).filter(|listen| !listen.ip().is_loopback());
        // On a task of its own, since it may wait for the disk for long.
        let starting = tokio::spawn(Node::start_hindered(config.clone(), hindrance));
        let node = tokio::select! {
            // Nothing was promised yet that would have to be finished.
            () = stop.told() => return Ok(()),
            started = starting => started.map_err(|error| broken("the node broke while it started", error))??,
        };
        output::line(format_args!("tidings {} listening on {}", env!("CARGO_PKG_VERSION"), node.url()));
        if let Some(listen) = insecure {
            output::line(format_args!("insecure: whoever reaches {listen} may do everything"));
        }
        let ready = async {
            while node.ready().is_err() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = ready => greet(&node, &config),
            // A member without its majority waits here until it is told to stop.
            () = stop.told() => return stop.node(node).await,
            error = node.failed() => return stop.failed(node, error).await,
        }
        tokio::select! {
            () = stop.told() => stop.node(node).await,
            error = node.failed() => stop.failed(node, error).await,
        }
    });
    // Whatever is still under way now was given up: a start that was broken off, or a stop by the second signal.
    runtime.shutdown_background();
    outcome
}

/// Runs a node whose services live in memory: what is measured of it is the wire alone.
pub fn run_without_store(args: Serve) -> Result<(), Error> {
    let config = prepare(args)?;
    runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let clock = Arc::new(SystemClock);
        let (services, keys) = MemoryServices::new(clock.clone());
        let node = Node::start_with(config, services, keys, clock).await?;
        output::line(format_args!("listening on {}", node.url()));
        stop.told().await;
        stop.node(node).await
    })
}

fn prepare(args: Serve) -> Result<Config, Error> {
    let mut config = configured(args.config.as_deref(), args.data.as_deref(), args.listen, args.insecure_listen)?;
    config.entry = match (args.found, args.join) {
        (true, _) => Some(config::Entry::Found),
        (false, true) => Some(config::Entry::Join),
        (false, false) => None,
    };
    if !args.contact.is_empty() {
        config.contacts = args.contact;
    }
    if let Some(format) = args.log_format {
        config.log.format = match format {
            LogFormat::Text => config::LogFormat::Text,
            LogFormat::Json => config::LogFormat::Json,
        };
    }
    match args.log {
        Some(filter) => config.log.filter = filter,
        // Who looks on is told what to try, and of trouble; the course of things is for a log that is kept.
        None if stderr().is_terminal() && config.log == config::Log::default() => config.log.filter = "warn".to_owned(),
        None => {}
    }
    config.log.filter = format!("{QUIET},{}", config.log.filter);
    logs::init(&config.log)?;
    // Connections are files; a server wants as many as it is allowed.
    probe::raise_open_files();
    Ok(config)
}

/// The configuration: flags (and their environment) over the file over the defaults.
pub fn configured(
    file: Option<&Path>,
    data: Option<&Path>,
    listen: Option<SocketAddr>,
    insecure_listen: bool,
) -> Result<Config, Error> {
    let mut config = match file {
        Some(file) => Config::load(file)?,
        None => {
            let defaults = Config::default();
            Config::embedded(data.unwrap_or(&defaults.data), listen.unwrap_or(defaults.listen))
        }
    };
    if let Some(data) = data {
        config.data = data.to_owned();
    }
    if let Some(listen) = listen {
        config.listen = listen;
    }
    config.insecure_listen |= insecure_listen;
    match file {
        Some(file) => config.validate_in(file)?,
        None => config.validate()?,
    }
    Ok(config)
}

/// What a person can do now, as it can be typed.
fn greet(node: &Node, config: &Config) {
    if config.auth.is_configured() {
        output::line("ready; try, where `tidings init` wrote operator.key:");
        output::line("  export TIDINGS_KEY=$(cat operator.key)");
    } else {
        output::line("ready; try:");
    }
    let reach = reach(node, config);
    output::line(format_args!("  tidings status{reach}"));
    output::line(format_args!("  tidings cell put /greeting 'good news'{reach}"));
    output::line(format_args!("  tidings cell cat /greeting{reach}"));
    output::line(format_args!("  tidings place namespaces{reach}"));
    output::line(format_args!("  tidings store put greetings hello text 'good news'{reach}"));
    output::line(format_args!("  tidings store get greetings hello{reach}"));
}

/// The flags by which client commands reach the node.
fn reach(node: &Node, config: &Config) -> String {
    let Some(tls) = &config.tls else {
        // The default address they find by themselves.
        let url = node.url();
        return if url == DEFAULT_URL { String::new() } else { format!(" --server {url}") };
    };
    // Certificates are for the address that is advertised, which may be another than a wildcard to listen on.
    let address = config.advertised(node.address());
    let ca = tls.client_ca.as_deref().unwrap_or(Path::new("ca.pem"));
    format!(" --server https://{} --ca {}", quoted(&address), quoted(&ca.to_string_lossy()))
}

/// SIGINT and SIGTERM, heard from before the node starts.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> Result<Stop, Error> {
        let hear = |kind| signal(kind).map_err(|error| broken("cannot listen for signals", error));
        Ok(Stop { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Stops a node that serves nobody any more, and says why: whoever started it starts it again.
    async fn failed(self, node: Node, error: Error) -> Result<(), Error> {
        self.node(node).await.and(Err(error))
    }

    /// Stops the node; a second signal stops waiting for that.
    async fn node(mut self, node: Node) -> Result<(), Error> {
        eprintln!("stopping: finishing what is under way (a second signal stops at once)");
        tokio::select! {
            stopped = node.shutdown() => stopped,
            () = self.told() => Ok(()),
        }
    }
}
