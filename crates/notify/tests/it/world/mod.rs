//! The world: three nodes, each with a registrar, a matcher and a bridge; devices; a store; time that is made here.
//!
//! A phase of faults, then a phase without them in which everybody must converge; heartbeats are off, so that they
//! cannot hide that something else is broken.

mod backend;
mod devices;
mod drivers;
mod faults;
mod plan;

pub use plan::{Counts, Plan};

use crate::model::{Made, Seen, Store, Table};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyHash, Machine, Mono, Now, Outbox, Seeded, Wall};
use tidings_notify::bridge::{self, Bridge};
use tidings_notify::client::{self, Client};
use tidings_notify::matcher::{self, Matcher};
use tidings_notify::mutant::Mutant;
use tidings_notify::names::{Caller, Channel, Guard, client_hash};
use tidings_notify::registrar::{self, Registrar};
use tidings_notify::rows::{Realm, StoreId, StoreRequest};
use tidings_notify::token::Keys;
use tidings_notify::{CallId, RequestId};
use tidings_wire::v1;

const NODES: usize = 3;
const DEVICES: usize = 5;
const OBJECTS: usize = 6;
const APP: &str = "app";
const MS: u64 = 1_000_000;
const FAULTS_END: u64 = 16_000 * MS;
/// The longest pauses below are 4 s; a few of them in a row, and ten seconds.
const END: u64 = FAULTS_END + 40_000 * MS;
/// Versions of the first generation are above this, those of the second below it.
const FIRST_GENERATION: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Registrar,
    Matcher,
    Bridge,
}

/// A machine of a node, as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Who {
    node: usize,
    life: u64,
    role: Role,
}

enum Input {
    Registrar(registrar::Input),
    Matcher(matcher::Input),
    Bridge(bridge::Input),
}

enum Happening {
    Input(Who, Input),
    Wake(Who),
    Client(usize, u64, client::Input),
    WakeClient(usize, u64),
    /// A request reaches the store.
    Store(Who, StoreId, StoreRequest),
    /// A call reaches the servers of its key.
    Match(Who, CallId, KeyHash, MatchCall),
    Notify(Who, CallId, KeyHash, Box<v1::ClientNotify>),
    /// A client's message reaches the servers.
    Up(usize, u64, Box<v1::NotifyUp>),
    /// A message reaches a client, if its connection still stands.
    Down(usize, Channel, Box<v1::NotifyDown>),
    Opened(usize, u64),
    Tick,
    Feed,
    Assign(Role, usize),
    HealRows,
    Online(usize),
}

#[derive(Clone)]
enum MatchCall {
    Register(Box<v1::MatchRegistration>),
    Publish(Box<v1::MatchPublication>),
}

struct Node {
    life: u64,
    registrar: Registrar,
    matcher: Matcher,
    bridge: Bridge,
    /// Ownership changes are heard in order.
    heard_until: u64,
}

struct Device {
    life: u64,
    machine: Client,
    persistent: bool,
    /// F12: an installation that lost its data is another one.
    source: Bytes,
    state: Option<Bytes>,
    online: bool,
    channel: Option<Channel>,
    intended: BTreeSet<Bytes>,
    seen: BTreeMap<Bytes, Seen>,
    /// Its data is a copy, which may be older than what the original has acknowledged: it fetches when it begins.
    copied: bool,
}

pub struct World {
    now: u64,
    rng: Seeded,
    plan: Plan,
    mutant: Option<Mutant>,
    events: BTreeMap<(u64, u64), Happening>,
    next_event: u64,
    nodes: Vec<Node>,
    devices: Vec<Device>,
    store: Store,
    registrars: Table,
    matchers: Table,
    realm: Realm,
    feed: BTreeMap<u64, Bytes>,
    next_entry: u64,
    next_channel: u64,
    next_request: u64,
    requests: BTreeMap<RequestId, (Who, CallId)>,
    latest: BTreeMap<Bytes, u64>,
    called: BTreeSet<(Bytes, u64)>,
    made: BTreeMap<Bytes, Vec<Made>>,
    counts: Counts,
    broken: Option<String>,
    traced: Option<String>,
}

fn object(at: u64) -> Bytes {
    Bytes::from(format!("object-{at}"))
}

fn source(device: usize, installed: u64) -> Bytes {
    Bytes::from(format!("installation-{device}-{installed}"))
}

fn caller(device: usize) -> Caller {
    Caller { app: APP.into(), principal: format!("user-{}", device % 3) }
}

fn place(device: usize) -> KeyHash {
    client_hash(APP, &caller(device).principal)
}

impl World {
    pub fn new(seed: u64, plan: Plan, mutant: Option<Mutant>) -> World {
        let rng = Seeded::new(seed).fork("world");
        let mut world = World {
            now: 0,
            rng,
            plan,
            mutant,
            events: BTreeMap::new(),
            next_event: 0,
            nodes: Vec::new(),
            devices: Vec::new(),
            store: Store::default(),
            registrars: Table::new(4),
            matchers: Table::new(4),
            realm: Realm { incarnation: 1, ..Default::default() },
            feed: BTreeMap::new(),
            next_entry: 0,
            next_channel: 0,
            next_request: 0,
            requests: BTreeMap::new(),
            latest: BTreeMap::new(),
            called: BTreeSet::new(),
            made: BTreeMap::new(),
            counts: Counts::default(),
            broken: None,
            traced: std::env::var("NOTIFY_TRACE").ok(),
        };
        for at in 0..NODES {
            let node = world.node(0);
            world.nodes.push(node);
            world.begin_node(at);
        }
        for slot in 0..4 {
            world.assign(Role::Registrar, slot);
            world.assign(Role::Matcher, slot);
        }
        for at in 0..DEVICES {
            let persistent = at % 4 != 3;
            let device = world.device(0, persistent, source(at, 0));
            world.devices.push(device);
            let objects: BTreeSet<Bytes> = (0..3).map(|_| object(world.rng.below(OBJECTS as u64))).collect();
            world.devices[at].intended = objects;
            world.begin_device(at);
        }
        world.after(100 * MS, Happening::Tick);
        world.after(300 * MS, Happening::Feed);
        world
    }

    pub fn run(&mut self) -> Result<Counts, String> {
        let mut steps = 0u64;
        while let Some(((at, _), happening)) = self.events.pop_first() {
            if at > END {
                break;
            }
            self.now = at;
            self.happen(happening);
            steps += 1;
            assert!(steps < 2_000_000, "the world does not come to rest");
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
        }
        self.check()?;
        Ok(self.counts.clone())
    }

    /// N1, for every registered object and every publication that was acknowledged.
    fn check(&self) -> Result<(), String> {
        for (at, device) in self.devices.iter().enumerate() {
            for object in &device.intended {
                let seen = device.seen.get(object).cloned().unwrap_or_default();
                let made = self.made.get(object).into_iter().flatten();
                if let Some(missed) = made.clone().find(|made| seen.misses(**made)) {
                    return Err(format!(
                        "device {at} missed {object:?} version {} of {} ms: it has {} of {:?} (synced: {})",
                        missed.version,
                        missed.at / MS,
                        seen.notified,
                        seen.fetched_at.map(|at| at / MS),
                        device.machine.is_synced()
                    ));
                }
            }
            if !device.machine.is_synced() {
                return Err(format!("device {at} does not agree with the servers"));
            }
        }
        if self.mutant.is_none() && !self.feed.is_empty() {
            return Err(format!("{} entries of the feed are left", self.feed.len()));
        }
        Ok(())
    }

    // ---- making things ----------------------------------------------------------------------------------------------

    fn time(&self) -> Now {
        Now { mono: Mono(self.now + MS), wall: Wall(1_700_000_000_000_000 + self.now / 1_000) }
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    fn after(&mut self, delay: u64, happening: Happening) {
        self.next_event += 1;
        self.events.insert((self.now + delay, self.next_event), happening);
    }

    /// Mostly quick, now and then slow while there are faults.
    fn delay(&mut self) -> u64 {
        match self.faulty() && self.rng.one_in(25) {
            true => self.rng.between(50, 1_500) * MS,
            false => self.rng.between(1, 40) * MS / 10,
        }
    }

    fn lost(&mut self) -> bool {
        self.faulty() && self.rng.chance(self.plan.loss)
    }

    fn repeated(&mut self) -> bool {
        self.faulty() && self.rng.one_in(20)
    }

    fn node(&mut self, life: u64) -> Node {
        let seed = self.rng.next_u64();
        let mutant = self.mutant;
        let registrar = registrar::Options {
            seed,
            data_centre: "here".into(),
            offline_after: Duration::from_secs(30),
            retry_longest: Duration::from_secs(4),
            collect_after: Duration::from_secs(5),
            collect_unpersisted_after: Duration::from_secs(3),
            collect_every: Duration::from_secs(2),
            max_pending: 8,
            hooks: if self.plan.hooks { registrar::Hooks::All } else { registrar::Hooks::None },
            mutant,
            ..Default::default()
        };
        let matcher = matcher::Options { seed, max_jobs: 5, hints: seed.is_multiple_of(2), mutant };
        let bridge = bridge::Options { seed, mutant, ..Default::default() };
        Node {
            life,
            registrar: Registrar::new(registrar),
            matcher: Matcher::new(matcher),
            bridge: Bridge::new(bridge),
            heard_until: 0,
        }
    }

    fn begin_node(&mut self, node: usize) {
        let keys = Keys::new([(1, &b"secret"[..])]);
        self.give(node, Input::Registrar(registrar::Input::Keys(keys)));
        self.tell_realm(node);
    }

    fn tell_realm(&mut self, node: usize) {
        let realm = self.realm.clone();
        self.give(node, Input::Registrar(registrar::Input::Realm(realm.clone())));
        self.give(node, Input::Matcher(matcher::Input::Realm(realm.clone())));
        self.give(node, Input::Bridge(bridge::Input::Realm(realm)));
    }

    fn device(&mut self, life: u64, persistent: bool, source: Bytes) -> Device {
        let options = client::Options {
            seed: self.rng.next_u64(),
            source: source.clone(),
            persistent,
            heartbeat: self.plan.clones.then_some(Duration::from_secs(10)),
            retry_longest: Duration::from_secs(4),
            reconnect_longest: Duration::from_secs(2),
            mutant: self.mutant,
            ..Default::default()
        };
        let machine = Client::new(options);
        let (intended, seen) = (BTreeSet::new(), BTreeMap::new());
        Device {
            life,
            machine,
            persistent,
            source,
            state: None,
            online: true,
            channel: None,
            intended,
            seen,
            copied: false,
        }
    }

    fn begin_device(&mut self, at: usize) {
        let state = self.devices[at].state.clone();
        self.tell_client(at, client::Input::Start { state });
    }

    // ---- what happens -----------------------------------------------------------------------------------------------

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Input(who, input) => {
                if self.nodes[who.node].life == who.life {
                    self.give(who.node, input);
                }
            }
            Happening::Wake(who) => {
                if self.nodes[who.node].life == who.life {
                    self.wake(who);
                }
            }
            Happening::Client(at, life, input) => {
                if self.devices[at].life == life {
                    self.tell_client(at, input);
                }
            }
            Happening::WakeClient(at, life) => {
                if self.devices[at].life == life {
                    let (now, mut out) = (self.time(), Outbox::new());
                    self.devices[at].machine.wake(now, &mut out);
                    self.client_outputs(at, out);
                }
            }
            Happening::Store(who, id, request) => self.store_performs(who, id, &request),
            Happening::Match(who, id, key, call) => self.match_arrives(who, id, key, call),
            Happening::Notify(who, id, key, notify) => self.notify_arrives(who, id, key, notify),
            Happening::Up(at, channel, up) => self.up_arrives(at, channel, up),
            Happening::Down(at, channel, message) => {
                if self.devices[at].channel == Some(channel) {
                    self.tell_client(at, client::Input::Received(message));
                }
            }
            Happening::Opened(at, life) => self.channel_opens(at, life),
            Happening::Tick => self.tick(),
            Happening::Feed => self.deliver_feed(),
            Happening::Assign(role, slot) => self.assign(role, slot),
            Happening::HealRows => self.store.failing.clear(),
            Happening::Online(at) => self.devices[at].online = true,
        }
    }

    /// Prints what names an object, if one is to be followed: `NOTIFY_TRACE=object-3 cargo test … -- --nocapture`.
    fn trace(&self, who: String, what: &dyn std::fmt::Debug) {
        if let Some(object) = &self.traced {
            let text = format!("{what:?}");
            if ["Gained", "Lost", "Refused", "Status", object].iter().any(|part| text.contains(part)) {
                println!("{:>6} {who} {text}", self.now / MS);
            }
        }
    }

    fn give(&mut self, node: usize, input: Input) {
        match &input {
            Input::Registrar(input) => self.trace(format!("registrar {node}"), input),
            Input::Matcher(input) => self.trace(format!("matcher {node}"), input),
            Input::Bridge(input) => self.trace(format!("bridge {node}"), input),
        }
        let now = self.time();
        match input {
            Input::Registrar(input) => {
                let mut out = Outbox::new();
                self.nodes[node].registrar.handle(now, input, &mut out);
                self.registrar_outputs(node, out);
            }
            Input::Matcher(input) => {
                let mut out = Outbox::new();
                self.nodes[node].matcher.handle(now, input, &mut out);
                self.matcher_outputs(node, out);
            }
            Input::Bridge(input) => {
                let mut out = Outbox::new();
                self.nodes[node].bridge.handle(now, input, &mut out);
                self.bridge_outputs(node, out);
            }
        }
    }

    fn wake(&mut self, who: Who) {
        let now = self.time();
        match who.role {
            Role::Registrar => {
                let mut out = Outbox::new();
                self.nodes[who.node].registrar.wake(now, &mut out);
                self.registrar_outputs(who.node, out);
            }
            Role::Matcher => {
                let mut out = Outbox::new();
                self.nodes[who.node].matcher.wake(now, &mut out);
                self.matcher_outputs(who.node, out);
            }
            Role::Bridge => {
                let mut out = Outbox::new();
                self.nodes[who.node].bridge.wake(now, &mut out);
                self.bridge_outputs(who.node, out);
            }
        }
    }

    fn wake_at(&mut self, who: Who, deadline: Option<Mono>) {
        if let Some(at) = deadline {
            let delay = at.0.saturating_sub(self.now + MS);
            self.after(delay, Happening::Wake(who));
        }
    }

    fn who(&self, node: usize, role: Role) -> Who {
        Who { node, life: self.nodes[node].life, role }
    }

    fn holds(&mut self, role: Role, node: usize, guard: Option<Guard>) -> bool {
        let Some(guard) = guard else { return true };
        let table = if role == Role::Registrar { &self.registrars } else { &self.matchers };
        let holds = table.owner(guard.key) == Some((node, guard.lease));
        self.counts.answers_withheld += u64::from(!holds);
        holds
    }
}
