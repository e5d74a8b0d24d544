//! A client's messages: changes of registrations in the order of their numbers, acks, and what they are answered with.

use super::pending::Pending;
use super::state::{After, Asking, Client, Reg};
use super::{Ask, AskId, MAX_ASKS, Output, Registrar, Verdict};
use crate::digest;
use crate::mutant::Mutant;
use crate::names::{Channel, ClientKey, MAX_NAME, MAX_VERSION};
use crate::rows::{self, ENDED, LOG, PENDING_OF, REG, TOLD, UNK};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{Now, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// Changes of one message: with their names they fit one write of a row.
const MAX_CHANGES: usize = 512;
/// Acks of one message.
const MAX_ACKS: usize = 4_096;

impl Registrar {
    pub(super) fn up(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (channel, session): (Channel, u64),
        up: v1::NotifyUp,
        out: &mut Outbox<Output>,
    ) {
        let refused = match () {
            // F10: going online reads `created`.
            () if !client.created && !self.is(Mutant::CreatedIgnored) => Some(v1::NotifyRefused::InvalidId),
            () if session < client.session && !self.is(Mutant::SupersededAccepted) => {
                Some(v1::NotifyRefused::Superseded)
            }
            () if session > client.session && client.created => Some(v1::NotifyRefused::InvalidId),
            // As long as it has no other id it hears of everything under this one.
            () if self.is_worn(client) && !up.goodbye => Some(v1::NotifyRefused::InvalidId),
            () if !fits(&up) => Some(v1::NotifyRefused::Invalid),
            () => None,
        };
        if let Some(reason) = refused {
            return self.refuse((key.hash(), channel), session, reason, 0, out);
        }
        // What an earlier connection still had on its way was said again by the later one, and more after it.
        if client.channel.is_some() && up.contact < client.contact && session == client.session {
            return;
        }
        client.heard = now.mono;
        if up.goodbye {
            up.acks.iter().for_each(|ack| self.ack(client, ack, out));
            return self.goodbye(now, key, client, channel, !client.persistent);
        }
        if self.meet(now, key, client, (channel, up.contact)) {
            self.push_all(now, key, client, out);
        }
        if client.op.is_none() {
            client.op = Some(up.first.saturating_sub(1));
        }
        let asks = self.options.hooks.ask(key.app());
        let names = if asks { self.unasked(client, &up) } else { BTreeSet::new() };
        if names.is_empty() {
            return self.apply(now, key, client, channel, up, &BTreeMap::new(), out);
        }
        if self.asks.len() + names.len() > MAX_ASKS {
            // The client says it again.
            return;
        }
        let mut asking = Asking { channel, up, waiting: BTreeSet::new(), verdicts: BTreeMap::new() };
        for object in names {
            let id = AskId(self.id());
            asking.waiting.insert(id);
            self.asks.insert(id, Ask { client: key.clone(), channel, object: object.clone(), news: None });
            out.put(Output::Authorize { id, client: key.clone(), channel, object, sending: false });
        }
        client.asking = Some(Box::new(asking));
    }

    /// The objects that a message would register.
    fn unasked(&self, client: &Client, up: &v1::NotifyUp) -> BTreeSet<Bytes> {
        let interests = numbered(client, up).flat_map(|(_, change)| match change {
            Change::Register(interest) => vec![interest.object.clone()],
            Change::Replace(all) => all.objects.iter().map(|interest| interest.object.clone()).collect(),
            Change::Unregister(_) => Vec::new(),
        });
        let absent = |name: &Bytes| self.names.find(name).and_then(|object| client.reg(object)).is_none();
        interests.filter(absent).collect()
    }

    pub(super) fn authorized_registration(
        &mut self,
        now: Now,
        key: &ClientKey,
        id: AskId,
        object: Bytes,
        verdict: Verdict,
        out: &mut Outbox<Output>,
    ) {
        let Some(mut client) = self.clients.remove(key) else { return };
        if let Some(mut asking) = client.asking.take() {
            asking.waiting.remove(&id);
            asking.verdicts.insert(object, verdict);
            match asking.waiting.is_empty() {
                true => {
                    let Asking { channel, up, verdicts, .. } = *asking;
                    self.apply(now, key, &mut client, channel, up, &verdicts, out);
                }
                false => client.asking = Some(asking),
            }
        }
        self.clients.insert(key.clone(), client);
        self.run(now, key, out);
    }

    #[allow(clippy::too_many_arguments)]
    fn apply(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        channel: Channel,
        up: v1::NotifyUp,
        verdicts: &BTreeMap<Bytes, Verdict>,
        out: &mut Outbox<Output>,
    ) {
        up.acks.iter().for_each(|ack| self.ack(client, ack, out));
        self.keeps_up(now, key, client, up.acks.len(), out);
        let mut statuses = Vec::new();
        let last = client.op.unwrap_or(0).max(up.first.saturating_sub(1));
        client.op = Some(last);
        let changes: Vec<(u64, Change)> =
            numbered(client, &up).map(|(number, change)| (number, change.clone())).collect();
        // Those that follow each other end together.
        let mut ending = Vec::new();
        for (number, change) in changes {
            if !matches!(change, Change::Unregister(_)) {
                self.unregister(now, key, client, &std::mem::take(&mut ending));
            }
            match change {
                Change::Register(interest) => {
                    statuses.extend(self.register(now, key, client, &interest, verdicts));
                }
                Change::Unregister(object) => ending.push(object),
                Change::Replace(all) => {
                    statuses.extend(self.replace(now, key, client, &all, verdicts));
                }
            }
            client.op = Some(number);
        }
        self.unregister(now, key, client, &ending);
        self.propagate(now, key, client, out);
        client.dirty.after.push(After::Reply { channel, statuses, query: up.query });
    }

    /// One change: written with its marker, then taken to the matcher; what it is refused with.
    fn register(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        interest: &v1::ObjectInterest,
        verdicts: &BTreeMap<Bytes, Verdict>,
    ) -> Option<v1::RegistrationStatus> {
        let name = &interest.object;
        let there = self.names.find(name).and_then(|object| client.reg(object)).is_some();
        let failure = match verdicts.get(name) {
            _ if !(1..=MAX_NAME).contains(&name.len()) => Some(v1::RegistrationFailure::Permanent),
            _ if !there && client.regs.len() >= self.options.max_registrations => {
                Some(v1::RegistrationFailure::Permanent)
            }
            Some(Verdict::No) => Some(v1::RegistrationFailure::Permanent),
            Some(Verdict::Unsure) => Some(v1::RegistrationFailure::Transient),
            // It was there when the application would have been asked, and is not any more.
            None if !there && self.options.hooks.ask(key.app()) => Some(v1::RegistrationFailure::Transient),
            Some(Verdict::Yes) | None => None,
        };
        if let Some(failure) = failure {
            return Some(v1::RegistrationStatus { object: name.clone(), registered: there, failure: failure.into() });
        }
        let seqno = self.seqno(key);
        let object = self.names.hold(name);
        let known = interest.known_version.min(MAX_VERSION);
        let reg = Reg { acked: known, ..Reg::new(object, seqno) };
        if !client.insert(reg, digest::hash(&key.uuid(), name)) {
            self.names.release(object);
        }
        client.put(rows::cell(rows::column(REG, name), seqno, Bytes::new()));
        self.mark(now, client, (object, name), (seqno, true), known);
        None
    }

    /// Ends registrations, as far as they are there.
    pub(super) fn unregister(&mut self, now: Now, key: &ClientKey, client: &mut Client, names: &[Bytes]) {
        let there = |name: &Bytes| self.names.find(name).filter(|object| client.reg(*object).is_some());
        let mut objects: Vec<(u32, Bytes)> =
            names.iter().filter_map(|name| Some((there(name)?, name.clone()))).collect();
        objects.sort_unstable();
        objects.dedup();
        client.ended += objects.len() as u64;
        let mut last = None;
        for (object, name) in &objects {
            let seqno = self.seqno(key);
            last = Some(seqno);
            // Nothing of it stays in the row. What a new registration must be told has a larger number (`told-`, `unk-`).
            let (told, logged) = client.reg(*object).map_or((false, 0), |reg| (reg.told, reg.logged));
            client.put(rows::gone(rows::column(REG, name), seqno));
            if told {
                client.put(rows::gone(rows::column(TOLD, name), seqno));
            }
            if logged > 0 {
                client.put(rows::gone(rows::column(LOG, name), logged));
            }
            if let Some(unknown) = client.unknown_of(*object) {
                client.put(rows::gone(rows::column(UNK, name), unknown));
            }
            self.mark(now, client, (*object, name), (seqno, false), 0);
        }
        if let Some(seqno) = last {
            client.put(rows::cell(ENDED, seqno, client.ended.to_be_bytes().to_vec()));
        }
        let gone: Vec<(u32, u128)> =
            objects.iter().map(|(object, name)| (*object, digest::hash(&key.uuid(), name))).collect();
        client.remove(&gone);
        objects.iter().for_each(|(object, _)| self.names.release(*object));
    }

    /// F5: the marker is in the same write as the change.
    fn mark(
        &mut self,
        now: Now,
        client: &mut Client,
        (object, name): (u32, &Bytes),
        (seqno, registered): (u64, bool),
        known: u64,
    ) {
        if !self.is(Mutant::NoMarker) {
            client.put(rows::cell(rows::column(PENDING_OF, name), seqno, known.to_be_bytes().to_vec()));
        }
        client.used(seqno, now.wall.millis());
        // Matchers hear of it when it is stable: of an end that is not, they would know what no registrar knows, and no
        // later look would find it.
        client.dirty.after.push(After::Spread { object, seqno });
        let pending = Pending { stored: self.is(Mutant::SpreadUnstored), ..Pending::new(seqno, registered) };
        self.spread(now, client, object, pending);
    }

    /// F7: these and no others.
    fn replace(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        all: &v1::Replacement,
        verdicts: &BTreeMap<Bytes, Verdict>,
    ) -> Vec<v1::RegistrationStatus> {
        let wanted: BTreeSet<&[u8]> = all.objects.iter().map(|interest| interest.object.as_ref()).collect();
        let here: Vec<Bytes> =
            client.regs.iter().map(|reg| Bytes::copy_from_slice(self.names.name(reg.object))).collect();
        let unwanted: Vec<Bytes> = here.iter().filter(|name| !wanted.contains(name.as_ref())).cloned().collect();
        self.unregister(now, key, client, &unwanted);
        let here: BTreeSet<Bytes> = here.into_iter().collect();
        let new: Vec<&v1::ObjectInterest> =
            all.objects.iter().filter(|interest| !here.contains(&interest.object)).collect();
        new.into_iter().filter_map(|interest| self.register(now, key, client, interest, verdicts)).collect()
    }

    /// F9: an ack counts up to what was sent in this session or is stored; F4: versions and unknowns apart.
    fn ack(&mut self, client: &mut Client, ack: &v1::NotificationAck, out: &mut Outbox<Output>) {
        let Some(object) = self.names.find(&ack.object) else { return };
        let clears = self.is(Mutant::AckClearsUnknown) && ack.version > 0;
        if client.unknown_of(object).is_some_and(|seqno| clears || seqno == ack.unknown)
            && let Some(seqno) = client.make_known(object)
        {
            client.put(rows::gone(rows::column(UNK, &ack.object), seqno));
        }
        let beyond = self.is(Mutant::FutureAckAccepted);
        let Some(reg) = client.reg_mut(object) else { return };
        if ack.version == 0 || (ack.version > reg.version.max(reg.logged) && !beyond) {
            return;
        }
        reg.acked = reg.acked.max(ack.version.min(MAX_VERSION));
        let (acked, logged, seqno) = (reg.acked, reg.logged, reg.seqno);
        let told = reg.told && reg.version <= acked;
        reg.told &= !told;
        if logged > 0 && logged <= acked {
            reg.logged = 0;
            // Not at what the client only said it knew: that would hide what it is told once it has registered anew.
            client.put(rows::gone(rows::column(LOG, &ack.object), logged.max(ack.version.min(MAX_VERSION))));
        }
        if told {
            client.put(rows::gone(rows::column(TOLD, &ack.object), seqno));
        }
        self.acked(client, &ack.object, acked, out);
    }
}

/// The changes of a message that come next, with their numbers: repeats are skipped, gaps end it.
fn numbered<'a>(client: &Client, up: &'a v1::NotifyUp) -> impl Iterator<Item = (u64, &'a Change)> {
    let last = client.op.unwrap_or(0).max(up.first.saturating_sub(1));
    let numbers = (0u64..).map_while(|at| up.first.checked_add(at));
    let changes = numbers.zip(&up.changes).filter(move |(number, _)| *number > last);
    changes.filter_map(|(number, change)| Some((number, change.change.as_ref()?)))
}

/// The limits of a message, beyond its size.
fn fits(up: &v1::NotifyUp) -> bool {
    let small = |change: &v1::RegistrationChange| match &change.change {
        Some(Change::Replace(all)) => all.objects.len() <= digest::REPLACE_UP_TO,
        _ => true,
    };
    let alone = up.changes.len() == 1 || !up.changes.iter().any(|c| matches!(c.change, Some(Change::Replace(_))));
    let counts = up.changes.len() <= MAX_CHANGES && up.acks.len() <= MAX_ACKS;
    counts && alone && up.changes.iter().all(small) && (up.changes.is_empty() || up.first > 0)
}
