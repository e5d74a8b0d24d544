//! Members come and go while the group serves: first as learners that only listen, as voters when they have caught
//! up. And leadership moves on request, after the lease has run out.

use crate::error::{ChangeError, OtherCluster};
use crate::group::{Group, Inner, forward_to};
use crate::identity::Stranger;
use crate::shared::Shared;
use crate::types::{TypeConfig, index_or_zero};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers};
use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;
use tidings_base::agreed::Role;
use tidings_base::{Mono, NodeId};

/// A new member that lacks no more entries than this has caught up: the rest comes with the next few messages.
const CAUGHT_UP: u64 = 1_000;

type Changed = Result<(), ChangeError>;

impl Group {
    /// Adds a member: as a learner first, with a vote when it has caught up. The node must be running already, started
    /// without members.
    pub async fn add_member(&self, node: NodeId, address: &str) -> Changed {
        self.leads()?;
        let voters = self.voters();
        if voters.contains(&node.0) {
            return Err(ChangeError::Already(node));
        }
        self.add_learner(node, address).await?;
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node.0]))).await
    }

    /// Removes a member. A leader that is asked to remove itself hands over first and names the new leader, who is to
    /// be asked then.
    pub async fn remove_member(&self, node: NodeId) -> Changed {
        self.leads()?;
        let voters = self.voters();
        if self.inner.members().get_node(&node.0).is_none() {
            return Err(ChangeError::NoMember(node));
        }
        if !voters.contains(&node.0) {
            return self.change(ChangeMembers::RemoveNodes(BTreeSet::from([node.0]))).await;
        }
        if voters.len() == 1 {
            return Err(ChangeError::LastVoter(node));
        }
        self.lead_on(node).await?;
        self.others_agree_without(node)?;
        self.change(ChangeMembers::RemoveVoters(BTreeSet::from([node.0]))).await
    }

    /// Refuses a removal after which those who answer would be no majority: nothing could be agreed on any more, not even
    /// that somebody comes back.
    fn others_agree_without(&self, leaving: NodeId) -> Changed {
        let Some(silent) = self.silent() else { return Ok(()) };
        let staying: Vec<NodeId> = self.voters().into_iter().map(NodeId).filter(|voter| *voter != leaving).collect();
        let missed: Vec<NodeId> = staying.iter().copied().filter(|voter| silent.contains(voter)).collect();
        if (staying.len() - missed.len()) * 2 > staying.len() {
            return Ok(());
        }
        Err(ChangeError::NoMajorityLeft { leaving, missed })
    }

    /// Puts a new member in the place of an old one, in one change of voters.
    pub async fn replace_member(&self, old: NodeId, new: NodeId, address: &str) -> Changed {
        self.leads()?;
        let mut voters = self.voters();
        if voters.contains(&new.0) {
            return Err(ChangeError::Already(new));
        }
        if !voters.remove(&old.0) {
            return Err(ChangeError::NoMember(old));
        }
        self.lead_on(old).await?;
        self.add_learner(new, address).await?;
        voters.insert(new.0);
        self.change(ChangeMembers::ReplaceAllVoters(voters)).await
    }

    /// Hands leadership to the voter that is furthest, if this replica leads and is in touch with another voter. Until
    /// the announced lease has run out it goes on serving, without a lease.
    pub async fn hand_over(&self) -> bool {
        let shared = &self.inner.shared;
        let Some(term) = shared.leading_term() else { return false };
        let until = {
            let mut leases = shared.leases.lock();
            if leases.in_touch(shared.now(), term).is_disjoint(&self.voters()) {
                return false;
            }
            leases.suspend(term)
        };
        let mut suspension = Suspension { shared, offered: false };
        self.sleep_until(until).await;
        if shared.leading_term() != Some(term) {
            return false;
        }
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        let matched = metrics.replication.unwrap_or_default();
        let in_touch = shared.leases.lock().in_touch(shared.now(), term);
        let others = self.voters().into_iter().filter(|voter| in_touch.contains(voter));
        let furthest = others.max_by_key(|voter| index_or_zero(matched.get(voter).and_then(Option::as_ref)));
        let Some(to) = furthest else { return false };
        tracing::info!(group = shared.group.0, to, "handing leadership over");
        suspension.offered = true;
        if self.inner.raft.trigger().transfer_leader(to).await.is_err() {
            return false;
        }
        self.deposed(term).await && {
            // Who leads now is heard from its first append. Whoever cannot be reached by it has handed over all the same.
            let heard = tokio::time::timeout(shared.timings.election, self.led_by_another());
            heard.await.unwrap_or(true)
        }
    }

    /// Waits until this replica knows of a later term; whether it does.
    async fn deposed(&self, term: u64) -> bool {
        let mut server = self.inner.raft.server_metrics();
        while server.borrow_watched().vote.leader_id.term <= term {
            if server.changed().await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits until a leader is known; whether it is another replica.
    pub(crate) async fn led_by_another(&self) -> bool {
        let mut server = self.inner.raft.server_metrics();
        loop {
            let leader = server.borrow_watched().current_leader;
            if leader.is_some() {
                return leader != Some(self.inner.shared.node.0);
            }
            if server.changed().await.is_err() {
                return false;
            }
        }
    }

    async fn sleep_until(&self, until: Mono) {
        loop {
            let left = until.since(self.inner.shared.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.max(Duration::from_millis(1))).await;
        }
    }

    /// Whoever does not lead may not know the members that there are, and must not judge by them.
    fn leads(&self) -> Changed {
        match *self.role().borrow() {
            Role::Follower { leader } => Err(ChangeError::NotLeader { leader }),
            Role::Leader { .. } => Ok(()),
        }
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.inner.members().voter_ids().collect()
    }

    /// A leader cannot vote itself out and keep its promises: it hands over first, and names who took over.
    async fn lead_on(&self, leaving: NodeId) -> Changed {
        let shared = &self.inner.shared;
        match *self.role().borrow() {
            Role::Follower { leader } => return Err(ChangeError::NotLeader { leader }),
            Role::Leader { .. } if leaving != shared.node => return Ok(()),
            Role::Leader { .. } => {}
        }
        let limit = shared.timings.hand_over;
        let handed_over = matches!(tokio::time::timeout(limit, self.hand_over()).await, Ok(true));
        let leader = self.inner.raft.server_metrics().borrow_watched().current_leader.map(NodeId);
        match leader.filter(|leader| handed_over && *leader != shared.node) {
            Some(leader) => Err(ChangeError::NotLeader { leader: Some(leader) }),
            None => Err(ChangeError::StillLeading),
        }
    }

    async fn add_learner(&self, node: NodeId, address: &str) -> Changed {
        let identity = &self.inner.shared.identity;
        identity.forgive(node);
        if self.inner.members().get_node(&node.0).is_none() {
            self.inner.shared.acknowledged.lock().forget(node);
        }
        let mut strangers = identity.watch();
        let at = BasicNode { addr: address.into() };
        let written = self.inner.raft.add_learner(node.0, at, false);
        let joined = match tokio::time::timeout(self.inner.shared.timings.answer, written).await {
            Ok(written) => written.map_err(|e| self.explain(e))?.log_id,
            Err(_) => return Err(ChangeError::Unknown),
        };
        let mut metrics = self.inner.raft.metrics();
        let caught_up = async {
            loop {
                let m = metrics.borrow_watched().clone();
                let Some(replication) = &m.replication else {
                    return Err(ChangeError::NotLeader { leader: self.inner.leader() });
                };
                let matched = replication.get(&node.0).and_then(Option::as_ref);
                let last = m.last_log_index.map_or(0, |index| index + 1);
                let lag = last.saturating_sub(index_or_zero(matched).0);
                if lag <= CAUGHT_UP && matched.is_some_and(|id| id.index >= joined.index) {
                    return Ok(());
                }
                // One that only calls may have the same number somewhere else.
                let stranger = strangers.borrow_and_update().get(&node).copied();
                if let Some(Stranger { cluster, answered: true, .. }) = stranger {
                    return Err(ChangeError::OtherCluster(OtherCluster { node, cluster }));
                }
                let changed = tokio::select! {
                    changed = metrics.changed() => changed.is_ok(),
                    changed = strangers.changed() => changed.is_ok(),
                };
                if !changed {
                    return Err(ChangeError::Stopped);
                }
            }
        };
        match tokio::time::timeout(self.inner.shared.timings.catch_up, caught_up).await {
            Ok(Err(stranger @ ChangeError::OtherCluster(_))) => {
                // It will never be a member; a leader that fails here leaves a learner that says so in its status.
                let removed = self.change(ChangeMembers::RemoveNodes(BTreeSet::from([node.0]))).await;
                removed.and(Err(stranger))
            }
            Ok(outcome) => outcome,
            Err(_) => {
                let members = self.status().members;
                let lag = members.iter().find(|m| m.node == node).and_then(|m| m.lag).unwrap_or(u64::MAX);
                Err(ChangeError::TooSlow { node, lag })
            }
        }
    }

    async fn change(&self, change: ChangeMembers<u64, BasicNode>) -> Changed {
        let _one_at_a_time = self.inner.changing.try_lock().map_err(|_| ChangeError::Busy)?;
        let written =
            tokio::time::timeout(self.inner.shared.timings.answer, self.inner.raft.change_membership(change, false));
        match written.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(self.explain(e)),
            Err(_) => Err(ChangeError::Unknown),
        }
    }

    fn explain(&self, error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> ChangeError {
        let refused = match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
                return ChangeError::NotLeader { leader: forward_to(&self.inner.shared, &forward) };
            }
            RaftError::APIError(ClientWriteError::ChangeMembershipError(refused)) => refused,
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => return ChangeError::Unknown,
            RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => return ChangeError::Busy,
            RaftError::Fatal(_) => return ChangeError::Stopped,
        };
        match refused {
            ChangeMembershipError::LearnerNotFound(e) => ChangeError::NoMember(NodeId(e.node_id)),
            ChangeMembershipError::EmptyMembership(_) => ChangeError::LastVoter(self.inner.shared.node),
            _ => ChangeError::Busy,
        }
    }
}

/// While it exists this leader has no lease; afterwards, too, if somebody was asked to take over: that one may still be
/// elected in spite of promises.
struct Suspension<'a> {
    shared: &'a Shared,
    offered: bool,
}

impl Drop for Suspension<'_> {
    fn drop(&mut self) {
        if !self.offered {
            self.shared.leases.lock().resume();
        }
    }
}

/// A change of voters takes two entries: both sets together, then the new one alone. If the leader that began it is
/// gone in between, the next one finishes it.
pub(crate) async fn finish_changes(group: Weak<Inner>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(inner) = group.upgrade() else { return };
        if inner.shared.leading_term().is_none() {
            continue;
        }
        let server = inner.raft.server_metrics().borrow_watched().clone();
        let committed = &server.committed_membership_config;
        let between = committed.membership().get_joint_config().len() > 1;
        if between && committed.log_id() == server.membership_config.log_id() {
            // Without a change of its own it goes on to the later of the two sets.
            let finished = Group { inner }.change(ChangeMembers::AddVoterIds(BTreeSet::new())).await;
            tracing::info!(?finished, "finishing the change of members of an earlier leader");
        }
    }
}
