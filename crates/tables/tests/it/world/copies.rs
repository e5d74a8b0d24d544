//! Copies in a world: who follows what, and the links between them and owners, which lag and are cut.

use super::{Happening, World};
use std::collections::{BTreeMap, BTreeSet};
use tidings_tables::live::From;
use tidings_tables::names::{GatewayId, PartitionId, QueryId};
use tidings_tables::processor::Input;

/// Copies are named beside the world's one gateway.
const FIRST: u64 = 1_000_000;

#[derive(Default)]
pub struct Copying {
    last: u64,
    /// Who follows which partition.
    pub followed: BTreeSet<(usize, u32)>,
    /// Nodes whose copies hear nothing, and are not heard.
    pub cut: BTreeSet<usize>,
    /// How late a node's copies hear, in milliseconds.
    pub late: BTreeMap<usize, u64>,
    /// What copies have asked owners for, in order.
    pub installs: Vec<(usize, From)>,
}

impl Copying {
    pub fn crashed(&mut self, node: usize) {
        self.followed.retain(|(of, _)| *of != node);
    }

    pub fn unfollowed(&mut self, node: usize, number: u32) {
        self.followed.remove(&(node, number));
    }
}

/// The node whose copies have this name.
pub fn node_of(gateway: GatewayId) -> Option<usize> {
    gateway.0.checked_sub(FIRST).map(|node| node as usize)
}

impl World {
    /// A node begins to follow a partition.
    pub fn follow(&mut self, node: usize, number: u32) {
        self.copying.followed.insert((node, number));
        self.tell_copy(node, number);
    }

    /// Cuts a node's copies off, or mends that.
    pub fn cut_copies(&mut self, node: usize) {
        let cut = &mut self.copying.cut;
        if !cut.remove(&node) {
            cut.insert(node);
        }
    }

    pub fn unfollow(&mut self, node: usize, number: u32) {
        self.copying.unfollowed(node, number);
        let partition = self.id(number);
        self.tell_processor(node, Input::Unfollow { partition });
    }

    fn tell_copy(&mut self, node: usize, number: u32) {
        let Some(entry) = self.directory.partitions.iter().find(|entry| entry.number == number).cloned() else {
            return self.unfollow(node, number);
        };
        self.copying.last += 1;
        let query = QueryId::of_copy(GatewayId(FIRST + node as u64), self.copying.last);
        let (partition, entry) = (self.id(number), Box::new(entry));
        let properties = Box::new(self.directory.properties.clone());
        let (life, at) = (self.nodes[node].life, self.now + self.delay_of_news());
        let input = Box::new(Input::Follow { partition, query, entry, properties });
        self.at(at, Happening::Processor { node, life: Some(life), input });
    }

    /// The directory has changed: whoever follows the partition hears of it.
    pub fn copies_hear_of(&mut self, number: u32) {
        let followed = self.copying.followed.iter().filter(|(_, of)| *of == number).map(|(node, _)| *node);
        followed.collect::<Vec<_>>().into_iter().for_each(|node| self.tell_copy(node, number));
    }

    pub(super) fn carry_to_copy(&mut self, gateway: GatewayId, input: impl Fn() -> Input) {
        let Some(node) = node_of(gateway).filter(|node| !self.copying.cut.contains(node)) else { return };
        let late = self.copying.late.get(&node).copied().unwrap_or_default();
        self.carry_late(late, move || Happening::Processor { node, life: None, input: Box::new(input()) });
    }

    pub(super) fn copy_asks(&mut self, from: usize, partition: PartitionId, input: impl Fn() -> Input) {
        let Some((node, _)) = self.owners.get(&partition.number).copied() else { return };
        if !self.copying.cut.contains(&from) {
            self.carry(move || Happening::Processor { node, life: None, input: Box::new(input()) });
        }
    }
}
