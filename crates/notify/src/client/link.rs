//! What is said, and what is heard: handshake, batches, repeats, heartbeats.

use super::{Client, Event, Output, Session, Timer};
use crate::backoff;
use crate::digest;
use crate::mutant::Mutant;
use bytes::Bytes;
use prost::Message;
use std::time::Duration;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// Changes of one message.
const CHANGES_AT_ONCE: usize = 256;
/// Acks of one message: with the longest names well below 1 MiB.
const ACKS_AT_ONCE: usize = 1_024;
/// Until what was transiently refused is tried again, at first.
const REFUSED_FIRST: Duration = Duration::from_secs(5);

impl Client {
    pub(super) fn opened(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.open = true;
        self.contact += 1;
        self.unanswered = 0;
        self.synced = false;
        self.timers.cancel(&Timer::Reconnect);
        self.flush(now, out);
    }

    /// F10: without persistence the id is of no use to anybody, and given back. What was acknowledged goes along.
    pub(super) fn leave(&mut self, out: &mut Outbox<Output>) {
        self.leaving = true;
        match self.session.clone().filter(|_| self.open) {
            Some(session) => {
                let goodbye = !self.options.persistent;
                let up = v1::NotifyUp { goodbye, ..self.message(session) };
                out.put(Output::Send(Box::new(up)));
            }
            None => out.put(Output::Left),
        }
    }

    pub(super) fn closed(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.open = false;
        if self.leaving {
            return out.put(Output::Left);
        }
        for timer in [Timer::Flush, Timer::Retry, Timer::Heartbeat] {
            self.timers.cancel(&timer);
        }
        let (first, longest) = (self.options.reconnect_first, self.options.reconnect_longest);
        let pause = backoff(&mut self.rng, self.disconnected, first, longest);
        self.disconnected = self.disconnected.saturating_add(1);
        self.timers.set(Timer::Reconnect, now.mono + pause);
    }

    /// There is something to say: soon, together with what else comes.
    pub(super) fn say(&mut self, now: Now) {
        if self.open && self.timers.at(&Timer::Flush).is_none() {
            self.timers.set(Timer::Flush, now.mono + self.options.gather);
        }
    }

    /// Says everything that is not answered.
    pub(super) fn flush(&mut self, now: Now, out: &mut Outbox<Output>) {
        if !self.open {
            return;
        }
        self.timers.cancel(&Timer::Flush);
        let up = match self.session.clone() {
            Some(session) => self.message(session),
            None => self.handshake(),
        };
        out.put(Output::Send(Box::new(up)));
        if !self.acks.is_empty() {
            self.say(now);
        }
        self.wait(now);
        if let Some(heartbeat) = self.options.heartbeat {
            // Smeared, so that those who came together do not stay together.
            let part = self.rng.between(80, 100) as u32;
            self.timers.set(Timer::Heartbeat, now.mono + heartbeat * part / 100);
        }
    }

    fn handshake(&mut self) -> v1::NotifyUp {
        let nonce = *self.nonce.get_or_insert_with(|| self.rng.next_u64());
        let previous = self.previous.as_ref().map(|(token, _)| token.clone()).unwrap_or_default();
        let (source, persistent) = (self.options.source.clone(), self.options.persistent);
        let hello = v1::NotifyHello { nonce, previous, source, persistent };
        v1::NotifyUp { hello: Some(hello), contact: self.contact, ..Default::default() }
    }

    fn message(&mut self, session: Session) -> v1::NotifyUp {
        let first = self.changes.front().map_or(self.latest + 1, |(number, _)| *number);
        let replaces = |change: &Change| matches!(change, Change::Replace(_));
        // A replacement travels alone.
        let many = match self.changes.iter().position(|(_, change)| replaces(change)) {
            Some(0) => 1,
            Some(at) => at.min(CHANGES_AT_ONCE),
            None => CHANGES_AT_ONCE,
        };
        let changes = self.changes.iter().take(many);
        let changes = changes.map(|(_, change)| v1::RegistrationChange { change: Some(change.clone()) }).collect();
        let mut acks = Vec::new();
        while acks.len() < ACKS_AT_ONCE {
            let Some(((object, is_unknown), number)) = self.acks.pop_first() else { break };
            let (version, unknown) = if is_unknown { (0, number) } else { (number, 0) };
            acks.push(v1::NotificationAck { object, version, unknown });
        }
        let query = self.descent.as_ref().map(|descent| descent.query());
        v1::NotifyUp {
            token: session.token,
            hello: None,
            latest: self.latest,
            first,
            digest: self.complete.then(|| self.digest.into()),
            changes,
            acks,
            query,
            contact: self.contact,
            goodbye: false,
        }
    }

    /// As long as something is unanswered, it is said again, ever less often.
    fn wait(&mut self, now: Now) {
        let settled = self.session.is_some() && self.changes.is_empty() && self.descent.is_none();
        if settled && (self.synced || !self.complete) {
            self.unanswered = 0;
            self.timers.cancel(&Timer::Retry);
            return;
        }
        let (first, longest) = (self.options.retry_first, self.options.retry_longest);
        let pause = backoff(&mut self.rng, self.unanswered, first, longest);
        self.timers.set(Timer::Retry, now.mono + pause);
    }

    // ---- what is heard ----------------------------------------------------------------------------------------------

    pub(super) fn received(&mut self, now: Now, down: v1::NotifyDown, out: &mut Outbox<Output>) {
        // A channel that opens and says nothing is as good as none.
        self.disconnected = 0;
        if self.leaving {
            // A goodbye is answered by a refusal, once the id is gone; anything else by anything.
            let ours = self.session.as_ref().is_some_and(|session| session.number == down.session);
            if ours && (down.refusal.is_some() || self.options.persistent) {
                out.put(Output::Left);
            }
            return;
        }
        if let Some(refusal) = down.refusal {
            return self.refused(now, down.session, &refusal, out);
        }
        if let Some(grant) = &down.grant
            && self.nonce == Some(grant.nonce)
        {
            self.granted(now, grant.clone(), out);
        }
        // Messages of other sessions are nobody's business here.
        if self.session.as_ref().is_none_or(|session| session.number != down.session) {
            return;
        }
        if !down.token.is_empty() {
            self.renewed(down.token, out);
        }
        for notification in down.notifications {
            self.notified(now, notification, out);
        }
        for status in down.statuses {
            self.status(now, status, out);
        }
        if down.echo > self.echo && down.echo <= self.latest {
            self.echo = down.echo;
            while self.changes.front().is_some_and(|(number, _)| *number <= self.echo) {
                self.changes.pop_front();
            }
            self.unanswered = 0;
        } else if down.echo < self.echo {
            // A new owner does not know where we stand.
            self.say(now);
        }
        let theirs = down.digest.as_ref().and_then(digest::Digest::of_message);
        if let Some(answer) = down.answer {
            self.descended(now, &answer);
        }
        if let Some(theirs) = theirs.filter(|_| down.echo == self.latest && self.changes.is_empty()) {
            self.compare(now, theirs, down.pending, out);
        }
        if !self.changes.is_empty() && self.changes.front().is_some_and(|(number, _)| *number == self.echo + 1) {
            // The rest of what did not fit.
            self.say_rest(now);
        }
        self.wait_less(now);
    }

    fn say_rest(&mut self, now: Now) {
        if self.changes.len() > CHANGES_AT_ONCE / 2 {
            self.say(now);
        }
    }

    /// Something was heard: the timer stands unless all is well.
    fn wait_less(&mut self, now: Now) {
        let settled = self.session.is_some() && self.changes.is_empty() && self.descent.is_none() && self.synced;
        if settled {
            self.unanswered = 0;
            self.timers.cancel(&Timer::Retry);
        } else if self.open && self.timers.at(&Timer::Retry).is_none() {
            self.wait(now);
        }
    }

    fn granted(&mut self, now: Now, grant: v1::NotifyGrant, out: &mut Outbox<Output>) {
        let before = self.previous.as_ref().map(|(_, generation)| *generation);
        let v1::NotifyGrant { token, session, salt, generation, .. } = grant;
        self.nonce = None;
        self.previous = Some((token.clone(), generation));
        // F3: versions of another generation have nothing to do with this one's, and without a state nobody knows which
        // generation the application's are of.
        let forget = before != Some(generation) && !self.is(Mutant::GenerationIgnored);
        self.digest = digest::Digest::default();
        for (object, intent) in &mut self.intended {
            intent.hash = digest::hash(&salt, object);
            (intent.unknown, intent.fetched, intent.told) = (0, 0, false);
            if forget {
                (intent.known, intent.delivered) = (0, 0);
            }
            if !intent.refused {
                self.digest.add(intent.hash);
            }
        }
        (self.latest, self.echo, self.synced, self.descent) = (0, 0, false, None);
        self.changes.clear();
        self.acks.clear();
        self.session = Some(Session { token, number: session, salt });
        self.write_state(out);
        self.say(now);
    }

    /// F8: the session goes on under a token whose key is not about to be retired.
    fn renewed(&mut self, token: Bytes, out: &mut Outbox<Output>) {
        if let Some(session) = &mut self.session {
            session.token = token.clone();
        }
        if let Some((previous, _)) = &mut self.previous {
            *previous = token;
        }
        self.write_state(out);
    }

    fn write_state(&self, out: &mut Outbox<Output>) {
        let (Some(session), Some((_, generation))) = (self.session.clone(), &self.previous) else { return };
        let Session { token, number, salt } = session;
        let state = v1::NotifyClientState { token, session: number, salt, generation: *generation };
        out.put(Output::WriteState(state.encode_to_vec().into()));
    }

    fn refused(&mut self, now: Now, session: u64, refusal: &v1::NotifyRefusal, out: &mut Outbox<Output>) {
        let ours = match (&self.session, self.nonce) {
            (Some(ours), _) => session == ours.number || (session == 0 && refusal.nonce == 0),
            (None, nonce) => nonce == Some(refusal.nonce),
        };
        if !ours {
            return;
        }
        let reason = refusal.reason();
        out.put(Output::Event(Event::Refused { reason }));
        match reason {
            v1::NotifyRefused::InvalidId | v1::NotifyRefused::Superseded | v1::NotifyRefused::BadToken => {
                // Start as new: the servers learn what is intended from the digests, and from the token that there was
                // something before, of which they may have lost some. Whoever has the session now keeps its id.
                self.session = None;
                self.nonce = None;
                self.synced = false;
                self.say(now);
            }
            // Nothing gets better by insisting.
            _ => {
                self.changes.clear();
                self.unanswered = self.unanswered.saturating_add(4);
                self.wait(now);
            }
        }
    }

    fn notified(&mut self, now: Now, notification: v1::Notification, out: &mut Outbox<Output>) {
        let v1::Notification { object, version, unknown, payload, times } = notification;
        // What is not intended is ended by the digests.
        let Some(intent) = self.intended.get_mut(&object) else { return };
        if unknown > 0 {
            if unknown <= intent.fetched {
                return self.ack(now, object, 0, unknown);
            }
            if unknown > intent.unknown {
                intent.unknown = unknown;
                out.put(Output::Event(Event::NotifyUnknown { object, number: unknown }));
            }
        } else if version <= intent.known {
            self.ack(now, object, version, 0);
        } else if version > intent.delivered {
            intent.delivered = version;
            out.put(Output::Event(Event::Notify { object, version, payload, times }));
        }
    }

    pub(super) fn dropped(&mut self, object: &Bytes, version: u64, number: u64) {
        let Some(intent) = self.intended.get_mut(object) else { return };
        if version > intent.known && version == intent.delivered {
            intent.delivered = intent.known;
        }
        if number > intent.fetched && number == intent.unknown {
            intent.unknown = intent.fetched;
        }
    }

    fn status(&mut self, now: Now, status: v1::RegistrationStatus, out: &mut Outbox<Output>) {
        let failure = status.failure();
        let object = status.object;
        let Some(intent) = self.intended.get_mut(&object) else {
            if failure == v1::RegistrationFailure::Unspecified && !status.registered {
                out.put(Output::Event(Event::RegistrationStatus { object, registered: false }));
            }
            return;
        };
        match failure {
            v1::RegistrationFailure::Unspecified if status.registered && !intent.told => {
                intent.told = true;
                out.put(Output::Event(Event::RegistrationStatus { object, registered: true }));
            }
            v1::RegistrationFailure::Unspecified => {}
            v1::RegistrationFailure::Transient if intent.refused => {}
            v1::RegistrationFailure::Transient => {
                // F7: left out until it is tried again.
                (intent.refused, intent.told) = (true, false);
                self.digest.remove(intent.hash);
                if self.timers.at(&Timer::Refused).is_none() {
                    let pause = backoff(&mut self.rng, self.refusals, REFUSED_FIRST, self.options.refused_longest);
                    // All that are refused at a time are one failure.
                    self.refusals = self.refusals.saturating_add(1);
                    self.timers.set(Timer::Refused, now.mono + pause);
                }
                out.put(Output::Event(Event::RegistrationFailure { object, transient: true }));
            }
            v1::RegistrationFailure::Permanent => {
                // F7: it leaves the intended set.
                if !intent.refused {
                    self.digest.remove(intent.hash);
                }
                self.intended.remove(&object);
                out.put(Output::Event(Event::RegistrationFailure { object, transient: false }));
            }
        }
    }

    pub(super) fn retry_refused(&mut self, now: Now, out: &mut Outbox<Output>) {
        let refused = self.intended.iter().filter(|(_, intent)| intent.refused);
        let refused: Vec<(Bytes, u64)> = refused.map(|(object, intent)| (object.clone(), intent.known)).collect();
        for (object, known) in refused {
            self.register(now, object, known, out);
        }
    }
}
