//! The history table: s(q) → s(r), σ and list bits, in 28 bytes an entry, shared by threads.
//!
//! ```text
//!   s(q) ─ position on the ring ─▶ shard { lock, epoch, incarnation, floor } ─ two buckets of twenty ─▶ tag, s(r), σ, bits
//! ```
//! A key may lie in either of two buckets and goes into the emptier one, which fills the table to more than nine tenths
//! before anything must go. Only four bytes of s(q) are kept: because s(r) covers s(q), a key that is taken for another
//! finds a sketch that its answers cannot have, and that costs a replicated read, never a wrong answer.
//!
//! Rule B lives here. Every change is one comparison with the entry as it is, under the shard's lock. What is evicted or
//! dropped leaves a *floor*, and nothing at or below it is inserted: otherwise the late answer of an old read could come
//! back as the newest thing known. All memory is allocated at the start; nothing grows.

mod bucket;
mod carried;
mod shard;

pub use carried::Carried;

use crate::mutant::Mutant;
use crate::sigma::{Sigma, Stamp};
use crate::sketch::Sketch;
use carried::Item;
use parking_lot::Mutex;
use shard::Shard;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::{Incarnation, KeyHash, KeyRange};

/// How large a table is.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many entries it is made for.
    pub entries: usize,
    /// Into how many shards it is divided, rounded up to a power of two and at most 65,536. A lost range drops whole
    /// shards, and threads wait for one another only within a shard; each takes about 80 bytes.
    pub shards: usize,
    /// The bits of tags that count; fewer in tests that want collisions.
    #[doc(hidden)]
    pub tag_mask: u32,
    /// A rule left out, for tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Options {
    /// A table for so many entries, in shards of about five thousand.
    pub fn of(entries: usize) -> Options {
        Options { entries, shards: entries / 5_000 + 1, tag_mask: u32::MAX, mutant: None }
    }
}

/// Entries in a hundred slots when a table holds what it is made for: 30.4 bytes an entry, and next to nothing is lost.
const FILL_PERCENT: usize = 92;
const MOST_SHARDS: usize = 1 << 16;

/// What is remembered of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// s(r).
    pub sketch: Sketch,
    /// σ of that answer, or the tick at which its vote ended.
    pub sigma: Sigma,
    /// Whether the request is black-listed: never fast, but kept up (rule I).
    pub black: bool,
}

/// A request's claim on its shard: whatever was dropped since makes it void (rule J).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    epoch: u64,
}

/// What an update did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing was remembered before, and this is now.
    New,
    /// The same answer as before, now known to be so as of a later place.
    Same,
    /// A transition: another answer than before.
    Changed,
    /// Something as new or newer is remembered, or was.
    Older,
    /// Votes that overlap gave two answers; neither is remembered (rule E).
    Disputed,
    /// The shard was dropped since the visit began.
    Void,
}

/// The table of one group's answers.
pub struct History {
    shards: Box<[Mutex<Shard>]>,
    /// Shifts a position on the ring down to the number of a shard.
    shift: u32,
    tag_mask: u32,
    incarnation: AtomicU64,
    ticks: AtomicU64,
    mutant: Option<Mutant>,
}

/// A key as the table sees it.
#[derive(Clone, Copy)]
struct Spot {
    tag: u32,
    words: [u32; 2],
}

impl History {
    /// An empty table.
    pub fn new(options: &Options) -> History {
        let shards = options.shards.clamp(1, MOST_SHARDS).next_power_of_two();
        let slots = options.entries.max(1) * 100 / FILL_PERCENT;
        let buckets = slots.div_ceil(shards * bucket::SLOTS).max(1);
        History {
            shards: (0..shards).map(|_| Mutex::new(Shard::new(buckets))).collect(),
            shift: u64::BITS - shards.ilog2(),
            tag_mask: options.tag_mask,
            incarnation: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            mutant: options.mutant,
        }
    }

    /// Begins to deal with a request; before asking whether its range is held, so that a loss in between is noticed.
    pub fn visit(&self, key: &Sketch) -> Visit {
        Visit { epoch: self.shard(key).lock().epoch }
    }

    /// What is remembered of a request.
    pub fn look(&self, visit: Visit, key: &Sketch) -> Option<Entry> {
        let mut shard = self.shard(key).lock();
        self.renew(&mut shard);
        if shard.epoch != visit.epoch {
            return None;
        }
        let (bucket, at) = shard.find(self.spot(key))?;
        let row = shard.row(bucket, at);
        let sigma = Sigma::at(shard.incarnation, row.place);
        Some(Entry { sketch: row.sketch, sigma, black: row.black })
    }

    /// Notes that an entry was of use, which keeps it longer than others.
    pub fn used(&self, visit: Visit, key: &Sketch) {
        let mut shard = self.shard(key).lock();
        if shard.epoch == visit.epoch
            && let Some((bucket, at)) = shard.find(self.spot(key))
        {
            shard.used(bucket, at);
        }
    }

    /// Takes a replicated answer in, if it is newer than what is remembered: one atomic step.
    pub fn update(&self, visit: Visit, key: &Sketch, sketch: Sketch, stamp: Stamp) -> Change {
        self.change(visit, key, stamp, |shard, spot| shard.update(spot, sketch, stamp, self.mutant))
    }

    /// Takes note of a replicated answer that must not be remembered: what is older than it goes, too, and does not
    /// come back. Otherwise the next fast read would return something older than this one did (rule A).
    pub fn forget(&self, visit: Visit, key: &Sketch, stamp: Stamp) -> Change {
        self.change(visit, key, stamp, |shard, spot| shard.forget(spot, stamp, self.mutant))
    }

    /// Black-lists a request or takes it off the list, if it is remembered.
    pub fn list(&self, visit: Visit, key: &Sketch, black: bool) {
        let mut shard = self.shard(key).lock();
        let spot = self.spot(key);
        if shard.epoch == visit.epoch
            && let Some((bucket, at)) = shard.find(spot)
        {
            shard.list(bucket, at, spot, black);
        }
    }

    /// Drops what is remembered of a range that was lost (rule J): whole shards, which costs some replicated reads.
    pub fn drop_range(&self, range: KeyRange) {
        for (number, shard) in self.shards.iter().enumerate() {
            if self.arc(number).overlaps(range) {
                shard.lock().drop_all();
            }
        }
    }

    /// What is remembered of a range that is handed over, as far as whole shards lie within it. Nobody answers for the range
    /// any more when this is called, so nothing of it changes.
    pub fn carry(&self, range: KeyRange) -> Carried {
        let incarnation = Incarnation(self.incarnation.load(Ordering::SeqCst));
        let mut carried = Carried {
            shards: self.shards.len() as u32,
            buckets: self.buckets() as u32,
            incarnation,
            items: Vec::new(),
        };
        for (number, shard) in self.shards.iter().enumerate().filter(|(number, _)| range.covers(self.arc(*number))) {
            let mut shard = shard.lock();
            self.renew(&mut shard);
            if shard.incarnation == incarnation {
                let items = shard.rows().map(|(bucket, tag, row)| {
                    let (shard, bucket) = (number as u32, bucket as u32);
                    Item { shard, bucket, tag, row }
                });
                carried.items.extend(items.take(Carried::MOST_ITEMS - carried.items.len()));
            }
        }
        carried
    }

    /// Takes over what came along with a range, after everything of it was dropped and before anybody may ask for it; how many
    /// entries it was. A table that is divided otherwise takes none.
    ///
    /// Places of an `ordered` group mean the same everywhere. Ticks are each table's own: without an order the entries are as of
    /// now, which is before every vote that this sketcher begins for the range.
    pub fn take_over(&self, range: KeyRange, carried: &Carried, ordered: bool) -> usize {
        if carried.shards as usize != self.shards.len() || carried.buckets as usize != self.buckets() {
            return 0;
        }
        if ordered {
            self.incarnation.fetch_max(carried.incarnation.0, Ordering::SeqCst);
        }
        let now = self.tick();
        let mut taken = 0;
        for Item { shard, bucket, tag, row } in &carried.items {
            let number = *shard as usize;
            let Some(shard) = self.shards.get(number).filter(|_| range.covers(self.arc(number))) else { continue };
            let mut shard = shard.lock();
            self.renew(&mut shard);
            if shard.incarnation == carried.incarnation {
                let place = if ordered { row.place } else { now };
                taken += usize::from(shard.take_over(*bucket as usize, *tag, bucket::Row { place, ..*row }));
            }
        }
        taken
    }

    /// The part of the ring that a shard is for.
    fn arc(&self, number: usize) -> KeyRange {
        let start = (number as u64).checked_shl(self.shift).unwrap_or(0);
        let span = u64::MAX.checked_shr(self.shards.len().ilog2()).unwrap_or(0);
        KeyRange::new(KeyHash(start), KeyHash(start | span))
    }

    /// Buckets of each shard.
    fn buckets(&self) -> usize {
        self.shards[0].lock().buckets()
    }

    /// The next tick: what votes without σ are dated by (rule E).
    pub fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// How many entries there are. Counts them one by one.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn change(
        &self,
        visit: Visit,
        key: &Sketch,
        stamp: Stamp,
        change: impl FnOnce(&mut Shard, Spot) -> Change,
    ) -> Change {
        if self.mutant != Some(Mutant::IncarnationIgnored) {
            self.incarnation.fetch_max(stamp.incarnation().0, Ordering::SeqCst);
        }
        let mut shard = self.shard(key).lock();
        self.renew(&mut shard);
        if shard.epoch != visit.epoch {
            return Change::Void;
        }
        if stamp.incarnation() < shard.incarnation {
            return Change::Older;
        }
        change(&mut shard, self.spot(key))
    }

    /// A new life of the group begins its order anew: what is remembered of the old one cannot be compared.
    fn renew(&self, shard: &mut Shard) {
        let current = Incarnation(self.incarnation.load(Ordering::SeqCst));
        if shard.incarnation < current {
            shard.begin(current);
        }
    }

    fn shard(&self, key: &Sketch) -> &Mutex<Shard> {
        let number = key.position().0.checked_shr(self.shift).unwrap_or(0);
        &self.shards[number as usize]
    }

    fn spot(&self, key: &Sketch) -> Spot {
        Spot { tag: key.word(0) & self.tag_mask, words: [key.word(4), key.word(8)] }
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "History({} shards)", self.shards.len())
    }
}

#[cfg(test)]
mod tests;
