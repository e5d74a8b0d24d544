//! `bench sketch`: the proxy as a process, its origins and clients in this one.
//!
//! ```text
//!   cost.rs         executions by read, against 1 + tN
//!   throughput.rs   N = 4 to 13 origins of 10 ms, against all executing, and against 2f + 1 executing
//!   null.rs         origins that take no time: sizes of pages, lengths of sessions
//!   latency.rs      beside the bare origin, a bare proxy (bare.rs) and, with --peer, HAProxy (haproxy.rs)
//!   memory.rs       the history table, by entry
//!   origins.rs line.rs   the servers and the connections
//! ```

mod bare;
mod cost;
mod haproxy;
mod latency;
pub mod line;
mod memory;
mod null;
mod origins;
mod throughput;

use super::Effort;
use super::report::Figures;
use super::server::Server;
use crate::cli::BenchPeer;
use crate::commands::{probe, runtime};
use origins::Origins;
use std::path::Path;
use std::time::Duration;
use tidings_base::{Class, Error};

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Groups that are measured: N of each.
    pub groups: &'static [usize],
    /// Requests in flight for each origin.
    pub in_flight: usize,
    /// How long an origin takes for a page.
    pub service: Duration,
    /// Lengths of pages that take origins no time.
    pub lengths: &'static [usize],
    /// Reads that executions are counted of.
    pub reads: u64,
    /// Entries of the history table.
    pub entries: u64,
}

impl Sizes {
    pub const FULL: Sizes = Sizes {
        groups: &[4, 7, 10, 13],
        in_flight: 64,
        service: Duration::from_millis(10),
        lengths: &[PAGE, 16 << 10, 128 << 10],
        reads: 4_000,
        entries: 22_000_000,
    };
    pub const QUICK: Sizes = Sizes {
        groups: &[4],
        in_flight: 4,
        service: Duration::from_millis(2),
        lengths: &[PAGE],
        reads: 200,
        entries: 200_000,
    };
}

/// The length of a page, where it is not what is measured.
const PAGE: usize = 1_024;
/// Files that are neither connections of clients nor of origins.
const OTHER_FILES: u64 = 300;

/// Measures everything.
pub fn run(place: &Path, effort: Effort, peers: &[BenchPeer], figures: &mut Figures) -> Result<(), Error> {
    memory::measure(effort, figures)?;
    let most = effort.sketch.groups.iter().max().copied().unwrap_or(0);
    let files = probe::raise_open_files();
    // All origins are asked for everything that is in flight, and both ends of clients are here.
    let needed = (effort.sketch.in_flight * most * (most + 2)) as u64 + OTHER_FILES;
    if files < needed {
        let message = format!("this process may open {files} files, too few for {needed} connections");
        return Err(Error::new("bench.few_files", Class::Refused, message).hint("Raise it with `ulimit -n`."));
    }
    let runtime = runtime()?;
    runtime.block_on(cost::measure(effort, figures))?;
    runtime.block_on(throughput::measure(effort, figures))?;
    runtime.block_on(null::measure(effort, figures))?;
    runtime.block_on(latency::measure(place, effort, peers, figures))
}

/// A proxy before these origins, as a process. Nothing but reads that are in doubt makes it ask a second time.
fn proxy(origins: &Origins, arguments: &[&str]) -> Result<Server, Error> {
    let mut all = origins.arguments();
    let patient = ["--patience", "300000", "--give-up", "300000", "--new-pages", "any"];
    all.extend(patient.iter().chain(arguments).map(|argument| (*argument).to_owned()));
    Server::sketch(&all)
}

/// Of N = 3f + 1 servers, those that must answer a read which is not ordered.
fn two_f_and_one(origins: usize) -> usize {
    2 * (origins.saturating_sub(1) / 3) + 1
}

/// A part of sorted times, in the unit that they are in.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}
