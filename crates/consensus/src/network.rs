//! Calls to other members: openraft's requests as messages on the transport, with the guard of promises before each
//! vote and the time of sending noted for each append.

use crate::codec::{self, Malformed};
use crate::shared::Shared;
use crate::state::SnapshotData;
use crate::types::{TypeConfig, Vote};
use async_trait::async_trait;
use futures::FutureExt;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{Backoff, RPCOption, RPCTypes, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, RaftNetworkV2};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::NodeId;
use tidings_base::agreed::SnapshotChunks;
use tidings_wire::v1::{self, raft_message::Body};

/// Carries a message to another member and brings its reply back.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends `message` to the member `to` at `address` and waits for the reply. The caller bounds the time; to drop the
    /// future must be harmless.
    async fn call(
        &self,
        to: NodeId,
        address: &str,
        message: v1::RaftMessage,
    ) -> Result<v1::RaftMessage, TransportError>;
}

/// A message that got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

/// Makes the clients through which openraft reaches each member.
pub(crate) struct Network {
    pub shared: Arc<Shared>,
    pub transport: Arc<dyn Transport>,
    /// Numbers the snapshot transfers of this process.
    pub streams: Arc<AtomicU64>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer {
            shared: self.shared.clone(),
            transport: self.transport.clone(),
            streams: self.streams.clone(),
            target,
            address: node.addr.clone(),
        }
    }
}

/// The way to one member.
pub(crate) struct Peer {
    shared: Arc<Shared>,
    transport: Arc<dyn Transport>,
    streams: Arc<AtomicU64>,
    target: u64,
    address: String,
}

type Rpc<T> = Result<T, RPCError<TypeConfig>>;

fn unreachable(why: impl ToString) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

fn nonsense(why: Malformed) -> RPCError<TypeConfig> {
    unreachable(format!("the reply makes no sense: {why}"))
}

impl Peer {
    async fn call(&self, body: Body, action: RPCTypes, limit: Duration) -> Rpc<Body> {
        let (group, from, cluster) = (self.shared.group.0, self.shared.node.0, self.shared.identity.wire());
        let message = v1::RaftMessage { group, from, body: Some(body), cluster };
        let call = self.transport.call(NodeId(self.target), &self.address, message);
        let reply = match tokio::time::timeout(limit, call).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(e)) => return Err(unreachable(e)),
            Err(_) => {
                let (id, target) = (self.shared.node.0, self.target);
                return Err(RPCError::Timeout(Timeout { action, id, target, timeout: limit }));
            }
        };
        self.shared.same_cluster(NodeId(self.target), reply.cluster, true).map_err(unreachable)?;
        if reply.from != self.target {
            // Another node has the member's address now: it knows nothing of what that one has promised or written.
            return Err(unreachable(format!("node {} answers at the address of node {}", reply.from, self.target)));
        }
        self.shared.answered.lock().insert(NodeId(self.target), self.shared.now());
        match reply.body {
            Some(Body::Unavailable(u)) => Err(unreachable(u.reason)),
            Some(body) => Ok(body),
            None => Err(unreachable("the reply is empty")),
        }
    }

    async fn ask_vote(&self, request: VoteRequest<TypeConfig>, trial: bool) -> Rpc<VoteResponse<TypeConfig>> {
        let (now, term) = (self.shared.now(), request.vote.leader_id.term);
        let may = {
            let mut leases = self.shared.leases.lock();
            match trial {
                true => leases.may_vote(now, request.leadership_transfer),
                false => leases.campaign(now, term, request.leadership_transfer),
            }
        };
        if !may {
            return Err(unreachable("this replica has promised not to campaign yet"));
        }
        let body = Body::Vote(codec::wire_vote(&request, trial));
        match self.call(body, RPCTypes::Vote, self.shared.timings.call).await? {
            Body::VoteReply(reply) => codec::vote_reply(&reply).map_err(nonsense),
            _ => Err(unreachable("the reply is not to a vote")),
        }
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        position: v1::RaftPosition,
        mut chunks: Box<dyn SnapshotChunks>,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let (mut whole, mut sequence) = (0, 0);
        loop {
            let piece = chunks.next_chunk().map_err(NetworkError::from_string)?;
            let data = piece.clone().unwrap_or_default();
            whole = crc32c::crc32c_append(whole, &data);
            let chunk = v1::RaftSnapshotChunk {
                ballot: Some(codec::ballot(&vote)),
                stream,
                sequence,
                position: (sequence == 0).then(|| position.clone()),
                checksum: crc32c::crc32c(&data),
                data,
                last: piece.is_none(),
                whole_checksum: if piece.is_none() { whole } else { 0 },
            };
            let timings = &self.shared.timings;
            let limit = if chunk.last { timings.install } else { timings.call };
            let last = chunk.last;
            let _installing = last.then(|| self.shared.installs(NodeId(self.target)));
            let reply = match self.call(Body::Snapshot(chunk), RPCTypes::InstallSnapshot, limit).await? {
                Body::SnapshotReply(reply) => reply,
                _ => return Err(NetworkError::from_string("the reply is not to a snapshot").into()),
            };
            let theirs = codec::vote(&codec::required(reply.ballot, "ballot").map_err(|e| NetworkError::new(&e))?);
            if last || theirs > vote {
                if reply.restart {
                    return Err(NetworkError::from_string("the stream broke at its end").into());
                }
                return Ok(SnapshotResponse::new(theirs));
            }
            if reply.restart {
                return Err(NetworkError::from_string("the stream broke").into());
            }
            sequence += 1;
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<TypeConfig>> {
        let (previous, term) = (request.prev_log_id.map(|id| id.index), request.vote.leader_id.term);
        let last = request.entries.last().map(|entry| entry.log_id.index).or(previous);
        let body = Body::Append(codec::wire_append(&request));
        drop(request);
        let (member, sent) = (NodeId(self.target), self.shared.now());
        // Before it is sent: what is acknowledged meanwhile says nothing of when this request arrived.
        let had = self.shared.acknowledged.lock().last(term, member);
        let reply = match self.call(body, RPCTypes::AppendEntries, self.shared.timings.call).await? {
            Body::AppendReply(reply) => codec::append_reply(&reply, previous.is_some()).map_err(nonsense)?,
            _ => return Err(unreachable("the reply is not to an append")),
        };
        let took = match &reply {
            AppendEntriesResponse::Conflict if previous <= had => {
                return Err(unreachable(self.shared.lost_log(member)));
            }
            AppendEntriesResponse::Success => last,
            AppendEntriesResponse::PartialSuccess(matched) => matched.map(|id| id.index),
            AppendEntriesResponse::Conflict | AppendEntriesResponse::HigherVote(_) => None,
        };
        if let Some(index) = took {
            self.shared.acknowledged.lock().took(term, member, index);
        }
        // Even a conflict says that the leader was accepted; only a higher ballot says that it was not.
        if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
            self.shared.leases.lock().accepted(term, self.target, sent);
        }
        Ok(reply)
    }

    async fn vote(&mut self, request: VoteRequest<TypeConfig>, _option: RPCOption) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask_vote(request, false).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask_vote(request, true).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::Snapshot<crate::types::CommittedLeaderId, u64, BasicNode, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let applied =
            codec::Applied { last: snapshot.meta.last_log_id, membership: snapshot.meta.last_membership.clone() };
        let chunks: Box<dyn SnapshotChunks> = match snapshot.snapshot {
            SnapshotData::Picture(chunks) => chunks,
            SnapshotData::Flushed | SnapshotData::Received(_) => {
                return Err(NetworkError::from_string("the snapshot has no bytes").into());
            }
        };
        let member = NodeId(self.target);
        if self.shared.acknowledged.lock().has_lost(member) {
            return Err(StreamingError::Unreachable(Unreachable::from_string(self.shared.lost_log(member))));
        }
        let send = self.send_snapshot(vote, applied.wire(), chunks).fuse();
        futures::pin_mut!(send);
        let cancel = cancel.fuse();
        futures::pin_mut!(cancel);
        futures::select_biased! {
            closed = cancel => Err(closed.into()),
            sent = send => {
                if let (Ok(reply), Some(last)) = (&sent, applied.last)
                    && reply.vote == vote
                {
                    self.shared.acknowledged.lock().took(vote.leader_id.term, member, last.index);
                }
                sent
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Rpc<TransferLeaderResponse<TypeConfig>> {
        let body = Body::Transfer(codec::wire_transfer(&request));
        match self.call(body, RPCTypes::TransferLeader, self.shared.timings.call).await? {
            Body::TransferReply(reply) if reply.accepted => Ok(Ok(())),
            Body::TransferReply(_) => {
                let expected = request.last_log_id().copied();
                Ok(Err(TransferLeaderError::LogNotFlushed { expected, actual: None }))
            }
            _ => Err(unreachable("the reply is not to a hand-over")),
        }
    }

    /// Soon again at first, at most once a lease: a member that comes back is noticed by the heartbeats anyway.
    fn backoff(&self) -> Option<Backoff> {
        let (first, most) = (self.shared.timings.heartbeat / 2, self.shared.timings.lease);
        Some(Backoff::new((0u32..).map(move |n| (first * 2u32.pow(n.min(8))).min(most))))
    }
}
