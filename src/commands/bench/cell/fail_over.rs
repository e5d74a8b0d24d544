//! From SIGKILL of the master until a write is acknowledged again, with many sessions that cache something.

use super::CONNECTIONS;
use super::tidings::sessions;
use crate::commands::bench::Effort;
use crate::commands::bench::cluster::Cluster;
use crate::commands::bench::report::{Figures, Goal};
use crate::output::broken;
use crate::stopwatch::Stopwatch;
use futures::{StreamExt, TryStreamExt};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::ClientConfig;
use tidings_client::cell::{Cell, State};

/// The file that the writer writes; each session caches one of its own.
const WRITTEN: &str = "/written";
/// How long sessions may take to be well again after a fail-over.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(20);
/// Reads under way at once while everybody fills its cache again.
const AT_ONCE: usize = 64;

/// Kills the master as often as the effort says, with everybody alive and with one session dead.
pub async fn measure(cluster: &mut Cluster, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let writer = Cell::connect(ClientConfig::new(cluster.urls())).await?;
    writer.write(WRITTEN, "0").await?;
    let cells = sessions(cluster.urls(), effort.cell.caching, CONNECTIONS.min(effort.cell.caching)).await?;
    for (with, dead, goal_p50, goal_p99) in
        [("", false, Some(3.0), None), (", one of them dead", true, None, Some(5.0))]
    {
        let mut took = Vec::new();
        for _ in 0..effort.cell.kills {
            took.push(once(cluster, &writer, &cells, dead).await?);
        }
        let of = effort.cell.caching;
        let name = |what: &str| {
            format!("cell: writes resume after SIGKILL of the master, {of} caching sessions{with}, {what}")
        };
        took.sort_by(f64::total_cmp);
        figures.add(&name("p50"), "s", goal_p50.map(Goal::AtMost), &took);
        // Of so few, the largest is the honest 99th percentile.
        figures.add(&name("p99"), "s", goal_p99.map(Goal::AtMost), &took[took.len() - 1..]);
    }
    Ok(())
}

async fn once(cluster: &mut Cluster, writer: &Cell, cells: &[Cell], dead: bool) -> Result<f64, Error> {
    fill(cells).await?;
    let dying = if dead { Some(Dying::begin(cluster.urls()).await?) } else { None };
    let master = cluster.master().await?;
    if let Some(dying) = dying {
        dying.die();
    }
    let watch = Stopwatch::start();
    cluster.kill(master);
    writer.write(WRITTEN, "again").await?;
    let took = watch.elapsed().as_secs_f64();
    cluster.restart(master)?;
    well(cells).await?;
    Ok(took)
}

/// Every session reads a file, and has it cached then.
async fn fill(cells: &[Cell]) -> Result<(), Error> {
    let reading = futures::stream::iter(cells.iter().enumerate());
    let reading = reading.map(|(at, cell)| async move {
        let path = format!("/cached-{}", at % CONNECTIONS);
        if cell.read(&path).await?.is_none() {
            cell.write(&path, "cached").await?;
            cell.read(&path).await?;
        }
        Ok::<_, Error>(())
    });
    reading.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
}

/// Waits until every session is active; none may be lost by a fail-over.
async fn well(cells: &[Cell]) -> Result<(), Error> {
    let all = async {
        loop {
            if let Some(lost) = cells.iter().find(|cell| cell.state().is_over()) {
                return Err(failed(format!("session {} did not survive a fail-over", lost.session())));
            }
            if cells.iter().all(|cell| cell.state() == State::Active) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.map_err(|_| failed("sessions stay in jeopardy".to_owned()))?
}

/// A session that stops without a word: its tasks live in a runtime of their own.
struct Dying {
    runtime: tokio::runtime::Runtime,
    cell: Cell,
}

impl Dying {
    async fn begin(urls: &[String]) -> Result<Dying, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| broken("cannot start a runtime", error))?;
        let config = ClientConfig::new(urls);
        let begun = runtime.spawn(async move {
            let cell = Cell::connect(config).await?;
            cell.read(WRITTEN).await?;
            Ok::<_, Error>(cell)
        });
        let cell = begun.await.map_err(|error| failed(error.to_string()))??;
        Ok(Dying { runtime, cell })
    }

    fn die(self) {
        self.runtime.shutdown_background();
        // Without its tasks it cannot even say goodbye.
        drop(self.cell);
    }
}

fn failed(message: String) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}
