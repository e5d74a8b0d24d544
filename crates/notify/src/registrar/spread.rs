//! The propagator: copies registrations to matchers, then post-propagates what they know (§4.1.3, F5, F6).

use super::pending::Pending;
use super::state::{After, Client, Collecting, State};
use super::{Output, Registrar, Timer};
use crate::mutant::Mutant;
use crate::names::{ClientKey, object_hash};
use crate::rows::{self, LOG, PENDING_OF, TOLD, UNK};
use crate::{CallId, Outcome, backoff};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

/// How long a matcher may be silent.
const SILENCE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Registrations of one client that are with matchers at a time; the others follow.
pub(super) const WINDOW: usize = 256;

impl Registrar {
    /// A change that goes to its matcher with the next ones, in place of an earlier one of the same object.
    pub(super) fn spread(&mut self, now: Now, client: &mut Client, object: u32, pending: Pending) {
        match client.pending.insert(object, pending) {
            Some(old) => drop(old.call.map(|call| self.calls.remove(&call))),
            None if self.pending >= self.options.max_pending && client.state == State::Ready => {
                // §4.2.5: under pressure entries are dropped, and found again by their markers.
                client.pending.remove(object);
                client.shed = true;
                self.rescan_later(now);
            }
            None => {
                let name = Bytes::copy_from_slice(self.names.name(object));
                self.names.hold(&name);
                self.pending += 1;
            }
        }
    }

    /// F3: takes what is complete to its matchers again, under its own numbers: whatever copy is there stays, whatever is
    /// not comes back.
    pub(super) fn scrub(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        if client.created {
            client.scrubs_from = Some(0);
            self.propagate(now, key, client, out);
        }
    }

    /// Goes on with a scrub: a window at a time, however many registrations there are.
    fn scrub_on(&mut self, client: &mut Client) {
        let Some(from) = client.scrubs_from.filter(|_| client.state == State::Ready) else { return };
        let room = WINDOW.saturating_sub(client.pending.len());
        let rest = &client.regs[client.regs.partition_point(|reg| reg.object < from)..];
        let complete = rest.iter().filter(|reg| !client.pending.contains(reg.object));
        let next: Vec<(u32, u64)> = complete.map(|reg| (reg.object, reg.seqno)).take(room).collect();
        client.scrubs_from = match next.last() {
            _ if next.len() < room => None,
            Some((last, _)) => Some(last + 1),
            None => Some(from),
        };
        for (object, seqno) in next {
            let name = Bytes::copy_from_slice(self.names.name(object));
            self.names.hold(&name);
            self.pending += 1;
            client.pending.insert(object, Pending { scrub: true, ..Pending::new(seqno, true) });
        }
    }

    /// Sends what is not under way, as far as there is room.
    pub(super) fn propagate(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        let Some(realm) = self.realm.as_ref().map(|realm| realm.message(key.app())) else { return };
        self.scrub_on(client);
        // What has just failed makes room for the others.
        for object in client.pending.due(now.mono, WINDOW.saturating_sub(client.pending.under_way())) {
            let id = CallId(self.id());
            let name = Bytes::copy_from_slice(self.names.name(object));
            let Some(pending) = client.pending.sent(object, id, now.mono) else { continue };
            let call = v1::MatchRegistration {
                realm: Some(realm),
                client: Some(key.to_message()),
                object: name.clone(),
                source: client.source.clone(),
                seqno: pending.seqno,
                registered: pending.registered,
            };
            self.calls.insert(id, (key.clone(), object));
            out.put(Output::ToMatcher { id, key: object_hash(key.app(), &name), call: Box::new(call) });
        }
        let timer = Timer::Propagate(key.clone());
        if !client.pending.is_empty() && self.timers.at(&timer).is_none() {
            self.timers.set(timer, now.mono + SILENCE);
        }
    }

    pub(super) fn propagate_again(&mut self, now: Now, key: &ClientKey, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        for call in client.pending.give_up(|pending| pending.sent + SILENCE <= now.mono) {
            self.calls.remove(&call);
        }
        self.propagate(now, key, &mut client, out);
        self.clients.insert(key.clone(), client);
    }

    pub(super) fn matched(&mut self, now: Now, id: CallId, outcome: Outcome, version: u64, out: &mut Outbox<Output>) {
        let Some((key, object)) = self.calls.remove(&id) else { return };
        let Some(mut client) = self.clients.remove(&key) else { return };
        let ours = client.pending.get(object).is_some_and(|pending| pending.call == Some(id));
        match outcome {
            Outcome::Done if ours => self.propagated(now, &key, &mut client, object, version, out),
            _ if ours => self.put_off(now, &key, &mut client, object),
            _ => {}
        }
        self.clients.insert(key.clone(), client);
        self.run(now, &key, out);
        self.unpark(out);
    }

    fn put_off(&mut self, now: Now, key: &ClientKey, client: &mut Client, object: u32) {
        let Some(pending) = client.pending.failed(object) else { return };
        let at = now.mono + backoff(&mut self.rng, pending.failures, FIRST_PAUSE, LONGEST_PAUSE);
        pending.not_before = at;
        let timer = Timer::Propagate(key.clone());
        if self.timers.at(&timer).is_none_or(|set| set > at) {
            self.timers.set(timer, at);
        }
    }

    /// A matcher has the registration. F5, F6: what it knows is logged in the write that clears the marker.
    fn propagated(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        object: u32,
        version: u64,
        out: &mut Outbox<Output>,
    ) {
        let Some(pending) = client.pending.remove(object) else { return };
        self.pending -= 1;
        let name = Bytes::copy_from_slice(self.names.name(object));
        if client.state == State::Collecting(Collecting::Unregistering) {
            self.names.release(object);
            self.propagate(now, key, client, out);
            return self.collect_on(key, client, out);
        }
        if pending.scrub {
            let known = client.reg(object).map_or(u64::MAX, |reg| reg.version.max(reg.acked));
            if version <= known {
                self.names.release(object);
                return self.propagate(now, key, client, out);
            }
        } else {
            client.put(rows::gone(rows::column(PENDING_OF, &name), pending.seqno));
        }
        let posts = pending.registered && client.reg(object).is_some() && !self.is(Mutant::NoPostPropagation);
        // F3: what was published since a loss need not be the latest that was published before it.
        let unknown = version == 0 || (client.after_loss && !pending.scrub);
        if posts && unknown {
            let seqno = self.seqno(key);
            client.make_unknown(object, seqno);
            client.put(rows::cell(rows::column(UNK, &name), seqno, Bytes::new()));
            client.used(seqno, now.wall.millis());
        }
        if posts
            && version > 0
            && let Some(reg) = client.reg_mut(object)
        {
            reg.version = reg.version.max(version);
            if version > reg.acked && pending.scrub {
                reg.logged = reg.logged.max(version);
                client.put(rows::cell(rows::column(LOG, &name), version, Bytes::new()));
            } else if version > reg.acked {
                reg.told = true;
                client.put(rows::cell(rows::column(TOLD, &name), pending.seqno, version.to_be_bytes().to_vec()));
            }
        }
        let status = v1::RegistrationStatus { object: name, registered: pending.registered, failure: 0 };
        client.dirty.after.push(After::Told { object, status });
        self.names.release(object);
        self.propagate(now, key, client, out);
    }
}
