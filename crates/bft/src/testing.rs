//! A group within one process, on the model of the order, which loses commands, orders them twice and delivers blocks again. For
//! tests of the group, and of whoever asks one.

use crate::keys::random;
use crate::mark::Start;
use crate::membership::{Founded, found};
use crate::seat::{Durable, Seat};
use crate::server::Server;
use crate::sin::Sin;
use crate::snapshot::Shelf;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tidings_base::Seeded;
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::Ordering;
use tidings_sketch::replica::model::Model;

/// One replica to be.
pub struct Part<S> {
    /// Where other replicas would reach it, and where clients do.
    pub addresses: (SocketAddr, SocketAddr),
    /// Its service, before the first command.
    pub service: S,
    /// What it does wrong.
    pub sin: Option<Sin>,
}

type Seats<S> = Arc<Mutex<Vec<Arc<Seat<S>>>>>;

/// Replicas with their doors, and a thread that orders for them.
pub struct Modelled<S> {
    /// The group with all its secrets.
    pub founded: Founded,
    /// The doors; one that is taken away is shut.
    pub servers: Vec<Option<Server>>,
    /// Replicas at or above this number are delivered nothing.
    pub held: Arc<AtomicUsize>,
    seats: Seats<S>,
    directory: PathBuf,
    over: Arc<AtomicBool>,
}

impl<S> Drop for Modelled<S> {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

impl<S: Durable> Modelled<S> {
    /// A new group with so many clients, and its files below a directory.
    pub async fn start(directory: &Path, seed: u64, clients: u64, parts: Vec<Part<S>>) -> io::Result<Modelled<S>> {
        let addresses: Vec<_> = parts.iter().map(|part| part.addresses).collect();
        let founded = found("town", &addresses, clients, random).map_err(io::Error::other)?;
        let (size, model) = (parts.len(), Model::new(Seeded::new(seed), parts.len() as u16));
        let mut group = Modelled {
            founded,
            servers: Vec::new(),
            held: Arc::new(AtomicUsize::new(size)),
            seats: Arc::default(),
            directory: directory.to_owned(),
            over: Arc::default(),
        };
        for (number, part) in parts.into_iter().enumerate() {
            let (seat, server) = group.open(number, Start::Born, part.service, part.sin).await?;
            group.seats.lock().push(seat);
            group.servers.push(Some(server));
        }
        // Not of the runtime: a service may take long, and may wait for somebody who is served there.
        let (seats, held, over) = (Arc::clone(&group.seats), Arc::clone(&group.held), Arc::clone(&group.over));
        std::thread::Builder::new().name("order".to_owned()).spawn(move || order(model, &seats, &held, &over))?;
        Ok(group)
    }

    /// One of its replicas.
    pub fn seat(&self, number: usize) -> Arc<Seat<S>> {
        Arc::clone(&self.seats.lock()[number])
    }

    /// Whether all have executed the same blocks, and some.
    pub fn is_level(&self) -> bool {
        let heights: BTreeSet<u64> = self.seats.lock().iter().map(|seat| seat.height()).collect();
        heights.len() == 1 && !heights.contains(&0)
    }

    /// A replica stops, and begins again with what its directory holds. Blocks that it had executed since are executed again.
    pub async fn begin_again(&mut self, number: usize, empty: S) -> io::Result<()> {
        self.servers[number] = None;
        let (seat, server) = self.open(number, Start::Back, empty, None).await?;
        self.seats.lock()[number] = seat;
        self.servers[number] = Some(server);
        Ok(())
    }

    async fn open(
        &self,
        number: usize,
        start: Start,
        empty: S,
        sin: Option<Sin>,
    ) -> io::Result<(Arc<Seat<S>>, Server)> {
        let (group, secrets) = (Arc::new(self.founded.membership.clone()), self.founded.replicas[number].clone());
        let address = group.replicas()[number].clients;
        let folder = self.directory.join(number.to_string());
        std::fs::create_dir_all(&folder)?;
        let seat = Arc::new(Seat::open(group, secrets, start, Shelf::open(&folder)?, empty, sin)?);
        loop {
            match Server::start(address, Arc::clone(&seat)).await {
                Ok(server) => return Ok((seat, server)),
                // The door of one that has just stopped closes in a moment.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && start == Start::Back => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Hands in what waits at each replica, orders, and delivers, until it is over or a replica cannot go on.
fn order<S: Durable>(mut model: Model, seats: &Seats<S>, held: &AtomicUsize, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let now = seats.lock().clone();
        for (at, seat) in (0u16..).map(ReplicaId).zip(&now) {
            let waiting = seat.pool.pick(&BTreeSet::new(), 1 << 20);
            waiting.into_iter().for_each(|signed| model.submit(at, signed.command));
        }
        model.work();
        for (at, seat) in (0u16..).map(ReplicaId).zip(&now).take(held.load(Relaxed)) {
            if let Err(error) = deliver(&mut model, at, seat) {
                return tracing::error!(%error, "a block cannot be executed");
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What it said it had executed and has not, since it has begun again, is had from the order's archive.
fn deliver<S: Durable>(model: &mut Model, at: ReplicaId, seat: &Seat<S>) -> io::Result<()> {
    let again = seat.height() as usize..model.executed_by(at) as usize;
    for block in model.blocks().get(again).unwrap_or_default() {
        seat.execute(block)?;
    }
    while let Some(block) = model.next(at) {
        seat.execute(&block)?;
        model.executed(at, seat.height());
    }
    Ok(())
}
