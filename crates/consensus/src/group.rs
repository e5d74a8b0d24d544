//! One replica of one group.

use crate::barrier::Barriers;
use crate::config::{Clock, Flush, GroupConfig, Member, Timings};
use crate::error::{ProposeError, StartError};
use crate::length::Length;
use crate::log_store::LogStore;
use crate::membership::finish_changes;
use crate::mutant::Mutant;
use crate::network::{Network, Transport};
use crate::proposals::{Asker, Completion, Outcome};
use crate::receive::Receiver;
use crate::roles;
use crate::runtime::Runtime;
use crate::shared::Shared;
use crate::snapshot::SnapshotFiles;
use crate::state::StateMachine;
use crate::types::{Command, CommittedLeaderId, Raft, TypeConfig, index_of};
use bytes::Bytes;
use openraft::errors::{ClientWriteError, ForwardToLeader};
use openraft::raft::ClientWriteResult;
use openraft::{BasicNode, SnapshotPolicy, StepDownPolicy};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Heard, MAX_COMMAND, Refusal, Role};
use tidings_base::{LogIndex, NodeId};
use tidings_wire::v1;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// How many proposals are handed to openraft before others get a turn.
const PUMP_BATCH: usize = 256;

/// How often a leader that stops offers to hand over.
const OFFERS: u32 = 3;

/// How long stopping waits for the last hold on the disk to be let go.
const LET_GO: Duration = Duration::from_secs(5);

/// Whom a replica misses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The other voters that answered nothing lately.
    pub members: Vec<Member>,
    /// Those that are left are no majority.
    pub hopeless: bool,
}

/// What is known of a group by those who are none of its members: what a member says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Who leads.
    pub leader: Option<NodeId>,
    /// All members.
    pub members: Vec<Member>,
}

impl Outside {
    fn address(&self, node: NodeId) -> Option<String> {
        self.members.iter().find(|member| member.node == node).map(|member| member.address.clone())
    }
}

/// One replica of one group. Cheap to clone; all clones are the same replica.
#[derive(Clone)]
pub struct Group {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    pub raft: Raft,
    receiver: Receiver,
    proposals: mpsc::UnboundedSender<(u64, Bytes, u64)>,
    barriers: Barriers,
    barrier_task: Mutex<Option<JoinHandle<()>>>,
    /// Held while the members change.
    pub changing: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// This replica was all voters there were when it began.
    began_alone: bool,
    /// Closes when the log and the state are dropped.
    alive: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Group {
    /// Opens the log and the state and begins to take part in the group.
    pub async fn start(
        config: GroupConfig,
        state: Box<dyn AgreedState>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
    ) -> Result<Group, StartError> {
        check(&config)?;
        let seed = config.seed.unwrap_or_else(|| mix(config.node.0, clock.mono().0));
        Runtime::scope(seed, start(config, state, transport, clock)).await
    }

    /// Takes a request of a machine; it is answered on [`heard`](Group::heard).
    pub fn ask(&self, ask: Ask) {
        match ask {
            Ask::Propose { op, command } => self.inner.propose(Asker::Machine(op), command),
            Ask::ReadBarrier { op } => self.inner.barrier(crate::barrier::Asker::Machine(op)),
        }
    }

    /// The channel on which a machine hears of the log: answers, roles, leases. A second call takes the place of the
    /// first.
    pub fn heard(&self) -> mpsc::UnboundedReceiver<Heard> {
        self.inner.shared.announcer.subscribe()
    }

    /// Proposes a command and waits until it is applied here.
    pub async fn propose(&self, command: Bytes) -> Result<(LogIndex, Bytes), ProposeError> {
        let (answer, answered) = oneshot::channel();
        self.inner.propose(Asker::Caller(answer), command);
        answered.await.unwrap_or(Err(ProposeError::Unknown))
    }

    /// Waits until a read of the local state is linearizable; the index says how far the state is at least.
    pub async fn barrier(&self) -> Result<LogIndex, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.inner.barrier(crate::barrier::Asker::Caller(answer));
        answered.await.unwrap_or(Err(Refusal::Stopped))
    }

    /// Answers a call of another member.
    pub async fn receive(&self, message: v1::RaftMessage) -> v1::RaftMessage {
        self.inner.receiver.receive(message).await
    }

    /// The role of this replica, and how it changes.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.inner.shared.announcer.watch()
    }

    /// Whether this replica was all voters there were when it began: nobody can have led since, before it did so itself.
    pub fn began_alone(&self) -> bool {
        self.inner.began_alone
    }

    /// Waits until this replica leads or knows who does.
    pub async fn ready(&self) -> Role {
        let mut role = self.role();
        let known = |role: &Role| !matches!(role, Role::Follower { leader: None });
        let found = role.wait_for(known).await.map(|role| *role);
        found.unwrap_or(Role::Follower { leader: None })
    }

    /// Whether this replica is in touch with a majority: a leader by its lease, a follower by having heard its leader
    /// within two leases.
    pub fn in_touch(&self) -> bool {
        let shared = &self.inner.shared;
        let (now, term) = (shared.now(), shared.leading_term());
        let mut leases = shared.leases.lock();
        match term {
            Some(_) if shared.mutant == Some(Mutant::AlwaysInTouch) => true,
            Some(term) => leases.hold(now, term).is_some(),
            None => leases.heard_lately(now),
        }
    }

    /// The other voters that have accepted nothing of this leader within the last lease; `None` if this replica does
    /// not lead, or leads without being in touch with a majority.
    pub fn silent(&self) -> Option<BTreeSet<NodeId>> {
        let shared = &self.inner.shared;
        let (now, term) = (shared.now(), shared.leading_term()?);
        let mut leases = shared.leases.lock();
        leases.hold(now, term)?;
        let heard = leases.in_touch(now, term);
        let members = self.inner.members();
        let others = members.voter_ids().filter(|node| *node != shared.node.0 && !heard.contains(node));
        Some(others.map(NodeId).collect())
    }

    /// Whom this replica misses, if it knows no leader or leads without a majority; `None` while all is well.
    pub fn missed(&self) -> Option<Missed> {
        let shared = &self.inner.shared;
        let led = shared.leading_term().is_some() || self.inner.leader().is_some();
        if led && self.in_touch() {
            return None;
        }
        let members = self.inner.members();
        let missed: Vec<NodeId> = members.voter_ids().map(NodeId).filter(|node| shared.misses(*node)).collect();
        let voters = members.voter_ids().count();
        let address = |node: NodeId| members.get_node(&node.0).map_or(String::new(), |at| at.addr.clone());
        Some(Missed {
            hopeless: (voters - missed.len()) * 2 <= voters,
            members: missed.into_iter().map(|node| Member { node, address: address(node) }).collect(),
        })
    }

    /// Waits until this replica has stopped by itself: its disk or its state failed.
    pub async fn failed(&self) {
        // Its other half is in `shared`, which this call holds.
        let _ = self.inner.shared.failed.subscribe().wait_for(|failed| *failed).await;
    }

    /// The address of a member, as the group has agreed on it, or as its members say where this replica is none of them.
    pub fn address(&self, node: NodeId) -> Option<String> {
        let agreed = self.inner.members().get_node(&node.0).map(|n| n.addr.clone());
        agreed.or_else(|| self.inner.shared.outside.lock().as_ref()?.address(node))
    }

    /// Whether this replica is no member: not added yet, or removed, as far as it knows.
    pub fn is_outside(&self) -> bool {
        let shared = &self.inner.shared;
        shared.outside.lock().is_some() || self.inner.members().get_node(&shared.node.0).is_none()
    }

    /// Takes what members say of the group while this replica is none of them; `None` once it knows by itself.
    pub fn hear_from_outside(&self, said: Option<Outside>) {
        *self.inner.shared.outside.lock() = said;
    }

    /// Where a leader is reached that this replica believes in; whoever is no member believes what the members say.
    pub fn leads_at(&self, leader: Option<NodeId>) -> Option<String> {
        self.led_outside().or_else(|| self.address(leader?))
    }

    /// Where members say that their leader is, while this replica is none of them.
    pub fn led_outside(&self) -> Option<String> {
        let outside = self.inner.shared.outside.lock();
        outside.as_ref().and_then(|said| said.address(said.leader?))
    }

    /// Stands for election no more, for good: whoever is about to stop must not be elected once it has handed over.
    pub fn stand_no_more(&self) {
        // What openraft knows of members is not there at the very beginning.
        if !self.inner.shared.leases.lock().alone() {
            self.inner.shared.resigned.store(true, Ordering::Relaxed);
            self.inner.raft.runtime_config().elect(false);
        }
    }

    /// Hands leadership over if another voter can take it, in bounded time: the others must be able to reach this replica
    /// meanwhile. It goes on as a follower.
    pub async fn retire(&self) {
        let leads = || self.inner.shared.leading_term().is_some();
        if !leads() {
            return;
        }
        let limit = self.inner.shared.timings.hand_over;
        for _ in 0..OFFERS {
            let offered = async {
                // Without others there is nothing to wait for.
                (leads() && !self.hand_over().await && leads()) || self.led_by_another().await
            };
            // Whom it was offered to may have lost the election, and this replica may have won the next one.
            if matches!(tokio::time::timeout(limit / OFFERS, offered).await, Ok(true)) {
                return;
            }
        }
        tracing::warn!(group = self.inner.shared.group.0, "nobody took over in time; stopping all the same");
    }

    /// Stops, having [retired](Group::retire). What is still unanswered has an unknown outcome.
    pub async fn shutdown(&self) {
        self.retire().await;
        self.stop().await;
    }

    /// Stops at once, as a crash would, though what was handed to the disk stays.
    pub async fn stop(&self) {
        let inner = &self.inner;
        inner.shared.stopped.store(true, Ordering::Release);
        if let Err(e) = inner.raft.shutdown().await {
            tracing::warn!(group = inner.shared.group.0, error = %e, "the replica did not stop in order");
        }
        inner.barriers.stop();
        let barriers = inner.barrier_task.lock().take();
        if let Some(task) = barriers {
            // It ends by itself now that openraft has stopped, and answers all that wait.
            let _ = tokio::time::timeout(LET_GO, task).await;
        }
        for task in inner.tasks.lock().drain(..) {
            task.abort();
        }
        inner.shared.leading.store(0, Ordering::Release);
        inner.shared.announcer.role(Role::Follower { leader: None });
        inner.shared.proposals.expire(tidings_base::Mono::NEVER);
        let mut alive = inner.alive.lock().await;
        if tokio::time::timeout(LET_GO, alive.recv()).await.is_err() {
            tracing::warn!(group = inner.shared.group.0, "the log or the state is still in use");
        }
    }
}

impl Inner {
    fn propose(&self, asker: Asker, command: Bytes) {
        let shared = &self.shared;
        let refuse = |asker: Asker, refusal| asker.answer(Outcome::Refused(refusal), &shared.announcer);
        if command.len() > MAX_COMMAND {
            return refuse(asker, Refusal::TooLarge);
        }
        if shared.is_stopped() {
            return refuse(asker, Refusal::Stopped);
        }
        let Some(term) = shared.leading_term() else {
            return refuse(asker, Refusal::NotLeader { leader: self.leader() });
        };
        let deadline = shared.now() + shared.timings.answer;
        match shared.proposals.admit(asker, command.len(), deadline) {
            Ok(number) => {
                if self.proposals.send((number, command, term)).is_err() {
                    shared.proposals.settle(number, Outcome::Refused(Refusal::Stopped));
                }
            }
            Err(asker) => refuse(asker, Refusal::Busy),
        }
    }

    fn barrier(&self, asker: crate::barrier::Asker) {
        let shared = &self.shared;
        if shared.is_stopped() {
            return asker.refuse(Refusal::Stopped, &shared.announcer);
        }
        // Under a lease nobody else leads, so everything that was reported applied was applied here: either by this
        // leadership, or before it began, which it announced only after applying its own first entry.
        if let Some(term) = shared.leading_term()
            && shared.leases.lock().hold(shared.now(), term).is_some()
        {
            return asker.pass(shared.applied_index(), &shared.announcer);
        }
        self.barriers.wait(asker, shared);
    }

    /// The leader as far as it is known, and not this replica.
    pub fn leader(&self) -> Option<NodeId> {
        match *self.shared.announcer.watch().borrow() {
            Role::Follower { leader } => leader,
            Role::Leader { .. } => None,
        }
    }

    pub fn members(&self) -> Arc<crate::types::StoredMembership> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.raft.server_metrics().borrow_watched().membership_config.clone()
    }
}

impl Drop for Inner {
    /// openraft runs on by itself if nobody stops it.
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.barriers.stop();
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let raft = self.raft.clone();
            runtime.spawn(async move { raft.shutdown().await });
        }
    }
}

fn check(config: &GroupConfig) -> Result<(), StartError> {
    config.timings.check().map_err(StartError::Config)?;
    let mut seen = BTreeMap::new();
    for member in &config.members {
        if seen.insert(member.node, &member.address).is_some() {
            return Err(StartError::Config(format!("node {} is named twice among the members", member.node)));
        }
    }
    if !seen.is_empty() && !seen.contains_key(&config.node) {
        let what = format!("node {} is not among the members it was told", config.node);
        return Err(StartError::Config(what));
    }
    Ok(())
}

async fn start(
    config: GroupConfig,
    state: Box<dyn AgreedState>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
) -> Result<Group, StartError> {
    let timings = config.timings;
    let shared = Shared::new(&config, clock);
    let (alive, gone) = mpsc::channel(1);
    let (files, stored) = SnapshotFiles::open(config.disk.clone())?;
    let machine = StateMachine::open(state, files.clone(), stored, shared.clone(), alive.clone())?;
    let log = LogStore::open(&config, machine.position(), shared.clone(), alive)?;
    let fresh = log.is_fresh() && machine.position().last.is_none();
    let queue = log.queue();
    let length = Length::new(queue.reader());

    let (alone, quiet) = {
        let mut leases = shared.leases.lock();
        let alone = leases.alone();
        // A new voter has promised nothing; one that has nobody to promise to need not keep still.
        if !fresh && !alone {
            leases.restarted(shared.now());
        }
        (alone, !fresh && !alone)
    };
    let raft_config = raft_config(&config, !quiet)?;
    let streams = Arc::new(AtomicU64::new(mix(config.node.0, shared.now().0)));
    let network = Network { shared: shared.clone(), transport, streams };
    let engine = |e: &dyn std::fmt::Display| StartError::Engine(e.to_string());
    let raft = Raft::new(config.node.0, Arc::new(raft_config), network, log, machine).await.map_err(|e| engine(&e))?;

    let (proposals, proposed) = mpsc::unbounded_channel();
    let receiver = Receiver {
        shared: shared.clone(),
        raft: raft.clone(),
        files,
        incoming: tokio::sync::Mutex::new(None),
        received: AtomicU64::new(0),
    };
    let inner = Arc::new(Inner {
        barriers: Barriers::new(),
        barrier_task: Mutex::default(),
        receiver,
        proposals,
        changing: tokio::sync::Mutex::new(()),
        tasks: Mutex::default(),
        began_alone: alone,
        alive: tokio::sync::Mutex::new(gone),
        raft: raft.clone(),
        shared: shared.clone(),
    });
    let mut tasks = Vec::from([
        tokio::spawn(pump(shared.clone(), raft.clone(), proposed)),
        tokio::spawn(roles::watch_role(shared.clone(), raft.clone())),
        tokio::spawn(roles::pulse(shared.clone(), raft.clone(), length, quiet)),
        tokio::spawn(finish_changes(Arc::downgrade(&inner), timings.lease)),
    ]);
    *inner.barrier_task.lock() = Some(tokio::spawn(inner.barriers.clone().run(shared.clone(), raft.clone())));
    if let Flush::Paced(round) = config.flush {
        tasks.push(tokio::spawn(pace(queue, round)));
    }
    if alone {
        raft.trigger().elect(false).await.map_err(|e| engine(&e))?;
    }
    if fresh && !config.members.is_empty() {
        tasks.push(tokio::spawn(found(raft, config.members, config.node, timings)));
    }
    *inner.tasks.lock() = tasks;
    Ok(Group { inner })
}

async fn pace(queue: tidings_log::GroupCommit, round: Duration) {
    loop {
        tokio::time::sleep(round).await;
        queue.pump();
    }
}

/// Founds a new group. All first members do it with the same list, which is safe; one after the other, so that usually
/// the first one's election is the only one.
async fn found(raft: Raft, members: Vec<Member>, node: NodeId, timings: Timings) {
    let mut nodes: Vec<NodeId> = members.iter().map(|m| m.node).collect();
    nodes.sort_unstable();
    let rank = nodes.iter().position(|n| *n == node).unwrap_or(0) as u32;
    tokio::time::sleep(timings.lease * 2 * rank).await;
    if matches!(raft.is_initialized().await, Ok(false)) {
        let nodes: BTreeMap<u64, BasicNode> =
            members.into_iter().map(|m| (m.node.0, BasicNode { addr: m.address })).collect();
        if let Err(e) = raft.initialize(nodes).await {
            tracing::info!(error = %e, "the group was founded by another member");
        }
    }
}

fn raft_config(config: &GroupConfig, elect: bool) -> Result<openraft::Config, StartError> {
    let millis = |d: Duration| d.as_millis() as u64;
    let (timings, limits) = (&config.timings, &config.limits);
    let raft = openraft::Config {
        cluster_name: format!("group {}", config.group),
        heartbeat_interval: millis(timings.heartbeat),
        election_timeout_min: millis(timings.election),
        // openraft takes this for its own lease too.
        election_timeout_max: millis(timings.lease),
        // The log reader bounds a batch by bytes.
        max_payload_entries: 4_096,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(limits.snapshot_every),
        // Cut by `length` alone.
        max_in_snapshot_log_to_keep: u64::MAX,
        // A follower gets entries as long as the log has them.
        replication_lag_threshold: u64::MAX / 4,
        // A restarted leader must win an election: its term is its epoch and must grow (cell spec, R1).
        enable_leader_restore: Some(false),
        // A replica that cannot win must not make a healthy leader step down.
        enable_pre_vote: Some(true),
        // A leader never removes itself here, and a hand-over must let the lease run out first.
        removed_leader_step_down: StepDownPolicy::Never,
        enable_elect: elect,
        ..openraft::Config::default()
    };
    raft.validate().map_err(|e| StartError::Config(e.to_string()))
}

/// Hands proposals to openraft in the order they were asked.
async fn pump(shared: Arc<Shared>, raft: Raft, mut proposed: mpsc::UnboundedReceiver<(u64, Bytes, u64)>) {
    let mut batch = Vec::with_capacity(PUMP_BATCH);
    while proposed.recv_many(&mut batch, PUMP_BATCH).await > 0 {
        for (number, command, term) in batch.drain(..) {
            let settle = shared.clone();
            let responder = Completion::new(move |result| settle.proposals.settle(number, outcome(&settle, result)));
            // Only under the leadership that it was asked under: a later one of this replica is another epoch.
            let write =
                raft.write(Command::State(command)).responder(responder).with_leader(CommittedLeaderId::new(term));
            if write.await.is_err() {
                // openraft has stopped and dropped the completion, which has answered.
                tracing::debug!(group = shared.group.0, "a proposal came after the replica had stopped");
            }
        }
    }
}

/// What openraft's answer means: not taken as leader is a refusal; appended and then lost is unknown.
fn outcome(shared: &Shared, result: Option<ClientWriteResult<TypeConfig>>) -> Outcome {
    match result {
        Some(Ok(response)) => Outcome::Applied(index_of(&response.log_id), response.data.0),
        Some(Err(ClientWriteError::ForwardToLeader(forward))) => {
            Outcome::Refused(Refusal::NotLeader { leader: forward_to(shared, &forward) })
        }
        Some(Err(ClientWriteError::LogEntryDiscarded(_))) | None => Outcome::Unknown,
        // These two answer requests that are not made here; nothing is appended before them.
        Some(Err(ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_))) => {
            Outcome::Refused(Refusal::Busy)
        }
    }
}

pub(crate) fn forward_to(shared: &Shared, forward: &ForwardToLeader<TypeConfig>) -> Option<NodeId> {
    forward.leader_id.map(NodeId).filter(|leader| *leader != shared.node)
}

/// A number that differs from node to node and from start to start.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}
