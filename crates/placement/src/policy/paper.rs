//! The paper's policy (§2.1.2): virtual nodes move from owners that are more than a tenth above the mean to the least
//! loaded one, and to owners that are more than a tenth below it from the most loaded; their sum stays.

use super::{Policy, Step, View};
use std::collections::BTreeMap;

/// How far from the mean an owner may be.
const BAND: f64 = 0.10;

/// The paper's policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paper;

impl Policy for Paper {
    fn plan(&self, view: &View) -> Vec<Step> {
        let mean = view.mean();
        if mean <= 0.0 || view.owners.len() < 2 {
            return Vec::new();
        }
        let mut rates: BTreeMap<u32, f64> = view.owners.iter().map(|owner| (owner.index, owner.rate)).collect();
        let mut points: BTreeMap<u32, u32> = view.owners.iter().map(|o| (o.index, o.virtual_nodes)).collect();
        for owner in &view.owners {
            let off = (owner.rate - mean) / mean;
            let (from, to) = if off > BAND {
                (Some(owner.index), least(&rates))
            } else if off < -BAND {
                (most(&rates), Some(owner.index))
            } else {
                continue;
            };
            let (Some(from), Some(to)) = (from, to) else { continue };
            let Some(have) = points.get(&from).copied().filter(|have| *have > 1 && from != to) else { continue };
            // What one point carries, so that the next owner sees the effect of this step.
            let carried = rates.get(&from).copied().unwrap_or_default() / f64::from(have);
            *rates.entry(from).or_default() -= carried;
            *rates.entry(to).or_default() += carried;
            *points.entry(from).or_default() -= 1;
            *points.entry(to).or_default() += 1;
        }
        let changed = view.owners.iter().filter(|owner| points.get(&owner.index) != Some(&owner.virtual_nodes));
        changed.map(|o| Step::Points { owner: o.index, points: points[&o.index] }).collect()
    }
}

fn least(rates: &BTreeMap<u32, f64>) -> Option<u32> {
    rates.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(owner, _)| *owner)
}

fn most(rates: &BTreeMap<u32, f64>) -> Option<u32> {
    rates.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(owner, _)| *owner)
}

#[cfg(test)]
mod tests {
    use super::super::OwnerView;
    use super::*;

    #[test]
    fn points_move_from_the_loaded_to_the_idle_and_their_sum_stays() {
        let owner = |index, rate| OwnerView { index, rate, virtual_nodes: 64 };
        let view = View { owners: vec![owner(1, 200.0), owner(2, 100.0), owner(3, 60.0)], ranges: vec![] };
        let steps = Paper.plan(&view);
        let sum: i64 = steps
            .iter()
            .map(|step| match step {
                Step::Points { points, .. } => i64::from(*points) - 64,
                other => panic!("only points move: {other:?}"),
            })
            .sum();
        assert_eq!(sum, 0);
        assert!(steps.contains(&Step::Points { owner: 1, points: 61 }), "{steps:?}");
        let even = View { owners: vec![owner(1, 100.0), owner(2, 105.0)], ranges: vec![] };
        assert_eq!(Paper.plan(&even), []);
    }
}
