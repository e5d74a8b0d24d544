//! The world: three nodes, each with a registrar, a matcher and a bridge; devices; a store; time that is made here.
//!
//! A phase of faults, then a phase without them in which everybody must converge; heartbeats are off, so that they
//! cannot hide that something else is broken.

use crate::model::{Made, Seen, Store, Table};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, Machine, Mono, Now, Outbox, Seeded, Wall};
use tidings_notify::bridge::{self, Bridge};
use tidings_notify::client::{self, Client, Event};
use tidings_notify::matcher::{self, Matcher};
use tidings_notify::mutant::Mutant;
use tidings_notify::names::{Caller, Channel, Guard, client_hash};
use tidings_notify::registrar::{self, Registrar, Verdict};
use tidings_notify::rows::{Realm, StoreId, StoreRequest, StoreResult};
use tidings_notify::token::Keys;
use tidings_notify::{CallId, Outcome, RequestId};
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

/// What happens in a world besides the usual.
pub struct Plan {
    wipe_at: Option<u64>,
    reset_at: Option<u64>,
    loss: f64,
    hooks: bool,
    /// Storage is cloned. Whoever is superseded learns that with its next heartbeat at the latest, so there are some.
    clones: bool,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut rng = Seeded::new(seed).fork("plan");
        let at = |rng: &mut Seeded| rng.between(4_000, 14_000) * MS;
        Plan {
            wipe_at: rng.one_in(3).then(|| at(&mut rng)),
            reset_at: rng.one_in(3).then(|| at(&mut rng)),
            loss: [0.0, 0.05, 0.3][rng.below(3) as usize],
            hooks: rng.one_in(4),
            clones: rng.one_in(4),
        }
    }
}

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    published: u64,
    notified: u64,
    unknown: u64,
    moved: u64,
    crashed: u64,
    wiped: u64,
    reset: u64,
    row_failures: u64,
    answers_withheld: u64,
    scratched: u64,
    collected: u64,
    not_registered: u64,
    restarts: u64,
    superseded: u64,
    refused: u64,
}

impl Counts {
    fn list(&self) -> [u64; 15] {
        let Counts { published, notified, unknown, moved, crashed, wiped, reset, row_failures, .. } = *self;
        let Counts { answers_withheld, scratched, collected, not_registered, restarts, superseded, refused, .. } =
            *self;
        [
            published,
            notified,
            unknown,
            moved,
            crashed,
            wiped,
            reset,
            row_failures,
            answers_withheld,
            scratched,
            collected,
            not_registered,
            restarts,
            superseded,
            refused,
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        self.published += other.published;
        self.notified += other.notified;
        self.unknown += other.unknown;
        self.moved += other.moved;
        self.crashed += other.crashed;
        self.wiped += other.wiped;
        self.reset += other.reset;
        self.row_failures += other.row_failures;
        self.answers_withheld += other.answers_withheld;
        self.scratched += other.scratched;
        self.collected += other.collected;
        self.not_registered += other.not_registered;
        self.restarts += other.restarts;
        self.superseded += other.superseded;
        self.refused += other.refused;
    }

    pub fn all_happened(&self) -> bool {
        self.list().iter().all(|count| *count > 0)
    }
}

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
            authorize_registrations: self.plan.hooks,
            authorize_sends: self.plan.hooks,
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

    // ---- drivers ----------------------------------------------------------------------------------------------------

    fn registrar_outputs(&mut self, node: usize, out: Outbox<registrar::Output>) {
        let who = self.who(node, Role::Registrar);
        for output in out {
            match output {
                registrar::Output::Send { channel, guard, message } => {
                    if self.holds(Role::Registrar, node, guard) {
                        self.send_down(who, channel, message);
                    }
                }
                registrar::Output::Notified { request, guard, outcome } => {
                    let held = self.holds(Role::Registrar, node, guard);
                    let outcome = if held { outcome } else { Outcome::Moved };
                    self.counts.not_registered += u64::from(matches!(outcome, Outcome::NotRegistered(_)));
                    self.reply(request, outcome, 0);
                }
                registrar::Output::ToMatcher { id, key, call } => {
                    self.call(Happening::Match(who, id, key, MatchCall::Register(call)));
                }
                registrar::Output::Authorize { id, object, .. } => {
                    // The last object is nobody's; hooks that hang are answered for by the driver.
                    let verdict = match () {
                        () if object == self::object(OBJECTS as u64 - 1) => Verdict::No,
                        () if self.faulty() && self.rng.one_in(8) => Verdict::Unsure,
                        () => Verdict::Yes,
                    };
                    let delay = self.delay();
                    let input = registrar::Input::Authorized { id, verdict };
                    self.after(delay, Happening::Input(who, Input::Registrar(input)));
                }
                registrar::Output::Confirm { id, guard } => {
                    let held = self.holds(Role::Registrar, node, Some(guard));
                    self.counts.collected += u64::from(held);
                    let input = registrar::Input::Confirmed { id, held };
                    self.after(0, Happening::Input(who, Input::Registrar(input)));
                }
                registrar::Output::Store { id, request } => self.ask_store(who, id, request),
            }
        }
        let deadline = self.nodes[node].registrar.deadline();
        self.wake_at(who, deadline);
    }

    fn matcher_outputs(&mut self, node: usize, out: Outbox<matcher::Output>) {
        let who = self.who(node, Role::Matcher);
        for output in out {
            match output {
                matcher::Output::Answer { request, guard, outcome, version } => {
                    let held = self.holds(Role::Matcher, node, guard);
                    self.reply(request, if held { outcome } else { Outcome::Moved }, version);
                }
                matcher::Output::ToRegistrar { id, key, notify } => {
                    self.call(Happening::Notify(who, id, key, notify));
                }
                matcher::Output::Store { id, request } => self.ask_store(who, id, request),
            }
        }
        let deadline = self.nodes[node].matcher.deadline();
        self.wake_at(who, deadline);
    }

    fn bridge_outputs(&mut self, node: usize, out: Outbox<bridge::Output>) {
        let who = self.who(node, Role::Bridge);
        for output in out {
            match output {
                bridge::Output::ToMatcher { id, key, call } => {
                    self.call(Happening::Match(who, id, key, MatchCall::Publish(call)));
                }
                bridge::Output::Ack(number) => drop(self.feed.remove(&number)),
                bridge::Output::Spoiled(number) => self.broken = Some(format!("entry {number} is spoiled")),
                bridge::Output::Store { id, request } => {
                    let write = matches!(&request, StoreRequest::Write(apply)
                        if apply.groups[0].rows[0].cells[0].value.is_some());
                    self.counts.scratched += u64::from(write);
                    self.ask_store(who, id, request);
                }
            }
        }
        let deadline = self.nodes[node].bridge.deadline();
        self.wake_at(who, deadline);
    }

    /// Calls between servers are lost and repeated, too.
    fn call(&mut self, happening: Happening) {
        if self.lost() {
            return;
        }
        let again = match &happening {
            Happening::Match(who, id, key, call) => Happening::Match(*who, *id, *key, call.clone()),
            Happening::Notify(who, id, key, notify) => Happening::Notify(*who, *id, *key, notify.clone()),
            _ => return,
        };
        if self.repeated() {
            let delay = self.delay();
            self.after(delay, again);
        }
        let delay = self.delay();
        self.after(delay, happening);
    }

    fn request(&mut self, who: Who, id: CallId) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.requests.insert(request, (who, id));
        request
    }

    fn match_arrives(&mut self, who: Who, id: CallId, key: KeyHash, call: MatchCall) {
        let request = self.request(who, id);
        let Some((node, lease)) = self.matchers.owner(key) else {
            return self.reply(request, Outcome::Moved, 0);
        };
        let input = match call {
            MatchCall::Register(call) => matcher::Input::Register { request, lease, call },
            MatchCall::Publish(call) => matcher::Input::Publish { request, lease, call },
        };
        self.give(node, Input::Matcher(input));
    }

    fn notify_arrives(&mut self, who: Who, id: CallId, key: KeyHash, notify: Box<v1::ClientNotify>) {
        let request = self.request(who, id);
        let Some((node, lease)) = self.registrars.owner(key) else {
            return self.reply(request, Outcome::Moved, 0);
        };
        self.give(node, Input::Registrar(registrar::Input::Notify { request, lease, notify }));
    }

    fn reply(&mut self, request: RequestId, outcome: Outcome, version: u64) {
        let Some((who, id)) = self.requests.remove(&request) else { return };
        if self.lost() {
            return;
        }
        let input = match who.role {
            Role::Registrar => Input::Registrar(registrar::Input::Matched { id, outcome, version }),
            Role::Matcher => Input::Matcher(matcher::Input::Notified { id, outcome }),
            Role::Bridge => Input::Bridge(bridge::Input::Matched { id, outcome }),
        };
        let delay = self.delay();
        self.after(delay, Happening::Input(who, input));
    }

    fn ask_store(&mut self, who: Who, id: StoreId, request: StoreRequest) {
        let delay = self.delay();
        self.after(delay, Happening::Store(who, id, request));
    }

    fn store_performs(&mut self, who: Who, id: StoreId, request: &StoreRequest) {
        let unavailable = || Error::new("store.unavailable", Class::OutcomeUnknown, "Nobody knows.");
        let result: StoreResult = match self.faulty() && self.rng.one_in(40) {
            true if self.rng.one_in(2) => Err(unavailable()),
            true => self.store.perform(request).and_then(|_| Err(unavailable())),
            false => self.store.perform(request),
        };
        self.counts.row_failures += u64::from(result.is_err());
        let input = match who.role {
            Role::Registrar => Input::Registrar(registrar::Input::Stored { id, result }),
            Role::Matcher => Input::Matcher(matcher::Input::Stored { id, result }),
            Role::Bridge => Input::Bridge(bridge::Input::Stored { id, result }),
        };
        let delay = self.delay();
        self.after(delay, Happening::Input(who, input));
    }

    // ---- channels and devices ---------------------------------------------------------------------------------------

    fn send_down(&mut self, who: Who, channel: Channel, message: Box<v1::NotifyDown>) {
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

    fn up_arrives(&mut self, at: usize, number: u64, up: Box<v1::NotifyUp>) {
        let channel = Channel { node: 0, number };
        // A message may outlive its connection by a moment.
        let Some((node, lease)) = self.registrars.owner(place(at)) else { return };
        let caller = caller(at);
        self.give(node, Input::Registrar(registrar::Input::Up { caller, channel, lease, message: up }));
    }

    fn channel_opens(&mut self, at: usize, life: u64) {
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

    fn channel_closes(&mut self, at: usize) {
        let Some(channel) = self.devices[at].channel.take() else { return };
        if let Some((node, _)) = self.registrars.owner(place(at))
            && !self.rng.one_in(4)
        {
            let (who, delay) = (self.who(node, Role::Registrar), self.delay());
            self.after(delay, Happening::Input(who, Input::Registrar(registrar::Input::Closed(channel))));
        }
        self.tell_client(at, client::Input::Closed);
    }

    fn tell_client(&mut self, at: usize, input: client::Input) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.devices[at].machine.handle(now, input, &mut out);
        self.client_outputs(at, out);
    }

    fn client_outputs(&mut self, at: usize, out: Outbox<client::Output>) {
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
            }
        }
        if let Some(deadline) = self.devices[at].machine.deadline() {
            let delay = deadline.0.saturating_sub(self.now + MS);
            self.after(delay, Happening::WakeClient(at, life));
        }
    }

    fn fetch_copied(&mut self, at: usize) {
        let device = &mut self.devices[at];
        if std::mem::take(&mut device.copied) {
            for object in device.intended.clone() {
                device.seen.entry(object).or_default().fetched_at = Some(self.now);
            }
        }
    }

    fn application(&mut self, at: usize, life: u64, event: Event) {
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

    // ---- the backend and the feed -----------------------------------------------------------------------------------

    fn publish(&mut self) {
        let object = object(self.rng.below(OBJECTS as u64));
        let base = if self.realm.generations.is_empty() { FIRST_GENERATION } else { 0 };
        let latest = self.latest.entry(object.clone()).or_insert(base);
        *latest += self.rng.between(1, 3);
        let version = *latest;
        let maker = self.rng.one_in(2).then(|| self.rng.below(DEVICES as u64) as usize);
        // Two that share a name cannot be told apart: they publish without it.
        let shared =
            |at: usize| self.devices.iter().filter(|other| other.source == self.devices[at].source).count() > 1;
        let maker = maker.filter(|at| !shared(*at));
        if let Some(at) = maker {
            self.devices[at].seen.entry(object.clone()).or_default().made.insert(version);
        }
        let publication = v1::Publication {
            app: APP.into(),
            object: object.clone(),
            version,
            source: maker.map(|at| self.devices[at].source.clone()).unwrap_or_default(),
            generation: self.realm.generation(APP),
            ..Default::default()
        };
        self.called.insert((object.clone(), version));
        self.made.entry(object).or_default().push(Made { version, at: self.now });
        self.next_entry += 1;
        self.feed.insert(self.next_entry, publication.encode_to_vec().into());
        self.counts.published += 1;
        let (number, delay) = (self.next_entry, self.delay());
        self.deliver(number, delay);
    }

    fn deliver(&mut self, number: u64, delay: u64) {
        let Some(entry) = self.feed.get(&number).cloned() else { return };
        let node = self.rng.below(NODES as u64) as usize;
        let who = self.who(node, Role::Bridge);
        self.after(delay, Happening::Input(who, Input::Bridge(bridge::Input::Fed(vec![(number, entry)]))));
    }

    fn deliver_feed(&mut self) {
        let left: Vec<u64> = self.feed.keys().copied().take(50).collect();
        for number in left {
            let delay = self.delay();
            self.deliver(number, delay);
        }
        self.after(700 * MS, Happening::Feed);
    }

    // ---- faults -----------------------------------------------------------------------------------------------------

    fn tick(&mut self) {
        if self.now >= FAULTS_END {
            return self.heal();
        }
        self.after(100 * MS, Happening::Tick);
        for _ in 0..self.rng.below(3) {
            self.publish();
        }
        let at = self.rng.below(DEVICES as u64) as usize;
        match self.rng.below(60) {
            0..=7 => self.toggle(at),
            8..=10 if self.devices[at].online => {
                self.devices[at].online = false;
                self.channel_closes(at);
                let away = self.rng.between(200, 9_000) * MS;
                self.after(away, Happening::Online(at));
            }
            11..=13 => self.channel_closes(at),
            14 => self.restart(at, true),
            15 => self.restart(at, false),
            16 if self.plan.clones => self.clone_storage(at),
            17..=22 => {
                let (role, slot) = (*self.rng.pick(&[Role::Registrar, Role::Matcher]).unwrap(), self.rng.below(4));
                self.assign(role, slot as usize);
            }
            23 => self.crash(),
            24..=25 => {
                let first = self.rng.below(256) as u8;
                self.store.failing.extend((0..60).map(|more| first.wrapping_add(more)));
                let long = self.rng.between(300, 2_500) * MS;
                self.after(long, Happening::HealRows);
            }
            _ => {}
        }
        if self.plan.wipe_at.is_some_and(|at| at <= self.now) {
            self.plan.wipe_at = None;
            self.wipe();
        }
        if self.plan.reset_at.is_some_and(|at| at <= self.now) {
            self.plan.reset_at = None;
            self.reset();
        }
    }

    fn heal(&mut self) {
        self.store.failing.clear();
        self.devices.iter_mut().for_each(|device| device.online = true);
    }

    fn toggle(&mut self, at: usize) {
        let object = object(self.rng.below(OBJECTS as u64));
        let input = match self.devices[at].intended.remove(&object) {
            true => client::Input::Unregister { object },
            false => {
                self.devices[at].intended.insert(object.clone());
                let known = self.devices[at].seen.get(&object).map_or(0, |seen| seen.known);
                client::Input::Register { object, known: if self.rng.one_in(2) { known } else { 0 } }
            }
        };
        self.tell_client(at, input);
    }

    /// The application starts again, with what it had persisted, or with nothing at all.
    fn restart(&mut self, at: usize, keeps: bool) {
        self.counts.restarts += 1;
        self.channel_closes(at);
        let (life, persistent) = (self.devices[at].life + 1, self.devices[at].persistent);
        let kept = self.devices[at].source.clone();
        let fresh = self.device(life, persistent, if keeps { kept } else { source(at, life) });
        let old = std::mem::replace(&mut self.devices[at], fresh);
        let device = &mut self.devices[at];
        (device.online, device.intended) = (old.online, old.intended);
        if keeps {
            (device.state, device.seen) = (old.state, old.seen);
        }
        self.begin_device(at);
    }

    /// Another installation begins with a copy of this one's storage, its data included; ours goes on.
    fn clone_storage(&mut self, at: usize) {
        let other = (at + 3) % DEVICES;
        if other == at || caller(other) != caller(at) || self.devices[at].state.is_none() {
            return;
        }
        self.channel_closes(other);
        self.devices[other].life += 1;
        let (life, source) = (self.devices[other].life, self.devices[at].source.clone());
        let mut fresh = self.device(life, true, source);
        let original = &self.devices[at];
        (fresh.state, fresh.seen, fresh.copied) = (original.state.clone(), original.seen.clone(), true);
        (fresh.online, fresh.intended) = (self.devices[other].online, self.devices[other].intended.clone());
        self.devices[other] = fresh;
        self.begin_device(other);
    }

    /// Gives a range to some node under a new lease; both hear of it later.
    fn assign(&mut self, role: Role, slot: usize) {
        let to = self.rng.below(NODES as u64) as usize;
        let table = if role == Role::Registrar { &mut self.registrars } else { &mut self.matchers };
        let lease = table.lease();
        let range = table.slots[slot].range;
        let from = table.slots[slot].owner.replace((to, lease));
        self.counts.moved += u64::from(from.is_some());
        if let Some((from, _)) = from {
            let input = match role {
                Role::Registrar => Input::Registrar(registrar::Input::Lost { range }),
                _ => Input::Matcher(matcher::Input::Lost { range }),
            };
            self.hears(from, role, input);
        }
        let input = match role {
            Role::Registrar => Input::Registrar(registrar::Input::Gained { range, lease }),
            _ => Input::Matcher(matcher::Input::Gained { range, lease }),
        };
        self.hears(to, role, input);
    }

    fn hears(&mut self, node: usize, role: Role, input: Input) {
        let at = (self.now + self.rng.below(300) * MS).max(self.nodes[node].heard_until);
        self.nodes[node].heard_until = at;
        let who = self.who(node, role);
        self.after(at - self.now, Happening::Input(who, input));
    }

    fn crash(&mut self) {
        self.counts.crashed += 1;
        let at = self.rng.below(NODES as u64) as usize;
        let life = self.nodes[at].life + 1;
        self.nodes[at] = self.node(life);
        self.begin_node(at);
        for role in [Role::Registrar, Role::Matcher] {
            let table = if role == Role::Registrar { &mut self.registrars } else { &mut self.matchers };
            let slots = table.slots.iter_mut().enumerate();
            let lost = slots.filter(|(_, slot)| slot.owner.is_some_and(|(owner, _)| owner == at));
            let lost: Vec<usize> = lost.map(|(slot, state)| (slot, state.owner = None).0).collect();
            for slot in lost {
                let delay = self.rng.between(100, 1_000) * MS;
                self.after(delay, Happening::Assign(role, slot));
            }
        }
        // Some connections went by this node.
        for device in 0..DEVICES {
            if self.rng.one_in(3) {
                self.channel_closes(device);
            }
        }
    }

    /// Every node hears of the realm, and closes its clients' connections.
    fn enter_realm(&mut self) {
        (0..NODES).for_each(|node| self.tell_realm(node));
        (0..DEVICES).for_each(|at| self.channel_closes(at));
    }

    /// The store is lost, and it is noticed (F3).
    fn wipe(&mut self) {
        self.counts.wiped += 1;
        self.store.wipe();
        self.realm.incarnation += 1;
        self.enter_realm();
    }

    /// The backend is restored from a backup: versions begin anew, and the operator resets the application (F3).
    fn reset(&mut self) {
        self.counts.reset += 1;
        self.latest.clear();
        self.made.clear();
        self.devices.iter_mut().for_each(|device| device.seen.clear());
        self.realm.generations.insert(APP.into(), 1);
        self.enter_realm();
    }
}
