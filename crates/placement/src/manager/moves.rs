//! Clean migrations (F9): freeze, copy, import, release, confirm, grant with the clean mark.

use super::plan::is_leased;
use super::pool::{Due, Member, Pool};
use super::table::{Intent, Range, arc};
use crate::Leased;
use crate::mutant::Mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, Mono, Seeded};
use tidings_wire::v1;

/// How long a hand-over may take; then the owner keeps the range, and says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// After a failed hand-over its two owners begin none for so long, twice as long after the next, and so on; less if
/// one of them drains.
const COOL: Duration = Duration::from_secs(60);
const LONGEST_COOL: Duration = Duration::from_secs(3_600);
const COOL_DRAINING: Duration = Duration::from_secs(1);

/// Ranges that leave or reach an owner at a time: what is frozen is not served, so few are, and not for long.
const AT_ONCE: usize = 8;

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The two owners copy.
    Open,
    /// The holder has released it: its new record is on its way to the cell.
    Released,
    /// The new record is in the cell; the receiver has not claimed it yet.
    Committed,
}

#[derive(Clone, Debug)]
struct Moving {
    start: KeyHash,
    leased: Leased,
    from: u32,
    to: u32,
    /// The token is bound to this process of the receiver.
    incarnation: u64,
    until: Mono,
    stage: Stage,
}

/// All moves of a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    under_way: BTreeMap<u64, Moving>,
    /// The moves that an owner has a part in.
    by_owner: BTreeMap<u32, BTreeSet<u64>>,
}

impl Moves {
    /// How many are under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    fn add(&mut self, token: u64, moving: Moving) {
        for owner in [moving.from, moving.to] {
            self.by_owner.entry(owner).or_default().insert(token);
        }
        self.under_way.insert(token, moving);
    }

    /// It is over, however it ended.
    fn remove(&mut self, token: u64) -> Option<Moving> {
        let moving = self.under_way.remove(&token)?;
        for owner in [moving.from, moving.to] {
            if let Some(tokens) = self.by_owner.get_mut(&owner) {
                tokens.remove(&token);
                if tokens.is_empty() {
                    self.by_owner.remove(&owner);
                }
            }
        }
        Some(moving)
    }

    /// The receiver has claimed the range, or will never.
    pub(super) fn end(&mut self, token: u64) {
        self.remove(token);
    }

    /// Where a released range goes with its state.
    pub(super) fn clean_target(&self, token: u64) -> Option<u32> {
        self.under_way.get(&token).filter(|moving| moving.stage == Stage::Released).map(|moving| moving.to)
    }

    /// Whether an owner has a part in any.
    pub(super) fn names(&self, owner: u32) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// Whether something is on its way to an owner.
    pub(super) fn reach(&self, owner: u32) -> bool {
        let tokens = self.by_owner.get(&owner).into_iter().flatten();
        tokens.filter_map(|token| self.under_way.get(token)).any(|moving| moving.to == owner)
    }

    fn open(&self, owner: u32) -> usize {
        let tokens = self.by_owner.get(&owner).into_iter().flatten();
        tokens.filter(|token| self.under_way.get(token).is_some_and(|moving| moving.stage == Stage::Open)).count()
    }
}

impl Pool {
    /// Whether a clean move may begin now; both owners live and hand over. What the one is told of the other is in the cell.
    pub(super) fn may_move(&self, from: u32, to: u32) -> bool {
        let fit =
            |index| self.members.get(&index).is_some_and(|member| member.committed && member.cool_until <= self.now);
        fit(from) && fit(to) && self.moves.open(from) < AT_ONCE && self.moves.open(to) < AT_ONCE
    }

    /// Begins a clean move.
    pub(super) fn begin_move(&mut self, start: KeyHash, to: u32, rng: &mut Seeded) {
        let Some(incarnation) = self.members.get(&to).map(|member| member.record.incarnation) else { return };
        let Some(range) = self.table.get(start).copied() else { return };
        let token = rng.next_u64() | 1;
        self.table.update(start, |range| range.intent = Intent::Move { token });
        let leased = Leased { range: arc(start, &range), lease: range.lease };
        let from = range.owner;
        let drain_until = self.members.get(&from).and_then(|member| member.drain_until);
        let until = drain_until.map_or(self.now + PATIENCE, |end| end.min(self.now + PATIENCE));
        self.moves.add(token, Moving { start, leased, from, to, incarnation, until, stage: Stage::Open });
        self.due.set(Due::Move(token), until + self.word_time());
        self.news(from);
        self.news(to);
    }

    /// How long after the end of a move its holder's word is waited for. It may have released the range at the last moment,
    /// and the receiver have its state: only the holder knows. If it says neither within a lease it has none any more, or
    /// does not keep to the protocol.
    fn word_time(&self) -> Duration {
        if self.mutant == Some(Mutant::MovesCutShort) { Duration::ZERO } else { self.times.honoured() }
    }

    /// The holder says that it released a range under a token, or that it could not.
    pub(super) fn handed_over(&mut self, by: u32, handover: &v1::Handover) {
        let token = handover.token;
        self.inherit_move(by, handover);
        let Some(moving) = self.moves.under_way.get_mut(&token).filter(|moving| moving.from == by) else {
            // Given up here, or done long ago: nothing is left to wait for.
            return self.confirm(by, token);
        };
        match moving.stage {
            Stage::Open if handover.failed => return self.move_failed(token),
            Stage::Open => {}
            Stage::Released => return,
            Stage::Committed => return self.confirm(by, token),
        }
        let (start, to, incarnation) = (moving.start, moving.to, moving.incarnation);
        let same = self.members.get(&to).is_some_and(|member| member.record.incarnation == incarnation);
        self.due.cancel(&Due::Move(token));
        for index in [by, to] {
            if let Some(member) = self.members.get_mut(&index) {
                member.failed_moves = 0;
            }
        }
        if same {
            moving.stage = Stage::Released;
        } else {
            self.moves.remove(token);
            self.confirm(by, token);
        }
        self.release(start);
        self.try_later(by);
        self.try_later(to);
    }

    /// Goes on with a move that an earlier leader began, and did not live to record: what was released under it is in no
    /// file, and its state is with the receiver.
    fn inherit_move(&mut self, by: u32, handover: &v1::Handover) {
        let token = handover.token;
        let settled = handover.failed || self.moves.under_way.contains_key(&token);
        if settled || !self.inherits() || self.mutant == Some(Mutant::MovesForgotten) {
            return;
        }
        let Some(leased) = handover.range.as_ref().and_then(Leased::of) else { return };
        let Some(to) = self.by_id.get(&handover.owner).copied().filter(|to| *to != by) else { return };
        let KeyRange { start, last } = leased.range;
        // Numbers of another era are of a time that was undone.
        if leased.lease.get() < self.meta.first_lease {
            return;
        }
        let rows = if start <= last { self.table.touched(leased.range) } else { Vec::new() };
        let holds = |range: &Range| is_leased(range) && range.owner == by && range.lease == leased.lease;
        if rows.is_empty() || !rows.iter().all(|row| self.table.get(*row).is_some_and(holds)) {
            return;
        }
        // One that was begun meanwhile crossed this word, and finds nothing to copy.
        for row in rows {
            if let Some(Intent::Move { token: begun }) = self.table.get(row).map(|range| range.intent) {
                self.give_up_move(begun);
            }
        }
        // The earlier leader may have cut it out of what is recorded, and this one have cut it where its ring changes hands.
        if !self.cut(start) || last.0.checked_add(1).is_some_and(|after| !self.cut(KeyHash(after))) {
            return;
        }
        self.table.unite(leased.range);
        self.table.update(start, |range| range.intent = Intent::Move { token });
        let (incarnation, until) = (handover.incarnation, self.now);
        self.moves.add(token, Moving { start, leased, from: by, to, incarnation, until, stage: Stage::Open });
        // Whoever holds something counts as alive after a take-over until it speaks, and so does whoever is about to.
        let silent = |member: &&mut Member| member.talk.is_none() && member.live_until <= self.now;
        if let Some(member) = self.members.get_mut(&to).filter(silent) {
            member.live_until = self.inherits_until;
            self.dirty.insert(to);
            self.due.set(Due::Live(to), self.inherits_until);
        }
    }

    /// Whether there may be moves of an earlier leader of which nobody has spoken yet.
    fn inherits(&self) -> bool {
        self.now < self.inherits_until
    }

    /// A move failed, or its holder does not say how it ended: the two owners are left in peace for a while, and the holder
    /// keeps the range.
    pub(super) fn move_failed(&mut self, token: u64) {
        let Some(moving) = self.moves.under_way.get(&token).filter(|moving| moving.stage == Stage::Open) else {
            return;
        };
        let (start, from, to) = (moving.start, moving.from, moving.to);
        let draining = self.members.get(&from).is_some_and(|member| member.record.draining);
        for index in [from, to] {
            let Some(member) = self.members.get_mut(&index).filter(|member| member.cool_until <= self.now) else {
                continue;
            };
            let pause = match draining {
                true => COOL_DRAINING,
                false => (COOL * (1 << member.failed_moves.min(6))).min(LONGEST_COOL),
            };
            member.failed_moves = member.failed_moves.saturating_add(1);
            member.cool_until = self.now + pause;
            self.due.set(Due::Cool(index), member.cool_until);
        }
        // What a policy wanted was wanted of a load that is past by then.
        self.table.update(start, |range| range.aim = 0);
        self.give_up_move(token);
    }

    /// Gives a move up that its holder has not released: it keeps the range and serves it again.
    pub(super) fn give_up_move(&mut self, token: u64) {
        if self.moves.under_way.get(&token).is_none_or(|moving| moving.stage != Stage::Open) {
            return;
        }
        let Some(moving) = self.moves.remove(token) else { return };
        self.due.cancel(&Due::Move(token));
        self.table.update(moving.start, |range| {
            if range.intent == (Intent::Move { token }) {
                range.intent = Intent::Stay;
            }
        });
        self.news(moving.from);
        self.news(moving.to);
        self.unsettled.insert(moving.start);
        self.try_later(moving.from);
        self.try_later(moving.to);
    }

    /// A range waits until one of two owners can move it.
    pub(super) fn wait_to_move(&mut self, start: KeyHash, from: u32, to: u32) {
        for owner in [from, to] {
            self.later.entry(owner).or_default().insert(start);
        }
    }

    /// Ranges of an owner that waited for a move may try again.
    pub(super) fn try_later(&mut self, owner: u32) {
        self.unsettled.extend(self.later.remove(&owner).unwrap_or_default());
    }

    /// The new record is in the cell: the old holder may forget the range.
    pub(super) fn move_committed(&mut self, token: u64) {
        if let Some(moving) = self.moves.under_way.get_mut(&token) {
            moving.stage = Stage::Committed;
            let from = moving.from;
            self.confirm(from, token);
        }
    }

    fn confirm(&mut self, owner: u32, token: u64) {
        if let Some(talk) = self.members.get_mut(&owner).and_then(|member| member.talk.as_mut())
            && !talk.confirm.contains(&token)
        {
            // It is in no hurry: what it waits for goes with the next answer.
            talk.confirm.push(token);
        }
    }

    /// The moves that an owner is part of: out of it, and into it.
    pub(super) fn moves_of(&self, owner: u32) -> (Vec<v1::Move>, Vec<v1::Move>) {
        let (mut outward, mut inward) = (Vec::new(), Vec::new());
        for token in self.moves.by_owner.get(&owner).into_iter().flatten() {
            let Some(moving) = self.moves.under_way.get(token) else { continue };
            let out = moving.from == owner;
            if out && moving.stage != Stage::Open {
                continue;
            }
            let other = if out { moving.to } else { moving.from };
            let other = self.members.get(&other).and_then(|member| member.told.clone()).unwrap_or_default();
            let message = v1::Move {
                range: Some(moving.leased.into()),
                token: *token,
                owner: other.id,
                address: other.address,
                incarnation: other.incarnation,
                within_ms: u32::try_from(moving.until.since(self.now).as_millis()).unwrap_or(u32::MAX),
            };
            if out { outward.push(message) } else { inward.push(message) }
        }
        // What arrived by a move of an earlier leader is kept until its holder has spoken, or has no lease any more.
        if self.inherits() && self.mutant != Some(Mutant::MovesForgotten) {
            let talk = self.members.get(&owner).and_then(|member| member.talk.as_ref());
            let arrived = talk.into_iter().flat_map(|talk| &talk.arrived);
            let unknown = arrived.filter(|token| !self.moves.under_way.contains_key(*token));
            inward.extend(unknown.map(|token| v1::Move { token: *token, ..Default::default() }));
        }
        (outward, inward)
    }

    /// Looks at a drain in every renewal interval: its time may be over, or nobody may be there to hand anything to. An
    /// owner that an operator drains waits for somebody all the same; one whose process ends has nothing to wait for.
    pub(super) fn drain_due(&mut self, owner: u32) {
        let Some(member) = self.members.get(&owner) else { return };
        let Some(until) = member.drain_until.filter(|until| self.now < *until) else { return self.drain_ends(owner) };
        if member.leaving && !self.members.values().any(|member| member.takes(self.now)) {
            return self.drain_ends(owner);
        }
        self.due.set(Due::Drain(owner), until.min(self.now + self.times.renew));
    }

    /// What remains of a draining owner when its time is over is recalled as it is. What is under way to an owner that lives
    /// may be there already: its holder says in a moment how it ended.
    fn drain_ends(&mut self, owner: u32) {
        let Some(member) = self.members.get_mut(&owner).filter(|member| member.record.draining) else { return };
        member.drain_until = None;
        self.later.remove(&owner);
        for start in self.table.of_owner(owner) {
            let Some(range) = self.table.get(start).copied() else { continue };
            if let Intent::Move { token } = range.intent {
                let to = self.moves.under_way.get(&token).map_or(0, |moving| moving.to);
                if self.is_live(to) && self.mutant != Some(Mutant::MovesCutShort) {
                    continue;
                }
                self.give_up_move(token);
            }
            if is_leased(&range) {
                self.table.update(start, |range| range.intent = Intent::Recall);
            }
        }
        self.news(owner);
    }

    /// Whether an owner that is to leave has had the time to hand over what it holds.
    pub(super) fn drain_is_over(&self, owner: u32) -> bool {
        self.members.get(&owner).is_some_and(|member| member.record.draining && member.drain_until.is_none())
    }

    /// An owner is to leave.
    pub(super) fn drain(&mut self, index: u32) {
        let until = self.now + self.drain_time();
        let Some(member) = self.members.get_mut(&index).filter(|member| !member.record.draining) else { return };
        member.drain_until = Some(until);
        self.due.set(Due::Drain(index), until.min(self.now + self.times.renew));
        self.change_record(index, |record| record.draining = true);
        self.news(index);
    }

    /// An owner is to stay after all. What is under way ends as it is, and comes back in its turn: the owner may have
    /// released it already.
    pub(super) fn undrain(&mut self, index: u32) {
        let Some(member) = self.members.get_mut(&index).filter(|member| member.record.draining) else { return };
        member.drain_until = None;
        self.due.cancel(&Due::Drain(index));
        if self.mutant == Some(Mutant::MovesCutShort) {
            let tokens: Vec<u64> = self.moves.by_owner.get(&index).into_iter().flatten().copied().collect();
            tokens.into_iter().for_each(|token| self.give_up_move(token));
        }
        self.change_record(index, |record| record.draining = false);
        self.news(index);
    }
}
