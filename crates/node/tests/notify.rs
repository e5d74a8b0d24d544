//! Notify on a whole node: users hear of what their tokens list; bad channels, foreign tokens and failing rows.

mod lossy;
mod troubles;

use crate::support::{Answer, TestIssuer, loopback, request, send_http1};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tidings_client::{Client, ClientConfig};
use tidings_node::authorize::Action;
use tidings_node::config::{Grant, Time};
use tidings_node::notify::Hook;
use tidings_node::{Config, Node};
use tidings_wire::{Body, Part, v1};
use tokio::net::TcpStream;

async fn ask(address: SocketAddr, token: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    send_http1(stream, request(method, path, Some(token), body)).await
}

/// The configuration of a whole node whose ranges find their owners soon.
fn fast(data: &Path) -> Config {
    let mut config = Config { data: data.to_owned(), ..loopback() };
    (config.placement.session, config.placement.fail_over) = (Time::seconds(1), Time::millis(500));
    (config.placement.round_trip, config.notify.lease) = (Time::millis(100), Time::millis(2_500));
    config.notify.renew = Time::millis(400);
    config
}

/// A whole node whose users are limited by the claims of their tokens.
async fn start(issuer: &TestIssuer, data: &Path) -> Node {
    let mut config = fast(data);
    config.auth.issuers = vec![issuer.config("shop", &[Grant { part: Part::Notify, action: Action::Read }])];
    config.notify.hooks.insert("shop".into(), Hook { claims: true, ..Hook::default() });
    Node::start(config).await.expect("the node starts")
}

/// How long a call may take: machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the application `shop`, unless it is there.
async fn make_shop(node: &Node) {
    let create = v1::admin_message::Message::AppCreate(v1::AppCreate { app: "shop".into() });
    let body = Body::Admin(v1::AdminMessage { message: Some(create) });
    let operator = Client::connect(ClientConfig::in_process(node.door())).await.expect("the door is open");
    if let Err(error) = operator.call(body).await {
        assert_eq!(error.code, "admin.app_exists");
    }
}

/// A client of the process that runs the node, in the application `shop`.
async fn publishing(node: &Node) -> Client {
    make_shop(node).await;
    let app = Some("shop".into());
    let config = ClientConfig { app, deadline: PATIENCE, ..ClientConfig::in_process(node.door()) };
    Client::connect(config).await.expect("the door is open")
}

/// Opens a channel; its path. A node that has just started does not know for a moment that it is a member.
async fn opened(address: SocketAddr, token: &str) -> String {
    let (open, begin) = ("/v1/notify-channels/shop", Instant::now());
    let mut opened = ask(address, token, Method::POST, open, None).await;
    while opened.status == 503 && begin.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
        opened = ask(address, token, Method::POST, open, None).await;
    }
    assert_eq!(opened.status, 201, "{}", opened.text());
    format!("/v1/notify-channels/shop/{}", opened.json()["channel"].as_str().unwrap())
}

/// Begins a session by a channel; the token that it is granted.
async fn token_of(address: SocketAddr, token: &str, path: &str, hello: Value) -> String {
    let up = json!({ "hello": hello, "contact": "1" });
    assert_eq!(ask(address, token, Method::POST, path, Some(up)).await.status, 204);
    let granted = async {
        loop {
            let polled = ask(address, token, Method::GET, &format!("{path}?wait_ms=1000"), None).await.json();
            let granted = |down: &Value| down["grant"]["token"].as_str().map(str::to_owned);
            if let Some(token) = polled["downs"].as_array().unwrap().iter().find_map(granted) {
                return token;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), granted).await.expect("a token is granted")
}

/// Registers objects by a channel of one's own, as a client of this nonce; how each ended, once all have.
async fn statuses(address: SocketAddr, nonce: u64, token: &str, objects: &[&str]) -> Vec<(String, Value)> {
    let path = opened(address, token).await;
    let grant = token_of(address, token, &path, json!({ "nonce": nonce.to_string() })).await;
    let change = |name: &&str| json!({ "register": { "object": STANDARD.encode(name) } });
    let changes: Vec<Value> = objects.iter().map(change).collect();
    let latest = objects.len().to_string();
    let up = json!({ "token": grant, "contact": "1", "latest": latest, "first": "1", "changes": changes });
    assert_eq!(ask(address, token, Method::POST, &path, Some(up)).await.status, 204);
    let mut found: Vec<(String, Value)> = Vec::new();
    let told = async {
        while found.len() < objects.len() {
            let polled = ask(address, token, Method::GET, &format!("{path}?wait_ms=1000"), None).await.json();
            let downs = polled["downs"].as_array().unwrap();
            for status in downs.iter().flat_map(|down| down["statuses"].as_array().into_iter().flatten()) {
                let name = STANDARD.decode(status["object"].as_str().unwrap()).unwrap();
                let how = if status["failure"].is_null() { &status["registered"] } else { &status["failure"] };
                found.push((String::from_utf8(name).unwrap(), how.clone()));
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
