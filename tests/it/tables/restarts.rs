//! What was acknowledged survives SIGKILL, and so does what is still to be done.

use super::{create, keys, lines, start, table};
use crate::process::{Server, http_get, turn, until};
use serde_json::json;

#[test]
fn acknowledged_writes_survive_a_kill_and_watchers_go_on() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &["--cut", "k05"]);
    for number in 0..10 {
        table(&server, &["put", "t", &format!("k{number:02}"), &json!({ "n": number }).to_string()]);
    }
    let version = table(&server, &["get", "t", "k03", "--json"]).json()["version"].clone();
    server.kill();

    let server = start(dir.path());
    let rows = until("the records are there again", || {
        let said = server.run(&["table", "read", "t", "n >= 2", "--json"]);
        (said.code == 0).then(|| lines(&said.out))
    });
    assert_eq!(keys(&rows), ["k02", "k03", "k04", "k05", "k06", "k07", "k08", "k09"]);
    assert_eq!(rows[1]["version"], version);
    // R1: versions go on above those of the earlier term.
    let later = table(&server, &["put", "t", "k03", r#"{"n": 30}"#, "--json"]).json()["version"].clone();
    assert!(later.as_u64() > version.as_u64(), "{later} {version}");
    let stale = version.to_string();
    server.run(&["table", "put", "t", "k03", "{}", "--if-version", &stale]).failed(4, "the record has version");
}

/// The value of a metric.
fn metric(server: &Server, name: &str) -> Option<f64> {
    let (_, text) = http_get(server.address, "/metrics")?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until so many rows of dropped tables are deleted, and nothing is left of any.
fn deletes(server: &Server, rows: f64) {
    until("rows of the dropped table are deleted", || {
        let deleted = metric(server, "tidings_tables_rows_deleted_total")?;
        (deleted >= rows && metric(server, "tidings_tables_dropped")? == 0.0).then_some(())
    });
}

#[test]
fn rows_of_a_dropped_table_go_and_those_of_its_namesake_stay() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    create(&server, "t", &["--cut", "k05"]);
    for number in 0..10 {
        table(&server, &["put", "t", &format!("k{number:02}"), r#"{"n": 1}"#]);
    }
    table(&server, &["drop", "t", "--yes"]);
    create(&server, "t", &[]);
    // Many, so that they cannot be gone in the moment before the node dies.
    let all: String = (0..1_000).map(|n| format!("{{\"key\":\"r{n:04}\",\"columns\":{{\"n\":2}}}}\n")).collect();
    let file = dir.path().join("all.ndjson");
    std::fs::write(&file, all).unwrap();
    table(&server, &["import", "t", file.to_str().unwrap()]);
    deletes(&server, 10.0);
    let count =
        || lines(&table(&server, &["read", "t", "--aggregate", "n=count", "--json"]).out)[0]["columns"]["n"].clone();
    assert_eq!(count(), 1_000);

    // A node that dies in between goes on where it was.
    table(&server, &["drop", "t", "--yes"]);
    server.kill();
    let server = start(dir.path());
    deletes(&server, 1.0);
    server.run(&["table", "read", "t"]).failed(3, "There is no table `t`.");
}
