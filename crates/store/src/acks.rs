//! What one consumer group has acknowledged of a topic: a floor, and runs above it.

use std::collections::BTreeMap;

/// How far above its floor a group may acknowledge, and so how far ahead entries are delivered: it bounds what must be
/// remembered while one entry is stuck.
pub const ACK_WINDOW: u64 = 8192;

/// A set of numbers: everything up to the floor, and runs above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    floor: u64,
    /// First to last of each run; no run touches another or the floor.
    runs: BTreeMap<u64, u64>,
}

impl Acks {
    /// Everything up to `floor`.
    pub fn up_to(floor: u64) -> Acks {
        Acks { floor, runs: BTreeMap::new() }
    }

    /// Every number up to this one is acknowledged.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether the number is acknowledged.
    pub fn contains(&self, number: u64) -> bool {
        number <= self.floor || self.runs.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// Acknowledges one number; whether that was new.
    pub fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let mut first = number;
        let mut last = number;
        if let Some((start, end)) = self.runs.range(..number).next_back().map(|(s, e)| (*s, *e))
            && end + 1 == number
        {
            first = start;
        }
        if let Some(end) = self.runs.remove(&(number + 1)) {
            last = end;
        }
        if first == self.floor + 1 {
            self.runs.remove(&first);
            self.floor = last;
        } else {
            self.runs.insert(first, last);
        }
        true
    }

    /// Acknowledges everything up to `floor`.
    pub fn raise(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        let above = self.runs.split_off(&(floor + 1));
        // A run that begins at or below the floor may reach beyond it.
        if let Some((_, last)) = self.runs.last_key_value() {
            self.floor = self.floor.max(*last);
        }
        self.runs = above;
        if let Some(last) = self.runs.remove(&(self.floor + 1)) {
            self.floor = last;
        }
    }

    /// The smallest number at or above `from` that is not acknowledged.
    pub fn next_open(&self, from: u64) -> u64 {
        let from = from.max(self.floor + 1);
        match self.runs.range(..=from).next_back() {
            Some((_, last)) if from <= *last => last + 1,
            _ => from,
        }
    }

    /// The runs as gaps and lengths, for the stored form.
    pub fn runs(&self) -> Vec<u64> {
        let mut at = self.floor;
        let mut out = Vec::with_capacity(self.runs.len() * 2);
        for (first, last) in &self.runs {
            out.extend([first - at, last - first + 1]);
            at = *last;
        }
        out
    }

    /// Reads the stored form; `None` if it is not one.
    pub fn from_runs(floor: u64, runs: &[u64]) -> Option<Acks> {
        let mut acks = Acks::up_to(floor);
        let mut at = floor;
        for pair in runs.chunks(2) {
            let [gap, length] = pair else { return None };
            if *gap < 2 || *length == 0 {
                return None;
            }
            let first = at.checked_add(*gap)?;
            at = first.checked_add(length - 1)?;
            acks.runs.insert(first, at);
        }
        Some(acks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Raise(u64),
    }

    proptest! {
        /// The reference: a plain set.
        #[test]
        fn acks_agree_with_a_plain_set(steps in proptest::collection::vec(
            prop_oneof![9 => (1u64..40).prop_map(Step::Insert), 1 => (0u64..40).prop_map(Step::Raise)], 0..60)
        ) {
            let mut acks = Acks::default();
            let mut set = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(n) => prop_assert_eq!(acks.insert(n), set.insert(n)),
                    Step::Raise(n) => {
                        acks.raise(n);
                        set.extend(1..=n);
                    }
                }
                let floor = (1..).find(|n| !set.contains(n)).unwrap() - 1;
                prop_assert_eq!(acks.floor(), floor);
                for n in 1..45 {
                    prop_assert_eq!(acks.contains(n), set.contains(&n));
                    prop_assert_eq!(acks.next_open(n), (n..).find(|m| !set.contains(m)).unwrap());
                }
                prop_assert_eq!(Acks::from_runs(acks.floor(), &acks.runs()), Some(acks.clone()));
            }
        }
    }
}
