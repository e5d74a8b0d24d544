//! What a whole node does with tables by itself: cuts and joins, takes away what expired, exports what there is, keeps an order.

use super::{NONE, READ, Town};
use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::tables::{Ask, Event, ReadOptions, Table, Tables, Value as Cell, WatchOptions, Write};
use tidings_node::config::Time;

/// How long anything here may take.
const SOON: Duration = Duration::from_secs(60);

async fn table(town: &Town, key: &str, name: &str) -> Table {
    let config = ClientConfig { credential: Some(key.to_owned()), ..ClientConfig::in_process(town.node.door()) };
    Tables::connect(config).await.unwrap().table(name)
}

/// Definition 2: the last one that was begun is what is there, and each came after the one before it.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_writes_of_one_client_take_effect_in_the_order_in_which_they_were_begun() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    let t = table(&town, &shop, "t").await;
    for round in 0..5_i64 {
        let writes = (0..50).map(|n| t.put("a", [("n", Cell::Int(round * 50 + n))]));
        let versions: Vec<u64> = join_all(writes).await.into_iter().map(Result::unwrap).collect();
        assert!(versions.is_sorted(), "{versions:?}");
        assert_eq!(t.get("a").await.unwrap().unwrap().columns["n"], Cell::Int(round * 50 + 49));
    }
    // One that nobody waits for any more holds up none behind it.
    let abandoned = tokio::time::timeout(Duration::ZERO, t.put("a", [("n", Cell::Int(-1))]));
    let (_, later) = tokio::join!(abandoned, t.put("a", [("n", Cell::Int(7))]));
    later.unwrap();
    assert_eq!(t.get("a").await.unwrap().unwrap().columns["n"], Cell::Int(7));
    // In a partitioned table one key names several records: the library cannot know which of them a write is to.
    town.create(&shop, "cities", json!({ "partition_by": { "column": "city" }, "cuts": [{ "in": "P" }] })).await;
    let cities = table(&town, &shop, "cities").await;
    let put = |city: &str| cities.put("ann", [("city", Cell::from(city))]);
    let (rome, oslo) = tokio::time::timeout(Duration::from_secs(5), async { tokio::join!(put("Rome"), put("Oslo")) })
        .await
        .expect("neither waits for the other for long");
    assert!(rome.is_ok() && oslo.is_ok());
    town.node.shutdown().await.unwrap();
}

/// R8: the answer that is read again is as little as what is heard.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_again_for_a_live_query_knows_no_expired_claims() {
    // The connection itself is not looked at meanwhile.
    let town = Town::start_with(|config| {
        (config.timings.token_leeway, config.timings.key_check) = (Time::seconds(0), Time::seconds(300));
    })
    .await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    let t = table(&town, &shop, "t").await;
    let secret = Write::put("letter", [("n", Cell::Int(1))]).audience("user.sub == \"ann\"");
    t.write(secret).await.unwrap().committed().unwrap();
    let ann = table(&town, &town.user_for("ann", 8), "t").await;
    let mut live = ann.watch(&Ask { limit: Some(10), ..Ask::default() }, WatchOptions::default());
    let rows = async |live: &mut tidings_client::tables::Watch| loop {
        match tokio::time::timeout(SOON, live.next()).await.expect("it goes on") {
            Some(Event::Rows(rows)) => break rows.into_iter().filter_map(|row| row.key).collect::<Vec<_>>(),
            Some(Event::Settling(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rows(&mut live).await, ["letter".into()]);
    tokio::time::sleep(Duration::from_millis(8_500)).await;
    t.put("open", [("n", Cell::Int(2))]).await.unwrap();
    while rows(&mut live).await != ["open".into()] {}
    t.put("other", [("n", Cell::Int(3))]).await.unwrap();
    assert_eq!(rows(&mut live).await, ["open".into(), "other".into()]);
    town.node.shutdown().await.unwrap();
}

/// Whoever's token has expired is told so, and is not answered as somebody who is known less.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_expired_is_refused_on_a_connection_that_is_open_still() {
    let town = Town::start_with(|config| {
        (config.timings.token_leeway, config.timings.key_check) = (Time::seconds(0), Time::seconds(300));
    })
    .await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({ "level": "public" })).await;
    // It is served before time runs.
    table(&town, &shop, "t").await.put("a", [("n", Cell::Int(1))]).await.unwrap();
    let token = town.user_for("ann", 4);
    let t = table(&town, &token, "t").await;
    t.put("a", [("n", Cell::Int(2))]).await.unwrap();
    assert_eq!(t.read(&Ask::default(), &ReadOptions::default()).await.unwrap().len(), 1);
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    let refused = |error: tidings_base::Error| {
        assert_eq!(error.code, "control.unauthenticated");
        assert!(error.message.contains("expired"), "{error}");
    };
    refused(t.read(&Ask::default(), &ReadOptions::default()).await.unwrap_err());
    refused(t.put("b", [("n", Cell::Int(2))]).await.unwrap_err());
    let mut live = t.watch(&Ask::default(), WatchOptions::default());
    match tokio::time::timeout(SOON, live.next()).await.expect("it ends") {
        Some(Event::Ended(error)) => refused(error),
        other => panic!("{other:?}"),
    }
    assert_eq!(town.ask(&token, READ, "tables/t/records", NONE).await.error().0, 401);
    assert_eq!(town.count(&shop, "t").await, json!(1));
    town.node.shutdown().await.unwrap();
}

/// R8: a list of another application names whoever has expired no more, and nobody becomes one of its own by expiring.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_of_another_application_expires_too() {
    let town = Town::start_with(|config| {
        (config.timings.token_leeway, config.timings.key_check) = (Time::seconds(0), Time::seconds(300));
    })
    .await;
    let (_shop, blog) = (town.app("shop").await, town.app("blog").await);
    for name in ["listed", "open"] {
        town.create(&blog, name, json!({ "level": "public" })).await;
        table(&town, &blog, name).await.put("a", [("n", Cell::Int(1))]).await.unwrap();
    }
    let changes = json!([{ "who": "user:shop/ann", "allow": ["read"] }]);
    let access = town.ask(&blog, Method::PATCH, "tables/listed/access", json!({ "changes": changes })).await;
    assert_eq!(access.status, 200, "{}", access.text());
    let token = town.user_for("ann", 6);
    let mut listed = table(&town, &token, "blog/listed").await.watch(&Ask::default(), WatchOptions::default());
    let mut open = table(&town, &token, "blog/open").await.watch(&Ask::default(), WatchOptions::default());
    for live in [&mut listed, &mut open] {
        let first = tokio::time::timeout(SOON, live.next()).await.expect("it begins");
        assert!(matches!(first, Some(Event::Reset { .. })), "{first:?}");
    }
    let ended = async |live: &mut tidings_client::tables::Watch| {
        let ended = async {
            loop {
                match live.next().await {
                    Some(Event::Ended(error)) => break error.code.into_owned(),
                    Some(_) => {}
                    None => panic!("it ended without a word"),
                }
            }
        };
        tokio::time::timeout(SOON, ended).await.expect("it ends")
    };
    assert_eq!(ended(&mut listed).await, "tables.denied");
    // What is everybody's goes on.
    table(&town, &blog, "open").await.put("b", [("n", Cell::Int(2))]).await.unwrap();
    let told = async { while !matches!(open.next().await.expect("it goes on"), Event::Put(_)) {} };
    tokio::time::timeout(SOON, told).await.expect("it goes on");
    let closed = town.ask(&blog, Method::PATCH, "tables/open", json!({ "level": "app" })).await;
    assert_eq!(closed.status, 200, "{}", closed.text());
    assert_eq!(ended(&mut open).await, "tables.access");
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_says_that_its_token_has_expired() {
    let town = Town::start_with(|config| {
        (config.timings.token_leeway, config.timings.key_check) = (Time::seconds(0), Time::millis(500));
    })
    .await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    table(&town, &shop, "t").await.put("a", [("n", Cell::Int(1))]).await.unwrap();
    let (address, token) = (town.address, town.user_for("ann", 5));
    let head = format!("GET /v1/tables/t/watch HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n");
    let heard = town.heard(&head, "event: ended").await;
    assert!(heard.contains("event: reset"), "{heard}");
    let (_, ended) = heard.split_once("event: ended").expect("it ends with a word");
    assert!(ended.contains("control.unauthenticated") && ended.contains("expired"), "{ended}");
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_has_columns_that_only_late_records_have() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    let t = table(&town, &shop, "t").await;
    let long = "x".repeat(500 << 10);
    for key in ["a", "b", "c"] {
        t.put(key, [("text", Cell::from(long.as_str()))]).await.unwrap();
    }
    t.put("d", [("late", Cell::Int(7))]).await.unwrap();
    let all = town.ask(&shop, READ, "tables/t/export?format=csv", NONE).await.text();
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!((lines.len(), lines[0]), (5, "key,late,text"));
    assert!(lines[4].starts_with("d,7"), "{}", lines[4]);
    let some = town.ask(&shop, READ, "tables/t/export?format=csv&column=late", NONE).await.text();
    assert_eq!(some.lines().next(), Some("key,late"));
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_watches_what_it_can_query() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({ "level": "public" })).await;
    for (key, n) in [("a", 3), ("b", 1), ("c", 2)] {
        let put = town.ask(&shop, Method::PUT, &format!("tables/t/records/{key}"), json!({ "n": n })).await;
        assert_eq!(put.status, 200);
    }
    let cheapest = json!({ "order": [{ "expression": "n" }], "limit": 2 });
    let told = town.streamed("tables/shop%2Ft/watch", &cheapest, "event: rows").await;
    let rows = told.lines().find_map(|line| line.strip_prefix("data: ").filter(|data| data.contains("rows"))).unwrap();
    let rows: Value = serde_json::from_str(rows).unwrap();
    let keys: Vec<&str> = rows["rows"].as_array().unwrap().iter().filter_map(|row| row["key"].as_str()).collect();
    assert_eq!(keys, ["b", "c"]);
    let projected = json!({ "project": [{ "name": "m", "expression": "n * 2" }], "newer_than_us": 1 });
    let told = town.streamed("tables/shop%2Ft/watch", &projected, "event: rows").await;
    assert!(told.contains("\"m\":6"), "{told}");
    let bad = town.ask(&shop, Method::POST, "tables/t/watch", json!({ "level": "latest" })).await;
    assert_eq!(bad.status, 400, "{}", bad.text());
    // A server has no pending writes of its own: it is as `committed`.
    let read = town.ask(&shop, READ, "tables/t/records?level=uncommitted", NONE).await;
    assert_eq!(read.json()["rows"].as_array().map(Vec::len), Some(3));
    town.node.shutdown().await.unwrap();
}

/// R1: what has grown is cut, and joined again once it has shrunk and been quiet.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_grows_is_cut_and_joined_when_it_has_shrunk() {
    let town = Town::start_with(|config| {
        (config.tables.cut_bytes, config.tables.quiet) = (200 << 10, Time::seconds(3));
    })
    .await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    let t = table(&town, &shop, "t").await;
    let long = "x".repeat(10 << 10);
    for n in 0..30 {
        t.put(format!("k{n:02}").as_str(), [("text", Cell::from(long.as_str()))]).await.unwrap();
    }
    let becomes = async |what: &str, is_so: fn(usize) -> bool| {
        let becoming = async {
            while !is_so(town.ask(&shop, READ, "tables/t", NONE).await.json()["partitions"].as_array().unwrap().len()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(SOON, becoming).await.unwrap_or_else(|_| panic!("{what}"));
    };
    // Two, or three: the second may have grown to be cut before the last record came.
    becomes("several partitions", |parts| parts > 1).await;
    assert_eq!(town.count(&shop, "t").await, 30);
    for n in 0..28 {
        t.delete(format!("k{n:02}").as_str()).await.unwrap();
    }
    becomes("one partition", |parts| parts == 1).await;
    assert_eq!(town.count(&shop, "t").await, 2);
    town.node.shutdown().await.unwrap();
}
