//! `tidings bft …`: a group of replicas of which some may lie.

mod ask;
mod keygen;
mod rekey;
#[cfg(feature = "bft")]
mod run;
mod status;

use crate::cli::bft::Bft;
use crate::output::broken;
use std::path::Path;
use tidings_base::Error;
use tidings_bft::membership::{ClientSecrets, Membership};

/// Runs what was typed.
pub fn run(command: Bft) -> Result<(), Error> {
    match command {
        Bft::Keygen(args) => keygen::run(&args),
        #[cfg(feature = "bft")]
        Bft::Run(args) => run::run(args),
        #[cfg(not(feature = "bft"))]
        Bft::Run(_) => Err(no_engine()),
        Bft::Rekey(args) => rekey::run(&args),
        Bft::Status(args) => status::run(&args.asks),
        Bft::Get(args) => ask::get(&args),
        Bft::Put(args) => ask::put(&args),
        Bft::Fetch(args) => ask::fetch(&args),
        Bft::Delete(args) => ask::delete(&args),
    }
}

/// What cannot be done without the engine.
#[cfg(not(feature = "bft"))]
pub(super) fn no_engine() -> Error {
    Error::new("bft.no_engine", tidings_base::Class::Invalid, "this build has no engine that orders")
        .hint("It was built with `--no-default-features`: build it without that.")
}

pub(super) fn text(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| broken(format_args!("cannot read {}", path.display()), error))
}

/// The secrets of one of the group's clients.
fn client(path: &Path, group: &Membership) -> Result<ClientSecrets, Error> {
    let secrets = ClientSecrets::parse(&text(path)?)?;
    group.check_client(&secrets)?;
    Ok(secrets)
}

pub(super) fn group(path: &Path) -> Result<Membership, Error> {
    Membership::parse(&text(path)?)
}
