//! What a replica says about itself: a plain struct for status pages, and gauges. All names of gauges are here.

use crate::error::{LostLog, OtherCluster};
use crate::group::Group;
use crate::identity::ClusterId;
use crate::shared::Shared;
use crate::types::{Raft, index_or_zero};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use std::sync::atomic::Ordering;
use tidings_base::{Epoch, GroupId, LogIndex, NodeId};

/// 1 while the replica leads.
pub const LEADS: &str = "tidings_raft_leads";
/// The Raft term.
pub const TERM: &str = "tidings_raft_term";
/// The last entry that the state here has applied.
pub const APPLIED: &str = "tidings_raft_applied_index";
/// The last entry that is known to be committed.
pub const COMMITTED: &str = "tidings_raft_committed_index";
/// Proposals that wait for their answer.
pub const PROPOSALS: &str = "tidings_raft_proposals_waiting";
/// Bytes of proposals that wait for their answer.
pub const PROPOSAL_BYTES: &str = "tidings_raft_proposal_bytes_waiting";
/// For each other member, as the leader sees it: entries that it lacks.
pub const LAG: &str = "tidings_raft_member_lag";

/// Messages that were refused since they are of another cluster.
pub const STRANGERS: &str = "tidings_raft_other_cluster_total";

pub(crate) fn refused_stranger(group: GroupId) {
    metrics::counter!(STRANGERS, "group" => group.0.to_string()).increment(1);
}

/// What a replica is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads, as announced.
    Leader,
    /// It votes and follows.
    Follower,
    /// It follows without a vote.
    Learner,
    /// It has stopped.
    Stopped,
}

impl Standing {
    /// The word for it in status replies.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Leader => "leader",
            Standing::Follower => "follower",
            Standing::Learner => "learner",
            Standing::Stopped => "stopped",
        }
    }
}

/// A member as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its name.
    pub node: NodeId,
    /// Where it is reached.
    pub address: String,
    /// Whether it votes.
    pub voter: bool,
    /// At the leader: how many entries it lacks; `None` where that is not known.
    pub lag: Option<u64>,
}

/// What a replica says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The group.
    pub group: GroupId,
    /// This replica.
    pub node: NodeId,
    /// What it is in the group.
    pub standing: Standing,
    /// Who leads, if that is known.
    pub leader: Option<NodeId>,
    /// The epoch under which it leads.
    pub epoch: Option<Epoch>,
    /// The Raft term.
    pub term: u64,
    /// The last entry in the log here.
    pub last: LogIndex,
    /// The last entry known to be committed.
    pub committed: LogIndex,
    /// The last entry that the state here has applied.
    pub applied: LogIndex,
    /// The first entry that the log still holds.
    pub first: LogIndex,
    /// Proposals that wait for their answer.
    pub proposals: usize,
    /// Bytes of them.
    pub proposal_bytes: usize,
    /// All members.
    pub members: Vec<MemberStatus>,
}

impl Group {
    /// What this replica says about itself now.
    pub fn status(&self) -> Status {
        status(&self.inner.shared, &self.inner.raft)
    }

    /// The cluster that this node belongs to, if it knows.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.shared.identity.known()
    }

    /// Nodes of other clusters that this node was told to speak to, or that spoke to it, within the last minute.
    pub fn strangers(&self) -> Vec<OtherCluster> {
        let strangers = self.inner.shared.identity.strangers(self.inner.shared.now());
        strangers.into_iter().map(|(node, stranger)| OtherCluster { node, cluster: stranger.cluster }).collect()
    }

    /// The members that do not have what they acknowledged to this leader.
    pub fn lost_logs(&self) -> Vec<LostLog> {
        let acknowledged = self.inner.shared.acknowledged.lock();
        let members = self.inner.members();
        let lost = members.nodes().map(|(node, _)| NodeId(*node)).filter(|node| acknowledged.has_lost(*node));
        lost.map(|node| LostLog { node }).collect()
    }
}

fn status(shared: &Shared, raft: &Raft) -> Status {
    let m = raft.metrics().borrow_watched().clone();
    let epoch = shared.leading_term().map(Epoch);
    let standing = match m.state {
        _ if shared.stopped.load(Ordering::Acquire) => Standing::Stopped,
        _ if epoch.is_some() => Standing::Leader,
        ServerState::Learner => Standing::Learner,
        ServerState::Shutdown => Standing::Stopped,
        _ => Standing::Follower,
    };
    let voters: Vec<u64> = m.membership_config.voter_ids().collect();
    let last = m.last_log_index.map_or(0, |index| index + 1);
    let lag = |node: u64| {
        if node == shared.node.0 {
            return epoch.map(|_| 0);
        }
        let matched = m.replication.as_ref()?.get(&node)?;
        Some(last.saturating_sub(index_or_zero(matched.as_ref()).0))
    };
    let members = m.membership_config.nodes().map(|(node, at)| MemberStatus {
        node: NodeId(*node),
        address: at.addr.clone(),
        voter: voters.contains(node),
        lag: lag(*node),
    });
    let (proposals, proposal_bytes) = shared.proposals.waiting();
    Status {
        group: shared.group,
        node: shared.node,
        standing,
        leader: m.current_leader.map(NodeId),
        epoch,
        term: m.current_term,
        last: LogIndex(last),
        committed: index_or_zero(m.local_committed.as_ref()),
        applied: shared.applied_index(),
        first: LogIndex(index_or_zero(m.purged.as_ref()).0 + 1),
        proposals,
        proposal_bytes,
        members: members.collect(),
    }
}

/// Sets the gauges.
pub(crate) fn publish(shared: &Shared, raft: &Raft) {
    let status = status(shared, raft);
    let group = shared.group.0.to_string();
    let gauge = |name: &'static str, value: f64| metrics::gauge!(name, "group" => group.clone()).set(value);
    gauge(LEADS, f64::from(u8::from(status.standing == Standing::Leader)));
    gauge(TERM, status.term as f64);
    gauge(APPLIED, status.applied.0 as f64);
    gauge(COMMITTED, status.committed.0 as f64);
    gauge(PROPOSALS, status.proposals as f64);
    gauge(PROPOSAL_BYTES, status.proposal_bytes as f64);
    // Shown from the start, so that whoever watches it sees it leave zero.
    metrics::counter!(STRANGERS, "group" => group.clone()).increment(0);
    for member in status.members {
        if let Some(lag) = member.lag {
            metrics::gauge!(LAG, "group" => group.clone(), "member" => member.node.to_string()).set(lag as f64);
        }
    }
}
