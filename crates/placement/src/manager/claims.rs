//! What an owner says: who it is (F4), whether it speaks to us now (F2, F5), and what it holds.

use super::file::{Kind, OWNERS_PER_FILE};
use super::pool::{MAX_OWNER_FILES, Member, Poll, Pool, Talk};
use super::table::{Holder, arc};
use super::{Output, fail};
use crate::Leased;
use crate::mutant::Mutant;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, KeyRange, LeaseNumber, Mono, OpId, Outbox, Seeded};
use tidings_wire::v1;

/// The longest name or address of an owner.
const MAX_NAME: usize = 256;

/// The pause after a race: random, so that the two do not meet again.
const CALM: (u64, u64) = (20, 100);

/// Refused grants in a row after which an owner gets none for a while.
const STRIKES: u32 = 3;

/// The points of an owner that says nothing about it (§2: 64 virtual nodes).
pub(super) const VIRTUAL_NODES: u32 = 64;

/// The most points of an owner: a join cuts the ring at each of them.
pub(super) const MAX_VIRTUAL_NODES: u32 = 1_024;

impl Pool {
    /// Takes an owner's poll. Its answer leaves with [`Pool::answer`].
    #[allow(clippy::too_many_arguments)] // What a poll meets on its way in; a struct of them would have one user.
    pub(super) fn hear(
        &mut self,
        now: Mono,
        epoch: u64,
        op: OpId,
        poll: v1::OwnerPoll,
        rng: &mut Seeded,
        mutant: Option<Mutant>,
        out: &mut Outbox<Output>,
    ) -> Result<(), Error> {
        check(&poll)?;
        let index = self.admit(now, &poll)?;
        let honoured = self.times.honoured();
        let renew = self.times.renew;
        let Some(member) = self.members.get_mut(&index) else { return Ok(()) };
        let known = member.talk.as_ref().is_some_and(|talk| talk.nonce == poll.nonce);
        if !known {
            let old = member.talk.replace(Talk {
                nonce: poll.nonce,
                seq: 0,
                heard: 0,
                spoke: false,
                poll: None,
                news: false,
                confirm: Vec::new(),
            });
            if let Some(old) = old.and_then(|talk| talk.poll) {
                fail(out, old.op, superseded());
            }
        }
        let Some(talk) = member.talk.as_mut() else { return Ok(()) };
        let unordered = mutant == Some(Mutant::NoSequenceNumbers);
        if poll.seq <= talk.heard && !unordered {
            return Err(duplicate());
        }
        if let Some(old) = talk.poll.take() {
            fail(out, old.op, superseded());
        }
        // F5: sent before it heard our latest: what it says may contradict what we said.
        let race = poll.heard != talk.seq && !unordered;
        if !race || mutant != Some(Mutant::HeardNotAdvanced) {
            talk.heard = poll.seq;
        }
        let hello = poll.epoch < epoch || !known;
        let calm = if race && !hello { Duration::from_millis(rng.between(CALM.0, CALM.1)) } else { Duration::ZERO };
        let wait = Duration::from_millis(poll.wait_ms.into()).min(renew);
        talk.poll = Some(Poll { op, until: now + wait, not_before: now + calm, hello });
        talk.news |= race;
        talk.spoke |= !hello;
        self.counts.races += u64::from(race && !hello);
        let came_back = member.live_until <= now;
        member.live_until = now + honoured;
        member.hands_over = poll.hands_over;
        if let Some(load) = &poll.load {
            member.load = load.clone();
        }
        self.stale_plan |= came_back;
        if poll.draining {
            self.drain(now, index);
        }
        if (hello && mutant != Some(Mutant::NoHello)) || race {
            return Ok(());
        }
        self.take_claims(now, index, &poll);
        Ok(())
    }

    /// F4: one live process for a name. Which owner it is, recorded or about to be.
    fn admit(&mut self, now: Mono, poll: &v1::OwnerPoll) -> Result<u32, Error> {
        let Some(index) = self.by_id.get(&poll.owner).copied() else { return self.register(poll) };
        let Some(member) = self.members.get(&index) else { return self.register(poll) };
        let record = &member.record;
        if poll.incarnation < record.incarnation {
            return Err(Error::new(
                "placement.stale_incarnation",
                Class::Refused,
                format!("a later process of owner `{}` has registered", record.id),
            )
            .hint("Stop this process; it was replaced."));
        }
        // One conversation a process: another one under the same number is another process that counts wrongly.
        let stranger = member.talk.as_ref().is_some_and(|talk| talk.nonce != poll.nonce);
        if poll.incarnation == record.incarnation && !stranger {
            if poll.address != record.address {
                self.change_record(index, |record| record.address = poll.address.clone());
            }
            return Ok(index);
        }
        let proven = poll.proof.is_some() && poll.proof == record.proof;
        let leased = self.table.of_owner(index).into_iter().any(|start| {
            self.table.get(start).is_some_and(|range| now < range.until && range.holder != Holder::Nobody)
        });
        if leased && !proven {
            return Err(Error::new(
                "placement.owner_id_in_use",
                Class::Refused,
                format!("another process of owner `{}` may still hold leases", record.id),
            )
            .hint("Wait until they end, or give each process its own name."));
        }
        // Whatever the earlier process held is lost with it: new numbers, and a loss, even if it comes back here.
        for start in self.table.of_owner(index) {
            self.release(start);
        }
        self.change_record(index, |record| {
            record.incarnation = poll.incarnation;
            record.address = poll.address.clone();
            record.proof = poll.proof.clone();
            record.draining = false;
        });
        if let Some(member) = self.members.get_mut(&index) {
            (member.talk, member.strikes, member.barred_until) = (None, 0, Mono(0));
            // Until the new record is in the cell nothing may be granted under it.
            member.committed = false;
        }
        Ok(index)
    }

    fn register(&mut self, poll: &v1::OwnerPoll) -> Result<u32, Error> {
        let index = self.members.last_key_value().map_or(1, |(last, _)| last + 1);
        if index >= MAX_OWNER_FILES as u32 * OWNERS_PER_FILE {
            return Err(Error::new(
                "placement.too_many_owners",
                Class::Refused,
                "the namespace has no room for owners",
            )
            .hint("Delete and create the namespace anew, or use several."));
        }
        let virtual_nodes = match self.meta.config.as_ref().map_or(0, |config| config.virtual_nodes) {
            0 => VIRTUAL_NODES,
            n => n.min(MAX_VIRTUAL_NODES),
        };
        let record = v1::TableOwner {
            index,
            id: poll.owner.clone(),
            address: poll.address.clone(),
            incarnation: poll.incarnation,
            draining: false,
            virtual_nodes,
            proof: poll.proof.clone(),
        };
        self.by_id.insert(poll.owner.clone(), index);
        self.members.insert(index, Member::new(record));
        self.commits.want(owners_file(index));
        Ok(index)
    }

    /// Changes an owner's record, to be committed.
    pub(super) fn change_record(&mut self, index: u32, change: impl FnOnce(&mut v1::TableOwner)) {
        if let Some(member) = self.members.get_mut(&index) {
            change(&mut member.record);
            self.commits.want(owners_file(index));
            self.stale_plan = true;
        }
    }

    /// Takes the complete set of what an owner believes it holds.
    fn take_claims(&mut self, now: Mono, index: u32, poll: &v1::OwnerPoll) {
        let mut claims: BTreeMap<LeaseNumber, Vec<KeyRange>> = BTreeMap::new();
        for claim in poll.claims.iter().filter_map(Leased::of) {
            claims.entry(claim.lease).or_default().push(claim.range);
        }
        claims.values_mut().for_each(|ranges| ranges.sort_by_key(|range| range.start));
        for handover in &poll.released {
            self.handed_over(now, index, handover);
        }
        for handover in &poll.imported {
            self.moves.imported(handover.token, index);
        }
        self.cut_at_claims(index, &claims);
        let mut refused = false;
        for start in self.table.of_owner(index) {
            let Some(range) = self.table.get(start).copied() else { continue };
            let pieces = claims.get(&range.lease).map_or(&[][..], Vec::as_slice);
            let claimed = covered(pieces, arc(start, &range));
            match range.holder {
                // What could not be cut is released when all of it is given up.
                _ if !claimed && pieces.iter().any(|piece| piece.overlaps(arc(start, &range))) => {}
                Holder::Nobody | Holder::Committing | Holder::Fresh if !claimed => {}
                Holder::Nobody | Holder::Committing => {}
                // It heard of the grant and does not hold it: refused, or lapsed already.
                Holder::Sent(seq) if !claimed && poll.heard >= seq => {
                    refused = true;
                    self.release(start);
                }
                Holder::Sent(_) if !claimed => {}
                Holder::Loaded | Holder::Claimed if !claimed => self.release(start),
                Holder::Loaded | Holder::Claimed | Holder::Fresh | Holder::Sent(_) => {
                    if let Some(range) = self.table.get_mut(start) {
                        range.holder = Holder::Claimed;
                        if let Some(token) = range.token.take() {
                            self.moves.finished(token);
                        }
                    }
                }
            }
        }
        self.strike(now, index, refused || !poll.refused.is_empty());
    }

    /// Cuts where an owner holds only a part of what is recorded: an earlier leader had cut the range and taken back the
    /// rest, and its cut was never committed. What the owner still holds must not be given away with the rest.
    fn cut_at_claims(&mut self, index: u32, claims: &BTreeMap<LeaseNumber, Vec<KeyRange>>) {
        for start in self.table.of_owner(index) {
            let Some(range) = self.table.get(start).copied() else { continue };
            let whole = arc(start, &range);
            let Some(pieces) = claims.get(&range.lease).filter(|pieces| !covered(pieces, whole)) else { continue };
            let edges = pieces.iter().flat_map(|piece| [Some(piece.start), piece.last.0.checked_add(1).map(KeyHash)]);
            for at in edges.flatten().filter(|at| *at != start && whole.contains(*at)) {
                let held = !matches!(range.holder, Holder::Nobody | Holder::Committing);
                if self.table.cut(at) && held && range.until > Mono(0) {
                    self.expiry.insert((range.until, at));
                }
            }
        }
    }

    fn strike(&mut self, now: Mono, index: u32, refused: bool) {
        let pause = self.times.renew;
        let Some(member) = self.members.get_mut(&index) else { return };
        member.strikes = if refused { member.strikes + 1 } else { 0 };
        if member.strikes >= STRIKES {
            member.strikes = 0;
            member.barred_until = now + pause;
            self.stale_plan = true;
        }
    }

    /// A range is held by nobody from now on.
    pub(super) fn release(&mut self, start: KeyHash) {
        let Some(range) = self.table.get_mut(start) else { return };
        if matches!(range.holder, Holder::Committing) {
            return;
        }
        range.holder = Holder::Nobody;
        self.expiry.remove(&(range.until, start));
        self.idle.insert(start);
    }
}

/// Whether sorted pieces cover an arc without a gap. The owner's cuts may be older or newer than ours.
fn covered(pieces: &[KeyRange], arc: KeyRange) -> bool {
    let mut at = arc.start;
    for piece in pieces {
        if piece.start <= at && at <= piece.last {
            if piece.last >= arc.last {
                return true;
            }
            at = KeyHash(piece.last.0 + 1);
        }
    }
    false
}

fn check(poll: &v1::OwnerPoll) -> Result<(), Error> {
    let bad = |what: &str| {
        Err(Error::new("placement.bad_owner", Class::Invalid, format!("the owner's {what} cannot be used"))
            .hint(format!("Owners have a name and an address of 1 to {MAX_NAME} bytes, and an incarnation above 0.")))
    };
    if poll.owner.is_empty() || poll.owner.len() > MAX_NAME {
        return bad("name");
    }
    if poll.address.is_empty() || poll.address.len() > MAX_NAME || poll.address.contains(char::is_whitespace) {
        return bad("address");
    }
    if poll.incarnation == 0 {
        return bad("incarnation");
    }
    Ok(())
}

pub(super) fn owners_file(index: u32) -> Kind {
    Kind::Owners((index / OWNERS_PER_FILE) as u8)
}

fn superseded() -> Error {
    Error::new("placement.superseded", Class::Unreachable, "a later poll of this owner came")
}

fn duplicate() -> Error {
    Error::new("placement.duplicate", Class::Unreachable, "this poll, or a later one, was heard already")
}
