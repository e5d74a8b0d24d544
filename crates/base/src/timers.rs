//! A machine's timers: one documented enum of names in, one deadline out.

use crate::time::Mono;
use std::collections::{BTreeMap, BTreeSet};

/// The timers of one machine. `T` is that machine's enum of timer names; each name is set at most once at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timers<T: Ord> {
    by_time: BTreeSet<(Mono, T)>,
    by_name: BTreeMap<T, Mono>,
}

impl<T: Ord> Default for Timers<T> {
    fn default() -> Self {
        Timers { by_time: BTreeSet::new(), by_name: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Timers<T> {
    /// No timers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a timer, replacing an earlier setting of the same name.
    pub fn set(&mut self, timer: T, at: Mono) {
        self.cancel(&timer);
        self.by_time.insert((at, timer.clone()));
        self.by_name.insert(timer, at);
    }

    /// Cancels a timer; whether it was set.
    pub fn cancel(&mut self, timer: &T) -> bool {
        match self.by_name.remove_entry(timer) {
            Some((name, at)) => self.by_time.remove(&(at, name)),
            None => false,
        }
    }

    /// When a timer is set for, if it is.
    pub fn at(&self, timer: &T) -> Option<Mono> {
        self.by_name.get(timer).copied()
    }

    /// Takes out one timer that is due: the earliest, then the smallest name.
    pub fn pop_due(&mut self, now: Mono) -> Option<T> {
        if self.by_time.first()?.0 > now {
            return None;
        }
        let (_, timer) = self.by_time.pop_first()?;
        self.by_name.remove(&timer);
        Some(timer)
    }

    /// The earliest of all.
    pub fn deadline(&self) -> Option<Mono> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// How many are set.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u8, u64),
        Cancel(u8),
        Due(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..6, 0u64..50).prop_map(|(t, at)| Step::Set(t, at)),
            (0u8..6).prop_map(Step::Cancel),
            (0u64..50).prop_map(Step::Due),
        ]
    }

    proptest! {
        /// The reference: an unordered list that is searched.
        #[test]
        fn timers_agree_with_a_plain_list(steps in proptest::collection::vec(step(), 0..200)) {
            let mut timers = Timers::new();
            let mut list: Vec<(u64, u8)> = Vec::new();
            for step in steps {
                match step {
                    Step::Set(t, at) => {
                        timers.set(t, Mono(at));
                        list.retain(|(_, name)| *name != t);
                        list.push((at, t));
                    }
                    Step::Cancel(t) => {
                        let had = list.iter().any(|(_, name)| *name == t);
                        list.retain(|(_, name)| *name != t);
                        prop_assert_eq!(timers.cancel(&t), had);
                    }
                    Step::Due(now) => {
                        let due = list.iter().copied().filter(|(at, _)| *at <= now).min();
                        list.retain(|entry| Some(*entry) != due);
                        prop_assert_eq!(timers.pop_due(Mono(now)), due.map(|(_, name)| name));
                    }
                }
                prop_assert_eq!(timers.deadline(), list.iter().map(|(at, _)| Mono(*at)).min());
                prop_assert_eq!(timers.len(), list.len());
            }
        }
    }
}
