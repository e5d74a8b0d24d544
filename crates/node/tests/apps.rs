//! An application that nobody has made is a mistake, not a new one, whichever way and whatever of it is asked for.

use crate::support::{Answer, TestIssuer, loopback, request, send_http1};
use http::Method;
use serde_json::{Value, json};
use tidings_client::{Carrier, Client, ClientConfig, Request};
use tidings_node::{Config, Node};
use tidings_wire::v1::{cell_message, feed_message, notify_message, placement_message, store_message, tables_message};
use tidings_wire::{Body, v1};
use tokio::net::TcpStream;

/// A request of every part.
fn of_every_part() -> Vec<Body> {
    let key = Some(v1::RowKey { group: "g".into(), row: "r".into() });
    let get = store_message::Message::Get(v1::Get { key, columns: Vec::new() });
    let append = feed_message::Message::Append(v1::Append { topic: "t".into(), ..Default::default() });
    let publication = v1::Publication { object: "o".into(), version: 1, ..Default::default() };
    let publish = notify_message::Message::Publish(v1::Publish { publications: vec![publication] });
    vec![
        Body::Store(v1::StoreMessage { message: Some(get) }),
        Body::Store(v1::StoreMessage {
            message: Some(store_message::Message::Scan(v1::Scan { group: "g".into(), ..Default::default() })),
        }),
        Body::Feed(v1::FeedMessage { message: Some(append) }),
        Body::Cell(v1::CellMessage {
            message: Some(cell_message::Message::Keys(v1::CellKeys {})),
            ..Default::default()
        }),
        Body::Placement(v1::PlacementMessage {
            message: Some(placement_message::Message::NamespaceList(v1::NamespaceList {})),
        }),
        Body::Notify(v1::NotifyMessage { caller: None, message: Some(publish) }),
        Body::Tables(v1::TablesMessage {
            message: Some(tables_message::Message::List(v1::TableList::default())),
            ..Default::default()
        }),
    ]
}

/// One route of every part: method, path with the application or without, body.
fn routes(app: &str) -> Vec<(Method, String, Value)> {
    let owner = json!({ "address": "127.0.0.1:1" });
    let publications = json!({ "publications": [{ "object": "o", "version": 1 }] });
    vec![
        (Method::PUT, "/v1/cell/files/f".into(), json!("x")),
        (Method::GET, "/v1/cell/files".into(), json!(null)),
        (Method::GET, "/v1/cell/locks".into(), json!(null)),
        (Method::PUT, "/v1/placement/n".into(), json!({})),
        (Method::GET, "/v1/placement/n/lookup?key=k".into(), json!(null)),
        (Method::PUT, "/v1/placement/n/owners/o?instance=i".into(), owner),
        (Method::PUT, "/v1/tables/t".into(), json!({})),
        (Method::GET, "/v1/tables/t/watch?predicate=true".into(), json!(null)),
        (Method::GET, "/v1/store/g/r".into(), json!(null)),
        (Method::POST, "/v1/feed/t".into(), json!({ "entries": ["x"] })),
        (Method::POST, format!("/v1/notify/{app}/o"), json!({ "version": 1 })),
        (Method::POST, format!("/v1/notify/{app}"), publications),
        (Method::POST, format!("/v1/notify-channels/{app}"), json!(null)),
    ]
}

async fn http(node: &Node, app: &str, (method, path, body): (Method, String, Value)) -> Answer {
    let mut asked = request(method, &path, None, Some(body).filter(|body| !body.is_null()));
    asked.headers_mut().insert("x-tidings-app", app.parse().unwrap());
    send_http1(TcpStream::connect(node.address()).await.unwrap(), asked).await
}

async fn client(node: &Node, app: &str, carrier: Carrier) -> Client {
    let config = ClientConfig { app: Some(app.into()), carrier, ..ClientConfig::new([node.url()]) };
    Client::connect(config).await.expect("the node is there")
}

/// How a request ends: with an error's code or none. One of several frames is asked for as such.
async fn outcome(client: &Client, body: Body) -> Option<String> {
    let request = Request::new(body);
    let answer = match client.stream(request).await {
        Ok(mut answers) => answers.next().await.unwrap_or_else(|| Err(tidings_wire::error::closed())),
        Err(error) => Err(error),
    };
    answer.err().map(|error| error.code.into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_nobody_made_is_refused_whichever_way_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Config { data: dir.path().join("data"), ..loopback() }).await.unwrap();
    for carrier in [Carrier::Grpc, Carrier::WebSocket] {
        let stranger = client(&node, "shpo", carrier).await;
        for body in of_every_part() {
            let shown = format!("{carrier:?}: {body:?}");
            assert_eq!(outcome(&stranger, body).await.as_deref(), Some("admin.no_app"), "{shown}");
        }
    }
    for route in routes("shpo") {
        let shown = format!("{route:?}");
        let answer = http(&node, "shpo", route).await;
        assert_eq!(answer.error(), (404, "admin.no_app".into()), "{shown}: {}", answer.text());
        // In the words of whoever asks by HTTP.
        assert!(answer.json()["hint"].as_str().unwrap().contains("`POST /v1/admin/apps`"), "{}", answer.text());
    }
    // What is about the cluster is in no application, and the one that nobody needs to name is always there.
    let status = (Method::GET, "/v1/admin/status".into(), json!(null));
    assert_eq!(http(&node, "shpo", status).await.status, 200);
    let put = || (Method::PUT, "/v1/cell/files/f".into(), json!("x"));
    assert_eq!(http(&node, "default", put()).await.status, 201);
    // Made, it is there at once, for those too who asked before.
    let made = (Method::POST, "/v1/admin/apps".into(), json!({ "app": "shpo" }));
    assert_eq!(http(&node, "default", made).await.status, 201);
    assert_eq!(http(&node, "shpo", put()).await.status, 201);
    for carrier in [Carrier::Grpc, Carrier::WebSocket] {
        let client = client(&node, "shpo", carrier).await;
        for body in of_every_part() {
            assert_ne!(outcome(&client, body).await.as_deref(), Some("admin.no_app"));
        }
    }
    node.shutdown().await.unwrap();
}

/// Whose users an issuer vouches for is said by the configuration, which so makes the application.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_the_configuration_names_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
    let mut config = Config { data: dir.path().join("data"), ..loopback() };
    config.auth.issuers = vec![issuer.config("shop", &[])];
    let node = Node::start(config).await.unwrap();
    for (app, code) in [("shop", None), ("shpo", Some("admin.no_app"))] {
        // Whoever runs the node in his own process is its operator.
        let config = ClientConfig { app: Some(app.into()), ..ClientConfig::in_process(node.door()) };
        let client = Client::connect(config).await.unwrap();
        assert_eq!(outcome(&client, of_every_part().remove(0)).await.as_deref(), code);
    }
    node.shutdown().await.unwrap();
}
