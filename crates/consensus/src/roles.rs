//! Watches openraft and tells the machine of roles and leases.

use crate::length::Length;
use crate::metrics;
use crate::proposals::Completion;
use crate::shared::Shared;
use crate::types::{Command, CommittedLeaderId, Raft, term_of};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidings_base::agreed::{Heard, Role};
use tidings_base::{Epoch, Mono, NodeId};

/// Tells of every change of role until the replica stops.
///
/// The epoch is the Raft term. It grows from one leadership to the next: a leader has the votes of a majority for its
/// term, a voter votes once in a term and remembers that on disk before it answers, and every election begins a new
/// term. A restarted leader must be elected again (`enable_leader_restore` is off), alone or not, so that two
/// processes never lead in the same term.
///
/// A leader is announced once it has applied an entry of its own term: the first is the blank one with which the term
/// begins, and it follows everything that earlier leaders committed.
pub(crate) async fn watch_role(shared: Arc<Shared>, raft: Raft) {
    let mut server = raft.server_metrics();
    let mut applied = shared.applied.subscribe();
    loop {
        let now = server.borrow_watched().clone();
        let leads =
            now.state == ServerState::Leader && now.vote.committed && now.vote.leader_id.voted_for == shared.node.0;
        let term = now.vote.leader_id.term;
        let settled = applied.borrow_and_update().as_ref().is_some_and(|last| term_of(last) >= term);
        let leader = now.current_leader.map(NodeId).filter(|leader| *leader != shared.node);
        announce(
            &shared,
            if leads && settled { Role::Leader { epoch: Epoch(term) } } else { Role::Follower { leader } },
        );
        let changed = tokio::select! {
            biased;
            changed = server.changed() => changed.is_ok(),
            _ = applied.changed(), if leads && !settled => true,
        };
        if !changed {
            break;
        }
    }
    if !shared.stopped.swap(true, Ordering::AcqRel) {
        tracing::error!(group = shared.group.0, "the replica stopped by itself: its disk or its state failed");
        shared.failed.send_replace(true);
    }
    announce(&shared, Role::Follower { leader: None });
}

fn announce(shared: &Shared, role: Role) {
    let term = match role {
        Role::Leader { epoch } => epoch.0,
        Role::Follower { .. } => 0,
    };
    let before = shared.leading.swap(term, Ordering::AcqRel);
    if before != 0 && before != term {
        // Most of what waits is settled soon, by the next leader; the rest must not wait longer than an election.
        shared.proposals.hurry(shared.now() + shared.timings.election);
    }
    if matches!(role, Role::Follower { leader: Some(_) }) {
        shared.leases.lock().resume();
    }
    if shared.announcer.role(role).is_some() {
        tracing::info!(group = shared.group.0, node = shared.node.0, ?role, "role");
    }
    if term != 0 {
        announce_lease(shared, term, &mut Mono(0));
    }
}

/// Once a heartbeat: leases, proposals that waited too long, the log's length, gauges, the end of the silence after a restart.
pub(crate) async fn pulse(shared: Arc<Shared>, raft: Raft, mut length: Length, quiet: bool) {
    let mut ticks = tokio::time::interval(shared.timings.heartbeat);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut quiet = quiet;
    let (mut told, mut named) = (Mono(0), 0);
    let mut absent = Absent::default();
    loop {
        ticks.tick().await;
        let now = shared.now();
        if quiet && shared.leases.lock().may_vote(now, false) {
            raft.runtime_config().elect(!shared.resigned.load(Ordering::Relaxed));
            quiet = false;
        }
        shared.proposals.expire(now);
        if let Some(term) = shared.leading_term() {
            announce_lease(&shared, term, &mut told);
            if term != named {
                named = term;
                name_cluster(&shared, &raft, term).await;
            }
        }
        absent.look(&shared, &raft);
        length.look(&shared, &raft).await;
        metrics::publish(&shared, &raft);
    }
}

/// The members that this leader misses: each is told of once when it goes and once when it is back. openraft says so with
/// every message that it cannot deliver.
#[derive(Default)]
struct Absent {
    members: BTreeSet<u64>,
}

impl Absent {
    fn look(&mut self, shared: &Shared, raft: &Raft) {
        if shared.leading_term().is_none() {
            return self.members.clear();
        }
        let members = raft.server_metrics().borrow_watched().membership_config.clone();
        self.members.retain(|node| members.get_node(node).is_some());
        let group = shared.group.0;
        for (node, at) in members.nodes() {
            match (shared.misses(NodeId(*node)), self.members.contains(node)) {
                (true, false) => {
                    self.members.insert(*node);
                    tracing::warn!(group, node, address = at.addr, "a member does not answer");
                }
                (false, true) => {
                    self.members.remove(node);
                    tracing::info!(group, node, address = at.addr, "a member answers again");
                }
                _ => {}
            }
        }
    }
}

/// A leader whose cluster has no number proposes one, once in a term: it has applied all that was agreed before it, so it
/// would know. Should two leaders do so one after the other, the first entry counts for all.
async fn name_cluster(shared: &Shared, raft: &Raft, term: u64) {
    let Some(cluster) = shared.candidate.filter(|_| shared.identity.known().is_none()) else { return };
    let write = raft.write(Command::Cluster(cluster)).responder(Completion::new(|_| ()));
    if write.with_leader(CommittedLeaderId::new(term)).await.is_err() {
        tracing::debug!(group = shared.group.0, "the replica stopped before its cluster had a number");
    }
}

fn announce_lease(shared: &Shared, term: u64, told: &mut Mono) {
    let lease = shared.leases.lock().hold(shared.now(), term);
    if let Some(until) = lease
        && until > *told
    {
        *told = until;
        shared.announcer.say(Heard::LeaseUntil(until));
    }
}
