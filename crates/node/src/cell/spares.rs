//! Spares take the place of members that stay dead (Chubby §2.2: a replica that is down for hours is replaced).
//!
//! The leader of each group looks which members answer. One that has not answered for the whole configured time, under
//! one leadership, is replaced by the first spare that answers and is no member yet. A new leader begins to count anew: a
//! change of leaders can only make a replacement later.

use crate::clock::Clock;
use crate::services::{Peers, Stored};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{GroupId, Mono, NodeId};
use tidings_consensus::{ClusterId, Group, MemberStatus};
use tidings_wire::v1;

/// How often members are looked at: often enough to notice one that answers now and then, seldom enough to be free.
const LOOKS: u32 = 20;
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// How long a name server or a spare may take to answer: one that does not is no help now.
const ANSWERS: Duration = Duration::from_secs(5);

/// So many addresses of one name are tried.
const MAX_ADDRESSES: usize = 16;

/// A node that may take a dead member's place.
#[derive(Clone, Debug)]
pub(crate) struct Spare {
    pub node: NodeId,
    pub address: String,
}

/// All that may.
pub(crate) struct Spares {
    /// Those that are configured.
    pub nodes: Vec<Spare>,
    /// Names, as `host:port`, that stand for further ones: whoever answers there.
    pub names: Vec<String>,
    /// The way to them.
    pub peers: Arc<Peers>,
}

/// Since when members have been silent.
#[derive(Debug, Default)]
struct Silence {
    since: BTreeMap<NodeId, Mono>,
}

impl Silence {
    /// Who has been silent for `after` at every look; `silent` is empty where this node does not lead.
    fn look(&mut self, now: Mono, silent: &BTreeSet<NodeId>, after: Duration) -> Option<NodeId> {
        self.since.retain(|node, _| silent.contains(node));
        for node in silent {
            self.since.entry(*node).or_insert(now);
        }
        self.since.iter().find(|(_, since)| now.since(**since) >= after).map(|(node, _)| *node)
    }
}

/// Watches the groups for as long as it is polled.
pub(crate) async fn watch(groups: Vec<Group>, spares: Spares, stored: Stored, after: Duration, clock: Arc<dyn Clock>) {
    let every = (after / LOOKS).clamp(SHORTEST_LOOK, LONGEST_LOOK);
    let mut groups: Vec<(Group, Silence)> = groups.into_iter().map(|group| (group, Silence::default())).collect();
    loop {
        tokio::time::sleep(every).await;
        for (group, silence) in &mut groups {
            let silent = group.silent().unwrap_or_default();
            if let Some(dead) = silence.look(clock.now().mono, &silent, after) {
                replace(group, dead, &spares, &stored).await;
            }
        }
    }
}

async fn replace(group: &Group, dead: NodeId, spares: &Spares, stored: &Stored) {
    let status = group.status();
    let Some(spare) = spares.find(group.cluster(), status.group, &status.members, stored).await else {
        tracing::warn!(group = %status.group, %dead, "a member stays dead and no spare answers; looking again later");
        return;
    };
    tracing::warn!(group = %status.group, %dead, spare = %spare.node, "putting a spare in the place of a dead member");
    if let Err(error) = stored.removes(status.group, dead).await {
        tracing::warn!(group = %status.group, %dead, %error, "the dead member was not replaced");
        return;
    }
    match group.replace_member(dead, spare.node, &spare.address).await {
        Ok(()) => tracing::warn!(group = %status.group, %dead, spare = %spare.node, "the spare has taken its place"),
        // It is tried again at the next look.
        Err(error) => tracing::warn!(group = %status.group, %dead, %error, "the dead member was not replaced"),
    }
}

impl Spares {
    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty()
    }

    /// The first spare that answers and is no member: those that are configured, then those that names stand for.
    async fn find(
        &self,
        cluster: Option<ClusterId>,
        group: GroupId,
        members: &[MemberStatus],
        stored: &Stored,
    ) -> Option<Spare> {
        let is_voter = |node: NodeId| members.iter().any(|member| member.node == node && member.voter);
        for spare in self.nodes.iter().filter(|spare| !is_voter(spare.node)) {
            match self.peers.status_at(&spare.address, ANSWERS).await {
                Ok(there) if there.node != spare.node.0 => {
                    tracing::warn!(spare = %spare.node, address = spare.address, node = there.node, "another node is there")
                }
                Ok(there) if is_free(&there, cluster, group, members) => {
                    if is_new(stored, group, spare.node).await {
                        return Some(spare.clone());
                    }
                }
                Ok(_) => tracing::warn!(spare = %spare.node, address = spare.address, "it belongs to another cell"),
                Err(error) => tracing::warn!(spare = %spare.node, address = spare.address, %error, "a spare is silent"),
            }
        }
        for name in &self.names {
            for address in resolve(name).await {
                match self.peers.status_at(&address, ANSWERS).await {
                    Ok(there) if is_voter(NodeId(there.node)) => {}
                    Ok(there) if is_free(&there, cluster, group, members) => {
                        let node = NodeId(there.node);
                        if is_new(stored, group, node).await {
                            return Some(Spare { node, address });
                        }
                    }
                    Ok(there) => tracing::warn!(name, address, node = there.node, "it belongs to another cell"),
                    Err(error) => tracing::warn!(name, address, %error, "a spare is silent"),
                }
            }
        }
        None
    }
}

/// Whether a spare's number was never a member's: nobody comes back under one.
async fn is_new(stored: &Stored, group: GroupId, node: NodeId) -> bool {
    match stored.was_removed(group, node).await {
        Ok(false) => true,
        Ok(true) => {
            tracing::warn!(%group, %node, "a spare was removed from the group before; start it under a new number");
            false
        }
        Err(error) => {
            tracing::warn!(%group, %node, %error, "whether a spare was a member before is not known now");
            false
        }
    }
}

/// Whether a spare may be taken: it is in no such group, or in ours, and of no other cluster. A member of another cell that
/// answers there must not lose its log to this one.
fn is_free(there: &v1::StatusReply, cluster: Option<ClusterId>, group: GroupId, members: &[MemberStatus]) -> bool {
    if there.cluster.parse().is_ok_and(|theirs: ClusterId| cluster.is_some_and(|ours| ours != theirs)) {
        return false;
    }
    let ours = |theirs: &v1::MemberStatus| {
        members.iter().any(|member| member.node.0 == theirs.node && member.address == theirs.address)
    };
    let mut same_group = there.groups.iter().filter(|theirs| theirs.group == group.0);
    same_group.all(|theirs| theirs.members.is_empty() || theirs.members.iter().any(ours))
}

/// The addresses that a name stands for now. A name that nobody knows is looked up again at the next look.
async fn resolve(name: &str) -> Vec<String> {
    match tokio::time::timeout(ANSWERS, tokio::net::lookup_host(name)).await {
        Ok(Ok(found)) => {
            let mut addresses: Vec<String> = found.map(|address| address.to_string()).collect();
            // The same order at every look: otherwise another spare would be tried each time.
            addresses.sort();
            addresses.truncate(MAX_ADDRESSES);
            addresses
        }
        Ok(Err(error)) => {
            tracing::warn!(name, %error, "the name of spares cannot be looked up; trying again later");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!(name, "looking up the name of spares takes too long; trying again later");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_another_cell_is_no_spare() {
        let (group, at) = (GroupId(1), |node: u64, host: &str| (node, format!("{host}{node}:1")));
        let ours = [1, 2, 3].map(|node| {
            let (node, address) = at(node, "a");
            MemberStatus { node: NodeId(node), address, voter: true, lag: None }
        });
        let there = |of: u32, members: &[(u64, String)]| {
            let member = |(node, address): &(u64, String)| v1::MemberStatus {
                node: *node,
                address: address.clone(),
                ..Default::default()
            };
            let groups = vec![v1::GroupStatus {
                group: of,
                members: members.iter().map(member).collect(),
                ..Default::default()
            }];
            is_free(&v1::StatusReply { groups, ..Default::default() }, None, group, &ours)
        };
        assert!(there(1, &[]) && there(1, &[at(2, "a"), at(9, "a")]) && there(2, &[at(1, "b")]));
        assert!(!there(1, &[at(1, "b"), at(2, "b"), at(3, "b")]), "the same numbers at other addresses");
        let says = |cluster: &str| {
            let there = v1::StatusReply { cluster: cluster.to_owned(), ..Default::default() };
            is_free(&there, "000000000000002f".parse().ok(), group, &ours)
        };
        assert!(says("") && says("000000000000002f") && !says("0000000000000030"));
    }

    #[test]
    fn only_who_is_silent_at_every_look_for_long_enough_is_dead() {
        let after = Duration::from_secs(10);
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        let set = |nodes: &[u64]| nodes.iter().map(|n| NodeId(*n)).collect::<BTreeSet<_>>();
        let mut silence = Silence::default();
        assert_eq!(silence.look(at(0), &set(&[2, 3]), after), None);
        assert_eq!(silence.look(at(5), &set(&[3]), after), None);
        assert_eq!(silence.look(at(9), &set(&[2, 3]), after), None);
        assert_eq!(silence.look(at(10), &set(&[2, 3]), after), Some(NodeId(3)));
        // Another leader took over in between: nothing is known any more.
        assert_eq!(silence.look(at(11), &set(&[]), after), None);
        assert_eq!(silence.look(at(19), &set(&[2, 3]), after), None);
        assert_eq!(silence.look(at(29), &set(&[2, 3]), after), Some(NodeId(2)));
    }
}
