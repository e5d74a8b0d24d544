//! A partition's log of changes with pre-images, bounded in time and size (R4).

use super::Options;
use crate::names::Position;
use crate::record::Record;
use std::collections::VecDeque;
use std::sync::Arc;
use tidings_base::Mono;
use tidings_predicate::Key;

/// One change of one record.
#[derive(Clone, Debug)]
pub(super) struct Changed {
    pub position: Position,
    pub key: Key,
    /// What was there before; none if nothing was.
    pub before: Option<Arc<Record>>,
    /// What is there now: a record, or the mark of its deletion.
    pub after: Arc<Record>,
    pub at: Mono,
}

impl Changed {
    fn size(&self) -> usize {
        // The key twice and the two records; what stands around them is some hundred bytes.
        128 + self.after.size() + self.before.as_ref().map_or(0, |before| before.size())
    }
}

/// All changes after `start`, in order.
#[derive(Debug, Default)]
pub(super) struct Log {
    start: Position,
    changes: VecDeque<Changed>,
    bytes: usize,
}

impl Log {
    /// An empty log that goes on from a position.
    pub fn after(start: Position) -> Log {
        Log { start, ..Log::default() }
    }

    pub fn push(&mut self, change: Changed) {
        self.bytes += change.size();
        self.changes.push_back(change);
    }

    /// Lets go of what is beyond the bounds.
    pub fn trim(&mut self, now: Mono, options: &Options) {
        while let Some(first) = self.changes.front() {
            let old = now.since(first.at) > options.log_time;
            if !old && self.changes.len() <= options.log_changes && self.bytes <= options.log_bytes {
                return;
            }
            self.start = first.position;
            self.bytes -= first.size();
            self.changes.pop_front();
        }
    }

    /// R4: the mark of a deletion at this position is gone, and nobody learns of it by looking: whoever was there before begins anew.
    pub fn let_go(&mut self, mark: Position) {
        let gone = self.changes.partition_point(|change| change.position <= mark);
        self.bytes -= self.changes.drain(..gone).map(|change| change.size()).sum::<usize>();
        self.start = self.start.max(mark);
    }

    /// How many changes are here.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything after a position is here.
    pub fn reaches(&self, position: Position) -> bool {
        position >= self.start
    }

    /// The change at a position.
    pub fn find(&self, position: Position) -> Option<&Changed> {
        let at = self.changes.binary_search_by_key(&position, |change| change.position).ok()?;
        self.changes.get(at)
    }

    /// Changes after a position, in order.
    pub fn since(&self, position: Position) -> impl Iterator<Item = &Changed> {
        let at = self.changes.partition_point(|change| change.position <= position);
        self.changes.range(at..)
    }
}
