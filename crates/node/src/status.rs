//! How a node and its cluster fare, as people and scripts read it: the same over HTTP and from the command line.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidings_wire::v1;
use utoipa::ToSchema;

/// How a node fares.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Its number.
    pub node: u64,
    /// The number by which the cluster knows its own; null while the node does not know it.
    pub cluster: Option<String>,
    /// Of its program.
    pub version: String,
    /// Where others reach it.
    pub address: String,
    /// How long it runs.
    pub uptime_ms: u64,
    /// Open connections.
    pub connections: u32,
    /// What it owns by lease: ranges of `notify`, partitions of `tables`.
    pub ranges: BTreeMap<String, u64>,
    /// What happened here a second, over the last ten seconds: calls of clients by part, entries that were agreed on,
    /// notifications sent.
    pub rates: BTreeMap<String, f64>,
    /// Its replicas.
    pub groups: Vec<Group>,
    /// The placement manager, as this node sees it.
    pub placement: Option<Placement>,
    /// The other members that answer.
    pub nodes: Vec<Node>,
    /// Whom it asks about the cluster while it is no member; empty at members.
    pub contacts: Vec<String>,
    /// Sentences about what is wrong, each with what to do; empty when all is well.
    pub problems: Vec<String>,
}

/// A Raft group as a node sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = GroupStatus)]
pub struct Group {
    /// Its number.
    pub group: u32,
    /// `store` or `cell`.
    pub name: String,
    /// `leader`, `follower` or `learner`.
    pub role: String,
    /// Null while nobody leads.
    pub leader: Option<u64>,
    /// Of the leadership.
    pub epoch: u64,
    /// The last entry that this node has applied.
    pub applied: u64,
    /// The last entry that it knows to be agreed on.
    pub committed: u64,
    /// Who takes part.
    pub members: Vec<Member>,
}

/// A member of a group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MemberStatus)]
pub struct Member {
    /// Its number.
    pub node: u64,
    /// Where others reach it.
    pub address: String,
    /// Whether it votes, or learns.
    pub voter: bool,
    /// Entries behind the leader, as the leader sees it.
    pub lag: u64,
    /// It did not answer the node that was asked.
    #[serde(default)]
    pub silent: bool,
}

/// The placement manager, as a node sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PlacementStatus)]
pub struct Placement {
    /// `leading`, `standing by` or `watching`.
    pub role: String,
    /// Where the leader is, if that is known.
    pub leader: Option<String>,
    /// Of the leader, if that is this node.
    pub epoch: Option<u64>,
    /// Namespaces that the leader manages, if it answers.
    pub namespaces: u64,
    /// Those of them that are the platform's own: `.notify`, `.tables`.
    #[serde(default)]
    pub platform_namespaces: u64,
    /// Their owners that are alive.
    pub owners: u64,
    /// Their ranges.
    pub ranges: u64,
}

/// Another member, as it says itself.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = NodeStatus)]
pub struct Node {
    /// Its number.
    pub node: u64,
    /// Where others reach it.
    pub address: String,
    /// Of its program.
    pub version: String,
    /// How long it runs.
    pub uptime_ms: u64,
    /// Open connections.
    pub connections: u32,
    /// How far its wall clock is before that of the node that was asked; below zero = behind.
    pub clock_ahead_us: i64,
    /// By how much that can be wrong: half the round trip.
    pub clock_error_us: u64,
    /// What it owns by lease.
    pub ranges: BTreeMap<String, u64>,
    /// What happened there a second.
    pub rates: BTreeMap<String, f64>,
}

impl From<v1::StatusReply> for Status {
    fn from(reply: v1::StatusReply) -> Status {
        Status {
            node: reply.node,
            cluster: Some(reply.cluster).filter(|cluster| !cluster.is_empty()),
            version: reply.version,
            address: reply.address,
            uptime_ms: reply.uptime_ms,
            connections: reply.connections,
            ranges: ranges(reply.shares),
            rates: rates(reply.rates),
            groups: reply.groups.into_iter().map(Group::from).collect(),
            placement: reply.placement.map(Placement::from),
            nodes: reply.nodes.into_iter().map(Node::from).collect(),
            contacts: reply.contacts,
            problems: reply.problems,
        }
    }
}

impl From<v1::GroupStatus> for Group {
    fn from(group: v1::GroupStatus) -> Group {
        Group {
            group: group.group,
            name: group.name,
            role: group.role,
            leader: Some(group.leader).filter(|leader| *leader != 0),
            epoch: group.epoch,
            applied: group.applied,
            committed: group.committed,
            members: group.members.into_iter().map(Member::from).collect(),
        }
    }
}

impl From<v1::MemberStatus> for Member {
    fn from(m: v1::MemberStatus) -> Member {
        Member { node: m.node, address: m.address, voter: m.voter, lag: m.lag, silent: m.silent }
    }
}

impl From<v1::PlacementStatus> for Placement {
    fn from(placement: v1::PlacementStatus) -> Placement {
        Placement {
            role: placement.role,
            leader: Some(placement.leader).filter(|leader| !leader.is_empty()),
            epoch: Some(placement.epoch).filter(|epoch| *epoch > 0),
            namespaces: placement.namespaces,
            platform_namespaces: placement.platform_namespaces,
            owners: placement.owners,
            ranges: placement.ranges,
        }
    }
}

impl From<v1::NodeStatus> for Node {
    fn from(node: v1::NodeStatus) -> Node {
        Node {
            node: node.node,
            address: node.address,
            version: node.version,
            uptime_ms: node.uptime_ms,
            connections: node.connections,
            clock_ahead_us: node.clock_ahead_us,
            clock_error_us: node.clock_error_us,
            ranges: ranges(node.shares),
            rates: rates(node.rates),
        }
    }
}

fn ranges(shares: Vec<v1::Share>) -> BTreeMap<String, u64> {
    shares.into_iter().map(|share| (share.part, share.ranges)).collect()
}

fn rates(rates: Vec<v1::Rate>) -> BTreeMap<String, f64> {
    rates.into_iter().map(|rate| (rate.name, rate.per_second)).collect()
}
