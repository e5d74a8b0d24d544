//! A device: the client machine, its channel, and an application that keeps what it knows.

use super::fact::{Fact, NotifyFact, object};
use super::letter::{Body, Letter, send};
use super::shared::Shared;
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_notify::client::{self, Client, Event, Input, Output};
use tidings_notify::mutant::Mutant;

/// How long a channel may take to open.
const OPEN_WITHIN: Duration = Duration::from_secs(2);
/// How often the device asks whether the channel is still there, and for how long it believes so without an answer.
const PING_EVERY: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(7);

enum Link {
    Closed,
    Opening { node: HostId, attempt: u64, until: Mono },
    Open { node: HostId, number: u64, heard: Mono, ping: Mono },
}

/// What the application will do.
enum Later {
    Tell(Input),
    Handled(Bytes, u64),
    Fetched {
        object: Bytes,
        number: Option<u64>,
        fetch: u64,
        latest: u64,
    },
    /// The channel could not be opened.
    Failed,
    Think,
}

/// A device's process.
pub struct Device {
    host: HostId,
    rng: Seeded,
    machine: Client,
    shared: Shared,
    nodes: Vec<HostId>,
    link: Link,
    attempts: u64,
    last_later: u64,
    last_fetch: u64,
    later: BTreeMap<(Mono, u64), Later>,
    offline_until: Option<Mono>,
    /// Its fetches take so long.
    dawdles: Option<Duration>,
    calm: bool,
}

type Out = Outbox<Effect<NotifyFact>>;

/// How devices behave.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Whether they say that they are there (otherwise nothing may depend on it).
    pub heartbeat: Option<Duration>,
    /// The application thinks so long between two changes of mind, on average.
    pub think: Duration,
    /// The longest pause before its channel is opened again.
    pub reconnect: Duration,
    /// A rule that is left out.
    pub mutant: Option<Mutant>,
}

fn say(fact: Fact) -> Effect<NotifyFact> {
    Effect::Fact(fact.into())
}

impl Device {
    /// Starts with what lies in its storage.
    pub fn start(
        (host, start): (HostId, u64),
        shared: Shared,
        nodes: Vec<HostId>,
        habits: &Habits,
        mut rng: Seeded,
        now: Now,
        out: &mut Out,
    ) -> Device {
        let (source, persistent, state) = shared
            .installation(host, |it| (it.source.clone(), it.persistent, it.state.clone().filter(|_| it.persistent)));
        let options = client::Options {
            seed: rng.next_u64(),
            source,
            persistent,
            heartbeat: habits.heartbeat,
            retry_longest: Duration::from_secs(4),
            reconnect_longest: habits.reconnect,
            refused_longest: Duration::from_secs(5),
            mutant: habits.mutant,
            ..Default::default()
        };
        let think = habits.think;
        let mut device = Device {
            host,
            rng,
            machine: Client::new(options),
            shared,
            nodes,
            link: Link::Closed,
            attempts: start << 32,
            last_later: 0,
            last_fetch: start << 32,
            later: BTreeMap::new(),
            offline_until: None,
            dawdles: None,
            calm: false,
        };
        device.feed(now, Input::Start { state }, out);
        device.think_later(now, think);
        device
    }

    /// The faults are over: it stays online and wants what it wants.
    pub fn calm(&mut self) {
        self.calm = true;
        self.offline_until = None;
    }

    /// Whether it and the servers agree on its registrations, and these are what is intended.
    pub fn agrees(&self) -> bool {
        let intended: BTreeSet<Bytes> = self.shared.installation(self.host, |it| it.intended.clone());
        self.machine.is_synced() && self.machine.intended().eq(intended.iter())
    }

    /// It stays offline until it is told to come back.
    pub fn leave(&mut self, now: Now, out: &mut Out) {
        self.offline_until = Some(Mono::NEVER);
        self.disconnect(now, out);
    }

    /// It may be online again.
    pub fn come_back(&mut self) {
        self.offline_until = None;
    }

    /// Until its process ends, its application takes this long to fetch.
    pub fn dawdle(&mut self, time: Duration) {
        self.dawdles = Some(time);
    }

    /// Its application says that it has dealt with a version, whatever it was told.
    pub fn boast(&mut self, now: Now, object: Bytes, version: u64, out: &mut Out) {
        self.feed(now, Input::Acked { object, version }, out);
    }

    /// Its channel breaks.
    pub fn disconnect(&mut self, now: Now, out: &mut Out) {
        if let Link::Open { node, number, .. } = self.link {
            send(out, node, number, Body::Close(true));
            self.link = Link::Closed;
            self.feed(now, Input::Closed, out);
        }
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Some((channel, body)) = Letter::of(bytes) else { return };
        match (&mut self.link, body) {
            (Link::Opening { node, attempt, .. }, Body::Opened(number)) if *node == from && *attempt == channel => {
                self.link = Link::Open { node: from, number, heard: now.mono, ping: now.mono + PING_EVERY };
                self.feed(now, Input::Opened, out);
            }
            (Link::Open { node, number, heard, .. }, body) if *node == from && *number == channel => {
                *heard = now.mono;
                match body {
                    Body::Down(down) => self.feed(now, Input::Received(Box::new(down)), out),
                    Body::Gone(_) => {
                        self.link = Link::Closed;
                        self.feed(now, Input::Closed, out);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let link = match self.link {
            Link::Closed => None,
            Link::Opening { until, .. } => Some(until),
            Link::Open { ping, .. } => Some(ping),
        };
        let later = self.later.keys().next().map(|(at, _)| *at);
        [self.machine.deadline(), link, later].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        match &mut self.link {
            Link::Opening { until, .. } if *until <= now.mono => {
                self.link = Link::Closed;
                self.feed(now, Input::Closed, out);
            }
            Link::Open { heard, .. } if now.mono.since(*heard) > SILENCE => self.disconnect(now, out),
            Link::Open { node, number, ping, .. } if *ping <= now.mono => {
                *ping = now.mono + PING_EVERY;
                send(out, *node, *number, Body::Ping(true));
            }
            _ => {}
        }
        let mut outputs = Outbox::new();
        self.machine.wake(now, &mut outputs);
        self.perform(now, outputs, out);
        while let Some(due) = self.later.first_entry().filter(|due| due.key().0 <= now.mono) {
            let due = due.remove();
            self.due(now, due, out);
        }
    }

    fn after(&mut self, now: Now, millis: u64, later: Later) {
        self.last_later += 1;
        self.later.insert((now.mono + Duration::from_millis(millis), self.last_later), later);
    }

    fn due(&mut self, now: Now, due: Later, out: &mut Out) {
        let device = self.host;
        match due {
            Later::Tell(input) => self.feed(now, input, out),
            Later::Failed => self.feed(now, Input::Closed, out),
            Later::Handled(object, version) => {
                self.shared.learn(device, &object, version);
                out.put(say(Fact::Handled { device, object: object.clone(), version }));
                self.feed(now, Input::Acked { object, version }, out);
            }
            Later::Fetched { object, number, fetch, latest } => {
                self.shared.learn(device, &object, latest);
                out.put(say(Fact::Fetched { device, object: object.clone(), fetch }));
                self.shared.installation(device, |it| it.copied.remove(&object));
                if let Some(number) = number {
                    self.feed(now, Input::AckedUnknown { object, number }, out);
                }
            }
            Later::Think => self.think(now, out),
        }
    }

    fn think_later(&mut self, now: Now, mean: Duration) {
        let wait = self.rng.below(2 * mean.as_millis() as u64 + 1);
        self.after(now, wait, Later::Think);
    }

    /// The application changes its mind, or the device goes away for a while.
    fn think(&mut self, now: Now, out: &mut Out) {
        if self.calm {
            return;
        }
        match self.rng.below(8) {
            0 => self.disconnect(now, out),
            1 => {
                self.offline_until = Some(now.mono + Duration::from_millis(self.rng.between(200, 90_000)));
                self.disconnect(now, out);
            }
            _ => {
                let object = object(self.rng.below(self.shared.objects()));
                let intends = !self.shared.intends(self.host, &object);
                self.intend(now, object, intends, out);
            }
        }
        self.think_later(now, Duration::from_secs(8));
    }

    /// The application wants to hear of an object from now on, or no more.
    pub fn intend(&mut self, now: Now, object: Bytes, intends: bool, out: &mut Out) {
        let known = self.shared.installation(self.host, |it| {
            match intends {
                true => it.intended.insert(object.clone()),
                false => it.intended.remove(&object),
            };
            it.known.get(&object).copied().unwrap_or(0)
        });
        out.put(say(Fact::Intends { device: self.host, object: object.clone(), intends }));
        let known = if self.rng.one_in(2) { known } else { 0 };
        let input = if intends { Input::Register { object, known } } else { Input::Unregister { object } };
        self.feed(now, input, out);
    }

    fn feed(&mut self, now: Now, input: Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.machine.handle(now, input, &mut outputs);
        self.perform(now, outputs, out);
    }

    fn perform(&mut self, now: Now, outputs: Outbox<Output>, out: &mut Out) {
        for output in outputs {
            match output {
                Output::Connect => self.connect(now, out),
                Output::Send(up) => {
                    if let Link::Open { node, number, .. } = self.link {
                        send(out, node, number, Body::Up(*up));
                    }
                }
                Output::WriteState(state) => {
                    // Storage fails now and then: the next start finds what was there before, or nothing.
                    if self.calm || !self.rng.one_in(10) {
                        self.shared.installation(self.host, |it| it.state = Some(state));
                    }
                    out.put(say(Fact::Granted(self.host)));
                    // Who begins with a copy takes over what the original has acknowledged since: it fetches.
                    let copied = self.shared.installation(self.host, |it| it.copied.clone());
                    copied.into_iter().for_each(|object| self.fetch(now, object, None, out));
                }
                Output::Event(event) => self.application(now, event, out),
                // Devices go without a word.
                Output::Left => {}
            }
        }
    }

    fn connect(&mut self, now: Now, out: &mut Out) {
        if self.offline_until.is_some_and(|until| now.mono < until) {
            return self.after(now, 50, Later::Failed);
        }
        self.attempts += 1;
        let node = self.rng.pick(&self.nodes).copied().unwrap_or_default();
        self.link = Link::Opening { node, attempt: self.attempts, until: now.mono + OPEN_WITHIN };
        send(out, node, self.attempts, Body::Open(true));
    }

    fn application(&mut self, now: Now, event: Event, out: &mut Out) {
        let device = self.host;
        match event {
            Event::Reissue => {
                let wanted = self.shared.installation(device, |it| {
                    let known = |object: &Bytes| it.known.get(object).copied().unwrap_or(0);
                    it.intended.iter().map(|object| (object.clone(), known(object))).collect::<Vec<_>>()
                });
                for (object, known) in wanted {
                    let known = if self.rng.one_in(2) { known } else { 0 };
                    self.after(now, 0, Later::Tell(Input::Register { object, known }));
                }
                let wait = self.rng.between(0, 50);
                self.after(now, wait, Later::Tell(Input::Reissued));
            }
            Event::Notify { object, version, .. } => {
                out.put(say(Fact::Notified { device, object: object.clone(), version }));
                let wait = self.dealing();
                self.after(now, wait, Later::Handled(object, version));
            }
            Event::NotifyUnknown { object, number } => self.fetch(now, object, Some(number), out),
            Event::RegistrationFailure { object, transient: false } => {
                self.shared.installation(device, |it| it.intended.remove(&object));
                out.put(say(Fact::Intends { device, object, intends: false }));
            }
            Event::RegistrationFailure { .. } | Event::RegistrationStatus { .. } | Event::Refused { .. } => {}
        }
    }

    fn fetch(&mut self, now: Now, object: Bytes, number: Option<u64>, out: &mut Out) {
        self.last_fetch += 1;
        let usual = self.dealing();
        let wait = self.dawdles.map_or(usual, |time| time.as_millis() as u64);
        let fetch = self.last_fetch;
        out.put(say(Fact::Fetches { device: self.host, object: object.clone(), fetch }));
        // What was made after it began it may miss.
        let latest = self.shared.latest(&object);
        self.after(now, wait, Later::Fetched { object, number, fetch, latest });
    }

    /// How long the application deals with a notification, in milliseconds.
    fn dealing(&mut self) -> u64 {
        if !self.calm && self.rng.one_in(15) { self.rng.between(500, 6_000) } else { self.rng.between(1, 60) }
    }
}
