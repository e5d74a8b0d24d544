//! Between openraft's types and the messages of `raft.proto`. What comes from the network or the disk is checked here
//! and nowhere else; openraft never sees a gap in entries or a membership without voters.

use crate::identity::ClusterId;
use crate::types::{self, Command, Entry, LogId, Membership, StoredMembership, TypeConfig, Vote};
use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse};
use openraft::{BasicNode, EntryPayload};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::agreed::MAX_COMMAND;
use tidings_wire::v1::{self, raft_entry::Payload};

/// A message or record that this program cannot have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) String);

pub(crate) type Decoded<T> = Result<T, Malformed>;

fn malformed<T>(what: impl Into<String>) -> Decoded<T> {
    Err(Malformed(what.into()))
}

pub(crate) fn required<T>(field: Option<T>, name: &str) -> Decoded<T> {
    field.ok_or_else(|| Malformed(format!("the field `{name}` is missing")))
}

pub(crate) fn ballot(vote: &Vote) -> v1::RaftBallot {
    v1::RaftBallot { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
}

pub(crate) fn vote(ballot: &v1::RaftBallot) -> Vote {
    if ballot.committed { Vote::new_committed(ballot.term, ballot.node) } else { Vote::new(ballot.term, ballot.node) }
}

pub(crate) fn wire_id(id: &LogId) -> v1::RaftLogId {
    v1::RaftLogId { term: types::term_of(id), index: id.index + 1 }
}

pub(crate) fn log_id(id: &v1::RaftLogId) -> Decoded<LogId> {
    match id.index.checked_sub(1) {
        Some(index) if index < u64::MAX - 1 => Ok(types::log_id(id.term, index)),
        _ => malformed("an entry has no place in the log"),
    }
}

pub(crate) fn optional_id(id: Option<&v1::RaftLogId>) -> Decoded<Option<LogId>> {
    id.map(log_id).transpose()
}

pub(crate) fn wire_membership(membership: &Membership) -> v1::RaftMembership {
    let configs = membership.get_joint_config().iter();
    let members = membership.nodes();
    v1::RaftMembership {
        configs: configs.map(|voters| v1::RaftVoters { nodes: voters.iter().copied().collect() }).collect(),
        members: members.map(|(node, at)| v1::RaftMember { node: *node, address: at.addr.clone() }).collect(),
    }
}

pub(crate) fn membership(wire: &v1::RaftMembership) -> Decoded<Membership> {
    let configs: Vec<BTreeSet<u64>> = wire.configs.iter().map(|c| c.nodes.iter().copied().collect()).collect();
    let members: BTreeMap<u64, BasicNode> =
        wire.members.iter().map(|m| (m.node, BasicNode { addr: m.address.clone() })).collect();
    if configs.is_empty() && members.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, members).map_err(|e| Malformed(format!("a membership makes no sense: {e}")))
}

pub(crate) fn wire_entry(entry: &Entry) -> v1::RaftEntry {
    let payload = match &entry.payload {
        EntryPayload::Blank => None,
        EntryPayload::Normal(Command::State(bytes)) => Some(Payload::Command(bytes.clone())),
        EntryPayload::Normal(Command::Cluster(cluster)) => Some(Payload::Cluster(cluster.get())),
        EntryPayload::Membership(m) => Some(Payload::Membership(wire_membership(m))),
    };
    v1::RaftEntry { id: Some(wire_id(&entry.log_id)), payload }
}

pub(crate) fn entry(wire: v1::RaftEntry) -> Decoded<Entry> {
    let log_id = log_id(&required(wire.id, "id")?)?;
    let payload = match wire.payload {
        None => EntryPayload::Blank,
        Some(Payload::Command(command)) if command.len() > MAX_COMMAND => {
            return malformed(format!("a command of {} bytes is larger than allowed", command.len()));
        }
        Some(Payload::Command(command)) => EntryPayload::Normal(Command::State(command)),
        Some(Payload::Cluster(number)) => {
            let cluster = required(ClusterId::new(number), "cluster")?;
            EntryPayload::Normal(Command::Cluster(cluster))
        }
        Some(Payload::Membership(m)) => EntryPayload::Membership(membership(&m)?),
    };
    Ok(Entry { log_id, payload })
}

pub(crate) fn encode_entry(entry: &Entry) -> Bytes {
    wire_entry(entry).encode_to_vec().into()
}

pub(crate) fn decode_entry(bytes: Bytes) -> Decoded<Entry> {
    entry(v1::RaftEntry::decode(bytes).map_err(|e| Malformed(format!("an entry cannot be decoded: {e}")))?)
}

/// How far a state is, in openraft's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub last: Option<LogId>,
    pub membership: StoredMembership,
}

impl Applied {
    pub fn wire(&self) -> v1::RaftPosition {
        v1::RaftPosition {
            applied: self.last.as_ref().map(wire_id),
            membership_id: self.membership.log_id().as_ref().map(wire_id),
            membership: Some(wire_membership(self.membership.membership())),
        }
    }

    pub fn note(&self) -> Bytes {
        self.wire().encode_to_vec().into()
    }

    pub fn from_wire(wire: &v1::RaftPosition) -> Decoded<Applied> {
        let last = optional_id(wire.applied.as_ref())?;
        let set_by = optional_id(wire.membership_id.as_ref())?;
        let members = membership(&wire.membership.clone().unwrap_or_default())?;
        Ok(Applied { last, membership: StoredMembership::new(set_by, members) })
    }

    pub fn from_note(note: &Bytes) -> Decoded<Applied> {
        if note.is_empty() {
            return Ok(Applied::default());
        }
        let wire = v1::RaftPosition::decode(note.clone())
            .map_err(|e| Malformed(format!("the note of a state cannot be decoded: {e}")))?;
        Applied::from_wire(&wire)
    }
}

pub(crate) fn wire_append(request: &AppendEntriesRequest<TypeConfig>) -> v1::RaftAppend {
    v1::RaftAppend {
        ballot: Some(ballot(&request.vote)),
        previous: request.prev_log_id.as_ref().map(wire_id),
        entries: request.entries.iter().map(wire_entry).collect(),
        committed: request.leader_commit.as_ref().map(wire_id),
    }
}

pub(crate) fn append(wire: v1::RaftAppend) -> Decoded<AppendEntriesRequest<TypeConfig>> {
    let vote = vote(&required(wire.ballot, "ballot")?);
    if !vote.committed {
        return malformed("entries come from a node that does not lead");
    }
    let prev_log_id = optional_id(wire.previous.as_ref())?;
    let entries: Vec<Entry> = wire.entries.into_iter().map(entry).collect::<Decoded<_>>()?;
    let mut previous = prev_log_id;
    for entry in &entries {
        let expected = previous.map_or(0, |id| id.index + 1);
        if entry.log_id.index != expected || Some(entry.log_id.leader_id) < previous.map(|id| id.leader_id) {
            return malformed("entries do not follow one another");
        }
        previous = Some(entry.log_id);
    }
    let leader_commit = optional_id(wire.committed.as_ref())?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub(crate) fn wire_append_reply(reply: &AppendEntriesResponse<TypeConfig>) -> v1::RaftAppendReply {
    use v1::raft_append_reply::Outcome;
    let (outcome, matched, higher) = match reply {
        AppendEntriesResponse::Success => (Outcome::Success, None, None),
        AppendEntriesResponse::PartialSuccess(matched) => (Outcome::Partial, matched.as_ref().map(wire_id), None),
        AppendEntriesResponse::Conflict => (Outcome::Conflict, None, None),
        AppendEntriesResponse::HigherVote(vote) => (Outcome::HigherBallot, None, Some(ballot(vote))),
    };
    v1::RaftAppendReply { outcome: outcome.into(), matched, higher }
}

/// `with_previous`: whether the request named a previous entry; only then can it conflict.
pub(crate) fn append_reply(
    wire: &v1::RaftAppendReply,
    with_previous: bool,
) -> Decoded<AppendEntriesResponse<TypeConfig>> {
    use v1::raft_append_reply::Outcome;
    Ok(match wire.outcome() {
        Outcome::Success => AppendEntriesResponse::Success,
        Outcome::Partial => AppendEntriesResponse::PartialSuccess(optional_id(wire.matched.as_ref())?),
        Outcome::Conflict if with_previous => AppendEntriesResponse::Conflict,
        Outcome::Conflict => return malformed("nothing was there to conflict with"),
        Outcome::HigherBallot => AppendEntriesResponse::HigherVote(vote(&required(wire.higher, "higher")?)),
        Outcome::Unspecified => return malformed("the outcome of an append is missing"),
    })
}

pub(crate) fn wire_vote(request: &VoteRequest<TypeConfig>, trial: bool) -> v1::RaftVote {
    v1::RaftVote {
        ballot: Some(ballot(&request.vote)),
        last: request.last_log_id.as_ref().map(wire_id),
        trial,
        transfer: request.leadership_transfer,
    }
}

pub(crate) fn vote_request(wire: &v1::RaftVote) -> Decoded<VoteRequest<TypeConfig>> {
    let mut request = VoteRequest::new(vote(&required(wire.ballot, "ballot")?), optional_id(wire.last.as_ref())?);
    request.leadership_transfer = wire.transfer;
    Ok(request)
}

pub(crate) fn wire_vote_reply(reply: &VoteResponse<TypeConfig>) -> v1::RaftVoteReply {
    v1::RaftVoteReply {
        ballot: Some(ballot(&reply.vote)),
        last: reply.last_log_id.as_ref().map(wire_id),
        granted: reply.vote_granted,
    }
}

pub(crate) fn vote_reply(wire: &v1::RaftVoteReply) -> Decoded<VoteResponse<TypeConfig>> {
    let vote = vote(&required(wire.ballot, "ballot")?);
    Ok(VoteResponse::new(vote, optional_id(wire.last.as_ref())?, wire.granted))
}

pub(crate) fn wire_transfer(request: &TransferLeaderRequest<TypeConfig>) -> v1::RaftTransfer {
    v1::RaftTransfer {
        from_leader: Some(ballot(request.from_leader())),
        to: *request.to_node_id(),
        last: request.last_log_id().map(wire_id),
    }
}

pub(crate) fn transfer(wire: &v1::RaftTransfer) -> Decoded<TransferLeaderRequest<TypeConfig>> {
    let from = vote(&required(wire.from_leader, "from_leader")?);
    Ok(TransferLeaderRequest::new(from, wire.to, optional_id(wire.last.as_ref())?))
}
