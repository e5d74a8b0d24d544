//! Splits and moves what is measured to be hottest. A key above the mean is put alone on an owner; the others end
//! within a tenth of their own mean; few things move, and none twice in a row.

use super::{Policy, RangeView, Step, View};
use crate::config::VIRTUAL_NODES;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::KeyHash;

/// The ring is cut into so many pieces at least, one a file.
const SEGMENTS: usize = 256;

/// The second policy, with its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Hottest {
    /// How far above the mean of the others an owner may be before something moves.
    pub band: f64,
    /// How far above it may be once something moves: well within the band, so that noise does not start it again.
    pub target: f64,
    /// A move must lower the larger of the two owners' rates by this share of the mean.
    pub margin: f64,
    /// A key that is alone stays alone down to this share of the mean, so that it does not come and go.
    pub stays_alone: f64,
    /// The share of ranges that one round may move (Slicer moves about 9 %), and merge (about 1 %).
    pub churn: f64,
    /// The share of ranges that one round may merge.
    pub merges: f64,
    /// The fewest and the most ranges an owner should have: nothing is merged below, nothing cut or taken above.
    pub ranges: (usize, usize),
}

impl Default for Hottest {
    fn default() -> Hottest {
        Hottest {
            band: 0.10,
            target: 0.05,
            margin: 0.005,
            stays_alone: 0.8,
            churn: 0.09,
            merges: 0.01,
            ranges: (50, 150),
        }
    }
}

/// A rate as a key of an ordered set: rates are never negative, and then the order of bits is that of numbers.
fn order(rate: f64) -> u64 {
    rate.max(0.0).to_bits()
}

/// The picture as it will be when the steps so far are done. Each step costs the logarithm of what there is.
struct Draft {
    ranges: BTreeMap<KeyHash, RangeView>,
    /// The ranges of each owner, by rate.
    of_owner: BTreeMap<u32, BTreeSet<(u64, KeyHash)>>,
    rates: BTreeMap<u32, f64>,
    /// Owners that are not a key's alone, by rate; and the sum of their rates.
    shared: BTreeSet<(u64, u32)>,
    sum: f64,
    /// Owners that are not looked at for levelling: a key's alone, or nothing of theirs can move.
    reserved: BTreeSet<u32>,
    steps: Vec<Step>,
    budget: usize,
}

impl Draft {
    fn new(view: &View, churn: f64) -> Draft {
        let mut draft = Draft {
            ranges: BTreeMap::new(),
            of_owner: view.owners.iter().map(|owner| (owner.index, BTreeSet::new())).collect(),
            rates: view.owners.iter().map(|owner| (owner.index, 0.0)).collect(),
            shared: BTreeSet::new(),
            sum: 0.0,
            reserved: BTreeSet::new(),
            steps: Vec::new(),
            // At least a few, so that a small pool settles, too.
            budget: ((view.ranges.len() as f64 * churn) as usize).max(8),
        };
        for range in &view.ranges {
            if let Some(rate) = draft.rates.get_mut(&range.owner) {
                *rate += range.rate;
            }
            draft.put(range.clone());
        }
        draft.shared = draft.rates.iter().map(|(owner, rate)| (order(*rate), *owner)).collect();
        draft.sum = draft.rates.values().sum();
        draft
    }

    fn put(&mut self, range: RangeView) {
        if let Some(own) = self.of_owner.get_mut(&range.owner) {
            own.insert((order(range.rate), range.start));
        }
        self.ranges.insert(range.start, range);
    }

    fn take(&mut self, start: KeyHash) -> Option<RangeView> {
        let range = self.ranges.remove(&start)?;
        if let Some(own) = self.of_owner.get_mut(&range.owner) {
            own.remove(&(order(range.rate), start));
        }
        Some(range)
    }

    fn shift(&mut self, owner: u32, by: f64) {
        let Some(rate) = self.rates.get_mut(&owner) else { return };
        let before = order(*rate);
        *rate += by;
        if self.shared.remove(&(before, owner)) {
            self.shared.insert((order(*rate), owner));
            self.sum += by;
        }
    }

    /// From now on an owner is a key's alone.
    fn reserve(&mut self, owner: u32) {
        let rate = self.rates.get(&owner).copied().unwrap_or_default();
        if self.shared.remove(&(order(rate), owner)) {
            self.sum -= rate;
        }
        self.reserved.insert(owner);
    }

    fn cut(&mut self, at: KeyHash) {
        let found = self.ranges.range(..=at).next_back().map(|(start, _)| *start).filter(|start| *start < at);
        let Some(mut left) = found.and_then(|start| self.take(start)) else { return };
        let mut right = RangeView { start: at, mergeable: false, ..left.clone() };
        left.last = KeyHash(at.0 - 1);
        let measured: f64 = left.hot.iter().map(|(_, rate)| rate).sum();
        // What no heavy key explains is spread evenly.
        let rest = (left.rate - measured).max(0.0);
        let (left_length, right_length) = (length(&left), length(&right));
        right.hot.retain(|(key, _)| *key >= at);
        left.hot.retain(|(key, _)| *key < at);
        let share = right_length / (left_length + right_length);
        right.rate = right.hot.iter().map(|(_, rate)| rate).sum::<f64>() + rest * share;
        left.rate = left.hot.iter().map(|(_, rate)| rate).sum::<f64>() + rest * (1.0 - share);
        self.put(left);
        self.put(right);
        self.steps.push(Step::Cut { at });
    }

    fn go(&mut self, start: KeyHash, to: u32, isolates: bool) {
        let Some(range) = self.take(start) else { return };
        let (from, rate) = (range.owner, range.rate);
        self.put(RangeView { owner: to, settling: true, ..range });
        self.shift(from, -rate);
        self.shift(to, rate);
        self.budget = self.budget.saturating_sub(1);
        self.steps.push(Step::Move { start, from, to, rate, isolates });
    }

    /// The mean of owners that are not reserved.
    fn mean(&self) -> f64 {
        if self.shared.is_empty() { 0.0 } else { (self.sum / self.shared.len() as f64).max(0.0) }
    }

    fn rate(&self, owner: u32) -> f64 {
        self.rates.get(&owner).copied().unwrap_or_default()
    }

    /// The least loaded owner that is not reserved and has room for another range; if none has, the least loaded of all.
    fn least(&self, room: usize) -> Option<u32> {
        let all = || self.shared.iter().map(|(_, owner)| *owner);
        all().find(|owner| self.count(*owner) < room).or_else(|| all().next())
    }

    /// An owner's ranges, heaviest first.
    fn heaviest(&self, owner: u32) -> impl Iterator<Item = &RangeView> {
        let own = self.of_owner.get(&owner).into_iter().flatten();
        own.rev().filter_map(|(_, start)| self.ranges.get(start))
    }

    fn count(&self, owner: u32) -> usize {
        self.of_owner.get(&owner).map_or(0, BTreeSet::len)
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
            if rate <= draft.mean() * self.stays_alone || draft.shared.len() <= 1 {
                return;
            }
            let Some((_, range)) = draft.ranges.range(..=key).next_back() else { continue };
            let (home, settling) = (range.owner, range.settling);
            let alone = range.is_point() && draft.heaviest(home).nth(1).is_none_or(|second| second.rate <= 0.0);
            if alone && !draft.reserved.contains(&home) {
                draft.reserve(home);
                continue;
            }
            if rate <= draft.mean() || settling {
                continue;
            }
            draft.cut(key);
            if key.0 < u64::MAX {
                draft.cut(KeyHash(key.0 + 1));
            }
            // It stays where it is if that owner can be its own; everything else leaves.
            let free = !draft.reserved.contains(&home) && draft.rates.contains_key(&home);
            let host = if free { Some(home) } else { draft.least(self.room(draft)) };
            let Some(host) = host else { return };
            draft.reserve(host);
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
        let others = draft.heaviest(host).filter(|range| range.start != key && !range.settling);
        let room = self.room(draft);
        for start in others.map(|range| range.start).collect::<Vec<_>>() {
            let Some(to) = draft.least(room).filter(|_| draft.budget > 0) else { return false };
            draft.go(start, to, false);
        }
        true
    }

    /// The most ranges of an owner. A small pool has more of them than a large one, since the ring is cut into 256 at least,
    /// and at every point of its owners.
    fn room(&self, draft: &Draft) -> usize {
        self.ranges.1.max(2 * (SEGMENTS / draft.rates.len().max(1) + VIRTUAL_NODES as usize))
    }

    /// One move from a loaded owner to the least loaded; whether there was one worth making.
    fn level(&self, draft: &mut Draft, most: u32) -> bool {
        let room = self.room(draft);
        let Some(least) = draft.least(room).filter(|least| *least != most) else { return false };
        let (high, low, mean) = (draft.rate(most), draft.rate(least), draft.mean());
        // The ideal is half of the difference; more would only swap the two.
        let ideal = (high - low) / 2.0;
        if ideal <= 0.0 {
            return false;
        }
        let fitting = draft.heaviest(most).find(|range| !range.settling && range.rate <= ideal);
        let best = fitting.filter(|range| range.rate > 0.0).map(|range| (range.start, range.rate));
        if let Some((start, rate)) = best
            && high - (high - rate).max(low + rate) >= mean * self.margin
        {
            draft.go(start, least, false);
            return true;
        }
        // Everything that may move is too large: cut the largest between its heavy keys, unless it is too large only for whom
        // had to be taken because the least loaded has no room.
        let largest = draft.heaviest(most).find(|range| !range.settling && !range.is_point());
        match largest.filter(|range| range.rate > ideal).map(middle) {
            Some(at) if draft.count(most) < room && draft.shared.first().is_some_and(|(_, first)| *first == least) => {
                draft.cut(at);
                true
            }
            _ => false,
        }
    }

    /// Levels until no owner is above the target, or nothing more can be done.
    fn level_all(&self, draft: &mut Draft) {
        let above = |draft: &Draft, by: f64| {
            draft.mean() > 0.0 && {
                let most = draft.shared.last().map_or(0.0, |(_, owner)| draft.rate(*owner));
                most > draft.mean() * (1.0 + by)
            }
        };
        if !above(draft, self.band) {
            return;
        }
        let mut stuck: BTreeSet<u32> = BTreeSet::new();
        // Each step moves or cuts; cuts are bounded by the budget as well.
        let mut steps = draft.budget * 4;
        while draft.budget > 0 && steps > 0 {
            steps -= 1;
            let most = draft.shared.iter().rev().map(|(_, owner)| *owner).find(|owner| !stuck.contains(owner));
            let Some(most) = most.filter(|most| draft.rate(*most) > draft.mean() * (1.0 + self.target)) else { return };
            if !self.level(draft, most) {
                stuck.insert(most);
            }
        }
    }

    /// Makes cold neighbours one again.
    fn merge(&self, draft: &mut Draft) {
        let count = draft.ranges.len();
        let mean = draft.ranges.values().map(|range| range.rate).sum::<f64>() / count.max(1) as f64;
        let mut budget = ((count as f64 * self.merges) as usize).max(1);
        let cold = |range: &RangeView| range.rate < mean / 2.0 && range.hot.is_empty() && !range.settling;
        let mut left: Option<&RangeView> = None;
        let mut steps = Vec::new();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for range in draft.ranges.values() {
            let pair = left.is_some_and(|left| cold(left) && cold(range) && left.owner == range.owner);
            left = Some(range);
            let have = counts.entry(range.owner).or_insert_with(|| draft.count(range.owner));
            if pair && range.mergeable && budget > 0 && *have > self.ranges.0 {
                *have -= 1;
                budget -= 1;
                steps.push(Step::Merge { start: range.start });
                // Its neighbour's neighbour waits for the next round.
                left = None;
            }
        }
        draft.steps.extend(steps);
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
        self.level_all(&mut draft);
        self.merge(&mut draft);
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
        ranges: BTreeMap<KeyHash, Piece>,
        owners: u32,
        moved: usize,
        rng: Seeded,
    }

    #[derive(Clone, Copy)]
    struct Piece {
        last: KeyHash,
        owner: u32,
        settling: bool,
        /// Its lease: a cut inherits it, a move ends it.
        lease: usize,
    }

    impl Pool {
        fn new(owners: u32, keys: usize, seed: u64) -> Pool {
            let mut rng = Seeded::new(seed).fork("zipf");
            let mut points: Vec<u64> = (0..keys).map(|_| rng.next_u64()).collect();
            points.sort_unstable();
            points.dedup();
            let cuts = owners * 64;
            let step = u64::MAX / u64::from(cuts);
            let ranges = (0..cuts).map(|i| {
                let start = u64::from(i) * step;
                let last = if i + 1 == cuts { u64::MAX } else { start + step - 1 };
                let (last, owner, lease) = (KeyHash(last), 1 + i % owners, i as usize);
                (KeyHash(start), Piece { last, owner, settling: false, lease })
            });
            let keys = points.into_iter().map(|at| (KeyHash(at), 0.0)).collect();
            let mut pool = Pool { keys, ranges: ranges.collect(), owners, moved: cuts as usize, rng };
            pool.shift();
            pool
        }

        /// From now on other keys are the hot ones.
        fn shift(&mut self) {
            let mut ranks: Vec<usize> = (1..=self.keys.len()).collect();
            self.rng.shuffle(&mut ranks);
            for ((_, rate), rank) in self.keys.iter_mut().zip(ranks) {
                *rate = 1e6 / (rank as f64).powf(0.99);
            }
        }

        fn view(&self) -> View {
            let mut ranges: Vec<RangeView> = Vec::with_capacity(self.ranges.len());
            let mut at = 0;
            let mut left: Option<Piece> = None;
            for (start, piece) in &self.ranges {
                let Piece { last, owner, settling, lease } = *piece;
                let mergeable = left.is_some_and(|left| (left.owner, left.lease) == (owner, lease));
                left = Some(*piece);
                let from = at;
                while at < self.keys.len() && self.keys[at].0 <= last {
                    at += 1;
                }
                let mut hot = self.keys[from..at].to_vec();
                let rate = hot.iter().map(|(_, rate)| rate).sum();
                hot.sort_by(|a, b| b.1.total_cmp(&a.1));
                hot.truncate(16);
                ranges.push(RangeView { start: *start, last, owner, rate, settling, mergeable, hot });
            }
            let rate = |index| ranges.iter().filter(|r| r.owner == index).map(|r| r.rate).sum();
            let owners = (1..=self.owners).map(|index| OwnerView { index, rate: rate(index), virtual_nodes: 64 });
            View { owners: owners.collect(), ranges }
        }

        fn round(&mut self) -> usize {
            let steps = Hottest::default().plan(&self.view());
            self.ranges.values_mut().for_each(|piece| piece.settling = false);
            for step in &steps {
                match *step {
                    Step::Cut { at } => {
                        let (start, piece) = self.ranges.range(..=at).next_back().map(|(s, p)| (*s, *p)).unwrap();
                        if start < at {
                            self.ranges.insert(start, Piece { last: KeyHash(at.0 - 1), ..piece });
                            self.ranges.insert(at, piece);
                        }
                    }
                    Step::Move { start, to, .. } => {
                        self.moved += 1;
                        let piece = self.ranges.get_mut(&start).unwrap();
                        (piece.owner, piece.settling, piece.lease) = (to, true, self.moved);
                    }
                    Step::Merge { start } => {
                        let piece = self.ranges.remove(&start).unwrap();
                        self.ranges.range_mut(..start).next_back().unwrap().1.last = piece.last;
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

    #[test]
    fn however_often_the_load_shifts_owners_keep_to_few_ranges() {
        for (owners, keys, most) in [(4, 2_000, 2 * (256 / 4 + 64)), (16, 300, 2 * (256 / 16 + 64))] {
            let mut pool = Pool::new(owners, keys, 3);
            for shift in 0..50 {
                (0..12).take_while(|_| pool.round() > 0).count();
                pool.shift();
                let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
                pool.ranges.values().for_each(|piece| *counts.entry(piece.owner).or_default() += 1);
                let largest = counts.values().max().copied().unwrap_or_default();
                assert!(largest <= most, "{owners} owners: {largest} ranges of one after {shift} shifts");
            }
        }
    }

    /// Rates as samples tell them: a little off, every time differently.
    fn noisy(mut view: View, rng: &mut Seeded) -> View {
        for range in &mut view.ranges {
            let factor = 0.97 + 0.06 * rng.below(1_000) as f64 / 1_000.0;
            range.rate *= factor;
            range.hot.iter_mut().for_each(|(_, rate)| *rate *= factor);
        }
        view
    }

    #[test]
    fn what_has_settled_does_not_flap_when_measurements_waver() {
        let mut pool = Pool::new(16, 20_000, 5);
        while pool.round() > 0 {}
        let mut rng = Seeded::new(9);
        let moves: usize = (0..50).map(|_| Hottest::default().plan(&noisy(pool.view(), &mut rng)).len()).sum();
        assert!(moves <= 2, "{moves} steps in 50 rounds of noise");
    }

    #[test]
    fn cold_neighbours_become_one_again_few_at_a_time() {
        let range = |i: u64| RangeView {
            start: KeyHash(i),
            last: KeyHash(i),
            owner: 1 + (i / 200) as u32,
            rate: if i == 0 { 1_000.0 } else { 1.0 },
            settling: false,
            mergeable: !i.is_multiple_of(200),
            hot: Vec::new(),
        };
        let owners = (1..=2).map(|index| OwnerView { index, rate: 0.0, virtual_nodes: 64 }).collect();
        let mut draft = Draft::new(&View { owners, ranges: (0..400).map(range).collect() }, 0.09);
        Hottest::default().merge(&mut draft);
        assert_eq!(draft.steps.len(), 4, "1 % of 400");
        assert!(!draft.steps.contains(&Step::Merge { start: KeyHash(1) }), "what is hot stays apart");
    }
}
