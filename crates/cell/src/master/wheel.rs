//! A timer wheel: very many coarse timers, each a slot's entry and nothing more.

use std::fmt;
use tidings_base::Mono;

/// How many slots there are; what is due later waits in the last one and is looked at again.
const SLOTS: usize = 1_024;
/// How long a slot is, in nanoseconds: 64 ms, so that the wheel spans 65 s, more than the longest lease.
const TICK: u64 = 64_000_000;

/// Entries by the time at which they want to be looked at. Never early by more than the wheel's span forces, late by
/// a tick at most; the owner of an entry decides anew when it comes up, so stale entries are harmless.
#[derive(Clone)]
pub(super) struct Wheel<T> {
    slots: Vec<Vec<T>>,
    /// A bit for each slot with entries.
    filled: [u64; SLOTS / 64],
    /// Every slot before this tick is empty.
    tick: u64,
    len: usize,
}

/// Without the empty slots: models tell states apart by what they print.
impl<T: fmt::Debug> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = self.slots.iter().enumerate().filter(|(_, entries)| !entries.is_empty());
        f.debug_map().entries(filled).entry(&"tick", &self.tick).finish()
    }
}

impl<T> Wheel<T> {
    pub(super) fn new() -> Wheel<T> {
        Wheel { slots: (0..SLOTS).map(|_| Vec::new()).collect(), filled: [0; SLOTS / 64], tick: 0, len: 0 }
    }

    /// Puts an entry in, to come up at `at`.
    pub(super) fn put(&mut self, now: Mono, at: Mono, entry: T) {
        if self.len == 0 {
            self.tick = self.tick.max(now.0 / TICK);
        }
        let tick = at.0.div_ceil(TICK).clamp(self.tick, self.tick + SLOTS as u64 - 1);
        let slot = (tick % SLOTS as u64) as usize;
        self.slots[slot].push(entry);
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.len += 1;
    }

    /// Takes the entries of one slot that is due; empty when none is.
    pub(super) fn pop_due(&mut self, now: Mono) -> Vec<T> {
        match self.next_filled() {
            Some(tick) if tick * TICK <= now.0 => {
                let slot = (tick % SLOTS as u64) as usize;
                self.tick = tick;
                self.filled[slot / 64] &= !(1 << (slot % 64));
                let due = std::mem::take(&mut self.slots[slot]);
                self.len -= due.len();
                due
            }
            _ => {
                self.tick = self.tick.max(now.0 / TICK);
                Vec::new()
            }
        }
    }

    /// When the next entry comes up.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.next_filled().map(|tick| Mono(tick * TICK))
    }

    fn next_filled(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let first = (self.tick % SLOTS as u64) as usize;
        let words = self.filled.len();
        for step in 0..=words {
            let word = (first / 64 + step) % words;
            let mut bits = self.filled[word];
            if step == 0 {
                bits &= u64::MAX << (first % 64);
            } else if step == words {
                bits &= !(u64::MAX << (first % 64));
            }
            if bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                return Some(self.tick + ((slot + SLOTS - first) % SLOTS) as u64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Seeded;

    #[test]
    fn entries_come_up_once_and_never_early_within_the_span() {
        let mut rng = Seeded::new(3);
        let mut wheel = Wheel::new();
        let mut now = Mono(rng.below(1 << 40));
        let mut waiting = std::collections::BTreeMap::new();
        for id in 0..5_000u64 {
            let at = Mono(now.0 + rng.below(60_000_000_000));
            wheel.put(now, at, id);
            waiting.insert(id, at);
            now = Mono(now.0 + rng.below(200_000_000));
            loop {
                let due = wheel.pop_due(now);
                if due.is_empty() {
                    break;
                }
                for id in due {
                    let at = waiting.remove(&id).expect("once");
                    assert!(at <= now, "early");
                }
            }
            let overdue = waiting.values().any(|at| at.0 + TICK <= now.0);
            assert!(!overdue, "late");
            assert_eq!(wheel.deadline().is_some(), !waiting.is_empty());
        }
    }

    #[test]
    fn what_is_beyond_the_span_comes_up_early_to_be_put_in_again() {
        let mut wheel = Wheel::new();
        wheel.put(Mono(0), Mono::NEVER, 1);
        assert!(wheel.pop_due(Mono(TICK * 1_022)).is_empty());
        assert_eq!(wheel.pop_due(Mono(TICK * 1_023)), [1]);
        assert_eq!(wheel.deadline(), None);
    }
}
