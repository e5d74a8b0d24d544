//! Which members answer: a follower hears only its leader, so whoever is asked for the status asks all. And whether they
//! still take this node for one of theirs: a member that was removed is told nothing any more, not even that. One that is
//! none asks them who leads, and sends there what it is asked.

use super::{ClockGap, Met, Peers, admin};
use crate::clock::Clock;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::NodeId;
use tidings_consensus::{Group, Member, Outside};
use tidings_wire::v1;

/// A member that takes longer to say how it fares is as good as gone: longer than an election, short enough to wait for.
const ANSWERS: Duration = Duration::from_secs(1);

/// How often a node that is out of touch asks whether it was removed: so long it keeps what it would hand over.
const ASK: Duration = Duration::from_secs(2);

/// How often one that is no member asks who leads: what it passes on meanwhile finds nobody, and is asked again.
const ASK_OUTSIDE: Duration = Duration::from_millis(500);

/// Addresses that one answer may name; a group has five voters at most, and some that learn.
const MAX_NAMED: usize = 16;

/// Adds to a status how the other members fare, who does not answer, who answers in a member's place, and what this node was
/// removed from.
pub(super) async fn add(peers: &Peers, clock: &dyn Clock, status: &mut v1::StatusReply) {
    let mut said = Vec::new();
    let mut silent = BTreeMap::new();
    let members = others(peers.node().0, status);
    let strangers = beyond(peers, &members, status);
    let (answers, more) = tokio::join!(call(peers, clock, members.values()), call(peers, clock, strangers.iter()));
    for ((node, address), answer) in members.iter().zip(answers) {
        let (node, address) = (*node, address.clone());
        let wrong = match answer {
            Some(there) if there.status.node == node => {
                status.problems.extend(there.clock.filter(|gap| gap.is_too_far()).map(|gap| strays(node, gap)));
                status.nodes.push(node_status(&there));
                said.push(there.status);
                continue;
            }
            Some(there) => format!("Node {} answers at {address} instead of node {node}", there.status.node),
            None => format!("Node {node} at {address} does not answer"),
        };
        status.problems.push(format!(
            "{wrong}: look whether it runs and can be reached from node {}; if it is gone for good, put another in its \
             place with `tidings member replace`.",
            peers.node()
        ));
        silent.insert(node, address);
    }
    let own = status.groups.clone();
    let told = said.iter().cloned().map(Some).chain(more.into_iter().map(|met| Some(met?.status))).collect();
    let told = of_cluster(&status.cluster, told);
    as_members_say(peers.node().0, status, &told);
    for group in &mut status.groups {
        group.members.iter_mut().for_each(|member| member.silent |= silent.contains_key(&member.node));
        // Followers believe in a leader that has died until they elect another.
        if silent.contains_key(&group.leader) {
            group.leader = 0;
        }
    }
    if let Some(placement) = &mut status.placement {
        if silent.values().any(|address| *address == placement.leader) {
            placement.leader.clear();
        }
        let leads = said.iter().filter_map(|there| there.placement.as_ref()).find(|there| there.epoch > 0);
        if let Some(leads) = leads.filter(|_| placement.epoch == 0) {
            let v1::PlacementStatus { role, leader, epoch, .. } = std::mem::take(placement);
            *placement = v1::PlacementStatus { role, leader, epoch, ..leads.clone() };
        }
    }
    let removed = own.iter().filter_map(|group| {
        let by = removed_by(peers.node().0, group, &said)?;
        Some(format!(
            "This node was removed from the {}'s group, as node {by} says: stop it. To bring the machine back, start it with \
             an empty data directory and --join, under a number that the cluster never knew.",
            group.name
        ))
    });
    status.problems.extend(removed);
}

/// Whom else to ask about groups that this node is no member of.
fn beyond(peers: &Peers, members: &BTreeMap<u64, String>, status: &v1::StatusReply) -> BTreeSet<String> {
    let node = peers.node().0;
    match status.groups.iter().all(|group| is_member(node, group)) {
        true => BTreeSet::new(),
        false => peers.asked().into_iter().filter(|asked| !members.values().any(|known| known == asked)).collect(),
    }
}

/// A group that this node is no member of (any more) is shown as its members show it.
fn as_members_say(node: u64, status: &mut v1::StatusReply, said: &[v1::StatusReply]) {
    for group in &mut status.groups {
        if is_member(node, group) && removed_by(node, group, said).is_none() {
            continue;
        }
        if let Some(there) = latest(group.group, said) {
            let v1::GroupStatus { leader, members, .. } = there.clone();
            *group = v1::GroupStatus { leader, members, ..std::mem::take(group) };
        }
    }
}

fn is_member(node: u64, group: &v1::GroupStatus) -> bool {
    group.members.iter().any(|member| member.node == node)
}

/// What a member says of itself, beside this node.
fn node_status(Met { status, clock }: &Met) -> v1::NodeStatus {
    let clock = clock.unwrap_or_default();
    v1::NodeStatus {
        node: status.node,
        address: status.address.clone(),
        version: status.version.clone(),
        uptime_ms: status.uptime_ms,
        connections: status.connections,
        clock_ahead_us: clock.ahead_us,
        clock_error_us: clock.error_us,
        shares: status.shares.clone(),
        rates: status.rates.clone(),
        lease_ms: status.lease_ms,
    }
}

fn strays(node: u64, gap: ClockGap) -> String {
    format!(
        "The wall clock of node {node} is {gap}: tokens and certificates begin and end at other times there. Let NTP or PTP \
         keep the clocks of all nodes."
    )
}

/// The other members of all groups.
fn others(node: u64, status: &v1::StatusReply) -> BTreeMap<u64, String> {
    let members = status.groups.iter().flat_map(|group| &group.members);
    members.filter(|member| member.node != node).map(|member| (member.node, member.address.clone())).collect()
}

/// What these nodes say of themselves, in their order.
async fn call(peers: &Peers, clock: &dyn Clock, addresses: impl Iterator<Item = &String>) -> Vec<Option<Met>> {
    join_all(addresses.map(async |address| peers.meet(address, ANSWERS, clock).await.ok())).await
}

/// Who knows at least as much as this node, and does not know it as a member; it may even know so itself. One that knows no
/// members was not added yet.
fn removed_by(node: u64, group: &v1::GroupStatus, said: &[v1::StatusReply]) -> Option<u64> {
    match (group.members.is_empty(), is_member(node, group)) {
        (true, _) => return None,
        (false, false) => return Some(node),
        (false, true) => {}
    }
    let denies = |there: &&v1::StatusReply| {
        let same = there.groups.iter().find(|of| of.group == group.group);
        same.is_some_and(|of| !of.members.is_empty() && of.committed >= group.committed && !is_member(node, of))
    };
    said.iter().find(denies).map(|there| there.node)
}

/// The answers of this cluster's nodes: an address may be another cluster's by now. Without a number of its own a node
/// believes those who agree.
fn of_cluster(cluster: &str, said: Vec<Option<v1::StatusReply>>) -> Vec<v1::StatusReply> {
    let said: Vec<v1::StatusReply> = said.into_iter().flatten().filter(|there| !there.cluster.is_empty()).collect();
    let own = match cluster {
        "" => said.first().map_or(String::new(), |there| there.cluster.clone()),
        own => own.to_owned(),
    };
    match cluster.is_empty() && said.iter().any(|there| there.cluster != own) {
        true => Vec::new(),
        false => said.into_iter().filter(|there| there.cluster == own).collect(),
    }
}

/// What the one says of a group who has seen the latest leadership, and the most of it.
fn latest(group: u32, said: &[v1::StatusReply]) -> Option<&v1::GroupStatus> {
    let same = said.iter().filter_map(|there| there.groups.iter().find(|of| of.group == group));
    same.filter(|of| !of.members.is_empty()).max_by_key(|of| (of.epoch, of.leader, of.committed))
}

/// What the members say of a group to one who is none of them.
fn outside(group: u32, said: &[v1::StatusReply]) -> Option<Outside> {
    let latest = latest(group, said)?;
    let member = |member: &v1::MemberStatus| Member { node: NodeId(member.node), address: member.address.clone() };
    let leader = Some(NodeId(latest.leader)).filter(|leader| leader.0 != 0);
    Some(Outside { leader, members: latest.members.iter().map(member).collect() })
}

/// Asks, while this node is out of touch with a group, whether it is still a member. It tells in the log, once, when it was
/// removed, and the group where to send what is asked of it.
pub(super) async fn watch(logs: [Group; 2], peers: Arc<Peers>, clock: Arc<dyn Clock>) {
    let mut told = BTreeSet::new();
    let mut pause = ASK_OUTSIDE;
    // Whom those who answered have named: contacts may be gone one day.
    let mut named = BTreeSet::new();
    loop {
        tokio::time::sleep(pause).await;
        pause = ASK;
        for log in logs.iter().filter(|log| log.in_touch()) {
            log.hear_from_outside(None);
            told.remove(&log.status().group.0);
        }
        let lost: Vec<&Group> = logs.iter().filter(|log| !log.in_touch()).collect();
        if lost.is_empty() {
            continue;
        }
        let status = admin::status(&lost);
        // A node that is in one group only knows of the other by the members of that one.
        let members = others(peers.node().0, &admin::status(&logs.each_ref()));
        let asked: BTreeSet<&String> = members.values().chain(peers.contacts()).chain(&named).collect();
        let said = call(&peers, &*clock, asked.into_iter()).await.into_iter().map(|met| Some(met?.status));
        let said = of_cluster(&status.cluster, said.collect());
        for (log, group) in lost.into_iter().zip(&status.groups) {
            let removed = removed_by(peers.node().0, group, &said);
            if let Some(by) = removed
                && told.insert(group.group)
            {
                let group = &group.name;
                tracing::warn!(group, by, "this node was removed from the group: it takes no part in it any more");
            }
            let stands_outside = removed.is_some() || group.members.is_empty();
            if stands_outside {
                pause = ASK_OUTSIDE;
            }
            let heard = outside(group.group, &said).filter(|_| stands_outside);
            if let Some(heard) = &heard {
                let members: Vec<String> =
                    heard.members.iter().map(|member| member.address.clone()).take(MAX_NAMED).collect();
                named.extend(members.iter().cloned());
                peers.hear(members);
            }
            log.hear_from_outside(heard.or_else(|| stands_outside.then(Outside::default)));
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

    #[test]
    fn who_is_no_member_shows_the_members_that_there_are() {
        let group = |number, epoch, leader, nodes: &[u64]| {
            let member = |node: &u64| v1::MemberStatus { node: *node, voter: true, ..Default::default() };
            let members = nodes.iter().map(member).collect();
            v1::GroupStatus { group: number, epoch, leader, members, ..Default::default() }
        };
        let of = |groups: Vec<v1::GroupStatus>| v1::StatusReply { groups, ..Default::default() };
        let nodes = |status: &v1::StatusReply, at: usize| -> Vec<u64> {
            status.groups[at].members.iter().map(|member| member.node).collect()
        };
        // Just added to the cell, and not to the store yet; the other has been removed from the store since.
        let said =
            [of(vec![group(0, 3, 4, &[1, 2, 4]), group(1, 2, 0, &[1, 2, 3])]), of(vec![group(1, 5, 1, &[1, 2])])];
        let mut joined = of(vec![group(0, 3, 4, &[1, 2, 4]), group(1, 0, 0, &[])]);
        as_members_say(4, &mut joined, &said);
        assert_eq!((nodes(&joined, 0), nodes(&joined, 1)), (vec![1, 2, 4], vec![1, 2]));
        assert_eq!((joined.groups[1].leader, joined.groups[1].members[0].voter), (1, true));
        let mut removed = of(vec![group(1, 2, 0, &[1, 2, 3])]);
        as_members_say(3, &mut removed, &said);
        assert_eq!(nodes(&removed, 0), [1, 2]);
        // Whom nobody answers shows what it knows.
        let mut alone = of(vec![group(1, 2, 1, &[1, 2, 3])]);
        as_members_say(4, &mut alone, &[]);
        assert_eq!(nodes(&alone, 0), [1, 2, 3]);
    }

    #[test]
    fn answers_of_other_clusters_count_for_nothing() {
        let said = |clusters: &[&str]| {
            let reply = |cluster: &&str| Some(v1::StatusReply { cluster: (*cluster).to_owned(), ..Default::default() });
            clusters.iter().map(reply).chain([None]).collect::<Vec<_>>()
        };
        assert_eq!(of_cluster("a", said(&["a", "b", ""])).len(), 1);
        assert_eq!(of_cluster("", said(&["b", "", "b"])).len(), 2);
        assert_eq!(of_cluster("", said(&["a", "b"])), []);
    }

    #[test]
    fn who_saw_the_latest_leadership_is_believed() {
        let group = |epoch, leader, nodes: &[u64]| {
            let member =
                |node: &u64| v1::MemberStatus { node: *node, address: format!("m{node}:1"), ..Default::default() };
            let members = nodes.iter().map(member).collect();
            v1::StatusReply {
                groups: vec![v1::GroupStatus { group: 1, epoch, leader, members, ..Default::default() }],
                ..Default::default()
            }
        };
        let said = [group(3, 1, &[1, 2, 3]), group(5, 2, &[1, 2, 4]), group(9, 7, &[])];
        let heard = outside(1, &said).unwrap();
        assert_eq!(heard.leader, Some(NodeId(2)));
        assert_eq!(heard.members.iter().map(|member| member.node.0).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(outside(0, &said), None);
        // An election is on: nobody to send to, for the moment.
        assert_eq!(outside(1, &[group(6, 0, &[1, 2, 4])]).unwrap().leader, None);
    }
}
