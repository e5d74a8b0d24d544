//! One shard: what is changed under one lock.

use super::bucket::{Bucket, Row};
use super::{Change, Spot};
use crate::mutant::Mutant;
use crate::sigma::Stamp;
use crate::sketch::Sketch;
use tidings_base::Incarnation;

pub(super) struct Shard {
    /// Grows whenever everything is dropped.
    pub(super) epoch: u64,
    /// The life of the group that all places are of.
    pub(super) incarnation: Incarnation,
    /// The highest place that was ever evicted or dropped.
    floor: u64,
    /// The highest place that was ever taken in.
    highest: u64,
    buckets: Box<[Bucket]>,
}

impl Shard {
    pub(super) fn new(buckets: usize) -> Shard {
        let buckets = vec![Bucket::EMPTY; buckets].into_boxed_slice();
        Shard { epoch: 0, incarnation: Incarnation(0), floor: 0, highest: 0, buckets }
    }

    /// The two buckets a key may lie in.
    fn choices(&self, spot: Spot) -> [usize; 2] {
        spot.words.map(|word| ((u64::from(word) * self.buckets.len() as u64) >> 32) as usize)
    }

    /// The slots with a key's tag: at most one of each bucket, the newest first.
    ///
    /// There are two only if a tag is shared. Then the newest decides: comparing with an older one could let an old answer in.
    fn matches(&self, spot: Spot) -> [Option<(usize, usize)>; 2] {
        let [first, second] = self.choices(spot);
        let found = |bucket: usize| Some((bucket, self.buckets[bucket].find(spot.tag)?));
        let place = |slot: Option<(usize, usize)>| slot.map(|(bucket, at)| self.row(bucket, at).place);
        let (one, other) = (found(first), found(second).filter(|_| first != second));
        if place(one) >= place(other) { [one, other] } else { [other, one] }
    }

    pub(super) fn find(&self, spot: Spot) -> Option<(usize, usize)> {
        self.matches(spot)[0]
    }

    /// Something was learnt of a key. What is older in the second slot may be the key's own, and would come to light again
    /// when the first slot is evicted.
    fn find_for_change(&mut self, spot: Spot, stamp: Stamp, mutant: Option<Mutant>) -> Option<(usize, usize)> {
        let [newest, other] = self.matches(spot);
        if let Some((bucket, at)) = other
            && self.row(bucket, at).place < stamp.to()
        {
            self.remove(bucket, at, mutant);
        }
        newest
    }

    fn remove(&mut self, bucket: usize, at: usize, mutant: Option<Mutant>) {
        self.raise_floor(self.row(bucket, at).place, mutant);
        self.buckets[bucket].clear(at);
    }

    pub(super) fn row(&self, bucket: usize, at: usize) -> Row {
        self.buckets[bucket].row(at)
    }

    pub(super) fn used(&mut self, bucket: usize, at: usize) {
        self.buckets[bucket].used(at);
    }

    pub(super) fn list(&mut self, bucket: usize, at: usize, spot: Spot, black: bool) {
        let row = self.row(bucket, at);
        self.buckets[bucket].put(at, spot.tag, Row { black, ..row });
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Everything that is remembered: its bucket, its tag, and what it is.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, u32, Row)> + '_ {
        let numbered = self.buckets.iter().enumerate();
        numbered.flat_map(|(number, bucket)| bucket.rows().map(move |(tag, row)| (number, tag, row)))
    }

    /// Puts a row where it lay in another table, if nothing is in its way.
    pub(super) fn take_over(&mut self, bucket: usize, tag: u32, row: Row) -> bool {
        let free = self.buckets.get(bucket).filter(|bucket| bucket.find(tag).is_none()).and_then(Bucket::free);
        let Some(at) = free else { return false };
        self.highest = self.highest.max(row.place);
        self.buckets[bucket].put(at, tag, row);
        true
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(Bucket::len).sum()
    }

    pub(super) fn update(&mut self, spot: Spot, sketch: Sketch, stamp: Stamp, mutant: Option<Mutant>) -> Change {
        let Some((bucket, at)) = self.find_for_change(spot, stamp, mutant) else {
            if stamp.from() <= self.floor {
                return Change::Older;
            }
            self.insert(spot, Row { sketch, place: stamp.to(), black: false }, mutant);
            return Change::New;
        };
        let row = self.row(bucket, at);
        let same = row.sketch == sketch;
        // The slot may be of another key with this tag, and what was known of this one be among what was evicted, and newer. If it
        // is this key's own, it is out of date now. So neither stays.
        if !same && stamp.from() > row.place && stamp.from() <= self.floor {
            self.remove(bucket, at, mutant);
            self.raise_floor(stamp.to(), mutant);
            return Change::Older;
        }
        if stamp.from() > row.place || mutant == Some(Mutant::UpdateOfThen) {
            self.write(bucket, at, spot, Row { sketch, place: stamp.to(), ..row });
            return if same { Change::Same } else { Change::Changed };
        }
        match stamp {
            Stamp::Ordered(_) => Change::Older,
            Stamp::Voted { ended, .. } if same || mutant == Some(Mutant::OverlapKept) => {
                self.write(bucket, at, spot, Row { sketch, place: row.place.max(ended), ..row });
                Change::Same
            }
            Stamp::Voted { ended, .. } => {
                self.remove(bucket, at, mutant);
                self.raise_floor(ended, mutant);
                Change::Disputed
            }
        }
    }

    pub(super) fn forget(&mut self, spot: Spot, stamp: Stamp, mutant: Option<Mutant>) -> Change {
        if mutant == Some(Mutant::ErrorsKeepEntry) {
            return Change::Older;
        }
        let found = self.find_for_change(spot, stamp, mutant);
        if let Some((bucket, at)) = found {
            if self.row(bucket, at).place >= stamp.to() {
                return Change::Older;
            }
            self.remove(bucket, at, mutant);
        }
        self.raise_floor(stamp.to(), mutant);
        if found.is_some() { Change::Changed } else { Change::New }
    }

    fn insert(&mut self, spot: Spot, row: Row, mutant: Option<Mutant>) {
        let choices = self.choices(spot);
        let [first, second] = choices.map(|bucket| self.buckets[bucket].len());
        let emptier = if first <= second { choices[0] } else { choices[1] };
        let at = self.buckets[emptier].free().unwrap_or_else(|| {
            let at = self.buckets[emptier].probation();
            self.raise_floor(self.row(emptier, at).place, mutant);
            at
        });
        self.write(emptier, at, spot, row);
    }

    fn write(&mut self, bucket: usize, at: usize, spot: Spot, row: Row) {
        self.highest = self.highest.max(row.place);
        self.buckets[bucket].put(at, spot.tag, row);
    }

    fn raise_floor(&mut self, place: u64, mutant: Option<Mutant>) {
        if mutant != Some(Mutant::NoFloor) {
            self.floor = self.floor.max(place);
        }
    }

    /// Drops everything; what was known does not come back through an answer that was under way.
    pub(super) fn drop_all(&mut self) {
        self.buckets.fill(Bucket::EMPTY);
        self.floor = self.floor.max(self.highest);
        self.epoch += 1;
    }

    /// Begins a new life of the group: places begin anew.
    pub(super) fn begin(&mut self, incarnation: Incarnation) {
        self.buckets.fill(Bucket::EMPTY);
        self.incarnation = incarnation;
        self.floor = 0;
        self.highest = 0;
    }
}
