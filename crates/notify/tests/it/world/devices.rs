//! Channels, and the applications at their ends.

use super::{FIRST_GENERATION, Happening, Input, MS, Role, Who, World, caller, place};
use bytes::Bytes;
use tidings_base::{Machine, Outbox};
use tidings_notify::client::{self, Event};
use tidings_notify::names::Channel;
use tidings_notify::registrar;
use tidings_wire::v1;

impl World {
    pub(super) fn send_down(&mut self, who: Who, channel: Channel, message: Box<v1::NotifyDown>) {
        let Some(at) = self.devices.iter().position(|device| device.channel == Some(channel)) else {
            let delay = self.delay();
            return self.after(delay, Happening::Input(who, Input::Registrar(registrar::Input::Closed(channel))));
        };
        if self.lost() {
            return;
        }
        if self.repeated() {
            let delay = self.delay();
            self.after(delay, Happening::Down(at, channel, message.clone()));
        }
        let delay = self.delay();
        self.after(delay, Happening::Down(at, channel, message));
    }

    pub(super) fn up_arrives(&mut self, at: usize, number: u64, up: Box<v1::NotifyUp>) {
        let channel = Channel { node: 0, number };
        // A message may outlive its connection by a moment.
        let Some((node, lease)) = self.registrars.owner(place(at)) else { return };
        let caller = caller(at);
        self.give(node, Input::Registrar(registrar::Input::Up { caller, channel, lease, message: up }));
    }

    pub(super) fn channel_opens(&mut self, at: usize, life: u64) {
        if self.devices[at].life != life || self.devices[at].channel.is_some() {
            return;
        }
        if !self.devices[at].online {
            return self.tell_client(at, client::Input::Closed);
        }
        self.next_channel += 1;
        self.devices[at].channel = Some(Channel { node: 0, number: self.next_channel });
        self.tell_client(at, client::Input::Opened);
    }

    pub(super) fn channel_closes(&mut self, at: usize) {
        let Some(channel) = self.devices[at].channel.take() else { return };
        if let Some((node, _)) = self.registrars.owner(place(at))
            && !self.rng.one_in(4)
        {
            let (who, delay) = (self.who(node, Role::Registrar), self.delay());
            self.after(delay, Happening::Input(who, Input::Registrar(registrar::Input::Closed(channel))));
        }
        self.tell_client(at, client::Input::Closed);
    }

    pub(super) fn tell_client(&mut self, at: usize, input: client::Input) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.devices[at].machine.handle(now, input, &mut out);
        self.client_outputs(at, out);
    }

    pub(super) fn client_outputs(&mut self, at: usize, out: Outbox<client::Output>) {
        let life = self.devices[at].life;
        for output in out {
            match output {
                client::Output::Connect => {
                    let delay = self.delay() + MS;
                    self.after(delay, Happening::Opened(at, life));
                }
                client::Output::Send(up) => {
                    let Some(channel) = self.devices[at].channel else { continue };
                    if self.repeated() {
                        let delay = self.delay();
                        self.after(delay, Happening::Up(at, channel.number, up.clone()));
                    }
                    if !self.lost() {
                        let delay = self.delay();
                        self.after(delay, Happening::Up(at, channel.number, up));
                    }
                }
                client::Output::WriteState(state) => {
                    self.fetch_copied(at);
                    // Storage that fails now and then: the next start finds what was there before, or nothing.
                    if self.devices[at].persistent && !(self.faulty() && self.rng.one_in(10)) {
                        self.devices[at].state = Some(state);
                    }
                }
                client::Output::Event(event) => self.application(at, life, event),
                client::Output::Left => {}
            }
        }
        if let Some(deadline) = self.devices[at].machine.deadline() {
            let delay = deadline.0.saturating_sub(self.now + MS);
            self.after(delay, Happening::WakeClient(at, life));
        }
    }

    pub(super) fn fetch_copied(&mut self, at: usize) {
        let device = &mut self.devices[at];
        if std::mem::take(&mut device.copied) {
            for object in device.intended.clone() {
                device.seen.entry(object).or_default().fetched_at = Some(self.now);
            }
        }
    }

    pub(super) fn application(&mut self, at: usize, life: u64, event: Event) {
        self.trace(format!("device {at}.{life}"), &event);
        match event {
            Event::Reissue => {
                let device = &self.devices[at];
                let known = |object: &Bytes| device.seen.get(object).map_or(0, |seen| seen.known);
                let all: Vec<(Bytes, u64)> = device.intended.iter().map(|o| (o.clone(), known(o))).collect();
                for (object, known) in all {
                    let known = if self.rng.one_in(2) { known } else { 0 };
                    self.after(0, Happening::Client(at, life, client::Input::Register { object, known }));
                }
                let delay = self.delay();
                self.after(delay, Happening::Client(at, life, client::Input::Reissued));
            }
            Event::Notify { object, version, .. } => {
                self.counts.notified += 1;
                if !self.called.contains(&(object.clone(), version)) {
                    self.broken = Some(format!("N2: {object:?} has no version {version}"));
                }
                let seen = self.devices[at].seen.entry(object.clone()).or_default();
                if self.realm.generations.is_empty() || version < FIRST_GENERATION {
                    (seen.notified, seen.known) = (seen.notified.max(version), seen.known.max(version));
                }
                let delay = self.delay();
                self.after(delay, Happening::Client(at, life, client::Input::Acked { object, version }));
            }
            Event::NotifyUnknown { object, number } => {
                self.counts.unknown += 1;
                let latest = self.latest.get(&object).copied().unwrap_or(0);
                let seen = self.devices[at].seen.entry(object.clone()).or_default();
                (seen.fetched_at, seen.known) = (Some(self.now), seen.known.max(latest));
                let delay = self.delay();
                self.after(delay, Happening::Client(at, life, client::Input::AckedUnknown { object, number }));
            }
            Event::RegistrationFailure { object, transient: false } => {
                self.counts.refused += 1;
                self.devices[at].intended.remove(&object);
            }
            Event::Refused { reason: v1::NotifyRefused::Superseded } => self.counts.superseded += 1,
            Event::RegistrationFailure { .. } | Event::RegistrationStatus { .. } | Event::Refused { .. } => {}
        }
    }
}
