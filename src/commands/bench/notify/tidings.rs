//! Our own Notify as a peer: listeners of the library over WebSockets, publishers over gRPC.

use super::peer::{Hears, Peer, PeerConnection};
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::notify::{Event, Events, Listener, ListenerOptions, Publication, publish};
use tidings_client::{Carrier, Client, ClientConfig};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// The application that everything happens in.
pub const APP: &str = "default";
/// How long registrations may take: far above anything measured.
const PATIENCE: Duration = Duration::from_secs(120);

/// The name of an object: 32 bytes, as the paper's.
pub fn name(object: usize) -> String {
    format!("object-{object:025}")
}

fn number(name: &[u8]) -> Option<usize> {
    std::str::from_utf8(name).ok()?.strip_prefix("object-")?.parse().ok()
}

/// A running node.
pub struct Tidings {
    url: String,
    heartbeat: Option<Duration>,
}

impl Tidings {
    pub fn new(url: String) -> Tidings {
        Tidings { url, heartbeat: None }
    }

    /// Listeners say so often that they are there.
    pub fn heartbeat(self, heartbeat: Duration) -> Tidings {
        Tidings { heartbeat: Some(heartbeat), ..self }
    }

    async fn connect(&self, carrier: Carrier) -> Result<Arc<dyn PeerConnection>, Error> {
        let config = ClientConfig { app: Some(APP.to_owned()), carrier, ..ClientConfig::new([self.url.as_str()]) };
        Ok(Arc::new(Connection { client: Client::connect(config).await?, heartbeat: self.heartbeat }))
    }
}

#[async_trait]
impl Peer for Tidings {
    async fn device(&self) -> Result<Arc<dyn PeerConnection>, Error> {
        self.connect(Carrier::WebSocket).await
    }

    async fn service(&self) -> Result<Arc<dyn PeerConnection>, Error> {
        self.connect(Carrier::Grpc).await
    }
}

struct Connection {
    client: Client,
    heartbeat: Option<Duration>,
}

#[async_trait]
impl PeerConnection for Connection {
    async fn listen(&self, objects: Vec<usize>, hears: Arc<dyn Hears>) -> Result<Box<dyn Send + Sync>, Error> {
        let usual = ListenerOptions::default();
        let options = ListenerOptions { heartbeat: self.heartbeat.unwrap_or(usual.heartbeat), ..usual };
        let (listener, events) = Listener::start(self.client.clone(), options)?;
        let (tell, registered) = oneshot::channel();
        let task = tokio::spawn(follow(listener, events, objects, hears, tell));
        let listening = Listening(task.abort_handle());
        match tokio::time::timeout(PATIENCE, registered).await {
            Ok(Ok(Ok(()))) => Ok(Box::new(listening)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) | Err(_) => Err(failed("a listener was not registered")),
        }
    }

    async fn publish(&self, object: usize, version: u64) -> Result<(), Error> {
        publish(&self.client, [Publication::new(name(object), version)]).await
    }
}

/// Ends its listener when it is dropped.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn follow(
    listener: Listener,
    mut events: Events,
    objects: Vec<usize>,
    hears: Arc<dyn Hears>,
    tell: oneshot::Sender<Result<(), Error>>,
) {
    let mut tell = Some(tell);
    let mut missing: BTreeSet<usize> = objects.iter().copied().collect();
    while let Some(event) = events.next().await {
        match event {
            Event::Reissue => {
                objects.iter().for_each(|object| listener.register(name(*object), 0));
                listener.reissued();
            }
            Event::Notify(news) => {
                if let Some(object) = number(&news.object) {
                    hears.hears(object, news.version);
                }
                news.ack();
            }
            Event::Unknown(unknown) => unknown.ack(),
            Event::Registered { object, registered: true } => {
                number(&object).map(|object| missing.remove(&object));
                if missing.is_empty()
                    && let Some(tell) = tell.take()
                {
                    let _ = tell.send(Ok(()));
                }
            }
            Event::Failed { transient: false, .. } | Event::Refused(_) => {
                if let Some(tell) = tell.take() {
                    let _ = tell.send(Err(failed("a listener was refused")));
                }
            }
            _ => {}
        }
    }
}

fn failed(message: &str) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}
