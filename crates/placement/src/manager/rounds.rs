//! Rounds of a policy: what was measured goes in, steps come out, and the steps become wishes of the table.

use super::plan::is_leased;
use super::pool::{Due, Measured, Pool, process};
use super::table::{Holder, Intent, arc};
use crate::Leased;
use crate::policy::{self, OwnerView, RangeView, Step, View};
use tidings_base::{KeyHash, KeyRange};
use tidings_wire::v1;

/// A policy acts by itself only if owners have measured so many requests each on average: a rate is then known within a few
/// hundredths, less than the band in which nothing moves. Fewer requests are no load, and what they say is noise.
const LEAST_SAMPLES: u64 = 1_000;

/// The seconds that an owner is taken to have counted its requests for, if it tells a rate and no samples.
const COUNTED_S: f64 = 10.0;

impl Pool {
    /// Takes what an owner measured.
    pub(super) fn weigh(&mut self, owner: u32, load: &v1::OwnerLoad) {
        let Some(member) = self.members.get_mut(&owner) else { return };
        let rate = if load.rate.is_finite() && load.rate >= 0.0 { load.rate } else { 0.0 };
        // Who does not sample has counted.
        let samples = if load.samples == 0 { (rate * COUNTED_S) as u64 } else { load.samples.into() };
        member.measured = Some(Measured { rate, samples, by: process(&member.record) });
        let starts = self.table.of_owner(owner).into_iter();
        let held: Vec<KeyRange> =
            starts.filter_map(|start| self.table.get(start).map(|range| arc(start, range))).collect();
        self.heat.take(load, &held);
    }

    /// Lets the policy look at the load if it is time, and nothing else is moving.
    pub(super) fn round(&mut self) {
        if !std::mem::take(&mut self.round_due) {
            return;
        }
        let moving = self.moves.len() > 0 || self.commits.is_busy() || !self.unsettled.is_empty();
        if moving {
            // Not a round, but not forgotten either.
            return self.due.set(Due::Round, self.now + self.round_time() / 4);
        }
        let view = self.view();
        let samples = |owner: &OwnerView| Some(self.members.get(&owner.index)?.load()?.samples);
        let known: u64 = view.owners.iter().filter_map(samples).sum();
        if known < LEAST_SAMPLES * view.owners.len() as u64 {
            return;
        }
        let steps = self.steps(&view);
        self.apply(&steps);
    }

    /// What an operator's call would do or does.
    pub(super) fn rebalance(&mut self, dry_run: bool) -> v1::RebalanceReply {
        let view = self.view();
        let steps = self.steps(&view);
        let held = || self.table.iter().filter(|(_, range)| range.owner != 0);
        let settling = || held().map(|(_, range)| range.settles).filter(|settles| self.now < *settles);
        let reply = v1::RebalanceReply {
            moves: steps.iter().map(|step| self.planned(step)).collect(),
            max_over_mean_before: policy::max_over_mean(&view, &[]),
            max_over_mean_after: policy::max_over_mean(&view, &steps),
            rate: view.owners.iter().fold(0.0, |sum, owner| sum + owner.rate),
            settling: settling().count() as u32,
            settles_ms: settling().max().map_or(0, |last| last.since(self.now).as_millis() as u64),
        };
        if !dry_run {
            self.apply(&steps);
        }
        reply
    }

    fn steps(&self, view: &View) -> Vec<Step> {
        let name = self.meta.config.as_ref().map_or("", |config| config.policy.as_str());
        policy::by_name(name).map(|policy| policy.plan(view)).unwrap_or_default()
    }

    /// The measured load of owners that take ranges.
    pub(super) fn view(&self) -> View {
        let takers = self.members.values().filter(|member| member.takes(self.now) && member.committed);
        let mut owners: Vec<OwnerView> = takers
            .map(|member| OwnerView {
                index: member.record.index,
                rate: 0.0,
                virtual_nodes: member.record.virtual_nodes,
            })
            .collect();
        let ranges = self.table.iter().map(|(start, range)| {
            let (rate, hot) = self.heat.of(arc(start, range));
            if let Ok(at) = owners.binary_search_by_key(&range.owner, |owner| owner.index) {
                owners[at].rate += rate;
            }
            let calm = range.holder == Holder::Claimed && range.intent == Intent::Stay && range.aim == 0;
            RangeView {
                start,
                last: range.last,
                owner: range.owner,
                rate,
                settling: !calm || self.now < range.settles,
                mergeable: !self.ring.has_point(start) && self.table.can_merge(start),
                hot,
            }
        });
        let ranges = ranges.collect();
        View { owners, ranges }
    }

    /// Makes a policy's steps wishes of the table; moves and recalls follow from them.
    pub(super) fn apply(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Points { owner, points } => {
                    self.counts.wishes += 1;
                    self.change_record(owner, |record| record.virtual_nodes = points);
                }
                Step::Cut { at } => drop(self.cut(at)),
                Step::Merge { start } => self.table.merge(start),
                Step::Move { start, from, to, .. } => {
                    let still = self.table.get(start).is_some_and(|range| range.owner == from && is_leased(range));
                    if still {
                        self.counts.wishes += 1;
                        self.table.update(start, |range| range.aim = to);
                        self.unsettled.insert(start);
                    }
                }
            }
        }
        self.counts.rounds += u64::from(!steps.is_empty());
    }

    fn name_of(&self, index: u32) -> String {
        self.members.get(&index).map(|member| member.record.id.clone()).unwrap_or_default()
    }

    fn planned(&self, step: &Step) -> v1::PlannedMove {
        let at = |start: KeyHash| {
            let (first, range) = self.table.find(start)?;
            Some(Leased { range: KeyRange::new(start.max(first), range.last), lease: range.lease }.into())
        };
        let owner_at = |start: KeyHash| self.table.find(start).map(|(_, range)| self.name_of(range.owner));
        match *step {
            Step::Points { owner, points } => {
                let to = self.name_of(owner);
                v1::PlannedMove { to, kind: "points".into(), points, ..Default::default() }
            }
            Step::Cut { at: start } | Step::Merge { start } => {
                let kind = if matches!(step, Step::Cut { .. }) { "split" } else { "merge" };
                let from = owner_at(start).unwrap_or_default();
                v1::PlannedMove { range: at(start), from, kind: kind.into(), ..Default::default() }
            }
            Step::Move { start, from, to, rate, isolates } => v1::PlannedMove {
                range: at(start),
                from: self.name_of(from),
                to: self.name_of(to),
                rate,
                kind: if isolates { "isolate" } else { "move" }.into(),
                points: 0,
            },
        }
    }
}
