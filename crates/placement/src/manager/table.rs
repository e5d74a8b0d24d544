//! The table of ranges: who is recorded to hold what, and what the leader knows beyond the record.

use super::file;
use std::collections::BTreeMap;
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
        }
    }
}

/// The whole ring, cut at least at the 256 segments.
#[derive(Clone, Debug)]
pub struct Table {
    rows: BTreeMap<KeyHash, Range>,
}

impl Table {
    /// A ring that nobody holds.
    pub fn new() -> Table {
        let rows = (0..=u8::MAX).map(file::bounds).map(|(start, last)| (start, Range::nobody(last)));
        Table { rows: rows.collect() }
    }

    /// Puts a segment's rows in place, as read from its file.
    pub fn load(&mut self, segment: u8, rows: Vec<(KeyHash, Range)>) {
        let (first, last) = file::bounds(segment);
        let old: Vec<KeyHash> = self.rows.range(first..=last).map(|(start, _)| *start).collect();
        for start in old {
            self.rows.remove(&start);
        }
        self.rows.extend(rows);
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

    /// The ranges of a segment.
    pub fn segment(&self, segment: u8) -> impl Iterator<Item = (KeyHash, &Range)> {
        let (first, last) = file::bounds(segment);
        self.rows.range(first..=last).map(|(start, range)| (*start, range))
    }

    /// The first points of all ranges.
    pub fn starts(&self) -> Vec<KeyHash> {
        self.rows.keys().copied().collect()
    }

    /// The range that begins at a point.
    pub fn get(&self, start: KeyHash) -> Option<&Range> {
        self.rows.get(&start)
    }

    /// The range that begins at a point, to change.
    pub fn get_mut(&mut self, start: KeyHash) -> Option<&mut Range> {
        self.rows.get_mut(&start)
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
        if busy || self.segment(file::segment_of(at)).count() >= file::MAX_ROWS {
            return false;
        }
        let second = *range;
        if let Some(first) = self.rows.get_mut(&start) {
            first.last = KeyHash(at.0 - 1);
        }
        self.rows.insert(at, second);
        true
    }

    /// Joins ranges that a commit made alike: the same owner, number and history, and nothing wanted with them.
    pub fn join(&mut self, segment: u8) {
        let starts: Vec<KeyHash> = self.segment(segment).map(|(start, _)| start).collect();
        for pair in starts.windows(2).rev() {
            let (Some(left), Some(right)) = (self.rows.get(&pair[0]), self.rows.get(&pair[1])) else { continue };
            if (Range { last: left.last, ..*right }) == *left {
                let last = right.last;
                self.rows.remove(&pair[1]);
                if let Some(left) = self.rows.get_mut(&pair[0]) {
                    left.last = last;
                }
            }
        }
    }

    /// The ranges of an owner.
    pub fn of_owner(&self, owner: u32) -> Vec<KeyHash> {
        self.iter().filter(|(_, range)| range.owner == owner).map(|(start, _)| start).collect()
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
        table.get_mut(KeyHash(0x20)).unwrap().lost = 9;
        table.join(0);
        assert_eq!(table.len(), 257, "what differs is not joined");
        table.get_mut(KeyHash(0x20)).unwrap().lost = 0;
        table.join(0);
        assert_eq!((table.len(), table.get(KeyHash(0)).unwrap().last), (256, file::bounds(0).1));
        table.get_mut(KeyHash(0)).unwrap().holder = Holder::Committing;
        assert!(!table.cut(KeyHash(0x10)));
    }
}
