//! Partitions by placement: whoever holds one acquires it in its table's directory first (R1).

use super::{Later, Node, Out, place};
use crate::kernel::{Effect, HostId};
use crate::scenarios::placement::ring::{Hears, News};
use crate::scenarios::tables::files::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyRange, LeaseNumber, Mono, Now, Outbox};
use tidings_predicate::Key;
use tidings_tables::directory::{Acquired, Opened};
use tidings_tables::names::{PartitionId, TableId};
use tidings_tables::{gateway, processor};

/// How often directories are looked at: others change them, too.
const LOOK: Duration = Duration::from_millis(500);

/// Once in so many calls a node goes by an old table of owners.
const STRAY: u64 = 6;

/// A change of a directory that is under way.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// The table's name, and the table.
    name: u8,
    table: TableId,
    what: What,
    /// What was acquired, once it is.
    acquired: Option<Box<Acquired>>,
}

#[derive(Clone, Debug)]
enum What {
    Acquire(PartitionId, LeaseNumber),
    Split(Opened, Key),
    Merge([Opened; 2]),
}

/// What the machines were told.
#[derive(Debug)]
pub(super) struct Owning {
    /// The processor has these.
    held: BTreeMap<PartitionId, LeaseNumber>,
    /// These are being acquired, and whether their leases have held since.
    acquiring: BTreeMap<PartitionId, bool>,
    /// The gateway knows these directories, and who has which partition.
    directories: BTreeMap<TableId, u64>,
    owners: BTreeMap<PartitionId, Option<LeaseNumber>>,
    /// Who was asked for each partition last, and who before that.
    asked: BTreeMap<PartitionId, [HostId; 2]>,
    look: Mono,
}

impl Owning {
    pub fn new(now: Mono) -> Owning {
        Owning {
            held: BTreeMap::new(),
            acquiring: BTreeMap::new(),
            directories: BTreeMap::new(),
            owners: BTreeMap::new(),
            asked: BTreeMap::new(),
            look: now,
        }
    }

    pub fn deadline(&self) -> Mono {
        self.look
    }
}

impl Node {
    /// How much of the ring is held here now.
    pub fn held(&self, now: Mono) -> u128 {
        self.ring.held(now)
    }

    /// From now on the machines hear so much later what has become of partitions.
    pub fn be_busy(&mut self, late: Option<Duration>) {
        self.ring.be_busy(late);
    }

    /// Hands everything over and leaves.
    pub fn drain(&mut self, now: Now, out: &mut Out) {
        self.ring.drain(now, Hears { rng: &mut self.rng, calm: self.calm }, out);
    }

    /// Where a partition is served, as far as is known: here if it is held here, whatever others say.
    pub(super) fn owner_of(&self, now: Now, partition: PartitionId) -> Option<HostId> {
        match self.ring.lease(now, place(partition)) {
            Some(_) => Some(self.host),
            None => self.ring.find(place(partition)).map(|(host, _)| host),
        }
    }

    /// Who is asked for a partition: its owner, or now and then whoever was before, as with a table that is out of date.
    pub(super) fn whom_to_ask(&mut self, now: Now, partition: PartitionId) -> Option<HostId> {
        let owner = self.owner_of(now, partition)?;
        let [last, before] = self.owning.asked.entry(partition).or_insert([owner; 2]);
        if *last != owner {
            (*before, *last) = (*last, owner);
        }
        let before = *before;
        Some(if !self.calm && self.rng.one_in(STRAY) { before } else { owner })
    }

    pub(super) fn wake_ring(&mut self, now: Now, out: &mut Out) {
        for news in self.ring.wake(now, Hears { rng: &mut self.rng, calm: self.calm }, out) {
            match news {
                // R1: whatever was revoked or granted is acquired anew before it is served again.
                News::Changed(change) => {
                    let granted = change.granted.iter().map(|(leased, _)| leased.range);
                    let ranges: Vec<KeyRange> =
                        change.revoked.iter().map(|leased| leased.range).chain(granted).collect();
                    let touched =
                        |partition: &PartitionId| ranges.iter().any(|range| range.contains(place(*partition)));
                    self.owning.acquiring.iter_mut().for_each(|(partition, held)| *held &= !touched(partition));
                    let held = self.owning.held.keys().copied().filter(touched);
                    for partition in held.collect::<Vec<_>>() {
                        self.lose(now, partition, out);
                    }
                    self.owning.look = now.mono;
                }
                News::Drained => out.put(Effect::Exit { why: "drained".to_owned() }),
            }
        }
    }

    fn lose(&mut self, now: Now, partition: PartitionId, out: &mut Out) {
        self.owning.held.remove(&partition);
        self.feed_processor(now, processor::Input::Lost { partition }, out);
    }

    /// The processor has lost a partition by itself.
    pub(super) fn deposed(&mut self, now: Now, partition: PartitionId) {
        self.owning.held.remove(&partition);
        self.owning.look = now.mono;
    }

    /// Looks at all directories, and tells the machines of what is other than they know.
    pub(super) fn look(&mut self, now: Now, out: &mut Out) {
        if now.mono < self.owning.look {
            return;
        }
        self.owning.look = now.mono + LOOK;
        // A process that is too busy to hear of its leases does not look either: it goes on with what it had (R2).
        if self.ring.is_behind() {
            return;
        }
        let tables = self.files.all();
        let there: BTreeSet<TableId> = tables.iter().map(|(_, entry)| entry.directory.table()).collect();
        let gone = self.owning.directories.keys().copied().filter(|table| !there.contains(table));
        for table in gone.collect::<Vec<_>>() {
            self.forget_table(now, table, out);
        }
        for (name, entry) in tables {
            self.tell_gateway(now, &entry, out);
            self.tell_processor(now, name, &entry, out);
            self.look_at_copies(now, &entry, out);
        }
    }

    fn forget_table(&mut self, now: Now, table: TableId, out: &mut Out) {
        self.owning.directories.remove(&table);
        self.owning.owners.retain(|partition, _| partition.table != table);
        self.forget_copies(now, table, out);
        let lost = self.owning.held.keys().copied().filter(|partition| partition.table == table);
        for partition in lost.collect::<Vec<_>>() {
            self.lose(now, partition, out);
        }
        self.feed_gateway(now, gateway::Input::Dropped(table), out);
    }

    /// A directory before who owns its partitions.
    pub(super) fn tell_gateway(&mut self, now: Now, entry: &Entry, out: &mut Out) {
        let directory = &entry.directory;
        let before = self.owning.directories.insert(directory.table(), entry.version);
        if before != Some(entry.version) {
            self.feed_gateway(now, gateway::Input::Directory(directory.clone()), out);
        }
        for part in &directory.partitions {
            let partition = directory.partition_id(part.number);
            let known = || self.ring.find(place(partition)).map(|(_, lease)| lease);
            let lease = self.ring.lease(now, place(partition)).or_else(known);
            if self.owning.owners.insert(partition, lease) != Some(lease) {
                self.feed_gateway(now, gateway::Input::Owner { partition, lease }, out);
            }
        }
    }

    fn tell_processor(&mut self, now: Now, name: u8, entry: &Entry, out: &mut Out) {
        let (directory, table) = (&entry.directory, entry.directory.table());
        let parts: Vec<PartitionId> =
            directory.partitions.iter().map(|part| directory.partition_id(part.number)).collect();
        let held = self.owning.held.keys().copied();
        let cut = held.filter(|partition| partition.table == table && !parts.contains(partition));
        for partition in cut.collect::<Vec<_>>() {
            self.lose(now, partition, out);
        }
        for partition in parts {
            let lease = self.ring.lease(now, place(partition));
            match (lease, self.owning.held.get(&partition).copied()) {
                (Some(lease), Some(held)) if lease == held => {}
                (Some(lease), _) => {
                    let under_way = self.owning.acquiring.contains_key(&partition);
                    if !under_way {
                        self.owning.acquiring.insert(partition, true);
                        self.change(now, name, table, What::Acquire(partition, lease));
                    }
                }
                (None, Some(_)) => self.lose(now, partition, out),
                (None, None) => {}
            }
        }
    }

    /// Cuts a partition that is served here before a key; false if it is not open here.
    pub fn split(&mut self, now: Now, name: u8, at: &Key, out: &mut Out) -> bool {
        let Some(entry) = self.files.read(name) else { return false };
        let Some(part) = entry.directory.find(at) else { return false };
        let partition = entry.directory.partition_id(part.number);
        let Some(opened) = self.processor.opened(partition).filter(|_| self.has_told(partition)) else { return false };
        // Nobody writes any more to what is cut before the directory says so; if it does not, it is acquired anew.
        self.lose(now, partition, out);
        self.change(now, name, partition.table, What::Split(opened, at.clone()));
        true
    }

    /// Gives up whichever of these partitions is open here, so that it is joined with its neighbour.
    pub fn cede(&mut self, now: Now, partition: PartitionId, out: &mut Out) -> Option<Opened> {
        let mut said = Outbox::new();
        let ceded = self.processor.cede(partition, &mut said)?;
        self.owning.held.remove(&partition);
        self.perform_processor(now, said, out);
        Some(ceded)
    }

    /// What is known here of a partition that it has opened.
    pub fn has_opened(&self, partition: PartitionId) -> bool {
        self.processor.opened(partition).is_some() && self.has_told(partition)
    }

    /// R3: what is cut or joined no sooner than those who are away were told who owns it.
    fn has_told(&self, partition: PartitionId) -> bool {
        !self.devices || self.processor.has_told_of_opening(partition)
    }

    /// Joins two neighbours that their owners have given up.
    pub fn merge(&mut self, now: Now, name: u8, table: TableId, both: [Opened; 2]) {
        self.change(now, name, table, What::Merge(both));
    }

    /// Changes a directory, in a while.
    fn change(&mut self, now: Now, name: u8, table: TableId, what: What) {
        self.after(now, 1, 20, Later::Replaces(Change { name, table, what, acquired: None }));
    }

    /// The cell takes a change, or does not; and whether it did is heard, or not.
    pub(super) fn replaces(&mut self, now: Now, mut change: Change) {
        let lost = !self.calm && self.rng.one_in(20);
        let done = !(lost && self.rng.one_in(2)) && self.replace(&mut change);
        let heard = done && !lost;
        let most = if lost { 2_000 } else { 20 };
        self.after(now, 1, most, Later::Replaced(change, heard));
    }

    fn replace(&mut self, change: &mut Change) -> bool {
        let Some(entry) = self.files.read(change.name).filter(|entry| entry.directory.table() == change.table) else {
            return false;
        };
        let mut directory = (*entry.directory).clone();
        let done = match &change.what {
            What::Acquire(partition, lease) => match directory.acquire(partition.number, *lease) {
                Ok(acquired) => {
                    change.acquired = Some(Box::new(acquired));
                    true
                }
                Err(_) => false,
            },
            What::Split(opened, at) => directory.split(*opened, at).is_ok(),
            What::Merge(opened) => directory.merge(*opened).is_ok(),
        };
        done && self.files.write_if(change.name, entry.version, directory)
    }

    /// What became of a change is heard; where it is not, the next look sees.
    pub(super) fn replaced(&mut self, now: Now, change: Change, done: bool, out: &mut Out) {
        let held = match change.what {
            What::Acquire(partition, _) => self.owning.acquiring.remove(&partition).unwrap_or(false),
            What::Split(..) | What::Merge(_) => true,
        };
        self.owning.look = if done { now.mono } else { self.owning.look };
        if let Some(acquired) = change.acquired.filter(|_| done && held) {
            self.owning.held.insert(acquired.partition, acquired.lease);
            self.feed_processor(now, processor::Input::Gained(acquired), out);
        }
    }
}
