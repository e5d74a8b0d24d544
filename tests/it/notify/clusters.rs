//! Three nodes: clients at each, and any of them may die.

use super::{FAST, hears, publish, registered};
use crate::cluster::Cluster;
use crate::process::{Deadline, Running, http, http_get, tidings, turn, until, until_within};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// How long a crowd may take to be registered, and to be fresh again: it is large, and machines can be busy.
const CROWD_PATIENCE: Duration = Duration::from_secs(240);

/// Three nodes with the application `shop`.
fn start(dir: &Path, config: &str) -> Cluster {
    let cluster = Cluster::start_with(dir, config);
    cluster.node(0).make_app("shop");
    cluster
}

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
    let mut cluster = start(dir.path(), FAST);
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
    let mut cluster = start(dir.path(), FAST);
    let leader = cluster.leader();
    let alive = (leader + 1) % 3;
    let watcher = cluster.node(alive).start_command(&["notify", "watch", "shop", "prices", "--json"]);
    registered(cluster.node(alive), "prices", 1);
    publish(cluster.node(alive), "prices", 1);
    hears(&watcher, "prices", 1);
    cluster.kill(leader);
    // Tried once: the command itself goes on until it is done.
    let said = cluster.node(alive).run(&["notify", "publish", "shop", "prices", "2", "--timeout", "60"]);
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
    let mut cluster = start(dir.path(), LONG);
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
    let mut cluster = start(dir.path(), FAST);
    let watchers = watchers(&cluster, 20);
    registered(cluster.node(0), "all", 20);
    let deadline = Deadline::from_environment();
    let mut version = 0;
    while !deadline.has_passed() {
        version += 1;
        kill_and_hear(&mut cluster, version as usize % 3, &watchers, version);
    }
}

/// A crowd of WebSocket clients in one process, each with an object of its own, and publishers who never tire.
struct Crowd {
    running: Running,
}

impl Crowd {
    /// Starts it and waits until everybody is registered.
    fn start(cluster: &Cluster, clients: usize, applications: usize) -> Crowd {
        let (clients, applications) = (clients.to_string(), applications.to_string());
        let servers = cluster.urls.join(",");
        let command = ["bench-crowd", "--clients", &clients, "--applications", &applications, "--server", &servers];
        let mut running = Running::start(tidings().args(command));
        until_within(CROWD_PATIENCE, "the crowd is registered", || {
            assert!(running.is_running(), "{}", running.err());
            running.out().contains("ready").then_some(())
        });
        Crowd { running }
    }

    /// Ends it: then nobody may be stale (N1), and nobody may ever have heard of what was not published (N2).
    fn end(mut self) {
        self.running.signal(Signal::INT);
        until_within(CROWD_PATIENCE, "the crowd ends", || (!self.running.is_running()).then_some(()));
        let said = self.running.ended();
        eprintln!("{}", said.out.trim());
        assert_eq!(said.code, 0, "{said:?}");
        let told: Value = serde_json::from_str(said.out.lines().skip(1).collect::<String>().as_str()).unwrap();
        assert_eq!((&told["stale"], &told["invented"]), (&Value::from(0), &Value::from(0)), "{told}");
        assert!(told["callbacks"].as_u64() > Some(0) && told["acknowledged"].as_u64() > Some(0), "{told}");
    }
}

/// Kills a node under a crowd, has the others take publications, and starts it again.
fn kill_under_a_crowd(cluster: &mut Cluster, place: usize) {
    cluster.kill(place);
    // Long enough for its ranges to find other owners.
    let alive = cluster.node((place + 1) % 3);
    until("the others take calls", || (alive.run(&["notify", "publish", "shop", "o", "now"]).code == 0).then_some(()));
    cluster.restart(place);
}

/// Three nodes, of which one is killed while publishers go on: in the end every client has what was published last.
#[test]
fn a_crowd_of_clients_converges_through_the_death_of_a_node() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(dir.path(), FAST);
    let crowd = Crowd::start(&cluster, 36, 6);
    let leader = cluster.leader();
    kill_under_a_crowd(&mut cluster, leader);
    crowd.end();
}

/// Kills node after node under a crowd of as many clients as `KILL_CLIENTS` says.
#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_crowd_of_clients_of_three_nodes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let clients = std::env::var("KILL_CLIENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let limits = format!("{FAST}ids = {clients}\n[limits]\nconnections_per_address = 20000\nrequests_per_second = 0\n");
    let mut cluster = start(dir.path(), &limits);
    let crowd = Crowd::start(&cluster, clients, 20);
    // The time counts from the first kill: a crowd takes a while to come together.
    let (deadline, mut kills) = (Deadline::from_environment(), 0);
    while !deadline.has_passed() {
        kill_under_a_crowd(&mut cluster, kills % 3);
        kills += 1;
    }
    eprintln!("{kills} kills");
    crowd.end();
}

/// A member that was removed hands its ranges over by itself: nobody waits for its end, or for the ends of its leases.
#[test]
fn a_node_that_was_removed_hands_its_ranges_over() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path(), LONG);
    let owners = |at: usize| -> Option<Vec<String>> {
        let (status, said) = http_get(cluster.node(at).address, "/v1/notify-load")?;
        let load: Value = serde_json::from_str(&said).ok().filter(|_| status == 200)?;
        let shares = load["ring"]["shares"].as_array()?.iter().filter(|share| share["ranges"] != 0);
        Some(shares.filter_map(|share| share["owner"].as_str().map(str::to_owned)).collect())
    };
    until("all three own ranges", || (owners(0)?.len() == 3).then_some(()));
    let removed = (0..3).find(|place| *place != cluster.leader()).expect("there are three");
    let stays = cluster.leader();
    let name = format!("node-{}", removed + 1);
    for group in [1, 0] {
        let path = format!("/v1/admin/groups/{group}/members/{}", removed + 1);
        until("a leader removes it", || {
            (0..3).find_map(|at| {
                let (status, said) = http("DELETE", cluster.node(at).address, &path, "")?;
                (status == 204 || said.contains("raft.no_member")).then_some(())
            })
        });
    }
    until("the others have its ranges", || (!owners(stays)?.contains(&name)).then_some(()));
    // It knows whom to ask, and sends clients to members, to each in turn.
    let outside = cluster.node(removed);
    let status = until("it knows that it is none", || {
        let status = outside.run(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status.out).ok()?;
        (!status["contacts"].as_array()?.is_empty()).then_some(status)
    });
    assert!(outside.run(&["status"]).out.contains("no member · asks "), "{status}");
    let elsewhere: BTreeSet<String> = (0..4)
        .map(|_| {
            let (_, said) = http("POST", outside.address, "/v1/notify-channels/shop", "").unwrap();
            assert!(said.contains("notify.no_member"), "{said}");
            said
        })
        .collect();
    assert_eq!(elsewhere.len(), 2, "one of the two members each time: {elsewhere:?}");
}
