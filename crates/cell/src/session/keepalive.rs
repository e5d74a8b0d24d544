//! The session's own messages: one is always under way. KeepAlives carry acknowledgements out and batches back.

use super::lease::Phase;
use super::{Event, Identity, Output, Session, Timer};
use crate::link::{Lease, Ticket};
use crate::mutant::Mutant;
use crate::{HandleNumber, SessionId};
use std::collections::BTreeSet;
use std::time::Duration;
use tidings_base::{Class, Error, Mono, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// For how long a create, resume or close is tried at a time.
const WITHIN: Duration = Duration::from_secs(3);

/// A KeepAlive is held for nearly a lease; so much more is for its way.
const SLACK: Duration = Duration::from_secs(5);

/// A KeepAlive that cannot be held for long: the master answers it before its time is up. Sent when an answer may have
/// been lost that extended the lease there and not here; doubles with failures, for slow lines.
const BRIEF: Duration = Duration::from_secs(1);

/// The lease to count with before one was granted.
const USUAL_LEASE: Duration = Duration::from_secs(12);

/// A KeepAlive that is older than this is sent again when contact seems lost: the master that holds it may be gone
/// without a word, and another one may be waiting to be resumed at. The time doubles with every repeat.
const DOUBT: Duration = Duration::from_secs(1);

/// The most KeepAlives under way at a time: an answer to any of them counts.
const MOST_SENT: usize = 4;

/// A KeepAlive that carries nothing and comes back sooner than this was not held.
const NOT_HELD: Duration = Duration::from_millis(20);

/// The first pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The pause when a master answers that it is not open yet.
const OPENING_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

/// What the session itself says to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Create,
    KeepAlive,
    Resume,
    Close,
}

/// One of them under way.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    ticket: Ticket,
    at: Mono,
    what: Own,
}

/// The exchange of the session's own messages.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    /// What is under way, or is sent next.
    pub(super) next: Own,
    /// Under way, the latest last. More than one only of KeepAlives that are in doubt.
    pub(super) sent: Vec<Sent>,
    doubts: u32,
    /// The epoch of the master that is to resume the session, as it told it; 0 = not told yet.
    resume_for: u64,
    /// The lease as it was last granted.
    pub(super) lease: Duration,
    /// Why the last attempt failed.
    pub(super) last_error: Option<Error>,
    failures: u32,
    /// R4: the last batch of this epoch that was processed.
    seq: u64,
    /// With the mutant `ImplicitAck`: acknowledged and not yet processed.
    unprocessed: Option<v1::CellBatch>,
}

impl Contact {
    pub(super) fn new(lease: Duration) -> Contact {
        Contact {
            next: Own::Create,
            sent: Vec::new(),
            doubts: 0,
            resume_for: 0,
            lease: if lease.is_zero() { USUAL_LEASE } else { lease },
            last_error: None,
            failures: 0,
            seq: 0,
            unprocessed: None,
        }
    }

    /// The message that this ticket names, if it is under way. Those sent before it are waited for no more.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Sent> {
        let at = self.sent.iter().position(|sent| sent.ticket == ticket)?;
        self.sent.drain(..=at).next_back()
    }
}

/// A pause that doubles with the failures, shortened at random.
pub(super) fn pause(failures: u32, rng: &mut tidings_base::Seeded) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    between(doubled / 2, doubled, rng)
}

/// A pause before a master that is opening is asked again.
pub(super) fn opening_pause(rng: &mut tidings_base::Seeded) -> Duration {
    between(OPENING_PAUSE.0, OPENING_PAUSE.1, rng)
}

fn between(low: Duration, high: Duration, rng: &mut tidings_base::Seeded) -> Duration {
    Duration::from_micros(rng.between(low.as_micros() as u64, high.as_micros() as u64))
}

impl Session {
    /// Sends the session's next own message.
    pub(super) fn send_contact(&mut self, now: Mono, out: &mut Outbox<Output>) {
        if self.is_over() || self.phase == Phase::New {
            return;
        }
        self.timers.cancel(&Timer::Contact);
        let (ticket, what) = (self.ticket(), self.contact.next);
        let message = match what {
            Own::Create => Message::CreateSession(v1::CreateSession {
                lease_ms: u32::try_from(self.options.lease.as_millis()).unwrap_or(u32::MAX),
                secret: self.options.secret,
                link: self.options.link,
                keeper: 0,
            }),
            Own::KeepAlive => {
                let epoch = self.me.map_or(0, |me| me.epoch);
                let ack = Some(v1::CellAck { epoch, seq: self.contact.seq });
                // The answer needs time to come back before this side gives up.
                let wait = self.keep_alive_within().saturating_sub(SLACK / 2);
                let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1);
                Message::KeepAlive(v1::KeepAlive { link: self.options.link, ack, wait_ms })
            }
            Own::Resume => Message::ResumeSession(v1::ResumeSession {
                link: self.options.link,
                handles: self.handles.tokens(),
                epoch: self.contact.resume_for,
            }),
            Own::Close => Message::CloseSession(v1::CloseSession {}),
        };
        let within = match what {
            Own::KeepAlive => self.keep_alive_within(),
            _ => WITHIN,
        };
        self.contact.sent.retain(|sent| sent.what == what);
        if self.contact.sent.len() >= MOST_SENT {
            self.contact.sent.remove(0);
        }
        self.contact.sent.push(Sent { ticket, at: now, what });
        let message = v1::CellMessage { caller: None, call: self.header(0), message: Some(message) };
        out.put(Output::Send { ticket, message, within });
    }

    /// Held for as long as the lease allows, unless contact was lost: then a quick answer is worth more.
    fn keep_alive_within(&self) -> Duration {
        let failures = self.contact.failures;
        let whole = self.contact.lease.saturating_add(SLACK);
        match failures > 0 || self.phase == Phase::Jeopardy {
            true => BRIEF.saturating_mul(1 << failures.min(5)).min(whole),
            false => whole,
        }
    }

    /// R8: what makes a message recognisable as this session's.
    pub(super) fn header(&self, number: u64) -> Option<v1::CellCall> {
        self.me.map(|me| v1::CellCall {
            session: me.session.0,
            secret: self.options.secret,
            number,
            answered_below: self.calls.answered_below(),
            epoch: me.epoch,
        })
    }

    pub(super) fn contact_answered(
        &mut self,
        now: Mono,
        sent: Sent,
        result: Result<v1::CellMessage, Error>,
        out: &mut Outbox<Output>,
    ) {
        if self.is_over() {
            return;
        }
        match (sent.what, result.map(|answer| answer.message)) {
            (Own::Create, Ok(Some(Message::SessionCreated(created)))) => self.created(now, sent.at, &created, out),
            (Own::KeepAlive, Ok(Some(Message::KeptAlive(kept)))) => self.kept_alive(now, sent.at, kept, out),
            (Own::Resume, Ok(Some(Message::SessionResumed(resumed)))) => self.resumed(now, sent.at, &resumed, out),
            (Own::Resume, Ok(Some(Message::ResumeNeeded(needed)))) => self.resume_needed(now, needed.epoch, out),
            (Own::Close, Ok(Some(Message::Done(_)))) => self.end_closed(out),
            // Nothing that was asked for: as if nothing had come.
            (_, Ok(_)) => self.pause_contact(now),
            (what, Err(error)) => self.contact_failed(now, what, error, out),
        }
    }

    fn contact_failed(&mut self, now: Mono, what: Own, error: Error, out: &mut Outbox<Output>) {
        match error.code.as_ref() {
            "cell.expired" | "cell.no_session" | "cell.not_your_session" if what != Own::Create => {
                return self.ended_by_master(now, &error, out);
            }
            "cell.resume" if matches!(what, Own::KeepAlive | Own::Close) => return self.begin_resume(now, 0, out),
            "cell.opening" | "cell.resume" => self.pause_briefly(now),
            _ => self.pause_contact(now),
        }
        // An existing session is worth asking for until its grace ends, whatever the answer; one that may not be
        // created is not.
        let hopeless = matches!(error.class, Class::Invalid | Class::NotFound | Class::Refused);
        if what == Own::Create && hopeless && error.code != "cell.opening" {
            return self.expire(error, out);
        }
        self.contact.last_error = Some(error);
    }

    /// Sends the next own message after a pause, unless another one is under way.
    pub(super) fn pause_contact(&mut self, now: Mono) {
        if !self.contact.sent.is_empty() {
            return;
        }
        let at = now + pause(self.contact.failures, &mut self.rng);
        self.contact.failures = self.contact.failures.saturating_add(1);
        self.timers.set(Timer::Contact, at);
    }

    fn pause_briefly(&mut self, now: Mono) {
        if self.contact.sent.is_empty() {
            let at = now + opening_pause(&mut self.rng);
            self.timers.set(Timer::Contact, at);
        }
    }

    fn created(&mut self, now: Mono, sent: Mono, created: &v1::SessionCreated, out: &mut Outbox<Output>) {
        let session = SessionId(created.session);
        self.me = Some(Identity { session, epoch: created.epoch });
        self.timers.cancel(&Timer::GiveUp);
        self.attached(now, created.lease_us);
        let until = self.date(sent, now, created.held_us, created.lease_us);
        self.phase = Phase::Active { until };
        self.timers.set(Timer::Lease, until);
        out.put(Output::Tell(Event::Begun(session)));
        self.send_contact(now, out);
        self.send_waiting(now, out);
    }

    /// The session is known to the master of this epoch: its sequence and its link's leases begin anew.
    fn attached(&mut self, now: Mono, lease_us: u64) {
        self.cache.attach(now);
        self.contact.next = Own::KeepAlive;
        self.contact.seq = 0;
        self.contact.failures = 0;
        self.contact.unprocessed = None;
        if lease_us > 0 {
            self.contact.lease = Duration::from_micros(lease_us);
        }
    }

    fn kept_alive(&mut self, now: Mono, sent: Mono, kept: v1::KeptAlive, out: &mut Outbox<Output>) {
        if self.me.is_some_and(|me| me.epoch != kept.epoch) {
            return self.begin_resume(now, kept.epoch, out);
        }
        (self.contact.failures, self.contact.doubts) = (0, 0);
        let news = kept.batch.is_some();
        // R4: what is acknowledged was done before: entries go, events are told, and only then the next KeepAlive.
        if let Some(batch) = kept.batch.filter(|batch| batch.seq > self.contact.seq) {
            self.contact.seq = batch.seq;
            if self.mutant(Mutant::ImplicitAck) {
                if let Some(late) = self.contact.unprocessed.replace(batch) {
                    self.process(late, out);
                }
            } else {
                self.process(batch, out);
            }
        }
        if kept.lease_us > 0 {
            self.contact.lease = Duration::from_micros(kept.lease_us);
            let until = self.date(sent, now, kept.held_us, kept.lease_us);
            self.extend(now, until, out);
        }
        // An acknowledgement goes at once; otherwise one KeepAlive under way is enough.
        let was_held = kept.lease_us > 0 && now.since(sent) >= NOT_HELD;
        if news || was_held && self.contact.sent.is_empty() {
            self.send_contact(now, out);
        } else {
            self.pause_briefly(now);
        }
        self.send_waiting(now, out);
    }

    fn process(&mut self, batch: v1::CellBatch, out: &mut Outbox<Output>) {
        self.invalidate(batch.seq, batch.flush, &batch.invalidations, out);
        for event in batch.events {
            self.handles.heard(&event, self.phase == Phase::Jeopardy);
            // The session made its own redundant events when it resumed, for changes that nobody could tell it of.
            if event.kind() == v1::CellEventKind::FailOver {
                continue;
            }
            if let Some(event) = self.calls.keep_early(event) {
                out.put(Output::Tell(Event::Node(event)));
            }
        }
    }

    /// A master of another epoch (0 = it did not say which) does not know the session until it has flushed and presented
    /// its handles.
    pub(super) fn begin_resume(&mut self, now: Mono, epoch: u64, out: &mut Outbox<Output>) {
        let under_way = !self.contact.sent.is_empty() || self.timers.at(&Timer::Contact).is_some();
        if self.contact.next == Own::Resume && under_way {
            return;
        }
        self.resume_at(now, epoch, out);
    }

    /// The master told its epoch: what is said now is for it alone.
    fn resume_needed(&mut self, now: Mono, epoch: u64, out: &mut Outbox<Output>) {
        match self.me.is_some_and(|me| epoch < me.epoch) || epoch == self.contact.resume_for {
            true => self.pause_contact(now),
            false => self.resume_at(now, epoch, out),
        }
    }

    fn resume_at(&mut self, now: Mono, epoch: u64, out: &mut Outbox<Output>) {
        self.cache_reset(out);
        self.contact.sent.clear();
        // What the old master still answers is not known to the new one: a handle opened so would have no token there.
        self.calls.again();
        self.contact.next = Own::Resume;
        self.contact.resume_for = epoch;
        self.send_contact(now, out);
    }

    fn resumed(&mut self, now: Mono, sent: Mono, resumed: &v1::SessionResumed, out: &mut Outbox<Output>) {
        let Some(me) = self.me.as_mut() else { return };
        // A master that was deposed does not know it yet; what it says is not about this session any more.
        if resumed.epoch < me.epoch {
            return self.pause_contact(now);
        }
        me.epoch = resumed.epoch;
        self.attached(now, resumed.lease_us);
        if self.phase == Phase::Closing {
            self.contact.next = Own::Close;
            return self.send_contact(now, out);
        }
        let held: BTreeSet<HandleNumber> = resumed.locks.iter().map(|lock| HandleNumber(lock.handle)).collect();
        let gone: BTreeSet<HandleNumber> = resumed.gone.iter().copied().map(HandleNumber).collect();
        let events = self.handles.recovered(&held, &gone, self.phase == Phase::Jeopardy);
        self.calls.again();
        if resumed.lease_us > 0 {
            let until = self.date(sent, now, resumed.held_us, resumed.lease_us);
            self.extend(now, until, out);
        }
        for event in events {
            out.put(Output::Tell(Event::Node(event)));
        }
        self.send_contact(now, out);
        self.send_waiting(now, out);
    }

    /// Contact seems lost: the KeepAlive under way may never be answered. Another one may find another master.
    pub(super) fn doubt(&mut self, now: Mono, out: &mut Outbox<Output>) {
        let silent = self.phase == Phase::Jeopardy || self.cache.is_lapsed();
        let Some(sent) = self.contact.sent.last().filter(|sent| silent && sent.what == Own::KeepAlive) else {
            return;
        };
        let due = sent.at + DOUBT.saturating_mul(1 << self.contact.doubts.min(5));
        if now < due {
            return self.timers.set(Timer::Doubt, due);
        }
        self.contact.doubts += 1;
        self.send_contact(now, out);
        self.timers.set(Timer::Doubt, now + DOUBT.saturating_mul(1 << self.contact.doubts.min(5)));
    }

    /// The link's cache lease moved. It counts if its master knows this session: granted in the session's epoch, asked
    /// for after the session was created or resumed there, and not while it owes an acknowledgement.
    pub(super) fn link_renewed(&mut self, now: Mono, lease: &Lease, out: &mut Outbox<Output>) {
        let Some(me) = self.me.filter(|_| matches!(self.phase, Phase::Active { .. } | Phase::Jeopardy)) else {
            return;
        };
        if lease.epoch > me.epoch {
            return self.begin_resume(now, lease.epoch, out);
        }
        let known = lease.epoch == me.epoch && self.contact.next != Own::Resume;
        if known && !lease.owing.contains(&me.session.0) && self.cache.renew(lease.asked, lease.until) {
            self.update_until(now, out);
        }
    }
}
