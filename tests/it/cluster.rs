//! Three nodes from configuration files: the leader dies, acknowledged writes do not.

use crate::load::{Load, Promised, assert_kept};
use crate::process::{Deadline, Running, Server, before_dashes, free_port, http, run, tidings, turn, until};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// How often the leader is killed under load, in every run of the tests.
const KILLS: usize = 2;

/// Three nodes of one cluster.
pub struct Cluster {
    configs: Vec<PathBuf>,
    nodes: Vec<Option<Server>>,
    pub urls: Vec<String>,
}

impl Cluster {
    /// Founds a cluster and waits until all take calls.
    pub fn start(dir: &Path) -> Cluster {
        Cluster::start_with(dir, "")
    }

    /// The same with more in the configuration of each node.
    pub fn start_with(dir: &Path, more: &str) -> Cluster {
        let ports = [free_port(), free_port(), free_port()];
        let members: String = (1..)
            .zip(ports)
            .map(|(node, port)| format!("[[members]]\nnode = {node}\naddress = \"127.0.0.1:{port}\"\n"))
            .collect();
        let configs: Vec<PathBuf> = (1..)
            .zip(ports)
            .map(|(node, port)| {
                let path = dir.join(format!("node-{node}.toml"));
                let own = format!("node = {node}\ndata = \"data-{node}\"\nlisten = \"127.0.0.1:{port}\"\n");
                std::fs::write(&path, own + &members + more).unwrap();
                path
            })
            .collect();
        let nodes = configs.iter().map(|config| Some(spawn(config, &["--found"]))).collect();
        let urls = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let cluster = Cluster { configs, nodes, urls };
        cluster.nodes.iter().flatten().for_each(Server::wait_ready);
        cluster
    }

    /// The place of the node that leads the store's group, as the living nodes say.
    pub fn leader(&self) -> usize {
        self.leader_of(STORE)
    }

    /// The place of the node that leads a group.
    pub fn leader_of(&self, group: u64) -> usize {
        until("a living node leads", || {
            self.nodes.iter().flatten().find_map(|node| {
                let said = node.run(&["status", "--json", "--timeout", "2"]);
                let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
                let leader = of_group(&status, group)?["leader"].as_u64()? as usize;
                self.nodes.get(leader.checked_sub(1)?)?.as_ref().map(|_| leader - 1)
            })
        })
    }

    /// A node that runs.
    pub fn node(&self, place: usize) -> &Server {
        self.nodes[place].as_ref().expect("it runs")
    }

    /// SIGKILL.
    pub fn kill(&mut self, place: usize) {
        self.nodes[place].take().expect("it runs").kill();
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self, place: usize) {
        assert_eq!(self.nodes[place].take().expect("it runs").terminate(), 0);
    }

    /// Starts a node that was killed.
    pub fn restart(&mut self, place: usize) {
        let back = spawn(&self.configs[place], &[]);
        back.wait_ready();
        self.nodes[place] = Some(back);
    }

    /// Kills all of them at once and starts them again: nobody is left who could remember but the disks.
    pub fn kill_and_restart_all(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.take().expect("it runs").kill());
        self.nodes = self.configs.iter().map(|config| Some(spawn(config, &[]))).collect();
        self.nodes.iter().flatten().for_each(Server::wait_ready);
    }
}

/// The group of the store and the feed.
const STORE: u64 = 1;
/// The group of the cell.
pub const CELL: u64 = 0;

fn of_group(status: &serde_json::Value, group: u64) -> Option<&serde_json::Value> {
    status["groups"].as_array()?.iter().find(|of| of["group"] == group)
}

fn spawn(config: &Path, entry: &[&str]) -> Server {
    Server::spawn(&[&["--config", config.to_str().unwrap()], entry].concat())
}

/// Kills the leader under load while `go_on` says so, then all at once; checks that nothing promised was lost.
fn kill_leaders_under_load(mut go_on: impl FnMut() -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let promised = Promised::default();
    let load = runtime.block_on(async { Load::start(&cluster.urls, &promised) });
    while go_on() {
        runtime.block_on(load.until_promised(&promised, 100));
        let leader = cluster.leader();
        cluster.kill(leader);
        // The other two go on without it; then it comes back and catches up.
        runtime.block_on(load.until_promised(&promised, 100));
        cluster.restart(leader);
    }
    runtime.block_on(load.stop());
    runtime.block_on(assert_kept(&cluster.urls, &promised));

    cluster.kill_and_restart_all();
    runtime.block_on(assert_kept(&cluster.urls, &promised));
}

#[test]
fn no_acknowledged_write_is_lost_when_the_leader_is_killed() {
    let _turn = turn();
    let mut kills = 0..KILLS;
    kill_leaders_under_load(|| kills.next().is_some());
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over_before_it_says_goodbye() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // However slow the machine is: what is under way is not given up.
    let mut cluster = Cluster::start_with(dir.path(), "[timings]\ndrain = \"10m\"\nbody = \"10m\"\n");
    let leader = cluster.leader();
    let old = cluster.nodes[leader].take().unwrap();
    // A call that is under way keeps it from ending.
    let mut call = std::net::TcpStream::connect(old.address).unwrap();
    let entry = r#"{"entries": ["x"]}"#;
    let (head, rest) = entry.split_at(4);
    let length = entry.len();
    write!(
        call,
        "POST /v1/feed/t HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{head}",
        old.address
    )
    .unwrap();
    old.ask_to_stop();
    let other = cluster.node((leader + 1) % 3);
    until("another leads", || {
        let (_, said) = http("GET", other.address, "/v1/admin/status", "")?;
        let status: serde_json::Value = serde_json::from_str(&said).ok()?;
        let leader_of = |group| of_group(&status, group)?["leader"].as_u64();
        let moved = |led_by: u64| led_by != 0 && led_by != leader as u64 + 1;
        (moved(leader_of(STORE)?) && moved(leader_of(CELL)?)).then_some(())
    });
    // The old one lives, and nobody waits for its end.
    let put = r#"{"cells": [{"column": "c", "value": "v"}]}"#;
    until("the new leader serves", || {
        let (code, _) = http("PUT", other.address, "/v1/store/g/r", put)?;
        (200..300).contains(&code).then_some(())
    });
    // What was under way is answered, with what the new leader says.
    call.write_all(rest.as_bytes()).unwrap();
    let mut answer = String::new();
    call.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (code, said) = old.ended();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("stopping: ") && !said.contains("took over in time"), "{said}");
}

#[test]
fn nodes_are_restarted_one_after_the_other_and_no_session_ends() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let servers = cluster.urls.join(",");
    let start = |args: &[&str]| Running::start(tidings().args(before_dashes(args, &["--server", &servers])));
    // A session with a lock, and a channel with a registration.
    let script = "echo $TIDINGS_SEQUENCER; exec sleep 1000";
    let mut holder = start(&["cell", "lock", "/l", "--", "sh", "-c", script]);
    holder.line(1);
    // Placement's leader has one, too.
    let lock = |of: &Server| {
        let said = of.run(&["cell", "locks", "--json"]);
        let locks = (said.code == 0).then(|| said.json())?;
        locks.as_array()?.iter().find(|lock| lock["app"] == "default").cloned()
    };
    let before = lock(cluster.node(0)).unwrap();
    let mut watcher = start(&["notify", "watch", "default", "prices", "--json"]);
    for (version, place) in (1..).zip(0..3) {
        cluster.terminate(place);
        cluster.restart(place);
        let version = version.to_string();
        let published = start(&["notify", "publish", "default", "prices", &version]).ended();
        assert_eq!(published.code, 0, "{published:?}");
        until("the watcher hears of it", || {
            let wanted = format!("\"version\":{version}");
            watcher.out().lines().any(|line| line.contains(&wanted)).then_some(())
        });
    }
    assert!(holder.is_running() && watcher.is_running(), "{}{}", holder.err(), watcher.err());
    let after = until("a master answers", || lock(cluster.node(2)));
    assert_eq!(before, after, "the same session holds the same lock");
    holder.signal(Signal::TERM);
    watcher.signal(Signal::TERM);
}

#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop() {
    let _turn = turn();
    let deadline = Deadline::from_environment();
    kill_leaders_under_load(|| !deadline.has_passed());
}

#[test]
fn a_directory_that_has_a_cluster_enters_no_other() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node-4.toml");
    let told = |joins: bool| {
        let port = free_port();
        let toml = format!("node = 4\ndata = \"data-4\"\nlisten = \"127.0.0.1:{port}\"\njoins = {joins}\n");
        std::fs::write(&config, toml).unwrap();
    };
    // Made for a cluster that runs, it does not become one of its own by a forgotten flag.
    told(true);
    run(&["serve", "--config", config.to_str().unwrap()]).failed(4, "node.empty_member");
    run(&["serve", "--config", config.to_str().unwrap(), "--found"]).failed(4, "node.founds_and_joins");
    told(false);
    let alone = spawn(&config, &[]);
    alone.wait_ready();
    alone.kill();
    run(&["serve", "--config", config.to_str().unwrap(), "--join"]).failed(4, "node.entered_already");
    let again = spawn(&config, &[]);
    again.wait_ready();
    again.kill();
}

#[test]
fn a_member_that_lost_its_data_does_not_vote_again_but_is_replaced() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let leader = cluster.leader();
    let lost = (leader + 1) % 3;
    cluster.nodes[lost].take().unwrap().kill();
    let data = dir.path().join(format!("data-{}", lost + 1));
    for (gone, code) in [(data.join("group-0"), "node.lost_group"), (data, "node.empty_member")] {
        std::fs::remove_dir_all(gone).unwrap();
        run(&["serve", "--config", cluster.configs[lost].to_str().unwrap()]).failed(4, code);
    }

    // The others remove it and add a new member under a number of its own.
    let port = free_port();
    let config = dir.path().join("node-4.toml");
    std::fs::write(&config, format!("node = 4\ndata = \"data-4\"\nlisten = \"127.0.0.1:{port}\"\n")).unwrap();
    let joined = spawn(&config, &["--join"]);
    // A node is a member of the store's group and of the cell's, which may have another leader.
    for group in [1, 0] {
        let members = format!("/v1/admin/groups/{group}/members");
        let new = format!("{{\"node\": 4, \"address\": \"127.0.0.1:{port}\"}}");
        let change = |method: &str, path: &str, body: &str, done: &str| {
            until("a leader changes the members", || {
                cluster.nodes.iter().flatten().find_map(|node| {
                    let (status, said) = http(method, node.address, path, body)?;
                    (status == 204 || said.contains(done)).then_some(())
                })
            });
        };
        change("DELETE", &format!("{members}/{}", lost + 1), "", "raft.no_member");
        change("POST", &members, &new, "raft.already_member");
    }
    joined.wait_ready();
    until("the new member votes and the lost one is gone", || {
        let said = joined.run(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
        let members = of_group(&status, STORE)?["members"].as_array()?;
        let voters: Vec<u64> =
            members.iter().filter(|m| m["voter"] == true).filter_map(|m| m["node"].as_u64()).collect();
        (voters.len() == 3 && voters.contains(&4) && !voters.contains(&(lost as u64 + 1))).then_some(())
    });
}

#[test]
fn a_node_that_is_no_member_passes_on_what_it_is_asked() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let (port, config) = (free_port(), dir.path().join("node-4.toml"));
    std::fs::write(&config, format!("node = 4\ndata = \"data-4\"\nlisten = \"127.0.0.1:{port}\"\n")).unwrap();
    let members: Vec<String> = cluster.nodes.iter().flatten().map(|node| node.address.to_string()).collect();
    let contacts: Vec<&str> = members.iter().flat_map(|member| ["--contact", member]).collect();
    let outside = spawn(&config, &[&["--join"], &contacts[..]].concat());
    outside.wait_ready();
    // By frames, by REST; store, cell, placement, Notify.
    let node = cluster.node(0);
    assert_eq!(outside.run(&["store", "put", "g", "r", "c", "frames"]).code, 0);
    let (status, said) = http("GET", outside.address, "/v1/store/g/r", "").unwrap();
    assert!(status == 200 && said.contains("frames"), "{said}");
    assert_eq!(outside.run(&["cell", "put", "/f", "from outside"]).code, 0);
    assert_eq!(node.run(&["cell", "cat", "/f"]).out.trim(), "from outside");
    let (status, said) = http("GET", outside.address, "/v1/cell/files/f", "").unwrap();
    assert!(status == 200 && said.contains("from outside"), "{said}");
    assert_eq!(outside.run(&["place", "namespaces"]).code, 0);
    let watcher = outside.start_command(&["notify", "watch", "default", "prices", "--json"]);
    until("what is published inside is heard outside", || {
        let (status, _) = http("POST", outside.address, "/v1/notify/default/prices", "{\"version\": 7}")?;
        assert!(status < 300 || status == 503, "{status}");
        watcher.out().contains("\"version\":7").then_some(())
    });
    // Whoever leads afterwards is found again.
    cluster.kill(cluster.leader());
    let put = r#"{"cells": [{"column": "c", "value": "later"}]}"#;
    until("it finds the next leader", || {
        let (status, _) = http("PUT", outside.address, "/v1/store/g/r", put)?;
        (status < 300).then_some(())
    });
    // Whoever joins once founds nothing, however it is started again.
    outside.kill();
    let outside = spawn(&config, &contacts);
    outside.wait_ready();
    assert_eq!(outside.run(&["store", "put", "g", "r", "c", "again"]).code, 0);
    let said = outside.run(&["status", "--json"]).json();
    let listed = of_group(&said, STORE).unwrap()["members"].as_array().unwrap();
    assert!(listed.iter().all(|member| member["address"] != outside.address.to_string()), "{said}");
    assert_eq!(said["contacts"], serde_json::json!(members), "{said}");
}

#[test]
fn an_incarnation_raised_through_a_follower_outlives_the_leader() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let leader = cluster.leader();
    let follower = (leader + 1) % 3;
    let asked = cluster.nodes[follower].as_ref().unwrap();
    let raised = asked.run(&["store", "incarnation", "--raise", "--yes", "--json"]).json();
    cluster.nodes[leader].take().unwrap().kill();
    let left = cluster.nodes[follower].as_ref().unwrap();
    let shown = until("the others go on", || {
        let said = left.run(&["store", "incarnation", "--json"]);
        (said.code == 0).then(|| said.json())
    });
    assert_eq!(shown["incarnation"], raised["incarnation"]);
}

#[test]
fn one_screen_shows_all_nodes_and_doctor_meets_them() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let asked = cluster.node(0);
    let status = until("ranges are leased and calls are counted", || {
        assert_eq!(asked.run(&["store", "put", "g", "r", "c", "x"]).code, 0);
        let status = status(asked);
        let mut nodes = vec![&status];
        nodes.extend(status["nodes"].as_array()?);
        let ranges: u64 = nodes.iter().filter_map(|node| node["ranges"]["notify"].as_u64()).sum();
        let counted = |name: &str| nodes.iter().any(|node| node["rates"][name].as_f64() > Some(0.0));
        let managed = status["placement"]["ranges"].as_u64() >= Some(ranges);
        (nodes.len() == 3 && ranges > 0 && managed && counted("store_calls") && counted("store_entries"))
            .then_some(status)
    });
    for node in status["nodes"].as_array().unwrap() {
        assert_eq!(node["version"], env!("CARGO_PKG_VERSION"));
        assert!(node["clock_ahead_us"].as_i64().unwrap().unsigned_abs() < 2_000_000, "{node}");
    }
    let shown = asked.run(&["status"]).out;
    assert!(shown.contains("store calls ") && shown.contains("notify ") && shown.contains(" ranges"), "{shown}");

    let config = cluster.configs[0].to_str().unwrap().to_owned();
    let said = run(&["doctor", "--config", &config]);
    assert_eq!(said.code, 0, "{said:?}");
    for node in [2, 3] {
        assert!(said.out.contains(&format!("member: node {node} at 127.0.0.1:")), "{said:?}");
    }
    cluster.kill(2);
    let said = run(&["doctor", "--config", &config]);
    assert!(said.code == 0 && said.out.contains("warning  member: nobody answers at 127.0.0.1:"), "{said:?}");

    // A leader's reads are safe only while all members wait as long before they elect another.
    let told = std::fs::read_to_string(&cluster.configs[2]).unwrap();
    std::fs::write(&cluster.configs[2], told + "[timings]\nlease = \"900ms\"\n").unwrap();
    cluster.restart(2);
    let said = cluster.node(0).run(&["status"]);
    assert!(said.code == 1 && said.out.contains("Node 3 has `timings.lease` 900 ms, this node 600 ms"), "{said:?}");
}

#[test]
fn a_node_without_a_majority_says_so() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let leader = cluster.leader();
    let (follower, last) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[follower].take().unwrap().kill();
    cluster.nodes[last].take().unwrap().kill();
    let left = cluster.nodes[leader].as_ref().unwrap();
    until("it is not ready any more", || (http("GET", left.address, "/readyz", "")?.0 == 503).then_some(()));
    let status = left.run(&["status"]).out;
    assert!(!status.contains("no problems"), "{status}");
    let missed: Vec<String> = [follower, last].map(|at| format!("{}", at + 1)).into();
    for node in &missed {
        assert!(
            status.contains(&format!("Node {node} at ")) && status.contains(&format!("{node} (silent)")),
            "{status}"
        );
    }
    // Whatever is asked: that there is no majority, who is missed, and what to do.
    let asked: [&[&str]; 6] = [
        &["store", "get", "g", "r"],
        &["cell", "cat", "/f"],
        &["cell", "put", "/f", "x"],
        &["place", "namespaces"],
        &["notify", "publish", "default", "prices", "1"],
        &["notify", "reset", "default", "--yes"],
    ];
    for asked in asked {
        // It takes some leases until it knows who is missed. From then on nobody waits for what cannot be.
        let said = until(&format!("the error of {asked:?} names who is missed"), || {
            let said = left.run(&[asked, &["--timeout", "600"]].concat());
            missed.iter().all(|node| said.err.contains(&format!("node {node} (127.0.0.1:"))).then_some(said)
        });
        said.failed(5, "'s group has no majority: no answer from node ");
        assert!(said.err.contains(".no_majority)") && said.err.contains("`tidings status`"), "{said:?}");
    }
    cluster.nodes[last] = Some(spawn(&cluster.configs[last], &[]));
    cluster.nodes.iter().flatten().for_each(Server::wait_ready);
}

/// What a node says, problems or not.
fn status(node: &Server) -> serde_json::Value {
    let said = node.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let problems = !status["problems"].as_array().unwrap().is_empty();
    assert_eq!(said.code, i32::from(problems), "{said:?}");
    status
}

#[test]
fn whole_nodes_are_added_and_removed_and_a_stranger_is_refused() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let node = cluster.node(0);
    let number = until("the members agree on a number", || {
        let numbers: Vec<String> =
            cluster.nodes.iter().flatten().filter_map(|n| status(n)["cluster"].as_str().map(str::to_owned)).collect();
        (numbers.len() == 3 && numbers.iter().all(|n| *n == numbers[0])).then(|| numbers[0].clone())
    });
    let other = |number: u64| {
        let port = free_port();
        let config = dir.path().join(format!("node-{number}.toml"));
        let own = format!("node = {number}\ndata = \"data-{number}\"\nlisten = \"127.0.0.1:{port}\"\n");
        std::fs::write(&config, own).unwrap();
        (config, format!("127.0.0.1:{port}"))
    };

    // Somebody else's node under a number that is free here.
    let (config, address) = other(4);
    let stranger = spawn(&config, &[]);
    stranger.wait_ready();
    let theirs = until("it has a number", || status(&stranger)["cluster"].as_str().map(str::to_owned));
    assert_ne!(theirs, number);
    node.run(&["member", "add", "4", &address]).failed(4, "raft.other_cluster");
    let leader = cluster.node(cluster.leader_of(CELL));
    let told = leader.run(&["status"]).out;
    assert!(told.contains(&format!("node 4 belongs to another cluster ({theirs})")), "{told}");
    let metrics = http("GET", leader.address, "/metrics", "").unwrap().1;
    assert!(metrics.contains("tidings_raft_other_cluster_total{"), "{metrics}");
    assert_eq!(status(&stranger)["cluster"], theirs.as_str());
    assert_eq!(stranger.run(&["store", "put", "g", "r", "c", "v"]).code, 0, "it serves its own cluster still");
    stranger.kill();
    let doctor = run(&["doctor", "--data", dir.path().join("data-4").to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(doctor.out.contains(&format!("of cluster {theirs}")), "{doctor:?}");

    // One that joins: it is a member of both groups, and knows its cluster.
    let (config, address) = other(5);
    let joined = spawn(&config, &["--join"]);
    assert_eq!(node.run(&["member", "add", "5", &address]).out.trim(), "node 5 is added");
    joined.wait_ready();
    assert_eq!(status(&joined)["cluster"], number.as_str());
    let members = |role: &str| {
        let rows = node.run(&["member", "list", "--json"]).json();
        let of = rows.as_array().unwrap().iter().filter(|row| row["node"] == 5 && row["role"] == role);
        of.map(|row| row["group"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(members("replica"), ["cell", "store"]);
    node.run(&["member", "add", "5", &address]).failed(4, "node 5 is a voting member already");
    assert_eq!(node.run(&["member", "remove", "5"]).code, 0);
    assert!(members("replica").is_empty());
    node.run(&["member", "remove", "5"]).failed(3, "is no member");
    // It hears of nobody any more, and says why.
    until("it knows that it was removed", || {
        let said = status(&joined);
        let problems = said["problems"].as_array()?.iter().filter_map(|problem| problem.as_str());
        (problems.filter(|problem| problem.contains("This node was removed from the")).count() == 2).then_some(())
    });
    // Nobody is added who does not answer, or somebody else in his place.
    let nowhere = format!("127.0.0.1:{}", free_port());
    node.run(&["member", "add", "6", &nowhere]).failed(4, "nobody answers at");
    node.run(&["member", "add", "6", &address]).failed(4, "node 5 answers at");
    let rows = node.run(&["member", "list", "--json"]).json();
    assert!(rows.as_array().unwrap().iter().all(|row| row["node"] != 6), "{rows}");
}

#[test]
fn a_configuration_of_two_members_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node.toml");
    std::fs::write(
        &config,
        "[[members]]\nnode = 1\naddress = \"127.0.0.1:1\"\n[[members]]\nnode = 2\naddress = \"127.0.0.1:2\"\n",
    )
    .unwrap();
    run(&["serve", "--config", config.to_str().unwrap()]).failed(2, "`members` names 2 nodes");
}
