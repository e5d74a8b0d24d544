//! `bench notify`: one node as a process of its own; listeners over WebSockets and publishers in this one.
//!
//! ```text
//!   load.rs, book.rs, fan_out.rs, memory.rs ── peer.rs ──▶ tidings.rs    the load that any such service can be put under
//!   users.rs, buffering.rs                                              experiments of the paper
//!   model.rs, large.rs                                                 a registrar alone
//!   node.rs                                                             a node with a slow disk, or rows that fail
//!   crowd.rs                                                            many clients for tests that kill nodes
//! ```
//! A latency is from the call of `publish` to the callback of the one who listens. Publications come at a fixed rate,
//! whatever the answers, each in a request of its own and durable before its answer.

mod book;
mod buffering;
pub mod crowd;
mod fan_out;
mod large;
pub mod load;
mod memory;
mod model;
pub mod node;
mod peer;
mod tidings;
mod users;

pub use book::quantile;

use super::Effort;
use super::report::{Figures, Goal};
use super::server::Server;
use crate::commands::runtime;
use load::{Audience, Load, Run};
use std::path::Path;
use std::time::Duration;
use tidings::Tidings;
use tidings_base::Error;

/// What the disk is made to take for a sync.
const SYNCS: [Duration; 3] = [Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(5)];
/// The rate that goals are set for.
const GOAL: u64 = 10_000;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Publications a second.
    pub rates: &'static [u64],
    /// The rate while rows fail.
    pub failing: u64,
    /// Listeners of one object.
    pub fan_outs: &'static [usize],
    /// Connections whose memory is measured, as far as the system lets a process open files.
    pub connections: usize,
    /// How long memory may settle before it is looked at.
    pub settling: Duration,
    /// Clients of the registrar that is modelled.
    pub modelled: usize,
    /// Registrations of a client that has many.
    pub large: usize,
    /// Users of the first crowd of ever more.
    pub users: usize,
}

impl Sizes {
    pub const FULL: Sizes = Sizes {
        rates: &[1_000, 2_000, 5_000, 10_000, 13_000],
        failing: 2_000,
        fan_outs: &[1, 10, 100, 1_000, 10_000],
        connections: 20_000,
        settling: Duration::from_secs(8),
        modelled: 200_000,
        large: 50_000,
        users: 500,
    };
    pub const QUICK: Sizes = Sizes {
        rates: &[200],
        failing: 200,
        fan_outs: &[1, 50],
        connections: 100,
        settling: Duration::from_secs(1),
        modelled: 2_000,
        large: 3_000,
        users: 10,
    };
}

/// Measures everything; `fsync` is what a sync of the disk takes as it is.
pub fn run(place: &Path, effort: Effort, fsync: Duration, figures: &mut Figures) -> Result<(), Error> {
    // First, while this process has nothing else in its memory.
    memory::modelled(effort, figures)?;
    large::costs(effort, figures)?;
    let runtime = runtime()?;
    for sync in SYNCS {
        let label = format!("fsync {} ms", sync.as_secs_f64() * 1e3);
        let server =
            node::start(&place.join(format!("notify-{}", sync.as_micros())), sync.saturating_sub(fsync), None)?;
        runtime.block_on(rates(&server, &label, effort, figures))?;
    }
    runtime.block_on(failing(&place.join("notify-failing"), effort, figures))?;
    runtime.block_on(buffering::measure(&place.join("notify-buffering"), effort, figures))?;
    users::measure(place, &runtime, effort, figures)?;
    let server = node::start(&place.join("notify-fan-out"), Duration::ZERO, None)?;
    runtime.block_on(fan_out::measure(&Tidings::new(server.url()), effort, figures))?;
    drop(server);
    let server = node::start(&place.join("notify-memory"), Duration::ZERO, None)?;
    runtime.block_on(memory::connections(&server, &Tidings::new(server.url()), effort, figures))
}

async fn rates(server: &Server, label: &str, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let load = Load::begin(&Tidings::new(server.url()), Audience::USUAL, |_| false).await?;
    for rate in effort.notify.rates {
        let mut runs = Vec::new();
        for _ in 0..effort.repetitions {
            runs.push(load.at_rate(server.pid(), *rate, effort.seconds, |_| false).await?);
        }
        add(&format!("{rate}/s, {label}"), *rate == GOAL, &runs, figures);
    }
    let (mut callbacks, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..effort.repetitions {
        let (heard, run) = load.as_fast_as_possible(server.pid(), effort.seconds).await?;
        callbacks.push(heard);
        runs.push(run);
    }
    figures.add(&format!("notify: callbacks, as fast as possible, {label}"), "1/s", None, &callbacks);
    add(&format!("as fast as possible, {label}"), false, &runs, figures);
    Ok(())
}

/// The same while an eighth of the matchers' rows fail: of the others.
async fn failing(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let sign = buffering::Sign::in_directory(place)?;
    let server = node::start(place, Duration::ZERO, Some(sign.path()))?;
    let load = Load::begin(&Tidings::new(server.url()), Audience::USUAL, node::fails).await?;
    sign.show().await?;
    let mut runs = Vec::new();
    for _ in 0..effort.repetitions {
        runs.push(load.at_rate(server.pid(), effort.notify.failing, effort.seconds, node::fails).await?);
    }
    add(&format!("{}/s while an eighth of the rows fail, the others", effort.notify.failing), false, &runs, figures);
    Ok(())
}

fn add(what: &str, goal: bool, runs: &[Run], figures: &mut Figures) {
    let of = |figure: fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
    let most = |limit: f64| goal.then_some(Goal::AtMost(limit));
    figures.add(&format!("notify: {what}: published"), "1/s", None, &of(|run| run.rate));
    figures.add(&format!("notify: {what}: to the callback, p50"), "ms", most(1.0), &of(|run| run.p50));
    figures.add(&format!("notify: {what}: to the callback, p99"), "ms", most(10.0), &of(|run| run.p99));
    figures.add(&format!("notify: {what}: processor of the node"), "% of a core", None, &of(|run| run.server));
    figures.add(&format!("notify: {what}: processor of the load"), "% of a core", None, &of(|run| run.load));
}
