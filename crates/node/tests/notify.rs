//! Notify on a whole node: users hear of what their tokens list.

use crate::support::{Answer, TestIssuer, loopback, request, send_http1};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tidings_node::authorize::Action;
use tidings_node::config::{Grant, Time};
use tidings_node::notify::Hook;
use tidings_node::{Config, Node};
use tidings_wire::Part;
use tokio::net::TcpStream;

async fn ask(address: SocketAddr, token: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    send_http1(stream, request(method, path, Some(token), body)).await
}

/// A whole node whose users are limited by the claims of their tokens.
async fn start(issuer: &TestIssuer, data: &std::path::Path) -> Node {
    let mut config = Config { data: data.to_owned(), ..loopback() };
    config.auth.issuers = vec![issuer.config("shop", &[Grant { part: Part::Notify, action: Action::Read }])];
    (config.placement.session, config.placement.fail_over) = (Time::seconds(1), Time::millis(500));
    (config.placement.round_trip, config.notify.lease) = (Time::millis(100), Time::millis(2_500));
    config.notify.renew = Time::millis(400);
    config.notify.hooks.insert("shop".into(), Hook { claims: true, ..Hook::default() });
    Node::start(config).await.expect("the node starts")
}

/// Registers objects by a channel of one's own, as a client of this nonce; how each ended, once all have.
async fn statuses(address: SocketAddr, nonce: u64, token: &str, objects: &[&str]) -> Vec<(String, Value)> {
    let opened = ask(address, token, Method::POST, "/v1/notify-channels/shop", None).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
    let path = format!("/v1/notify-channels/shop/{}", opened.json()["channel"].as_str().unwrap());
    let hello = json!({ "hello": { "nonce": nonce.to_string() }, "contact": "1" });
    assert_eq!(ask(address, token, Method::POST, &path, Some(hello)).await.status, 204);
    let mut found: Vec<(String, Value)> = Vec::new();
    let told = async {
        let mut said = false;
        while found.len() < objects.len() {
            let polled = ask(address, token, Method::GET, &format!("{path}?wait_ms=1000"), None).await;
            for down in polled.json()["downs"].as_array().unwrap() {
                if let (Some(grant), false) = (down["grant"]["token"].as_str(), said) {
                    said = true;
                    let change = |name: &&str| json!({ "register": { "object": STANDARD.encode(name) } });
                    let changes: Vec<Value> = objects.iter().map(change).collect();
                    let (latest, contact) = (objects.len().to_string(), "1");
                    let up = json!({ "token": grant, "contact": contact, "latest": latest, "first": "1", "changes": changes });
                    assert_eq!(ask(address, token, Method::POST, &path, Some(up)).await.status, 204);
                }
                for status in down["statuses"].as_array().into_iter().flatten() {
                    let name = STANDARD.decode(status["object"].as_str().unwrap()).unwrap();
                    let how = if status["failure"].is_null() { &status["registered"] } else { &status["failure"] };
                    found.push((String::from_utf8(name).unwrap(), how.clone()));
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("all are answered");
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn users_register_what_their_tokens_list_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
    let node = start(&issuer, &dir.path().join("data")).await;
    let with = |listed: Value| {
        let mut claims = issuer.claims();
        claims["notify"] = listed;
        issuer.sign(&claims)
    };
    let refused = json!("REGISTRATION_FAILURE_PERMANENT");
    let found = statuses(node.address(), 1, &with(json!(["inbox/ann/*"])), &["inbox/ann/1", "inbox/bob/1"]).await;
    assert_eq!(found, [("inbox/ann/1".to_owned(), json!(true)), ("inbox/bob/1".to_owned(), refused.clone())]);
    // A claim that is no list allows nothing, nor does a token without one.
    for (nonce, token) in [(2, with(json!("*"))), (3, issuer.sign(&issuer.claims()))] {
        assert_eq!(statuses(node.address(), nonce, &token, &["x"]).await, [("x".to_owned(), refused.clone())]);
    }
    node.shutdown().await.unwrap();
}
