//! Frames over TLS: whom both ends believe.

use super::*;
use std::path::Path;
use tidings_base::Wall;
use tidings_client::Tls;
use tidings_node::config::Member;
use tidings_node::{Clock, pki};

fn members() -> [Member; 3] {
    [1, 2, 3].map(|node| Member { node, address: format!("127.0.0.1:740{node}") })
}

fn wall() -> Wall {
    SystemClock.now().wall
}

/// A node with certificates, its directory, and the operator's key.
async fn encrypted() -> (ScriptedNode, tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let made = pki::init(dir.path(), &members(), wall()).unwrap();
    let mut config = Config::load(dir.path().join("node-1/node.toml")).unwrap();
    config.listen.set_port(0);
    (ScriptedNode::start(config).await, dir, made.operator_key)
}

fn trusting(node: &ScriptedNode, dir: &Path) -> ClientConfig {
    let mut config = node.client_config();
    let ca = std::fs::read(dir.join("ca.pem")).unwrap();
    config.tls = Some(Tls { ca, identity: None, server_name: None });
    config
}

fn raft(from: u64) -> Body {
    Body::Raft(v1::RaftMessage { group: 1, from, body: None, cluster: 0 })
}

#[tokio::test]
async fn a_certificate_of_the_cluster_opens_replication_and_a_key_does_not() {
    let (node, dir, operator) = encrypted().await;
    let mut config = trusting(&node, dir.path());
    config.credential = Some(operator);
    let client = Client::connect(config).await.unwrap();
    client.call(get("x")).await.unwrap();
    assert_eq!(client.call(raft(2)).await.unwrap_err().code, "control.forbidden");

    let mut config = trusting(&node, dir.path());
    let read = |file: &str| std::fs::read(dir.path().join("node-2").join(file)).unwrap();
    if let Some(tls) = &mut config.tls {
        tls.identity = Some((read("node.pem"), read("node.key")));
    }
    let peer = Client::connect(config).await.unwrap();
    peer.call(raft(2)).await.unwrap();
    assert_eq!(peer.call(raft(3)).await.unwrap_err().code, "control.forbidden", "it votes for itself alone");
}

#[tokio::test]
async fn servers_that_cannot_be_trusted_are_not_spoken_to() {
    let (node, dir, _) = encrypted().await;
    let stranger = tempfile::tempdir().unwrap();
    pki::init(stranger.path(), &members(), wall()).unwrap();
    let error = Client::connect(trusting(&node, stranger.path())).await.unwrap_err();
    assert_eq!(error.code, "client.unreachable");
    assert!(error.message.to_lowercase().contains("certificate"), "{error}");
    // Without a CA nobody is trusted, and a plain client gets nowhere.
    assert_eq!(Client::connect(node.client_config()).await.unwrap_err().code, "client.bad_tls");
    let plain = client_config([format!("http://{}", node.authority())]);
    assert_eq!(Client::connect(plain).await.unwrap_err().class, Class::Unreachable);
    // A client that names no credential is told so.
    assert_eq!(Client::connect(trusting(&node, dir.path())).await.unwrap_err().code, "control.unauthenticated");
}

#[tokio::test]
async fn a_redirect_does_not_lead_out_of_the_encryption() {
    let (node, dir, operator) = encrypted().await;
    let plain = start().await;
    *node.script.redirect.lock() = Some(plain.node.url());
    let mut config = trusting(&node, dir.path());
    config.credential = Some(operator);
    let client = Client::connect(config).await.unwrap();
    let request = tidings_client::Request::new(get("redirect")).within(Duration::from_millis(300));
    client.call(request).await.unwrap_err();
    assert!(node.script.begun.load(Ordering::SeqCst) > 0);
    assert_eq!(plain.script.begun.load(Ordering::SeqCst), 0);
    assert_eq!(plain.node.connections(), 0);
}
