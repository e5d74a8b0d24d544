//! What a session costs its master: memory, and processor time while nothing happens.

use super::CONNECTIONS;
use super::tidings::sessions;
use crate::commands::bench::Effort;
use crate::commands::bench::cluster::Cluster;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::probe;
use crate::stopwatch::Stopwatch;
use futures::{StreamExt, TryStreamExt};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::cell::{Cell, Watch};

/// Entries that each session caches.
const CACHED: usize = 8;
/// Files there are to cache: sessions share them, as they would share configuration.
const FILES: usize = 64;
/// Sessions that the master is warmed with, so that what it allocates once is not counted.
const WARMING: usize = 64;
/// How long memory may settle before it is looked at.
const SETTLING: Duration = Duration::from_secs(3);
/// Sessions that are being furnished at once.
const AT_ONCE: usize = 128;

/// Creates the sessions of the effort, each with a handle, a watch and cached entries; what the master grows by.
pub async fn measure(cluster: &Cluster, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let count = effort.cell.sessions;
    let writer = Cell::connect(tidings_client::ClientConfig::new(cluster.urls())).await?;
    for file in 0..FILES {
        writer.write(&path(file), "contents of a small file that is read by many").await?;
    }
    let warm = furnished(cluster.urls(), WARMING).await?;
    drop(warm);
    tokio::time::sleep(SETTLING).await;
    let pid = cluster.pid(cluster.master().await?)?;
    let before = resident(pid)?;
    let held = furnished(cluster.urls(), count).await?;
    tokio::time::sleep(SETTLING).await;
    let each = resident(pid)?.saturating_sub(before) as f64 / count as f64;
    let name = format!("cell: resident memory per session at the master, of {count}");
    figures.add(&name, "B", Some(Goal::AtMost(4_096.0)), &[each]);

    let (watch, used) = (Stopwatch::start(), processor_time(pid)?);
    tokio::time::sleep(Duration::from_secs_f64(effort.seconds.max(1.0) * 2.0)).await;
    let used = processor_time(pid)?.saturating_sub(used);
    let percent = used.as_secs_f64() / watch.elapsed().as_secs_f64() * 100.0;
    figures.add(&format!("cell: processor of the master at rest, {count} sessions"), "% of a core", None, &[percent]);
    if let Some((lost, _)) = held.iter().find(|(cell, _)| cell.state().is_over()) {
        let message = format!("session {} was lost while it was measured", lost.session());
        return Err(Error::new("bench.failed", Class::Failed, message));
    }
    Ok(())
}

async fn furnished(urls: &[String], count: usize) -> Result<Vec<(Cell, Watch)>, Error> {
    let cells = sessions(urls, count, CONNECTIONS.min(count)).await?;
    let furnishing = futures::stream::iter(cells.into_iter().enumerate()).map(|(at, cell)| async move {
        let watch = cell.watch(&path(at)).await?;
        for more in 0..CACHED {
            cell.read(&path(at + more)).await?;
        }
        Ok::<_, Error>((cell, watch))
    });
    furnishing.buffer_unordered(AT_ONCE).try_collect().await
}

fn path(file: usize) -> String {
    format!("/file-{}", file % FILES)
}

fn resident(pid: u32) -> Result<u64, Error> {
    probe::resident(pid).ok_or_else(gone)
}

fn processor_time(pid: u32) -> Result<Duration, Error> {
    probe::processor_time(pid).ok_or_else(gone)
}

fn gone() -> Error {
    Error::new("bench.no_server", Class::Failed, "the server under test is gone")
}
