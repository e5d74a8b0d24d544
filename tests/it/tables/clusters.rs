//! Three nodes: a partition is served by one of them, and asked for at any.

use super::{FAST, create, keys, lines, table};
use crate::cluster::Cluster;
use crate::process::{turn, until};
use serde_json::{Value, json};

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
