//! What the parts of one replica share.

use crate::acknowledged::Acknowledged;
use crate::announce::Announcer;
use crate::config::{Clock, GroupConfig, Limits, Timings};
use crate::error::{LostLog, OtherCluster};
use crate::group::Outside;
use crate::identity::{ClusterId, Identity};
use crate::lease::Leases;
use crate::mutant::Mutant;
use crate::proposals::Proposals;
use crate::types::{LogId, index_or_zero};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidings_base::{GroupId, LogIndex, Mono, NodeId};
use tokio::sync::watch;

/// A member that answered nothing for so many leases is missed: without a leader all are asked for their votes about once a
/// lease.
const MISSED_LEASES: u32 = 4;

pub(crate) struct Shared {
    pub group: GroupId,
    pub node: NodeId,
    pub identity: Arc<Identity>,
    /// What the cluster is called if this replica leads before it has a number.
    pub candidate: Option<ClusterId>,
    pub timings: Timings,
    pub limits: Limits,
    pub clock: Arc<dyn Clock>,
    pub leases: Mutex<Leases>,
    /// When each other member last answered a call of this replica; as many as there are and were members.
    pub answered: Mutex<BTreeMap<NodeId, Mono>>,
    /// What the others have acknowledged to this leader.
    pub acknowledged: Mutex<Acknowledged>,
    /// What others say of the group while this replica is none of its members.
    pub outside: Mutex<Option<Outside>>,
    /// It stands for election no more.
    pub resigned: AtomicBool,
    /// Members that are putting a snapshot in place: they answer nothing else meanwhile.
    pub installing: Mutex<BTreeSet<NodeId>>,
    /// When this replica began: whoever has not answered yet has had no more time than since.
    pub began: Mono,
    /// The last entry that the state here has applied.
    pub applied: watch::Sender<Option<LogId>>,
    pub announcer: Arc<Announcer>,
    pub proposals: Proposals,
    /// The term in which this replica announced that it leads; 0 while it does not.
    pub leading: AtomicU64,
    pub stopped: AtomicBool,
    /// Whether it stopped by itself.
    pub failed: watch::Sender<bool>,
    pub mutant: Option<Mutant>,
}

impl Shared {
    pub fn new(config: &GroupConfig, clock: Arc<dyn Clock>) -> Arc<Shared> {
        let GroupConfig { group, node, candidate, timings, limits, mutant, .. } = *config;
        let announcer = Arc::new(Announcer::default());
        Arc::new(Shared {
            group,
            node,
            identity: config.identity.clone(),
            candidate,
            timings,
            limits,
            leases: Mutex::new(Leases::new(node.0, timings.lease, mutant)),
            answered: Mutex::default(),
            acknowledged: Mutex::default(),
            outside: Mutex::default(),
            resigned: AtomicBool::new(false),
            installing: Mutex::default(),
            began: clock.mono(),
            clock,
            applied: watch::Sender::new(None),
            proposals: Proposals::new(limits, announcer.clone()),
            announcer,
            leading: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failed: watch::Sender::new(false),
            mutant,
        })
    }

    pub fn now(&self) -> Mono {
        self.clock.mono()
    }

    pub fn applied_index(&self) -> LogIndex {
        index_or_zero(self.applied.borrow().as_ref())
    }

    /// The term in which this replica leads as announced, if it does.
    pub fn leading_term(&self) -> Option<u64> {
        Some(self.leading.load(Ordering::Acquire)).filter(|term| *term > 0)
    }

    /// Whether another member has answered nothing for a while. Who was never asked is missed, too.
    pub fn misses(&self, node: NodeId) -> bool {
        let answered = self.answered.lock().get(&node).copied().unwrap_or(self.began);
        node != self.node && self.now().since(answered) > self.timings.lease * MISSED_LEASES
    }

    /// Whether a member is there and may need what it lacks.
    pub fn is_present(&self, node: NodeId) -> bool {
        self.installing.lock().contains(&node) || !self.misses(node)
    }

    /// A member puts a snapshot in place, until what is returned is dropped.
    pub fn installs(&self, node: NodeId) -> Installing<'_> {
        self.installing.lock().insert(node);
        Installing { shared: self, node }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

impl Shared {
    /// Refuses what comes from another cluster than this node's, and says so where people look.
    pub fn same_cluster(&self, from: NodeId, theirs: u64, answered: bool) -> Result<(), OtherCluster> {
        let Some((cluster, news)) = self.identity.refuses(from, theirs, answered, self.now()) else { return Ok(()) };
        crate::metrics::refused_stranger(self.group);
        if news {
            let group = self.group.0;
            tracing::warn!(group, node = from.0, %cluster, "a node of another cluster was refused");
        }
        Err(OtherCluster { node: from, cluster })
    }

    /// A member does not have what it has acknowledged to this leader: says so where people look.
    pub fn lost_log(&self, member: NodeId) -> LostLog {
        if self.acknowledged.lock().lost(member) {
            let group = self.group.0;
            tracing::error!(group, node = member.0, "a member has lost its log and counts for nothing; replace it");
        }
        LostLog { node: member }
    }
}

/// Runs what may block for long, moving other work of this thread elsewhere where the runtime can do that.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// For as long as a member puts a snapshot in place.
pub(crate) struct Installing<'a> {
    shared: &'a Shared,
    node: NodeId,
}

impl Drop for Installing<'_> {
    fn drop(&mut self) {
        self.shared.installing.lock().remove(&self.node);
    }
}
