//! Somebody else's token, and rows that fail: those whom it concerns hear so, and everybody else hears as before.

use super::{PATIENCE, ask, fast, make_shop, opened, publishing, start, token_of};
use crate::support::TestIssuer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tidings_client::notify::{Event, Events, Listener, ListenerOptions, Publication, publish};
use tidings_client::{Client, ClientConfig};
use tidings_node::Node;
use tidings_node::hindrance::Hindrance;
use tidings_notify::names::object_hash;
use tidings_notify::rows::MATCHER;
use tidings_store::faulty::{Fault, Plan, Scope};

/// Polls a channel until `pick` finds something in a message.
async fn polled<T>(address: SocketAddr, token: &str, path: &str, pick: impl Fn(&Value) -> Option<T>) -> T {
    let found = async {
        loop {
            let polled = ask(address, token, Method::GET, &format!("{path}?wait_ms=1000"), None).await;
            if let Some(found) = polled.json()["downs"].as_array().unwrap().iter().find_map(&pick) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("it is told")
}

/// F8: the principal of the connection must be the token's.
#[tokio::test(flavor = "multi_thread")]
async fn another_clients_token_buys_nothing_and_costs_it_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
    let node = start(&issuer, &dir.path().join("data")).await;
    let address = node.address();
    let user = |name: &str| {
        let mut claims = issuer.claims();
        (claims["sub"], claims["notify"]) = (json!(name), json!(["*"]));
        issuer.sign(&claims)
    };
    let (ann, bob) = (user("ann"), user("bob"));
    let (anns, bobs) = (opened(address, &ann).await, opened(address, &bob).await);
    let token = token_of(address, &ann, &anns, json!({ "nonce": "1" })).await;
    let object = STANDARD.encode("inbox");
    let register = json!([{ "register": { "object": object } }]);
    let up = json!({ "token": token, "contact": "1", "latest": "1", "first": "1", "changes": register });
    assert_eq!(ask(address, &ann, Method::POST, &anns, Some(up)).await.status, 204);
    let registered = |down: &Value| (down["statuses"][0]["registered"] == true).then_some(());
    polled(address, &ann, &anns, registered).await;
    // Bob takes it away, he thinks.
    let stolen = json!([{ "unregister": object }]);
    let up = json!({ "token": token, "contact": "9", "latest": "2", "first": "2", "changes": stolen });
    assert_eq!(ask(address, &bob, Method::POST, &bobs, Some(up)).await.status, 204);
    let refused = polled(address, &bob, &bobs, |down| down["refusal"]["reason"].as_str().map(str::to_owned)).await;
    assert_eq!(refused, "NOTIFY_REFUSED_BAD_TOKEN");
    // With it as what he kept he is somebody new.
    let other = token_of(address, &bob, &bobs, json!({ "nonce": "2", "previous": token })).await;
    assert_ne!(other, token);
    publish(&publishing(&node).await, [Publication::new("inbox", 7)]).await.unwrap();
    let version =
        |down: &Value| down["notifications"].as_array()?.iter().find_map(|n| n["version"].as_str()).map(str::to_owned);
    assert_eq!(polled(address, &ann, &anns, version).await, "7");
    node.shutdown().await.unwrap();
}

/// A part of the ring whose rows fail ends here: an eighth.
const EIGHTH: u64 = 1 << 61;

/// An object whose rows fail, or one whose do not.
fn object(fails: bool) -> Bytes {
    let name = (0..).map(|number| format!("object-{number}"));
    name.map(Bytes::from).find(|name| (object_hash("shop", name).0 < EIGHTH) == fails).expect("there is one")
}

/// A client of another process, as far as the node can tell.
async fn connected(node: &Node) -> Client {
    make_shop(node).await;
    let (app, url) = (Some("shop".into()), format!("http://{}", node.address()));
    let config = ClientConfig { app, deadline: PATIENCE, ..ClientConfig::new([url]) };
    Client::connect(config).await.expect("the node is there")
}

async fn hears(events: &mut Events, listener: &Listener, objects: &[&Bytes], wanted: (&Bytes, u64)) {
    let heard = async {
        while let Some(event) = events.next().await {
            match event {
                Event::Reissue => {
                    objects.iter().for_each(|object| listener.register((*object).clone(), 0));
                    listener.reissued();
                }
                Event::Notify(news) => {
                    news.ack();
                    if (&news.object, news.version) == wanted {
                        return;
                    }
                }
                Event::Unknown(unknown) => unknown.ack(),
                _ => {}
            }
        }
        panic!("the listener ended");
    };
    tokio::time::timeout(Duration::from_secs(60), heard).await.unwrap_or_else(|_| panic!("{wanted:?} is heard"));
}

/// F11: what cannot be stored waits in scratch, and holds up nothing else; nothing of it is lost.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_fail_hold_up_nobody_else_and_what_was_published_comes_once_they_do_not() {
    let dir = tempfile::tempdir().unwrap();
    // Under which rows lie in a directory that is new.
    let row = |at: u64| Bytes::from([1u64.to_be_bytes(), at.to_be_bytes()].concat());
    let groups = Bytes::from_static(MATCHER)..Bytes::from([MATCHER, &[0]].concat());
    let rows = Plan::default().rule(Scope::Rows { groups, rows: row(0)..row(EIGHTH) }, Fault::Fail, 1);
    let sign = dir.path().join("rows-fail");
    let hindrance = Hindrance { rows, rows_while: Some(sign.clone()), ..Hindrance::default() };
    let node = Node::start_hindered(fast(dir.path()), hindrance).await.unwrap();
    let (bad, good) = (object(true), object(false));
    let client = connected(&node).await;
    // Once it has begun.
    publish(&client, [Publication::new("another", 1)]).await.unwrap();
    std::fs::write(&sign, "").unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (listener, mut events) = Listener::start(client.clone(), ListenerOptions::default()).unwrap();
    for version in 1..=10 {
        // It is durable, though nobody can be told.
        publish(&client, [Publication::new(bad.clone(), 100 + version)]).await.unwrap();
        publish(&client, [Publication::new(good.clone(), version)]).await.unwrap();
        hears(&mut events, &listener, &[&bad, &good], (&good, version)).await;
    }
    drop((listener, events, client));
    node.shutdown().await.unwrap();
    let node = Node::start(fast(dir.path())).await.unwrap();
    let (listener, mut events) = Listener::start(connected(&node).await, ListenerOptions::default()).unwrap();
    hears(&mut events, &listener, &[&bad], (&bad, 110)).await;
    drop((listener, events));
    node.shutdown().await.unwrap();
}
