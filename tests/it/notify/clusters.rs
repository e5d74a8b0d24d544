//! Three nodes: clients at each, and any of them may die.

use super::{FAST, hears, publish, registered};
use crate::cluster::Cluster;
use crate::process::{Deadline, Running, tidings, turn, until, until_within};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// How long a crowd may take to be registered, and to be fresh again: it is large, and machines can be busy.
const CROWD_PATIENCE: Duration = Duration::from_secs(240);

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

/// Kills node after node while a crowd of WebSocket clients in one process listens and publishers publish; then nobody may be
/// stale (N1), and nobody may ever have heard of what was not published (N2). As many clients as `KILL_CLIENTS` says.
#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_crowd_of_clients_of_three_nodes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let clients = std::env::var("KILL_CLIENTS").unwrap_or_else(|_| "200".to_owned());
    let limits = format!("{FAST}ids = {clients}\n[limits]\nconnections_per_address = 20000\nrequests_per_second = 0\n");
    let mut cluster = Cluster::start_with(dir.path(), &limits);
    let servers = cluster.urls.join(",");
    let command = ["bench-crowd", "--clients", &clients, "--applications", "20", "--server", &servers];
    let mut crowd = Running::start(tidings().args(command));
    until_within(CROWD_PATIENCE, "the crowd is registered", || {
        assert!(crowd.is_running(), "{}", crowd.err());
        crowd.out().contains("ready").then_some(())
    });
    // The time counts from the first kill: a crowd takes a while to come together.
    let (deadline, mut kills) = (Deadline::from_environment(), 0);
    while !deadline.has_passed() {
        let place = kills % 3;
        cluster.kill(place);
        kills += 1;
        // Long enough for its ranges to find other owners.
        let alive = cluster.node((place + 1) % 3);
        until("the others take calls", || {
            (alive.run(&["notify", "publish", "shop", "o", "now"]).code == 0).then_some(())
        });
        cluster.restart(place);
    }
    crowd.signal(Signal::INT);
    until_within(CROWD_PATIENCE, "the crowd ends", || (!crowd.is_running()).then_some(()));
    let said = crowd.ended();
    eprintln!("{kills} kills: {}", said.out.trim());
    assert_eq!(said.code, 0, "{said:?}");
    let told: Value = serde_json::from_str(said.out.lines().skip(1).collect::<String>().as_str()).unwrap();
    assert_eq!((&told["stale"], &told["invented"]), (&Value::from(0), &Value::from(0)), "{told}");
    assert!(told["callbacks"].as_u64() > Some(0), "{told}");
}
