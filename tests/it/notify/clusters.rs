//! Three nodes: clients at each, and any of them may die.

use super::{FAST, hears, publish, registered};
use crate::cluster::Cluster;
use crate::process::{Deadline, Running, turn};

/// Watchers of an object of its own each, and one that they share.
fn watchers(cluster: &Cluster, count: usize) -> Vec<(Running, String)> {
    let servers = cluster.urls.join(",");
    let watcher = |number: usize| {
        let object = format!("object-{number}");
        let watch = ["notify", "watch", "shop", &object, "all", "--json", "--server", &servers];
        (cluster.node(number % 3).start_command(&watch), object)
    };
    (0..count).map(watcher).collect()
}

/// Kills one node, publishes at another, and has it heard by everybody; whoever the dead one was matcher or registrar for
/// waits for its lease.
fn kill_and_hear(cluster: &mut Cluster, place: usize, watchers: &[(Running, String)], version: u64) {
    cluster.kill(place);
    let alive = cluster.node((place + 1) % 3);
    publish(alive, "all", version);
    for (watcher, object) in watchers {
        publish(alive, object, version);
        hears(watcher, object, version);
        hears(watcher, "all", version);
    }
    cluster.restart(place);
}

#[test]
fn clients_of_every_node_hear_through_the_death_of_one() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), FAST);
    let watchers = watchers(&cluster, 3);
    registered(cluster.node(0), "all", 3);
    publish(cluster.node(1), "all", 1);
    watchers.iter().for_each(|(watcher, _)| hears(watcher, "all", 1));
    kill_and_hear(&mut cluster, 0, &watchers, 2);
}

/// Whoever leads the store when it dies: the next publication waits for another leader, and is not lost on the way.
#[test]
fn a_publication_outlives_the_leader_of_the_store() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), FAST);
    let leader = cluster.leader();
    let alive = (leader + 1) % 3;
    let watcher = cluster.node(alive).start_command(&["notify", "watch", "shop", "prices", "--json"]);
    registered(cluster.node(alive), "prices", 1);
    publish(cluster.node(alive), "prices", 1);
    hears(&watcher, "prices", 1);
    cluster.kill(leader);
    // Tried once: the command itself goes on until it is done.
    let said = cluster.node(alive).run(&["notify", "publish", "shop", "prices", "2"]);
    assert_eq!(said.code, 0, "{said:?}");
    hears(&watcher, "prices", 2);
}

/// Leases that outlast the patience of every test: whoever waits for the end of one waits in vain.
const LONG: &str = "[placement]\nsession = \"1s\"\nfail_over = \"500ms\"\nround_trip = \"100ms\"\n\
                    [notify]\nlease = \"10m\"\nrenew = \"400ms\"\n";

#[test]
fn a_node_that_stops_hands_its_ranges_over_and_its_clients_go_elsewhere() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), LONG);
    let watchers = watchers(&cluster, 3);
    registered(cluster.node(0), "all", 3);
    publish(cluster.node(1), "all", 1);
    watchers.iter().for_each(|(watcher, _)| hears(watcher, "all", 1));
    cluster.terminate(0);
    let alive = cluster.node(1);
    for (version, (watcher, object)) in (2..).zip(&watchers) {
        publish(alive, object, version);
        hears(watcher, object, version);
    }
    publish(alive, "all", 2);
    watchers.iter().for_each(|(watcher, _)| hears(watcher, "all", 2));
}

/// The same for as long as the environment says, with more clients.
#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop_of_three_nodes_under_listeners() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_with(dir.path(), FAST);
    let watchers = watchers(&cluster, 20);
    registered(cluster.node(0), "all", 20);
    let deadline = Deadline::from_environment();
    let mut version = 0;
    while !deadline.has_passed() {
        version += 1;
        kill_and_hear(&mut cluster, version as usize % 3, &watchers, version);
    }
}
