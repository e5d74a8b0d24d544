//! `tidings bft run`: one replica, until it is told to stop.

use crate::cli::bft::Run;
use crate::commands::runtime;
use crate::commands::signals::Signals;
use crate::output::{self, broken};
use std::sync::Arc;
use tidings_base::Error;
use tidings_bft::engine::replica::{Options, Replica};
use tidings_bft::kv::KeyValue;
use tidings_bft::membership::ReplicaSecrets;
use tidings_bft::server::Server;
use tidings_node::config::Log;
use tidings_node::logs;

/// Runs it.
pub fn run(args: Run) -> Result<(), Error> {
    logs::init(&Log { filter: args.log, ..Log::default() })?;
    let membership = Arc::new(super::group(&args.group)?);
    let secrets = ReplicaSecrets::parse(&super::text(&args.data.join("secret.toml"))?)?;
    let me = membership.replica(&secrets.secret.public());
    let me = me.ok_or_else(|| output::usage("the secret is of no replica of this group"))?;
    let address = membership.replicas()[usize::from(me.0)].clients;
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let options = Options { membership, secrets, directory: args.data, empty: KeyValue::default(), sin: None };
        let starting = Replica::start(options);
        let mut replica = tokio::select! {
            started = starting => started?,
            _ = signals.next() => return Ok(()),
        };
        let door = Server::start(address, replica.seat.clone()).await;
        let door = door.map_err(|error| broken(format_args!("cannot listen on {address}"), error))?;
        output::line(format_args!("replica {} serves clients on {}", me.0, door.address()));
        tokio::select! {
            _ = signals.next() => {}
            failed = replica.ended() => return Err(failed),
        }
        drop(door);
        replica.stop().await;
        Ok(())
    })
}
