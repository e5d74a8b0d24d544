//! What an owner says: who it is (F4), whether it speaks to us now (F2, F5), and what it holds.

use super::file::{Kind, OWNERS_PER_FILE};
use super::plan::is_leased;
use super::pool::{Due, MAX_OWNER_FILES, Member, Poll, Pool, Talk};
use super::table::{Holder, Intent, arc};
use super::{Output, fail};
use crate::Leased;
use crate::mutant::Mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, KeyRange, LeaseNumber, Mono, OpId, Outbox, Seeded};
use tidings_wire::v1;

/// The longest name or address of an owner.
const MAX_NAME: usize = 256;

/// The longest part of a proof (F4): so many owners fit a file.
const MAX_PROOF: usize = 128;

/// The pause after a race: random, so that the two do not meet again.
const CALM: (u64, u64) = (20, 100);

/// Refused grants in a row after which an owner gets none for a while.
const STRIKES: u32 = 3;

/// The most points of an owner: a join cuts the ring at each of them.
pub(super) const MAX_VIRTUAL_NODES: u32 = 1_024;

impl Pool {
    /// Takes an owner's poll. Its answer leaves with [`Pool::answer`].
    #[allow(clippy::too_many_arguments)] // What a poll meets on its way in; a struct of them would have one user.
    pub(super) fn hear(
        &mut self,
        epoch: u64,
        op: OpId,
        poll: v1::OwnerPoll,
        rng: &mut Seeded,
        mutant: Option<Mutant>,
        out: &mut Outbox<Output>,
    ) -> Result<(), Error> {
        check(&poll)?;
        let index = self.admit(&poll, out)?;
        let (now, renew) = (self.now, self.times.renew);
        let Some(member) = self.members.get_mut(&index) else { return Ok(()) };
        // Whoever is admitted is the one that we talk with, or nobody was yet.
        let known = member.talk.is_some();
        let talk = member.talk.get_or_insert(Talk {
            nonce: poll.nonce,
            // It may have heard from us before it was forgotten: answers that count less would be old ones to it.
            seq: if poll.epoch == epoch { poll.heard.min(u64::MAX >> 1) } else { 0 },
            heard: 0,
            spoke: false,
            poll: None,
            news: None,
            confirm: Vec::new(),
            arrived: Vec::new(),
        });
        let unordered = mutant == Some(Mutant::NoSequenceNumbers);
        if poll.seq <= talk.heard && !unordered {
            return Err(duplicate());
        }
        if let Some(old) = talk.poll.take() {
            self.polls.remove(&old.op);
            fail(out, old.op, superseded());
        }
        // F5: sent before it heard our latest: what it says may contradict what we said.
        let race = poll.heard != talk.seq && !unordered;
        if !race || mutant != Some(Mutant::HeardNotAdvanced) {
            talk.heard = poll.seq;
        }
        talk.arrived = poll.imported.iter().map(|arrived| arrived.token).collect();
        let hello = poll.epoch < epoch || !known;
        let calm = if race && !hello { Duration::from_millis(rng.between(CALM.0, CALM.1)) } else { Duration::ZERO };
        let wait = Duration::from_millis(poll.wait_ms.into()).min(renew);
        talk.poll = Some(Poll { op, until: now + wait, not_before: now + calm, hello });
        if race {
            talk.news.get_or_insert(now);
        }
        let first = !hello && !talk.spoke;
        talk.spoke |= !hello;
        self.counts.races += u64::from(race && !hello);
        member.hands_over = poll.hands_over;
        member.leaving = poll.draining;
        if std::mem::replace(&mut member.healthy, !poll.unhealthy) == poll.unhealthy {
            self.dirty.insert(index);
        }
        self.polls.insert(op, index);
        self.lives(index);
        if first {
            self.try_later(index);
        }
        if let Some(load) = &poll.load {
            self.weigh(index, load);
        }
        if poll.draining {
            self.drain(index);
        }
        self.arm(index);
        if (hello && mutant != Some(Mutant::NoHello)) || race {
            return Ok(());
        }
        self.take_claims(index, &poll);
        // It holds nothing, and does not wait to be given anything: it has left.
        if poll.unhealthy && poll.wait_ms == 0 {
            self.left(index);
        }
        Ok(())
    }

    /// F4: one live process for a name. Which owner it is, recorded or about to be.
    fn admit(&mut self, poll: &v1::OwnerPoll, out: &mut Outbox<Output>) -> Result<u32, Error> {
        let Some(index) = self.by_id.get(&poll.owner).copied() else { return self.register(poll) };
        let Some(member) = self.members.get(&index) else { return self.register(poll) };
        let record = &member.record;
        // Whoever has been answered before was there first. Whoever has not may be the later one, whatever it counts: its wall
        // clock was set back. It waits as any other does.
        if poll.incarnation < record.incarnation && poll.epoch > 0 {
            return Err(Error::new(
                "placement.stale_incarnation",
                Class::Refused,
                format!("a later process of owner `{}` has registered", record.id),
            )
            .hint("Stop this process; it was replaced."));
        }
        // One conversation a process: another one under the same number is another process that counts wrongly, also for
        // a leader that has not spoken with either.
        let known = match self.mutant {
            Some(Mutant::TwinTaken) => member.talk.as_ref().map_or(poll.nonce, |talk| talk.nonce),
            _ => record.nonce,
        };
        if (poll.incarnation, poll.nonce) == (record.incarnation, known) {
            if poll.address != record.address {
                self.change_record(index, |record| record.address = poll.address.clone());
            }
            return Ok(index);
        }
        // Whoever held the lock when it sent this may be long dead when it arrives. Those who share a lock count on from each
        // other, so only one that counts more is the later one.
        let later = poll.incarnation > record.incarnation;
        let proven = later && poll.proof.is_some() && poll.proof == record.proof;
        let leased = self
            .table
            .of_owner(index)
            .into_iter()
            .any(|start| self.table.get(start).is_some_and(|range| self.now < range.until && is_leased(range)));
        // One that does not count more is not known to be the later one: whoever is recorded stays until it is silent, or
        // the two would take the name from each other for ever.
        let speaks = !later && self.now < member.live_until;
        if (leased || speaks) && !proven {
            return Err(Error::new(
                "placement.owner_id_in_use",
                Class::Refused,
                format!("another process of owner `{}` may still hold leases", record.id),
            )
            .hint("Wait until they end, or give each process its own name."));
        }
        // Whatever the earlier process held is lost with it: new numbers, and a loss, even if it comes back here.
        for start in self.table.of_owner(index) {
            if let Some(Intent::Move { token }) = self.table.get(start).map(|range| range.intent) {
                self.give_up_move(token);
            }
            self.release(start);
        }
        self.change_record(index, |record| {
            record.incarnation = poll.incarnation;
            record.address = poll.address.clone();
            record.proof = poll.proof.clone();
            record.nonce = poll.nonce;
            record.draining = false;
        });
        if let Some(member) = self.members.get_mut(&index) {
            let old = member.talk.take().and_then(|talk| talk.poll);
            (member.strikes, member.barred_until, member.drain_until) = (0, Mono(0), None);
            // Until the new record is in the cell nothing may be granted under it.
            member.committed = false;
            if let Some(old) = old {
                self.polls.remove(&old.op);
                fail(out, old.op, superseded());
            }
        }
        self.due.cancel(&Due::Drain(index));
        Ok(index)
    }

    fn register(&mut self, poll: &v1::OwnerPoll) -> Result<u32, Error> {
        // The first that is free: records of owners that are gone for long were forgotten.
        let taken = self.members.keys().zip(1..).take_while(|(index, n)| **index == *n).count();
        let index = taken as u32 + 1;
        if index >= MAX_OWNER_FILES as u32 * OWNERS_PER_FILE {
            return Err(Error::new(
                "placement.too_many_owners",
                Class::Refused,
                "the namespace has no room for owners",
            )
            .hint("Owners that are gone are forgotten after ten leases; or use several namespaces."));
        }
        let virtual_nodes = match self.meta.config.as_ref().map_or(0, |config| config.virtual_nodes) {
            0 => crate::config::VIRTUAL_NODES,
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
            nonce: poll.nonce,
            changed_lsn: 0,
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
            self.dirty.insert(index);
        }
    }

    /// Takes the complete set of what an owner believes it holds.
    fn take_claims(&mut self, index: u32, poll: &v1::OwnerPoll) {
        let mut claims: BTreeMap<LeaseNumber, Vec<KeyRange>> = BTreeMap::new();
        for claim in poll.claims.iter().filter_map(Leased::of) {
            claims.entry(claim.lease).or_default().push(claim.range);
        }
        claims.values_mut().for_each(|ranges| ranges.sort_by_key(|range| range.start));
        for handover in &poll.released {
            self.handed_over(index, handover);
        }
        self.cut_at_claims(index, &claims);
        let takes = !poll.unhealthy && self.mutant != Some(Mutant::MovesForgotten);
        let (mut refused, mut accepted, mut again) = (false, false, false);
        let said: BTreeSet<u32> = poll.refused.iter().map(|range| range.lease).collect();
        let silent = self.members.get(&index).map_or(0, |member| member.strikes) + 1;
        for start in self.table.of_owner(index) {
            let Some(range) = self.table.get(start).copied() else { continue };
            let pieces = claims.get(&range.lease).map_or(&[][..], Vec::as_slice);
            let claimed = covered(pieces, arc(start, &range));
            match range.holder {
                // What could not be cut is released when all of it is given up.
                _ if !claimed && pieces.iter().any(|piece| piece.overlaps(arc(start, &range))) => {}
                Holder::Nobody | Holder::Committing => {}
                Holder::Fresh if !claimed => {}
                // It heard of the grant and does not hold it. If it does not say that it refused it, the answer crossed a
                // message of its own and was dropped (F5): nobody has had it, and it may be granted again as it is.
                Holder::Sent(seq) if !claimed && poll.heard >= seq => {
                    // What was recalled meanwhile was refused by nobody, and is not to be granted again: it is free.
                    let recalled = range.intent == Intent::Recall;
                    refused |= !recalled;
                    if recalled || said.contains(&range.lease.get()) || silent >= STRIKES {
                        self.release(start);
                    } else {
                        // What is not leased has no end that could pass unnoticed: the next grant dates it anew.
                        self.table.update(start, |range| (range.holder, range.until) = (Holder::Fresh, Mono(0)));
                        again = true;
                    }
                }
                Holder::Sent(_) if !claimed => {}
                // F9: an earlier leader recorded it together with its state, and did not live to tell. The receiver refuses
                // what it had once, or has no state of.
                Holder::Loaded if !claimed && range.token.is_some() && range.intent == Intent::Stay && takes => {
                    self.table.update(start, |range| (range.holder, range.until) = (Holder::Fresh, Mono(0)));
                    again = true;
                }
                Holder::Loaded | Holder::Claimed if !claimed => {
                    if let Intent::Move { token } = range.intent {
                        self.give_up_move(token);
                    }
                    self.release(start);
                }
                Holder::Claimed => {}
                Holder::Loaded | Holder::Fresh | Holder::Sent(_) => {
                    if let Some(token) = range.token {
                        self.moves.end(token);
                    }
                    self.table.update(start, |range| (range.holder, range.token) = (Holder::Claimed, None));
                    accepted = true;
                    self.unsettled.insert(start);
                }
            }
        }
        if again {
            self.news(index);
        }
        if accepted && let Some(member) = self.members.get_mut(&index) {
            member.strikes = 0;
        }
        self.strike(index, refused || !poll.refused.is_empty());
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
                self.cut(at);
            }
        }
    }

    fn strike(&mut self, index: u32, refused: bool) {
        let until = self.now + self.times.renew;
        let Some(member) = self.members.get_mut(&index) else { return };
        member.strikes += u32::from(refused);
        if member.strikes >= STRIKES {
            member.strikes = 0;
            member.barred_until = until;
            self.due.set(Due::Bar(index), until);
        }
    }
}

/// Whether sorted pieces cover an arc without a gap. The owner's cuts may be older or newer than ours.
fn covered(pieces: &[KeyRange], arc: KeyRange) -> bool {
    let mut at = arc.start;
    let first = pieces.partition_point(|piece| piece.last < arc.start);
    for piece in &pieces[first..] {
        if piece.start > at {
            return false;
        }
        if piece.start <= at && at <= piece.last {
            if piece.last >= arc.last {
                return true;
            }
            at = KeyHash(piece.last.0 + 1);
        }
    }
    false
}

/// Whether requests could be sent there: a host and a port, or a URL, whose scheme may stand for the port.
fn is_address(address: &str) -> bool {
    let plain = !address.contains(|c: char| c.is_whitespace() || c.is_control());
    let (scheme, rest) = address.split_once("://").map_or((None, address), |(scheme, rest)| (Some(scheme), rest));
    let at = match scheme {
        Some(_) => rest.split(['/', '?', '#']).next().unwrap_or_default(),
        None => rest,
    };
    // An IPv6 address is all colons: it stands in brackets.
    let (host, port) = match at.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, after)) => (host, Some(after.strip_prefix(':').unwrap_or_default())),
        None => at.split_once(':').map_or((at, None), |(host, port)| (host, Some(port))),
    };
    let has_port = match port {
        Some(port) => port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0),
        None => scheme.is_some(),
    };
    let named = !host.is_empty() && !host.contains(['/', '?', '#', '@', '[', ']']);
    plain && scheme != Some("") && named && has_port
}

/// Refuses what requests could not be sent to.
pub fn check_address(address: &str) -> Result<(), Error> {
    if address.len() <= MAX_NAME && is_address(address) {
        return Ok(());
    }
    let address: String = address.chars().take(80).collect();
    Err(Error::new("placement.bad_address", Class::Invalid, format!("`{address}` is not an address"))
        .hint("Use `host:port`, `[::1]:port` or a URL, of at most 256 bytes."))
}

fn check(poll: &v1::OwnerPoll) -> Result<(), Error> {
    let bad = |what: &str| {
        Err(Error::new("placement.bad_owner", Class::Invalid, format!("the owner's {what} cannot be used"))
            .hint(format!("Owners have a name of 1 to {MAX_NAME} bytes, an incarnation above 0, and short proofs.")))
    };
    if poll.owner.is_empty() || poll.owner.len() > MAX_NAME {
        return bad("name");
    }
    check_address(&poll.address)?;
    let long = |proof: &v1::ExclusivityProof| proof.boot_id.len().max(proof.lock_id.len()) > MAX_PROOF;
    if poll.proof.as_ref().is_some_and(long) {
        return bad("proof");
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
