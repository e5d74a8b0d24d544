//! R12: which numbers of a session stand for no open handle any more. What is agreed to be closed is not rebuilt from its
//! token.

use super::sessions::insert_at;

/// So many ranges are kept for a session. Between two of them stands a handle that is open, of which there are at most
/// 4,096, or a call that is not answered yet, of which there are at most 1,024.
const MAX_RANGES: usize = 8_192;

/// Numbers in ranges, both ends included: in order, and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Closed(pub Vec<(u64, u64)>);

impl Closed {
    pub(super) fn add(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        // Those that overlap it or stand right beside it become one with it.
        let from = self.0.partition_point(|range| range.1 < first.saturating_sub(1));
        let to = self.0.partition_point(|range| range.0 <= last.saturating_add(1));
        if from == to {
            insert_at(&mut self.0, from, (first, last));
        } else {
            self.0[from] = (first.min(self.0[from].0), last.max(self.0[to - 1].1));
            self.0.drain(from + 1..to);
        }
        // No client of ours comes here; for another one, what stands between the lowest two counts as closed.
        if self.0.len() > MAX_RANGES {
            let (_, last) = self.0.remove(1);
            self.0[0].1 = last;
        }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let at = self.0.partition_point(|range| range.1 < number);
        self.0.get(at).is_some_and(|range| range.0 <= number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together() {
        let mut closed = Closed::default();
        for (first, last) in [(5, 5), (9, 10), (1, 2), (7, 6), (4, 4)] {
            closed.add(first, last);
        }
        assert_eq!(closed.0, [(1, 2), (4, 5), (9, 10)]);
        closed.add(3, 3);
        closed.add(11, 20);
        assert_eq!(closed.0, [(1, 5), (9, 20)]);
        closed.add(0, 30);
        assert_eq!(closed.0, [(0, 30)]);
        closed.add(u64::MAX, u64::MAX);
        assert!(closed.contains(30) && !closed.contains(31) && closed.contains(u64::MAX));
    }

    #[test]
    fn it_agrees_with_a_set_of_numbers() {
        let mut random = tidings_base::Seeded::new(7);
        let (mut closed, mut set) = (Closed::default(), std::collections::BTreeSet::new());
        for _ in 0..300 {
            let first = random.below(200);
            let last = first + random.below(4);
            closed.add(first, last);
            set.extend(first..=last);
            assert!((0..210).all(|number| closed.contains(number) == set.contains(&number)));
            assert!(closed.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", closed.0);
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut closed = Closed::default();
        for number in 0..2 * MAX_RANGES as u64 {
            closed.add(3 * number, 3 * number);
        }
        assert_eq!(closed.0.len(), MAX_RANGES);
        assert!(closed.contains(1) && !closed.contains(6 * MAX_RANGES as u64 - 4));
    }
}
