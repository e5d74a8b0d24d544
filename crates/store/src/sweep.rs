//! What the store remembers of cells that were deleted goes after a while: one look through some groups, step by step.
//!
//! Cells are stamped by whoever writes them, with numbers that need not say anything of time. So the store marks each tombstone
//! with the wall clock of the first look that sees it, and a later look removes those that were marked long enough ago. A write
//! that is late by more than that would be new again.

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
    pub fn new(now: Wall, keep: Duration, groups: impl IntoIterator<Item = Bytes>) -> Sweep {
        let seen = now.millis().max(1);
        let before = seen.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        Sweep { seen, before, groups: groups.into_iter().collect(), from: Bytes::new() }
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

    const DAY: Duration = Duration::from_secs(24 * 3_600);

    #[test]
    fn a_look_goes_through_every_group_to_its_end() {
        let now = Wall(1_700_000_000_000_000);
        let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
        let mut sweep = Sweep::new(now, 10 * DAY, [one.clone(), two.clone()]);
        let mut steps = Vec::new();
        for next in [&b"further"[..], b"", b""] {
            steps.extend(sweep.step());
            sweep.done(v1::StoreCollected { removed: 0, next: Bytes::from_static(next) });
        }
        assert_eq!(sweep.step(), None);
        let at: Vec<(Bytes, &[u8])> = steps.iter().map(|step| (step.group.clone(), &step.from[..])).collect();
        assert_eq!(at, [(two.clone(), &b""[..]), (two, b"further"), (one, b"")]);
        let ten_days = 10 * 24 * 3_600 * 1_000;
        assert!(steps.iter().all(|step| (step.seen, step.before) == (now.millis(), now.millis() - ten_days)));
    }

    #[test]
    fn a_clock_that_stands_at_its_beginning_removes_nothing() {
        assert_eq!(Sweep::new(Wall(0), DAY, [Bytes::new()]).step().unwrap().before, 0);
    }
}
