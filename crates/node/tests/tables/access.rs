//! Who may do what with a table, over real sockets: every kind of principal against every operation.

use super::{Folded, NONE, READ, Town};
use crate::support::{request, send_http1};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::tables::{Aggregate, Ask, Event, Key, Table, Tables, Value as Cell, WatchOptions};
use tokio::net::TcpStream;

/// A principal with the table as it names it, and whether it may read, write and administer.
type Who<'a> = (&'a str, &'a str, &'a str, [bool; 3]);

/// Asks for everything that is to be asked of a table; what is not allowed is refused by the table's list.
async fn may(town: &Town, (name, key, table, [reads, writes, administers]): Who<'_>) {
    let count = json!({ "aggregates": [{ "name": "n", "aggregate": "count" }] });
    let all = [
        (READ, "/records/a", NONE, reads),
        (READ, "/records", NONE, reads),
        (Method::POST, "/query", json!({ "order": [{ "expression": "n" }], "limit": 1 }), reads),
        (Method::POST, "/query", count, reads),
        (READ, "/export", NONE, reads),
        (Method::PUT, "/records/b", json!({ "n": 2 }), writes),
        (Method::DELETE, "/records/c", NONE, writes),
        (Method::PATCH, "/records/a", json!({ "n": 1 }), reads && writes),
        (READ, "", NONE, reads || writes || administers),
        (READ, "/access", NONE, administers),
        (Method::PATCH, "/access", json!({ "changes": [] }), administers),
        (Method::PATCH, "", json!({ "max_records": 1_000 }), administers),
    ];
    for (method, path, body, allowed) in all {
        let answer = town.ask(key, method.clone(), &format!("tables/{table}{path}"), body).await;
        match allowed {
            true => assert_eq!(answer.status, 200, "{name} {method} {path}: {}", answer.text()),
            false => assert_eq!(answer.error(), (403, "tables.denied".into()), "{name} {method} {path}"),
        }
    }
    // A stream that is allowed does not end.
    if !reads {
        let watch = town.ask(key, READ, &format!("tables/{table}/watch"), NONE).await;
        assert_eq!(watch.error(), (403, "tables.denied".into()), "{name} watches");
        let dropped = town.ask(key, Method::DELETE, &format!("tables/{table}"), NONE).await;
        assert_eq!(dropped.status, 403, "{name} drops: {}", dropped.text());
    }
}

async fn change(town: &Town, key: &str, changes: Value) {
    let changed = town.ask(key, Method::PATCH, "tables/notes/access", json!({ "changes": changes })).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
}

async fn table(town: &Town, credential: &str, name: &str) -> Table {
    let there = ClientConfig::new([format!("http://{}", town.address)]);
    let config = ClientConfig { credential: Some(credential.to_owned()), ..there };
    Tables::connect(config).await.unwrap().table(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_access_hold_for_every_principal_and_operation() {
    let town = Town::start().await;
    let (shop, blog, operator) = (town.app("shop").await, town.app("blog").await, town.operator.clone());
    let [ann, bob, carl, dora, eve] = ["ann", "bob", "carl", "dora", "eve"].map(|name| town.user(name));
    town.create(&shop, "notes", json!({ "level": "public" })).await;
    let put = town.ask(&shop, Method::PUT, "tables/notes/records/a", json!({ "n": 1 })).await;
    assert_eq!(put.status, 200, "{}", put.text());
    // Without a list the level decides, and only the application administers.
    assert_eq!(town.ask(&dora, READ, "tables/notes/records", NONE).await.status, 200);
    assert_eq!(town.ask(&carl, READ, "tables/notes/access", NONE).await.error().1, "tables.not_yours");

    // What is public is everybody's to read; whoever is of another application writes only as a list says.
    let notes = "tables/shop%2Fnotes";
    assert_eq!(town.ask(&blog, READ, &format!("{notes}/records"), NONE).await.status, 200);
    for (method, path) in [
        (Method::PUT, "records/b"),
        (Method::PUT, "records/a"),
        (Method::PATCH, "records/a"),
        (Method::DELETE, "records/a"),
    ] {
        let body = if method == Method::DELETE { NONE } else { json!({ "n": 7 }) };
        let refused = town.ask(&blog, method, &format!("{notes}/{path}"), body).await;
        assert_eq!(refused.error(), (403, "tables.foreign".into()), "{path}");
    }
    assert_eq!(town.count(&shop, "notes").await, json!(1));

    change(
        &town,
        &shop,
        json!([
            { "who": "user:shop/ann", "allow": ["read"] },
            { "who": "user:shop/bob", "allow": ["write"] },
            { "who": "user:shop/carl", "allow": ["all"] },
            { "who": "user:shop/eve", "allow": ["all"] },
        ]),
    )
    .await;
    change(&town, &carl, json!([{ "who": "user:shop/eve", "deny": ["write", "administer"] }])).await;
    let foreign = "shop%2Fnotes";
    for who in [
        ("the application", shop.as_str(), "notes", [true, true, true]),
        ("an operator", &*operator, foreign, [true, true, true]),
        ("ann, who reads", &*ann, "notes", [true, false, false]),
        ("bob, who writes", &*bob, "notes", [false, true, false]),
        ("carl, who administers", &*carl, "notes", [true, true, true]),
        ("dora, of whom nothing is said", &*dora, "notes", [false, false, false]),
        ("eve, who is denied what she was allowed", &*eve, "notes", [true, false, false]),
        ("another application", &*blog, foreign, [false, false, false]),
    ] {
        may(&town, who).await;
    }
    change(&town, &shop, json!([{ "who": "app:blog/*", "allow": ["read"] }])).await;
    may(&town, ("another application that is allowed to", &*blog, foreign, [true, false, false])).await;
    change(&town, &shop, json!([{ "who": "app:blog/*", "allow": ["write"] }])).await;
    may(&town, ("another application that may write, too", &*blog, foreign, [true, true, false])).await;
    change(&town, &shop, json!([{ "who": "app:blog/*", "deny": ["write"] }])).await;

    // Who writes and does not read is not shown what stands in the way.
    let stream = TcpStream::connect(town.address).await.unwrap();
    let mut absent = request(Method::PUT, "/v1/tables/notes/records/a", Some(&bob), Some(json!({ "n": 7 })));
    absent.headers_mut().insert("if-none-match", "*".parse().unwrap());
    let conflict = send_http1(stream, absent).await;
    assert_eq!(conflict.status, 412, "{}", conflict.text());
    assert!(!conflict.text().contains("columns") && conflict.text().contains("hidden"), "{}", conflict.text());

    // What somebody has no right in is not listed; who is in the list, only whoever administers is told.
    let listed = async |who: &str| town.ask(who, READ, "tables", NONE).await.json()["tables"].clone();
    assert_eq!(listed(&dora).await, json!([]));
    assert_eq!(
        (listed(&ann).await[0]["table"].clone(), listed(&ann).await[0]["access"].clone()),
        (json!("notes"), NONE)
    );
    assert_eq!(listed(&carl).await[0]["access"][0]["who"], "app:blog/*");
    // Nobody drops it but its application.
    assert_eq!(town.ask(&carl, Method::DELETE, "tables/notes", NONE).await.status, 403);

    // What names nobody is refused, and changes nothing.
    let wrong =
        json!({ "changes": [{ "who": "user:shop/dora", "allow": ["read"] }, { "who": "dora", "allow": ["read"] }] });
    let wrong = town.ask(&shop, Method::PATCH, "tables/notes/access", wrong).await;
    assert_eq!(wrong.error(), (400, "tables.invalid".into()));
    assert_eq!(town.ask(&dora, READ, "tables/notes/records", NONE).await.status, 403);
    // Altering a table leaves its list; without one the level decides again.
    assert_eq!(town.ask(&shop, Method::PATCH, "tables/notes", json!({ "level": "app" })).await.status, 200);
    assert_eq!(town.ask(&dora, READ, "tables/notes/records", NONE).await.status, 403);
    assert_eq!(town.ask(&shop, Method::DELETE, "tables/notes/access", NONE).await.json()["listed"], false);
    assert_eq!(town.ask(&dora, READ, "tables/notes/records", NONE).await.status, 200);
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn live_queries_end_for_whoever_is_shut_out() {
    let town = Town::start().await;
    let (shop, ann, bob) = (town.app("shop").await, town.user("ann"), town.user("bob"));
    town.create(&shop, "notes", json!({ "level": "user" })).await;
    table(&town, &bob, "notes").await.put("a", [("n", Cell::Int(1))]).await.unwrap();
    let notes = table(&town, &ann, "notes").await;
    let mut rows = Folded::new(notes.watch(&Ask::default(), WatchOptions::default()));
    rows.becomes(&["a"]).await;
    let count = Ask { aggregates: vec![("n".into(), Aggregate::Count, String::new())], ..Ask::default() };
    let mut counted = notes.watch(&count, WatchOptions::default());
    let first = tokio::time::timeout(Duration::from_secs(30), counted.next()).await.expect("it is counted");
    assert!(matches!(first, Some(Event::Rows(_))), "{first:?}");

    // As soon as there is a list, what it does not allow is denied.
    change(&town, &shop, json!([{ "who": "user:shop/bob", "allow": ["read", "write"] }])).await;
    table(&town, &bob, "notes").await.put("b", [("n", Cell::Int(2))]).await.unwrap();
    for watch in [&mut rows.watch, &mut counted] {
        let ended = async {
            loop {
                match watch.next().await {
                    Some(Event::Ended(error)) => return error.code,
                    // Nothing that was written since is told.
                    Some(Event::Put(record)) => panic!("{record:?}"),
                    Some(_) => {}
                    None => panic!("it ended without a word"),
                }
            }
        };
        let code = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("it ends");
        assert_eq!(code, "tables.denied");
    }
    town.node.shutdown().await.unwrap();
}

/// R7: a table is cut at keys, and those of hidden records may be among them.
#[tokio::test(flavor = "multi_thread")]
async fn users_are_told_neither_bounds_nor_counts() {
    let town = Town::start().await;
    let (shop, ann) = (town.app("shop").await, town.user("ann"));
    town.create(&shop, "cars", json!({ "cuts": ["g-secret", "p-secret"] })).await;
    let cars = table(&town, &shop, "cars").await;
    for key in ["a", "h", "z"] {
        cars.put(key, [("n", Cell::Int(1))]).await.unwrap();
    }
    let hidden = "tables/cars/records/g-secret?audience=false";
    assert_eq!(town.ask(&shop, Method::PUT, hidden, json!({ "n": 1 })).await.status, 200);

    let mut watch = table(&town, &ann, "cars").await.watch(&Ask::default(), WatchOptions::default());
    let mut told = Vec::new();
    let whole = async {
        while !matches!(told.last(), Some(Event::Reset { last: true, .. })) {
            told.push(watch.next().await.expect("it goes on"));
        }
    };
    tokio::time::timeout(Duration::from_secs(30), whole).await.expect("all rows come");
    let mut rows = 0;
    for (at, event) in told.iter().enumerate() {
        let Event::Reset { start, end, rows: some, first, .. } = event else { panic!("{event:?}") };
        assert_eq!((start, end, *first), (&None, &None, at == 0));
        rows += some.len();
    }
    assert_eq!(rows, 3, "{told:?}");
    // The same folds as ever.
    let mut live = Folded::new(watch);
    live.rows = ["a", "h", "z"].map(Key::from).into();
    cars.put("q", [("n", Cell::Int(1))]).await.unwrap();
    cars.delete("h").await.unwrap();
    live.becomes(&["a", "q", "z"]).await;

    let parts = async |who: &str| town.ask(who, READ, "tables/cars", NONE).await.json()["partitions"].clone();
    let (known, veiled) = (parts(&shop).await, parts(&ann).await);
    let records =
        |parts: &Value| parts.as_array().unwrap().iter().filter_map(|part| part["records"].as_u64()).sum::<u64>();
    assert_eq!((known[1]["start"].clone(), records(&known)), (json!("g-secret"), 4));
    for part in veiled.as_array().unwrap() {
        for told in ["start", "end", "records", "bytes", "position"] {
            assert!(part[told].is_null(), "{told}: {veiled}");
        }
    }
    town.node.shutdown().await.unwrap();
}

/// Who shows nothing reads what is public in the application that it names, and writes there if a list says so by name. Everything
/// else is as if it were not there.
#[tokio::test(flavor = "multi_thread")]
async fn who_shows_nothing_has_what_is_open_to_everybody() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    for (name, level) in [("open", "public"), ("closed", "app"), ("private", "user")] {
        town.create(&shop, name, json!({ "level": level })).await;
    }
    for name in ["open", "closed"] {
        let put = town.ask(&shop, Method::PUT, &format!("tables/{name}/records/a"), json!({ "n": 1 })).await;
        assert_eq!(put.status, 200, "{}", put.text());
    }
    let unknown = |answer: &crate::support::Answer| answer.error() == (401, "control.unauthenticated".to_owned());
    let operations = |table: &str| {
        let path = |rest: &str| format!("tables/shop%2F{table}{rest}");
        let count = json!({ "aggregates": [{ "name": "n", "aggregate": "count" }] });
        let reads = vec![
            (READ, path("/records/a"), NONE),
            (READ, path("/records"), NONE),
            (Method::POST, path("/query"), json!({ "order": [{ "expression": "n" }], "limit": 1 })),
            (Method::POST, path("/query"), count),
            (READ, path("/export"), NONE),
            (READ, path(""), NONE),
        ];
        let writes = vec![
            (Method::PUT, path("/records/b"), json!({ "n": 2 })),
            (Method::DELETE, path("/records/c"), NONE),
            (Method::PATCH, path("/records/a"), json!({ "n": 1 })),
        ];
        let never = vec![
            (READ, path("/access"), NONE),
            (Method::PATCH, path("/access"), json!({ "changes": [{ "who": "nobody", "allow": ["all"] }] })),
            (Method::DELETE, path("/access"), NONE),
            (Method::PATCH, path(""), json!({ "max_records": 1_000 })),
            (Method::PUT, path(""), json!({})),
            (Method::DELETE, path(""), NONE),
            (Method::POST, path("/import"), NONE),
            (READ, path("/watch?netid=00112233445566778899aabbccddeeff"), NONE),
            (READ, path("/export?audiences=true"), NONE),
        ];
        [reads, writes, never]
    };
    let may = async |table: &str, allowed: [bool; 3]| {
        for (some, allowed) in operations(table).into_iter().zip(allowed) {
            for (method, path, body) in some {
                let answer = town.ask("", method.clone(), &path, body).await;
                match allowed {
                    true => assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text()),
                    false => assert!(unknown(&answer), "{method} {path}: {} {}", answer.status, answer.text()),
                }
            }
        }
        if !allowed[0] {
            let watch = town.ask("", READ, &format!("tables/shop%2F{table}/watch"), NONE).await;
            assert!(unknown(&watch), "{}", watch.text());
        }
    };
    may("open", [true, false, false]).await;
    // Of the table itself it hears what it needs to name records.
    let guarded = json!({ "max_records": 1_000, "may_write": "true", "columns": { "n": { "kinds": ["int"] } } });
    let guarded = town.ask(&shop, Method::PATCH, "tables/open", guarded).await;
    assert_eq!(guarded.status, 200, "{}", guarded.text());
    let told = town.ask("", READ, "tables/shop%2Fopen", NONE).await.json();
    let columns = json!({ "n": { "kinds": ["int"], "required": false } });
    let properties = json!({ "level": "public", "columns": columns, "partition_by": null });
    assert_eq!(told, json!({ "table": "open", "app": "shop", "properties": properties }));
    assert_eq!(town.ask(&shop, READ, "tables/open", NONE).await.json()["properties"]["may_write"], "true");
    for table in ["closed", "private", "nothing"] {
        may(table, [false; 3]).await;
    }
    // Whoever watches without a name hears what everybody may see.
    let heard = town.stream("tables/shop%2Fopen/watch").await;
    assert!(heard.contains("event: reset") && heard.contains("\"n\":1"), "{heard}");
    // A list is of those who are known, unless it names nobody.
    let change = async |changes: Value| {
        let changed = town.ask(&shop, Method::PATCH, "tables/open/access", json!({ "changes": changes })).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
    };
    change(json!([{ "who": "*", "allow": ["all"] }])).await;
    may("open", [false; 3]).await;
    change(json!([{ "who": "nobody", "allow": ["all"] }])).await;
    may("open", [true, true, false]).await;
    let written = town.ask(&shop, READ, "tables/open/records/b", NONE).await.json();
    assert_eq!(written["writer"], "nobody");
    // Without an application, with a wrong key, and everywhere else it is as before.
    assert!(unknown(&town.ask("", READ, "tables/open/records", NONE).await));
    for wrong in ["tid_none.wrong", "e30.e30.e30"] {
        let answer = town.ask(wrong, READ, "tables/shop%2Fopen/records", NONE).await;
        assert_eq!(answer.status, 401, "{}", answer.text());
    }
    for path in ["tables", "admin/status", "admin/apps", "store/g/r", "cell/files/x", "notify/shop/o", "placement"] {
        for app in [None, Some("shop")] {
            let mut asks = request(READ, &format!("/v1/{path}"), None, None);
            if let Some(app) = app {
                asks.headers_mut().insert("x-tidings-app", app.parse().unwrap());
            }
            let stream = TcpStream::connect(town.address).await.unwrap();
            let answer = send_http1(stream, asks).await;
            assert!(unknown(&answer), "{path}: {} {}", answer.status, answer.text());
        }
    }
    let mut named = request(READ, "/v1/tables/open/records", None, None);
    named.headers_mut().insert("x-tidings-app", "shop".parse().unwrap());
    let stream = TcpStream::connect(town.address).await.unwrap();
    assert_eq!(send_http1(stream, named).await.status, 200);
    town.node.shutdown().await.unwrap();
}
