//! What a reader is shown by ways around a table's front: rows that are read again, look-ups, pages, queries of what is not there.

use super::{NONE, READ, Town, near, put_near};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_client::tables::{
    Aggregate, Ask, Event, Key, ReadOptions, Record, Table, Tables, Value as Cell, Watch, WatchOptions, Write, form,
};
use tidings_client::{Client, ClientConfig, Request};
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};

/// How long anything here may take.
const SOON: Duration = Duration::from_secs(60);

async fn table(town: &Town, key: &str, name: &str) -> Table {
    let config = ClientConfig { credential: Some(key.to_owned()), ..ClientConfig::in_process(town.node.door()) };
    Tables::connect(config).await.unwrap().table(name)
}

/// Takes the rows of a query that is read again until they are these.
async fn becomes(live: &mut Watch, keys: &[&str]) {
    let keys: Vec<Key> = keys.iter().map(|key| Key::from(*key)).collect();
    let reading = async {
        loop {
            match live.next().await {
                Some(Event::Rows(rows)) => {
                    if rows.into_iter().filter_map(|row| row.key).collect::<Vec<_>>() == keys {
                        break;
                    }
                }
                Some(Event::Settling(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, reading).await.unwrap_or_else(|_| panic!("{keys:?} were not read"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_again_is_read_with_the_readers_new_data() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "cars", json!({ "cuts": ["m"] })).await;
    let cars = table(&town, &shop, "cars").await;
    for (key, place) in [("a", 1), ("b", 2), ("y", 1), ("z", 2)] {
        put_near(&cars, key, place).await;
    }
    let options = WatchOptions { reader: near(1), ..WatchOptions::default() };
    let mut live = cars.watch(&Ask { limit: Some(10), ..Ask::default() }, options);
    becomes(&mut live, &["a", "y"]).await;
    live.update(near(2)).await.unwrap();
    becomes(&mut live, &["b", "z"]).await;
    put_near(&cars, "c", 2).await;
    put_near(&cars, "d", 1).await;
    becomes(&mut live, &["b", "c", "z"]).await;
    town.node.shutdown().await.unwrap();
}

/// R9: whatever is written, and in however many parts, all rows are told ten times a second at most; and in the end, the last.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_table_is_not_read_again_without_end() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    let cuts: Vec<String> = (1..8).map(|n| format!("k{n}")).collect();
    town.create(&shop, "hot", json!({ "cuts": cuts })).await;
    let hot = table(&town, &shop, "hot").await;
    let sum = Ask { aggregates: vec![("sum".into(), Aggregate::Sum, "n".into())], ..Ask::default() };
    let mut live = hot.watch(&sum, WatchOptions::default());
    let writing = {
        let hot = hot.clone();
        async move {
            let until = tokio::time::Instant::now() + Duration::from_secs(2);
            let mut n = 0;
            while tokio::time::Instant::now() < until {
                n += 1;
                let all = (0..8).map(|part| hot.put(Key::String(format!("k{part}")), [("n", Cell::Int(n))]));
                futures::future::try_join_all(all).await.unwrap();
            }
            8 * n
        }
    };
    let begun = tokio::time::Instant::now();
    let writing = tokio::spawn(writing);
    let (mut told, mut behind, mut last) = (0_u32, 0, None);
    let hearing = async {
        let mut expected = None;
        let mut writing = std::pin::pin!(writing);
        while expected.is_none() || last != expected {
            tokio::select! {
                sum = &mut writing, if expected.is_none() => expected = Some(Cell::Int(sum.unwrap())),
                event = live.next() => match event {
                    Some(Event::Rows(rows)) => {
                        told += 1;
                        behind += u32::from(expected.is_some());
                        last = rows.first().and_then(|row| row.columns.get("sum").cloned());
                    }
                    Some(Event::Settling(_)) => {}
                    other => panic!("{other:?}"),
                },
            }
        }
    };
    tokio::time::timeout(SOON, hearing).await.expect("the last sum is told");
    let most = begun.elapsed().as_millis() / 100 + 1;
    assert!(u128::from(told) <= most, "{told} in {:?}", begun.elapsed());
    assert!(behind <= 8, "what came in two seconds is read together: {behind}");
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_finds_no_more_than_its_reader_would() {
    let town = Town::start().await;
    let (shop, ann, bob) = (town.app("shop").await, town.user("ann"), town.user("bob"));
    for (name, level) in [("orders", "app"), ("items", "app"), ("vault", "user"), ("listed", "app")] {
        town.create(&shop, name, json!({ "level": level })).await;
    }
    let orders = table(&town, &shop, "orders").await;
    // The last two are no keys, so that no record has them.
    let long = "x".repeat(1_025);
    for (key, item) in [("1", "open"), ("2", "secret"), ("3", "near"), ("4", "none"), ("5", ""), ("6", &long)] {
        orders.put(key, [("item", Cell::from(item))]).await.unwrap();
    }
    for name in ["items", "vault", "listed"] {
        let items = table(&town, &town.user("ann"), name).await;
        for (key, price, audience) in
            [("open", 1, ""), ("secret", 2, "user.sub == 'ann'"), ("near", 4, "reader.place == 1")]
        {
            let write = Write::put(key, [("price", Cell::Int(price))]).audience(audience);
            items.write(write).await.unwrap().committed().unwrap();
        }
    }
    let changes = json!([{ "who": "*", "allow": ["read"] }, { "who": "user:shop/bob", "deny": ["read"] }]);
    let access = town.ask(&shop, Method::PATCH, "tables/listed/access", json!({ "changes": changes })).await;
    assert_eq!(access.status, 200, "{}", access.text());

    let ask = async |who: &str, items: &str, place: i64, parts: Value| {
        let mut ask = json!({
            "lookup": { "table": items, "key": "item", "name": "of" },
            "reader": { "place": place },
        });
        ask.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        town.ask(who, Method::POST, "tables/orders/query", ask).await
    };
    let prices = async |who: &str, items: &str, place: i64| {
        let project = json!({ "project": [{ "name": "price", "expression": "of.price" }] });
        let answer = ask(who, items, place, project).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let rows = answer.json()["rows"].as_array().unwrap().clone();
        let prices: Vec<i64> = rows.iter().filter_map(|row| row["columns"]["price"].as_i64()).collect();
        // Whatever the other expressions make of it.
        for (parts, column) in [
            (json!({ "aggregates": [{ "name": "x", "aggregate": "sum", "expression": "of.price" }] }), "x"),
            (json!({ "group_by": [{ "name": "x", "expression": "has(of.price) ? of.price : 0" }] }), "x"),
        ] {
            let rows = ask(who, items, place, parts).await.json()["rows"].as_array().unwrap().clone();
            let all: i64 = rows.iter().filter_map(|row| row["columns"][column].as_i64()).sum();
            assert_eq!(all, prices.iter().sum::<i64>(), "{rows:?}");
        }
        prices
    };
    assert_eq!(prices(&ann, "items", 1).await, [1, 2, 4]);
    assert_eq!(prices(&ann, "items", 2).await, [1, 2]);
    assert_eq!(prices(&bob, "items", 1).await, [1, 4]);
    assert_eq!(prices(&bob, "items", 2).await, [1]);
    assert_eq!(prices(&bob, "vault", 2).await, [1]);
    assert_eq!(prices(&ann, "listed", 2).await, [1, 2]);
    // A table that whoever reads may not look into is not looked into.
    for (who, items, code) in [
        (&shop, "vault", "tables.access"),
        (&bob, "listed", "tables.denied"),
        (&ann, "other/items", "tables.unknown_table"),
    ] {
        let answer = ask(who, items, 1, json!({ "project": [{ "name": "price", "expression": "of.price" }] })).await;
        assert!(answer.status.as_u16() >= 400 && !answer.text().contains("\"rows\""), "{}", answer.text());
        assert!(answer.error().1.contains(code), "{}", answer.text());
    }
    town.node.shutdown().await.unwrap();
}

/// Whoever reads a table of another application is known in those of its own, and there alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_leads_back_into_tables_of_the_readers_own_application() {
    let town = Town::start().await;
    let (shop, blog) = (town.app("shop").await, town.app("blog").await);
    let (ann, bob) = (town.user("ann"), town.user("bob"));
    town.create(&blog, "posts", json!({ "level": "public" })).await;
    town.create(&shop, "people", json!({ "level": "user" })).await;
    table(&town, &blog, "posts").await.put("1", [("by", Cell::from("ann"))]).await.unwrap();
    let letter = Write::put("ann", [("name", Cell::from("Ann"))]).audience("user.sub == 'ann'");
    table(&town, &ann, "people").await.write(letter).await.unwrap().committed().unwrap();
    let ask = json!({
        "lookup": { "table": "shop/people", "key": "by", "name": "who" },
        "project": [{ "name": "name", "expression": "who.name" }],
    });
    for (who, name) in [(&ann, json!("Ann")), (&bob, Value::Null)] {
        let answer = town.ask(who, Method::POST, "tables/blog%2Fposts/query", ask.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["rows"][0]["columns"]["name"], name);
    }
    let answer = town.ask(&blog, Method::POST, "tables/posts/query", ask).await;
    assert_eq!(answer.error(), (403, "tables.access".into()));
    town.node.shutdown().await.unwrap();
}

/// Pages of about a megabyte, between which hidden records lie, and within which.
#[tokio::test(flavor = "multi_thread")]
async fn pages_end_where_they_would_without_hidden_records() {
    let town = Town::start().await;
    let (shop, ann, bob) = (town.app("shop").await, town.user("ann"), town.user("bob"));
    let long = "x".repeat(300 << 10);
    for name in ["with", "without"] {
        town.create(&shop, name, json!({ "cuts": ["k5"] })).await;
        let records = table(&town, &ann, name).await;
        for n in 0..10 {
            let columns = [("n", Cell::Int(n)), ("text", Cell::from(long.as_str()))];
            records.put(format!("k{n}").as_str(), columns.clone()).await.unwrap();
            if name == "with" {
                // Before, between and behind, until the partition's very end.
                for key in [format!("j{n}"), format!("k{n}a"), format!("k{n}b")] {
                    let secret = Write::put(key.as_str(), columns.clone()).audience("user.sub == 'ann'");
                    records.write(secret).await.unwrap().committed().unwrap();
                }
            }
        }
    }
    let pages = async |who: &str, table: &str, asked: &Value| {
        let (mut pages, mut cursor) = (Vec::new(), json!(""));
        while !cursor.is_null() {
            let mut ask = asked.clone();
            ask["cursor"] = cursor;
            let answer = town.ask(who, Method::POST, &format!("tables/{table}/query"), ask).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let answer = answer.json();
            let rows = answer["rows"].as_array().unwrap();
            let keys: Vec<String> = rows.iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect();
            cursor = answer["cursor"].clone();
            pages.push((keys, cursor.clone()));
        }
        pages
    };
    for asked in [
        json!({}),
        json!({ "predicate": "n >= 2" }),
        json!({ "limit": 7 }),
        json!({ "from": "k1", "before": "k8" }),
        json!({ "predicate": "n < 5" }),
    ] {
        let (with, without) = (pages(&bob, "with", &asked).await, pages(&bob, "without", &asked).await);
        assert_eq!(with, without, "{asked}");
        assert!(with.iter().flat_map(|(keys, _)| keys).all(|key| key.len() == 2), "{with:?}");
        assert!(with.len() > 1, "{asked}: {with:?}");
    }
    assert_eq!(pages(&ann, "with", &json!({})).await.iter().map(|(keys, _)| keys.len()).sum::<usize>(), 40);
    town.node.shutdown().await.unwrap();
}

/// By REST and by frames, as JSON too, which may be six times as long: pages are cut by their bytes, and their cursors lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_large_records_are_cut_by_bytes_and_go_on_by_their_cursors() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({ "cuts": ["k4"] })).await;
    let t = table(&town, &shop, "t").await;
    let text = "\u{1}".repeat(100 << 10);
    let keys: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    for key in &keys {
        t.put(key.as_str(), [("text", Cell::from(text.as_str()))]).await.unwrap();
    }
    let config = ClientConfig { credential: Some(shop.clone()), ..ClientConfig::in_process(town.node.door()) };
    let client = Client::connect(config).await.unwrap();
    for (as_json, pages) in [(false, 2), (true, 10)] {
        let (mut found, mut count, mut cursor) = (Vec::new(), 0, None);
        while cursor.as_ref().is_none_or(|cursor: &bytes::Bytes| !cursor.is_empty()) {
            let cursor_here = cursor.take().unwrap_or_default();
            let read = v1::RecordRead { table: "t".into(), as_json, cursor: cursor_here, ..Default::default() };
            let message = Some(Message::Read(read));
            let body = Body::Tables(v1::TablesMessage { message, ..Default::default() });
            let Body::Tables(v1::TablesMessage { message: Some(Message::Rows(rows)), .. }) =
                client.call(Request::new(body)).await.unwrap()
            else {
                panic!("no rows")
            };
            let size: usize = rows.rows.iter().map(prost::Message::encoded_len).sum();
            assert!(!rows.rows.is_empty() && size <= 1 << 20, "{size}");
            found.extend(rows.rows.into_iter().map(|row| Record::try_from(row).unwrap()));
            (count, cursor) = (count + 1, Some(rows.cursor));
        }
        assert_eq!((found.len(), count), (10, pages), "as JSON: {as_json}");
        for (record, key) in found.iter().zip(&keys) {
            let whole = (record.key.clone(), record.columns["text"].clone());
            assert_eq!(whole, (Some(key.as_str().into()), Cell::from(text.as_str())));
        }
    }
    // By REST, where nothing but the page bounds an answer.
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = town.ask(&shop, READ, &format!("tables/t/records?cursor={cursor}"), NONE).await.json();
        found.extend(answer["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()));
        match answer["cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(found, keys);
    // What does not fit any frame is refused by name.
    t.put("k0", [("text", Cell::from("\u{1}".repeat(300 << 10).as_str()))]).await.unwrap();
    let key = Some(form::key_to("k0".into()));
    for read in [
        v1::RecordRead { table: "t".into(), as_json: true, ..Default::default() },
        v1::RecordRead { table: "t".into(), as_json: true, key, ..Default::default() },
    ] {
        let message = Some(Message::Read(read));
        let body = Body::Tables(v1::TablesMessage { message, ..Default::default() });
        assert_eq!(client.call(Request::new(body)).await.unwrap_err().code, "tables.answer_too_large");
    }
    town.node.shutdown().await.unwrap();
}

/// What a closed table cannot have is refused where it is asked for the first time; what was watched before goes on.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_a_closed_table_does_not_have_are_refused_by_name() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    let closed = json!({ "columns": { "price": { "kinds": ["int"] } }, "closed": true });
    town.create(&shop, "t", json!({})).await;
    let t = table(&town, &shop, "t").await;
    t.put("a", [("prise", Cell::Int(3))]).await.unwrap();
    let ask = Ask { predicate: "prise < 5".to_owned(), ..Ask::default() };
    let mut live = super::Folded::new(t.watch(&ask, WatchOptions::default()));
    live.becomes(&["a"]).await;
    let mut again = t.watch(&Ask { limit: Some(5), ..ask.clone() }, WatchOptions::default());
    becomes(&mut again, &["a"]).await;
    let cursor = async {
        loop {
            let _ = tokio::time::timeout(Duration::from_millis(1_500), live.watch.next()).await;
            if let Some(cursor) = live.watch.cursor() {
                return cursor.clone();
            }
        }
    };
    let cursor = tokio::time::timeout(SOON, cursor).await.expect("a cursor is told");
    let altered = town.ask(&shop, Method::PATCH, "tables/t", closed).await;
    assert_eq!(altered.status, 200, "{}", altered.text());

    for path in ["records?predicate=prise%20%3C%205", "watch?predicate=prise%20%3C%205"] {
        let refused = town.ask(&shop, READ, &format!("tables/t/{path}"), NONE).await;
        assert_eq!(refused.error(), (400, "tables.predicate_name".into()), "{path}");
        assert!(refused.text().contains("no column `prise` (line 1, column 1)"), "{}", refused.text());
    }
    for parts in [
        json!({ "order": [{ "expression": "price" }, { "expression": "prise" }] }),
        json!({ "aggregates": [{ "name": "n", "aggregate": "sum", "expression": "prise" }] }),
        json!({ "lookup": { "table": "u", "key": "prise", "name": "of" } }),
    ] {
        let refused = town.ask(&shop, Method::POST, "tables/t/query", parts).await;
        assert_eq!(refused.error(), (400, "tables.predicate_name".into()), "{}", refused.text());
    }
    let written = Write::put("b", [("price", Cell::Int(1))]).audience("prise == 3");
    assert_eq!(t.write(written).await.unwrap_err().code, "tables.predicate_name");
    assert_eq!(t.read(&ask, &ReadOptions::default()).await.unwrap_err().code, "tables.predicate_name");

    t.delete("a").await.unwrap();
    live.becomes(&[]).await;
    becomes(&mut again, &[]).await;
    let resumed = WatchOptions { cursor: Some(cursor), ..WatchOptions::default() };
    let mut resumed = super::Folded { rows: ["a".into()].into(), ..super::Folded::new(t.watch(&ask, resumed)) };
    resumed.becomes(&[]).await;
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_slow_is_told_by_name_to_readers_and_watchers() {
    let town = Town::start().await;
    let (shop, bob) = (town.app("shop").await, town.user("bob"));
    town.create(&shop, "t", json!({})).await;
    let t = table(&town, &shop, "t").await;
    let predicate = ["text.contains('y')"; 5].join(" || ");
    let ask = Ask { predicate, ..Ask::default() };
    let sorted = Ask { limit: Some(5), ..ask.clone() };
    let ended = async |mut live: Watch| {
        let ending = async {
            loop {
                if let Event::Ended(error) = live.next().await.expect("it ends with a word") {
                    return error;
                }
            }
        };
        tokio::time::timeout(SOON, ending).await.expect("it ends").code
    };
    let (mut one, mut other) = (t.watch(&ask, WatchOptions::default()), t.watch(&sorted, WatchOptions::default()));
    // Both are there before what they are too slow for.
    assert!(matches!(one.next().await, Some(Event::Reset { last: true, .. })));
    becomes(&mut other, &[]).await;
    let bobs = table(&town, &bob, "t").await;
    let text = Cell::from("x".repeat(1_000_000).as_str());
    let write = Write::put("a", [("text", text)]).audience("user.sub != 'bob'");
    t.write(write).await.unwrap().committed().unwrap();
    // Without a user there are no claims: nobody is shown it, and nobody hears of it.
    assert_eq!(t.read(&ask, &ReadOptions::default()).await.unwrap(), []);
    let ann = table(&town, &town.user("ann"), "t").await;
    for ask in [&ask, &sorted] {
        assert_eq!(ann.read(ask, &ReadOptions::default()).await.unwrap_err().code, "tables.too_slow");
        assert_eq!(bobs.read(ask, &ReadOptions::default()).await.unwrap(), []);
        assert_eq!(ended(ann.watch(ask, WatchOptions::default())).await, "tables.too_slow");
    }
    t.put("b", [("text", Cell::from("x".repeat(1_000_000).as_str()))]).await.unwrap();
    for live in [one, other] {
        assert_eq!(ended(live).await, "tables.too_slow");
    }
    town.node.shutdown().await.unwrap();
}
