//! What a held KeepAlive costs a node. Not a test: it prints a figure.

use super::{Nodes, Raw, ask_bare, until};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidings_client::{Client, ClientConfig, Request, Retry};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Body, v1};

const CONNECTIONS: usize = 8;
const EACH: usize = 500;

/// Says to the process below that it is one.
const SERVES: &str = "TIDINGS_TEST_SERVES";

fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1_024
}

/// A node in a process of its own, until its standard input closes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the other half of the measurement"]
async fn serve_what_is_measured() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let nodes = Nodes::found(1).await;
    println!("\nserving {}", nodes.url(0));
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    closed.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints what a held KeepAlive costs a node"]
async fn what_a_held_keep_alive_costs() {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["cell::held::serve_what_is_measured", "--exact", "--ignored", "--nocapture"])
        .env(SERVES, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let url = said.find_map(|line| line.strip_prefix("serving ").map(str::to_owned)).unwrap();
    let mut sessions = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Client::new(ClientConfig::new([url.clone()])).unwrap();
        sessions.extend(futures::future::join_all((0..EACH).map(|_| Raw::start(client.clone()))).await);
    }
    // Twice: the first time fills what allocators and pools keep.
    for round in ["first", "second"] {
        let before = resident_bytes(server.id());
        let held: Vec<_> = sessions.iter().map(|session| tokio::spawn(keep(session))).collect();
        // They are held for seconds; after some of them all have arrived.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let grown = resident_bytes(server.id()).saturating_sub(before);
        println!("{round}: {} bytes for each of {} held KeepAlives", grown / held.len() as u64, held.len());
        for held in held {
            until("it is answered", async || held.is_finished().then_some(())).await;
        }
    }
    assert!(ask_bare(&sessions[0].client, Message::Keys(v1::CellKeys {})).await.is_ok());
    drop(server.stdin.take());
    server.wait().unwrap();
}

fn keep(session: &Raw) -> impl Future<Output = bool> + Send + use<> {
    let keep = Message::KeepAlive(v1::KeepAlive { link: session.link, ..Default::default() });
    let keep = Request::new(Body::Cell(session.message(0, keep)));
    let client = session.client.clone();
    async move { client.call(keep.within(super::STUCK).retry(Retry::Never)).await.is_ok() }
}
