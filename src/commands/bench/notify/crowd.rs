//! `bench-crowd`: many WebSocket clients of Notify in one process, and publishers who never tire, while somebody else
//! kills nodes. Interrupted, it stops publishing, waits until everybody is fresh, and says who is not.
//!
//! It models the backend: a version counts as called before it is published, and as acknowledged once `publish` returned. A
//! client that hears of an unknown version fetches what was called last (N1).

use crate::cli::bench::BenchCrowd;
use crate::commands::signals::Signals;
use crate::commands::{probe, remote, runtime};
use crate::output;
use crate::stopwatch::Stopwatch;
use futures::StreamExt;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::notify::{Event, Events, Listener, ListenerOptions, Publication, publish};
use tidings_client::{Carrier, Client, ClientConfig};
use tidings_wire::v1::{self, admin_message, frame::Body};

/// Clients that connect at once.
const CONNECTING: usize = 50;
/// Publications of one application under way.
const UNDER_WAY: usize = 16;
/// Between two rounds of publications.
const PAUSE: Duration = Duration::from_millis(200);
/// A client says that it is there so often: real-process tests do not wait for twenty minutes.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// How long clients may take until they are registered, and until they are fresh: leases, retransmissions, and a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// One object with its backend and its one listener.
#[derive(Default)]
struct Object {
    called: AtomicU64,
    acknowledged: AtomicU64,
    known: AtomicU64,
    registered: AtomicBool,
    /// Callbacks.
    heard: AtomicU64,
    /// Callbacks with a version that nobody had called `publish` for (N2).
    invented: AtomicU64,
}

impl Object {
    fn learns(&self, version: u64) {
        let invented = version > self.called.load(Ordering::Acquire);
        self.invented.fetch_add(u64::from(invented), Ordering::Relaxed);
        self.known.fetch_max(version, Ordering::AcqRel);
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    fn is_stale(&self) -> bool {
        self.known.load(Ordering::Acquire) < self.acknowledged.load(Ordering::Acquire)
    }
}

pub fn run(args: BenchCrowd) -> Result<(), Error> {
    probe::raise_open_files();
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let objects: Vec<Arc<Object>> = (0..args.clients).map(|_| Arc::default()).collect();
        let config = remote::config(&args.remote)?;
        let application = |client: usize| format!("crowd-{}", client % args.applications.max(1));
        for of in 0..args.applications.max(1) {
            make(&config, application(of)).await?;
        }
        let connecting = objects.iter().enumerate().map(|(client, object)| {
            let config = spread(&config, client, application(client), Carrier::WebSocket);
            listen(config, client, object.clone())
        });
        let connecting = futures::stream::iter(connecting).buffer_unordered(CONNECTING);
        let begun = connecting.collect::<Vec<_>>().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        wait(&objects, |object| object.registered.load(Ordering::Acquire), "clients are not registered").await?;
        output::line("ready");
        let stopped = Arc::new(AtomicBool::new(false));
        let publishers: Vec<_> = (0..args.applications.max(1))
            .map(|of| {
                let config = spread(&config, of, application(of), Carrier::Grpc);
                let mine = objects.iter().cloned().enumerate().skip(of).step_by(args.applications.max(1));
                tokio::spawn(publish_rounds(config, mine.collect(), stopped.clone()))
            })
            .collect();
        signals.next().await;
        stopped.store(true, Ordering::Release);
        for publisher in publishers {
            publisher.await.map_err(|error| failed(error.to_string()))??;
        }
        let watch = Stopwatch::start();
        let fresh = wait(&objects, |object| !object.is_stale(), "clients are stale").await;
        let sum = |of: fn(&Object) -> &AtomicU64| objects.iter().map(|o| of(o).load(Ordering::Acquire)).sum::<u64>();
        output::json(&json!({
            "clients": begun.len(),
            "acknowledged": sum(|object| &object.acknowledged),
            "callbacks": sum(|object| &object.heard),
            "invented": sum(|object| &object.invented),
            "stale": objects.iter().filter(|object| object.is_stale()).count(),
            "fresh_after_s": watch.elapsed().as_secs_f64(),
        }));
        fresh
    })
}

/// The same servers, each client with another one first.
fn spread(config: &ClientConfig, at: usize, app: String, carrier: Carrier) -> ClientConfig {
    let mut servers = config.servers.clone();
    let first = at % servers.len().max(1);
    servers.rotate_left(first);
    ClientConfig { servers, app: Some(app), carrier, ..config.clone() }
}

/// Makes an application, unless an earlier crowd has.
async fn make(config: &ClientConfig, app: String) -> Result<(), Error> {
    let create = admin_message::Message::AppCreate(v1::AppCreate { app });
    let body = Body::Admin(v1::AdminMessage { message: Some(create) });
    match Client::connect(config.clone()).await?.call(body).await {
        Err(error) if error.code != "admin.app_exists" => Err(error),
        _ => Ok(()),
    }
}

fn name(client: usize) -> String {
    format!("object-{client}")
}

async fn listen(config: ClientConfig, client: usize, object: Arc<Object>) -> Result<Listener, Error> {
    let options = ListenerOptions { heartbeat: HEARTBEAT, ..ListenerOptions::default() };
    let (listener, events) = Listener::start(Client::connect(config).await?, options)?;
    tokio::spawn(follow(listener.clone(), events, client, object));
    Ok(listener)
}

async fn follow(listener: Listener, mut events: Events, client: usize, object: Arc<Object>) {
    while let Some(event) = events.next().await {
        match event {
            Event::Reissue => {
                listener.register(name(client), object.known.load(Ordering::Acquire));
                listener.reissued();
            }
            Event::Notify(news) => {
                object.learns(news.version);
                news.ack();
            }
            Event::Unknown(unknown) => {
                object.learns(object.called.load(Ordering::Acquire));
                unknown.ack();
            }
            Event::Registered { registered: true, .. } => object.registered.store(true, Ordering::Release),
            _ => {}
        }
    }
}

/// Publishes a new version of every object, round after round. What could not be published may have been all the same.
async fn publish_rounds(
    config: ClientConfig,
    objects: Vec<(usize, Arc<Object>)>,
    stopped: Arc<AtomicBool>,
) -> Result<(), Error> {
    // The node that it would meet first may be dead by now.
    let client = Client::new(config)?;
    while !stopped.load(Ordering::Acquire) {
        let round = objects.clone().into_iter().map(|(at, object)| {
            let (client, stopped) = (client.clone(), stopped.clone());
            async move {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let version = object.called.fetch_add(1, Ordering::AcqRel) + 1;
                if publish(&client, [Publication::new(name(at), version)]).await.is_ok() {
                    object.acknowledged.fetch_max(version, Ordering::AcqRel);
                }
            }
        });
        futures::stream::iter(round).buffer_unordered(UNDER_WAY).collect::<Vec<()>>().await;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn wait(objects: &[Arc<Object>], good: impl Fn(&Object) -> bool, what: &str) -> Result<(), Error> {
    let all = async {
        while !objects.iter().all(|object| good(object)) {
            tokio::time::sleep(LOOK).await;
        }
    };
    let left = |_| {
        let bad: Vec<usize> = (0..objects.len()).filter(|at| !good(&objects[*at])).collect();
        failed(format!("{} {what}, such as {:?}", bad.len(), bad.first()))
    };
    tokio::time::timeout(PATIENCE, all).await.map_err(left)
}

fn failed(message: String) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}
