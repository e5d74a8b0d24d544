//! openraft's types as this binding chooses them, and the two ways to count entries.

use crate::identity::ClusterId;
use crate::proposals::Completion;
use crate::runtime::Runtime;
use bytes::Bytes;
use openraft::impls::leader_id_std;
use openraft::{EntryPayload, OptionalSend, RaftTypeConfig};
use std::fmt;
use tidings_base::LogIndex;

/// The one instantiation of openraft.
///
/// - `LeaderId` is that of standard Raft: a term has one leader at most. (openraft's own default lets several nodes
///   lead one after another in the same term; then a term could not serve as epoch.)
/// - The runtime draws its randomness from a seed, so that a simulated run repeats; in production the seed differs
///   from start to start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig {}

impl RaftTypeConfig for TypeConfig {
    type D = Command;
    type R = Answer;
    type NodeId = u64;
    type Node = openraft::BasicNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Command, u64, openraft::BasicNode>;
    type Entry = openraft::Entry<CommittedLeaderId, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Completion<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type CommittedLeaderId = <leader_id_std::LeaderId<u64, u64> as openraft::vote::RaftLeaderId>::Committed;
pub(crate) type LogId = openraft::LogId<CommittedLeaderId>;
pub(crate) type Vote = openraft::Vote<leader_id_std::LeaderId<u64, u64>>;
pub(crate) type Entry = openraft::Entry<CommittedLeaderId, EntryPayload<Command, u64, openraft::BasicNode>>;
pub(crate) type Membership = openraft::Membership<u64, openraft::BasicNode>;
pub(crate) type StoredMembership = openraft::StoredMembership<CommittedLeaderId, u64, openraft::BasicNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, u64, openraft::BasicNode>;
pub(crate) type Raft = openraft::Raft<TypeConfig, crate::state::StateMachine>;

/// A command on its way into the log.
#[derive(Clone, PartialEq, Eq)]
pub enum Command {
    /// For the state; opaque.
    State(Bytes),
    /// What the cluster is called, unless it has a number already.
    Cluster(ClusterId),
}

impl Command {
    /// What the state is to apply: nothing, if it is not for the state.
    pub fn for_state(&self) -> &[u8] {
        match self {
            Command::State(bytes) => bytes,
            Command::Cluster(_) => &[],
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::State(bytes) => write!(f, "{} bytes", bytes.len()),
            Command::Cluster(cluster) => write!(f, "cluster {cluster}"),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What the state answered to a command; opaque.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub Bytes);

/// openraft counts entries from 0, machines from 1.
pub(crate) fn index_of(id: &LogId) -> LogIndex {
    LogIndex(id.index + 1)
}

/// The place of an optional entry: 0 for none.
pub(crate) fn index_or_zero(id: Option<&LogId>) -> LogIndex {
    id.map_or(LogIndex(0), index_of)
}

pub(crate) fn log_id(term: u64, raft_index: u64) -> LogId {
    LogId::new_term_index(term, raft_index)
}

pub(crate) fn term_of(id: &LogId) -> u64 {
    id.leader_id.term
}
