//! Our own cell as a peer, and what is measured of its library alone.

use super::peer::{Peer, PeerClient, PeerLock, PeerWatch};
use crate::stopwatch::Stopwatch;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_client::cell::{Cell, Handle, Link, Lock, Mode, SessionOptions, Watch};
use tidings_client::{Client, ClientConfig};
use tidings_wire::v1::{NodeRead, NodeTarget, ReadNode, cell_message::Message, node_target::Target};
use tokio::sync::Mutex;

/// Sessions that are being created at once on one connection.
const CREATING: usize = 16;
/// Reads of one measurement from the cache.
const CACHED_READS: u32 = 1_000_000;

/// A running cell.
pub struct Tidings {
    urls: Vec<String>,
}

impl Tidings {
    pub fn new(urls: &[String]) -> Tidings {
        Tidings { urls: urls.to_vec() }
    }
}

/// So many sessions, spread over so many connections.
pub async fn sessions(urls: &[String], count: usize, connections: usize) -> Result<Vec<Cell>, Error> {
    let each = count.div_ceil(connections);
    let on_one = |at: usize| async move {
        let link = Link::new(Client::connect(ClientConfig::new(urls)).await?)?;
        let wanted = each.min(count.saturating_sub(at * each));
        let creating = futures::stream::iter((0..wanted).map(|_| link.session(SessionOptions::default())));
        creating.buffer_unordered(CREATING).try_collect::<Vec<Cell>>().await
    };
    let all = futures::stream::iter((0..connections).map(on_one)).buffered(connections);
    Ok(all.try_collect::<Vec<_>>().await?.into_iter().flatten().collect())
}

#[async_trait]
impl Peer for Tidings {
    async fn clients(&self, count: usize, connections: usize) -> Result<Vec<Arc<dyn PeerClient>>, Error> {
        let clients = sessions(&self.urls, count, connections).await?;
        Ok(clients.into_iter().map(|cell| Arc::new(One { cell, handles: Mutex::default() }) as _).collect())
    }
}

/// One session with the handles that it has opened for locks.
struct One {
    cell: Cell,
    handles: Mutex<BTreeMap<String, Arc<Handle>>>,
}

#[async_trait]
impl PeerClient for One {
    async fn write(&self, path: &str, contents: Bytes) -> Result<(), Error> {
        self.cell.write(path, contents).await.map(drop)
    }

    async fn read(&self, path: &str) -> Result<Bytes, Error> {
        let target = Some(NodeTarget { target: Some(Target::Path(path.to_owned())) });
        let read = ReadNode { target, contents: true, children: false, uncached: true, ..Default::default() };
        match self.cell.request(Message::Read(read)).await? {
            Message::NodeRead(NodeRead { stat: Some(_), contents, .. }) => Ok(contents),
            other => Err(wrong(&other)),
        }
    }

    async fn lock(&self, path: &str) -> Result<Box<dyn PeerLock>, Error> {
        let handle = {
            let mut handles = self.handles.lock().await;
            match handles.get(path) {
                Some(handle) => handle.clone(),
                None => {
                    let handle = Arc::new(self.cell.open(path).lock().create_file("").await?);
                    handles.insert(path.to_owned(), handle.clone());
                    handle
                }
            }
        };
        Ok(Box::new(Held(handle.acquire(Mode::Exclusive).await?)))
    }

    async fn watch(&self, path: &str) -> Result<Box<dyn PeerWatch>, Error> {
        Ok(Box::new(Watching { watch: self.cell.watch(path).await?, _cell: self.cell.clone() }))
    }
}

struct Held(Lock);

#[async_trait]
impl PeerLock for Held {
    async fn release(self: Box<Self>) -> Result<(), Error> {
        self.0.release().await
    }
}

struct Watching {
    watch: Watch,
    /// Without it the session would end.
    _cell: Cell,
}

#[async_trait]
impl PeerWatch for Watching {
    async fn next(&mut self) -> Result<(), Error> {
        let ended = || Error::new("bench.failed", Class::Failed, "a watch under measurement ended");
        self.watch.next().await.map(drop).ok_or_else(ended)
    }
}

/// One thread that reads one file over and over: nanoseconds for each read that the cache served.
pub async fn cached_read(urls: &[String]) -> Result<f64, Error> {
    let cell = Cell::connect(ClientConfig::new(urls)).await?;
    let path = "/cached";
    cell.write(path, "cached").await?;
    // The first reads bring the file and the lease under which it may be used.
    while cell.observed().cached < 1_000 {
        cell.read(path).await?;
        tokio::task::yield_now().await;
    }
    let before = cell.observed().cached;
    let watch = Stopwatch::start();
    for _ in 0..CACHED_READS {
        std::hint::black_box(cell.read(path).await?);
    }
    let took = watch.elapsed();
    let hits = cell.observed().cached - before;
    if hits < u64::from(CACHED_READS) * 99 / 100 {
        let message = format!("only {hits} of {CACHED_READS} reads were served by the cache");
        return Err(Error::new("bench.failed", Class::Failed, message));
    }
    cell.close().await?;
    Ok(took.as_secs_f64() * 1e9 / f64::from(CACHED_READS))
}

fn wrong(answer: &impl std::fmt::Debug) -> Error {
    Error::new("bench.wrong_answer", Class::Failed, format!("the cell answered {answer:?}"))
}
