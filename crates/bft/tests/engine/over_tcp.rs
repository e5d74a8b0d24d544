//! Four replicas on their engines in one process, over TCP: with their doors, and clients.

use crate::town::{client, group, put, read, until, written};
use bytes::Bytes;
use futures::FutureExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidings_bft::engine::replica::{KEPT, Options, Replica};
use tidings_bft::kv::KeyValue;
use tidings_bft::mark;
use tidings_bft::membership::Founded;
use tidings_bft::server::Server;
use tidings_bft::snapshot::EVERY;
use tidings_sketch::ReplicaId;

/// A replica and its door.
struct House {
    replica: Replica<KeyValue>,
    door: Server,
}

impl House {
    fn height(&self) -> u64 {
        self.replica.seat.height()
    }

    async fn leave(self) {
        drop(self.door);
        self.replica.stop().await;
    }
}

struct Town {
    founded: Founded,
    houses: Vec<Option<House>>,
    directories: Vec<TempDir>,
}

impl Town {
    async fn start() -> Town {
        let founded = group();
        let directories: Vec<TempDir> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut town = Town { founded, houses: Vec::new(), directories };
        for directory in &town.directories {
            mark::found(directory.path(), &town.founded.membership).unwrap();
        }
        let houses = futures::future::join_all((0..4).map(|number| town.house(number))).await;
        town.houses = houses.into_iter().map(Some).collect();
        town
    }

    async fn house(&self, number: usize) -> House {
        let options = Options {
            membership: Arc::new(self.founded.membership.clone()),
            secrets: self.founded.replicas[number].clone(),
            directory: self.directories[number].path().to_owned(),
            empty: KeyValue::default(),
            kept: KEPT,
            takes_over: false,
            closes: false,
            sin: None,
        };
        let replica = Replica::start(options).await.unwrap();
        let address = self.founded.membership.replicas()[number].clients;
        let door = Server::start(address, replica.seat.clone()).await.unwrap();
        House { replica, door }
    }

    fn at(&self, number: usize) -> &House {
        self.houses[number].as_ref().unwrap()
    }

    async fn leave(&mut self, number: usize) {
        self.houses[number].take().unwrap().leave().await;
    }

    /// Waits until these replicas hold the same.
    async fn same(&self, numbers: [usize; 2]) {
        let [one, two] = numbers.map(|number| &self.at(number).replica.seat);
        until("both hold the same", || one.service() == two.service() && two.height() + 5 > one.height()).await;
    }

    async fn end(mut self) {
        for house in self.houses.drain(..).flatten() {
            house.leave().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_ordered_and_executed_and_a_replica_that_is_back_catches_up() {
    let mut town = Town::start().await;
    let client = client(&town.founded, 0, 4).await;
    let calls = (0..40).map(|number| client.call(put("many", &number.to_string())).boxed());
    let answered = futures::future::try_join_all(calls).await.unwrap();
    let places: BTreeSet<_> = answered.iter().map(|answered| answered.sigma).collect();
    assert_eq!(places.len(), 40, "each has a place of its own");
    written(&client, "a", "1").await;
    assert_eq!(read(&client, "a").await.0, Some(Bytes::from_static(b"1")));
    town.same([0, 3]).await;

    town.leave(3).await;
    for number in 2..12 {
        written(&client, "a", &number.to_string()).await;
    }
    town.houses[3] = Some(town.house(3).await);
    town.same([0, 3]).await;
    written(&client, "a", "12").await;
    assert_eq!(read(&client, "a").await.0, Some(Bytes::from_static(b"12")));
    let status = client.status(ReplicaId(3), Duration::from_secs(5)).await.unwrap();
    assert!(status.votes, "it has its journal");
    // Without the one that was back, too few would be left.
    town.leave(2).await;
    written(&client, "a", "13").await;
    town.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_disk_takes_a_snapshot_over_and_does_not_vote() {
    let mut town = Town::start().await;
    let client = client(&town.founded, 0, 4).await;
    let mut last = 0;
    while town.at(0).height() <= EVERY + 10 {
        last += 1;
        written(&client, "a", &last.to_string()).await;
    }
    town.leave(3).await;
    town.directories[3] = tempfile::tempdir().unwrap();
    let house = town.house(3).await;
    assert!(house.height() >= EVERY, "it begins with the state of others, not with the first block");
    town.houses[3] = Some(house);
    town.same([0, 3]).await;
    written(&client, "a", "later").await;
    town.same([0, 3]).await;
    let status = client.status(ReplicaId(3), Duration::from_secs(5)).await.unwrap();
    assert!(!status.votes && status.snapshot >= EVERY, "{status:?}");
    assert_eq!(read(&client, "a").await.0, Some(Bytes::from_static(b"later")));

    // Its directory is kept from now on, and it goes on from there, still without a vote.
    town.leave(3).await;
    let house = town.house(3).await;
    town.houses[3] = Some(house);
    written(&client, "a", "last").await;
    town.same([0, 3]).await;
    assert!(!client.status(ReplicaId(3), Duration::from_secs(5)).await.unwrap().votes);
    town.end().await;
}
