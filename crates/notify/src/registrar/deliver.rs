//! Notifications: pushed at once, logged, and sent again from memory until they are acknowledged (§4.2.3, F9).

use super::state::{After, Client, State, Unlogged};
use super::{Ask, AskId, MAX_ASKS, Options, Output, Registrar, Timer, Verdict};
use crate::mutant::Mutant;
use crate::names::{ClientKey, Guard, MAX_VERSION};
use crate::rows::{self, LOG};
use crate::{Outcome, RequestId, backoff};
use bytes::Bytes;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

/// Notifications of one message; the rest follow when half of these are acknowledged, or in their turn.
const MAX_NOTIFICATIONS: usize = 256;
/// Notifications of one client that wait for acks before they are logged.
const MAX_UNLOGGED: usize = 256;

/// What rides along with news of an object, as far as they are still of this version; of none, if it is 0.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    version: u64,
    payload: Bytes,
    times: v1::NotifyTimes,
}

impl Registrar {
    /// A matcher's notification.
    pub(super) fn notify(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (request, guard): (RequestId, Guard),
        notify: v1::ClientNotify,
        out: &mut Outbox<Output>,
    ) {
        let object = self.names.find(&notify.object).filter(|object| client.reg(*object).is_some());
        let late = Unlogged { request, guard, object: notify.object.clone(), version: notify.version };
        let (Some(object), 1..=MAX_VERSION) = (object, notify.version) else {
            if !notify.hint {
                self.not_registered(key, client, &late, out);
            }
            return;
        };
        let Some(reg) = client.reg_mut(object) else { return };
        let news = notify.version > reg.version.max(reg.acked);
        reg.version = reg.version.max(notify.version);
        if !notify.hint {
            let waits = notify.version > reg.acked.max(reg.logged) && client.channel.is_some();
            let sent = waits && self.is(Mutant::SentIsDone);
            match waits && client.unlogged.len() < MAX_UNLOGGED && !self.options.log_after.is_zero() {
                _ if sent => out.put(Output::Notified { request, guard: Some(guard), outcome: Outcome::Done }),
                true => self.log_later(now, key, client, late),
                false => self.log(client, object, &late, out),
            }
        }
        if news {
            client.resent = 0;
            let mut times = notify.times.unwrap_or_default();
            times.registrar_us = now.wall.0;
            let news = News { version: notify.version, payload: notify.payload, times };
            self.offer(now, key, client, object, news, out);
        }
    }

    /// F6: nothing that is numbered later is touched by this. What is on its way to the store must arrive first.
    fn not_registered(&self, key: &ClientKey, client: &Client, late: &Unlogged, out: &mut Outbox<Output>) {
        let outcome = match self.held.last_seqno(key.hash(), self.options.mutant) {
            Some(seqno) if client.is_settled() => Outcome::NotRegistered(seqno),
            _ => Outcome::Failed,
        };
        out.put(Output::Notified { request: late.request, guard: self.guarded(late.guard), outcome });
    }

    /// Answers once the client has acknowledged it, or it is logged.
    fn log(&self, client: &mut Client, object: u32, late: &Unlogged, out: &mut Outbox<Output>) {
        let Some(reg) = client.reg_mut(object) else { return };
        let Unlogged { request, guard, version, .. } = *late;
        if version <= reg.acked {
            // F9: the client has it; the log is skipped.
            return out.put(Output::Notified { request, guard: self.guarded(guard), outcome: Outcome::Done });
        }
        if version > reg.logged {
            reg.logged = version;
            client.put(rows::cell(rows::column(LOG, &late.object), version, Bytes::new()));
        }
        client.dirty.after.push(After::Notified { request, guard });
    }

    /// The client is online: its ack may come first (§4.2.3), and spares two writes. The matcher's marker stands for the
    /// notification meanwhile.
    fn log_later(&mut self, now: Now, key: &ClientKey, client: &mut Client, late: Unlogged) {
        client.unlogged.push(late);
        let timer = Timer::Log(key.clone());
        if self.timers.at(&timer).is_none() {
            self.timers.set(timer, now.mono + self.options.log_after);
        }
    }

    /// Logs what was not acknowledged in time.
    pub(super) fn log_all(&mut self, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        for late in std::mem::take(&mut client.unlogged) {
            match self.names.find(&late.object).filter(|object| client.reg(*object).is_some()) {
                Some(object) => self.log(client, object, &late, out),
                None => self.not_registered(key, client, &late, out),
            }
        }
    }

    pub(super) fn log_due(&mut self, now: Now, key: &ClientKey, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        self.log_all(key, &mut client, out);
        self.clients.insert(key.clone(), client);
        self.run(now, key, out);
    }

    /// F9: an ack came before what it is for was logged.
    pub(super) fn acked(&self, client: &mut Client, object: &Bytes, version: u64, out: &mut Outbox<Output>) {
        client.unlogged.retain(|late| {
            let done = late.object == *object && late.version <= version;
            if done {
                let guard = self.guarded(late.guard);
                out.put(Output::Notified { request: late.request, guard, outcome: Outcome::Done });
            }
            !done
        });
    }

    /// Sends news of an object, after the application was asked if it wants to be.
    fn offer(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        object: u32,
        news: News,
        out: &mut Outbox<Output>,
    ) {
        if client.channel.is_none() {
            return;
        }
        if self.options.hooks.ask(key.app()) {
            return self.ask_to_send(now, key, client, [(object, news)], out);
        }
        let notifications = self.notifications(client, object, news);
        self.push(now, key, client, notifications, Vec::new(), out);
    }

    fn ask_to_send(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &Client,
        all: impl IntoIterator<Item = (u32, News)>,
        out: &mut Outbox<Output>,
    ) {
        let Some(channel) = client.channel else { return };
        for (object, news) in all {
            if self.asks.len() >= MAX_ASKS {
                // It is kept, and tried with the next retransmission.
                break;
            }
            let id = AskId(self.id());
            let object = Bytes::copy_from_slice(self.names.name(object));
            self.asks.insert(id, Ask { client: key.clone(), channel, object: object.clone(), news: Some(news) });
            out.put(Output::Authorize { id, client: key.clone(), channel, object, sending: true });
        }
        self.wait(now, key, client);
    }

    pub(super) fn authorized(&mut self, now: Now, id: AskId, verdict: Verdict, out: &mut Outbox<Output>) {
        let Some(Ask { client: key, channel, object, news }) = self.asks.remove(&id) else { return };
        let Some(news) = news else {
            return self.authorized_registration(now, &key, id, object, verdict, out);
        };
        let Some(mut client) = self.clients.remove(&key) else { return };
        // What one connection's token allows says nothing of another's: whoever came by another was asked about anew.
        let meant = client.state == State::Ready && client.channel == Some(channel);
        let known = self.names.find(&object).filter(|object| client.reg(*object).is_some() && meant);
        match (known, verdict) {
            (Some(id), Verdict::Yes) => {
                let notifications = self.notifications(&client, id, news);
                self.push(now, &key, &mut client, notifications, Vec::new(), out);
            }
            (Some(_), Verdict::No) => {
                // A definite no removes the registration, and says so.
                self.unregister(now, &key, &mut client, std::slice::from_ref(&object));
                let failure = v1::RegistrationFailure::Permanent.into();
                let status = v1::RegistrationStatus { object, registered: false, failure };
                self.push(now, &key, &mut client, Vec::new(), vec![status], out);
            }
            // The entry is kept, and tried with the next retransmission.
            _ => {}
        }
        self.clients.insert(key.clone(), client);
        self.run(now, &key, out);
    }

    /// What is to be said of an object.
    fn notifications(&self, client: &Client, object: u32, news: News) -> Vec<v1::Notification> {
        let name = Bytes::copy_from_slice(self.names.name(object));
        let known = client.reg(object).and_then(|reg| reg.unacked());
        let known = known.map(|version| match news {
            News { version: of, payload, times } if of == version => {
                v1::Notification { object: name.clone(), version, payload, times: Some(times), ..Default::default() }
            }
            _ => v1::Notification { object: name.clone(), version, ..Default::default() },
        });
        let unknown = client.unknown_of(object);
        let unknown = unknown.map(|seqno| v1::Notification { object: name, unknown: seqno, ..Default::default() });
        known.into_iter().chain(unknown).collect()
    }

    fn push(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        mut notifications: Vec<v1::Notification>,
        statuses: Vec<v1::RegistrationStatus>,
        out: &mut Outbox<Output>,
    ) {
        let Some(channel) = client.channel else { return };
        if notifications.is_empty() && statuses.is_empty() {
            return;
        }
        for times in notifications.iter_mut().filter_map(|notification| notification.times.as_mut()) {
            times.sent_us = now.wall.0;
        }
        let down = v1::NotifyDown { notifications, statuses, ..self.down(client) };
        self.send(key.hash(), channel, down, out);
        self.wait(now, key, client);
    }

    /// Sets the timer of the next retransmission, unless an earlier one is set.
    fn wait(&mut self, now: Now, key: &ClientKey, client: &Client) {
        if !client.has_unacked() || self.is(Mutant::NoRetransmission) {
            return;
        }
        let Options { retry_first, retry_longest, .. } = self.options;
        let at = now.mono + backoff(&mut self.rng, client.resent, retry_first, retry_longest);
        let timer = Timer::Retry(key.clone());
        if self.timers.at(&timer).is_none_or(|set| set > at) {
            self.timers.set(timer, at);
        }
    }

    /// A registration reached its matcher, and what came of it is stable: the client hears both.
    pub(super) fn tell(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        object: u32,
        status: v1::RegistrationStatus,
        out: &mut Outbox<Output>,
    ) {
        let current = self.names.name(object) == status.object && client.reg(object).is_some();
        let mut notifications = if current { self.notifications(client, object, News::default()) } else { Vec::new() };
        if self.options.hooks.ask(key.app()) && !notifications.is_empty() {
            notifications.clear();
            self.ask_to_send(now, key, client, [(object, News::default())], out);
        }
        client.resent = 0;
        self.push(now, key, client, notifications, vec![status], out);
    }

    /// Sends what is not acknowledged, as much of it as fits: those that were not sent the last time first, so that some that
    /// are never acknowledged hold up no others.
    pub(super) fn push_all(&mut self, now: Now, key: &ClientKey, client: &mut Client, out: &mut Outbox<Output>) {
        let mut objects: Vec<u32> = client.unacked().collect();
        objects.sort_unstable();
        objects.dedup();
        client.waits = objects.len() > MAX_NOTIFICATIONS;
        client.acked = 0;
        if client.waits {
            let next = objects.partition_point(|object| *object <= client.sent_to);
            objects.rotate_left(next);
            objects.truncate(MAX_NOTIFICATIONS);
        }
        client.sent_to = objects.last().copied().unwrap_or(0);
        if self.options.hooks.ask(key.app()) {
            let all = objects.into_iter().map(|object| (object, News::default()));
            return self.ask_to_send(now, key, client, all, out);
        }
        let all = objects.into_iter();
        let notifications = all.flat_map(|object| self.notifications(client, object, News::default())).collect();
        self.push(now, key, client, notifications, Vec::new(), out);
    }

    /// A client has acknowledged so many: if it keeps up, it is sent what is still waiting.
    pub(super) fn keeps_up(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        acks: usize,
        out: &mut Outbox<Output>,
    ) {
        client.acked = client.acked.saturating_add(acks);
        if client.waits && client.acked >= MAX_NOTIFICATIONS / 2 {
            client.resent = 0;
            self.push_all(now, key, client, out);
        }
    }

    pub(super) fn retransmit(&mut self, now: Now, key: &ClientKey, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        if client.channel.is_some() && client.has_unacked() {
            client.resent = client.resent.saturating_add(1);
            self.push_all(now, key, &mut client, out);
        }
        self.clients.insert(key.clone(), client);
    }
}
