//! Calls from other members.

use crate::codec::{self, Malformed};
use crate::error::OtherCluster;
use crate::identity::ClusterId;
use crate::mutant::Mutant;
use crate::shared::Shared;
use crate::snapshot::{SnapshotFiles, SnapshotWriter};
use crate::state::SnapshotData;
use crate::types::{Raft, SnapshotMeta};
use openraft::raft::AppendEntriesResponse;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::NodeId;
use tidings_wire::v1::{self, raft_message::Body};
use tokio::sync::Mutex;

/// Answers the calls of other members.
pub(crate) struct Receiver {
    pub shared: Arc<Shared>,
    pub raft: Raft,
    pub files: SnapshotFiles,
    /// The one snapshot that is being received; a new stream takes its place.
    pub incoming: Mutex<Option<Incoming>>,
    /// Numbers the files that received snapshots are written to: one that is being installed is never written again.
    pub received: AtomicU64,
}

pub(crate) struct Incoming {
    from: u64,
    stream: u64,
    next: u64,
    writer: SnapshotWriter,
}

/// Why a call got no proper answer; nothing happened.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the disk: {0}")]
    Disk(#[from] io::Error),
    #[error("{0}")]
    Stopped(String),
    #[error("this replica has promised its vote and keeps still")]
    Promised,
    #[error("this is no call that a member understands")]
    Unknown,
    #[error("this call is for another group")]
    OtherGroup,
    #[error(transparent)]
    OtherCluster(#[from] OtherCluster),
}

impl Receiver {
    pub async fn receive(&self, message: v1::RaftMessage) -> v1::RaftMessage {
        let (group, from) = (self.shared.group.0, self.shared.node.0);
        let reply = if message.group == group { self.answer(message).await } else { Err(Fault::OtherGroup) };
        let body = reply.unwrap_or_else(|fault| {
            if matches!(fault, Fault::Malformed(_)) {
                tracing::warn!(group, error = %fault, "a call from another member makes no sense");
            }
            Body::Unavailable(v1::RaftUnavailable { reason: fault.to_string() })
        });
        v1::RaftMessage { group, from, body: Some(body), cluster: self.shared.identity.wire() }
    }

    async fn answer(&self, message: v1::RaftMessage) -> Result<Body, Fault> {
        let (from, cluster) = (message.from, message.cluster);
        self.shared.same_cluster(NodeId(from), cluster, false)?;
        self.shared.answered.lock().insert(NodeId(from), self.shared.now());
        match message.body {
            Some(Body::Append(append)) => self.append(cluster, append).await,
            Some(Body::Vote(vote)) => self.vote(vote).await,
            Some(Body::Snapshot(chunk)) => self.chunk(from, cluster, chunk).await,
            Some(Body::Transfer(transfer)) => self.transfer(transfer).await,
            _ => Err(Fault::Unknown),
        }
    }

    /// This replica follows a leader of that cluster: from now on it belongs to it.
    fn joined(&self, cluster: u64) -> Result<(), Fault> {
        match ClusterId::new(cluster) {
            Some(cluster) if self.shared.identity.known().is_none() => {
                Ok(crate::shared::blocking(|| self.shared.identity.adopt(cluster))?)
            }
            _ => Ok(()),
        }
    }

    async fn append(&self, cluster: u64, wire: v1::RaftAppend) -> Result<Body, Fault> {
        let request = codec::append(wire)?;
        let (received, term) = (self.shared.now(), request.vote.leader_id.term);
        let reply = self.raft.append_entries(request).await.map_err(|e| Fault::Stopped(e.to_string()))?;
        let accepted = !matches!(reply, AppendEntriesResponse::HigherVote(_));
        let counted = self.shared.mutant == Some(Mutant::CountedPromise);
        if accepted && !self.shared.leases.lock().promise(received, term) && !counted {
            // The leader would count on a promise that is not given; it asks again, and hears of the new term.
            return Err(Fault::Promised);
        }
        if accepted {
            self.joined(cluster)?;
        }
        Ok(Body::AppendReply(codec::wire_append_reply(&reply)))
    }

    async fn vote(&self, wire: v1::RaftVote) -> Result<Body, Fault> {
        let request = codec::vote_request(&wire)?;
        let (now, term) = (self.shared.now(), request.vote.leader_id.term);
        let reply = if wire.trial {
            // A trial changes nothing, whatever is answered.
            if !self.shared.leases.lock().may_vote(now, wire.transfer) {
                return Err(Fault::Promised);
            }
            self.raft.pre_vote(request).await
        } else {
            if !self.shared.leases.lock().consider(now, term, wire.transfer) {
                return Err(Fault::Promised);
            }
            // On a task of its own: a caller that hangs up must not leave open whether the vote was given, or this
            // replica would promise nothing to the present leader for as long as that one leads.
            let (shared, raft) = (self.shared.clone(), self.raft.clone());
            let considered = tokio::spawn(async move {
                let reply = raft.vote(request).await;
                let granted = reply.as_ref().map_or(true, |reply| reply.vote_granted);
                shared.leases.lock().considered(term, granted);
                reply
            });
            considered.await.map_err(|e| Fault::Stopped(e.to_string()))?
        };
        let reply = reply.map_err(|e| Fault::Stopped(e.to_string()))?;
        Ok(Body::VoteReply(codec::wire_vote_reply(&reply)))
    }

    async fn transfer(&self, wire: v1::RaftTransfer) -> Result<Body, Fault> {
        let request = codec::transfer(&wire)?;
        let reply = self.raft.handle_transfer_leader(request).await.map_err(|e| Fault::Stopped(e.to_string()))?;
        let reason = reply.as_ref().err().map(|e| e.to_string()).unwrap_or_default();
        Ok(Body::TransferReply(v1::RaftTransferReply { accepted: reply.is_ok(), reason }))
    }

    async fn chunk(&self, from: u64, cluster: u64, chunk: v1::RaftSnapshotChunk) -> Result<Body, Fault> {
        let ballot = codec::required(chunk.ballot, "ballot")?;
        let vote = codec::vote(&ballot);
        let ours = openraft::async_runtime::watch::WatchReceiver::borrow_watched(&self.raft.metrics()).vote;
        if ours > vote {
            return Ok(snapshot_reply(codec::ballot(&ours), false));
        }
        let mut incoming = self.incoming.lock().await;
        let last = chunk.last;
        let writer = match self.take_piece(&mut incoming, from, chunk) {
            Ok(Some(writer)) => writer,
            Ok(None) if last => return Ok(snapshot_reply(ballot, true)),
            Ok(None) => return Ok(snapshot_reply(ballot, incoming.is_none())),
            Err(fault) => {
                self.abandon(incoming.take());
                return Err(fault);
            }
        };
        let (name, applied) = crate::shared::blocking(|| writer.finish())?;
        let meta = SnapshotMeta { last_log_id: applied.last, last_membership: applied.membership };
        let left = name.clone();
        let snapshot = openraft::Snapshot { meta, snapshot: SnapshotData::Received(name) };
        let reply = self.raft.install_full_snapshot(vote, snapshot).await.map_err(|e| Fault::Stopped(e.to_string()))?;
        // Installed, the file has another name or is gone; one that came too late is of no use.
        let _ = self.files.discard(&left);
        if reply.vote == vote {
            self.joined(cluster)?;
        }
        Ok(snapshot_reply(codec::ballot(&reply.vote), false))
    }

    /// Puts a piece where it belongs; gives the writer out after the last. Leaves nothing behind when the stream is
    /// broken.
    fn take_piece(
        &self,
        incoming: &mut Option<Incoming>,
        from: u64,
        chunk: v1::RaftSnapshotChunk,
    ) -> Result<Option<SnapshotWriter>, Fault> {
        if chunk.sequence == 0 {
            let position = codec::required(chunk.position.as_ref(), "position")?;
            let applied = codec::Applied::from_wire(position)?;
            codec::required(applied.last, "applied")?;
            let number = self.received.fetch_add(1, Ordering::Relaxed);
            let writer = self.files.write(&format!("received-{number}"), &applied)?;
            self.abandon(incoming.replace(Incoming { from, stream: chunk.stream, next: 0, writer }));
        }
        let Some(mut stream) = incoming.take() else { return Ok(None) };
        let expected = (stream.from, stream.stream, stream.next) == (from, chunk.stream, chunk.sequence);
        let sound = expected && crc32c::crc32c(&chunk.data) == chunk.checksum;
        let whole = !chunk.last || (chunk.data.is_empty() && stream.writer.checksum() == chunk.whole_checksum);
        if !sound || !whole {
            self.abandon(Some(stream));
            return Ok(None);
        }
        if chunk.last {
            return Ok(Some(stream.writer));
        }
        let written = stream.writer.piece(&chunk.data);
        stream.next += 1;
        *incoming = Some(stream);
        Ok(written.map(|()| None)?)
    }

    /// Removes what came of a stream that will not be finished; a file that stays is removed at the next start.
    fn abandon(&self, stream: Option<Incoming>) {
        if let Some(stream) = stream {
            let _ = self.files.discard(&stream.writer.name);
        }
    }
}

fn snapshot_reply(ballot: v1::RaftBallot, restart: bool) -> Body {
    Body::SnapshotReply(v1::RaftSnapshotReply { ballot: Some(ballot), restart })
}
