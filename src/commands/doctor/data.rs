//! Can the data directory be used, and is every log in it whole? Nothing is changed by looking.

use super::Check;
use crate::output::broken;
use std::path::{Path, PathBuf};
use tidings_base::Error;
use tidings_log::{RealDisk, verify};
use tidings_node::Config;
use tidings_node::data_dir::DataDir;

const NAME: &str = "data directory";

/// One check of the directory and one for each log in it.
pub fn check(config: &Config) -> Vec<Check> {
    let data = &config.data;
    if !data.join("FORMAT").exists() && !data.is_file() {
        return vec![Check::ok(NAME, format!("{} is not there yet; `tidings serve` makes it", data.display()))];
    }
    // Held until all is looked at: a server that starts meanwhile would change what is read.
    let _held = match DataDir::open(data) {
        Ok(held) => held,
        Err(error) if error.code == "node.data_dir_locked" => {
            return vec![Check::ok(NAME, format!("{}, so its logs were not looked at", error.message))];
        }
        Err(error) => return vec![Check::from_error(NAME, error)],
    };
    let mut checks = vec![Check::ok(NAME, format!("{} is ours and not in use", data.display()))];
    match logs(data) {
        Ok(logs) => checks.extend(logs.iter().map(|log| check_log(log))),
        Err(error) => checks.push(Check::from_error(NAME, error)),
    }
    checks
}

/// The directories of all agreed logs: `group-N/log`.
fn logs(data: &Path) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |error| broken(format_args!("cannot read {}", data.display()), error);
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(data).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let log = entry.path().join("log");
        if entry.file_name().to_string_lossy().starts_with("group-") && log.is_dir() {
            logs.push(log);
        }
    }
    logs.sort();
    Ok(logs)
}

fn check_log(path: &Path) -> Check {
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
    let torn =
        if report.torn.is_some() { "; its torn last write will be cut, nothing acknowledged is in it" } else { "" };
    Check::ok(
        "log",
        format!("{shown}: {records} records in {} segments, all checksums right{torn}", report.segments.len()),
    )
}
