//! F10: tombstones live for ten days. One look through the store's groups, step by step.
//!
//! Cells are stamped by versions and sequence numbers, which say nothing of time (F1), so the store marks each tombstone with
//! the wall clock of the first look that sees it; a look removes those that were marked long enough ago. A write that is late by
//! more than that would be new again: an unregistered client would have a copy at its matcher, a collected id its row.

use crate::mutant::Mutant;
use crate::rows::{MATCHER, REGISTRAR, SCRATCH};
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
    groups: Vec<&'static [u8]>,
    from: Bytes,
}

impl Sweep {
    /// A look that begins now and removes what was seen so long ago.
    pub fn new(now: Wall, keep: Duration, mutant: Option<Mutant>) -> Sweep {
        let keep = if mutant == Some(Mutant::TombstonesForgotten) { Duration::ZERO } else { keep };
        let seen = now.millis().max(1);
        let before = seen.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        Sweep { seen, before, groups: vec![SCRATCH, MATCHER, REGISTRAR], from: Bytes::new() }
    }

    /// What the store is to do next; `None` when the look is over.
    pub fn step(&self) -> Option<v1::StoreCollect> {
        let group = Bytes::from_static(self.groups.last()?);
        Some(v1::StoreCollect {
            from: self.from.clone(),
            group,
            seen: self.seen,
            before: self.before,
            ..Default::default()
        })
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

    fn walk(mut sweep: Sweep, nexts: &[&'static [u8]]) -> Vec<v1::StoreCollect> {
        let mut steps = Vec::new();
        for next in nexts {
            steps.extend(sweep.step());
            sweep.done(v1::StoreCollected { removed: 0, next: Bytes::from_static(next) });
        }
        assert_eq!(sweep.step(), None);
        steps
    }

    #[test]
    fn f10_a_look_goes_through_every_group_to_its_end() {
        let day = Duration::from_secs(24 * 3_600);
        let now = Wall(1_700_000_000_000_000);
        let steps = walk(Sweep::new(now, 10 * day, None), &[b"further", b"", b"", b""]);
        let at = |step: &v1::StoreCollect| (step.group.clone(), step.from.clone());
        let bytes = |name: &'static [u8]| Bytes::from_static(name);
        let expected = [(REGISTRAR, &b""[..]), (REGISTRAR, b"further"), (MATCHER, b""), (SCRATCH, b"")];
        assert_eq!(steps.iter().map(at).collect::<Vec<_>>(), expected.map(|(group, from)| (bytes(group), bytes(from))));
        let ten_days = 10 * 24 * 3_600 * 1_000;
        assert!(steps.iter().all(|step| (step.seen, step.before) == (now.millis(), now.millis() - ten_days)));
        // Its mutant: what was seen once goes with the next look.
        let hasty = Sweep::new(now, 10 * day, Some(Mutant::TombstonesForgotten)).step().unwrap();
        assert_eq!(hasty.before, hasty.seen);
        // A clock that stands at its beginning removes nothing.
        assert_eq!(Sweep::new(Wall(0), day, None).step().unwrap().before, 0);
    }
}
