//! Replicas with their doors and clients over TCP, on the model of the order: it loses commands, orders them twice and delivers
//! blocks again.

use crate::town::{client, group, put, read, until, written};
use bytes::Bytes;
use futures::FutureExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;
use tidings_base::Seeded;
use tidings_bft::kv::KeyValue;
use tidings_bft::membership::Founded;
use tidings_bft::seat::Seat;
use tidings_bft::server::Server;
use tidings_bft::sin::Sin;
use tidings_bft::snapshot::Shelf;
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::Ordering;
use tidings_sketch::replica::model::Model;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Four replicas, and a task that orders for them. Replicas at or above `held` are delivered nothing.
struct Modelled {
    founded: Founded,
    seats: Vec<Arc<Seat<KeyValue>>>,
    servers: Vec<Option<Server>>,
    held: Arc<AtomicUsize>,
    task: JoinHandle<()>,
    _directories: Vec<TempDir>,
}

impl Drop for Modelled {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn start(seed: u64, sins: [Option<Sin>; 4]) -> Modelled {
    let (founded, directories) = (group(), [(); 4].map(|()| tempfile::tempdir().unwrap()));
    let membership = Arc::new(founded.membership.clone());
    let (mut seats, mut servers) = (Vec::new(), Vec::new());
    for ((directory, secrets), (sin, member)) in
        directories.iter().zip(&founded.replicas).zip(sins.into_iter().zip(membership.replicas()))
    {
        let shelf = Shelf::open(directory.path()).unwrap();
        let seat = Seat::open(membership.clone(), secrets.clone(), true, shelf, KeyValue::default(), sin).unwrap();
        let seat = Arc::new(seat);
        servers.push(Some(Server::start(member.clients, seat.clone()).await.unwrap()));
        seats.push(seat);
    }
    let held = Arc::new(AtomicUsize::new(4));
    let task = tokio::spawn(order(Model::new(Seeded::new(seed), 4), seats.clone(), held.clone()));
    Modelled { founded, seats, servers, held, task, _directories: directories.into() }
}

/// Hands in what waits at each replica, orders, and delivers.
async fn order(mut model: Model, seats: Vec<Arc<Seat<KeyValue>>>, held: Arc<AtomicUsize>) {
    loop {
        for (at, seat) in (0u16..).map(ReplicaId).zip(&seats) {
            let waiting = seat.pool.pick(&BTreeSet::new(), 1 << 20);
            waiting.into_iter().for_each(|signed| model.submit(at, signed.command));
        }
        model.work();
        for (at, seat) in (0u16..).map(ReplicaId).zip(&seats).take(held.load(Relaxed)) {
            while let Some(block) = model.next(at) {
                seat.execute(&block).unwrap();
                model.executed(at, seat.height());
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn commands_are_executed_once_and_answered_by_the_group() {
    let town = start(1, [None; 4]).await;
    let client = client(&town.founded, 0, 4).await;
    let calls = (0..40).map(|number| client.call(put("many", &number.to_string())).boxed());
    let answered = futures::future::try_join_all(calls).await.unwrap();
    let places: BTreeSet<_> = answered.iter().map(|answered| answered.sigma).collect();
    assert_eq!(places.len(), 40, "each has a place of its own");
    written(&client, "a", "1").await;
    assert_eq!(read(&client, "a").await.0, Some(Bytes::from_static(b"1")));
    assert_eq!(read(&client, "b").await.0, None);
    assert_eq!(client.differed(), [0; 4]);
}

#[tokio::test]
async fn one_liar_is_borne_whatever_it_does() {
    for sin in [Sin::Forger, Sin::Mute] {
        let town = start(2, [None, Some(sin), None, None]).await;
        let client = client(&town.founded, 0, 4).await;
        for number in 0..5 {
            written(&client, "a", &number.to_string()).await;
            assert_eq!(read(&client, "a").await.0, Some(Bytes::from(number.to_string())), "{sin:?}");
        }
        let differed = client.differed();
        assert!([0, 2, 3].into_iter().all(|at| differed[at] == 0), "{sin:?}: {differed:?}");
        assert_eq!(differed[1] > 0, sin == Sin::Forger, "{differed:?}");
    }
}

#[tokio::test]
async fn a_read_that_too_few_agree_on_is_ordered() {
    let mut town = start(3, [None; 4]).await;
    let client = client(&town.founded, 0, 4).await;
    written(&client, "a", "1").await;
    until("all have executed it", || town.seats.iter().all(|seat| seat.height() == town.seats[0].height())).await;
    assert_eq!(read(&client, "a").await, (Some(Bytes::from_static(b"1")), true), "all say the same");
    // Two of four are gone: no 2f + 1 are left for anything.
    town.servers[3] = None;
    town.servers[2] = None;
    let (_, ended) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            let address = town.founded.membership.replicas()[2].clients;
            town.servers[2] = Some(Server::start(address, town.seats[2].clone()).await.unwrap());
        },
        read(&client, "a")
    );
    assert_eq!(ended, (Some(Bytes::from_static(b"1")), false), "through the order, once three are there again");
}

#[tokio::test]
async fn two_clients_do_not_disturb_one_another() {
    let town = start(4, [None; 4]).await;
    let (one, two) = (client(&town.founded, 0, 4).await, client(&town.founded, 1, 4).await);
    // Both begin with the same nonces.
    for number in 0..10 {
        let value = number.to_string();
        tokio::join!(written(&one, "one", &value), written(&two, "two", &value));
    }
    assert_eq!(read(&one, "two").await.0, Some(Bytes::from_static(b"9")));
    let status = two.status(ReplicaId(1), Duration::from_secs(5)).await.unwrap();
    assert!(status.votes && status.height > 0 && status.group == town.founded.membership.number());
}

#[tokio::test]
async fn what_is_behind_is_not_waited_for() {
    let town = start(5, [None; 4]).await;
    let client = client(&town.founded, 0, 4).await;
    town.held.store(3, Relaxed);
    for number in 0..5 {
        written(&client, "a", &number.to_string()).await;
    }
    let behind = town.seats[3].height();
    assert!(behind < town.seats[0].height());
    town.held.store(4, Relaxed);
    until("the last has caught up", || town.seats[3].height() >= town.seats[0].height()).await;
    assert_eq!(town.seats[3].service(), town.seats[0].service());
}

#[tokio::test]
async fn nonsense_at_the_door_is_shown_out_and_disturbs_nobody() {
    let town = start(6, [None; 4]).await;
    let address = town.founded.membership.replicas()[0].clients;
    for nonsense in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0, 0, 0, 1, 99], &[255; 8]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(nonsense).await.unwrap();
        let shown_out = tokio::time::timeout(Duration::from_secs(30), stream.read_u8()).await;
        assert!(shown_out.expect("the connection ends").is_err(), "without an answer");
    }
    written(&client(&town.founded, 0, 4).await, "a", "1").await;
}
