//! `tidings bft rekey`: the next life of a group, in which a replica that lost its journal of votes has another key (rule G).
//!
//! The last life has come to rest (`bft run --closing`): 2f + 1 replicas say that they have no part in commands any more, and
//! hold the same last state. The next one begins with that. Up to f of them may be left out: one that lies would otherwise keep
//! the others from it for ever.

use super::keygen::{file, folder};
use super::status;
use crate::cli::bft::Rekey;
use crate::commands::runtime;
use crate::output::{self, broken};
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::frame::Status;
use tidings_bft::keys::{Secret, random};
use tidings_bft::mark;
use tidings_bft::membership::{Membership, ReplicaSecrets};
use tidings_bft::snapshot::{Shelf, Snapshot};
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
    runtime()?.block_on(at_rest(args, &group, &state))?;

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
fn state(args: &Rekey) -> Result<Snapshot, Error> {
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

/// What all replicas of a group said of themselves, by number; `None` where one said nothing.
type Look = [Option<Status>];

/// Refuses unless the group rests with this state, now and a while later.
async fn at_rest(args: &Rekey, group: &Membership, state: &Snapshot) -> Result<(), Error> {
    let secrets = super::client(&args.asks.client, group)?;
    let (membership, without) = (Arc::new(group.clone()), without(args, group)?);
    let first = status::ask(membership.clone(), secrets.clone()).await?;
    tokio::time::sleep(STILL).await;
    let second = status::ask(membership, secrets).await?;
    rests([&first, &second], state, group.faults(), &without).map_err(|stir| {
        Error::new("bft.not_at_rest", Class::Refused, format!("the group does not rest with this state: {stir}"))
            .hint(stir.hint(group.faults()))
    })
}

/// The replicas that the operator leaves out: at most f, or too few are left who are known to be honest.
fn without(args: &Rekey, group: &Membership) -> Result<BTreeSet<u16>, Error> {
    let without: BTreeSet<u16> = args.without.iter().copied().collect();
    if let Some(stranger) = without.iter().find(|number| **number >= group.size()) {
        let hint = format!("Replicas have the numbers 0 to {}.", group.size() - 1);
        return Err(output::usage(format!("there is no replica {stranger}")).hint(hint));
    }
    let (out, faults) = (without.len(), group.faults());
    if out > usize::from(faults) {
        let sentence = format!("{out} replicas cannot be left out: {faults} of this group may lie");
        return Err(output::usage(sentence).hint("Leave out whoever `bft status` shows alone with what it says."));
    }
    Ok(without)
}

/// Why a group does not rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stir {
    /// A replica says that it has executed more.
    Ahead(u16),
    /// A replica has a part in commands.
    Open(u16),
    /// Not enough are there, and hold the state.
    TooFew { there: usize, enough: usize },
}

impl fmt::Display for Stir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stir::Ahead(number) => write!(f, "replica {number} says that it is further ahead"),
            Stir::Open(number) => write!(f, "replica {number} runs without --closing"),
            Stir::TooFew { there, enough } => {
                write!(f, "{there} replicas say that they rest there with this state, of {enough}")
            }
        }
    }
}

impl Stir {
    fn hint(self, faults: u16) -> String {
        let wait = "Run every replica that there is with --closing, and wait until `bft status` shows one height for all of them";
        match self {
            Stir::Ahead(number) | Stir::Open(number) => {
                format!("{wait}; if replica {number} lies, leave it out: `--without {number}`, for {faults} at most.")
            }
            Stir::TooFew { .. } => format!("{wait}."),
        }
    }
}

/// Whether a group rests with a state, by what its replicas said in two looks some time apart. Whatever was acknowledged is known
/// to f + 1 honest ones, and so to one of 2f + 1 that rest, whoever is left out.
fn rests(looks: [&Look; 2], state: &Snapshot, faults: u16, without: &BTreeSet<u16>) -> Result<(), Stir> {
    for look in looks {
        let said = (0..).zip(look).filter(|(number, _)| !without.contains(number));
        let said: Vec<(u16, &Status)> = said.filter_map(|(number, status)| Some((number, status.as_ref()?))).collect();
        for (number, status) in &said {
            match status {
                Status { closed: false, .. } => return Err(Stir::Open(*number)),
                Status { height, .. } if *height > state.height => return Err(Stir::Ahead(*number)),
                _ => {}
            }
        }
        let rests = |of: &Status| of.height == state.height && of.snapshot == state.height && of.hash == state.hash;
        let (there, enough) = (said.iter().filter(|(_, of)| rests(of)).count(), 2 * usize::from(faults) + 1);
        if there < enough {
            return Err(Stir::TooFew { there, enough });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_rests_if_enough_say_so_twice_and_nobody_says_otherwise() {
        let state = Snapshot { height: 256, hash: [7; 32], bytes: bytes::Bytes::new() };
        let rests_at = |height| {
            let (group, nonce, hash) = (1, 2, [7; 32]);
            Some(Status { group, nonce, height, snapshot: 256, hash, closed: true, votes: true, waiting: 0 })
        };
        let there = || rests_at(256);
        let but = |change: fn(&mut Status)| {
            let mut status = there();
            status.iter_mut().for_each(change);
            status
        };
        let open = but(|status| status.closed = false);
        let other = but(|status| status.hash = [8; 32]);
        let older = but(|status| status.snapshot = 0);
        let still = vec![there(), there(), there(), there()];
        let three = |last| vec![there(), there(), there(), last];
        let two = |last: Option<Status>| vec![there(), there(), last.clone(), last];
        let too_few = |there| Err(Stir::TooFew { there, enough: 3 });
        for (look, without, expected) in [
            (still.clone(), None, Ok(())),
            (three(None), None, Ok(())),
            (three(rests_at(200)), None, Ok(())),
            (three(other.clone()), None, Ok(())),
            (two(None), None, too_few(2)),
            (two(rests_at(255)), None, too_few(2)),
            (two(other), None, too_few(2)),
            (two(older), None, too_few(2)),
            (vec![None; 4], None, too_few(0)),
            (three(rests_at(257)), None, Err(Stir::Ahead(3))),
            (three(open.clone()), None, Err(Stir::Open(3))),
            // Whoever is left out says nothing, for or against.
            (three(rests_at(512)), Some(3), Ok(())),
            (three(open.clone()), Some(3), Ok(())),
            (still.clone(), Some(0), Ok(())),
            (two(rests_at(512)), Some(3), Err(Stir::Ahead(2))),
            (three(None), Some(0), too_few(2)),
        ] {
            let without = without.into_iter().collect();
            assert_eq!(rests([&look, &look], &state, 1, &without), expected, "{look:?} without {without:?}");
            // Both looks count.
            assert_eq!(rests([&still, &look], &state, 1, &without), expected, "{look:?} without {without:?}, later");
            assert_eq!(rests([&look, &still], &state, 1, &without), expected, "{look:?} without {without:?}, before");
        }
    }
}
