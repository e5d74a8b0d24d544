//! Which members answer: a follower hears only its leader, so whoever is asked for the status asks all.

use super::Peers;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_wire::v1;

/// A member that takes longer to say how it fares is as good as gone: longer than an election, short enough to wait for.
const ANSWERS: Duration = Duration::from_secs(1);

/// Adds to a status who does not answer, and who answers in a member's place.
pub(super) async fn add(peers: &Peers, status: &mut v1::StatusReply) {
    let members = status.groups.iter().flat_map(|group| &group.members);
    let others: BTreeMap<u64, String> = members
        .filter(|member| member.node != peers.node().0)
        .map(|member| (member.node, member.address.clone()))
        .collect();
    let called = others.into_iter().map(async |(node, address)| {
        let wrong = match peers.status_of_member(&address, ANSWERS).await {
            Ok(there) if there.node == node => None,
            Ok(there) => Some(format!("Node {} answers at {address} instead of node {node}", there.node)),
            Err(_) => Some(format!("Node {node} at {address} does not answer")),
        };
        wrong.map(|wrong| (node, wrong))
    });
    for (node, wrong) in join_all(called).await.into_iter().flatten() {
        status.problems.push(format!(
            "{wrong}: look whether it runs and can be reached from node {}; if it is gone for good, put another in its \
             place with `tidings member replace`.",
            peers.node()
        ));
        for member in status.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.silent |= member.node == node;
        }
    }
}
