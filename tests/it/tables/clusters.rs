//! Three nodes: a partition is served by one of them, and asked for at any.

use super::{FAST, create, keys, lines, table};
use crate::cluster::Cluster;
use crate::process::{turn, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn records_and_watchers_outlive_the_owner_of_their_partition() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), FAST);
    create(cluster.node(0), "t", &[]);
    for number in 0..3 {
        let text = json!({ "n": number }).to_string();
        table(cluster.node(number), &["put", "t", &format!("k{number}"), &text]);
    }
    // The owner is known by its address; one node asks it for the others.
    let shown = table(cluster.node(1), &["stat", "t", "--json"]).json();
    let owner = shown["partitions"][0]["owner"].as_str().expect("an owner").to_owned();
    let place = cluster.urls.iter().position(|url| url.contains(&owner)).expect("one of the three");
    let alive = (place + 1) % 3;
    let servers = cluster.urls.join(",");
    let watcher = cluster.node(alive).start_command(&["table", "watch", "t", "--json", "--server", &servers]);
    let knows = |key: &str| {
        lines(&watcher.out()).iter().any(|line| {
            let among = |rows: &Value| rows.as_array().is_some_and(|rows| rows.iter().any(|row| row["key"] == key));
            line["key"] == key || among(&line["rows"])
        })
    };
    until("the watcher has the first read", || knows("k2").then_some(()));

    cluster.kill(place);
    // Tried once: the command itself goes on until another node serves the partition.
    let said = cluster.node(alive).run(&["table", "put", "t", "k3", r#"{"n": 3}"#, "--timeout", "30"]);
    assert_eq!(said.code, 0, "{said:?}");
    let rows = lines(&table(cluster.node((place + 2) % 3), &["read", "t", "--json", "--timeout", "30"]).out);
    assert_eq!(keys(&rows), ["k0", "k1", "k2", "k3"]);
    until("the watcher hears of it", || knows("k3").then_some(()));
}

#[test]
fn a_table_of_many_parts_is_one_table_from_everywhere() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(dir.path(), FAST);
    create(cluster.node(0), "t", &["--cut", "b", "--cut", "c", "--cut", "d", "--cut", "e", "--cut", "f"]);
    // Each record fills a good part of a page.
    let long = "x".repeat(300_000);
    let file = dir.path().join("records");
    let letters = ["a", "b", "c", "d", "e", "f"];
    let records = (0..).zip(letters).map(|(n, key)| json!({ "key": key, "columns": { "n": n, "long": long } }));
    std::fs::write(&file, records.map(|record| format!("{record}\n")).collect::<String>()).unwrap();
    table(cluster.node(1), &["import", "t", file.to_str().unwrap(), "--timeout", "30"]);
    // Whoever comes first owns everything until the others have joined.
    until("more than one node serves its parts", || {
        let shown = table(cluster.node(0), &["stat", "t", "--json"]).json();
        let parts = shown["partitions"].as_array().unwrap();
        let owners: BTreeSet<&str> = parts.iter().filter_map(|part| part["owner"].as_str()).collect();
        (owners.len() > 1).then_some(())
    });
    for place in 0..3 {
        let node = cluster.node(place);
        assert_eq!(keys(&lines(&table(node, &["export", "t"]).out)), letters);
        let last = table(node, &["read", "t", "n < 5", "--order", "-n", "--limit", "2", "--project", "n", "--json"]);
        let last: Vec<Value> = lines(&last.out).iter().map(|row| row["columns"]["n"].clone()).collect();
        assert_eq!(last, [4, 3]);
        let sum = lines(&table(node, &["read", "t", "--aggregate", "all=sum:n", "--json"]).out);
        assert_eq!(sum[0]["columns"], json!({ "all": 15 }));
    }
}
