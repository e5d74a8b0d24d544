//! The table of ranges: who is recorded to hold what, and what the leader knows beyond the record.

use super::file;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};

/// What the leader knows of a range's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody holds it: released, expired, or never given.
    Nobody,
    /// Recorded by an earlier leader: whether its holder still has it is not known until it speaks under our epoch.
    Loaded,
    /// Recorded by us, and not yet told.
    Fresh,
    /// Granted in the answer of this sequence number, and not yet claimed.
    Sent(u64),
    /// Its holder has claimed it.
    Claimed,
    /// A change of its record is on its way to the cell; no lease of it is sent.
    Committing,
}

/// What the leader wants with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing.
    Stay,
    /// It is left out of its holder's set until it is released or expires.
    Recall,
    /// A clean migration is under way (F9).
    Move {
        /// Names it.
        token: u64,
    },
}

/// One range of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its last point; its first is the key of the map.
    pub last: KeyHash,
    /// Index of the owner; 0 = nobody.
    pub owner: u32,
    /// Its lease number.
    pub lease: LeaseNumber,
    /// The LSN of its last change.
    pub changed: u64,
    /// The LSN at which its state was last lost (F7).
    pub lost: u64,
    /// A policy has put it where it is; the ring's points do not move it.
    pub pinned: bool,
    /// Not before this may anybody else be given it, unless its holder releases it.
    pub until: Mono,
    /// What is known of its holder.
    pub holder: Holder,
    /// What is wanted with it.
    pub intent: Intent,
    /// The clean move by which its holder got it, as long as it has not claimed it.
    pub token: Option<u64>,
    /// Where a policy wants it; 0 = wherever the ring says.
    pub aim: u32,
    /// Policies leave it alone until then (dwell).
    pub settles: Mono,
}

impl Range {
    /// A range that nobody holds.
    pub fn nobody(last: KeyHash) -> Range {
        Range {
            last,
            owner: 0,
            lease: LeaseNumber::default(),
            changed: 0,
            lost: 0,
            pinned: false,
            until: Mono(0),
            holder: Holder::Nobody,
            intent: Intent::Stay,
            token: None,
            aim: 0,
            settles: Mono(0),
        }
    }
}

impl Range {
    /// Takes the range after it in, if the two are alike but for where they lie.
    pub fn absorb(&mut self, right: &Range) -> bool {
        let alike = (Range { last: self.last, ..*right }) == *self;
        if alike {
            self.last = right.last;
        }
        alike
    }
}

/// The whole ring, cut at least at the 256 segments. Finding what belongs to an owner, or what changed after an LSN,
/// costs as much as there is of it.
#[derive(Clone, Debug)]
pub struct Table {
    rows: BTreeMap<KeyHash, Range>,
    by_owner: BTreeMap<u32, BTreeSet<KeyHash>>,
    by_change: BTreeSet<(u64, KeyHash)>,
    /// How many rows each segment has.
    sizes: Vec<usize>,
}

impl Table {
    /// A ring that nobody holds.
    pub fn new() -> Table {
        let mut table = Table {
            rows: BTreeMap::new(),
            by_owner: BTreeMap::new(),
            by_change: BTreeSet::new(),
            sizes: vec![0; 1 << u8::BITS],
        };
        for (start, last) in (0..=u8::MAX).map(file::bounds) {
            table.put(start, Range::nobody(last));
        }
        table
    }

    /// Puts a segment's rows in place, as read from its file.
    pub fn load(&mut self, segment: u8, rows: Vec<(KeyHash, Range)>) {
        for start in self.segment(segment).map(|(start, _)| start).collect::<Vec<_>>() {
            self.remove(start);
        }
        for (start, range) in rows {
            self.put(start, range);
        }
    }

    /// Puts a row in place of the one that begins there, if one does.
    pub fn put(&mut self, start: KeyHash, range: Range) {
        self.remove(start);
        self.by_owner.entry(range.owner).or_default().insert(start);
        self.by_change.insert((range.changed, start));
        self.sizes[usize::from(file::segment_of(start))] += 1;
        self.rows.insert(start, range);
    }

    fn remove(&mut self, start: KeyHash) -> Option<Range> {
        let range = self.rows.remove(&start)?;
        if let Some(starts) = self.by_owner.get_mut(&range.owner) {
            starts.remove(&start);
            if starts.is_empty() {
                self.by_owner.remove(&range.owner);
            }
        }
        self.by_change.remove(&(range.changed, start));
        self.sizes[usize::from(file::segment_of(start))] -= 1;
        Some(range)
    }

    /// How many ranges there are.
    #[allow(clippy::len_without_is_empty)] // The ring is never without ranges.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// All ranges, in the ring's order.
    pub fn iter(&self) -> impl Iterator<Item = (KeyHash, &Range)> {
        self.rows.iter().map(|(start, range)| (*start, range))
    }

    /// The range that a point lies in, and those after it.
    pub fn iter_from(&self, at: KeyHash) -> impl Iterator<Item = (KeyHash, &Range)> {
        let first = self.find(at).map_or(at, |(start, _)| start);
        self.rows.range(first..).map(|(start, range)| (*start, range))
    }

    /// The ranges of a segment.
    pub fn segment(&self, segment: u8) -> impl Iterator<Item = (KeyHash, &Range)> {
        let (first, last) = file::bounds(segment);
        self.rows.range(first..=last).map(|(start, range)| (*start, range))
    }

    /// The first points of all ranges.
    pub fn starts(&self) -> Vec<KeyHash> {
        self.rows.keys().copied().collect()
    }

    /// The first points of the ranges that an arc touches; it may wrap.
    pub fn touched(&self, arc: KeyRange) -> Vec<KeyHash> {
        if arc.last < arc.start {
            let mut both = self.touched(KeyRange::new(arc.start, KeyHash(u64::MAX)));
            both.extend(self.touched(KeyRange::new(KeyHash(0), arc.last)));
            return both;
        }
        let first = self.find(arc.start).map_or(arc.start, |(start, _)| start);
        self.rows.range(first..=arc.last).map(|(start, _)| *start).collect()
    }

    /// The range that begins at a point.
    pub fn get(&self, start: KeyHash) -> Option<&Range> {
        self.rows.get(&start)
    }

    /// Changes what is known of a range beyond its record; its owner and its number stay.
    pub fn update(&mut self, start: KeyHash, change: impl FnOnce(&mut Range)) {
        if let Some(range) = self.rows.get_mut(&start) {
            let (owner, changed) = (range.owner, range.changed);
            change(range);
            assert_eq!((owner, changed), (range.owner, range.changed), "a new record is put, not updated");
        }
    }

    /// The range that a point lies in.
    pub fn find(&self, at: KeyHash) -> Option<(KeyHash, &Range)> {
        self.rows.range(..=at).next_back().map(|(start, range)| (*start, range))
    }

    /// Cuts the range that a point lies in, so that one begins there; whether it does. Both halves keep the number and
    /// everything else: nobody's ownership is interrupted. What is on its way to the cell or moves is not cut.
    pub fn cut(&mut self, at: KeyHash) -> bool {
        let Some((start, range)) = self.find(at) else { return false };
        if start == at {
            return true;
        }
        let busy = range.holder == Holder::Committing || matches!(range.intent, Intent::Move { .. });
        if busy || self.sizes[usize::from(file::segment_of(at))] >= file::MAX_ROWS {
            return false;
        }
        let second = *range;
        self.update(start, |first| first.last = KeyHash(at.0 - 1));
        self.put(at, second);
        true
    }

    /// Joins a range with the one before it if a commit made them alike: the same owner, number and history, and nothing
    /// wanted with them.
    pub fn join(&mut self, start: KeyHash) {
        let (first, _) = file::bounds(file::segment_of(start));
        let before = self.rows.range(first..start).next_back().map(|(before, left)| (*before, *left));
        let (Some((before, mut left)), Some(right)) = (before, self.rows.get(&start)) else { return };
        if left.absorb(right) {
            self.glue(before, start);
        }
    }

    /// Whether a range could be one with the range before it: one owner, one number, held, and nothing wanted.
    pub fn can_merge(&self, start: KeyHash) -> bool {
        let (first, _) = file::bounds(file::segment_of(start));
        let before = self.rows.range(first..start).next_back();
        let (Some((_, left)), Some(right)) = (before, self.rows.get(&start)) else { return false };
        let calm = |range: &Range| range.holder == Holder::Claimed && range.intent == Intent::Stay && range.aim == 0;
        let record = |range: &Range| (range.owner, range.lease, range.changed, range.lost, range.pinned);
        calm(left) && calm(right) && record(left) == record(right)
    }

    /// Makes a range one with the range before it, if that can be.
    pub fn merge(&mut self, start: KeyHash) {
        if !self.can_merge(start) {
            return;
        }
        if let Some(before) = self.rows.range(..start).next_back().map(|(before, _)| *before) {
            let right = self.rows.get(&start).copied().unwrap_or_else(|| Range::nobody(start));
            self.update(before, |left| {
                left.until = left.until.max(right.until);
                left.settles = left.settles.max(right.settles);
            });
            self.glue(before, start);
        }
    }

    /// Makes all ranges from one's first point to another's last, which are one owner's under one number, one.
    pub fn unite(&mut self, whole: KeyRange) {
        let until = self.rows.range(whole.start..=whole.last).map(|(_, range)| range.until).max();
        for right in self.touched(whole).into_iter().skip(1) {
            self.glue(whole.start, right);
        }
        self.update(whole.start, |range| range.until = range.until.max(until.unwrap_or_default()));
    }

    fn glue(&mut self, left: KeyHash, right: KeyHash) {
        if let Some(gone) = self.remove(right) {
            self.update(left, |range| range.last = gone.last);
        }
    }

    /// The ranges of an owner.
    pub fn of_owner(&self, owner: u32) -> Vec<KeyHash> {
        self.by_owner.get(&owner).map(|starts| starts.iter().copied().collect()).unwrap_or_default()
    }

    /// How many ranges an owner has.
    pub fn count_of(&self, owner: u32) -> usize {
        self.by_owner.get(&owner).map_or(0, BTreeSet::len)
    }

    /// The ranges that changed after an LSN.
    pub fn changed_after(&self, lsn: u64) -> impl Iterator<Item = (KeyHash, &Range)> {
        let later = self.by_change.range((lsn.saturating_add(1), KeyHash(0))..);
        later.filter_map(|(_, start)| Some((*start, self.rows.get(start)?)))
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

/// The arc from a range's first point to its last.
pub fn arc(start: KeyHash, range: &Range) -> KeyRange {
    KeyRange::new(start, range.last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_and_joins_leave_the_ring_whole() {
        let mut table = Table::new();
        assert!(table.cut(KeyHash(0x10)) && table.cut(KeyHash(0x10)) && table.cut(KeyHash(0x20)));
        assert_eq!(table.len(), 258);
        let whole: u128 = table.iter().map(|(start, range)| arc(start, range).len()).sum();
        assert_eq!(whole, KeyRange::FULL.len());
        table.update(KeyHash(0x20), |range| range.lost = 9);
        table.join(KeyHash(0x20));
        table.join(KeyHash(0x10));
        assert_eq!(table.len(), 257, "what differs is not joined");
        table.update(KeyHash(0x20), |range| range.lost = 0);
        table.join(KeyHash(0x20));
        assert_eq!((table.len(), table.get(KeyHash(0)).unwrap().last), (256, file::bounds(0).1));
        table.update(KeyHash(0), |range| range.holder = Holder::Committing);
        assert!(!table.cut(KeyHash(0x10)));
    }

    #[test]
    fn what_belongs_to_an_owner_and_what_changed_is_found_as_by_a_search() {
        let mut table = Table::new();
        for (i, at) in [0x10u64, 0x2000_0000_0000_0000, u64::MAX].into_iter().enumerate() {
            assert!(table.cut(KeyHash(at)));
            let range = *table.get(KeyHash(at)).unwrap();
            table.put(KeyHash(at), Range { owner: 1 + (i as u32) % 2, changed: 5 + i as u64, ..range });
        }
        for owner in 0..3 {
            let searched: Vec<_> = table.iter().filter(|(_, r)| r.owner == owner).map(|(start, _)| start).collect();
            assert_eq!((table.of_owner(owner), table.count_of(owner)), (searched.clone(), searched.len()));
        }
        assert_eq!(table.changed_after(5).map(|(_, r)| r.changed).collect::<Vec<_>>(), [6, 7]);
        let around = table.touched(KeyRange::new(KeyHash(u64::MAX), KeyHash(0x10)));
        assert_eq!(around, [KeyHash(u64::MAX), KeyHash(0), KeyHash(0x10)]);
    }

    #[test]
    fn only_what_is_one_lease_of_one_owner_is_merged() {
        let mut table = Table::new();
        table.cut(KeyHash(0x10));
        assert!(!table.can_merge(KeyHash(0x10)), "nobody holds it");
        for start in [0, 0x10] {
            table.update(KeyHash(start), |range| (range.holder, range.until) = (Holder::Claimed, Mono(start + 1)));
        }
        assert!(!table.can_merge(KeyHash(0)), "nothing lies before it");
        table.merge(KeyHash(0x10));
        assert_eq!((table.len(), table.get(KeyHash(0)).unwrap().until), (256, Mono(0x11)));
    }
}
