//! The client library over real sockets, against three nodes whose master is killed.

use super::{Nodes, STUCK};
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::cell::{Cell, Event, Events, Mode, State};
use tokio::time::timeout;

async fn connect(nodes: &Nodes) -> Cell {
    let servers = (0..nodes.configs.len()).map(|at| nodes.url(at));
    Cell::connect(ClientConfig::new(servers)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_a_pause_to_locks_caches_and_watches() {
    let mut nodes = Nodes::found(3).await;
    let (one, two) = (connect(&nodes).await, connect(&nodes).await);
    one.write("/file", "0").await.unwrap();
    let file = two.open("/file").read().events(Events::CONTENTS).await.unwrap();
    let mut watch = file.watch();
    let lockable = one.open("/lock").lock().create_file("").await.unwrap();
    let lock = lockable.acquire(Mode::Exclusive).await.unwrap();
    assert_eq!(file.contents_and_stat().await.unwrap().text(), "0");
    for round in 1..3 {
        let master = nodes.master().await;
        nodes.kill(master).await;
        timeout(STUCK, one.write("/file", round.to_string())).await.expect("stuck after the kill").unwrap();
        // No cache serves what was there before the write returned.
        let read = timeout(STUCK, file.contents_and_stat()).await.expect("stuck in a read").unwrap();
        assert_eq!(read.text(), round.to_string());
        assert_eq!(timeout(STUCK, watch.next()).await.expect("no event"), Some(Event::ContentsChanged));
        assert!(timeout(STUCK, two.check_sequencer(&lock.sequencer())).await.expect("stuck in a check").unwrap());
        nodes.restart(master).await;
        nodes.ready().await;
    }
    assert_eq!((lock.loss(), one.state(), two.state()), (None, State::Active, State::Active));
    lock.release().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cached_read_asks_nobody() {
    let nodes = Nodes::found(1).await;
    let cell = connect(&nodes).await;
    cell.write("/file", "x").await.unwrap();
    let before = cell.observed();
    for _ in 0..1_000 {
        assert_eq!(cell.read("/file").await.unwrap().unwrap().text(), "x");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let after = cell.observed();
    assert!(after.cached - before.cached >= 900, "{after:?}");
    assert!(after.sent - before.sent < 100, "{after:?}");
}
