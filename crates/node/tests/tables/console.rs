//! What a console draws, and who may see it: live queries, counters, load.

use super::{NONE, READ, Town};
use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::tables::{Ask, Direction, Key, Table, Tables, Value as Cell, Watch, WatchOptions};

/// How long anything here may take.
const SOON: Duration = Duration::from_secs(60);

async fn table(town: &Town, credential: &str, name: &str) -> Table {
    let credential = Some(credential.to_owned());
    let config = ClientConfig { credential, ..ClientConfig::in_process(town.node.door()) };
    Tables::connect(config).await.unwrap().table(name)
}

/// What the operator is told of the only node.
async fn load(town: &Town) -> Value {
    let answer = town.ask(&town.operator, READ, "tables-load", NONE).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["nodes"][0].clone()
}

/// Watches until it is let go: whoever asks for no event has not begun.
fn watching(mut watch: Watch) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move { while watch.next().await.is_some() {} })
}

/// The live queries of a table, once they are as expected.
async fn listed(town: &Town, credential: &str, path: &str, expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let listing = async {
        loop {
            let answer = town.ask(credential, READ, path, NONE).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let queries = answer.json()["queries"].as_array().unwrap().clone();
            if expected(&queries) {
                return queries;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, listing).await.expect("the list becomes as expected")
}

#[tokio::test(flavor = "multi_thread")]
async fn live_queries_are_listed_to_whoever_administers_the_table() {
    let town = Town::start().await;
    let (shop, blog, ann) = (town.app("shop").await, town.app("blog").await, town.user("ann"));
    town.create(&shop, "t", json!({ "cuts": ["m"] })).await;
    town.create(&shop, "other", json!({})).await;
    let path = "tables/t/queries";
    assert_eq!(town.ask(&shop, READ, path, NONE).await.json(), json!({ "queries": [], "more": false }));

    let (of_shop, of_ann) = (table(&town, &shop, "t").await, table(&town, &ann, "t").await);
    let elsewhere = watching(table(&town, &shop, "other").await.watch(&Ask::default(), WatchOptions::default()));
    let cheap = Ask { predicate: "n < 5".into(), ..Ask::default() };
    let first = watching(of_ann.watch(&cheap, WatchOptions { endpoint: Some([7; 16]), ..WatchOptions::default() }));
    let heard = |queries: &[Value]| queries.len() == 1 && queries[0]["silent"] == 0;
    listed(&town, &shop, path, heard).await;
    let least = Ask { order: vec![("n".into(), Direction::Descending)], limit: Some(3), ..Ask::default() };
    let second = watching(of_shop.watch(&least, WatchOptions::default()));
    let both = |queries: &[Value]| queries.len() == 2 && queries.iter().all(|query| query["silent"] == 0);
    let queries = listed(&town, &shop, path, both).await;
    let (one, two) = (&queries[0], &queries[1]);
    assert_eq!((&one["principal"], &one["predicate"]), (&json!("user:shop/ann"), &json!("n < 5")), "{one}");
    assert_eq!((&one["endpoint"], &one["partitions"]), (&json!("07".repeat(16)), &json!(2)), "{one}");
    assert_eq!((&one["node"], &one["settling"], &one["limit"]), (&json!(1), &json!(false), &NONE), "{one}");
    assert!(two["principal"].as_str().unwrap().starts_with("app:shop/") && two["endpoint"].is_null(), "{two}");
    assert_eq!(two["order"], json!([{ "expression": "n", "descending": true }]));
    assert_eq!((&two["limit"], &two["predicate"]), (&json!(3), &json!("")), "{two}");
    assert!(one["since_us"].as_u64() > Some(0) && one["since_us"].as_u64() <= two["since_us"].as_u64());
    assert!(one["number"].as_u64() < two["number"].as_u64());

    // R7: whoever does not administer it is not told what others look for, and hears of no table that it does not know.
    let refused = async |who: &str, path: &str| town.ask(who, READ, path, NONE).await.error();
    assert_eq!(refused(&ann, path).await, (403, "tables.not_yours".into()));
    assert_eq!(refused(&blog, "tables/shop%2Ft/queries").await.0, 403);
    assert_eq!(refused(&blog, path).await, (404, "tables.unknown_table".into()));
    assert_eq!(refused(&shop, "tables/nothing/queries").await, (404, "tables.unknown_table".into()));
    assert_eq!(refused("", "tables/shop%2Ft/queries").await.0, 401);
    let grant = json!({ "changes": [{ "who": "user:shop/ann", "allow": ["administer", "read"] }] });
    assert_eq!(town.ask(&shop, Method::PATCH, "tables/t/access", grant).await.status, 200);
    listed(&town, &ann, path, both).await;
    // An operator acts in one application at a time.
    assert_eq!(refused(&town.operator, "tables/shop%2Ft/queries").await.0, 403);

    // What is over is not listed.
    first.abort();
    let rest = listed(&town, &shop, path, |queries| queries.len() == 1).await;
    assert_eq!(rest[0]["number"], two["number"]);
    second.abort();
    elsewhere.abort();
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_is_counted_by_partition_and_by_node() {
    let town = Town::start().await;
    let (shop, ann) = (town.app("shop").await, town.user("ann"));
    town.create(&shop, "t", json!({ "cuts": ["m"] })).await;
    for (who, refusal) in [(&shop, "tables.operators_only"), (&ann, "tables.operators_only")] {
        assert_eq!(town.ask(who, READ, "tables-load", NONE).await.error(), (403, refusal.into()));
    }
    assert_eq!(town.ask("", READ, "tables-load", NONE).await.status, 401);

    let t = table(&town, &shop, "t").await;
    t.put("a", [("n", Cell::Int(1))]).await.unwrap();
    let before = load(&town).await;
    assert_eq!((&before["node"], &before["live_queries"], &before["overrun"]), (&json!(1), &json!(0), &json!(0)));
    let live = watching(t.watch(&Ask::default(), WatchOptions::default()));
    listed(&town, &shop, "tables/t/queries", |all| all.len() == 1 && all[0]["silent"] == 0).await;
    for n in 0..3 {
        t.put("b", [("n", Cell::Int(n))]).await.unwrap();
        t.put("x", [("n", Cell::Int(n))]).await.unwrap();
    }
    t.get("x").await.unwrap().unwrap();
    let counted = async {
        loop {
            let parts = town.ask(&shop, READ, "tables/t", NONE).await.json()["partitions"].clone();
            let of = |part: usize, name: &str| parts[part][name].as_u64().unwrap();
            // What is asked for again may be told again.
            if of(0, "events") >= 3 && of(1, "events") >= 3 {
                return parts;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let parts = tokio::time::timeout(SOON, counted).await.expect("three events in each");
    assert_eq!((&parts[0]["writes"], &parts[0]["reads"]), (&json!(4), &json!(0)), "{parts}");
    assert_eq!((&parts[1]["writes"], &parts[1]["reads"]), (&json!(3), &json!(1)), "{parts}");
    for part in parts.as_array().unwrap() {
        let (queries, away) = (&part["live_queries"], &part["live_queries_away"]);
        assert_eq!((queries, away, &part["copies"]), (&json!(1), &json!(0), &json!(0)), "{part}");
        assert_eq!((&part["waiting"], &part["undelivered"]), (&json!(0), &json!(0)), "{part}");
        assert!(part["log_changes"].as_u64() >= Some(3) && part["log_bytes"].as_u64() > Some(0), "{part}");
    }
    let shown = town.ask(&ann, READ, "tables/t", NONE).await.json();
    assert!(shown["partitions"][0]["writes"].is_null(), "R7: writes are of hidden records, too: {shown}");

    let after = load(&town).await;
    let grew = |name: &str| after["answers"][name].as_u64().unwrap() - before["answers"][name].as_u64().unwrap();
    assert_eq!((grew("written"), grew("rows"), grew("conflict")), (6, 1, 0), "{after}");
    assert_eq!((&after["partitions"], &after["copies"]), (&json!(2), &json!(0)), "{after}");
    assert_eq!(after["live_queries"], 1, "{after}");
    assert!(after["events"].as_u64() > Some(0) && after["event_bytes"].as_u64() > after["events"].as_u64(), "{after}");
    live.abort();
    town.node.shutdown().await.unwrap();
}

/// Many records name few others: each of those is looked up once.
#[tokio::test(flavor = "multi_thread")]
async fn what_many_records_name_is_looked_up_once() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "items", json!({ "cuts": ["i1"] })).await;
    town.create(&shop, "orders", json!({ "cuts": ["o100"] })).await;
    let (items, orders) = (table(&town, &shop, "items").await, table(&town, &shop, "orders").await);
    for n in 0..3 {
        items.put(format!("i{n}").as_str(), [("price", Cell::Int(n + 1))]).await.unwrap();
    }
    let order = |n: i64| {
        let item = format!("i{}", n % 3);
        orders.put(Key::String(format!("o{n:03}")), [("item", Cell::from(item.as_str())), ("n", Cell::Int(n))])
    };
    for written in join_all((0..200).map(order)).await {
        written.unwrap();
    }
    let query = json!({
        "lookup": { "table": "items", "key": "item", "name": "of" },
        "project": [{ "name": "total", "expression": "n * of.price" }],
    });
    let before = load(&town).await;
    let answer = town.ask(&shop, Method::POST, "tables/orders/query", query.clone()).await.json();
    let after = load(&town).await;
    let totals = |answer: &Value| {
        let rows = answer["rows"].as_array().unwrap().iter();
        rows.map(|row| row["columns"]["total"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(totals(&answer), (0..200).map(|n| n * (n % 3 + 1)).collect::<Vec<_>>());
    let pieces = after["answers"]["rows"].as_u64().unwrap() - before["answers"]["rows"].as_u64().unwrap();
    assert!((5..20).contains(&pieces), "{pieces} answers for two partitions and three keys");

    // The first ones are the answer, with a limit.
    let mut few = query;
    few["limit"] = json!(4);
    let answer = town.ask(&shop, Method::POST, "tables/orders/query", few).await.json();
    assert_eq!(totals(&answer), [0, 2, 6, 3]);
    town.node.shutdown().await.unwrap();
}
