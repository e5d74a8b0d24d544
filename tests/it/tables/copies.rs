//! A hot partition is read from copies on other nodes; its owner dies, and nobody goes back in time (R1, R5).

use super::{FAST, create, table};
use crate::cluster::Cluster;
use crate::notify::metric;
use crate::process::{turn, until};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::tables::{Ask, ReadLevel, ReadOptions, Tables, Value};
use tokio::runtime::Runtime;

/// Few reads are many here, so that an unoptimised build reaches them.
const COPIED: &str = "[tables]\ncopy_reads = 20\n";

/// What readers of one node have seen, and whether they go on.
#[derive(Default)]
struct Seen {
    newest: AtomicU64,
    ends: AtomicBool,
}

/// Reads a record again and again at one node, each time at or above what it has seen before.
async fn reads(url: String, seen: Arc<Seen>) {
    let (mut floors, mut newest) = (BTreeMap::new(), 0);
    let tables = Tables::connect(ClientConfig::new([url])).await.expect("it connects");
    let prices = tables.table("prices");
    while !seen.ends.load(Ordering::Relaxed) {
        let options = ReadOptions { level: ReadLevel::Committed, floors: floors.clone(), ..ReadOptions::default() };
        let mut rows = prices.rows(&Ask::default(), &options).expect("it can be asked");
        // While a partition changes hands nobody answers; what is answered counts.
        let Ok(Some(row)) = rows.next().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        assert!(row.version >= newest, "version {} after {newest}", row.version);
        newest = row.version;
        seen.newest.fetch_max(newest, Ordering::Relaxed);
        while let Ok(Some(_)) = rows.next().await {}
        floors = rows.positions().clone();
    }
}

/// Writes until it is told to end; the last version that was acknowledged.
async fn writes(url: String, written: Arc<Seen>) {
    let tables = Tables::connect(ClientConfig::new([url])).await.expect("it connects");
    let prices = tables.table("prices");
    for number in 1.. {
        if written.ends.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(version) = prices.put("apple", [("price", Value::Int(number))]).await {
            written.newest.fetch_max(version, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_hot_partition_is_read_from_copies_and_nobody_goes_back_when_its_owner_dies() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), &format!("{FAST}{COPIED}"));
    create(cluster.node(0), "prices", &[]);
    table(cluster.node(0), &["put", "prices", "apple", &json!({ "price": 0 }).to_string()]);
    let shown = table(cluster.node(1), &["stat", "prices", "--json"]).json();
    let owner = shown["partitions"][0]["owner"].as_str().expect("an owner").to_owned();
    let place = cluster.urls.iter().position(|url| url.contains(&owner)).expect("one of the three");
    let others = [(place + 1) % 3, (place + 2) % 3];

    let runtime = Runtime::new().unwrap();
    let written = Arc::new(Seen::default());
    let writer = runtime.spawn(writes(cluster.urls[others[0]].clone(), written.clone()));
    let seen = others.map(|_| Arc::new(Seen::default()));
    let readers: Vec<_> = others
        .iter()
        .zip(&seen)
        .flat_map(|(at, seen)| [(at, seen); 4])
        .map(|(at, seen)| runtime.spawn(reads(cluster.urls[*at].clone(), seen.clone())))
        .collect();
    let answered = |cluster: &Cluster, at: usize| {
        metric(cluster.node(at), "tidings_tables_copied_reads_total{outcome=\"answered\"}")
    };
    for at in others {
        until("a copy answers", || (answered(&cluster, at) > 50).then_some(()));
        assert_eq!(metric(cluster.node(at), "tidings_tables_copies"), 1);
    }
    assert_eq!(answered(&cluster, place), 0);

    cluster.kill(place);
    let (killed, before) = (written.newest.load(Ordering::Relaxed), others.map(|at| answered(&cluster, at)));
    until("another node serves what is written", || (written.newest.load(Ordering::Relaxed) > killed).then_some(()));
    let later = written.newest.load(Ordering::Relaxed);
    // One of them owns it now. The other one's copy goes on behind the new owner.
    until("a copy answers again", || {
        let newer = seen.iter().all(|seen| seen.newest.load(Ordering::Relaxed) >= later);
        let more = (0..2).any(|n| answered(&cluster, others[n]) > before[n] + 50);
        (newer && more).then_some(())
    });
    for seen in seen.iter().chain([&written]) {
        seen.ends.store(true, Ordering::Relaxed);
    }
    runtime.block_on(async {
        for task in readers.into_iter().chain([writer]) {
            task.await.expect("nobody went back in time");
        }
    });
}
