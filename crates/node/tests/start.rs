//! What keeps a node from starting, and what it says then.

use crate::support::{Answer, Server, loopback, request, send_http1};
use http::Method;
use serde_json::json;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use tidings_base::{Error, Wall};
use tidings_node::config::{Member, Tls};
use tidings_node::{Config, Node, pki};

async fn fails(config: Config) -> Error {
    match Node::start(config).await {
        Ok(_) => panic!("this node must not start"),
        Err(error) => error,
    }
}

fn embedded(data: &std::path::Path) -> Config {
    Config::embedded(data, SocketAddr::from(([127, 0, 0, 1], 0)))
}

#[tokio::test]
async fn a_port_in_use_says_who_to_ask() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = Config { listen: taken.local_addr().unwrap(), ..embedded(&dir.path().join("data")) };
    let port = config.listen.port();
    let error = fails(config).await;
    assert_eq!(error.code, "node.port_in_use");
    assert!(error.hint.contains(&format!("ss -ltnp 'sport = :{port}'")), "{}", error.hint);
}

#[tokio::test]
async fn a_port_in_use_by_another_tidings_says_so() {
    let server = Server::start(loopback()).await;
    let dir = tempfile::tempdir().unwrap();
    let error = fails(Config { listen: server.address(), ..embedded(&dir.path().join("data")) }).await;
    assert!(error.message.contains("another Tidings"), "{error}");
    assert!(error.hint.contains("tidings status"), "{}", error.hint);
}

#[tokio::test]
async fn an_address_that_is_not_ours_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let listen = "192.0.2.1:7400".parse().unwrap();
    let config = Config { listen, insecure_listen: true, ..embedded(&dir.path().join("data")) };
    let error = fails(config).await;
    assert_eq!(error.code, "node.cannot_listen");
    assert!(error.message.contains("192.0.2.1:7400"), "{error}");
}

#[tokio::test]
async fn a_locked_data_directory_is_named_and_free_again_after_a_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let first = Node::start(embedded(&data)).await.unwrap();
    let error = fails(embedded(&data)).await;
    assert_eq!(error.code, "node.data_dir_locked");
    assert!(error.message.contains(&std::process::id().to_string()), "{error}");
    first.shutdown().await.unwrap();
    Node::start(embedded(&data)).await.unwrap().shutdown().await.unwrap();
}

/// Sends a request to a node, on a connection of its own.
async fn send(node: &Node, request: http::Request<http_body_util::Full<bytes::Bytes>>) -> Answer {
    send_http1(tokio::net::TcpStream::connect(node.address()).await.unwrap(), request).await
}

async fn ready(data: &std::path::Path) -> Node {
    let node = Node::start(embedded(data)).await.unwrap();
    let mut tries = 0;
    while send(&node, request(Method::GET, "/readyz", None, None)).await.status != 200 {
        tries += 1;
        assert!(tries < 1_000, "the node does not become ready");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    node
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let node = ready(&data).await;
    let created = request(Method::POST, "/v1/admin/apps", None, Some(json!({"app": "shop"})));
    let created = send(&node, created).await.json();
    let key = created["key"].as_str().unwrap();
    let write = json!({"cells": [{"column": "c", "value": "v", "timestamp": 7}]});
    assert_eq!(send(&node, request(Method::PUT, "/v1/store/g/r", Some(key), Some(write))).await.status, 204);
    let entries = json!({"entries": ["a", "b"]});
    let appended = send(&node, request(Method::POST, "/v1/feed/t", Some(key), Some(entries))).await.json();
    assert_eq!(appended, json!({"first": 1, "last": 2}));
    node.shutdown().await.unwrap();

    let node = ready(&data).await;
    let row = send(&node, request(Method::GET, "/v1/store/g/r", Some(key), None)).await.json();
    assert_eq!(row["cells"], json!([{"column": "c", "timestamp": 7, "value": "v"}]));
    let consume = request(Method::POST, "/v1/feed/t/groups/g/consume", Some(key), Some(json!({"limit": 5})));
    assert_eq!(send(&node, consume).await.json()["deliveries"].as_array().unwrap().len(), 2);
    let status = send(&node, request(Method::GET, "/v1/admin/status", None, None)).await.json();
    assert_eq!(
        (status["groups"][0]["role"].as_str(), status["problems"].as_array().unwrap().len()),
        (Some("leader"), 0)
    );
    // The operator without a key sees the application `default`, not this one.
    let other = send(&node, request(Method::GET, "/v1/store/g/r", None, None)).await;
    assert_eq!(other.error(), (404, "store.no_row".into()));
    node.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_data_directory_of_a_newer_version_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(data.join("FORMAT"), "tidings-data 99\n").unwrap();
    let error = fails(embedded(&data)).await;
    assert_eq!(error.code, "node.newer_format");
    assert!(error.message.contains("format 99"), "{error}");
    assert_eq!(fs::read_to_string(data.join("FORMAT")).unwrap(), "tidings-data 99\n");
}

#[tokio::test]
async fn a_data_directory_that_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, PermissionsExt::from_mode(0o770)).unwrap();
    let error = fails(embedded(&data)).await;
    assert_eq!((error.code.as_ref(), error.hint.contains("chmod go-w")), ("node.bad_permissions", true));
}

/// Certificates made at `made`, and the configuration of node 1.
fn certified(dir: &std::path::Path, made: Wall) -> Config {
    let node = Member { node: 1, address: "127.0.0.1:7400".into() };
    pki::init(&dir.join("pki"), &[node], made).unwrap();
    let mut config = Config::load(dir.join("pki/node-1/node.toml")).unwrap();
    config.listen.set_port(0);
    config
}

fn now() -> Wall {
    use tidings_node::{Clock, SystemClock};
    SystemClock.now().wall
}

#[tokio::test]
async fn an_expired_certificate_and_one_of_the_future_are_refused() {
    let four_years = 4 * 365 * 86_400 * 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let error = fails(certified(dir.path(), Wall(now().0 - four_years))).await;
    assert_eq!(error.code, "node.bad_certificate");
    assert!(error.message.contains("node.pem expired at 20"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let error = fails(certified(dir.path(), Wall(now().0 + four_years))).await;
    assert!(error.message.contains("is not valid before"), "{error}");
}

#[tokio::test]
async fn certificate_files_that_do_not_do_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = certified(dir.path(), now());
    let tls = config.tls.clone().unwrap();
    let with = |change: &dyn Fn(&mut Tls)| {
        let mut tls = tls.clone();
        change(&mut tls);
        Config { tls: Some(tls), ..config.clone() }
    };
    let missing = fails(with(&|tls| tls.certificate = "/nonexistent.pem".into())).await;
    assert!(missing.message.contains("/nonexistent.pem"), "{missing}");
    let not_a_key = fails(with(&|tls| tls.key = dir.path().join("pki/operator.key"))).await;
    assert!(not_a_key.message.contains("not a private key"), "{not_a_key}");
    let foreign = fails(with(&|tls| tls.key = dir.path().join("pki/ca.key"))).await;
    assert!(foreign.message.contains("do not fit together"), "{foreign}");
    fs::set_permissions(&tls.key, PermissionsExt::from_mode(0o644)).unwrap();
    let exposed = fails(config.clone()).await;
    assert_eq!((exposed.code.as_ref(), exposed.hint.contains("chmod 600")), ("node.exposed_key", true));
}

#[tokio::test]
async fn keys_of_issuers_that_do_not_do_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = crate::support::TestIssuer::new(dir.path(), "https://a", "k", 1);
    let mut config = embedded(&dir.path().join("data"));
    config.auth.issuers = vec![issuer.config("shop", &[])];
    config.auth.issuers[0].algorithm = jsonwebtoken::Algorithm::ES256;
    let error = fails(config.clone()).await;
    assert!(error.message.contains("has no key for ES256"), "{error}");
    fs::write(config.auth.issuers[0].jwks.as_ref().unwrap(), "{\"keys\":\n7}").unwrap();
    let error = fails(config.clone()).await;
    assert!(error.message.contains(".json:2:"), "{error}");
    config.auth.issuers.clear();
    config.auth.operator_key_hash = Some("secret".into());
    assert_eq!(fails(config).await.code, "node.bad_config");
}
