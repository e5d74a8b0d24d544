//! A group within this process.

use crate::output::broken;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_bft::client::{Client, Options};
use tidings_bft::direct;
use tidings_bft::engine::replica::{self, Replica};
use tidings_bft::keys::random;
use tidings_bft::mark;
use tidings_bft::membership::{Founded, found};
use tidings_bft::seat::Durable;
use tidings_bft::server::Server;
use tidings_sketch_proxy::{BftGroup, Config, Proxy, Service, Site};

/// Longer than any measurement.
const PATIENT: Duration = Duration::from_secs(3_600);

/// Replicas with their engines and doors.
pub struct Town<S> {
    founded: Founded,
    replicas: Vec<Replica<S>>,
    _doors: Vec<Server>,
}

/// Addresses where nobody listens at the moment.
fn addresses(count: usize) -> Result<Vec<SocketAddr>, Error> {
    let none = |error| broken("loopback has no free port", error);
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().map_err(none)?;
    listeners.iter().map(|listener| listener.local_addr().map_err(none)).collect()
}

impl<S: Durable> Town<S> {
    /// A new group of so many replicas and clients, with its files below a directory; each replica has a service of its own.
    pub async fn start(place: &Path, size: usize, clients: usize, service: impl Fn() -> S) -> Result<Town<S>, Error> {
        let addresses = addresses(2 * size)?;
        let pairs: Vec<_> = addresses.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let founded = found("bench", &pairs, clients as u64, random)?;
        let mut starting = Vec::new();
        for (number, secrets) in founded.replicas.iter().enumerate() {
            let directory = place.join(format!("replica-{number}"));
            std::fs::create_dir_all(&directory).map_err(|error| broken("cannot make a replica's folder", error))?;
            mark::found(&directory, &founded.membership).map_err(|error| broken("cannot mark the folder", error))?;
            let membership = Arc::new(founded.membership.clone());
            let empty = service();
            starting.push(Replica::start(replica::Options {
                membership,
                secrets: secrets.clone(),
                directory,
                empty,
                kept: replica::KEPT,
                takes_over: false,
                closes: false,
                sin: None,
            }));
        }
        let replicas = futures::future::try_join_all(starting).await?;
        let mut doors = Vec::new();
        for (replica, (_, address)) in replicas.iter().zip(&pairs) {
            let door = Server::start(*address, Arc::clone(&replica.seat)).await;
            doors.push(door.map_err(|error| broken("a replica cannot listen", error))?);
        }
        Ok(Town { founded, replicas, _doors: doors })
    }

    fn options() -> Options {
        // Nothing is ordered because the machine is busy; what was dropped is asked again, and answered from the cache.
        let patient = Duration::from_secs(30);
        Options { resend: Duration::from_secs(2), give_up: patient, read_give_up: patient, ..Options::after(0) }
    }

    /// A client of the group that has reached everybody.
    pub async fn client(&self, which: usize) -> Result<Client, Error> {
        let (membership, secrets) = (Arc::new(self.founded.membership.clone()), self.founded.clients[which].clone());
        let mut client = Client::start(membership, secrets, &Self::options())?;
        client.connected(self.replicas.len()).await;
        Ok(client)
    }

    /// One of D-Prophecy.
    pub async fn prophet(&self, which: usize) -> Result<direct::Client, Error> {
        let (membership, secrets) = (Arc::new(self.founded.membership.clone()), self.founded.clients[which].clone());
        let mut client = direct::Client::start(membership, secrets, &Self::options())?;
        client.connected(self.replicas.len()).await;
        Ok(client)
    }

    /// A sketcher before the group, which is the client of this number; it waits as long as others do.
    pub async fn sketcher(&self, which: usize) -> Result<Proxy, Error> {
        let (membership, client) = (Arc::new(self.founded.membership.clone()), self.founded.clients[which].clone());
        let group = BftGroup { membership, client, last_nonce: 0, service: Service::Keys };
        let Options { give_up, .. } = Self::options();
        let site = Site { allowance: None, patience: give_up, give_up, ..Site::of_group(group)? };
        let config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), vec![site]);
        // Its clients say nothing while others are measured.
        Proxy::start(Config { slow_client: PATIENT, ..config }).await
    }

    /// Stops all replicas.
    pub async fn stop(self) {
        drop(self._doors);
        futures::future::join_all(self.replicas.into_iter().map(Replica::stop)).await;
    }
}
