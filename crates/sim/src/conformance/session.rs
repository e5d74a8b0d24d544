//! One behaviour's conversation with its cluster; everything that is heard goes into the history.

use super::Cluster;
use super::history::{Counts, History};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::agreed::{Heard, Role};
use tidings_base::{Epoch, NodeId, OpId};

/// How many leases a healthy cluster may take to elect a leader or to answer.
const PATIENCE: u32 = 30;

/// A cluster with its history.
pub struct Session<'a> {
    cluster: &'a mut dyn Cluster,
    history: History,
    roles: BTreeMap<NodeId, Role>,
    down: BTreeSet<NodeId>,
    answers: BTreeMap<(NodeId, OpId), Heard>,
    commands: u64,
}

impl<'a> Session<'a> {
    pub(super) fn new(cluster: &'a mut dyn Cluster) -> Session<'a> {
        Session {
            cluster,
            history: History::default(),
            roles: BTreeMap::new(),
            down: BTreeSet::new(),
            answers: BTreeMap::new(),
            commands: 0,
        }
    }

    /// The cluster, for what has no name here.
    pub fn cluster(&mut self) -> &mut dyn Cluster {
        self.cluster
    }

    /// All members.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.cluster.nodes()
    }

    /// The members that run.
    pub fn up(&self) -> Vec<NodeId> {
        self.cluster.nodes().into_iter().filter(|node| !self.down.contains(node)).collect()
    }

    /// The members that do not run.
    pub fn down(&self) -> Vec<NodeId> {
        self.down.iter().copied().collect()
    }

    /// A length of time in leases.
    pub fn leases(&self, percent: u32) -> Duration {
        self.cluster.lease() * percent / 100
    }

    /// Lets time pass and looks at everything that was said meanwhile.
    pub fn run(&mut self, time: Duration) -> Result<(), String> {
        self.cluster.run(time);
        self.look()
    }

    /// Collects what was said so far.
    pub fn look(&mut self) -> Result<(), String> {
        for node in self.cluster.nodes() {
            for told in self.cluster.heard(node) {
                if let Heard::Role(role) = told.heard {
                    self.roles.insert(node, role);
                }
                if let Some(op) = answered(&told.heard) {
                    self.answers.insert((node, op), told.heard.clone());
                }
                self.history.told(node, told)?;
            }
            if !self.down.contains(&node) {
                self.history.applied(node, &self.cluster.applied(node))?;
            }
        }
        Ok(())
    }

    /// Waits in small steps until `done` says so.
    pub fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Session<'a>) -> bool) -> Result<(), String> {
        let step = self.leases(10);
        for _ in 0..PATIENCE * 10 {
            self.look()?;
            if done(self) {
                return Ok(());
            }
            self.run(step)?;
        }
        Err(format!("waited {PATIENCE} leases in vain for {what}"))
    }

    /// A replica that says it leads, of those that run: the one with the highest epoch.
    pub fn leader(&self) -> Option<(NodeId, Epoch)> {
        let leaders = self.up().into_iter().filter_map(|node| match self.roles.get(&node) {
            Some(Role::Leader { epoch }) => Some((node, *epoch)),
            _ => None,
        });
        leaders.max_by_key(|(_, epoch)| *epoch)
    }

    /// Waits for a leader.
    pub fn wait_for_leader(&mut self) -> Result<(NodeId, Epoch), String> {
        self.wait("a leader", |session| session.leader().is_some())?;
        self.leader().ok_or_else(|| "the leader was gone at once".to_string())
    }

    /// Proposes a command that was never proposed before.
    pub fn propose(&mut self, node: NodeId) -> OpId {
        self.commands += 1;
        let command = Bytes::from(format!("command {} at {node}", self.commands));
        self.propose_bytes(node, command)
    }

    /// Proposes these bytes; they must be unlike any proposed before.
    pub fn propose_bytes(&mut self, node: NodeId, command: Bytes) -> OpId {
        let at = self.cluster.now();
        let op = self.cluster.propose(node, command.clone());
        self.history.proposed(at, node, op, command);
        op
    }

    /// Asks for a barrier.
    pub fn barrier(&mut self, node: NodeId) -> OpId {
        let at = self.cluster.now();
        let op = self.cluster.barrier(node);
        self.history.barrier(at, node, op);
        op
    }

    /// The answer to an operation, if there is one yet.
    pub fn answer(&self, node: NodeId, op: OpId) -> Option<&Heard> {
        self.answers.get(&(node, op))
    }

    /// Waits for the answer to an operation.
    pub fn wait_for_answer(&mut self, node: NodeId, op: OpId) -> Result<Heard, String> {
        self.wait("an answer", |session| session.answer(node, op).is_some())?;
        self.answer(node, op).cloned().ok_or_else(|| "no answer".to_string())
    }

    /// Proposes at whoever leads, again and again, until a proposal is applied.
    pub fn apply_one(&mut self) -> Result<(), String> {
        for _ in 0..PATIENCE {
            let (leader, _) = self.wait_for_leader()?;
            let op = self.propose(leader);
            if matches!(self.wait_for_answer(leader, op)?, Heard::Applied { .. }) {
                return Ok(());
            }
            let step = self.leases(20);
            self.run(step)?;
        }
        Err("a healthy cluster applied nothing".to_string())
    }

    /// Takes the power from a replica.
    pub fn crash(&mut self, node: NodeId) -> Result<(), String> {
        self.look()?;
        self.cluster.crash(node);
        self.look()?;
        self.down.insert(node);
        self.roles.remove(&node);
        self.history.crashed(node);
        Ok(())
    }

    /// Starts a crashed replica.
    pub fn restart(&mut self, node: NodeId) {
        if self.down.remove(&node) {
            self.cluster.restart(node);
        }
    }

    /// Everything is healed and started.
    pub fn mend(&mut self) {
        self.cluster.heal();
        for node in self.down() {
            self.restart(node);
        }
    }

    /// Waits until all replicas hold the same, and at least everything that was reported applied.
    pub fn converge(&mut self) -> Result<(), String> {
        self.wait("all replicas to hold the same", |session| {
            let lists: Vec<_> = session.nodes().into_iter().map(|node| session.cluster.applied(node)).collect();
            lists.windows(2).all(|pair| pair[0] == pair[1]) && session.history.all_reported_in(&lists[0])
        })
    }

    /// The end of every behaviour: mended, live, converged.
    pub(super) fn finish(&mut self) -> Result<Counts, String> {
        self.mend();
        self.apply_one()?;
        self.converge()?;
        // Whatever a deposed leader still had in hand is answered by now.
        self.wait("every operation to be answered", |session| session.history.unanswered().is_none())?;
        Ok(self.history.counts())
    }
}

fn answered(heard: &Heard) -> Option<OpId> {
    match heard {
        Heard::Applied { op, .. } | Heard::Refused { op, .. } | Heard::Unknown { op } | Heard::Passed { op, .. } => {
            Some(*op)
        }
        Heard::Role(_) | Heard::LeaseUntil(_) => None,
    }
}
