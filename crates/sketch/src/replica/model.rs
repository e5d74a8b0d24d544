//! The model of an engine that orders: adverse on purpose, and never wrong.

use super::{Block, Command, Ordering};
use crate::ReplicaId;
use std::collections::BTreeSet;
use tidings_base::Seeded;

/// Loses commands, orders them twice, delivers blocks again.
#[derive(Debug)]
pub struct Model {
    rng: Seeded,
    pool: Vec<Command>,
    blocks: Vec<Block>,
    /// Of each replica: the height after which it is delivered, and what it has executed.
    seats: Vec<(u64, u64)>,
    redelivered: u64,
}

impl Model {
    /// An order of nothing yet, for so many replicas.
    pub fn new(rng: Seeded, replicas: u16) -> Model {
        let seats = vec![(0, 0); usize::from(replicas)];
        Model { rng, pool: Vec::new(), blocks: Vec::new(), seats, redelivered: 0 }
    }

    /// A new life of the group: the order begins anew; what was handed in is still to be ordered.
    pub fn begin_again(&mut self) {
        self.blocks.clear();
        self.seats.iter_mut().for_each(|seat| *seat = (0, 0));
    }

    /// How often a block was delivered again.
    pub fn redelivered(&self) -> u64 {
        self.redelivered
    }

    /// The height up to which a replica has said that it has executed.
    pub fn executed_by(&self, at: ReplicaId) -> u64 {
        self.seats[usize::from(at.0)].1
    }

    /// Whether nothing is left to be ordered.
    pub fn is_idle(&self) -> bool {
        self.pool.is_empty()
    }

    /// What was ordered.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }
}

impl Ordering for Model {
    fn submit(&mut self, _: ReplicaId, command: Command) {
        if !self.rng.one_in(10) && !self.pool.contains(&command) {
            self.pool.push(command);
        }
    }

    fn next(&mut self, at: ReplicaId) -> Option<Block> {
        let (delivered, executed) = &mut self.seats[usize::from(at.0)];
        if self.rng.one_in(10) && delivered > executed {
            *delivered = *executed;
            self.redelivered += 1;
        } else if self.rng.one_in(20) && *executed > 0 {
            self.redelivered += 1;
            return self.blocks.get(*executed as usize - 1).cloned();
        }
        let block = self.blocks.get(*delivered as usize)?.clone();
        *delivered += 1;
        Some(block)
    }

    fn executed(&mut self, at: ReplicaId, height: u64) {
        let (delivered, executed) = &mut self.seats[usize::from(at.0)];
        *executed = (*executed).max(height);
        *delivered = (*delivered).max(*executed);
    }

    fn restarted(&mut self, at: ReplicaId) {
        let (delivered, executed) = &mut self.seats[usize::from(at.0)];
        *delivered = *executed;
    }

    /// Orders some of what was handed in. Each at most once a block, as rule G demands; the same one may follow in another.
    fn work(&mut self) {
        if self.pool.is_empty() || self.rng.one_in(3) {
            return;
        }
        self.rng.shuffle(&mut self.pool);
        let (mut names, mut commands) = (BTreeSet::new(), Vec::new());
        for _ in 0..self.rng.between(1, 24) {
            let Some(command) = self.pool.pop() else { break };
            if names.insert((command.client, command.nonce)) {
                commands.push(command);
            }
        }
        let again = commands.iter().filter(|_| self.rng.one_in(10)).cloned().collect::<Vec<_>>();
        self.pool.extend(again);
        self.blocks.push(Block { height: self.blocks.len() as u64 + 1, commands });
    }
}
