//! Who should hold what: points of a ring (consistent hashing, §2), and the steps from here to there.

use super::pool::Pool;
use super::table::{Holder, Intent};
use crate::mutant::Mutant;
use std::collections::BTreeMap;
use tidings_base::{KeyHash, Mono, Seeded};

/// The points of the owners that may be given ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    points: BTreeMap<KeyHash, u32>,
}

impl Ring {
    /// Whose point is at or before this one, around the ring.
    pub(super) fn owner(&self, at: KeyHash) -> Option<u32> {
        let before = self.points.range(..=at).next_back().or_else(|| self.points.last_key_value());
        before.map(|(_, owner)| *owner)
    }
}

/// A point of an owner on the ring.
fn point(id: &str, n: u32) -> KeyHash {
    KeyHash::of(format!("{id}#{n}").as_bytes())
}

impl Pool {
    /// Ends what is over: leases, lives, moves, drains.
    pub(super) fn expire(&mut self, now: Mono, _mutant: Option<Mutant>) {
        while let Some((at, start)) = self.expiry.first().copied().filter(|(at, _)| *at <= now) {
            self.expiry.remove(&(at, start));
            let Some(range) = self.table.get(start).copied().filter(|range| range.until == at) else { continue };
            if let Intent::Move { token } = range.intent {
                self.give_up_move(token);
            }
            self.release(start);
        }
        for member in self.members.values_mut() {
            if member.live_until > Mono(0) && member.live_until <= now {
                member.live_until = Mono(0);
                self.stale_plan = true;
            }
            if member.barred_until > Mono(0) && member.barred_until <= now {
                member.barred_until = Mono(0);
                self.stale_plan = true;
            }
        }
        self.late_moves(now);
        self.drain_ends(now);
    }

    /// Makes the plan anew if it is stale, and gives free ranges to whom they belong.
    pub(super) fn plan(&mut self, now: Mono, rng: &mut Seeded) {
        if std::mem::take(&mut self.stale_plan) {
            self.ring = self.points(now);
            let cuts: Vec<KeyHash> = self.ring.points.keys().copied().collect();
            for at in cuts {
                self.table.cut(at);
            }
            self.index_expiries();
            for start in self.table.starts() {
                self.steer(now, start, rng);
            }
        }
        for start in std::mem::take(&mut self.idle) {
            self.place(now, start);
        }
    }

    fn points(&self, now: Mono) -> Ring {
        let takers = self.members.values().filter(|member| member.takes(now));
        let points = takers.flat_map(|member| {
            let record = &member.record;
            (0..record.virtual_nodes).map(|n| (point(&record.id, n), record.index))
        });
        Ring { points: points.collect() }
    }

    /// Cuts make ranges that no expiry names yet.
    fn index_expiries(&mut self) {
        let held = self.table.iter().filter(|(_, range)| range.until > Mono(0) && range.holder != Holder::Nobody);
        self.expiry = held.filter(|(_, r)| r.holder != Holder::Committing).map(|(start, r)| (r.until, start)).collect();
    }

    /// Begins to bring one range where it belongs.
    fn steer(&mut self, now: Mono, start: KeyHash, rng: &mut Seeded) {
        let Some(range) = self.table.get(start).copied() else { return };
        let wanted = self.wanted(now, start);
        match range.holder {
            Holder::Committing => {}
            Holder::Nobody => drop(self.idle.insert(start)),
            // Recorded and never told: nobody can have it.
            Holder::Fresh if wanted != range.owner => self.release(start),
            _ if wanted == range.owner || wanted == 0 => {}
            _ if range.intent != Intent::Stay => {}
            holder => {
                let draining = self.members.get(&range.owner).is_some_and(|member| member.record.draining);
                let claimed = holder == Holder::Claimed;
                if claimed && self.may_move(now, range.owner, wanted, draining) {
                    self.begin_move(now, start, wanted, rng);
                } else if !self.hands_over(range.owner) || !self.hands_over(wanted) {
                    if let Some(range) = self.table.get_mut(start) {
                        range.intent = Intent::Recall;
                    }
                    self.news(range.owner);
                    self.counts.recalls += 1;
                }
            }
        }
    }

    fn hands_over(&self, index: u32) -> bool {
        self.members.get(&index).is_some_and(|member| member.hands_over)
    }

    /// Whose a range should be; 0 = nobody's, since nobody takes ranges.
    fn wanted(&self, now: Mono, start: KeyHash) -> u32 {
        let pinned = self.table.get(start).filter(|range| range.pinned).map(|range| range.owner);
        let pinned = pinned.filter(|owner| self.members.get(owner).is_some_and(|member| member.takes(now)));
        pinned.or_else(|| self.ring.owner(start)).unwrap_or_default()
    }

    /// Records a free range as somebody's.
    fn place(&mut self, now: Mono, start: KeyHash) {
        let Some(range) = self.table.get(start).copied().filter(|range| range.holder == Holder::Nobody) else { return };
        let clean = match range.intent {
            Intent::Move { token } => self.moves.clean_target(token).map(|to| (to, Some(token))),
            Intent::Stay | Intent::Recall => None,
        };
        let (to, token) = clean.unwrap_or_else(|| (self.wanted(now, start), None));
        if to == 0 && range.owner == 0 {
            return;
        }
        self.assign(start, to, token);
    }
}
