//! `bench cell`: the lock service as three real processes, its clients in this one.
//!
//! ```text
//!   load.rs ── peer.rs ──▶ tidings.rs         the load that any lock service can be put under
//!   sessions.rs  fail_over.rs                  what only this one promises: small sessions, short fail-overs
//! ```

mod fail_over;
pub mod load;
mod peer;
mod sessions;
mod tidings;

use super::Effort;
use super::cluster::Cluster;
use super::report::{Figures, Goal};
use crate::commands::runtime;
use std::path::Path;
use tidings::Tidings;
use tidings_base::Error;

/// Connections that many sessions share.
pub const CONNECTIONS: usize = 50;
/// The file that everybody watches.
const WATCHED: &str = "/watched";
/// Hand-overs of a lock for one median.
const HAND_OVERS: usize = 100;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sessions whose memory is measured.
    pub sessions: usize,
    /// Watchers of one file.
    pub watchers: usize,
    /// Kills of the master, with everybody alive and with one session dead.
    pub kills: usize,
    /// Sessions that cache something when the master is killed.
    pub caching: usize,
}

impl Sizes {
    pub const FULL: Sizes = Sizes { sessions: 20_000, watchers: 10_000, kills: 20, caching: 1_000 };
    pub const QUICK: Sizes = Sizes { sessions: 200, watchers: 200, kills: 1, caching: 50 };
}

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let runtime = runtime()?;
    let cluster = Cluster::start(&place.join("cell"))?;
    runtime.block_on(rates(&cluster, effort, figures))?;
    drop(cluster);
    let cluster = Cluster::start(&place.join("cell-sessions"))?;
    runtime.block_on(sessions::measure(&cluster, effort, figures))?;
    drop(cluster);
    let mut cluster = Cluster::start(&place.join("cell-fail-over"))?;
    runtime.block_on(fail_over::measure(&mut cluster, effort, figures))
}

/// What a service does in a second, and how soon its clients hear.
async fn rates(cluster: &Cluster, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    use peer::Peer;
    let peer = Tidings::new(cluster.urls());
    let clients = peer.clients(load::CLIENTS, load::CLIENT_CONNECTIONS).await?;
    let mut taken = Vec::new();
    for _ in 0..effort.repetitions {
        taken.push(load::writes(&clients, effort.seconds).await?);
    }
    figures.add("cell: durable 100-byte writes, 256 clients", "1/s", Some(Goal::AtLeast(30_000.0)), &taken);
    taken.clear();
    for _ in 0..effort.repetitions {
        taken.push(load::reads(&clients, effort.seconds).await?);
    }
    figures.add("cell: linearizable uncached reads, 256 clients", "1/s", None, &taken);
    taken.clear();
    for _ in 0..effort.repetitions {
        taken.push(load::hand_over(&clients, HAND_OVERS).await?);
    }
    figures.add("cell: lock hand-over, median", "µs", None, &taken);
    taken.clear();
    for _ in 0..effort.repetitions {
        taken.push(tidings::cached_read(cluster.urls()).await?);
    }
    figures.add("cell: cached read", "ns", Some(Goal::AtMost(200.0)), &taken);
    taken.clear();
    let writer = &clients[0];
    writer.write(WATCHED, bytes::Bytes::from_static(b"before")).await?;
    let mut watchers = load::Watchers::begin(&peer, WATCHED, effort.cell.watchers, CONNECTIONS).await?;
    for _ in 0..effort.repetitions {
        taken.push(watchers.told(writer, WATCHED).await?);
    }
    figures.add(&format!("cell: watch fan-out to {} watchers", effort.cell.watchers), "ms", None, &taken);
    Ok(())
}
