//! Copies of partitions that other nodes own (R1). Which there are is drawn, and not chosen by load.

use super::{Node, Out, place};
use crate::scenarios::tables::files::Entry;
use std::collections::BTreeMap;
use tidings_base::{Now, Seeded};
use tidings_tables::calls::{Call, Level};
use tidings_tables::names::{PartitionId, QueryId, TableId, Term};
use tidings_tables::processor;

/// At one of so many looks a node begins to follow a partition, and at one of so many it ends that.
const BEGIN: u64 = 4;
const END: u64 = 400;
/// One of so many calls that only owners answer is brought to a copy all the same.
const ASTRAY: u64 = 20;

/// The copies of one process.
#[derive(Debug)]
pub(super) struct Copying {
    /// None: nothing is copied in this run.
    rng: Option<Seeded>,
    last: u64,
    /// What the processor follows, in the term that it was told.
    told: BTreeMap<PartitionId, Term>,
}

impl Copying {
    pub fn new(rng: Option<Seeded>) -> Copying {
        Copying { rng, last: 0, told: BTreeMap::new() }
    }

    /// The processor follows a partition no more.
    pub fn ended(&mut self, partition: PartitionId) {
        self.told.remove(&partition);
    }
}

impl Node {
    /// Begins, ends, or goes on with what the directory says now.
    pub(super) fn look_at_copies(&mut self, now: Now, entry: &Entry, out: &mut Out) {
        let Some(mut rng) = self.copying.rng.clone() else { return };
        let directory = &entry.directory;
        let table = directory.table();
        let there = |partition: &PartitionId| directory.partitions.iter().any(|part| part.number == partition.number);
        let gone = self.copying.told.keys().copied().filter(|copy| copy.table == table && !there(copy));
        for partition in gone.collect::<Vec<_>>() {
            self.unfollow(now, partition, out);
        }
        for part in &directory.partitions {
            let partition = directory.partition_id(part.number);
            let told = self.copying.told.get(&partition).copied();
            let (begins, ends) = (rng.one_in(BEGIN), !self.calm && rng.one_in(END));
            let owned = self.ring.lease(now, place(partition)).is_some();
            match told {
                Some(_) if owned || ends => self.unfollow(now, partition, out),
                Some(term) if term == part.term => {}
                None if owned || !begins => {}
                _ => {
                    self.copying.told.insert(partition, part.term);
                    self.copying.last += 1;
                    let query = QueryId::of_copy(self.gateway_id, self.copying.last);
                    let (entry, properties) = (Box::new(part.clone()), Box::new(directory.properties.clone()));
                    self.feed_processor(now, processor::Input::Follow { partition, query, entry, properties }, out);
                }
            }
        }
        self.copying.rng = Some(rng);
    }

    pub(super) fn forget_copies(&mut self, now: Now, table: TableId, out: &mut Out) {
        let gone = self.copying.told.keys().copied().filter(|copy| copy.table == table);
        for partition in gone.collect::<Vec<_>>() {
            self.unfollow(now, partition, out);
        }
    }

    fn unfollow(&mut self, now: Now, partition: PartitionId, out: &mut Out) {
        self.copying.ended(partition);
        self.feed_processor(now, processor::Input::Unfollow { partition }, out);
    }

    /// Whether a call is brought to the copy here: what owners alone answer only by mistake.
    pub(super) fn asks_copy(&mut self, partition: PartitionId, call: &Call) -> bool {
        let Some(rng) = self.copying.rng.as_mut().filter(|_| self.copying.told.contains_key(&partition)) else {
            return false;
        };
        match call {
            Call::Read(read) if matches!(read.level, Level::Committed | Level::CommittedWio { .. }) => true,
            _ => !self.calm && rng.one_in(ASTRAY),
        }
    }
}
