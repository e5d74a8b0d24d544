//! Three nodes: clients at each, and any of them may die.

use super::{FAST, hears, publish, registered};
use crate::cluster::Cluster;
use crate::process::{turn, until};

#[test]
fn clients_of_every_node_hear_through_the_death_of_any() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), FAST);
    let servers = cluster.urls.join(",");
    let watchers: Vec<_> = (0..3)
        .map(|place| {
            let object = format!("object-{place}");
            let node = cluster.node(place);
            (node.start_command(&["notify", "watch", "shop", &object, "all", "--json", "--server", &servers]), object)
        })
        .collect();
    registered(cluster.node(0), "all", 3);
    publish(cluster.node(1), "all", 1);
    for (watcher, object) in &watchers {
        publish(cluster.node(2), object, 1);
        hears(watcher, object, 1);
        hears(watcher, "all", 1);
    }
    // The registrar of all of them: they share a principal, and so a place.
    let place = owner_of_clients(&cluster);
    cluster.kill(place);
    let alive = (place + 1) % 3;
    publish(cluster.node(alive), "all", 2);
    watchers.iter().for_each(|(watcher, _)| hears(watcher, "all", 2));
    cluster.restart(place);
    publish(cluster.node(place), "all", 3);
    watchers.iter().for_each(|(watcher, _)| hears(watcher, "all", 3));
}

/// The node that most clients are connected to: whatever it was for them, it is gone when it is killed.
fn owner_of_clients(cluster: &Cluster) -> usize {
    until("a client is online", || {
        let said = cluster.node(0).run(&["notify", "clients", "shop", "--json"]);
        let clients: serde_json::Value = serde_json::from_str(&said.out).ok()?;
        Some(clients["clients"][0]["node"].as_u64()? as usize - 1)
    })
}
