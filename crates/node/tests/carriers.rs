//! Frames over real sockets: the gRPC stream and WebSockets, against services that do what the request's row says.

mod bad_peers;
mod calls;
mod encrypted;
mod failures;
mod in_process;

use crate::support::{Server, loopback};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::{Client, ClientConfig};
use tidings_node::gate::Answers;
use tidings_node::keys::{KeyStore, MemoryKeyStore};
use tidings_node::{Config, Node, Principal, Services, SystemClock};
use tidings_wire::v1::store_message::Message;
use tidings_wire::{Body, v1};

/// Services whose answers are written into the request.
#[derive(Default)]
pub struct Script {
    /// Calls that are being worked on, and how many were ever begun.
    pub working: AtomicUsize,
    pub begun: AtomicUsize,
    /// Frames of long answers that were made.
    pub made: AtomicUsize,
    /// Where `redirect` leads.
    pub redirect: Mutex<Option<String>>,
}

/// Counts a call as long as somebody works on it.
struct Working(Arc<Script>);

impl Working {
    fn new(script: &Arc<Script>) -> Working {
        script.working.fetch_add(1, Ordering::SeqCst);
        script.begun.fetch_add(1, Ordering::SeqCst);
        Working(script.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Scripted(Arc<Script>);

#[async_trait]
impl Services for Scripted {
    async fn call(&self, _: &Principal, request: Body) -> Result<Body, Error> {
        let _working = Working::new(&self.0);
        let Body::Store(v1::StoreMessage { message: Some(Message::Get(get)) }) = &request else {
            return Ok(rows(b"other", Bytes::new()));
        };
        let row = get.key.as_ref().map(|key| key.row.clone()).unwrap_or_default();
        let text = String::from_utf8(row.to_vec()).unwrap_or_default();
        match text.split_once(':').unwrap_or((&text, "")) {
            ("hang", _) => std::future::pending().await,
            ("slow", millis) => {
                tokio::time::sleep(Duration::from_millis(millis.parse().unwrap())).await;
                Ok(rows(b"slow", Bytes::new()))
            }
            ("big", bytes) => Ok(rows(b"big", vec![7; bytes.parse().unwrap()].into())),
            ("busy", until) if self.0.begun.load(Ordering::SeqCst) < until.parse().unwrap() => {
                Err(Error::new("store.unavailable", Class::Unreachable, "no leader yet"))
            }
            ("redirect", _) => match self.0.redirect.lock().clone() {
                Some(to) => Err(Error::new("store.not_leader", Class::Unreachable, "not here").redirect(Some(to))),
                None => Ok(rows(b"here", Bytes::new())),
            },
            ("refuse", _) => Err(Error::new("store.fenced", Class::Refused, "no").hint("Do not.")),
            _ => Ok(rows(&row, Bytes::new())),
        }
    }

    async fn stream(&self, caller: &Principal, request: Body) -> Result<Answers, Error> {
        let Body::Store(v1::StoreMessage { message: Some(Message::Scan(scan)) }) = &request else {
            let answer = self.call(caller, request).await?;
            return Ok(futures::stream::iter([Ok(answer)]).boxed());
        };
        let (script, working) = (self.0.clone(), Working::new(&self.0));
        let size = scan.start.len();
        let frames = futures::stream::iter(0..scan.limit).map(move |i| {
            let _working = &working;
            script.made.fetch_add(1, Ordering::SeqCst);
            Ok(rows(i.to_string().as_bytes(), vec![0; size].into()))
        });
        Ok(frames.boxed())
    }

    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn shutdown(&self) {}
}

/// A node before scripted services.
pub struct ScriptedNode {
    pub node: Node,
    pub script: Arc<Script>,
}

impl ScriptedNode {
    pub async fn start(config: Config) -> ScriptedNode {
        let script = Arc::new(Script::default());
        let keys: Arc<dyn KeyStore> = Arc::new(MemoryKeyStore::default());
        let services = Arc::new(Scripted(script.clone()));
        let node = Node::start_with(config, services, keys, Arc::new(SystemClock)).await.expect("the node starts");
        ScriptedNode { node, script }
    }

    pub fn authority(&self) -> String {
        self.node.address().to_string()
    }

    pub fn client_config(&self) -> ClientConfig {
        client_config([self.node.url()])
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.client_config()).await.expect("the node is there")
    }
}

pub async fn start() -> ScriptedNode {
    ScriptedNode::start(loopback()).await
}

pub fn client_config<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> ClientConfig {
    let mut config = ClientConfig::new(servers);
    config.seed = Some(1);
    config.first_pause = Duration::from_millis(5);
    config.longest_pause = Duration::from_millis(50);
    config
}

/// Asks for the row that says what to do.
pub fn get(row: &str) -> Body {
    let key = v1::RowKey { group: Bytes::from_static(b"g"), row: Bytes::copy_from_slice(row.as_bytes()) };
    Body::Store(v1::StoreMessage { message: Some(Message::Get(v1::Get { key: Some(key), columns: vec![] })) })
}

/// Asks for a long answer of so many frames of so many bytes.
pub fn scan(frames: u32, size: usize) -> Body {
    let start = vec![0; size].into();
    let scan = v1::Scan { group: Bytes::from_static(b"g"), start, limit: frames, ..Default::default() };
    Body::Store(v1::StoreMessage { message: Some(Message::Scan(scan)) })
}

pub fn rows(row: &[u8], value: Bytes) -> Body {
    let cell = v1::Cell { column: Bytes::new(), timestamp: 1, value: Some(value) };
    let row = v1::Row { row: Bytes::copy_from_slice(row), cells: vec![cell] };
    Body::Store(v1::StoreMessage { message: Some(Message::Rows(v1::Rows { rows: vec![row], next: None })) })
}

/// The name of the one row of an answer.
pub fn row_of(answer: &Body) -> String {
    match answer {
        Body::Store(v1::StoreMessage { message: Some(Message::Rows(rows)) }) => {
            String::from_utf8(rows.rows[0].row.to_vec()).unwrap()
        }
        other => panic!("no rows: {other:?}"),
    }
}

/// Waits until something holds; tests say how long is too long by their own harness.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain until {what}");
}

/// A server in memory that has one application.
pub async fn with_app() -> (Server, String) {
    let server = Server::start(crate::support::with_operator().0).await;
    let key = server.app("shop").await;
    (server, key)
}
