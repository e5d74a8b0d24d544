//! Which members answer: a follower hears only its leader, so whoever is asked for the status asks all. And whether they
//! still take this node for one of theirs: a member that was removed is told nothing any more, not even that.

use super::{Peers, admin};
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidings_consensus::Group;
use tidings_wire::v1;

/// A member that takes longer to say how it fares is as good as gone: longer than an election, short enough to wait for.
const ANSWERS: Duration = Duration::from_secs(1);

/// How often a node that is out of touch asks whether it was removed.
const ASK: Duration = Duration::from_secs(10);

/// Adds to a status who does not answer, who answers in a member's place, and what this node was removed from.
pub(super) async fn add(peers: &Peers, status: &mut v1::StatusReply) {
    let mut said = Vec::new();
    let mut silent = BTreeMap::new();
    for (node, address, answer) in call(peers, status).await {
        let wrong = match answer {
            Some(there) if there.node == node => {
                said.push(there);
                continue;
            }
            Some(there) => format!("Node {} answers at {address} instead of node {node}", there.node),
            None => format!("Node {node} at {address} does not answer"),
        };
        status.problems.push(format!(
            "{wrong}: look whether it runs and can be reached from node {}; if it is gone for good, put another in its \
             place with `tidings member replace`.",
            peers.node()
        ));
        silent.insert(node, address);
    }
    for group in &mut status.groups {
        group.members.iter_mut().for_each(|member| member.silent |= silent.contains_key(&member.node));
        // Followers believe in a leader that has died until they elect another.
        if silent.contains_key(&group.leader) {
            group.leader = 0;
        }
    }
    if let Some(placement) = &mut status.placement
        && silent.values().any(|address| *address == placement.leader)
    {
        placement.leader.clear();
    }
    let removed = status.groups.iter().filter_map(|group| {
        let by = removed_by(peers.node().0, group, &said)?;
        Some(format!(
            "This node was removed from the {}'s group, as node {by} says: stop it. To bring the machine back, start it with \
             an empty data directory and --join, under a number that the cluster never knew.",
            group.name
        ))
    });
    let removed: Vec<String> = removed.collect();
    status.problems.extend(removed);
}

/// What the other members of all groups say of themselves.
async fn call(peers: &Peers, status: &v1::StatusReply) -> Vec<(u64, String, Option<v1::StatusReply>)> {
    let members = status.groups.iter().flat_map(|group| &group.members);
    let others: BTreeMap<u64, String> = members
        .filter(|member| member.node != peers.node().0)
        .map(|member| (member.node, member.address.clone()))
        .collect();
    let called = others.into_iter().map(async |(node, address)| {
        let answer = peers.status_of_member(&address, ANSWERS).await.ok();
        (node, address, answer)
    });
    join_all(called).await
}

/// Who knows at least as much as this node, and does not know it as a member; it may even know so itself. One that knows no
/// members was not added yet.
fn removed_by(node: u64, group: &v1::GroupStatus, said: &[v1::StatusReply]) -> Option<u64> {
    let has = |group: &v1::GroupStatus| group.members.iter().any(|member| member.node == node);
    match (group.members.is_empty(), has(group)) {
        (true, _) => return None,
        (false, false) => return Some(node),
        (false, true) => {}
    }
    let denies = |there: &&v1::StatusReply| {
        let same = there.groups.iter().find(|of| of.group == group.group);
        same.is_some_and(|of| !of.members.is_empty() && of.committed >= group.committed && !has(of))
    };
    said.iter().find(denies).map(|there| there.node)
}

/// Tells in the log, once, when this node was removed from a group.
pub(super) async fn watch(logs: [Group; 2], peers: Arc<Peers>) {
    let mut told = BTreeSet::new();
    loop {
        tokio::time::sleep(ASK).await;
        let lost: Vec<&Group> = logs.iter().filter(|log| !log.in_touch()).collect();
        if lost.is_empty() {
            told.clear();
            continue;
        }
        let status = admin::status(&lost);
        let said: Vec<v1::StatusReply> =
            call(&peers, &status).await.into_iter().filter_map(|(_, _, answer)| answer).collect();
        for group in &status.groups {
            if let Some(by) = removed_by(peers.node().0, group, &said)
                && told.insert(group.group)
            {
                let group = &group.name;
                tracing::warn!(group, by, "this node was removed from the group: it takes no part in it any more");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_more_and_does_not_know_this_node_has_removed_it() {
        let group = |members: &[u64], committed| {
            let member = |node: &u64| v1::MemberStatus { node: *node, ..Default::default() };
            v1::GroupStatus { group: 1, committed, members: members.iter().map(member).collect(), ..Default::default() }
        };
        let said = |of| vec![v1::StatusReply { node: 1, groups: vec![of], ..Default::default() }];
        let here = group(&[1, 2, 3], 10);
        assert_eq!(removed_by(3, &here, &said(group(&[1, 2], 12))), Some(1));
        assert_eq!(removed_by(4, &here, &[]), Some(4));
        // It knows less; it knows nobody; it knows this node; this node is none yet.
        assert_eq!(removed_by(3, &here, &said(group(&[1, 2], 9))), None);
        assert_eq!(removed_by(3, &here, &said(group(&[], 12))), None);
        assert_eq!(removed_by(3, &here, &said(group(&[1, 2, 3], 12))), None);
        assert_eq!(removed_by(4, &group(&[], 0), &said(group(&[1, 2], 12))), None);
    }
}
