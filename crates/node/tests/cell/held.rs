//! What a held KeepAlive costs. Not a test: it prints a figure.

use super::{Nodes, Raw, until};
use std::time::Duration;
use tidings_client::{Client, ClientConfig, Request, Retry};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Body, v1};

const CONNECTIONS: usize = 8;
const EACH: usize = 500;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1_024
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints what a held KeepAlive costs at both ends together"]
async fn what_a_held_keep_alive_costs() {
    let nodes = Nodes::found(1).await;
    let mut sessions = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Client::new(ClientConfig::new([nodes.url(0)])).unwrap();
        let begun = futures::future::join_all((0..EACH).map(|_| Raw::start(client.clone()))).await;
        sessions.extend(begun);
    }
    let before = resident_bytes();
    let held: Vec<_> = sessions
        .iter()
        .map(|session| {
            let keep = Message::KeepAlive(v1::KeepAlive { link: session.link, ack: None });
            let keep = Request::new(Body::Cell(session.message(0, keep)));
            let client = session.client.clone();
            tokio::spawn(async move { client.call(keep.within(super::STUCK).retry(Retry::Never)).await.is_ok() })
        })
        .collect();
    // They are held for seconds; after one of them all have arrived.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = resident_bytes();
    let each = (after.saturating_sub(before)) / (CONNECTIONS * EACH) as u64;
    println!("{each} bytes for each held KeepAlive, at client, node and master together");
    for held in held {
        until("it is answered", async || held.is_finished().then_some(())).await;
    }
}
