//! The suite against the state in fjall, reopened from its files.

use async_trait::async_trait;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::agreed::AgreedState;
use tidings_store::MemoryStore;
use tidings_store::faulty::{Faulty, Plan};
use tidings_store::suite::{self, Subject};
use tidings_store_local::{FjallKv, Options};

struct OnDisk {
    dir: tempfile::TempDir,
    made: AtomicU64,
}

struct Made {
    store: MemoryStore<FjallKv>,
    path: PathBuf,
}

impl OnDisk {
    fn new() -> OnDisk {
        OnDisk { dir: tempfile::tempdir().unwrap(), made: AtomicU64::new(0) }
    }
}

fn open(path: PathBuf) -> Made {
    Made { store: MemoryStore::open(FjallKv::open(&path, Options::default()).unwrap()).unwrap(), path }
}

#[async_trait]
impl tidings_store::Calls for Made {
    async fn call(&self, request: tidings_store::Request) -> Result<Vec<tidings_store::Reply>, tidings_base::Error> {
        self.store.call(request).await
    }
}

#[async_trait]
impl Subject for OnDisk {
    type Made = Made;

    async fn fresh(&self) -> Made {
        open(self.dir.path().join(self.made.fetch_add(1, Ordering::Relaxed).to_string()))
    }

    async fn reopen(&self, made: Made) -> Made {
        let Made { store, path } = made;
        store.into_state().flush().unwrap();
        open(path)
    }
}

#[tokio::test(start_paused = true)]
async fn the_state_in_fjall_keeps_the_rules() {
    let subject = OnDisk::new();
    suite::store(&subject).await;
    suite::feed(&subject).await;
    suite::store_and_feed(&subject).await;
}

#[tokio::test(start_paused = true)]
async fn the_state_in_fjall_keeps_the_rules_under_faults() {
    for seed in 0..4 {
        let subject = OnDisk::new();
        let make = move || open(subject.dir.path().join(subject.made.fetch_add(1, Ordering::Relaxed).to_string()));
        let faulty = Faulty::new(make, Plan::rough(), seed);
        suite::store_under_faults(&faulty, seed).await;
        suite::feed_under_faults(&faulty, seed).await;
    }
}
