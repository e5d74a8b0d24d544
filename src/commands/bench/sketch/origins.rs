//! Web servers in this process: pages that change when they are told to, and a service time, one request at a time.

use crate::output::broken;
use crate::stopwatch::Stopwatch;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::Error;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What all of them serve: pages by number, each with a version.
pub struct Pages {
    versions: Vec<AtomicU64>,
    /// What pages are filled up with.
    filling: Vec<u8>,
}

impl Pages {
    pub fn new(count: usize, length: usize) -> Arc<Pages> {
        Arc::new(Pages { versions: (0..count).map(|_| AtomicU64::new(0)).collect(), filling: vec![b'x'; length] })
    }

    /// A page changes, on all servers at once.
    pub fn change(&self, page: usize) {
        self.versions[page].fetch_add(1, Ordering::SeqCst);
    }

    /// How a page begins now.
    pub fn beginning(&self, page: usize) -> String {
        let version = self.versions.get(page).map_or(0, |version| version.load(Ordering::SeqCst));
        format!("{page} {version} ")
    }

    /// An answer with a page, whole.
    fn answer(&self, page: usize) -> Vec<u8> {
        let beginning = self.beginning(page);
        let filling = self.filling.get(beginning.len()..).unwrap_or_default();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: ";
        let mut answer = format!("{head}{}\r\n\r\n{beginning}", beginning.len() + filling.len()).into_bytes();
        answer.extend_from_slice(filling);
        answer
    }
}

/// Servers; dropped, they stop.
pub struct Origins {
    pub pages: Arc<Pages>,
    pub addresses: Vec<SocketAddr>,
    executions: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

/// One server's queue: when it will be free.
struct Lane {
    clock: Stopwatch,
    free_at: Mutex<Duration>,
    service: Duration,
}

impl Lane {
    /// Waits for this request's turn and its service.
    async fn serve(&self) {
        if self.service.is_zero() {
            return;
        }
        let (now, done) = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.clock.elapsed();
            *free_at = now.max(*free_at) + self.service;
            (now, *free_at)
        };
        tokio::time::sleep(done.saturating_sub(now)).await;
    }
}

impl Origins {
    /// So many servers of the same pages, each of which takes so long for one.
    pub async fn start(count: usize, pages: Arc<Pages>, service: Duration) -> Result<Origins, Error> {
        let executions = Arc::new(AtomicU64::new(0));
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let none = |error| broken("loopback has no free port", error);
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(none)?;
            addresses.push(listener.local_addr().map_err(none)?);
            let lane = Arc::new(Lane { clock: Stopwatch::start(), free_at: Mutex::default(), service });
            tasks.push(tokio::spawn(accept(listener, Arc::clone(&pages), lane, Arc::clone(&executions))));
        }
        Ok(Origins { pages, addresses, executions, tasks })
    }

    pub fn executions(&self) -> u64 {
        self.executions.load(Ordering::SeqCst)
    }

    /// As `sketch run` takes them.
    pub fn arguments(&self) -> Vec<String> {
        self.addresses.iter().flat_map(|address| ["--origin".to_owned(), format!("http://{address}")]).collect()
    }
}

impl Drop for Origins {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(listener: TcpListener, pages: Arc<Pages>, lane: Arc<Lane>, executions: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (pages, lane, executions) = (Arc::clone(&pages), Arc::clone(&lane), Arc::clone(&executions));
        connections.spawn(async move {
            // Whoever goes away has had his answers.
            let _ = answer(stream, &pages, &lane, &executions).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Answers GET after GET; nothing else is asked for here.
async fn answer(stream: TcpStream, pages: &Pages, lane: &Lane, executions: &AtomicU64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let page = line.split(' ').nth(1).and_then(|path| path.rsplit('/').next()?.parse().ok()).unwrap_or(0);
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
        }
        executions.fetch_add(1, Ordering::SeqCst);
        lane.serve().await;
        stream.write_all(&pages.answer(page)).await?;
    }
}
