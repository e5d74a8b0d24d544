//! A node: registrar, matcher and bridge under one driver, with the ranges that placement gives it and the channels of devices.
//!
//! ```text
//!   devices ⇄ channels ⇄ ┐                     ┌ Owner, Lookup (placement) ⇄ managers
//!   nodes ⇄ NotifyMessage ┼ Registrar · Matcher ┤
//!   feed ─▶ Bridge ───────┘                     └ Line ⇄ store
//! ```

mod channels;
mod peers;
mod ranges;
mod storing;

use super::fact::NotifyFact;
use super::shared::Shared;
use crate::kernel::{Effect, HostId, Seat};
use crate::scenarios::placement::letter::Letter;
use crate::scenarios::placement::ring::{Hears, Ring};
use crate::scenarios::store::line::Line;
use bytes::Bytes;
use channels::Channels;
use peers::{Asker, Calls};
use std::collections::BTreeMap;
use std::time::Duration;
use storing::{Asks, Who};
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_notify::Outcome;
use tidings_notify::bridge::{self, Bridge};
use tidings_notify::matcher::{self, Matcher};
use tidings_notify::mutant::Mutant;
use tidings_notify::names::Guard;
use tidings_notify::registrar::{self, Registrar, Verdict};
use tidings_notify::rows::Realm;
use tidings_notify::token::Keys;
use tidings_wire::v1::match_call;

/// Who a node talks to.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// The managers of placement.
    pub managers: Vec<HostId>,
    /// The store's servers.
    pub servers: Vec<HostId>,
    /// All nodes.
    pub nodes: Vec<HostId>,
    /// The application's backend.
    pub backend: HostId,
}

/// How nodes behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Whether the application is asked before registrations and notifications.
    pub hooks: bool,
    /// Whether clients are told before the version is stable.
    pub hints: bool,
    /// How many pending registrations and jobs are kept in memory.
    pub room: usize,
    /// How many numbers are drawn under one lease.
    pub numbers: u32,
    /// How many registrations a client ends under one id.
    pub ended: u64,
    /// After so much silence a client is offline: where nobody sends heartbeats, never.
    pub offline_after: Duration,
    /// A rule that is left out.
    pub mutant: Option<Mutant>,
}

/// What a machine hears later.
enum Later {
    Registrar(registrar::Input),
    Matcher(matcher::Input),
    Bridge(u64, bridge::Input),
}

/// A node's process.
pub struct Node {
    host: HostId,
    neighbours: Neighbours,
    habits: Habits,
    rng: Seeded,
    shared: Shared,
    realm: Realm,
    ranges: Ring,
    registrar: Registrar,
    matcher: Matcher,
    bridge: Bridge,
    /// Grows with every bridge: one that is gone hears no answers.
    bridges: u64,
    line: Line<Asks>,
    channels: Channels,
    calls: Calls,
    later: BTreeMap<(Mono, u64), Later>,
    last_later: u64,
    consume_at: Option<Mono>,
    calm: bool,
}

type Out = Outbox<Effect<NotifyFact>>;

impl Node {
    /// Starts: holds nothing, and asks for ranges.
    pub fn start(
        seat: Seat,
        neighbours: Neighbours,
        habits: Habits,
        ranges: tidings_placement::owner::Options,
        shared: Shared,
        out: &mut Out,
    ) -> Node {
        let Seat { host, now, mut rng, starts: start, .. } = seat;
        let (seed, mutant) = (rng.next_u64(), habits.mutant);
        let registrar = registrar::Options {
            seed,
            data_centre: "here".into(),
            offline_after: habits.offline_after,
            retry_longest: Duration::from_secs(4),
            collect_after: Duration::from_secs(60),
            collect_unpersisted_after: Duration::from_secs(20),
            collect_every: Duration::from_secs(15),
            max_pending: habits.room,
            numbers: habits.numbers,
            max_ended: habits.ended,
            hooks: if habits.hooks { registrar::Hooks::All } else { registrar::Hooks::None },
            mutant,
            ..Default::default()
        };
        let matcher = matcher::Options { seed, max_jobs: habits.room, hints: habits.hints, mutant };
        let mut node = Node {
            ranges: Ring::new(ranges, neighbours.managers.clone(), start),
            line: Line::new(neighbours.servers.clone(), rng.fork("calls"), start),
            registrar: Registrar::new(registrar),
            matcher: Matcher::new(matcher),
            bridge: Bridge::new(bridge::Options { seed, mutant, ..Default::default() }),
            channels: Channels::new(start),
            calls: Calls::new(start),
            host,
            neighbours,
            habits,
            rng,
            shared,
            realm: Realm::default(),
            bridges: 0,
            later: BTreeMap::new(),
            last_later: 0,
            consume_at: None,
            calm: false,
        };
        let keys = Keys::new([(1, &b"secret"[..])]);
        node.feed_registrar(now, registrar::Input::Keys(keys), out);
        node.hear_realm(now, out);
        node.start_ranges(now, out);
        node.consume(now, out);
        node
    }

    /// The faults are over, those in the driver too.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// The cell says that the realm changed: everybody hears of it before anybody is served (F3).
    pub fn hear_realm(&mut self, now: Now, out: &mut Out) {
        let realm = self.shared.realm();
        if realm == self.realm {
            return;
        }
        if realm.incarnation != self.realm.incarnation {
            // The feed is lost as well, and its numbers begin anew: a bridge must not acknowledge by the old ones.
            self.bridges += 1;
            let (seed, mutant) = (self.rng.next_u64(), self.habits.mutant);
            self.bridge = Bridge::new(bridge::Options { seed, mutant, ..Default::default() });
        }
        self.realm = realm.clone();
        self.feed_registrar(now, registrar::Input::Realm(realm.clone()), out);
        self.feed_matcher(now, matcher::Input::Realm(realm.clone()), out);
        self.feed_bridge(now, bridge::Input::Realm(realm), out);
        self.close_channels(out);
    }

    /// Takes a message.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if self.neighbours.managers.contains(&from) {
            if let Some((id, body)) = Letter::of(bytes) {
                self.manager_said(now, from, id, body, out);
            }
        } else if self.neighbours.servers.contains(&from) {
            if let Some(ended) = self.line.receive(now, from, bytes) {
                self.store_said(now, ended, out);
            }
        } else if self.neighbours.nodes.contains(&from) || from == self.neighbours.backend {
            self.peer_said(now, from, bytes, out);
        } else {
            self.device_said(now, from, bytes, out);
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let later = self.later.keys().next().map(|(at, _)| *at);
        let machines = [self.registrar.deadline(), self.matcher.deadline(), self.bridge.deadline()];
        let others = [self.ranges.deadline(), self.line.deadline(), self.channels.deadline(), later, self.consume_at];
        machines.into_iter().chain(others).flatten().min()
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        self.wake_ranges(now, out);
        for ended in self.line.wake(now, out) {
            self.store_said(now, ended, out);
        }
        self.sweep_channels(now, out);
        while let Some(due) = self.later.first_entry().filter(|due| due.key().0 <= now.mono) {
            match due.remove() {
                Later::Registrar(input) => self.feed_registrar(now, input, out),
                Later::Matcher(input) => self.feed_matcher(now, input, out),
                Later::Bridge(bridge, input) if bridge == self.bridges => self.feed_bridge(now, input, out),
                Later::Bridge(..) => {}
            }
        }
        if self.consume_at.is_some_and(|at| at <= now.mono) {
            self.consume(now, out);
        }
        let mut outputs = Outbox::new();
        self.registrar.wake(now, &mut outputs);
        self.perform_registrar(now, outputs, out);
        let mut outputs = Outbox::new();
        self.matcher.wake(now, &mut outputs);
        self.perform_matcher(now, outputs, out);
        let mut outputs = Outbox::new();
        self.bridge.wake(now, &mut outputs);
        self.perform_bridge(now, outputs, out);
    }

    fn after(&mut self, now: Now, least: u64, most: u64, later: Later) {
        self.last_later += 1;
        let at = now.mono + Duration::from_millis(self.rng.between(least, most));
        self.later.insert((at, self.last_later), later);
    }

    fn feed_registrar(&mut self, now: Now, input: registrar::Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.registrar.handle(now, input, &mut outputs);
        self.perform_registrar(now, outputs, out);
    }

    fn feed_matcher(&mut self, now: Now, input: matcher::Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.matcher.handle(now, input, &mut outputs);
        self.perform_matcher(now, outputs, out);
    }

    fn feed_bridge(&mut self, now: Now, input: bridge::Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.bridge.handle(now, input, &mut outputs);
        self.perform_bridge(now, outputs, out);
    }

    /// F1: whether what an answer stands on has held all the time.
    fn holds(&self, now: Now, guard: Option<Guard>) -> bool {
        guard.is_none_or(|guard| self.ranges.holds(now, guard.key, guard.lease))
    }

    fn perform_registrar(&mut self, now: Now, outputs: Outbox<registrar::Output>, out: &mut Out) {
        for output in outputs {
            match output {
                registrar::Output::Send { channel, guard, message } => {
                    if self.holds(now, guard) {
                        self.send_down(channel, *message, out);
                    }
                }
                registrar::Output::Notified { request, guard, outcome } => {
                    let outcome = if self.holds(now, guard) { outcome } else { Outcome::Moved };
                    self.notified(request, outcome, out);
                }
                registrar::Output::ToMatcher { id, key, call } => {
                    self.call_matcher(now, Asker::Registrar, id, key, match_call::Call::Registration(*call), out);
                }
                registrar::Output::Authorize { id, .. } => {
                    // A hook that hangs is answered for by the driver.
                    let hangs = !self.calm && self.rng.one_in(8);
                    let verdict = if hangs { Verdict::Unsure } else { Verdict::Yes };
                    let most = if hangs { 2_000 } else { 10 };
                    self.after(now, 1, most, Later::Registrar(registrar::Input::Authorized { id, verdict }));
                }
                registrar::Output::Confirm { id, guard } => {
                    let held = self.holds(now, Some(guard));
                    self.after(now, 0, 0, Later::Registrar(registrar::Input::Confirmed { id, held }));
                }
                registrar::Output::Worn { .. } => {
                    self.ranges.renumber(now, Hears { rng: &mut self.rng, calm: self.calm }, out);
                }
                registrar::Output::Store { id, request } => self.ask_store(now, Who::Registrar(id), request, out),
            }
        }
    }

    fn perform_matcher(&mut self, now: Now, outputs: Outbox<matcher::Output>, out: &mut Out) {
        for output in outputs {
            match output {
                matcher::Output::Answer { request, guard, outcome, version } => {
                    let outcome = if self.holds(now, guard) { outcome } else { Outcome::Moved };
                    self.matched(request, outcome, version, out);
                }
                matcher::Output::ToRegistrar { id, key, notify } => self.call_registrar(now, id, key, *notify, out),
                matcher::Output::Behind { .. } => {}
                matcher::Output::Store { id, guard, request } => match self.holds(now, guard) {
                    true => self.ask_store(now, Who::Matcher(id), request, out),
                    false => self.stored_later(now, Who::Matcher(id), Err(storing::unavailable())),
                },
            }
        }
    }

    fn perform_bridge(&mut self, now: Now, outputs: Outbox<bridge::Output>, out: &mut Out) {
        let mut acks = Vec::new();
        for output in outputs {
            match output {
                bridge::Output::ToMatcher { id, key, call } => {
                    let call = match_call::Call::Publication(*call);
                    self.call_matcher(now, Asker::Bridge(self.bridges), id, key, call, out);
                }
                bridge::Output::Ack(number) => acks.push(number),
                // Only what the backend made comes by this feed.
                bridge::Output::Spoiled(number) => {
                    out.put(Effect::Exit { why: format!("entry {number} is spoiled") });
                }
                bridge::Output::Store { id, request } => {
                    self.ask_store(now, Who::Bridge(self.bridges, id), request, out);
                }
            }
        }
        if !acks.is_empty() {
            self.acknowledge(now, acks, out);
        }
    }
}
