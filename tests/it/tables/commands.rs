//! `tidings table …`: one node, one slice through everything.

use super::{create, keys, lines, start, table, until_standing};
use crate::process::{turn, until};
use serde_json::{Value, json};

#[test]
fn records_are_written_read_queried_and_watched() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "prices", &[]);
    server.run(&["table", "create", "prices"]).failed(4, "A table of this name is there already.");
    let watcher = server.start_command(&["table", "watch", "prices", "price < 5", "--json"]);

    let first = table(&server, &["put", "prices", "apple", r#"{"price": 3, "fresh": true}"#, "--json"]).json();
    table(&server, &["put", "prices", "pear", r#"{"price": 7}"#]);
    let apple = table(&server, &["get", "prices", "apple", "--json"]).json();
    assert_eq!(apple["columns"], json!({ "price": 3, "fresh": true }));
    assert_eq!((&apple["version"], &apple["writer"]), (&first["version"], &json!("operator")));
    server.run(&["table", "get", "prices", "plum"]).failed(3, "there is no record `plum`");

    let cheap = lines(&table(&server, &["read", "prices", "price < 5", "--json"]).out);
    assert_eq!(keys(&cheap), ["apple"]);
    let ordered = lines(&table(&server, &["query", "prices", "--order", "-price", "--limit", "1", "--json"]).out);
    assert_eq!(keys(&ordered), ["pear"]);
    let ranged = |args: &[&str]| table(&server, &[&["read", "prices", "--json"], args].concat()).out;
    assert_eq!(keys(&lines(&ranged(&["--from", "b"]))), ["pear"]);
    assert_eq!(keys(&lines(&ranged(&["--from", "apple", "--before", "pear"]))), ["apple"]);
    let summed = lines(&table(&server, &["read", "prices", "--aggregate", "all=sum:price", "--json"]).out);
    assert_eq!(summed[0]["columns"], json!({ "all": 10 }));

    // A look-up by key in another table, next to the data.
    create(&server, "orders", &[]);
    table(&server, &["put", "orders", "o1", r#"{"item": "pear", "n": 2}"#]);
    let total = ["--lookup", "of=prices:item", "--project", "total=n * of.price", "--json"];
    let total = lines(&table(&server, &[&["read", "orders"], &total[..]].concat()).out);
    assert_eq!(total[0]["columns"], json!({ "total": 14 }));
    server.run(&["table", "read", "orders", "--lookup", "of"]).failed(2, "is no look-up");

    // It enters, changes and leaves what is watched; what is outside is not told.
    until_standing(&watcher, &["apple"]);
    table(&server, &["patch", "prices", "pear", r#"{"price": 4}"#]);
    until_standing(&watcher, &["apple", "pear"]);
    table(&server, &["rm", "prices", "apple"]);
    until_standing(&watcher, &["pear"]);
    assert_eq!(keys(&lines(&table(&server, &["read", "prices", "--json"]).out)), ["pear"]);
}

#[test]
fn conditions_conflicts_and_mistakes_are_told() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "notes", &["--column", "text:string!", "--closed"]);
    let put =
        |key: &str, json: &str, more: &[&str]| server.run(&[&["table", "put", "notes", key, json], more].concat());
    // What is not said stays as it is.
    table(&server, &["alter", "notes", "--max-records", "5", "--level", "public", "--tombstones", "3600"]);
    let altered = table(&server, &["alter", "notes", "--max-bytes", "100000", "--json"]).json();
    let properties = &altered["properties"];
    assert_eq!((&properties["level"], &properties["closed"]), (&json!("public"), &json!(true)), "{altered}");
    assert_eq!(properties["max_records"], 5, "{altered}");
    let text = table(&server, &["stat", "notes"]).out;
    for line in ["max_records: 5", "max_bytes: 100000", "tombstones_s: 3600", "closed: no other columns"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let first = put("a", r#"{"text": "one"}"#, &["--if-version", "0", "--json"]).json();
    let version = first["version"].to_string();
    put("a", r#"{"text": "two"}"#, &["--if-version", "0"]).failed(4, "the record has version");
    assert_eq!(put("a", r#"{"text": "two"}"#, &["--if-version", &version]).code, 0);
    // R6: a write by a name of the caller's own is done once, and can be waited for.
    let name = format!("{}/1", "0f".repeat(16));
    let named = |text: &str| put("c", text, &["--operation", &name, "--json"]);
    let once = named(r#"{"text": "c"}"#).json();
    assert_eq!(named(r#"{"text": "c"}"#).json(), once);
    put("c", r#"{"text": "d"}"#, &["--operation", &name]).failed(4, "Another operation had this id.");
    let after = table(&server, &["read", "notes", "--pending", &format!("{name}/c"), "--limit", "1", "--json"]).out;
    assert_eq!(keys(&lines(&after)), ["a"]);
    server.run(&["table", "read", "notes", "--pending", "x/1/c"]).failed(2, "names no operation");
    assert_eq!(table(&server, &["read", "notes", "--limit", "0", "--json"]).out, "");
    table(&server, &["rm", "notes", "c"]);
    put("b", r#"{"text": 3}"#, &[]).failed(2, "text");
    put("b", r#"{"text": "x", "more": 1}"#, &[]).failed(2, "more");
    put("b", "[]", &[]).failed(2, "JSON object");
    let wrong = server.run(&["table", "read", "notes", "text =! 'a'"]);
    assert!(wrong.code == 2 && wrong.err.contains('^'), "{wrong:?}");
    let closed = server.run(&["table", "read", "notes", "txt == 'a'"]);
    assert!(closed.err.contains('^'), "{closed:?}");
    closed.failed(2, "the table has no column `txt`");
    server.run(&["table", "read", "nothing"]).failed(3, "There is no table `nothing`.");
    server.run(&["table", "create", "no name"]).failed(2, "cannot name a table");
    // What nothing keeps is not promised.
    for (said, code, why) in [
        (&["--replication", "3"][..], 4, "1 here, not 3"),
        (&["--replication", "byzantine"], 2, "no replication `byzantine`"),
        (&["--lossy"], 4, "lossy yet"),
    ] {
        server.run(&[&["table", "create", "promises"], said].concat()).failed(code, why);
        server.run(&[&["table", "alter", "notes"], said].concat()).failed(code, why);
    }
    for same in ["cluster", "1"] {
        let altered = table(&server, &["alter", "notes", "--replication", same, "--lossy=false", "--json"]).json();
        assert_eq!(altered["properties"]["replication"], "cluster");
    }
    server.run(&["table", "drop", "notes"]).failed(2, "deletes everything");
    let all = table(&server, &["ls", "--json"]).json();
    assert_eq!(all["tables"][0]["properties"]["columns"]["text"], json!({ "kinds": ["string"], "required": true }));
    let shown = table(&server, &["stat", "notes", "--json"]).json();
    assert_eq!(shown["partitions"][0]["records"], 1, "{shown}");
    table(&server, &["drop", "notes", "--yes"]);
    put("a", r#"{"text": "x"}"#, &[]).failed(3, "There is no table `notes`.");
    assert_eq!(table(&server, &["ls", "--json"]).json()["tables"], json!([]));
}

/// What a writer says of itself decides whether it may patch a record, and what a conflict says of it.
#[test]
fn writers_say_of_themselves_what_audiences_ask_for() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "cars", &[]);
    let here = ["--context", r#"{"place": 1}"#];
    table(&server, &["put", "cars", "a", r#"{"n": 1}"#, "--audience", "reader.place == 1"]);
    let patch = |more: &[&str]| server.run(&[&["table", "patch", "cars", "a", r#"{"n": 2}"#], more].concat());
    for more in [&[][..], &["--context", r#"{"place": 2}"#]] {
        patch(more).failed(4, "not shown to this writer");
    }
    patch(&["--context", "[]"]).failed(2, "JSON object");
    assert_eq!(patch(&here).code, 0);
    let shown = table(&server, &[&["get", "cars", "a", "--json"], &here[..]].concat()).json();
    assert_eq!(shown["columns"], json!({ "n": 2 }));
    for write in [&["put", "cars", "a", "{}"][..], &["rm", "cars", "a"]] {
        let write = [&["table"], write, &["--if-version", "1"]].concat();
        server.run(&write).failed(4, "not shown to this writer");
        server.run(&[&write[..], &here].concat()).failed(4, &format!("the record has version {}", shown["version"]));
    }
}

#[test]
fn tables_are_cut_and_joined_while_they_are_watched() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &[]);
    let put = |key: &str, n: i64| {
        table(&server, &["put", "t", key, &json!({ "n": n }).to_string(), "--json"]).json()["version"].as_u64()
    };
    for (n, key) in (0..).zip(["a", "k", "z"]) {
        put(key, n);
    }
    let watcher = server.start_command(&["table", "watch", "t", "n >= 1", "--json"]);
    let hears = |key: &str, n: i64| {
        until(&format!("{key} = {n} is told"), || {
            let is = |row: &Value| row["key"] == key && row["columns"]["n"] == n;
            let told = |line: &Value| is(line) || line["rows"].as_array().is_some_and(|rows| rows.iter().any(is));
            lines(&watcher.out()).iter().any(told).then_some(())
        });
    };
    hears("z", 2);
    let before = put("k", 4);
    let parts = |shown: Value| shown["partitions"].as_array().map_or(0, Vec::len);
    assert_eq!(parts(table(&server, &["split", "t", "k", "--json"]).json()), 2);
    // R1: the counter goes on above the parent's.
    assert!(put("k", 5) > before);
    put("b", 6);
    hears("k", 5);
    hears("b", 6);
    assert_eq!(parts(table(&server, &["merge", "t", "a", "--json"]).json()), 1);
    put("c", 7);
    hears("c", 7);
    let rows = lines(&table(&server, &["read", "t", "--json"]).out);
    assert_eq!(keys(&rows), ["a", "b", "c", "k", "z"]);
    server.run(&["table", "merge", "t", "a"]).failed(4, "no partition behind");
    server.run(&["table", "split", "t", ""]).failed(2, "A key is");
}

#[test]
fn who_watches_what_was_asked_and_how_nodes_fare_is_shown() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &[]);
    assert_eq!(table(&server, &["queries", "t", "--json"]).json(), json!({ "queries": [], "more": false }));
    let watcher = server.start_command(&["table", "watch", "t", "n < 5", "--json"]);
    table(&server, &["put", "t", "a", r#"{"n": 1}"#]);
    until_standing(&watcher, &["a"]);
    let queries = table(&server, &["queries", "t", "--json"]).json();
    let query = &queries["queries"][0];
    assert_eq!((&query["predicate"], &query["partitions"]), (&json!("n < 5"), &json!(1)), "{queries}");
    assert_eq!((&query["principal"], &query["silent"]), (&json!("operator"), &json!(0)), "{queries}");
    let text = table(&server, &["queries", "t"]).out;
    assert!(text.contains("n < 5") && text.contains("operator") && text.contains("UNTAKEN"), "{text}");
    server.run(&["table", "queries", "nothing"]).failed(3, "There is no table `nothing`.");

    table(&server, &["get", "t", "a"]);
    let shown = table(&server, &["stat", "t", "--json"]).json();
    let part = &shown["partitions"][0];
    assert_eq!((&part["writes"], &part["reads"], &part["live_queries"]), (&json!(1), &json!(1), &json!(1)), "{shown}");
    let text = table(&server, &["stat", "t"]).out;
    assert!(["WRITES", "UNDELIVERED", "COPIES"].iter().all(|heading| text.contains(heading)), "{text}");

    let load = table(&server, &["load", "--json"]).json();
    let node = &load["nodes"][0];
    assert_eq!(
        (&node["node"], &node["partitions"], &node["live_queries"]),
        (&json!(1), &json!(1), &json!(1)),
        "{load}"
    );
    assert_eq!((&node["answers"]["written"], &node["overrun"]), (&json!(1), &json!(0)), "{load}");
    let text = table(&server, &["load"]).out;
    assert!(text.contains("LIVE QUERIES") && text.contains("OVERRUN"), "{text}");
}

#[test]
fn exports_are_imported_as_they_were() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    for name in ["one", "two", "three"] {
        create(&server, name, &["--cut", "m"]);
    }
    let big = r#"{"n": 9007199254740993, "f": 2.0, "s": "3", "l": [1, {"base64": "AP8="}], "z": null, "zz": "x\t"}"#;
    table(&server, &["put", "one", "k", big]);
    table(&server, &["put", "one", "ü, \"x\"", r#"{"n": -1}"#]);
    for (format, to) in [("ndjson", "two"), ("csv", "three")] {
        let exported = table(&server, &["export", "one", "--format", format]).out;
        let file = dir.path().join("exported").with_extension(format);
        std::fs::write(&file, &exported).unwrap();
        let imported = table(&server, &["import", to, file.to_str().unwrap(), "--json"]).json();
        assert_eq!(imported["written"], 2, "{exported}");
        let columns = |name: &str| {
            let rows = lines(&table(&server, &["export", name]).out);
            rows.iter().map(|row| (row["key"].clone(), row["columns"].clone())).collect::<Vec<_>>()
        };
        assert_eq!(columns(to), columns("one"), "{exported}");
    }
    let read = lines(&table(&server, &["read", "one", "key == 'k'", "--json"]).out);
    assert_eq!(read[0]["columns"]["n"], "9007199254740993", "beyond what readers of JSON take exactly");

    // The first that is refused is told by its line, and how many are written all the same.
    create(&server, "typed", &["--column", "n:int"]);
    let records = [("a", json!(1)), ("b", json!("x")), ("c", json!("y")), ("d", json!(4))];
    let ndjson = records.map(|(key, n)| format!("{}\n", json!({ "key": key, "columns": { "n": n } }))).concat();
    for (format, text, line) in [("ndjson", ndjson.as_str(), 2), ("csv", "key,n\na,1\nb,x\nc,y\nd,4\n", 3)] {
        let file = dir.path().join("refused");
        std::fs::write(&file, text).unwrap();
        let refused = server.run(&["table", "import", "typed", file.to_str().unwrap(), "--format", format]);
        refused.failed(2, &format!("line {line}, with 2 others written: "));
    }
}

#[test]
fn lists_of_access_are_shown_and_changed() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "notes", &["--level", "public"]);
    let acl = |args: &[&str]| table(&server, &[&["acl", "notes", "--json"], args].concat()).json();
    assert_eq!(acl(&[]), json!({ "table": "notes", "listed": false, "entries": null }));
    let made =
        acl(&["--allow", "user:default/*=read", "--allow", "user:default/ann=all", "--deny", "app:blog/*=write"]);
    let entry = |who: &str, allow: &[&str], deny: &[&str]| json!({ "who": who, "allow": allow, "deny": deny });
    let (blog, users) = (entry("app:blog/*", &[], &["write"]), entry("user:default/*", &["read"], &[]));
    let ann = entry("user:default/ann", &["read", "write", "administer"], &[]);
    assert_eq!(made["entries"], json!([blog, users, ann]));
    let less = acl(&["--deny", "user:default/ann=administer", "--remove", "app:blog/*"]);
    assert_eq!(less["entries"], json!([users, entry("user:default/ann", &["read", "write"], &["administer"])]));
    let text = table(&server, &["acl", "notes"]).out;
    assert!(text.contains("user:default/ann") && text.contains("read,write"), "{text}");
    // Operators are not shut out, and what is altered keeps its list.
    table(&server, &["put", "notes", "a", "{}"]);
    table(&server, &["alter", "notes", "--max-records", "5"]);
    assert_eq!(acl(&[])["entries"], less["entries"]);
    server.run(&["table", "acl", "notes", "--allow", "ann=read"]).failed(2, "names nobody");
    server.run(&["table", "acl", "notes", "--allow", "user:default/ann=fly"]).failed(2, "`fly` is no right");
    server.run(&["table", "acl", "notes", "--allow", "user:default/ann"]).failed(2, "names no rights");
    server.run(&["table", "acl", "nothing"]).failed(3, "There is no table `nothing`.");
    assert_eq!(acl(&["--off"])["listed"], false);
}
