//! `tidings bft keygen`: the keys of a new group.

use crate::cli::bft::Keygen;
use crate::output::{self, broken};
use serde_json::json;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use tidings_base::Error;
use tidings_bft::keys::random;
use tidings_bft::mark;
use tidings_bft::membership::found;

/// Makes everything, and says how to use it.
pub fn run(args: &Keygen) -> Result<(), Error> {
    let name = args.dir.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| output::usage("the folder's name is the group's: give it one"))?;
    let founded = found(name, &args.replicas, args.clients, random)?;
    folder(&args.dir)?;
    file(&args.dir.join("group.toml"), &founded.membership.to_text()?, 0o644)?;
    for (number, secrets) in founded.replicas.iter().enumerate() {
        let replica = args.dir.join(format!("replica-{number}"));
        folder(&replica)?;
        file(&replica.join("secret.toml"), &secrets.to_text()?, 0o600)?;
        mark::found(&replica, &founded.membership).map_err(|error| broken("cannot mark the folder", error))?;
    }
    for secrets in &founded.clients {
        file(&args.dir.join(format!("client-{}.toml", secrets.id)), &secrets.to_text()?, 0o600)?;
    }
    let (dir, size, faults) = (args.dir.display(), founded.membership.size(), founded.membership.faults());
    if args.json {
        output::json(&json!({ "dir": args.dir, "replicas": size, "faults": faults, "clients": args.clients }));
        return Ok(());
    }
    output::line(format_args!("made a group of {size} replicas in {dir}; {faults} of them may lie"));
    for number in 0..size {
        output::line(format_args!("  tidings bft run --group {dir}/group.toml --data {dir}/replica-{number}"));
    }
    Ok(())
}

pub(super) fn folder(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(|error| broken(format_args!("cannot make {}", path.display()), error))
}

pub(super) fn file(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    made.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|error| broken(format_args!("cannot write {}", path.display()), error))
}
