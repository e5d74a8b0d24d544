//! Twenty entries of 28 bytes side by side: what a lookup reads.

use crate::sketch::Sketch;

/// Slots of a bucket. One of them, a twentieth of the table, is where new keys begin once a bucket is full (rule L): a
/// flood of requests that never come again replaces itself there, and nothing that is used.
pub(super) const SLOTS: usize = 20;
const PROBATION: usize = SLOTS - 1;

/// A word is a place (61 bits), whether the entry was used since it was last looked at, and two list bits, of which zero
/// means an empty slot.
const LIST_MASK: u64 = 0b11;
const PLAIN: u64 = 1;
const BLACK: u64 = 3;
const USED: u64 = 1 << 2;
const PLACE_SHIFT: u32 = 3;

/// What is remembered of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) sketch: Sketch,
    pub(super) place: u64,
    pub(super) black: bool,
}

#[derive(Clone)]
pub(super) struct Bucket {
    words: [u64; SLOTS],
    tags: [u32; SLOTS],
    sketches: [[u8; 16]; SLOTS],
}

impl Bucket {
    pub(super) const EMPTY: Bucket = Bucket { words: [0; SLOTS], tags: [0; SLOTS], sketches: [[0; 16]; SLOTS] };

    pub(super) fn find(&self, tag: u32) -> Option<usize> {
        (0..SLOTS).find(|at| self.tags[*at] == tag && self.words[*at] != 0)
    }

    pub(super) fn row(&self, at: usize) -> Row {
        let word = self.words[at];
        Row { sketch: Sketch(self.sketches[at]), place: word >> PLACE_SHIFT, black: word & LIST_MASK == BLACK }
    }

    /// Writes a row over what is there; `used` is kept of an entry of the same key.
    pub(super) fn put(&mut self, at: usize, tag: u32, row: Row) {
        let used = if self.tags[at] == tag { self.words[at] & USED } else { 0 };
        self.tags[at] = tag;
        self.sketches[at] = row.sketch.0;
        self.words[at] = row.place << PLACE_SHIFT | used | if row.black { BLACK } else { PLAIN };
    }

    pub(super) fn clear(&mut self, at: usize) {
        self.words[at] = 0;
    }

    /// The tags and rows that are there.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u32, Row)> + '_ {
        (0..SLOTS).filter(|at| self.words[*at] != 0).map(|at| (self.tags[at], self.row(at)))
    }

    pub(super) fn len(&self) -> usize {
        self.words.iter().filter(|word| **word != 0).count()
    }

    /// A slot that is empty.
    pub(super) fn free(&self) -> Option<usize> {
        self.words.iter().position(|word| *word == 0)
    }

    /// The one slot that a newcomer may take from another.
    pub(super) fn probation(&self) -> usize {
        PROBATION
    }

    /// Notes that an entry was of use. One on probation changes places with one that was not used lately.
    pub(super) fn used(&mut self, at: usize) {
        self.words[at] |= USED;
        if at != PROBATION {
            return;
        }
        let first = self.tags[at] as usize;
        // Second chances: whoever is passed over once is taken the next time, so the second round ends at the latest.
        for step in 0..2 * PROBATION {
            let other = (first + step) % PROBATION;
            if self.words[other] & USED == 0 {
                self.words.swap(at, other);
                self.tags.swap(at, other);
                self.sketches.swap(at, other);
                return;
            }
            self.words[other] &= !USED;
        }
    }
}
