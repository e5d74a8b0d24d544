//! Where the living records stand: runs of consecutive records, with a mark every few kilobytes.
//!
//! Memory is bounded by the log's length on disk: at most 16 bytes for every [`MARK_BYTES`] (0.4 %), 256 KiB for a
//! full segment of 64 MiB.

use std::collections::VecDeque;

/// A mark is kept for at least this many bytes of records; a read skips at most this many plus one record.
pub(crate) const MARK_BYTES: u32 = 4096;

/// Consecutive records, one after the other in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The segment.
    pub sequence: u64,
    /// The index of the first record.
    pub first: u64,
    /// The index after the last.
    pub next: u64,
    /// Where the first record begins.
    pub start: u32,
    /// Where the last record ended when the run was written; a truncated run ends earlier.
    pub end: u32,
    /// Where some later records begin, in order.
    pub marks: Vec<(u64, u32)>,
}

impl Run {
    /// An empty run that begins here.
    pub fn new(sequence: u64, first: u64, start: u32) -> Run {
        Run { sequence, first, next: first, start, end: start, marks: Vec::new() }
    }

    /// Adds the record `next`, which begins at `end` and ends at `end_of_record`.
    pub fn push(&mut self, end_of_record: u32) {
        self.mark(self.next, self.end);
        self.next += 1;
        self.end = end_of_record;
    }

    fn mark(&mut self, index: u64, offset: u32) {
        let latest = self.marks.last().map_or(self.start, |mark| mark.1);
        if offset - latest >= MARK_BYTES {
            self.marks.push((index, offset));
        }
    }

    /// The nearest known place at or before a record.
    pub fn nearest(&self, index: u64) -> (u64, u32) {
        let after = self.marks.partition_point(|mark| mark.0 <= index);
        if after == 0 { (self.first, self.start) } else { self.marks[after - 1] }
    }
}

/// One step in the life of the runs, in the order of the records on disk.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Records were added at the end.
    Added(Run),
    /// Records from this index on are gone.
    Truncated(u64),
    /// Records before this index are gone.
    Purged(u64),
    /// All records are gone.
    Reset,
}

/// All runs, in the order of their indices and also of their places on disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    runs: VecDeque<Run>,
    /// Whether the last run may grow: nothing else was written after it.
    open: bool,
}

impl Runs {
    /// Takes one step.
    pub fn apply(&mut self, step: Step) {
        match step {
            Step::Added(run) => self.add(run),
            Step::Truncated(next) => self.truncate(next),
            Step::Purged(first) => self.purge(first),
            Step::Reset => self.runs.clear(),
        }
    }

    fn add(&mut self, run: Run) {
        let grows = self.open
            && self
                .runs
                .back()
                .is_some_and(|last| last.sequence == run.sequence && last.next == run.first && last.end == run.start);
        match self.runs.back_mut() {
            Some(last) if grows => {
                last.mark(run.first, run.start);
                for (index, offset) in run.marks {
                    last.mark(index, offset);
                }
                last.next = run.next;
                last.end = run.end;
            }
            _ => self.runs.push_back(run),
        }
        self.open = true;
    }

    fn truncate(&mut self, next: u64) {
        self.open = false;
        while self.runs.back().is_some_and(|run| run.first >= next) {
            self.runs.pop_back();
        }
        if let Some(run) = self.runs.back_mut() {
            run.next = run.next.min(next);
            while run.marks.last().is_some_and(|mark| mark.0 >= next) {
                run.marks.pop();
            }
        }
    }

    fn purge(&mut self, first: u64) {
        self.open = false;
        while self.runs.front().is_some_and(|run| run.next <= first) {
            self.runs.pop_front();
        }
    }

    /// The oldest segment that holds a living record.
    pub fn oldest_segment(&self) -> Option<u64> {
        self.runs.front().map(|run| run.sequence)
    }

    /// The first index that has a place.
    #[cfg(test)]
    pub fn first(&self) -> Option<u64> {
        self.runs.front().map(|run| run.first)
    }

    /// The first record of the newest ones that take no more than `bytes` on disk, to the next mark, or the one after the
    /// last; `None` if there are none.
    pub fn first_within(&self, bytes: u64) -> Option<u64> {
        let (mut left, mut first) = (bytes, self.runs.back()?.next);
        for run in self.runs.iter().rev() {
            let size = u64::from(run.end - run.start);
            if size > left {
                let inside = run.marks.iter().find(|mark| u64::from(run.end - mark.1) <= left);
                return Some(inside.map_or(first, |mark| mark.0));
            }
            left -= size;
            first = run.first;
        }
        Some(first)
    }

    /// The runs that hold records of `from..to`, in order.
    pub fn covering(&self, from: u64, to: u64) -> impl Iterator<Item = &Run> {
        let start = self.runs.partition_point(|run| run.next <= from);
        self.runs.range(start..).take_while(move |run| run.first < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sequence: u64, first: u64, start: u32, records: u32, size: u32) -> Run {
        let mut run = Run::new(sequence, first, start);
        for i in 1..=records {
            run.push(start + i * size);
        }
        run
    }

    #[test]
    fn runs_that_touch_become_one_and_keep_sparse_marks() {
        let mut runs = Runs::default();
        for i in 0..100 {
            runs.apply(Step::Added(run(1, 1 + i * 10, 4096 + i as u32 * 1000, 10, 100)));
        }
        let all: Vec<&Run> = runs.covering(1, 1001).collect();
        assert_eq!(all.len(), 1);
        assert!(all[0].marks.len() <= 100_000 / MARK_BYTES as usize, "{} marks", all[0].marks.len());
        let (index, offset) = all[0].nearest(500);
        assert!(index <= 500 && offset == 4096 + (index as u32 - 1) * 100);
        assert!(4096 + 499 * 100 - offset <= MARK_BYTES + 1000);
    }

    #[test]
    fn the_newest_bytes_begin_at_a_mark() {
        let mut runs = Runs::default();
        assert_eq!(runs.first_within(1 << 20), None);
        runs.apply(Step::Added(run(1, 1, 4096, 100, 1_000)));
        runs.apply(Step::Added(run(2, 101, 4096, 100, 1_000)));
        assert_eq!((runs.first_within(200_000), runs.first_within(199_999)), (Some(1), Some(6)));
        assert_eq!((runs.first_within(100_000), runs.first_within(99_999)), (Some(101), Some(106)));
        let within = runs.first_within(150_000).unwrap();
        assert!((51..=51 + 5).contains(&within), "{within}");
        assert_eq!(runs.first_within(900), Some(201), "not even the last");
    }

    #[test]
    fn truncation_purge_and_reset_leave_only_what_lives() {
        let mut runs = Runs::default();
        runs.apply(Step::Added(run(1, 1, 4096, 10, 100)));
        runs.apply(Step::Added(run(2, 11, 4096, 10, 100)));
        runs.apply(Step::Truncated(6));
        runs.apply(Step::Added(run(2, 6, 5200, 3, 100)));
        let spans: Vec<_> = runs.covering(0, 100).map(|r| (r.sequence, r.first, r.next)).collect();
        assert_eq!(spans, [(1, 1, 6), (2, 6, 9)]);
        runs.apply(Step::Purged(6));
        assert_eq!((runs.oldest_segment(), runs.first()), (Some(2), Some(6)));
        runs.apply(Step::Reset);
        assert_eq!(runs.oldest_segment(), None);
    }
}
