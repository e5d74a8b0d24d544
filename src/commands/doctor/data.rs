//! Can the data directory be used, and is every log and every state in it whole? It is only looked at: what cannot be
//! opened without writing to it is copied first, and the copy is removed again.

use super::{Check, LITTLE_SPACE};
use crate::commands::probe;
use crate::output::broken;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidings_base::{Error, LogIndex};
use tidings_log::{RealDisk, verify};
use tidings_node::Config;
use tidings_node::data_dir::{DataDir, Entered, LOST_HINT, lost_logs};

const NAME: &str = "data directory";

/// What the directories of copies begin with.
const SCRATCH: &str = ".doctor-";

/// One check of the directory, one for the log of each group in it with its snapshots, one for each state on disk.
pub fn check(config: &Config) -> Vec<Check> {
    let data = &config.data;
    if is_empty(data) {
        return vec![Check::ok(NAME, format!("{} is not there yet; `tidings serve` makes it", data.display()))];
    }
    // Held until all is looked at: a server that starts meanwhile would change what is read.
    let _held = match DataDir::look(data) {
        Ok(held) => held,
        Err(error) if error.code == "node.data_dir_locked" => {
            return vec![Check::ok(NAME, format!("{}, so its logs were not looked at", error.message))];
        }
        Err(error) => return vec![Check::from_error(NAME, error)],
    };
    remove_leftovers(data);
    let cluster = match Entered::read(data) {
        Ok(Entered { cluster: Some(cluster), .. }) => format!(", of cluster {cluster}"),
        Ok(_) => ", of no cluster yet".to_owned(),
        Err(error) => return vec![Check::from_error(NAME, error)],
    };
    let mut checks = vec![Check::ok(NAME, format!("{} is ours{cluster}, and not in use", data.display()))];
    match lost_logs(data).and_then(|lost| Ok((lost, groups(data)?))) {
        Ok((lost, groups)) => {
            checks.extend(lost.iter().map(|log| {
                let message = format!("{}: its files are gone, although the node has begun it", log.display());
                Check::failed("log", message, LOST_HINT)
            }));
            checks.extend(groups.iter().flat_map(|group| check_group(data, group, &lost)));
        }
        Err(error) => checks.push(Check::from_error(NAME, error)),
    }
    checks
}

fn is_empty(data: &Path) -> bool {
    !data.exists() || std::fs::read_dir(data).is_ok_and(|mut entries| entries.next().is_none())
}

/// Removes the copies of an earlier check that was killed.
fn remove_leftovers(data: &Path) {
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            // One that stays takes some space and disturbs nobody.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The directories of all groups: `group-N`.
fn groups(data: &Path) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |error| broken(format_args!("cannot read {}", data.display()), error);
    let mut groups = Vec::new();
    for entry in std::fs::read_dir(data).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("group-")) {
            groups.push(path);
        }
    }
    groups.sort();
    Ok(groups)
}

/// The log of a group, unless it was told of as lost, and its state.
fn check_group(data: &Path, group: &Path, lost: &[PathBuf]) -> Vec<Check> {
    let log = group.join("log");
    // The cell's state is in memory, with snapshot files beside its log.
    let (state, pairs, durable) = match group.ends_with("group-0") {
        true => (None, 0, Some(LogIndex(0))),
        false => {
            let (check, pairs, durable) = check_state(data, &group.join("state"));
            (Some(check), pairs, durable)
        }
    };
    let log = match pairs {
        _ if lost.contains(&log) => None,
        _ if !is_empty(&log) => Some(check_log(&log, durable)),
        0 => Some(Check::ok("log", format!("{} is not there; a start makes it", log.display()))),
        _ => Some(Check::failed(
            "log",
            format!("{}: its files are gone, although a state was made from them", log.display()),
            LOST_HINT,
        )),
    };
    log.into_iter().chain(state).collect()
}

/// How a state fares, how many pairs were seen in it, and up to which entry of the log it is durable, if that is known.
fn check_state(data: &Path, path: &Path) -> (Check, u64, Option<LogIndex>) {
    if is_empty(path) {
        let message = format!("{} is not there; a start makes it if the log has all of it", path.display());
        return (Check::ok("state", message), 0, Some(LogIndex(0)));
    }
    let read = || -> Result<(Check, u64, Option<LogIndex>), Error> {
        let (needed, free) = (tidings_store_local::copied_bytes(path)?, probe::free_bytes(data)?);
        if free < needed + LITTLE_SPACE {
            let message = format!("{} was not looked at: it is read in a copy of {} MiB", path.display(), needed >> 20);
            let hint = format!("{} MiB are free; free some space and run it again.", free >> 20);
            return Ok((Check::warning("state", message, hint), 0, None));
        }
        let scratch = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(data);
        let scratch = scratch.map_err(|e| broken(format_args!("cannot make a copy in {}", data.display()), e))?;
        let report = tidings_store_local::check(path, scratch.path())?;
        let message = format!("{}: {} pairs, {} bytes, all readable", path.display(), report.pairs, report.bytes);
        Ok((Check::ok("state", message), report.pairs, Some(LogIndex(report.flushed))))
    };
    read().unwrap_or_else(|error| (Check::from_error("state", error), 0, None))
}

fn check_log(path: &Path, durable: Option<LogIndex>) -> Check {
    let shown = path.display();
    let report = match RealDisk::open(path).and_then(|disk| verify(&disk, None)) {
        Ok(report) => report,
        Err(error) => {
            return Check::failed(
                "log",
                format!("cannot read {shown}: {error}"),
                "Check the disk and its permissions.",
            );
        }
    };
    if let Some(worst) = report.damage.first() {
        let message = format!(
            "{shown}: {} at byte {}: {} ({} damaged places)",
            worst.file,
            worst.offset,
            worst.what,
            report.damage.len()
        );
        return Check::failed("log", message, worst.hint);
    }
    let records: u64 = report.segments.iter().map(|segment| segment.records).sum();
    let disk = RealDisk::open(path).map_err(|e| broken(format_args!("cannot read {shown}"), e));
    let beside = disk.and_then(|disk| Ok(tidings_consensus::check(Arc::new(disk), &report, durable)?));
    let snapshots = match beside {
        Ok(0) => String::new(),
        Ok(snapshots) => format!(", {snapshots} whole snapshots"),
        Err(error) => return Check::from_error("log", error),
    };
    let torn =
        if report.torn.is_some() { "; its torn last write will be cut, nothing acknowledged is in it" } else { "" };
    Check::ok(
        "log",
        format!(
            "{shown}: {records} records in {} segments{snapshots}, all checksums right{torn}",
            report.segments.len()
        ),
    )
}
