//! What a group is told when it starts.

use crate::identity::{ClusterId, Identity};
use crate::mutant::Mutant;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::disk::Disk;
use tidings_base::{GroupId, Mono, NodeId};

/// Monotonic time as the host counts it, suspended time included. Leases are computed on this alone.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn mono(&self) -> Mono;
}

/// A member of a group and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name for good.
    pub node: NodeId,
    /// Its address, handed to the transport as it stands.
    pub address: String,
}

/// Everything a replica needs to take part in a group, apart from its state, its transport and its clock.
#[derive(Clone)]
pub struct GroupConfig {
    /// The group.
    pub group: GroupId,
    /// This replica.
    pub node: NodeId,
    /// The first members of the group, the same list at each of them; looked at only while the disk is empty. Empty
    /// for a node that will be added to a running group.
    pub members: Vec<Member>,
    /// The directory of this replica in this group.
    pub disk: Arc<dyn Disk>,
    /// Which cluster the node belongs to; one for all groups of the node.
    pub identity: Arc<Identity>,
    /// What the cluster is called if this replica leads before it has a number. `None` where another group sees to that.
    pub candidate: Option<ClusterId>,
    /// How long things take.
    pub timings: Timings,
    /// How much may wait, and how often the log is cut.
    pub limits: Limits,
    /// Decides all randomness of elections. `None`: different at every start.
    pub seed: Option<u64>,
    /// How the log reaches the disk.
    pub flush: Flush,
    /// A guard to leave out: for tests of the tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// How the log reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// By a thread of its own: one write and one sync for all that wait.
    Thread,
    /// Within the call: for simulated runs, where the seed decides every step.
    Inline,
    /// In rounds of this length on the runtime's clock: a slow disk, for simulated runs.
    Paced(Duration),
}

impl GroupConfig {
    /// A configuration with the default timings and limits.
    pub fn new(group: GroupId, node: NodeId, members: Vec<Member>, disk: Arc<dyn Disk>) -> GroupConfig {
        GroupConfig {
            group,
            node,
            members,
            disk,
            identity: Arc::default(),
            candidate: None,
            timings: Timings::default(),
            limits: Limits::default(),
            seed: None,
            flush: Flush::Thread,
            mutant: None,
        }
    }
}

/// How long things take. All members of a group must be told the same `lease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// How often a leader without entries to send tells its followers that it leads. Six fit into a lease, so that a
    /// lost one or two cost nothing.
    pub heartbeat: Duration,
    /// For how long a voter that heard its leader neither votes nor campaigns. A fail-over takes at least this; reads
    /// without a round of messages last (1−ρ) of this after the last contact with a majority.
    pub lease: Duration,
    /// After the lease a follower waits at least this before it campaigns, and less than another lease: by chance, so
    /// that two seldom do at once.
    pub election: Duration,
    /// The longest a call to another member may take before it counts as lost: much longer than a slow sync, so that
    /// a slow disk is not taken for a dead one.
    pub call: Duration,
    /// The longest the last piece of a snapshot may take: the receiver puts the whole state in place before it answers.
    pub install: Duration,
    /// The longest a proposal stays unanswered; then its outcome is unknown. Leaders cut off from their majority would
    /// otherwise keep callers for ever.
    pub answer: Duration,
    /// The longest a hand-over may take at shutdown. It waits for the lease to run out, then for the new leader.
    pub hand_over: Duration,
    /// The longest a new member may take to catch up before it is given up.
    pub catch_up: Duration,
}

impl Default for Timings {
    fn default() -> Timings {
        Timings {
            heartbeat: Duration::from_millis(100),
            lease: Duration::from_millis(600),
            election: Duration::from_millis(300),
            call: Duration::from_secs(2),
            install: Duration::from_secs(120),
            answer: Duration::from_secs(10),
            hand_over: Duration::from_secs(6),
            catch_up: Duration::from_secs(300),
        }
    }
}

impl Timings {
    pub(crate) fn check(&self) -> Result<(), String> {
        let millis = |d: Duration| d.as_millis();
        if millis(self.heartbeat) < 1 || millis(self.lease) < 3 * millis(self.heartbeat) {
            return Err("the lease must be at least three heartbeats long".into());
        }
        if millis(self.election) <= millis(self.heartbeat) || self.election >= self.lease {
            return Err("the election time must be longer than a heartbeat and shorter than the lease".into());
        }
        Ok(())
    }
}

/// How much may wait, and how often the log is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most proposals that may be unanswered; beyond, `Busy`. Large enough to fill several rounds of group commit.
    pub proposals: usize,
    /// The most bytes of unanswered proposals; beyond, `Busy`. Bounds what a stuck majority can pile up in memory.
    pub proposal_bytes: usize,
    /// The most barriers that may wait for a round of messages; beyond, `Busy`.
    pub barriers: usize,
    /// A snapshot is taken (a durable state flushed) after this many entries since the last.
    pub snapshot_every: u64,
    /// Or after this many bytes of them: so much a start has to apply again at most.
    pub snapshot_bytes: u64,
    /// So many entries before the snapshot stay in the log, so that a follower that was away for a moment gets entries
    /// and not a snapshot.
    pub keep_entries: u64,
    /// As long as the log has no more than so many bytes.
    pub keep_bytes: u64,
    /// Up to so many bytes stay at a leader for a member that is there and lacks them: it may be in the midst of a snapshot.
    pub wait_bytes: u64,
    /// The bytes of recent entries that are kept in memory for followers and for the state; older ones are read from
    /// disk.
    pub cache_bytes: usize,
    /// The size at which a new file of the log begins; only whole files are given back to the disk.
    pub segment_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            proposals: 32_768,
            proposal_bytes: 64 << 20,
            barriers: 65_536,
            snapshot_every: 200_000,
            snapshot_bytes: 256 << 20,
            keep_entries: 20_000,
            keep_bytes: 64 << 20,
            wait_bytes: 1 << 30,
            cache_bytes: 32 << 20,
            segment_bytes: 64 << 20,
        }
    }
}
