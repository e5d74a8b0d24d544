//! Three nodes from configuration files: the leader dies, acknowledged writes do not.

use crate::load::{Load, Promised, assert_kept};
use crate::process::{Deadline, Server, free_port, run, turn, until};
use std::path::{Path, PathBuf};

/// How often the leader is killed under load, in every run of the tests.
const KILLS: usize = 2;

struct Cluster {
    configs: Vec<PathBuf>,
    nodes: Vec<Option<Server>>,
    urls: Vec<String>,
}

impl Cluster {
    fn start(dir: &Path) -> Cluster {
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
                std::fs::write(&path, own + &members).unwrap();
                path
            })
            .collect();
        let nodes = configs.iter().map(|config| Some(spawn(config))).collect();
        let urls = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let cluster = Cluster { configs, nodes, urls };
        cluster.nodes.iter().flatten().for_each(Server::wait_ready);
        cluster
    }

    /// The place of the node that leads the store's group, as the living nodes say.
    fn leader(&self) -> usize {
        until("a living node leads", || {
            self.nodes.iter().flatten().find_map(|node| {
                let said = node.run(&["status", "--json"]);
                let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
                let leader = status["groups"][0]["leader"].as_u64()? as usize;
                self.nodes.get(leader.checked_sub(1)?)?.as_ref().map(|_| leader - 1)
            })
        })
    }
}

fn spawn(config: &Path) -> Server {
    Server::spawn(&["--config", config.to_str().unwrap()])
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
        cluster.nodes[leader].take().unwrap().kill();
        // The other two go on without it; then it comes back and catches up.
        runtime.block_on(load.until_promised(&promised, 100));
        let back = spawn(&cluster.configs[leader]);
        back.wait_ready();
        cluster.nodes[leader] = Some(back);
    }
    runtime.block_on(load.stop());
    runtime.block_on(assert_kept(&cluster.urls, &promised));

    // All of them at once: nobody is left who could remember but the disks.
    cluster.nodes.iter_mut().for_each(|node| node.take().unwrap().kill());
    cluster.nodes = cluster.configs.iter().map(|config| Some(spawn(config))).collect();
    cluster.nodes.iter().flatten().for_each(Server::wait_ready);
    runtime.block_on(assert_kept(&cluster.urls, &promised));
}

#[test]
fn no_acknowledged_write_is_lost_when_the_leader_is_killed() {
    let _turn = turn();
    let mut kills = 0..KILLS;
    kill_leaders_under_load(|| kills.next().is_some());
}

#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop() {
    let _turn = turn();
    let deadline = Deadline::from_environment();
    kill_leaders_under_load(|| !deadline.has_passed());
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
