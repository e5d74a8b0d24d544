//! What every agreed log must do, whoever implements it: the contract of `tidings_base::agreed` as behaviours.
//!
//! ```text
//!   behaviour ── propose, barrier, crash, restart, partition, heal ──▶ Cluster (the model, the openraft binding)
//!       └── History ◀── heard, applied ──┘        every claim is checked over everything that was ever heard
//! ```
//! An implementation provides a [`Cluster`] whose replicas feed a [`ListState`] each, and calls [`run_all`] with a way
//! to make one. Nothing here knows the simulator's kernel: time is whatever the cluster says it is.

mod behaviours;
mod history;
mod list;
mod session;

pub use history::{Counts, History};
pub use list::{ListState, ListView};
pub use session::Session;

use bytes::Bytes;
use std::time::Duration;
use tidings_base::agreed::Heard;
use tidings_base::{LogIndex, NodeId, OpId, Seeded};

/// A group of replicas under test.
///
/// Every replica applies into a [`ListState`] that is new at each start of the replica.
pub trait Cluster {
    /// The members; fixed.
    fn nodes(&self) -> Vec<NodeId>;

    /// How long a leader's lease lasts: the scale of all waiting.
    fn lease(&self) -> Duration;

    /// The time since the cluster began.
    fn now(&self) -> Duration;

    /// Lets time pass.
    fn run(&mut self, time: Duration);

    /// Proposes at a replica that runs.
    fn propose(&mut self, node: NodeId, command: Bytes) -> OpId;

    /// Asks a replica that runs for a read barrier.
    fn barrier(&mut self, node: NodeId) -> OpId;

    /// What a replica said since the last call, oldest first. What it said before a crash is not lost.
    fn heard(&mut self, node: NodeId) -> Vec<Told>;

    /// The commands that the state of a replica holds, without the log's own; nothing if it does not run.
    fn applied(&mut self, node: NodeId) -> Vec<(LogIndex, Bytes)>;

    /// Takes the power from a replica: it stops, and its disk loses what was not synced.
    fn crash(&mut self, node: NodeId);

    /// Starts a replica that was crashed.
    fn restart(&mut self, node: NodeId);

    /// Lets messages pass only between replicas of the same side; those not named are alone.
    fn partition(&mut self, sides: &[Vec<NodeId>]);

    /// Lets all messages pass again.
    fn heal(&mut self);
}

/// Something a replica said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// When, in the cluster's time.
    pub at: Duration,
    /// What.
    pub heard: Heard,
    /// With `LeaseUntil`: the end of the lease on the replica's clock, in the cluster's time.
    pub until: Option<Duration>,
}

/// Makes a cluster of so many replicas; the seed decides what is random in it.
pub type Make<'a> = dyn FnMut(usize, u64) -> Box<dyn Cluster> + 'a;

/// One thing that every agreed log does.
pub struct Behaviour {
    /// What it claims.
    pub name: &'static str,
    /// How many replicas it needs.
    pub nodes: usize,
    run: fn(&mut Session<'_>, &mut Seeded) -> Result<(), String>,
}

/// All behaviours.
pub fn behaviours() -> &'static [Behaviour] {
    behaviours::ALL
}

impl Behaviour {
    /// Holds one cluster to this behaviour; an error says what was broken. Returns what was checked.
    pub fn check(&self, make: &mut Make<'_>, seed: u64) -> Result<Counts, String> {
        let mut cluster = make(self.nodes, seed);
        let mut session = Session::new(cluster.as_mut());
        let mut rng = Seeded::new(seed).fork(self.name);
        let outcome = (self.run)(&mut session, &mut rng).and_then(|()| session.finish());
        outcome.map_err(|what| format!("{}, seed {seed}: {what}", self.name))
    }
}

/// Holds clusters to all behaviours, each with these seeds; the first one broken ends it.
pub fn run_all(make: &mut Make<'_>, seeds: impl Iterator<Item = u64> + Clone) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for behaviour in behaviours() {
        for seed in seeds.clone() {
            counts += behaviour.check(make, seed)?;
        }
    }
    counts.all_positive()?;
    Ok(counts)
}
