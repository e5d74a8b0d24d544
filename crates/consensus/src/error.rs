//! The refusals of this crate's calls, each with a sentence that says what to do.

use crate::codec::Malformed;
use crate::identity::ClusterId;
use std::io;
use tidings_base::agreed::{Refusal, StateFailure};
use tidings_base::{Class, Error, LogIndex, NodeId};

/// What a node says of another one that is not of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} belongs to another cluster ({cluster})")]
pub struct OtherCluster {
    /// The other node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
}

/// What a leader says of a member that does not have what it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} has lost its log; replace it")]
pub struct LostLog {
    /// The member.
    pub node: NodeId,
}

/// Why a group did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log could not be opened.
    #[error("the agreed log could not be opened: {0}")]
    Log(#[from] tidings_log::OpenError),
    /// A file beside the log could not be read or written.
    #[error("{file}: {source}")]
    Disk {
        /// The file.
        file: String,
        /// What went wrong.
        source: io::Error,
    },
    /// A file holds what this program cannot have written.
    #[error("{file} is damaged: {why}")]
    Damaged {
        /// The file.
        file: String,
        /// What does not fit.
        why: String,
    },
    /// Entries between the state and the log are missing.
    #[error("the state ends at entry {state} and the log begins at entry {log}: the entries between are lost")]
    Gap {
        /// The last entry that the state holds.
        state: LogIndex,
        /// The first entry that the log holds.
        log: LogIndex,
    },
    /// The state could not be read or restored.
    #[error("the state could not be opened: {0}")]
    State(#[from] StateFailure),
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// openraft did not start.
    #[error("the replica did not start: {0}")]
    Engine(String),
}

impl StartError {
    pub(crate) fn damaged(file: &str, why: Malformed) -> StartError {
        StartError::Damaged { file: file.into(), why: why.0 }
    }

    pub(crate) fn disk(file: &str, source: io::Error) -> StartError {
        StartError::Disk { file: file.into(), source }
    }
}

impl From<StartError> for Error {
    fn from(e: StartError) -> Error {
        let (code, class, hint) = match &e {
            StartError::Log(_) => ("raft.log", Class::Failed, "`tidings doctor` names the file and what can be saved"),
            StartError::Disk { .. } => ("raft.disk", Class::Failed, "look at the disk's space and permissions"),
            StartError::Damaged { .. } => (
                "raft.damaged",
                Class::Failed,
                "remove this member and add it anew with an empty directory; with one member restore a backup",
            ),
            StartError::Gap { .. } => (
                "raft.gap",
                Class::Failed,
                "remove this member and add it anew with an empty directory; with one member restore a backup",
            ),
            StartError::State(_) => ("raft.state", Class::Failed, "`tidings doctor` looks through the data directory"),
            StartError::Config(_) => ("raft.config", Class::Invalid, "correct the configuration"),
            StartError::Engine(_) => ("raft.engine", Class::Failed, ""),
        };
        Error::new(code, class, e.to_string()).hint(hint)
    }
}

/// Why a proposal of [`Group::propose`](crate::Group::propose) has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It was not appended and never will be.
    #[error("not taken: {}", sentence(*.0))]
    Refused(Refusal),
    /// It may or may not be applied, now or later.
    #[error("the outcome is unknown; look before you repeat it")]
    Unknown,
}

fn sentence(refusal: Refusal) -> String {
    match refusal {
        Refusal::NotLeader { leader: Some(node) } => format!("node {node} leads the group"),
        Refusal::NotLeader { leader: None } => "no leader is known; try again".into(),
        Refusal::Busy => "too many requests are waiting; try again after a pause".into(),
        Refusal::TooLarge => "the command is too large".into(),
        Refusal::Stopped => "the replica is stopping or its disk failed".into(),
    }
}

/// Why the members of a group did not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only the leader changes members.
    #[error("{}", sentence(Refusal::NotLeader { leader: *.leader }))]
    NotLeader {
        /// The leader, if known.
        leader: Option<NodeId>,
    },
    /// The leader was asked to leave, and nobody took over in time.
    #[error("this node leads the group and nobody has taken over yet, so it cannot leave; try again")]
    StillLeading,
    /// Another change is under way.
    #[error("another change of members is under way; try again when it is done")]
    Busy,
    /// The node is a member already.
    #[error("node {0} is a voting member already")]
    Already(NodeId),
    /// The node is no member.
    #[error("node {0} is no member of the group")]
    NoMember(NodeId),
    /// The last voter cannot leave.
    #[error("node {0} is the only voting member; add another one first")]
    LastVoter(NodeId),
    /// Those that would stay and answer are no majority.
    #[error("without node {leaving} there would be no majority: {} would stay and does not answer", names(missed))]
    NoMajorityLeft {
        /// Who was to leave.
        leaving: NodeId,
        /// Who would stay, silent.
        missed: Vec<NodeId>,
    },
    /// The new member did not catch up in time; it stays a learner.
    #[error("node {node} is {lag} entries behind and did not catch up in time; it stays without a vote")]
    TooSlow {
        /// The new member.
        node: NodeId,
        /// How far it is behind.
        lag: u64,
    },
    /// Whoever is there is no node of this cluster; it was not added.
    #[error("{0}, and was not added")]
    OtherCluster(OtherCluster),
    /// The change was begun and its end was not seen.
    #[error("the change was begun and its outcome is unknown; look at the members before you repeat it")]
    Unknown,
    /// The replica is stopping or failed.
    #[error("the replica is stopping or its disk failed")]
    Stopped,
}

fn names(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| format!("node {node}")).collect();
    names.join(" and ")
}

impl From<ChangeError> for Error {
    fn from(e: ChangeError) -> Error {
        let (code, class) = match &e {
            ChangeError::NotLeader { .. } => ("raft.not_leader", Class::Unreachable),
            ChangeError::StillLeading => ("raft.still_leading", Class::Unreachable),
            ChangeError::Busy => ("raft.change_under_way", Class::Refused),
            ChangeError::Already(_) => ("raft.already_member", Class::Refused),
            ChangeError::NoMember(_) => ("raft.no_member", Class::NotFound),
            ChangeError::LastVoter(_) => ("raft.last_voter", Class::Refused),
            ChangeError::NoMajorityLeft { .. } => ("raft.no_majority_left", Class::Refused),
            ChangeError::TooSlow { .. } => ("raft.too_slow", Class::Failed),
            ChangeError::OtherCluster(_) => ("raft.other_cluster", Class::Refused),
            ChangeError::Unknown => ("raft.outcome_unknown", Class::OutcomeUnknown),
            ChangeError::Stopped => ("raft.stopped", Class::Unreachable),
        };
        let hint = match &e {
            ChangeError::NotLeader { .. } | ChangeError::StillLeading | ChangeError::Stopped => {
                "Ask again after a pause."
            }
            ChangeError::Busy | ChangeError::Unknown | ChangeError::Already(_) | ChangeError::NoMember(_) => {
                "`tidings status` lists the members."
            }
            ChangeError::LastVoter(_) => "A group without voters could never agree on anything again.",
            ChangeError::NoMajorityLeft { .. } => "Remove or replace those that do not answer first, or start them.",
            ChangeError::OtherCluster(_) => {
                "Start it with an empty data directory and --join, under a number that this cluster never knew."
            }
            ChangeError::TooSlow { .. } => "Look whether it runs and can be reached, then add it again.",
        };
        Error::new(code, class, e.to_string()).hint(hint)
    }
}
