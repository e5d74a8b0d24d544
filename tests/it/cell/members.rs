//! `tidings cell member`: replicas are added, removed and replaced while the cell serves, whoever leads it.

use crate::cell_load::Load;
use crate::cluster::{CELL, Cluster};
use crate::process::{Said, Server, free_port, turn, until};
use std::path::Path;

/// A node that runs and is no member.
fn join(dir: &Path, node: u64) -> (Server, String) {
    join_with(dir, node, &[])
}

/// The same with more on its command line.
fn join_with(dir: &Path, node: u64, more: &[&str]) -> (Server, String) {
    let port = free_port();
    let config = dir.join(format!("node-{node}.toml"));
    let own = format!("node = {node}\ndata = \"data-{node}\"\nlisten = \"127.0.0.1:{port}\"\n");
    std::fs::write(&config, own).unwrap();
    let args = ["--config", config.to_str().unwrap(), "--join"];
    (Server::spawn(&[&args, more].concat()), format!("127.0.0.1:{port}"))
}

/// Who has a vote, as a node says.
fn replicas(node: &Server) -> Vec<u64> {
    let said = node.run(&["cell", "member", "list", "--json"]).json();
    let rows = said.as_array().unwrap().iter().filter(|row| row["role"] != "learner");
    rows.filter_map(|row| row["node"].as_u64()).collect()
}

#[test]
fn replicas_are_added_removed_and_replaced_while_the_cell_serves() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let node = cluster.node(0);
    let ((fourth, at), (fifth, at_fifth)) = (join(dir.path(), 4), join(dir.path(), 5));
    let mut urls = cluster.urls.clone();
    urls.extend([fourth.url(), fifth.url()]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let load = runtime.block_on(Load::start(&urls));
    runtime.block_on(load.goes_on());
    // Sessions write, read and take turns with a lock all the while.
    let serving = |change: &dyn Fn() -> Said| {
        let before = load.done();
        let changed = change();
        assert!(load.done() > before, "nothing was served during {changed:?}");
        runtime.block_on(load.goes_on());
        changed
    };

    let added = serving(&|| node.run(&["cell", "member", "add", "4", &at]));
    assert_eq!((added.code, added.out.trim()), (0, "node 4 is added"), "{added:?}");
    assert_eq!(replicas(node), [1, 2, 3, 4]);
    node.run(&["cell", "member", "add", "4", &at]).failed(4, "node 4 is a voting member already");

    // The master itself: it hands over, and the next one removes it. One command does both.
    let master = cluster.leader_of(CELL);
    let asked = cluster.node((master + 1) % 3);
    let number = (master + 1).to_string();
    let removed = serving(&|| asked.run(&["cell", "member", "remove", &number, "--json"]));
    assert_eq!(removed.json()["removed"], master as u64 + 1);
    let left = replicas(asked);
    assert!(left.len() == 3 && left.contains(&4) && !left.contains(&(master as u64 + 1)), "{left:?}");
    asked.run(&["cell", "member", "remove", &number]).failed(3, "is no member");

    // And one replica in the place of another.
    let other = left.iter().find(|node| **node != 4).unwrap().to_string();
    let replaced = serving(&|| fourth.run(&["cell", "member", "replace", &other, "5", &at_fifth]));
    assert_eq!(replaced.out.trim(), format!("node 5 is in the place of node {other}"), "{replaced:?}");
    // Once more changes nothing: whoever does not know whether it was done may say it again.
    let again = fourth.run(&["cell", "member", "replace", &other, "5", &at_fifth]);
    assert_eq!((again.code, again.out), (0, replaced.out), "{}", again.err);
    fourth.run(&["cell", "member", "replace", &other, "5", "127.0.0.1:1"]).failed(3, "not in its place at 127.0.0.1:1");
    let left = replicas(&fifth);
    assert!(left.len() == 3 && left.contains(&4) && left.contains(&5), "{left:?}");
    fourth.run(&["cell", "member", "replace", &other, "6", "127.0.0.1:1"]).failed(3, "is no member of the group");
    let promised = runtime.block_on(load.stop());
    runtime.block_on(promised.assert_kept(&[fifth.url()]));
}

/// The members of both groups as a node lists them, once it does.
fn listed(node: &Server) -> Option<[Vec<u64>; 2]> {
    let said = node.run(&["member", "list", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&said.out).ok()?;
    let of = |group: &str| -> Option<Vec<u64>> {
        let rows = rows.as_array()?.iter().filter(|row| row["group"] == group);
        Some(rows.filter_map(|row| row["node"].as_u64()).collect())
    };
    Some([of("cell")?, of("store")?])
}

fn lists(node: &Server, expected: &[u64]) {
    until("a node lists the members that there are", || {
        let members = listed(node)?;
        members.iter().all(|of| of == expected).then_some(())
    });
}

#[test]
fn one_command_replaces_the_master_and_everybody_lists_the_members_that_there_are() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let (fourth, at) = join(dir.path(), 4);
    let master = cluster.leader_of(CELL);
    let (asked, number) = (cluster.node((master + 1) % 3), (master + 1).to_string());
    // Whoever has just come into the cell does not know the store's members, and is asked about them all the same.
    let replaced = asked.run(&["member", "replace", &number, "4", &at]);
    assert_eq!(replaced.code, 0, "{replaced:?}");
    assert_eq!(replaced.out.trim(), format!("node 4 is in the place of node {number}"));
    let left: Vec<u64> = (1..=4).filter(|node| *node != master as u64 + 1).collect();
    let (stranger, _) = join_with(dir.path(), 5, &["--contact", &asked.address.to_string()]);
    // Members, the one that was removed, and one that was never added.
    for node in [asked, &fourth, cluster.node(master), &stranger] {
        lists(node, &left);
    }
    // Nobody comes back under a number that was a member's, at whichever address.
    let refused = asked.run(&["member", "add", &number, &at]);
    refused.failed(4, "(raft.removed_number)");
    assert!(refused.err.contains("a number that the cluster never knew"), "{refused:?}");
    asked.run(&["cell", "member", "add", &number, &at, "--force"]).failed(4, "(raft.removed_number)");
    lists(asked, &left);
}

/// Who leads placement, as a node says: its role, and the leader's address.
fn placement(node: &Server) -> Option<(String, String)> {
    let said = node.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
    let text = |field: &str| status["placement"][field].as_str().map(str::to_owned);
    Some((text("role")?, text("leader")?)).filter(|(_, leader)| !leader.is_empty())
}

#[test]
fn a_node_that_was_removed_leads_placement_no_more() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let at = |place: usize| cluster.node(place).address.to_string();
    let leads = until("placement has a leader", || {
        let (_, leader) = placement(cluster.node(0))?;
        (0..3).find(|place| at(*place) == leader)
    });
    let (removed, other) = (cluster.node(leads), cluster.node((leads + 1) % 3));
    assert_eq!(placement(removed).unwrap().0, "leading");
    let said = other.run(&["member", "remove", &(leads + 1).to_string()]);
    assert_eq!(said.code, 0, "{said:?}");
    until("another node leads placement", || placement(other).filter(|(_, leader)| *leader != at(leads)));
    until("it leads no more, and does not stand again", || {
        placement(removed).filter(|(role, leader)| role == "watching" && *leader != at(leads))
    });
}
