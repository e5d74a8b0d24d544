//! `tidings serve`: one node, or a member of a cluster, until it is told to stop.

use super::{probe, runtime};
use crate::cli::{LogFormat, Serve};
use crate::output::{self, broken};
use std::net::SocketAddr;
use std::path::Path;
use tidings_base::Error;
use tidings_node::{Config, Node, config, logs};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Runs until SIGINT or SIGTERM; a second one ends it at once.
pub fn run(args: Serve) -> Result<(), Error> {
    let mut config = configured(args.config.as_deref(), args.data.as_deref(), args.listen, args.insecure_listen)?;
    if let Some(format) = args.log_format {
        config.log.format = match format {
            LogFormat::Text => config::LogFormat::Text,
            LogFormat::Json => config::LogFormat::Json,
        };
    }
    if let Some(filter) = args.log {
        config.log.filter = filter;
    }
    logs::init(&config.log)?;
    probe::raise_open_files();
    runtime()?.block_on(serve(config))
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
    config.validate()?;
    Ok(config)
}

async fn serve(config: Config) -> Result<(), Error> {
    let mut interrupt = listen_for(SignalKind::interrupt())?;
    let mut terminate = listen_for(SignalKind::terminate())?;
    let node = Node::start(config).await?;
    greet(&node);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    output::line("stopping: finishing what is under way (once more to stop at once)");
    tokio::select! {
        stopped = node.shutdown() => stopped,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

fn listen_for(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| broken("cannot listen for signals", error))
}

fn greet(node: &Node) {
    let _ = node;
}
