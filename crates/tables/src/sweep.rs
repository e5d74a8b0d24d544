//! What the store remembers of rows that were deleted goes after a while: one look through the groups of tables, step by step.
//!
//! Every outcome that was acknowledged and every mark of a deletion that was collected leaves a tombstone, stamped with a position,
//! which says nothing of time. So the store marks each with the wall clock of the first look that sees it, and a later look
//! removes it. A commit that is late by more than that would be new again: its owner may hold the fence that it was made under.

use crate::names::TableId;
use crate::rows;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::Wall;
use tidings_wire::v1;

/// One look.
#[derive(Clone, Debug)]
pub struct Sweep {
    seen: u64,
    before: u64,
    /// Groups that are still to be looked through, the present one last.
    groups: Vec<Bytes>,
    from: Bytes,
}

impl Sweep {
    /// A look that begins now and removes what was seen so long ago.
    pub fn new(now: Wall, keep: Duration, tables: impl IntoIterator<Item = TableId>) -> Sweep {
        let seen = now.millis().max(1);
        let before = seen.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        Sweep { seen, before, groups: tables.into_iter().map(rows::group).collect(), from: Bytes::new() }
    }

    /// What the store is to do next; `None` when the look is over.
    pub fn step(&self) -> Option<v1::StoreCollect> {
        let (group, from) = (self.groups.last()?.clone(), self.from.clone());
        Some(v1::StoreCollect { from, group, seen: self.seen, before: self.before, ..Default::default() })
    }

    /// It has done so.
    pub fn done(&mut self, step: v1::StoreCollected) {
        if step.next.is_empty() {
            self.groups.pop();
        }
        self.from = step.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_goes_through_every_table_to_its_end() {
        let now = Wall(1_700_000_000_000_000);
        let mut sweep = Sweep::new(now, Duration::from_secs(60), [TableId(1), TableId(2)]);
        let mut steps = Vec::new();
        for next in [&b"further"[..], b"", b""] {
            steps.extend(sweep.step());
            sweep.done(v1::StoreCollected { removed: 0, next: Bytes::from_static(next) });
        }
        assert_eq!(sweep.step(), None);
        let at: Vec<(Bytes, &[u8])> = steps.iter().map(|step| (step.group.clone(), &step.from[..])).collect();
        let (one, two) = (rows::group(TableId(1)), rows::group(TableId(2)));
        assert_eq!(at, [(two.clone(), &b""[..]), (two, b"further"), (one, b"")]);
        assert!(steps.iter().all(|step| (step.seen, step.before) == (now.millis(), now.millis() - 60_000)));
    }
}
