//! R7: resets for those who may not know where a table is cut: its bounds are keys, and may be keys of records that are hidden.
//!
//! They hear of no partitions. If one of them begins anew all do, and their rows come as one reset of the whole table; what
//! happens meanwhile to a partition whose rows have come is told behind the last of them.
//!
//! ```text
//!   partition 1   rows ─────────▶ change (held) ─ ─ ─ ─ ─ ─┐
//!   partition 2             rows ──────── rows ─▶ (last)   ▼
//!   the client    reset first     …      reset … last   change
//! ```

use super::Event;
use super::watched::Watched;
use crate::live::From;
use crate::names::PartitionId;
use std::collections::{BTreeSet, VecDeque};

/// A reset of a whole table that is under way for one query; empty if none is.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Partitions whose rows have not all come.
    pending: BTreeSet<u32>,
    /// Partitions some of whose rows have come.
    begun: BTreeSet<u32>,
    /// What happened meanwhile: no more than may be under way, since nobody has taken it.
    held: VecDeque<(PartitionId, Event)>,
}

impl Whole {
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether something of a partition waits for the reset to end.
    pub fn holds(&self, partition: PartitionId) -> bool {
        self.held.iter().any(|(of, _)| *of == partition)
    }
}

/// What becomes of an event.
#[derive(Debug, Default)]
pub(super) struct Veiled {
    /// The client hears this now.
    pub told: Vec<(PartitionId, Event)>,
    /// These are to be installed again, for all their rows.
    pub asked: Vec<PartitionId>,
}

impl Watched {
    /// What the client hears of an event without hearing of partitions.
    pub fn veil(&mut self, partition: PartitionId, event: Event) -> Veiled {
        let Event::Reset { rows, first, last, .. } = event else {
            let mut veiled = Veiled::default();
            match self.whole.is_idle() || !matches!(event, Event::Changes(_)) {
                true => veiled.told.push((partition, event)),
                false => self.whole.held.push_back((partition, event)),
            }
            return veiled;
        };
        let mut veiled = Veiled::default();
        // Rows of this partition that came before are of another picture than those that follow.
        if self.whole.is_idle() || first && self.whole.begun.contains(&partition.number) {
            veiled.asked = self.begin_whole(partition.table, Some(partition.number));
        }
        let first = self.whole.begun.is_empty();
        self.whole.begun.insert(partition.number);
        if last {
            self.whole.pending.remove(&partition.number);
        }
        let last = self.whole.is_idle();
        veiled.told.push((partition, Event::Reset { start: None, end: None, rows, first, last }));
        if last {
            self.whole.begun.clear();
            veiled.told.extend(self.whole.held.drain(..));
        }
        veiled
    }

    /// A table was cut or joined in the middle of a reset: it begins anew.
    pub fn recut(&mut self, table: crate::names::TableId) -> Vec<PartitionId> {
        match self.whole.is_idle() {
            true => Vec::new(),
            false => self.begin_whole(table, None),
        }
    }

    /// Begins a reset, or begins it anew; those that are to be installed again, but for the one that has begun by itself.
    fn begin_whole(&mut self, table: crate::names::TableId, but: Option<u32>) -> Vec<PartitionId> {
        // Whoever has told something since is asked for everything, which holds it.
        self.whole.held.clear();
        self.whole.begun.clear();
        self.whole.pending = self.parts.keys().copied().collect();
        let mut asked = Vec::new();
        for (number, part) in self.parts.iter_mut().filter(|(number, _)| Some(**number) != but) {
            if !part.awaits_rows() {
                part.begin_anew();
                asked.push(PartitionId { table, number: *number });
            }
        }
        asked
    }
}

impl super::watched::Part {
    /// Whether the next thing that it says is all its rows.
    fn awaits_rows(&self) -> bool {
        !self.live && self.cursor.is_none() && self.begin == From::Everything
    }
}
