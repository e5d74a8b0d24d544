//! Every metric of placement is there, and tells what happened.

use super::Pool;
use crate::process::{http_get, turn, until};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::{Error, KeyHash};
use tidings_client::placement::{HandOver, Move, Owner};
use tidings_client::{Client, ClientConfig, Request, Retry};
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Body, v1};

/// What a pool in order counts.
const METRICS: [&str; 14] = [
    "leader",
    "epoch",
    "namespaces",
    "owners",
    "ranges",
    "held_polls",
    "commits_total",
    "grants_total",
    "renewals_total",
    "recalls_total",
    "losses_total",
    "moves_total",
    "races_total",
    "lookup_pushes_total",
];
/// What is above zero only if something is wrong.
const WRONG: [&str; 2] = ["tight_namespaces", "damaged_namespaces"];

fn values(pool: &Pool) -> BTreeMap<String, f64> {
    let (_, text) = http_get(pool.server.address, "/metrics").expect("the node answers");
    let lines = text.lines().filter_map(|line| line.strip_prefix("tidings_placement_")?.split_once(' '));
    lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// Owners that hand nothing over but the word that they did.
#[derive(Clone, Default)]
struct Others(Arc<Mutex<BTreeMap<String, Owner>>>);

impl HandOver for Others {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            // One that has just joined is here a moment later.
            loop {
                let other = self.0.lock().unwrap().get(&to.owner).cloned();
                match other {
                    Some(other) => return other.imported(to.token, to.incarnation),
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
    }
}

/// An owner that can serve nothing says something that crosses what it was told: a race (F5).
fn race(pool: &Pool) {
    pool.runtime.block_on(async {
        let client = Client::connect(ClientConfig::new([pool.server.url()])).await.unwrap();
        let (mut seq, mut epoch) = (0, 0);
        for _ in 0..2 {
            seq += 1;
            let poll = v1::OwnerPoll {
                namespace: "n".into(),
                owner: "crossing".into(),
                address: "crossing:1".into(),
                incarnation: 1,
                nonce: 7,
                seq,
                epoch,
                unhealthy: true,
                ..Default::default()
            };
            let body = Body::Placement(v1::PlacementMessage { message: Some(Message::OwnerPoll(poll)) });
            let answer = client.call(Request::new(body).within(Duration::from_secs(10)).retry(Retry::Redirected)).await;
            let Ok(Body::Placement(v1::PlacementMessage { message: Some(Message::OwnerAnswer(answer)) })) = answer
            else {
                panic!("no answer to an owner: {answer:?}")
            };
            epoch = answer.epoch;
        }
    });
}

/// The cell's files in a backup, one of which names a hash that nobody knows: its namespace cannot be led.
fn damaged(mut backup: Vec<u8>, namespace: &str) -> Vec<u8> {
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|window| window == what).unwrap();
    let file = find(&backup, format!("default%2f{namespace}/meta").as_bytes());
    let hash = file + find(&backup[file..], KeyHash::FUNCTION.as_bytes());
    backup[hash] = b'?';
    // The pieces: 'P' · offset u64 · length u32 · contents · crc32c u32, behind a head of 32 bytes.
    let mut at = 32;
    while backup[at] == b'P' {
        let length = u32::from_be_bytes(backup[at + 9..at + 13].try_into().unwrap());
        let end = at + 13 + length as usize;
        let sum = crc32c::crc32c(&backup[at..end]);
        backup[end..end + 4].copy_from_slice(&sum.to_be_bytes());
        at = end + 4;
    }
    backup
}

#[test]
fn every_metric_tells_what_happened() {
    let _turn = turn();
    let pool = Pool::start();
    pool.create();
    pool.ok(&["create", "other", "--lease", "60s", "--renew", "15s"]);
    let others = Others::default();
    let join = |name: &str| {
        let owner = pool.join_with(name, |options| options.hand_over(others.clone()));
        others.0.lock().unwrap().insert(name.to_owned(), owner.clone());
        owner
    };
    let watching = pool.server.start_command(&["place", "watch", "n", "--json"]);
    // What one hands over moves; what is not handed over is recalled from it, and lost.
    let _one = join("one");
    pool.settled(&["one"]);
    let _two = join("two");
    pool.settled(&["one", "two"]);
    let three = pool.join("three");
    pool.settled(&["one", "three", "two"]);
    pool.run(&["drain", "n", "three", "--wait", "--allow-loss"]);
    drop(three);
    watching.line(1);
    race(&pool);
    let missing = || -> Vec<&str> {
        let values = values(&pool);
        METRICS.into_iter().filter(|name| values.get(*name).is_none_or(|value| *value == 0.0)).collect()
    };
    let mut last = Vec::new();
    until("every metric tells of it", || {
        let now = missing();
        if now != last {
            println!("silent still: {now:?}");
            last.clone_from(&now);
        }
        now.is_empty().then_some(())
    });
    let told = values(&pool);
    let known = [&METRICS[..], &WRONG].concat();
    let unnamed: Vec<&String> = told.keys().filter(|name| !known.contains(&name.as_str())).collect();
    assert_eq!(unnamed, [""; 0], "a metric of which no test knows");
    assert_eq!((told["leader"], WRONG.map(|name| told[name])), (1.0, [0.0, 0.0]));
    what_is_wrong_is_counted(pool);
}

fn what_is_wrong_is_counted(pool: Pool) {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("cell.backup");
    let path = path.to_str().unwrap();
    assert_eq!(pool.server.run(&["cell", "backup", path]).code, 0);
    // Started with the default times of a fail-over, which the short leases do not outlast (F10).
    let pool = pool.restarted("");
    let wrong = |expected: [f64; 2]| {
        until("what is wrong is counted", || {
            let told = values(&pool);
            WRONG.into_iter().zip(expected).all(|(name, value)| told.get(name) == Some(&value)).then_some(())
        });
    };
    wrong([1.0, 0.0]);
    std::fs::write(path, damaged(std::fs::read(path).unwrap(), "other")).unwrap();
    let restored = pool.server.run(&["cell", "restore", path, "--replace", "--yes"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    wrong([1.0, 1.0]);
}
