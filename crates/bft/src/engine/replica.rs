//! One replica with its engine, on threads of its own.

use super::chain::{self, Beginning, PATIENCE};
use super::delivery::{Outlet, deliver};
use super::passing::pass_on;
use super::proposer::Proposer;
use super::provider::provide;
use super::takeover::Taker;
use super::wires::{self, Wire};
use super::{Identity, Runtime};
use crate::mark;
use crate::membership::{Membership, ReplicaSecrets};
use crate::seat::{Durable, Seat};
use crate::sin::Sin;
use crate::snapshot::Shelf;
use commonware_runtime::{Runner as _, tokio::Config, tokio::Runner};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidings_base::{Class, Error};
use tokio::sync::oneshot;

/// Threads of the engine. Votes are verified there; with one, a long batch would hold up the next view.
const THREADS: usize = 2;

/// What makes a replica.
pub struct Options<S> {
    /// The group it is of.
    pub membership: Arc<Membership>,
    /// What it alone knows.
    pub secrets: ReplicaSecrets,
    /// Where its journal, its archive and its snapshot are. It holds a [`mark`](crate::mark).
    pub directory: PathBuf,
    /// The service before the first command.
    pub empty: S,
    /// What it does wrong, in tests.
    pub sin: Option<Sin>,
}

/// A running replica. It stops when it is dropped; [`stop`](Replica::stop) waits for that.
pub struct Replica<S> {
    /// What it is beside its order.
    pub seat: Arc<Seat<S>>,
    stop: Option<oneshot::Sender<()>>,
    /// Resolves when the thread ends.
    ended: oneshot::Receiver<()>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl<S: Durable> Replica<S> {
    /// Starts a replica, and returns once it has a state: its own, or one that it took over.
    pub async fn start(options: Options<S>) -> Result<Replica<S>, Error> {
        let unusable = |error: io::Error| {
            Error::new("bft.directory", Class::Invalid, format!("{}: {error}", options.directory.display()))
        };
        let votes = mark::begin(&options.directory, &options.membership).map_err(unusable)?;
        if !votes {
            tracing::warn!("the journal of votes was lost: this replica takes a state over, and does not vote");
        }
        let (stop, stopped) = oneshot::channel();
        let (ready, seat) = oneshot::channel();
        let (running, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("bft".to_owned());
        let thread = thread.spawn(move || {
            let _running: oneshot::Sender<()> = running;
            work(options, votes, ready, stopped)
        });
        let thread = thread.map_err(|error| Error::new("bft.engine", Class::Failed, error.to_string()))?;
        match seat.await {
            Ok(seat) => Ok(Replica { seat, stop: Some(stop), ended, thread: Some(thread) }),
            Err(_) => Err(joined(thread).await),
        }
    }

    /// Waits until it ends by itself, which is a failure.
    pub async fn ended(&mut self) -> Error {
        let _ = (&mut self.ended).await;
        match self.thread.take() {
            Some(thread) => joined(thread).await,
            None => std::future::pending().await,
        }
    }

    /// Stops it. Its directory may be used again afterwards.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            joined(thread).await;
        }
    }
}

async fn joined(thread: JoinHandle<Result<(), Error>>) -> Error {
    let failed = |message: &str| Error::new("bft.engine", Class::Failed, message);
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(Ok(()))) => failed("the engine was stopped"),
        Ok(Ok(Err(error))) => error,
        Ok(Err(_)) | Err(_) => failed("the engine has failed; see its log"),
    }
}

fn work<S: Durable>(
    options: Options<S>,
    votes: bool,
    ready: oneshot::Sender<Arc<Seat<S>>>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let config = Config::new()
        .with_worker_threads(THREADS)
        .with_tcp_nodelay(Some(true))
        .with_storage_directory(mark::journal(&options.directory));
    Runner::new(config).start(|context| async move {
        tokio::select! {
            biased;
            _ = stopped => Ok(()),
            ended = run(context, options, votes, ready) => ended,
        }
    })
}

async fn run<E: Runtime, S: Durable>(
    context: E,
    options: Options<S>,
    votes: bool,
    ready: oneshot::Sender<Arc<Seat<S>>>,
) -> Result<(), Error> {
    let failed = |message: String| Error::new("bft.engine", Class::Failed, message);
    let identity = Identity::new(options.membership.clone(), &options.secrets.secret, votes)?;
    let me = options.membership.replica(&options.secrets.secret.public());
    let member = me.and_then(|me| options.membership.replicas().get(usize::from(me.0)));
    let listen = member.ok_or_else(|| failed("the secret is of no replica".into()))?.peers;
    let mut wires = wires::open(&context, &identity, listen)?;
    let shelf = Shelf::open(&options.directory).map_err(|error| failed(error.to_string()))?;
    let beginning = begin(&context, &identity, &shelf, &mut wires.snapshots).await?;

    let Options { membership, secrets, empty, sin, .. } = options;
    let seat = Seat::open(membership.clone(), secrets, votes, shelf, empty, sin);
    let seat = Arc::new(seat.map_err(|error| failed(error.to_string()))?);
    let proposer = Proposer::new(membership, seat.pool.clone(), PATIENCE);
    let (outlet, batches) = Outlet::new();
    let chain = chain::start(&context, &identity, beginning, wires.order, proposer, outlet).await?;
    let _ = ready.send(seat.clone());

    let (order, acknowledged, at) = (chain.order.clone(), chain.acknowledged, seat.clone());
    // A thread of its own: a service may take long, and a snapshot is written while nothing is executed.
    let delivery = context.child("delivery").dedicated();
    let delivery = delivery.spawn(move |_| async move { deliver(&at, &order, acknowledged, batches).await });
    let at = seat.clone();
    context.child("passing").spawn(move |context| pass_on(context, at, wires.commands));
    context.child("provider").spawn(move |_| provide(seat, chain.order, wires.snapshots));
    tokio::select! {
        _ = chain.simplex => Err(failed("simplex has ended".into())),
        _ = chain.marshal => Err(failed("marshal has ended".into())),
        _ = wires.ended => Err(failed("the network has ended".into())),
        delivered = delivery => Err(match delivered {
            Ok(Err(error)) => failed(format!("a batch cannot be executed: {error}")),
            Ok(Ok(())) | Err(_) => failed("the delivery has ended".into()),
        }),
    }
}

/// Where the order begins: a replica that has neither journal nor state takes one over.
async fn begin<E: Runtime>(
    context: &E,
    identity: &Identity,
    shelf: &Shelf,
    wire: &mut Wire<E>,
) -> Result<Beginning, Error> {
    let failed = |error: io::Error| Error::new("bft.snapshot", Class::Failed, error.to_string());
    if identity.votes || shelf.latest().map_err(failed)?.is_some() {
        return Ok(Beginning::Genesis);
    }
    let Some(scheme) = identity.scheme() else { return Ok(Beginning::Genesis) };
    let Some(taken) = Taker::new(context.child("takeover"), identity, &scheme, wire).take().await else {
        return Ok(Beginning::Genesis);
    };
    tracing::info!(height = taken.snapshot.height, "a state was taken over");
    shelf.keep(&taken.snapshot).map_err(failed)?;
    Ok(Beginning::Floor(taken.floor))
}
