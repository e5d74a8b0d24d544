//! Clean migrations (F9): freeze, copy, import, release, confirm, grant with the clean mark.

use super::pool::Pool;
use super::table::{Holder, Intent, arc};
use crate::Leased;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{KeyHash, Mono, Seeded};
use tidings_wire::v1;

/// How long a hand-over may take while rebalancing; then the owner keeps the range.
const PATIENCE: Duration = Duration::from_secs(30);

/// After a failed hand-over none begins for so long, unless an owner drains.
const COOL: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
struct Moving {
    start: KeyHash,
    leased: Leased,
    from: u32,
    to: u32,
    /// The token is bound to this process of the receiver.
    incarnation: u64,
    until: Mono,
    imported: bool,
    released: bool,
}

/// All moves of a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Moves {
    under_way: BTreeMap<u64, Moving>,
    cool_until: Mono,
}

impl Moves {
    /// How many are under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// The receiver has the state.
    pub(super) fn imported(&mut self, token: u64, by: u32) {
        if let Some(moving) = self.under_way.get_mut(&token).filter(|moving| moving.to == by) {
            moving.imported = true;
        }
    }

    /// The receiver has claimed the range.
    pub(super) fn finished(&mut self, token: u64) {
        self.under_way.remove(&token);
    }

    /// When the next move is given up.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.under_way.values().filter(|moving| !moving.released).map(|moving| moving.until).min()
    }

    /// Where a released range goes with its state.
    pub(super) fn clean_target(&self, token: u64) -> Option<u32> {
        self.under_way.get(&token).filter(|moving| moving.released).map(|moving| moving.to)
    }
}

impl Pool {
    /// Whether a clean move of a range may begin now.
    pub(super) fn may_move(&self, now: Mono, from: u32, to: u32, draining: bool) -> bool {
        let able = |index| self.members.get(&index).is_some_and(|member| member.hands_over && now < member.live_until);
        able(from) && able(to) && (draining || now >= self.moves.cool_until)
    }

    /// Begins a clean move.
    pub(super) fn begin_move(&mut self, now: Mono, start: KeyHash, to: u32, rng: &mut Seeded) {
        let Some(incarnation) = self.members.get(&to).map(|member| member.record.incarnation) else { return };
        let Some(range) = self.table.get_mut(start) else { return };
        let token = rng.next_u64() | 1;
        range.intent = Intent::Move { token };
        let leased = Leased { range: arc(start, range), lease: range.lease };
        let from = range.owner;
        let until = now + PATIENCE;
        let moving = Moving { start, leased, from, to, incarnation, until, imported: false, released: false };
        self.moves.under_way.insert(token, moving);
        self.news(from);
        self.news(to);
    }

    /// The holder says that it released a range under a token, or that it could not.
    pub(super) fn handed_over(&mut self, now: Mono, by: u32, handover: &v1::Handover) {
        let token = handover.token;
        let Some(moving) = self.moves.under_way.get_mut(&token).filter(|moving| moving.from == by) else {
            // Given up here, or done long ago: nothing is left to wait for.
            return self.confirm(by, token);
        };
        if moving.released {
            return;
        }
        if handover.failed {
            self.moves.cool_until = now + COOL;
            return self.give_up_move(token);
        }
        let (start, to, incarnation) = (moving.start, moving.to, moving.incarnation);
        let same = self.members.get(&to).is_some_and(|member| member.record.incarnation == incarnation);
        if same {
            moving.released = true;
        } else {
            self.moves.under_way.remove(&token);
            self.confirm(by, token);
        }
        self.release(start);
    }

    /// Gives a move up: the holder keeps the range and serves it again.
    pub(super) fn give_up_move(&mut self, token: u64) {
        let Some(moving) = self.moves.under_way.remove(&token) else { return };
        if let Some(range) = self.table.get_mut(moving.start)
            && range.intent == (Intent::Move { token })
        {
            range.intent = Intent::Stay;
        }
        self.news(moving.from);
        self.news(moving.to);
        self.stale_plan = true;
    }

    /// Moves that took too long.
    pub(super) fn late_moves(&mut self, now: Mono) {
        let late = self.moves.under_way.iter().filter(|(_, moving)| !moving.released && moving.until <= now);
        for token in late.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.moves.cool_until = now + COOL;
            self.give_up_move(token);
        }
    }

    /// The new record is in the cell: the old holder may forget the range.
    pub(super) fn move_committed(&mut self, token: u64) {
        if let Some(from) = self.moves.under_way.get(&token).map(|moving| moving.from) {
            self.confirm(from, token);
        }
    }

    fn confirm(&mut self, owner: u32, token: u64) {
        if let Some(talk) = self.members.get_mut(&owner).and_then(|member| member.talk.as_mut())
            && !talk.confirm.contains(&token)
        {
            talk.confirm.push(token);
            talk.news = true;
        }
    }

    /// The moves that an owner is part of: out of it, and into it.
    pub(super) fn moves_of(&self, owner: u32) -> (Vec<v1::Move>, Vec<v1::Move>) {
        let message = |token: u64, moving: &Moving, other: u32| {
            let other = self.members.get(&other).map(|member| member.record.clone()).unwrap_or_default();
            v1::Move {
                range: Some(moving.leased.into()),
                token,
                owner: other.id,
                address: other.address,
                incarnation: other.incarnation,
                within_ms: PATIENCE.as_millis() as u32,
            }
        };
        let open = self.moves.under_way.iter().filter(|(_, moving)| !moving.released);
        let outward = open.clone().filter(|(_, moving)| moving.from == owner);
        let inward = self.moves.under_way.iter().filter(|(_, moving)| moving.to == owner);
        (
            outward.map(|(token, moving)| message(*token, moving, moving.to)).collect(),
            inward.map(|(token, moving)| message(*token, moving, moving.from)).collect(),
        )
    }

    /// What remains of a draining owner when its time is over is recalled as it is.
    pub(super) fn drain_ends(&mut self, now: Mono) {
        let over = self.members.iter().filter(|(_, member)| member.drain_until.is_some_and(|at| at <= now));
        for index in over.map(|(index, _)| *index).collect::<Vec<_>>() {
            if let Some(member) = self.members.get_mut(&index) {
                member.drain_until = None;
            }
            for start in self.table.of_owner(index) {
                let Some(range) = self.table.get(start).copied() else { continue };
                if let Intent::Move { token } = range.intent {
                    self.give_up_move(token);
                }
                if let Some(range) = self.table.get_mut(start).filter(|range| range.holder != Holder::Committing) {
                    range.intent = Intent::Recall;
                }
            }
            self.news(index);
        }
    }

    /// An owner is to leave.
    pub(super) fn drain(&mut self, now: Mono, index: u32) {
        let until = now + self.drain_time();
        let Some(member) = self.members.get_mut(&index).filter(|member| !member.record.draining) else { return };
        member.drain_until = Some(until);
        self.change_record(index, |record| record.draining = true);
        self.news(index);
    }
}
