//! Three nodes: a partition is served by one of them, and asked for at any.

use super::{FAST, create, keys, lines, table};
use crate::cluster::Cluster;
use crate::process::{Running, turn, until};
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

/// Leases that outlast the patience of every test: whoever waits for the end of one waits in vain.
const LONG: &str = "[placement]\nsession = \"1s\"\nfail_over = \"500ms\"\nround_trip = \"100ms\"\n\
                    [notify]\nlease = \"10m\"\nrenew = \"400ms\"\n";

const LETTERS: [&str; 4] = ["a", "b", "c", "d"];

/// Waits until a watcher was told of a record, as a change or among rows.
fn hears(watcher: &Running, key: &str, n: usize) {
    let told = |row: &Value| row["key"] == key && row["columns"]["n"] == n;
    until(&format!("a watcher hears that {key} is {n}"), || {
        let lines = lines(&watcher.out());
        let among = |rows: &Value| rows.as_array().is_some_and(|rows| rows.iter().any(told));
        lines.iter().any(|line| told(line) || among(&line["rows"])).then_some(())
    });
}

/// A node that owns a part of a table ends: every table is read whole at the others, is written, and is watched on, also by
/// whoever was connected to the one that ended.
fn outlives(config: &str, end: impl FnOnce(&mut Cluster, usize)) {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), config);
    create(cluster.node(0), "whole", &[]);
    create(cluster.node(0), "cut", &["--cut", "b", "--cut", "c", "--cut", "d"]);
    let put = |cluster: &Cluster, at: usize, n: usize| {
        for (name, key) in ["whole", "cut"].into_iter().flat_map(|name| LETTERS.map(|key| (name, key))) {
            table(cluster.node(at), &["put", name, key, &json!({ "n": n }).to_string(), "--timeout", "30"]);
        }
    };
    put(&cluster, 0, 1);
    let servers = cluster.urls.join(",");
    let watchers: Vec<Running> = (0..3)
        .flat_map(|at| ["whole", "cut"].map(|name| (at, name)))
        .map(|(at, name)| cluster.node(at).start_command(&["table", "watch", name, "--json", "--server", &servers]))
        .collect();
    let all_hear = |n| watchers.iter().for_each(|watcher| LETTERS.iter().for_each(|key| hears(watcher, key, n)));
    all_hear(1);
    let shown = table(cluster.node(0), &["stat", "cut", "--json"]).json();
    let owner = shown["partitions"][0]["owner"].as_str().expect("an owner").to_owned();
    let place = cluster.urls.iter().position(|url| url.contains(&owner)).expect("one of the three");
    end(&mut cluster, place);
    for at in [(place + 1) % 3, (place + 2) % 3] {
        for name in ["whole", "cut"] {
            let rows = lines(&table(cluster.node(at), &["read", name, "--json", "--timeout", "30"]).out);
            assert_eq!(keys(&rows), LETTERS, "{name}");
        }
    }
    put(&cluster, (place + 1) % 3, 2);
    all_hear(2);
}

#[test]
fn every_part_and_watcher_outlives_a_node_that_stops() {
    outlives(LONG, Cluster::terminate);
}

#[test]
fn every_part_and_watcher_outlives_a_node_that_is_killed() {
    outlives(FAST, Cluster::kill);
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

/// R1: a table whose parts several nodes serve becomes one part, and is watched and written through that.
#[test]
fn parts_of_different_nodes_are_joined() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(dir.path(), FAST);
    create(cluster.node(0), "t", &["--cut", "b", "--cut", "c", "--cut", "d", "--cut", "e", "--cut", "f"]);
    let parts = |at: usize| {
        let shown = table(cluster.node(at), &["stat", "t", "--json"]).json();
        let parts = shown["partitions"].as_array().unwrap().clone();
        parts.into_iter().map(|part| part["owner"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    until("several nodes serve its parts", || {
        let owners = parts(0);
        (owners.iter().flatten().collect::<BTreeSet<_>>().len() > 1 && owners.iter().all(Option::is_some)).then_some(())
    });
    let watcher = cluster.node(1).start_command(&["table", "watch", "t", "--json"]);
    let letters = ["a", "b", "c", "d", "e", "f"];
    for (n, key) in letters.iter().enumerate() {
        table(cluster.node(n % 3), &["put", "t", key, &json!({ "n": n }).to_string(), "--timeout", "30"]);
        hears(&watcher, key, n);
    }
    // Whoever is asked tells what all of them have.
    let queries = table(cluster.node(2), &["queries", "t", "--json"]).json();
    let at: Vec<&Value> = queries["queries"].as_array().unwrap().iter().map(|query| &query["node"]).collect();
    assert_eq!(at, [&json!(2)], "{queries}");
    until("all six parts are told of, at three nodes", || {
        let load = table(cluster.node(0), &["load", "--json"]).json();
        let nodes = load["nodes"].as_array().unwrap();
        let parts: u64 = nodes.iter().filter_map(|node| node["partitions"].as_u64()).sum();
        (parts == 6 && nodes.iter().map(|node| &node["node"]).eq([&json!(1), &json!(2), &json!(3)])).then_some(())
    });
    for left in (1..letters.len()).rev() {
        table(cluster.node(left % 3), &["merge", "t", "a", "--timeout", "30"]);
        until("they are joined", || (parts(0).len() == left).then_some(()));
        let rows = lines(&table(cluster.node(2), &["read", "t", "--json", "--timeout", "30"]).out);
        assert_eq!(keys(&rows), letters);
    }
    for (n, key) in (10..).zip(letters) {
        table(cluster.node(n % 3), &["put", "t", key, &json!({ "n": n }).to_string(), "--timeout", "30"]);
        hears(&watcher, key, n);
    }
}
