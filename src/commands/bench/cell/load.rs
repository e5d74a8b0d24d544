//! The load: the same for every peer.

use super::peer::{Peer, PeerClient, PeerWatch};
use crate::commands::bench::rate::{Counter, rate};
use crate::stopwatch::Stopwatch;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tokio::task::JoinSet;

/// Clients at once; each waits for its answer before it goes on.
pub const CLIENTS: usize = 256;
/// Connections that these share.
pub const CLIENT_CONNECTIONS: usize = 16;
/// The size of contents.
pub const CONTENT_BYTES: usize = 100;
/// How long an event may take to reach everybody: far above anything measured.
const PATIENCE: Duration = Duration::from_secs(120);
/// Watches that are being begun at once.
const BEGINNING: usize = 256;

fn contents() -> Bytes {
    Bytes::from(vec![b'v'; CONTENT_BYTES])
}

/// Durable writes a second, each client to a file of its own.
pub async fn writes(clients: &[Arc<dyn PeerClient>], seconds: f64) -> Result<f64, Error> {
    let counter = Arc::new(Counter::default());
    let writers = clients.iter().enumerate().map(|(at, client)| {
        let (client, counter) = (client.clone(), counter.clone());
        async move {
            let path = format!("/write-{at}");
            while counter.goes_on() {
                client.write(&path, contents()).await?;
                counter.add(1);
            }
            Ok(())
        }
    });
    rate(seconds, writers, counter.clone()).await
}

/// Linearizable reads a second that no cache serves.
pub async fn reads(clients: &[Arc<dyn PeerClient>], seconds: f64) -> Result<f64, Error> {
    for (at, client) in clients.iter().enumerate() {
        client.write(&format!("/read-{at}"), contents()).await?;
    }
    let counter = Arc::new(Counter::default());
    let readers = clients.iter().enumerate().map(|(at, client)| {
        let (client, counter) = (client.clone(), counter.clone());
        async move {
            let path = format!("/read-{at}");
            while counter.goes_on() {
                if client.read(&path).await?.len() != CONTENT_BYTES {
                    return Err(Error::new("bench.wrong_answer", Class::Failed, "a read answered something else"));
                }
                counter.add(1);
            }
            Ok(())
        }
    });
    rate(seconds, readers, counter.clone()).await
}

/// From one holder's release to the next one's grant, both clients waiting in turn: the median in microseconds.
pub async fn hand_over(clients: &[Arc<dyn PeerClient>], times: usize) -> Result<f64, Error> {
    let [one, other, ..] = clients else {
        return Err(Error::new("bench.failed", Class::Failed, "a hand-over needs two clients"));
    };
    let path = "/hand-over";
    one.write(path, contents()).await?;
    let mut held = one.lock(path).await?;
    let mut took = Vec::with_capacity(times);
    for turn in 0..times {
        let next = if turn % 2 == 0 { other } else { one }.clone();
        let waiting = tokio::spawn(async move {
            let lock = next.lock(path).await;
            (lock, Stopwatch::start())
        });
        // Long enough for the request to be in the queue.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let released = Stopwatch::start();
        let release = tokio::spawn(held.release());
        let (lock, granted) = waiting.await.map_err(ended)?;
        took.push(released.elapsed().saturating_sub(granted.elapsed()).as_secs_f64() * 1e6);
        release.await.map_err(ended)??;
        held = lock?;
    }
    held.release().await?;
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

/// Watchers of one file, all of them told so far.
pub struct Watchers {
    watches: Vec<Box<dyn PeerWatch>>,
}

impl Watchers {
    /// So many watchers, each a client of its own.
    pub async fn begin(
        peer: &dyn Peer,
        path: &'static str,
        count: usize,
        connections: usize,
    ) -> Result<Watchers, Error> {
        let clients = peer.clients(count, connections).await?;
        let beginning = futures::stream::iter(clients).map(|client| async move { client.watch(path).await });
        Ok(Watchers { watches: beginning.buffer_unordered(BEGINNING).try_collect().await? })
    }

    /// From the beginning of a write until the last watcher has heard of it, in milliseconds.
    pub async fn told(&mut self, writer: &Arc<dyn PeerClient>, path: &'static str) -> Result<f64, Error> {
        let mut hearing = JoinSet::new();
        for mut watch in self.watches.drain(..) {
            hearing.spawn(async move { watch.next().await.map(|()| watch) });
        }
        let begun = Stopwatch::start();
        writer.write(path, contents()).await?;
        let heard = async {
            while let Some(watch) = hearing.join_next().await {
                self.watches.push(watch.map_err(ended)??);
            }
            Ok::<(), Error>(())
        };
        let slow = |_| Error::new("bench.failed", Class::Failed, "some watchers did not hear of a write");
        tokio::time::timeout(PATIENCE, heard).await.map_err(slow)??;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}

fn ended(error: tokio::task::JoinError) -> Error {
    Error::new("bench.failed", Class::Failed, format!("a task under measurement panicked: {error}"))
}
