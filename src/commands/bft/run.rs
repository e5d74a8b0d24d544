//! `tidings bft run`: one replica, until it is told to stop.

use crate::cli::bft::Run;
use crate::commands::signals::Signals;
use crate::commands::{probe, runtime};
use crate::output::{self, broken};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_bft::engine::replica::{BEHIND, Options, Replica};
use tidings_bft::http::Origin;
use tidings_bft::kv::KeyValue;
use tidings_bft::membership::{Membership, ReplicaSecrets};
use tidings_bft::seat::Durable;
use tidings_bft::server::Server;
use tidings_bft::sin::Sin;
use tidings_node::config::Log;
use tidings_node::logs;
use tidings_sketch::ReplicaId;

/// Runs it.
pub fn run(args: Run) -> Result<(), Error> {
    logs::init(&Log { filter: args.log, ..Log::default() })?;
    probe::raise_open_files();
    let membership = Arc::new(super::group(&args.group)?);
    let secrets = ReplicaSecrets::parse(&super::text(&args.data.join("secret.toml"))?)?;
    let me = membership.replica(&secrets.secret.public());
    let me = me.ok_or_else(|| output::usage("the secret is of no replica of this group"))?;
    let member = &membership.replicas()[usize::from(me.0)];
    let address = member.clients;
    // The engine would find out too late, and say it badly.
    for listened in [member.peers, address] {
        TcpListener::bind(listened).map_err(|error| cannot_listen(listened, &error))?;
    }
    #[cfg(feature = "bft-sins")]
    let sin = args.sin;
    #[cfg(not(feature = "bft-sins"))]
    let sin = None;
    let (kept, closes) = (args.keep_batches, args.closing);
    let serving = Serving { membership, secrets, directory: args.data, kept, closes, sin, me, address };
    let Some(origin) = args.origin else { return runtime()?.block_on(serve(serving, KeyValue::default())) };
    if !origin.ip().is_loopback() {
        return Err(output::usage(format!("{origin} is not on this machine")).hint(
            "A replica vouches for what its own server says: run one beside each replica, on a loopback address.",
        ));
    }
    let origin = Origin::new(origin).map_err(|error| broken("cannot start a thread", error))?;
    runtime()?.block_on(serve(serving, origin))
}

#[derive(Clone)]
struct Serving {
    membership: Arc<Membership>,
    secrets: ReplicaSecrets,
    directory: PathBuf,
    kept: u64,
    closes: bool,
    sin: Option<Sin>,
    me: ReplicaId,
    address: SocketAddr,
}

/// Serves until it is told to stop. Who was away for too long begins again with the state of others.
async fn serve<S: Durable>(serving: Serving, empty: S) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let mut takes_over = false;
    loop {
        match once(serving.clone(), empty.clone(), takes_over, &mut signals).await {
            Err(error) if error.code == BEHIND => {
                output::line(format_args!("replica {}: {}; it takes a state over", serving.me.0, error.message));
                takes_over = true;
            }
            ended => return ended,
        }
    }
}

async fn once<S: Durable>(serving: Serving, empty: S, takes_over: bool, signals: &mut Signals) -> Result<(), Error> {
    let Serving { membership, secrets, directory, kept, closes, sin, me, address } = serving;
    let starting = Replica::start(Options { membership, secrets, directory, empty, kept, takes_over, closes, sin });
    let mut replica = tokio::select! {
        started = starting => started?,
        _ = signals.next() => return Ok(()),
    };
    let door = Server::start(address, replica.seat.clone()).await;
    let door = door.map_err(|error| cannot_listen(address, &error))?;
    output::line(format_args!("replica {} serves clients on {}", me.0, door.address()));
    tokio::select! {
        _ = signals.next() => {}
        failed = replica.ended() => return Err(failed),
    }
    drop(door);
    replica.stop().await;
    Ok(())
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "Does this replica run already? If another program listens there, give the replica another address in everybody's \
             group.toml: addresses may change while a group lives."
        }
        _ => "The replica's addresses in group.toml must be of this machine.",
    };
    Error::new("bft.cannot_listen", Class::Refused, format!("cannot listen on {address}: {error}")).hint(hint)
}
