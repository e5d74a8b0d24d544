//! Tables that are partitioned by a column: a record is named by the column's value and a key.

use super::{create, keys, lines, start, table, until_standing};
use crate::process::{Server, http, http_get, turn};
use serde_json::{Value, json};

fn put(server: &Server, key: &str, city: &str, days: i64) {
    table(server, &["put", "visits", key, &json!({ "city": city, "days": days }).to_string()]);
}

/// What a command printed, as values of the column and keys.
fn named(out: &str) -> Vec<(String, String)> {
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    lines(out).iter().map(|row| (text(row, "in"), text(row, "key"))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(city, key)| ((*city).to_owned(), (*key).to_owned())).collect()
}

#[test]
fn records_are_named_by_a_value_and_a_key() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "visits", &["--partition-by", "city", "--cut", "P"]);
    let watcher = server.start_command(&["table", "watch", "visits", "--in", "Rome", "--json"]);
    for (key, city, days) in [("ann", "Rome", 3), ("ann", "Oslo", 5), ("bob", "Rome", 1), ("zoe", "Bern", 2)] {
        put(&server, key, city, days);
    }
    until_standing(&watcher, &["ann", "bob"]);
    // The same key within two values is two records; they stand in the order of values, then of keys.
    let all = table(&server, &["read", "visits", "--json"]).out;
    assert_eq!(named(&all), pairs(&[("Bern", "zoe"), ("Oslo", "ann"), ("Rome", "ann"), ("Rome", "bob")]));
    let rome = table(&server, &["read", "visits", "--in", "Rome", "--json"]).out;
    assert_eq!(named(&rome), pairs(&[("Rome", "ann"), ("Rome", "bob")]));
    let later = table(&server, &["read", "visits", "--in", "Rome", "--from", "b", "--json"]).out;
    assert_eq!(named(&later), pairs(&[("Rome", "bob")]));
    let before = table(&server, &["read", "visits", "--before", "P", "--json"]).out;
    assert_eq!(named(&before), pairs(&[("Bern", "zoe"), ("Oslo", "ann")]));
    let sum = lines(&table(&server, &["read", "visits", "--in", "Rome", "--aggregate", "d=sum:days", "--json"]).out);
    assert_eq!(sum[0]["columns"], json!({ "d": 4 }));
    let named_bob = table(&server, &["read", "visits", "key == 'bob'", "--json"]).out;
    assert_eq!(named(&named_bob), pairs(&[("Rome", "bob")]), "`key` is the key alone");
    let ann = table(&server, &["get", "visits", "ann", "--in", "Oslo", "--json"]).json();
    assert_eq!((&ann["columns"]["days"], &ann["in"], &ann["key"]), (&json!(5), &json!("Oslo"), &json!("ann")));
    let version = ann["version"].to_string();

    // Whatever changes a record says which, and its column stays.
    let run = |args: &[&str]| server.run(&[&["table"], args].concat());
    run(&["get", "visits", "ann"]).failed(2, "partitioned by `city`");
    run(&["rm", "visits", "ann"]).failed(2, "tables.partition_column");
    run(&["put", "visits", "x", r#"{"days": 1}"#]).failed(2, "is missing");
    run(&["put", "visits", "x", r#"{"city": 7}"#]).failed(2, "holds string, not int");
    run(&["put", "visits", "x", r#"{"city": {"$float": "NaN"}}"#]).failed(2, "holds string, not double");
    run(&["put", "visits", "x", r#"{"city": "Rome"}"#, "--in", "Oslo"]).failed(2, "cannot become");
    run(&["patch", "visits", "ann", r#"{"city": "Rome"}"#, "--in", "Oslo"]).failed(2, "cannot become");
    run(&["patch", "visits", "ann", "{}", "--remove", "city", "--in", "Oslo"]).failed(2, "is missing");
    table(&server, &["patch", "visits", "ann", r#"{"days": 6}"#, "--in", "Oslo", "--if-version", &version]);
    table(&server, &["alter", "visits", "--level", "public"]);
    let shown = table(&server, &["stat", "visits", "--json"]).json();
    assert_eq!(shown["properties"]["partition_by"], json!({ "column": "city", "kind": "string" }));
    assert_eq!(shown["partitions"][1]["start"], json!({ "in": "P" }));
    assert!(table(&server, &["stat", "visits"]).out.contains("partition_by: city (string)"));
    table(&server, &["rm", "visits", "bob", "--in", "Rome"]);

    // The watcher was told of Rome, and of nothing else.
    until_standing(&watcher, &["ann"]);
    let left = lines(&watcher.out()).into_iter().filter(|line| line["event"] == "leave");
    left.for_each(|line| assert_eq!(line["in"], "Rome"));
    assert!(!watcher.out().contains("Oslo") && watcher.out().contains("ann"), "{}", watcher.out());

    // Cut within a value, and joined again.
    let cut = table(&server, &["split", "visits", "b", "--in", "Rome", "--json"]).json();
    assert_eq!(cut["partitions"][2]["start"], json!({ "in": "Rome", "key": "b" }));
    table(&server, &["merge", "visits", "Rome"]);
    put(&server, "carl", "Rome", 9);
    let rome = table(&server, &["read", "visits", "--in", "Rome", "--json"]).out;
    assert_eq!(named(&rome), pairs(&[("Rome", "ann"), ("Rome", "carl")]));

    // An export is an import elsewhere, whether or not that is partitioned.
    create(&server, "copy", &["--partition-by", "city"]);
    create(&server, "flat", &[]);
    for format in ["ndjson", "csv"] {
        let exported = table(&server, &["export", "visits", "--format", format]).out;
        let file = dir.path().join(format);
        std::fs::write(&file, &exported).unwrap();
        table(&server, &["import", "copy", file.to_str().unwrap(), "--format", format]);
        assert_eq!(named(&table(&server, &["read", "copy", "--json"]).out).len(), 4, "{exported}");
    }
    let oslo = table(&server, &["export", "visits", "--in", "Oslo"]).out;
    assert_eq!(named(&oslo), pairs(&[("Oslo", "ann")]));
    run(&["read", "flat", "--in", "Rome"]).failed(2, "partitioned by no column");
    run(&["put", "flat", "a", "{}", "--in", "Rome"]).failed(2, "partitioned by no column");
    run(&["watch", "flat", "--in", "Rome", "--count", "1"]).failed(2, "partitioned by no column");
    run(&["create", "bad", "--partition-by", "city:double"]).failed(2, "kind `double`");
    run(&["create", "bad", "--partition-by", "key"]).failed(2, "No table can be partitioned");
    run(&["create", "bad", "--partition-by", "a", "--column", "a:int"]).failed(2, "holds string and nothing else");
}

#[test]
fn numbers_part_a_table_and_curl_names_them() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "days", &["--partition-by", "day:int", "--cut", "0"]);
    let ask = |method: &str, path: &str, body: Value| {
        let (status, text) = http(method, server.address, path, &body.to_string()).unwrap();
        (status, serde_json::from_str::<Value>(&text).unwrap_or_default())
    };
    for day in [-3, 20, 100] {
        assert_eq!(ask("PUT", "/v1/tables/days/records/a", json!({ "day": day, "n": 1 })).0, 200);
    }
    let page = ask("GET", "/v1/tables/days/records", Value::Null).1;
    let days: Vec<&Value> = page["rows"].as_array().unwrap().iter().map(|row| &row["in"]).collect();
    assert_eq!(days, [-3, 20, 100], "as numbers, and not as texts");
    assert_eq!(keys(page["rows"].as_array().unwrap()), ["a", "a", "a"]);
    let one = http_get(server.address, "/v1/tables/days/records/a?in=-3").unwrap();
    assert_eq!((one.0, serde_json::from_str::<Value>(&one.1).unwrap()["columns"]["n"].clone()), (200, json!(1)));
    assert_eq!(http_get(server.address, "/v1/tables/days/records/a?in=7").unwrap().0, 404);
    let (status, wrong) = ask("GET", "/v1/tables/days/records/a?in=x", Value::Null);
    assert_eq!((status, &wrong["code"]), (400, &json!("tables.partition_column")));
    assert_eq!(ask("GET", "/v1/tables/days/records/a", Value::Null).0, 400);
    let within =
        ask("POST", "/v1/tables/days/query", json!({ "in": 20, "project": [{ "name": "n", "expression": "n + 1" }] }));
    assert_eq!(within.1["rows"][0]["columns"], json!({ "n": 2 }), "{}", within.1);
    assert_eq!(ask("DELETE", "/v1/tables/days/records/a?in=20", Value::Null).0, 200);
    let exported = http_get(server.address, "/v1/tables/days/export?in=100").unwrap().1;
    // It comes in chunks, with their lengths between.
    let exported: Vec<&str> = exported.lines().filter(|line| line.starts_with('{')).collect();
    let [exported] = exported[..] else { panic!("{exported:?}") };
    assert_eq!(http("POST", server.address, "/v1/tables/days/import", exported).unwrap().0, 200);
    let parts = ask("GET", "/v1/tables/days", Value::Null).1;
    assert_eq!(
        (&parts["partitions"][1]["start"], &parts["properties"]["replication"]),
        (&json!({ "in": 0 }), &json!("cluster"))
    );
}
