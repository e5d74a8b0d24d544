//! Tables on a whole node: levels, grants and claims decide who sees and writes what.

mod access;
mod altering;
mod console;
mod pending;
mod served;
mod showing;
mod writing;

use crate::support::{Answer, TestIssuer, request, send_http1, with_operator};
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::tables::{
    Aggregate, Ask, Columns, Event, Key, Table, Tables, Value as Cell, Watch, WatchOptions, Write,
};
use tidings_node::authorize::Action;
use tidings_node::config::{Grant, Time};
use tidings_node::{Config, Node};
use tidings_wire::Part;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Town {
    node: Node,
    address: SocketAddr,
    issuer: TestIssuer,
    operator: String,
    _dir: tempfile::TempDir,
}

impl Town {
    /// A whole node with an operator, whose users of `shop` may use tables.
    async fn start() -> Town {
        Town::start_with(|_| {}).await
    }

    /// The same, otherwise configured.
    async fn start_with(otherwise: impl FnOnce(&mut Config)) -> Town {
        let dir = tempfile::tempdir().unwrap();
        let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
        let (config, operator) = with_operator();
        let mut config = Config { data: dir.path().join("data"), ..config };
        let grants = [Action::Read, Action::Write].map(|action| Grant { part: Part::Tables, action });
        config.auth.issuers = vec![issuer.config("shop", &grants)];
        (config.placement.session, config.placement.fail_over) = (Time::seconds(1), Time::millis(500));
        (config.placement.round_trip, config.notify.lease) = (Time::millis(100), Time::millis(2_500));
        config.notify.renew = Time::millis(400);
        otherwise(&mut config);
        let node = Node::start(config).await.expect("the node starts");
        let address = node.address();
        Town { node, address, issuer, operator, _dir: dir }
    }

    fn user(&self, name: &str) -> String {
        let mut claims = self.issuer.claims();
        claims["sub"] = name.into();
        self.issuer.sign(&claims)
    }

    /// The same, for so many seconds.
    fn user_for(&self, name: &str, seconds: u64) -> String {
        let mut claims = self.issuer.claims();
        let until = claims["exp"].as_u64().unwrap() - 600 + seconds;
        (claims["sub"], claims["exp"]) = (name.into(), until.into());
        self.issuer.sign(&claims)
    }

    async fn ask(&self, credential: &str, method: Method, path: &str, body: Value) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let body = (!body.is_null()).then_some(body);
        send_http1(
            stream,
            request(method, &format!("/v1/{path}"), Some(credential).filter(|shown| !shown.is_empty()), body),
        )
        .await
    }

    /// What a stream of events without a credential begins with, up to its first reset.
    async fn stream(&self, path: &str) -> String {
        let ask = format!("GET /v1/{path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        self.heard(&ask, "event: reset").await
    }

    /// The same of a stream that a body asks for, until it has said something and a line behind it.
    async fn streamed(&self, path: &str, body: &Value, said: &str) -> String {
        let (address, body) = (self.address, body.to_string());
        let length = body.len();
        let head = format!("POST /v1/{path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json");
        self.heard(&format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}"), said).await
    }

    async fn heard(&self, ask: &str, said: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut heard = String::new();
        let hearing = async {
            let mut piece = [0; 4_096];
            while heard.split_once(said).is_none_or(|(_, rest)| !rest.contains("\n\n")) {
                match stream.read(&mut piece).await.unwrap() {
                    0 => break,
                    read => heard.push_str(&String::from_utf8_lossy(&piece[..read])),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), hearing).await.expect("a stream begins");
        heard
    }

    /// The key of a new application.
    async fn app(&self, name: &str) -> String {
        let made = async {
            loop {
                let answer = self.ask(&self.operator, Method::POST, "admin/apps", json!({ "app": name })).await;
                if answer.status == 201 {
                    return answer.json()["key"].as_str().unwrap().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), made).await.expect("an application is made")
    }

    /// Makes a table, as soon as the node can.
    async fn create(&self, key: &str, table: &str, properties: Value) {
        let made = async {
            loop {
                let answer = self.ask(key, Method::PUT, &format!("tables/{table}"), properties.clone()).await;
                if answer.status == 200 {
                    return;
                }
                assert_eq!(answer.status, 503, "{}", answer.text());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), made).await.expect("a table is made");
    }

    async fn count(&self, credential: &str, table: &str) -> Value {
        let count = json!({ "aggregates": [{ "name": "n", "aggregate": "count" }] });
        let answer = self.ask(credential, Method::POST, &format!("tables/{table}/query"), count).await;
        answer.json()["rows"][0]["columns"]["n"].clone()
    }
}

const READ: Method = Method::GET;
const NONE: Value = Value::Null;

#[tokio::test(flavor = "multi_thread")]
async fn levels_grants_and_claims_decide_who_sees_what() {
    let town = Town::start().await;
    let (shop, blog) = (town.app("shop").await, town.app("blog").await);
    let (ann, bob) = (town.user("ann"), town.user("bob"));
    for level in ["public", "app", "user"] {
        town.create(&shop, level, json!({ "level": level })).await;
    }
    // Whoever is authorised at a table's level or higher: another application is nobody in particular.
    for (who, table, status) in [
        (&blog, "shop%2Fpublic", 200),
        (&blog, "shop%2Fapp", 403),
        (&blog, "app", 404),
        (&shop, "public", 200),
        (&shop, "app", 200),
        (&shop, "user", 403),
        (&ann, "public", 200),
        (&ann, "app", 200),
        (&ann, "user", 200),
    ] {
        let answer = town.ask(who, READ, &format!("tables/{table}/records"), NONE).await;
        assert_eq!(answer.status, status, "{table}: {}", answer.text());
    }
    // Users make no tables, and an application drops its own alone.
    let made = town.ask(&ann, Method::PUT, "tables/mine", json!({})).await;
    assert_eq!(made.error(), (403, "tables.applications_only".into()));
    assert_eq!(town.ask(&blog, Method::DELETE, "tables/shop%2Fpublic", NONE).await.error().1, "tables.not_yours");
    assert_eq!(town.ask(&blog, Method::PUT, "tables/shop%2Fx", json!({})).await.error().1, "tables.not_yours");

    // A record for ann alone: for everybody else it is not there, whatever they say of themselves.
    let path = "tables/user/records/letter";
    let put =
        town.ask(&ann, Method::PUT, &format!("{path}?audience=user.sub%20%3D%3D%20%22ann%22"), json!({ "t": 1 })).await;
    assert_eq!(put.status, 200, "{}", put.text());
    assert_eq!(town.ask(&ann, READ, path, NONE).await.json()["writer"], "user:shop/ann");
    let forged = format!("{path}?reader=%7B%22sub%22%3A%22ann%22%7D");
    for hidden in [path, forged.as_str()] {
        assert_eq!(town.ask(&bob, READ, hidden, NONE).await.error(), (404, "tables.no_record".into()));
    }
    assert_eq!((town.count(&ann, "user").await, town.count(&bob, "user").await), (json!(1), json!(0)));
    // R7: he may not replace it, and a conflict does not show it.
    let replaced = town.ask(&bob, Method::PUT, path, json!({ "t": 2 })).await;
    assert!(replaced.status == 403 || replaced.status == 412, "{}", replaced.text());
    let stream = TcpStream::connect(town.address).await.unwrap();
    let mut absent = request(Method::PUT, &format!("/v1/{path}"), Some(&bob), Some(json!({ "t": 2 })));
    absent.headers_mut().insert("if-none-match", "*".parse().unwrap());
    let conflict = send_http1(stream, absent).await;
    assert!(!conflict.text().contains("\"t\""), "{}", conflict.text());
    assert_eq!(town.ask(&ann, READ, path, NONE).await.json()["columns"], json!({ "t": 1 }));
    town.node.shutdown().await.unwrap();
}

/// A live query as whoever folds its events has it.
struct Folded {
    watch: Watch,
    rows: BTreeSet<Key>,
    pieces: Vec<Key>,
}

impl Folded {
    fn new(watch: Watch) -> Folded {
        Folded { watch, rows: BTreeSet::new(), pieces: Vec::new() }
    }

    /// Takes events until the answer has these keys and no others.
    async fn becomes(&mut self, keys: &[&str]) {
        let keys: BTreeSet<Key> = keys.iter().map(|key| Key::from(*key)).collect();
        let folding = async {
            while self.rows != keys {
                match self.watch.next().await.expect("it goes on") {
                    Event::Reset { start, end, rows, first, last } => {
                        if first {
                            self.pieces.clear();
                        }
                        self.pieces.extend(rows.into_iter().filter_map(|row| row.key));
                        if last {
                            let outside = |key: &Key| {
                                start.as_ref().is_some_and(|start| key < start)
                                    || end.as_ref().is_some_and(|end| key >= end)
                            };
                            self.rows.retain(outside);
                            self.rows.append(&mut self.pieces.drain(..).collect());
                        }
                    }
                    Event::Put(row) => self.rows.extend(row.key),
                    // A cursor may be older than the rows beside it: what left since is told again.
                    Event::Leave(key) => {
                        self.rows.remove(&key);
                    }
                    Event::Settling(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), folding).await.unwrap_or_else(|_| panic!("{:?}", self.rows));
    }
}

/// Writes a record that readers near a place alone are shown.
async fn put_near(table: &Table, key: &str, place: i64) {
    let write = Write::put(key, [("place", Cell::Int(place))]).audience(format!("reader.place == {place}"));
    table.write(write).await.unwrap().committed().unwrap();
}

fn near(place: i64) -> Columns {
    Columns::from([("place".to_owned(), Cell::Int(place))])
}

#[tokio::test(flavor = "multi_thread")]
async fn live_queries_follow_their_readers_data_and_go_on_from_cursors() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "cars", json!({ "cuts": ["m"] })).await;
    let config = ClientConfig { credential: Some(shop), ..ClientConfig::in_process(town.node.door()) };
    let cars = Tables::connect(config).await.unwrap().table("cars");
    for (key, place) in [("a", 1), ("b", 2), ("y", 1), ("z", 2)] {
        put_near(&cars, key, place).await;
    }
    let options = |place| WatchOptions { reader: near(place), ..WatchOptions::default() };
    let mut live = Folded::new(cars.watch(&Ask::default(), options(1)));
    live.becomes(&["a", "y"]).await;
    // R4: other reader data is a difference, in both partitions.
    live.watch.update(near(2)).await.unwrap();
    live.becomes(&["b", "z"]).await;
    put_near(&cars, "c", 2).await;
    put_near(&cars, "b", 1).await;
    live.becomes(&["c", "z"]).await;

    // A cursor: what happened since, and nothing else.
    let cursor = async {
        loop {
            // It is told at most a second later.
            let _ = tokio::time::timeout(Duration::from_millis(1_500), live.watch.next()).await;
            if let Some(cursor) = live.watch.cursor() {
                return cursor.clone();
            }
        }
    };
    let cursor = tokio::time::timeout(Duration::from_secs(20), cursor).await.expect("a cursor is told");
    drop(live.watch);
    put_near(&cars, "d", 2).await;
    cars.delete("z").await.unwrap();
    let again = WatchOptions { cursor: Some(cursor), ..options(2) };
    let mut live = Folded { watch: cars.watch(&Ask::default(), again), rows: live.rows, pieces: Vec::new() };
    live.becomes(&["c", "d"]).await;

    // R9: an aggregate is read again, with the same eyes.
    let count = Ask { aggregates: vec![("n".into(), Aggregate::Count, String::new())], ..Ask::default() };
    let mut counting = cars.watch(&count, options(1));
    put_near(&cars, "e", 1).await;
    let four = async {
        while let Some(event) = counting.next().await {
            let Event::Rows(rows) = event else { panic!("{event:?}") };
            if rows[0].columns.get("n") == Some(&Cell::Int(4)) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), four).await.expect("a, b, e and y are counted");
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_is_refused_costs_nothing() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "cars", json!({ "cuts": ["m"] })).await;
    let config = ClientConfig { credential: Some(shop), ..ClientConfig::in_process(town.node.door()) };
    let tables = Tables::connect(config).await.unwrap();
    let terms = async || {
        // Whoever wrote was answered by the owner of the part.
        for key in ["a", "n"] {
            tables.table("cars").put(key, [("place", Cell::Int(1))]).await.unwrap();
        }
        let info = tables.stat("cars").await.unwrap();
        info.partitions.iter().map(|part| (part.number, part.term)).collect::<Vec<_>>()
    };
    let before = terms().await;
    for (at, code) in [("m", "tables.invalid"), (&*"x".repeat(2_000), "tables.bad_key")] {
        assert_eq!(tables.split("cars", at.into()).await.unwrap_err().code, code);
    }
    assert_eq!(terms().await, before);
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_application_is_told_what_it_alone_may_know() {
    let town = Town::start().await;
    let (shop, ann) = (town.app("shop").await, town.user("ann"));
    town.create(&shop, "cars", json!({ "cuts": ["m"] })).await;
    // Where it is cut are keys.
    let bounds = async |who: &str, path: &str| {
        let said = town.ask(who, READ, path, NONE).await.json();
        let parts = if path == "tables" { said["tables"][0]["partitions"].clone() } else { said["partitions"].clone() };
        (parts[0]["end"].clone(), parts[1]["start"].clone())
    };
    for path in ["tables", "tables/cars"] {
        assert_eq!(bounds(&shop, path).await, (json!("m"), json!("m")), "{path}");
        assert_eq!(bounds(&ann, path).await, (Value::Null, Value::Null), "{path}");
    }
    // Audiences come with an export, and go with an import.
    let path = "tables/cars/records/a?audience=reader.place%20!%3D%201%20%7C%7C%20true";
    assert_eq!(town.ask(&shop, Method::PUT, path, json!({ "n": 1 })).await.status, 200);
    let export = town.ask(&shop, READ, "tables/cars/export?audiences=true", NONE).await.text();
    assert!(export.contains("reader.place != 1 || true"), "{export}");
    assert!(!town.ask(&shop, READ, "tables/cars/export", NONE).await.text().contains("reader.place"));
    let denied = town.ask(&ann, READ, "tables/cars/export?audiences=true", NONE).await;
    assert_eq!(denied.error(), (403, "tables.applications_only".into()));

    // What is wrong with a live query is told as such, and every mistake with what to do.
    let wrong = town.ask(&shop, READ, "tables/cars/watch?predicate=n%20%3E", NONE).await;
    assert_eq!(wrong.error(), (400, "tables.predicate_syntax".into()));
    assert!(wrong.json()["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{}", wrong.text());
    let wrong = town.ask(&shop, READ, "tables/cars/watch?predicate=now()%20%3E%20timestamp(n)", NONE).await;
    assert_eq!(wrong.error(), (400, "tables.predicate_not_live".into()));
    let wrong = town.ask(&shop, READ, "tables/cars/watch?cursor=AAAA", NONE).await;
    assert_eq!(wrong.error(), (400, "tables.bad_cursor".into()));

    // No rows are no rows.
    let none = town.ask(&shop, READ, "tables/cars/records?limit=0", NONE).await.json();
    assert_eq!(none["rows"], json!([]));
    town.node.shutdown().await.unwrap();
}
