//! Automatic black-listing (rule I, §3.3.1 of the paper): requests whose answers change with nearly every read.
//!
//! A fast read that fails costs 1 + N executions where a replicated one costs N. So it does not pay once more than
//! 1 − 1/N of all reads are transitions.

use crate::sketch::Sketch;
use tidings_base::bounded::BoundedMap;

/// The fewest reads that decide.
const WINDOW: u32 = 16;
/// Older reads count half as much after this many.
const LONGEST_WINDOW: u32 = 64;
/// The most requests that are watched. Only such as have changed are; whoever is forgotten is watched anew.
const MOST_WATCHED: usize = 65_536;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is black-listed.
    Listed,
    /// It is taken off the list: its answers have settled.
    Released,
}

#[derive(Debug)]
pub(super) struct Lists {
    replicas: u64,
    watched: BoundedMap<Sketch, Window>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    reads: u32,
    transitions: u32,
}

impl Window {
    fn changes_too_often(self, replicas: u64) -> bool {
        u64::from(self.transitions) * replicas > u64::from(self.reads) * (replicas - 1)
    }
}

impl Lists {
    pub(super) fn new(replicas: u16) -> Lists {
        Lists { replicas: u64::from(replicas.max(1)), watched: BoundedMap::new(MOST_WATCHED) }
    }

    /// Counts a read. A black-listed request goes through windows of probation: all its reads are replicated, so that
    /// transitions are seen as before, and one window with few of them is enough to be released.
    pub(super) fn count(&mut self, key: &Sketch, transition: bool, black: bool) -> Option<Verdict> {
        if self.watched.get(key).is_none() {
            if !transition && !black {
                return None;
            }
            self.watched.insert(*key, Window::default());
        }
        let window = self.watched.get(key)?;
        window.reads += 1;
        window.transitions += u32::from(transition);
        if window.reads < WINDOW {
            return None;
        }
        let often = window.changes_too_often(self.replicas);
        if black || often {
            *window = Window::default();
        } else if window.reads >= LONGEST_WINDOW {
            *window = Window { reads: window.reads / 2, transitions: window.transitions / 2 };
        }
        match (black, often) {
            (false, true) => Some(Verdict::Listed),
            (true, false) => Some(Verdict::Released),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Sketch = Sketch([1; 16]);

    #[test]
    fn only_what_changes_with_nearly_every_read_is_listed() {
        let mut lists = Lists::new(4);
        assert!((0..200).all(|read| lists.count(&KEY, read % 3 != 0, false).is_none()), "two of three do not exceed");
        let mut lists = Lists::new(4);
        let verdicts: Vec<_> = (0..16).map(|_| lists.count(&KEY, true, false)).collect();
        assert_eq!(verdicts.iter().position(Option::is_some), Some(15), "sixteen reads decide, not fewer");
        assert_eq!(verdicts[15], Some(Verdict::Listed));
    }

    #[test]
    fn what_has_settled_is_released_after_one_window() {
        let mut lists = Lists::new(4);
        let mut verdicts = (0..48).map(|read| lists.count(&KEY, read < 32, true));
        assert!(verdicts.by_ref().take(47).all(|verdict| verdict.is_none()));
        assert_eq!(verdicts.next(), Some(Some(Verdict::Released)));
    }
}
