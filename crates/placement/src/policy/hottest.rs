//! Splits and moves what is measured to be hottest. A key above the mean is put alone on an owner; the others end
//! within a tenth of their own mean; few things move, and none twice in a row.

use super::{Policy, RangeView, Step, View};
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::KeyHash;

/// The second policy, with its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Hottest {
    /// How far above the mean of the others an owner may stay.
    pub band: f64,
    /// A move must lower the larger of the two owners' rates by this share of the mean.
    pub margin: f64,
    /// The share of ranges that one round may move (Slicer moves about 9 %).
    pub churn: f64,
    /// The most ranges an owner should have: beyond, nothing more is cut for it.
    pub most_ranges: usize,
}

impl Default for Hottest {
    fn default() -> Hottest {
        Hottest { band: 0.10, margin: 0.005, churn: 0.09, most_ranges: 150 }
    }
}

/// The picture as it will be when the steps so far are done.
struct Draft {
    ranges: BTreeMap<KeyHash, RangeView>,
    rates: BTreeMap<u32, f64>,
    /// Owners that are a key's alone.
    reserved: BTreeSet<u32>,
    steps: Vec<Step>,
    budget: usize,
}

impl Draft {
    fn new(view: &View, churn: f64) -> Draft {
        let mut rates: BTreeMap<u32, f64> = view.owners.iter().map(|owner| (owner.index, 0.0)).collect();
        for range in &view.ranges {
            if let Some(rate) = rates.get_mut(&range.owner) {
                *rate += range.rate;
            }
        }
        Draft {
            ranges: view.ranges.iter().map(|range| (range.start, range.clone())).collect(),
            rates,
            reserved: BTreeSet::new(),
            steps: Vec::new(),
            // At least a few, so that a small pool settles, too.
            budget: ((view.ranges.len() as f64 * churn) as usize).max(8),
        }
    }

    fn cut(&mut self, at: KeyHash) {
        let Some((_, range)) = self.ranges.range_mut(..=at).next_back().filter(|(start, _)| **start < at) else {
            return;
        };
        let mut right = RangeView { start: at, ..range.clone() };
        range.last = KeyHash(at.0 - 1);
        let measured: f64 = range.hot.iter().map(|(_, rate)| rate).sum();
        // What no heavy key explains is spread evenly.
        let rest = (range.rate - measured).max(0.0);
        let (left_length, right_length) = (length(range), length(&right));
        right.hot.retain(|(key, _)| *key >= at);
        range.hot.retain(|(key, _)| *key < at);
        let share = right_length / (left_length + right_length);
        right.rate = right.hot.iter().map(|(_, rate)| rate).sum::<f64>() + rest * share;
        range.rate = range.hot.iter().map(|(_, rate)| rate).sum::<f64>() + rest * (1.0 - share);
        self.ranges.insert(at, right);
        self.steps.push(Step::Cut { at });
    }

    fn go(&mut self, start: KeyHash, to: u32, isolates: bool) {
        let Some(range) = self.ranges.get_mut(&start) else { return };
        let (from, rate) = (range.owner, range.rate);
        range.owner = to;
        range.settling = true;
        *self.rates.entry(from).or_default() -= rate;
        *self.rates.entry(to).or_default() += rate;
        self.budget = self.budget.saturating_sub(1);
        self.steps.push(Step::Move { start, from, to, rate, isolates });
    }

    /// The mean of owners that are not reserved.
    fn mean(&self) -> f64 {
        let shared: Vec<f64> = self.shared().map(|(_, rate)| rate).collect();
        if shared.is_empty() { 0.0 } else { shared.iter().sum::<f64>() / shared.len() as f64 }
    }

    fn shared(&self) -> impl Iterator<Item = (u32, f64)> {
        self.rates.iter().filter(|(owner, _)| !self.reserved.contains(owner)).map(|(owner, rate)| (*owner, *rate))
    }

    fn most(&self) -> Option<(u32, f64)> {
        self.shared().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn least(&self) -> Option<(u32, f64)> {
        self.shared().min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

fn length(range: &RangeView) -> f64 {
    (range.last.0 - range.start.0) as f64 + 1.0
}

impl Hottest {
    /// Puts every key above the mean alone on an owner: heaviest first, and the mean is then that of the others.
    fn isolate(&self, draft: &mut Draft) {
        let mut keys: Vec<(KeyHash, f64)> = draft.ranges.values().flat_map(|range| range.hot.clone()).collect();
        keys.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (key, rate) in keys {
            if rate <= draft.mean() || draft.shared().count() <= 1 {
                return;
            }
            draft.cut(key);
            if key.0 < u64::MAX {
                draft.cut(KeyHash(key.0 + 1));
            }
            let Some(home) = draft.ranges.get(&key).map(|range| range.owner) else { continue };
            // It stays where it is if that owner can be its own; everything else leaves.
            let free = !draft.reserved.contains(&home) && draft.rates.contains_key(&home);
            let host = if free { Some(home) } else { draft.least().map(|(owner, _)| owner) };
            let Some(host) = host else { return };
            draft.reserved.insert(host);
            if host != home {
                draft.go(key, host, true);
            }
            if !self.clear(draft, host, key) {
                return;
            }
        }
    }

    /// Moves everything but a key away from its owner; whether the budget lasted.
    fn clear(&self, draft: &mut Draft, host: u32, key: KeyHash) -> bool {
        let others: Vec<KeyHash> = (draft.ranges.values())
            .filter(|range| range.owner == host && range.start != key)
            .map(|range| range.start)
            .collect();
        for start in others {
            let Some((to, _)) = draft.least().filter(|_| draft.budget > 0) else { return false };
            draft.go(start, to, false);
        }
        true
    }

    /// One move from the most loaded owner to the least loaded; whether there was one worth making.
    fn level(&self, draft: &mut Draft) -> bool {
        let (Some((most, high)), Some((least, low))) = (draft.most(), draft.least()) else { return false };
        let mean = draft.mean();
        if mean <= 0.0 || high <= mean * (1.0 + self.band) || most == least {
            return false;
        }
        // The ideal is half of the difference; more would only swap the two.
        let ideal = (high - low) / 2.0;
        let movable = draft.ranges.values().filter(|range| range.owner == most && !range.settling);
        let best = movable.clone().filter(|range| range.rate <= ideal && range.rate > 0.0);
        let best = best.max_by(|a, b| a.rate.total_cmp(&b.rate)).map(|range| (range.start, range.rate));
        if let Some((start, rate)) = best
            && high - (high - rate).max(low + rate) >= mean * self.margin
        {
            draft.go(start, least, false);
            return true;
        }
        // Everything that may move is too large: cut the largest between its heavy keys.
        let count = draft.ranges.values().filter(|range| range.owner == most).count();
        let largest = movable.filter(|range| !range.is_point()).max_by(|a, b| a.rate.total_cmp(&b.rate));
        match largest.map(middle) {
            Some(at) if count < self.most_ranges => {
                draft.cut(at);
                true
            }
            _ => false,
        }
    }
}

/// Where to cut a range so that about half of its load is on either side.
fn middle(range: &RangeView) -> KeyHash {
    let mut hot: Vec<(KeyHash, f64)> = range.hot.clone();
    hot.sort_by_key(|(key, _)| *key);
    let measured: f64 = hot.iter().map(|(_, rate)| rate).sum();
    if measured < range.rate / 2.0 {
        return KeyHash(range.start.0 + (range.last.0 - range.start.0) / 2 + 1);
    }
    let mut left = 0.0;
    for (key, rate) in hot {
        if left + rate > measured / 2.0 {
            // Before the key that tips the scale, or after it if it is the first.
            let at = if key > range.start { key.0 } else { key.0 + 1 };
            return KeyHash(at.clamp(range.start.0 + 1, range.last.0));
        }
        left += rate;
    }
    range.last
}

impl Policy for Hottest {
    fn plan(&self, view: &View) -> Vec<Step> {
        if view.owners.len() < 2 || view.mean() <= 0.0 {
            return Vec::new();
        }
        let mut draft = Draft::new(view, self.churn);
        self.isolate(&mut draft);
        // Each step moves or cuts; cuts are bounded by the budget as well.
        let mut steps = draft.budget * 4;
        while draft.budget > 0 && steps > 0 && self.level(&mut draft) {
            steps -= 1;
        }
        draft.steps
    }
}

#[cfg(test)]
mod tests {
    use super::super::OwnerView;
    use super::*;
    use tidings_base::Seeded;

    /// A pool under a Zipf load, measured exactly: every range's rate and its 16 heaviest keys.
    struct Pool {
        keys: Vec<(KeyHash, f64)>,
        ranges: BTreeMap<KeyHash, (KeyHash, u32, bool)>,
        owners: u32,
        moved: usize,
    }

    impl Pool {
        fn new(owners: u32, keys: usize, seed: u64) -> Pool {
            let mut rng = Seeded::new(seed).fork("zipf");
            let mut points: Vec<u64> = (0..keys).map(|_| rng.next_u64()).collect();
            points.sort_unstable();
            points.dedup();
            let mut ranks: Vec<usize> = (1..=points.len()).collect();
            rng.shuffle(&mut ranks);
            let keys = points.into_iter().zip(ranks).map(|(at, rank)| (KeyHash(at), 1e6 / (rank as f64).powf(0.99)));
            let cuts = owners * 64;
            let step = u64::MAX / u64::from(cuts);
            let ranges = (0..cuts).map(|i| {
                let start = u64::from(i) * step;
                let last = if i + 1 == cuts { u64::MAX } else { start + step - 1 };
                (KeyHash(start), (KeyHash(last), 1 + i % owners, false))
            });
            Pool { keys: keys.collect(), ranges: ranges.collect(), owners, moved: 0 }
        }

        fn view(&self) -> View {
            let mut ranges: Vec<RangeView> = Vec::with_capacity(self.ranges.len());
            let mut at = 0;
            for (start, (last, owner, settling)) in &self.ranges {
                let from = at;
                while at < self.keys.len() && self.keys[at].0 <= *last {
                    at += 1;
                }
                let mut hot = self.keys[from..at].to_vec();
                let rate = hot.iter().map(|(_, rate)| rate).sum();
                hot.sort_by(|a, b| b.1.total_cmp(&a.1));
                hot.truncate(16);
                let (start, last, owner, settling) = (*start, *last, *owner, *settling);
                ranges.push(RangeView { start, last, owner, rate, settling, hot });
            }
            let rate = |index| ranges.iter().filter(|r| r.owner == index).map(|r| r.rate).sum();
            let owners = (1..=self.owners).map(|index| OwnerView { index, rate: rate(index), virtual_nodes: 64 });
            View { owners: owners.collect(), ranges }
        }

        fn round(&mut self) -> usize {
            let steps = Hottest::default().plan(&self.view());
            self.ranges.values_mut().for_each(|range| range.2 = false);
            for step in &steps {
                match *step {
                    Step::Cut { at } => {
                        let (start, (last, owner, _)) =
                            self.ranges.range(..=at).next_back().map(|(s, r)| (*s, *r)).unwrap();
                        if start < at {
                            self.ranges.insert(start, (KeyHash(at.0 - 1), owner, false));
                            self.ranges.insert(at, (last, owner, false));
                        }
                    }
                    Step::Move { start, to, .. } => {
                        let range = self.ranges.get_mut(&start).unwrap();
                        (range.1, range.2) = (to, true);
                        self.moved += 1;
                    }
                    Step::Points { .. } => panic!("this policy moves ranges"),
                }
            }
            steps.len()
        }
    }

    #[test]
    fn hot_keys_end_alone_and_the_rest_within_a_tenth_of_its_mean() {
        for owners in [4, 16, 50] {
            let mut pool = Pool::new(owners, 50_000, 11);
            let rounds = (0..60).take_while(|_| pool.round() > 0).count();
            assert!(rounds < 60, "{owners} owners: it does not settle");
            let view = pool.view();
            let loaded = |owner: u32| view.ranges.iter().filter(move |range| range.owner == owner && range.rate > 0.0);
            let alone: BTreeSet<u32> = (1..=owners)
                .filter(|owner| loaded(*owner).count() == 1 && loaded(*owner).all(RangeView::is_point))
                .collect();
            let rest: Vec<f64> =
                view.owners.iter().filter(|owner| !alone.contains(&owner.index)).map(|owner| owner.rate).collect();
            let rest_mean = rest.iter().sum::<f64>() / rest.len() as f64;
            let worst = rest.iter().copied().fold(0.0, f64::max) / rest_mean;
            assert!(worst <= 1.101, "{owners} owners: the worst is {worst:.3} of the mean of the rest");
            let heavy = view.ranges.iter().filter(|range| range.hot.iter().any(|(_, rate)| *rate > rest_mean * 1.1));
            for range in heavy {
                assert!(alone.contains(&range.owner), "{owners} owners: a key above the mean shares its owner");
            }
            assert_eq!(pool.round(), 0, "{owners} owners: settled is settled");
        }
    }
}
