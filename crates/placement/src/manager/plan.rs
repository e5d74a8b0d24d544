//! Who should hold what: points of a ring (consistent hashing, §2), and the steps from here to there.

use super::pool::{Due, Pool};
use super::table::{Holder, Intent, Range};
use crate::mutant::Mutant;
use std::collections::BTreeMap;
use tidings_base::{KeyHash, KeyRange, Mono, Seeded};

/// The points of the owners that may be given ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    points: BTreeMap<KeyHash, u32>,
    /// How many points of each owner are in it.
    counts: BTreeMap<u32, (String, u32)>,
}

impl Ring {
    /// Whose point is at or before this one, around the ring.
    pub(super) fn owner(&self, at: KeyHash) -> Option<u32> {
        self.nearest(at, |_| true)
    }

    /// The same among owners that will do.
    fn nearest(&self, at: KeyHash, will_do: impl Fn(u32) -> bool) -> Option<u32> {
        let before = self.points.range(..=at).rev().chain(self.points.iter().rev());
        // Once around is enough.
        before.take(self.points.len()).map(|(_, owner)| *owner).find(|owner| will_do(*owner))
    }

    /// From a point up to the next one.
    fn arc(&self, at: KeyHash) -> KeyRange {
        let after = at.0.checked_add(1).and_then(|next| self.points.range(KeyHash(next)..).next());
        let next = after.or_else(|| self.points.first_key_value()).map_or(at, |(next, _)| *next);
        KeyRange::new(at, KeyHash(next.0.wrapping_sub(1)))
    }

    /// Gives an owner so many points; the arcs that change hands.
    fn set(&mut self, owner: u32, id: &str, want: u32) -> Vec<KeyRange> {
        let (id, have) = self.counts.remove(&owner).unwrap_or_else(|| (id.to_owned(), 0));
        let mut changed = Vec::new();
        for n in want..have {
            let at = point(&id, n);
            if self.points.get(&at) == Some(&owner) {
                self.points.remove(&at);
                changed.push(self.arc(at));
            }
        }
        for n in have..want {
            let at = point(&id, n);
            self.points.entry(at).or_insert(owner);
            changed.push(self.arc(at));
        }
        if want > 0 {
            self.counts.insert(owner, (id, want));
        }
        changed
    }

    /// The arcs of an owner.
    fn arcs(&self, owner: u32) -> Vec<KeyRange> {
        let Some((id, count)) = self.counts.get(&owner) else { return Vec::new() };
        (0..*count).map(|n| self.arc(point(id, n))).collect()
    }

    /// Where, inside a range, the ring changes hands.
    fn borders(&self, start: KeyHash, last: KeyHash) -> Vec<KeyHash> {
        let Some(mut owner) = self.owner(start).filter(|_| start < last) else { return Vec::new() };
        let inside = self.points.range(KeyHash(start.0 + 1)..=last);
        let borders = inside.filter(|(_, next)| std::mem::replace(&mut owner, **next) != **next);
        borders.map(|(at, _)| *at).collect()
    }

    /// Whether something of an owner's begins at a point.
    pub(super) fn has_point(&self, at: KeyHash) -> bool {
        self.points.contains_key(&at)
    }
}

/// A point of an owner on the ring.
fn point(id: &str, n: u32) -> KeyHash {
    KeyHash::of(format!("{id}#{n}").as_bytes())
}

impl Pool {
    /// Ends what is over: leases, lives, moves, drains, pauses.
    pub(super) fn expire(&mut self) {
        let now = self.now;
        while let Some((at, start)) = self.expiry.first().copied().filter(|(at, _)| *at <= now) {
            self.expiry.remove(&(at, start));
            let Some(range) = self.table.get(start).copied().filter(is_leased) else { continue };
            if now < range.until {
                self.expiry.insert((range.until, start));
                continue;
            }
            if self.mutant == Some(Mutant::ExpiryUnnoticed) {
                continue;
            }
            if let Intent::Move { token } = range.intent {
                self.give_up_move(token);
            }
            self.release(start);
        }
        while let Some(due) = self.due.pop_due(now) {
            match due {
                Due::Answer(owner) => drop(self.ready.insert(owner)),
                Due::Live(owner) => self.may_be_dead(owner),
                Due::Forget(owner) => self.forget(owner),
                Due::Bar(owner) => {
                    for arc in self.ring.arcs(owner) {
                        self.unsettled.extend(self.table.touched(arc));
                    }
                }
                Due::Cool(owner) => self.try_later(owner),
                Due::Drain(owner) => self.drain_due(owner),
                Due::Move(token) => self.move_failed(token),
                Due::Push => self.lookups.pushing(),
                Due::Round => {
                    self.round_due = true;
                    self.due.set(Due::Round, now + self.round_time());
                }
            }
        }
    }

    /// Brings the ring up to date, begins to bring ranges where they belong, and gives free ones away.
    pub(super) fn plan(&mut self, rng: &mut Seeded) {
        for owner in std::mem::take(&mut self.dirty) {
            let taker = self.members.get(&owner).filter(|member| member.takes(self.now));
            let (id, want) = taker.map_or((String::new(), 0), |m| (m.record.id.clone(), m.record.virtual_nodes));
            for arc in self.ring.set(owner, &id, want) {
                self.unsettled.extend(self.table.touched(arc));
            }
            // What it holds may have been put there by a policy, and what waits for it must not wait in vain.
            self.unsettled.extend(self.table.of_owner(owner));
            self.idle.extend(self.parked.remove(&owner).unwrap_or_default());
        }
        while let Some(start) = self.unsettled.pop_first() {
            self.steer(start, rng);
        }
        for start in std::mem::take(&mut self.idle) {
            self.place(start);
        }
    }

    /// Begins to bring one range where it belongs.
    fn steer(&mut self, start: KeyHash, rng: &mut Seeded) {
        self.cut_at_borders(start);
        let Some(range) = self.table.get(start).copied() else { return };
        let wanted = self.wanted(start, &range);
        match range.holder {
            // It is looked at again when its commit is done.
            Holder::Committing => {}
            Holder::Nobody => drop(self.idle.insert(start)),
            // Recorded and never told: nobody can have it. What came with its state waits for its new holder's claim.
            Holder::Fresh if wanted != range.owner && (range.token.is_none() || !self.is_well(range.owner)) => {
                self.release(start);
            }
            Holder::Fresh => {}
            // Whoever is to leave and has had its time keeps nothing, whether somebody takes it or not.
            _ if self.drain_is_over(range.owner) => {
                if range.intent == Intent::Stay {
                    self.recall(start);
                }
            }
            _ if wanted == range.owner || wanted == 0 => {
                if range.intent == Intent::Recall && wanted != 0 {
                    // If its holder has heard of the recall, its next message says so.
                    self.table.update(start, |range| range.intent = Intent::Stay);
                }
            }
            _ if range.intent != Intent::Stay => {}
            // Whether state can be handed over is known when both have spoken to this leader.
            Holder::Loaded => {}
            _ if !self.has_spoken(wanted) => self.wait_to_move(start, range.owner, wanted),
            holder if self.hands_over(range.owner) && self.hands_over(wanted) => {
                if holder == Holder::Claimed && self.may_move(range.owner, wanted) {
                    self.begin_move(start, wanted, rng);
                } else {
                    self.wait_to_move(start, range.owner, wanted);
                }
            }
            _ => self.recall(start),
        }
    }

    /// Leaves a range out of its holder's set until it is released or expires.
    fn recall(&mut self, start: KeyHash) {
        let Some(owner) = self.table.get(start).map(|range| range.owner) else { return };
        self.table.update(start, |range| range.intent = Intent::Recall);
        self.news(owner);
        self.counts.recalls += 1;
    }

    /// Cuts a range where the ring changes hands, unless a policy has placed it.
    fn cut_at_borders(&mut self, start: KeyHash) {
        let Some(range) = self.table.get(start).filter(|range| !range.pinned && range.aim == 0) else { return };
        for at in self.ring.borders(start, range.last) {
            self.cut(at);
            self.unsettled.insert(at);
        }
    }

    /// Cuts, and lets the new half expire, too.
    pub(super) fn cut(&mut self, at: KeyHash) -> bool {
        let done = self.table.cut(at);
        if let Some(range) = self.table.get(at).filter(|range| done && is_leased(range)) {
            self.expiry.insert((range.until, at));
        }
        done
    }

    pub(super) fn is_live(&self, index: u32) -> bool {
        self.members.get(&index).is_some_and(|member| self.now < member.live_until)
    }

    /// Whether it lives, and takes what it is given.
    fn is_well(&self, index: u32) -> bool {
        self.is_live(index) && self.members.get(&index).is_some_and(|member| member.healthy)
    }

    fn has_spoken(&self, index: u32) -> bool {
        self.members.get(&index).and_then(|member| member.talk.as_ref()).is_some_and(|talk| talk.spoke)
    }

    fn hands_over(&self, index: u32) -> bool {
        self.is_live(index) && self.members.get(&index).is_some_and(|member| member.hands_over)
    }

    /// Whose a range should be; 0 = nobody's, since nobody takes ranges. An owner that refused grants gets no new ones
    /// for a while and keeps what it has.
    pub(super) fn wanted(&self, start: KeyHash, range: &Range) -> u32 {
        let held = is_leased(range);
        let will_do = |owner: u32| {
            let fits = |member: &super::pool::Member| {
                member.takes(self.now) && (member.barred_until <= self.now || (held && owner == range.owner))
            };
            self.members.get(&owner).is_some_and(fits)
        };
        let aim = Some(range.aim).filter(|aim| *aim != 0 && will_do(*aim));
        let pinned = Some(range.owner).filter(|owner| range.pinned && will_do(*owner));
        aim.or(pinned).or_else(|| self.ring.nearest(start, will_do)).unwrap_or_default()
    }

    /// Records a free range as somebody's.
    fn place(&mut self, start: KeyHash) {
        let Some(range) = self.table.get(start).copied().filter(|range| range.holder == Holder::Nobody) else { return };
        let clean = match range.intent {
            Intent::Move { token } => self.moves.clean_target(token).map(|to| (to, Some(token))),
            Intent::Stay | Intent::Recall => None,
        };
        let (to, token) = clean.unwrap_or_else(|| (self.wanted(start, &range), None));
        if to == 0 && range.owner == 0 {
            return;
        }
        if self.members.get(&to).is_some_and(|member| !member.committed) {
            self.parked.entry(to).or_default().insert(start);
            return;
        }
        let pin = to != 0 && (range.aim == to || (range.pinned && range.owner == to));
        self.assign(start, to, token, pin);
    }

    /// A range is held by nobody from now on.
    pub(super) fn release(&mut self, start: KeyHash) {
        let Some(range) = self.table.get(start).copied() else { return };
        if range.holder == Holder::Committing {
            return;
        }
        if let Some(token) = range.token {
            self.moves.end(token);
        }
        self.table.update(start, |range| {
            (range.holder, range.token, range.until) = (Holder::Nobody, None, Mono(0));
        });
        self.idle.insert(start);
    }
}

/// Whether somebody may be using a range.
pub(super) fn is_leased(range: &Range) -> bool {
    matches!(range.holder, Holder::Loaded | Holder::Sent(_) | Holder::Claimed)
}
