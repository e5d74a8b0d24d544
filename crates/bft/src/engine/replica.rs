//! One replica with its engine, on threads of its own.

use super::chain::{self, Beginning, PATIENCE};
use super::delivery::{Delivery, Ended, FEWEST_KEPT, Outlet};
use super::passing::pass_on;
use super::proposer::Proposer;
use super::provider::provide;
use super::steady::{By, Time};
use super::takeover::Taker;
use super::wires::{self, Wire};
use super::{Identity, Runtime};
use crate::mark::{self, Start};
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
    /// Where its journal, its archive and its snapshot are. It holds a [`mark`].
    pub directory: PathBuf,
    /// The service before the first command.
    pub empty: S,
    /// How many batches are kept behind the latest snapshot, for those who were away. [`KEPT`] by default; [`FEWEST_KEPT`] at
    /// least.
    pub kept: u64,
    /// Whether it takes a state over though it has one: after [`BEHIND`].
    pub takes_over: bool,
    /// Whether it has no part in batches of commands, and comes to rest at the next snapshot: this life of the group ends.
    pub closes: bool,
    /// What it does wrong, in tests.
    pub sin: Option<Sin>,
}

/// How many batches are kept by default: where nobody writes, an absence of more than three hours. Whoever was away for longer takes a
/// state over.
pub const KEPT: u64 = 1 << 15;

/// The code of the error with which a replica ends that was away for longer than the others keep batches. It is to be started
/// again, and to take a state over.
pub const BEHIND: &str = "bft.behind";

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
        let kept = Shelf::open(&options.directory).and_then(|shelf| shelf.kept(&options.membership));
        let reborn = kept.and_then(|kept| mark::reborn(&options.directory, &options.membership, &kept));
        let start = reborn.and_then(|()| mark::begin(&options.directory, &options.membership)).map_err(unusable)?;
        if !start.votes() {
            tracing::warn!("the journal of votes was lost: this replica takes a state over, and does not vote");
        }
        let (stop, stopped) = oneshot::channel();
        let (ready, seat) = oneshot::channel();
        let (running, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("bft".to_owned());
        let thread = thread.spawn(move || {
            let _running: oneshot::Sender<()> = running;
            work(options, start, ready, stopped)
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
    start: Start,
    ready: oneshot::Sender<Arc<Seat<S>>>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let config = Config::new()
        .with_worker_threads(THREADS)
        .with_tcp_nodelay(Some(true))
        .with_storage_directory(mark::journal(&options.directory));
    Runner::new(config).start(|context| async move {
        let context = By::new(context, Time::steady());
        tokio::select! {
            biased;
            _ = stopped => Ok(()),
            ended = run(context, options, start, ready) => ended,
        }
    })
}

async fn run<E: Runtime, S: Durable>(
    context: E,
    options: Options<S>,
    start: Start,
    ready: oneshot::Sender<Arc<Seat<S>>>,
) -> Result<(), Error> {
    let failed = |message: String| Error::new("bft.engine", Class::Failed, message);
    let identity = Identity::new(options.membership.clone(), &options.secrets.secret, start.votes())?;
    let me = options.membership.replica(&options.secrets.secret.public());
    let member = me.and_then(|me| options.membership.replicas().get(usize::from(me.0)));
    let listen = member.ok_or_else(|| failed("the secret is of no replica".into()))?.peers;
    let mut wires = wires::open(&context, &identity, listen, Time::of_day())?;
    let shelf = Shelf::open(&options.directory).map_err(|error| failed(error.to_string()))?;
    let beginning = begin(&context, &identity, &shelf, options.takes_over, &mut wires.snapshots).await?;

    let Options { membership, secrets, empty, sin, kept, closes, .. } = options;
    let seat = Seat::open(membership.clone(), secrets, start, shelf, empty, sin);
    let seat = Arc::new(seat.map_err(|error| failed(error.to_string()))?);
    let proposer = Proposer::new(membership, seat.pool.clone(), PATIENCE);
    if closes {
        seat.pool.close();
    }
    let (outlet, batches) = Outlet::new();
    let tip = outlet.tip();
    let began = if matches!(beginning, Beginning::Floor(_)) { seat.height() } else { 0 };
    let chain = chain::start(&context, &identity, beginning, wires.order, proposer, outlet).await?;
    let _ = ready.send(seat.clone());

    let (kept, acknowledged) = (kept.max(FEWEST_KEPT), chain.acknowledged);
    let delivered = acknowledged.max(began);
    let delivery = Delivery { order: chain.order.clone(), acknowledged, delivered, batches, tip, kept };
    let at = seat.clone();
    // A thread of its own: a service may take long, and a snapshot is written while nothing is executed.
    let thread = context.child("delivery").dedicated();
    let delivery = thread.spawn(move |context| async move { delivery.run(&context, &at).await });
    let at = seat.clone();
    context.child("passing").spawn(move |context| pass_on(context, at, wires.commands));
    context.child("provider").spawn(move |_| provide(seat, chain.order, wires.snapshots));
    tokio::select! {
        _ = chain.simplex => Err(failed("simplex has ended".into())),
        _ = chain.marshal => Err(failed("marshal has ended".into())),
        _ = wires.ended => Err(failed("the network has ended".into())),
        delivered = delivery => Err(match delivered {
            Ok(Ended::Failed(error)) => failed(format!("a batch cannot be executed: {error}")),
            Ok(Ended::Behind) => Error::new(BEHIND, Class::Failed, "the replica was away for longer than the others keep batches")
                .hint("Start it again, to take a state over."),
            Ok(Ended::Closed) | Err(_) => failed("the delivery has ended".into()),
        }),
    }
}

/// Where the order begins: a replica that has neither journal nor state takes one over, and one that was away for too long.
async fn begin<E: Runtime>(
    context: &E,
    identity: &Identity,
    shelf: &Shelf,
    takes_over: bool,
    wire: &mut Wire<E>,
) -> Result<Beginning, Error> {
    let failed = |error: io::Error| Error::new("bft.snapshot", Class::Failed, error.to_string());
    let own = shelf.kept(&identity.group).map_err(failed)?.latest.map(|snapshot| snapshot.height);
    if !takes_over && (identity.votes || own.is_some()) {
        return Ok(Beginning::Genesis);
    }
    let Some(scheme) = identity.scheme() else { return Ok(Beginning::Genesis) };
    let Some(taken) = Taker::new(context.child("takeover"), identity, &scheme, wire).take().await else {
        return Ok(Beginning::Genesis);
    };
    // Never back: what it has said stands on its own state. The same one is taken again, by who was killed when it was kept and
    // the order did not know of it.
    if own.is_some_and(|own| own > taken.snapshot.height) {
        return Ok(Beginning::Genesis);
    }
    tracing::info!(height = taken.snapshot.height, "a state was taken over");
    shelf.keep(&taken.snapshot).map_err(failed)?;
    Ok(Beginning::Floor(taken.floor))
}
