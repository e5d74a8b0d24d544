//! `tidings bft rekey`: the next life of a group, in which a replica that lost its journal of votes has another key (rule G).
//!
//! The last life has come to rest (`bft run --closing`): 2f + 1 replicas say that they have no part in commands any more, and
//! hold the same last state. The next one begins with that.

use super::keygen::{file, folder};
use super::status;
use crate::cli::bft::Rekey;
use crate::commands::runtime;
use crate::output::{self, broken};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::frame::Status;
use tidings_bft::keys::{Secret, random};
use tidings_bft::mark;
use tidings_bft::membership::{ClientSecrets, Membership, ReplicaSecrets};
use tidings_bft::snapshot::Shelf;
use tidings_sketch::ReplicaId;

/// Between two looks at replicas that seem to be at rest: longer than a view that still comes to something.
const STILL: Duration = Duration::from_secs(5);

/// Makes the files of the next life, and says what to do with them.
pub fn run(args: &Rekey) -> Result<(), Error> {
    let group = super::group(&args.asks.group)?;
    let replica = ReplicaId(args.replica);
    let old = ReplicaSecrets::parse(&super::text(&args.secret)?)?;
    if group.replica(&old.secret.public()) != Some(replica) {
        return Err(output::usage(format!("{} is not the secret of replica {}", args.secret.display(), replica.0)));
    }
    let state = state(args)?;
    runtime()?.block_on(at_rest(args, &group, state.height, &state.hash))?;

    let secrets = ReplicaSecrets { secret: Secret::of(random()?)?, macs: old.macs };
    let next = group.rekeyed(replica, secrets.secret.public(), state.hash)?;
    folder(&args.dir)?;
    file(&args.dir.join("group.toml"), &next.to_text()?, 0o644)?;
    let at = args.dir.join(format!("replica-{}", replica.0));
    folder(&at)?;
    file(&at.join("secret.toml"), &secrets.to_text()?, 0o600)?;
    let kept = Shelf::open(&at).and_then(|shelf| shelf.keep(&state));
    kept.and_then(|()| mark::found(&at, &next)).map_err(|error| broken("cannot fill the replica's folder", error))?;
    let (dir, life) = (args.dir.display(), next.life().0);
    if args.asks.json {
        output::json(&json!({ "dir": args.dir, "life": life, "replica": replica.0, "height": state.height }));
        return Ok(());
    }
    output::line(format_args!(
        "made life {life} of the group in {dir}, which begins where it rests now, at {}",
        state.height
    ));
    output::line(
        "stop all replicas; give everybody the new group.toml, and clients, too; then start them, this one as",
    );
    output::line(format_args!("  tidings bft run --group {dir}/group.toml --data {dir}/replica-{}", replica.0));
    Ok(())
}

/// The state that a replica of this machine rests with.
fn state(args: &Rekey) -> Result<tidings_bft::snapshot::Snapshot, Error> {
    let from = args.from.display();
    let none = || {
        Error::new("bft.no_state", Class::NotFound, format!("{from} holds no snapshot"))
            .hint("Name the folder of a replica that runs with --closing.")
    };
    if !args.from.is_dir() {
        return Err(none());
    }
    let latest = Shelf::open(&args.from).and_then(|shelf| shelf.latest());
    latest.map_err(|error| broken(format_args!("cannot read the snapshot of {from}"), error))?.ok_or_else(none)
}

/// Refuses unless the group rests with this state, now and a while later.
async fn at_rest(args: &Rekey, group: &Membership, height: u64, hash: &[u8; 32]) -> Result<(), Error> {
    let secrets = ClientSecrets::parse(&super::text(&args.asks.client)?)?;
    let membership = Arc::new(group.clone());
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(STILL).await;
        }
        let said = status::ask(membership.clone(), secrets.clone()).await?;
        if let Some(moves) = said.iter().flatten().find(|status| status.height > height || !status.closed) {
            let why = if moves.closed { "one is further ahead" } else { "one runs without --closing" };
            return Err(moving(why));
        }
        let rests = |status: &&Status| status.height == height && status.snapshot == height && status.hash == *hash;
        let (there, enough) = (said.iter().flatten().filter(rests).count(), 2 * usize::from(group.faults()) + 1);
        if there < enough {
            return Err(moving(&format!("{there} replicas say that they rest there with this state, of {enough}")));
        }
    }
    Ok(())
}

fn moving(why: &str) -> Error {
    Error::new("bft.not_at_rest", Class::Refused, format!("the group does not rest with this state: {why}")).hint(
        "Run every replica that there is with --closing, and wait until `bft status` shows one height for all of them.",
    )
}
