use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::testing::TestPool;
use tidings_client::placement::{HandOver, Items, Move, Owner, OwnerOptions};

/// Keys that fall on all owners of a small pool.
pub fn keys() -> impl Iterator<Item = String> {
    (0..200).map(|n| format!("key {n}"))
}

/// How many of the keys an owner holds.
pub fn held(owner: &Owner) -> usize {
    keys().filter(|key| owner.check_now(key).is_some()).count()
}

/// How a server of the tests hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Well,
    Fails,
    Hangs,
    Panics,
}

/// Where servers find each other, by name.
pub type Directory = Arc<Mutex<BTreeMap<String, Server>>>;

/// A server with counters.
#[derive(Clone)]
pub struct Server {
    pub owner: Owner,
    pub counters: Items<u64>,
}

struct Copies {
    counters: Items<u64>,
    directory: Directory,
    manner: Manner,
}

impl HandOver for Copies {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.manner {
                Manner::Well => {}
                Manner::Fails => return Err(Error::new("test.fails", Class::Failed, "it cannot")),
                Manner::Hangs => return std::future::pending().await,
                Manner::Panics => panic!("a hand-over that panics, as the test wants it"),
            }
            // A server that has just joined is in the directory a moment later.
            let server = loop {
                let found = self.directory.lock().get(&to.owner).cloned();
                match found {
                    Some(server) => break server,
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            let entries = self.counters.export(to.leased);
            server.owner.receive(&server.counters, to.token, to.incarnation, entries)
        })
    }
}

/// Options for a server that hands over in some manner, and its counters.
pub fn handing_over(pool: &TestPool, name: &str, directory: &Directory, manner: Manner) -> (OwnerOptions, Items<u64>) {
    let counters = Items::new();
    let copies = Copies { counters: counters.clone(), directory: directory.clone(), manner };
    (pool.options(name).items(&counters).hand_over(copies), counters)
}

/// A server that hands over in some manner.
pub async fn server(pool: &TestPool, name: &str, directory: &Directory, manner: Manner) -> Server {
    let (options, counters) = handing_over(pool, name, directory, manner);
    let owner = Owner::join(pool.line(), options).await.unwrap();
    let server = Server { owner, counters };
    directory.lock().insert(name.to_owned(), server.clone());
    server
}

impl Server {
    /// Adds one to a counter.
    pub fn count(&self, key: &str) -> Result<u64, Error> {
        self.owner.with(&self.counters, key, |count| {
            *count.get_or_insert(0) += 1;
            count.unwrap_or_default()
        })
    }
}

pub async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}
