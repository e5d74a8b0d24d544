//! Nodes that are members of several: how they enter, and what they say of a majority.

use crate::ports::free_address;
use crate::support::{request, send_http1};
use http::Method;
use std::path::Path;
use std::time::Duration;
use tidings_node::config::{Entry, Member};
use tidings_node::{Config, Node};
use tokio::net::TcpStream;

/// How often a condition is looked at, ten milliseconds apart: far more than it takes.
const LOOKS: usize = 2_000;

/// The configurations of three members on loopback, each with a directory of its own.
fn three(dir: &Path) -> Vec<Config> {
    let addresses = [1, 2, 3].map(|_| free_address());
    let members: Vec<Member> =
        (1..).zip(addresses).map(|(node, address)| Member { node, address: address.to_string() }).collect();
    let config = |(node, listen)| {
        let data = dir.join(format!("data-{node}"));
        Config { node, members: members.clone(), ..Config::embedded(&data, listen) }
    };
    (1..).zip(addresses).map(config).collect()
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..LOOKS {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}");
}

async fn leads(node: &Node) -> bool {
    let stream = TcpStream::connect(node.address()).await.unwrap();
    let status = send_http1(stream, request(Method::GET, "/v1/admin/status", None, None)).await.json();
    status["groups"][0]["role"] == "leader"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_several_with_nothing_does_not_start_unless_it_says_how() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = three(dir.path()).swap_remove(0);
    let error = Node::start(config.clone()).await.err().expect("it must not start");
    assert_eq!(error.code, "node.empty_member");
    assert!(error.hint.contains("--found") && error.hint.contains("--join"), "{}", error.hint);
    config.entry = Some(Entry::Found);
    Node::start(config.clone()).await.unwrap().shutdown().await.unwrap();
    // It has a log now, and nothing more to say.
    config.entry = None;
    Node::start(config).await.unwrap().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_majority_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = Vec::new();
    for config in three(dir.path()) {
        nodes.push(Node::start(Config { entry: Some(Entry::Found), ..config }).await.unwrap());
    }
    until("all are ready", async || nodes.iter().all(|node| node.ready().is_ok())).await;
    let mut leader = None;
    until("one leads", async || {
        for (place, node) in nodes.iter().enumerate() {
            if leads(node).await {
                leader = Some(place);
            }
        }
        leader.is_some()
    })
    .await;
    let leader = nodes.swap_remove(leader.unwrap());
    for other in nodes {
        other.shutdown().await.unwrap();
    }
    until("the leader without the others is not ready", async || leader.ready().is_err()).await;
    assert_eq!(leader.ready().unwrap_err().code, "node.not_ready");
    leader.shutdown().await.unwrap();
}
