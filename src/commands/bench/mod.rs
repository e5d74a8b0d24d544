//! `tidings bench PART…`: measures and reports with the machine.
//!
//! A figure is the median of several repetitions, with their spread. What cannot be run is an error, never a gap in the
//! report. Benches of durable writes refuse file systems that live in memory and say how long the disk takes to sync.

#[cfg(feature = "bft")]
mod bft;
mod cell;
mod cluster;
mod members;
pub mod notify;
mod placement;
mod rate;
mod report;
mod server;
mod sketch;
mod socket;
mod store;
mod tables;
mod wire;

use super::probe;
use crate::cli::{Bench, BenchPart};
use crate::output::{self, broken};
use report::{Figures, Report};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidings_base::{Class, Error};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How often each figure is taken.
    pub repetitions: usize,
    /// How long each repetition of a rate lasts, in seconds.
    pub seconds: f64,
    /// Rows to reopen.
    pub rows: u64,
    /// Idle connections to hold.
    pub idle: usize,
    /// What the cell is measured with.
    pub cell: cell::Sizes,
    /// What placement is measured with.
    pub placement: placement::Sizes,
    /// What tables are measured with.
    pub tables: tables::Sizes,
    /// What Notify is measured with.
    pub notify: notify::Sizes,
    /// What Sketch is measured with.
    pub sketch: sketch::Sizes,
    /// What BFT groups are measured with.
    #[cfg(feature = "bft")]
    pub bft: bft::Sizes,
}

const FULL: Effort = Effort {
    repetitions: 3,
    seconds: 5.0,
    rows: 1_000_000,
    idle: 10_000,
    cell: cell::Sizes::FULL,
    placement: placement::Sizes::FULL,
    tables: tables::Sizes::FULL,
    notify: notify::Sizes::FULL,
    sketch: sketch::Sizes::FULL,
    #[cfg(feature = "bft")]
    bft: bft::Sizes::FULL,
};
const QUICK: Effort = Effort {
    repetitions: 2,
    seconds: 0.5,
    rows: 20_000,
    idle: 500,
    cell: cell::Sizes::QUICK,
    placement: placement::Sizes::QUICK,
    tables: tables::Sizes::QUICK,
    notify: notify::Sizes::QUICK,
    sketch: sketch::Sizes::QUICK,
    #[cfg(feature = "bft")]
    bft: bft::Sizes::QUICK,
};

/// Runs the named benches and prints one report.
pub fn run(args: Bench) -> Result<(), Error> {
    let mut effort = if args.quick { QUICK } else { FULL };
    effort.placement = effort.placement.with_pool(args.owners, args.lookups, args.over);
    let place = tempfile::Builder::new()
        .prefix("tidings-bench-")
        .tempdir_in(args.dir.clone().unwrap_or_else(default_dir))
        .map_err(|error| broken("cannot make a directory to measure in", error))?;
    let machine = probe::machine(place.path())?;
    let durable = |part: &BenchPart| {
        use BenchPart::{Bft, Cell, Notify, Placement, Store, Tables};
        matches!(part, Store | Cell | Placement | Tables | Notify | Bft)
    };
    if args.parts.iter().any(durable) {
        refuse_memory(place.path(), &machine.file_system)?;
    }
    if machine.build != "optimised" {
        eprintln!("warning: this binary is not optimised; use `cargo run --release -- bench …` for figures to keep");
    }
    eprintln!("fsync p50 of {} ({}): {} µs", place.path().display(), machine.file_system, machine.fsync_p50_us);

    let mut figures = Figures::default();
    let mut parts = args.parts.clone();
    parts.sort();
    parts.dedup();
    for part in &parts {
        eprintln!("bench {}", part.name());
        match part {
            BenchPart::Store => store::run(place.path(), effort, &mut figures)?,
            BenchPart::Wire => wire::run(place.path(), effort, &mut figures)?,
            BenchPart::Cell => cell::run(place.path(), effort, &mut figures)?,
            BenchPart::Placement => placement::run(place.path(), effort, &mut figures)?,
            BenchPart::Tables => tables::run(place.path(), effort, &mut figures)?,
            BenchPart::Notify => {
                let fsync = Duration::from_micros(machine.fsync_p50_us);
                notify::run(place.path(), effort, fsync, &mut figures)?;
            }
            BenchPart::Sketch => sketch::run(place.path(), effort, &args.peers, &mut figures)?,
            #[cfg(feature = "bft")]
            BenchPart::Bft => bft::run(place.path(), effort, &mut figures)?,
            #[cfg(not(feature = "bft"))]
            BenchPart::Bft => return Err(super::bft::no_engine()),
        }
    }
    let bench = parts.iter().map(|part| part.name()).collect::<Vec<_>>().join(" ");
    let report = Report {
        bench,
        machine,
        config: config(args.quick, effort),
        results: figures.results,
        peers: figures.peers,
        ratios: figures.ratios,
    };
    if let Some(path) = &args.out {
        save(path, &report)?;
    }
    if args.json {
        output::json(&report);
    } else {
        report::print(&report);
    }
    Ok(())
}

/// Where to measure unless told: beside whoever asks, which is where `serve` would put its data.
fn default_dir() -> PathBuf {
    PathBuf::from(".")
}

fn refuse_memory(dir: &Path, file_system: &str) -> Result<(), Error> {
    if !probe::forgets_at_power_loss(file_system) {
        return Ok(());
    }
    let message =
        format!("{} is on {file_system}, which forgets at power loss, so nothing there is durable", dir.display());
    Err(Error::new("bench.not_durable", Class::Refused, message).hint("Name a directory on a disk with --dir DIR."))
}

fn config(quick: bool, effort: Effort) -> Map<String, Value> {
    let mut config = Map::new();
    config.insert("quick".into(), quick.into());
    config.insert("repetitions".into(), effort.repetitions.into());
    config.insert("seconds".into(), effort.seconds.into());
    config.insert("rows".into(), effort.rows.into());
    config.insert("idle_connections".into(), effort.idle.into());
    config.insert("value_bytes".into(), store::VALUE_BYTES.into());
    config.insert("writers".into(), store::WRITERS.into());
    config.insert("in_flight".into(), wire::IN_FLIGHT.into());
    config.insert("cell_clients".into(), cell::load::CLIENTS.into());
    config.insert("cell_sessions".into(), effort.cell.sessions.into());
    config.insert("cell_connections".into(), cell::CONNECTIONS.into());
    config.insert("cell_watchers".into(), effort.cell.watchers.into());
    config.insert("cell_kills".into(), effort.cell.kills.into());
    config.insert("cell_caching_sessions".into(), effort.cell.caching.into());
    config.insert("placement_reads".into(), effort.placement.reads.into());
    config.insert("placement_keys".into(), effort.placement.keys.into());
    config.insert("placement_owners".into(), effort.placement.owners.into());
    config.insert("placement_lookups".into(), effort.placement.lookups.into());
    config.insert("placement_deaths".into(), effort.placement.deaths.into());
    config.insert("tables_records".into(), effort.tables.records.into());
    config.insert("tables_writers".into(), effort.tables.writers.into());
    config.insert("tables_messages".into(), effort.tables.messages.into());
    config.insert("sketch_groups".into(), effort.sketch.groups.to_vec().into());
    config.insert("sketch_in_flight_by_origin".into(), effort.sketch.in_flight.into());
    config.insert("sketch_service_ms".into(), (effort.sketch.service.as_millis() as u64).into());
    config.insert("sketch_reads".into(), effort.sketch.reads.into());
    config.insert("sketch_entries".into(), effort.sketch.entries.into());
    let notify::load::Audience { listeners, objects } = notify::load::Audience::USUAL;
    config.insert("notify_listeners".into(), listeners.into());
    config.insert("notify_objects".into(), (listeners * objects).into());
    config.insert("notify_users".into(), effort.notify.users.into());
    config.insert("notify_connections".into(), effort.notify.connections.into());
    config
}

fn save(path: &Path, report: &Report) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(report).map_err(|error| broken("cannot write the report", error))?;
    std::fs::write(path, text + "\n").map_err(|error| broken(format_args!("cannot write {}", path.display()), error))
}
