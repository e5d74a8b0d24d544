//! The registrar: sessions, registrations, unacknowledged notifications and presence of clients (§4.1.2–§4.1.4, §4.2).
//!
//! ```text
//!   client ─ Up ─▶ loaded row ─▶ changes, acks ─▶ one row write, with markers ─▶ Send (F1: guarded by the lease)
//!                     └▶ once it is stable: ToMatcher ─▶ version ─▶ post-propagation: log or unk, and the marker's end,
//!                                                                   in one row write (F5, F6) ─▶ Send
//!   matcher ─ Notify ─▶ pushed at once (fast path), log-{object}@version ─▶ Notified
//!                          └▶ sent again from memory until it is acknowledged (F9)
//! ```
//! A client is in memory while it is online or something of it is under way. One row write of a client is under way at
//! a time; whatever comes meanwhile goes together with the next. After a write whose outcome is unknown the row is
//! read again: memory never claims more than the store may hold.

mod collect;
mod deliver;
mod hello;
mod interned;
mod pending;
mod scan;
mod spread;
mod state;
mod surface;
mod up;
mod writing;

pub use surface::{AskId, Hooks, Input, Options, Output, Verdict};

use crate::held::Held;
use crate::mutant::Mutant;
use crate::names::{Caller, Channel, ClientKey, Guard, client_hash};
use crate::rows::{Realm, StoreId, StoreRequest, StoreResult, Stretch};
use crate::token::Keys;
use crate::{CallId, Outcome, RequestId};
use bytes::Bytes;
use interned::Names;
use scan::Look;
use state::{Batch, Client, State, Work};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidings_base::bounded::BoundedMap;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Seeded, Timers};
use tidings_wire::v1;

/// Handshakes that are remembered so that a repeat gets the same grant (F8).
const MAX_NONCES: usize = 65_536;
/// Principals whose ids are counted in memory.
const MAX_COUNTED: usize = 4_096;
/// Questions to applications that are under way; what comes beyond is asked later.
const MAX_ASKS: usize = 65_536;
/// Clients that are read because of notifications.
const MAX_LOADS: usize = 4_096;

/// What a request to the store is a step of.
#[derive(Clone, Debug)]
enum Step {
    /// A client's row is read.
    Loading(ClientKey),
    /// A client's row is written.
    Writing(ClientKey),
    /// The ids of a user are counted before a new one is given.
    Counting(hello::Newcomer),
    /// Rows of a range are looked through.
    Scanning(Look, Stretch),
    /// F10: a client is being collected.
    Collecting(ClientKey),
}

/// The timers of the registrar.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Send a client what it has not acknowledged.
    Retry(ClientKey),
    /// Log what a client has not acknowledged.
    Log(ClientKey),
    /// Take a client's registrations to matchers again.
    Propagate(ClientKey),
    /// Look for silent clients.
    Sweep,
    /// Look through all rows for clients that are long gone.
    Collect,
    /// Look through all rows again: something was dropped.
    Rescan,
    /// Look through rows again that could not be read.
    Unread,
    /// F3: take all registrations to their matchers again.
    Scrub,
}

/// A question to the application.
#[derive(Clone, Debug)]
struct Ask {
    client: ClientKey,
    /// The connection that it is about.
    channel: Channel,
    object: Bytes,
    /// What is to be sent if it may be; `None` = it is about a registration.
    news: Option<deliver::News>,
}

/// The registrar machine.
#[derive(Debug)]
pub struct Registrar {
    options: Options,
    realm: Option<Realm>,
    keys: Keys,
    held: Held,
    timers: Timers<Timer>,
    rng: Seeded,
    names: Names,
    /// Boxed: nodes of the tree have room for more than they hold, and clients go in and out with every message.
    clients: BTreeMap<ClientKey, Box<Client>>,
    channels: BTreeMap<Channel, ClientKey>,
    nonces: BoundedMap<(KeyHash, u64), ClientKey>,
    /// Clients whose channel another one of the same principal has come by.
    displaced: Vec<(ClientKey, Channel)>,
    counting: BTreeSet<(KeyHash, u64)>,
    /// How many ids a principal has at most, by its place, where they were counted under the present leases.
    ids: BoundedMap<KeyHash, u32>,
    steps: BTreeMap<StoreId, Step>,
    calls: BTreeMap<CallId, (ClientKey, u32)>,
    confirms: BTreeMap<CallId, ClientKey>,
    asks: BTreeMap<AskId, Ask>,
    /// When a range was last gained.
    gained: Mono,
    /// F2: the lease that was last said to be worn.
    worn: Option<LeaseNumber>,
    /// Registrations on their way to matchers.
    pending: usize,
    loading: usize,
    parked: VecDeque<(Look, Stretch)>,
    /// What could not be read.
    unread: Vec<Look>,
    /// F3: clients that could not be read and are to be scrubbed.
    unscrubbed: BTreeSet<ClientKey>,
    /// F3: the page of a scrub that was asked for last.
    scrub_page: Option<StoreId>,
    next_id: u64,
}

impl Registrar {
    /// A registrar that holds nothing.
    pub fn new(options: Options) -> Registrar {
        Registrar {
            rng: Seeded::new(options.seed).fork("registrar"),
            options,
            realm: None,
            keys: Keys::default(),
            held: Held::default(),
            timers: Timers::new(),
            names: Names::default(),
            clients: BTreeMap::new(),
            channels: BTreeMap::new(),
            nonces: BoundedMap::new(MAX_NONCES),
            displaced: Vec::new(),
            counting: BTreeSet::new(),
            ids: BoundedMap::new(MAX_COUNTED),
            steps: BTreeMap::new(),
            calls: BTreeMap::new(),
            confirms: BTreeMap::new(),
            asks: BTreeMap::new(),
            gained: Mono(0),
            worn: None,
            pending: 0,
            loading: 0,
            parked: VecDeque::new(),
            unread: Vec::new(),
            unscrubbed: BTreeSet::new(),
            scrub_page: None,
            next_id: 0,
        }
    }

    /// How many clients are in memory.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// How many registrations are on their way to matchers.
    pub fn pending(&self) -> usize {
        self.pending
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.options.mutant == Some(mutant)
    }

    fn incarnation(&self) -> u64 {
        self.realm.as_ref().map_or(0, |realm| realm.incarnation)
    }

    fn store(&mut self, step: Step, request: StoreRequest, out: &mut Outbox<Output>) -> StoreId {
        let id = StoreId(self.id());
        self.steps.insert(id, step);
        out.put(Output::Store { id, request });
        id
    }

    fn guarded(&self, guard: Guard) -> Option<Guard> {
        (!self.is(Mutant::LeaseIgnored)).then_some(guard)
    }

    fn seqno(&mut self, key: &ClientKey) -> u64 {
        // A client is in memory only while its place is held; whatever is held by another has larger numbers.
        self.held.next_seqno(key.hash(), self.options.mutant).unwrap_or(1)
    }

    /// F2: whether so many numbers were drawn under a lease that no message is taken any more: the rest is for what is under
    /// way. Before that whoever holds it hears that it should be given up.
    fn is_used_up(&mut self, lease: LeaseNumber, out: &mut Outbox<Output>) -> bool {
        let (drawn, numbers) = (self.held.drawn(lease), self.options.numbers);
        if drawn >= numbers - numbers / 8 && self.worn.replace(lease) != Some(lease) {
            out.put(Output::Worn { lease });
        }
        drawn >= numbers - numbers / 16
    }

    fn send(&self, key: KeyHash, channel: Channel, message: v1::NotifyDown, out: &mut Outbox<Output>) {
        // F1: what is said to a client stands on the lease, too.
        let Some(lease) = self.held.lease(key) else { return };
        let guard = self.guarded(Guard { key, lease });
        out.put(Output::Send { channel, guard, message: Box::new(message) });
    }

    fn refuse(
        &self,
        to: (KeyHash, Channel),
        session: u64,
        reason: v1::NotifyRefused,
        nonce: u64,
        out: &mut Outbox<Output>,
    ) {
        let message = match reason {
            v1::NotifyRefused::InvalidId => "This client id is not known any more; start as a new client.",
            v1::NotifyRefused::Superseded => "Another session of this client id began; start as a new client.",
            v1::NotifyRefused::BadToken => {
                "The token was not made here for this principal; whoever has none begins with a hello."
            }
            v1::NotifyRefused::TooManyIds => "This principal has too many clients; close some, or persist their state.",
            _ => "The message breaks a limit.",
        };
        let refusal = v1::NotifyRefusal { reason: reason.into(), message: message.into(), nonce };
        let down = v1::NotifyDown { session, refusal: Some(refusal), ..Default::default() };
        self.send(to.0, to.1, down, out);
    }

    // ---- work of one client -----------------------------------------------------------------------------------------

    /// Hands work to a client, which is loaded if it is not in memory.
    fn give(&mut self, now: Now, key: &ClientKey, work: Work, out: &mut Outbox<Output>) {
        if self.held.lease(key.hash()).is_none() {
            return self.fail(work, Outcome::Moved, out);
        }
        match self.clients.get_mut(key) {
            Some(client) if !client.has_room_for(&work) => return self.fail(work, Outcome::Failed, out),
            Some(client) => client.queue.push_back(work),
            // Whoever tells of a version tells again.
            None if self.loading >= MAX_LOADS && matches!(work, Work::Notify { .. }) => {
                return self.fail(work, Outcome::Failed, out);
            }
            None => {
                let mut client = Box::new(Client::new(now.mono));
                client.queue.push_back(work);
                self.load(key, &mut client, out);
                self.clients.insert(key.clone(), client);
                return;
            }
        }
        self.run(now, key, out);
    }

    /// Does what waits, writes what became of it, and lets the client go if nothing holds it.
    fn run(&mut self, now: Now, key: &ClientKey, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        while let Some(work) = client.next_work() {
            self.work(now, key, &mut client, work, out);
        }
        if client.channel.is_none() {
            // Nobody is there to acknowledge.
            self.log_all(key, &mut client, out);
        }
        self.flush(now, key, &mut client, out);
        if client.leaving.is_some() && client.is_ready() {
            self.collect(now, key, &mut client, out);
        }
        match client.is_idle() {
            true => self.let_go(key, &client),
            false => drop(self.clients.insert(key.clone(), client)),
        }
    }

    fn work(&mut self, now: Now, key: &ClientKey, client: &mut Client, work: Work, out: &mut Outbox<Output>) {
        match work {
            Work::Up { channel, session, up } => self.up(now, key, client, (channel, session), *up, out),
            Work::Hello { channel, contact, session, hello } => {
                self.resume(now, key, client, (channel, contact, session), hello, out);
            }
            Work::Closed(channel) => self.went(now, key, client, channel),
            Work::Notify { request, guard, notify } => self.notify(now, key, client, (request, guard), *notify, out),
            Work::Collect => self.collect(now, key, client, out),
            Work::Look => self.look(now, key, client, out),
            Work::Scrub => self.scrub(now, key, client, out),
            Work::Replaced { channel, session } => self.replaced(now, key, client, (channel, session), out),
        }
    }

    /// Work that cannot be done: whoever waits for it hears so.
    fn fail(&self, work: Work, outcome: Outcome, out: &mut Outbox<Output>) {
        if let Work::Notify { request, notify, .. } = work
            && !notify.hint
        {
            out.put(Output::Notified { request, guard: None, outcome });
        }
    }

    /// Takes a client out of memory; its row is all that is left.
    fn let_go(&mut self, key: &ClientKey, client: &Client) {
        self.pending -= client.pending.len();
        for timer in [Timer::Retry, Timer::Log, Timer::Propagate] {
            self.timers.cancel(&timer(key.clone()));
        }
        if let Some(channel) = client.channel {
            self.unseat(key, channel);
        }
        client.pending.calls().for_each(|call| {
            self.calls.remove(&call);
        });
        client.names().for_each(|name| self.names.release(name));
        if client.state == State::Loading {
            self.loading -= 1;
        }
    }

    /// A client is no longer behind a channel.
    fn unseat(&mut self, key: &ClientKey, channel: Channel) {
        if self.channels.get(&channel) == Some(key) {
            self.channels.remove(&channel);
        }
    }

    /// Drops everything of a client, and fails what waits for it.
    fn abandon(&mut self, key: &ClientKey, outcome: Outcome, out: &mut Outbox<Output>) {
        let Some(mut client) = self.clients.remove(key) else { return };
        let batches: Vec<Batch> = client.batches();
        batches.into_iter().for_each(|batch| self.fail_batch(batch, outcome, out));
        self.fail_unlogged(&mut client, outcome, out);
        for work in std::mem::take(&mut client.queue) {
            self.fail(work, outcome, out);
        }
        self.let_go(key, &client);
    }

    // ---- ranges and realm -------------------------------------------------------------------------------------------

    /// Forgets everything of a range; the looks that are ended by it.
    fn forget(&mut self, range: KeyRange, out: &mut Outbox<Output>) -> Vec<Look> {
        let keys: Vec<ClientKey> = self.clients.keys().filter(|key| range.contains(key.hash())).cloned().collect();
        keys.iter().for_each(|key| self.abandon(key, Outcome::Moved, out));
        self.confirms.retain(|_, key| !range.contains(key.hash()));
        self.asks.retain(|_, ask| !range.contains(ask.client.hash()));
        self.counting.retain(|(key, _)| !range.contains(*key));
        self.ids = BoundedMap::new(MAX_COUNTED);
        self.steps.retain(|_, step| match step {
            Step::Loading(key) | Step::Writing(key) | Step::Collecting(key) => !range.contains(key.hash()),
            Step::Counting(newcomer) => !range.contains(newcomer.key.hash()),
            Step::Scanning(..) => true,
        });
        self.end_looks(range)
    }

    /// F3: what was stored before is not there any more. Whoever is online is told, and starts as new.
    fn enter(&mut self, realm: Realm, out: &mut Outbox<Output>) {
        let Some(old) = self.realm.clone() else {
            self.realm = Some(realm);
            return self.look_anew(out);
        };
        if old == realm || self.is(Mutant::IncarnationIgnored) {
            return;
        }
        let stays = |key: &ClientKey| {
            old.incarnation == realm.incarnation && old.generation(key.app()) == realm.generation(key.app())
        };
        let gone: Vec<ClientKey> = self.clients.keys().filter(|key| !stays(key)).cloned().collect();
        for key in gone {
            let client = self.clients.get(&key).and_then(|client| Some((client.channel?, client.session)));
            if let Some((channel, session)) = client {
                self.refuse((key.hash(), channel), session, v1::NotifyRefused::InvalidId, 0, out);
            }
            self.abandon(&key, Outcome::Moved, out);
        }
        self.nonces = BoundedMap::new(MAX_NONCES);
        self.counting.clear();
        self.ids = BoundedMap::new(MAX_COUNTED);
        self.steps.retain(|_, step| match step {
            Step::Loading(key) | Step::Writing(key) | Step::Collecting(key) => stays(key),
            Step::Counting(_) => false,
            Step::Scanning(..) => true,
        });
        self.realm = Some(realm);
        self.look_anew(out);
    }

    // ---- messages ---------------------------------------------------------------------------------------------------

    fn arrived(
        &mut self,
        now: Now,
        caller: &Caller,
        channel: Channel,
        lease: LeaseNumber,
        message: v1::NotifyUp,
        out: &mut Outbox<Output>,
    ) {
        let place = client_hash(&caller.app, &caller.principal);
        // Whoever is not served sends again, and by then the range has an owner that knows it.
        if self.realm.is_none() || self.held.lease(place) != Some(lease) || self.is_used_up(lease, out) {
            return;
        }
        if let Some(hello) = message.hello {
            return self.hello(now, caller, (channel, message.contact), hello, out);
        }
        let token = self.keys.open(&message.token, self.options.mutant);
        let Some(token) = token else {
            return self.refuse((place, channel), 0, v1::NotifyRefused::BadToken, 0, out);
        };
        match self.owner_of(caller, &token) {
            Ok(key) => {
                if let Some(client) = self.clients.get_mut(&key) {
                    client.ages = self.keys.ages(&message.token);
                }
                let work = Work::Up { channel, session: token.session, up: Box::new(message) };
                self.give(now, &key, work, out);
            }
            Err(reason) => self.refuse((place, channel), token.session, reason, 0, out),
        }
    }

    /// F8: the client whose token it is, if the connection's principal may use it, here and now.
    fn owner_of(&self, caller: &Caller, token: &v1::NotifyTokenBody) -> Result<ClientKey, v1::NotifyRefused> {
        let (Some(client), Some(realm)) = (&token.client, &self.realm) else {
            return Err(v1::NotifyRefused::BadToken);
        };
        if client.app != caller.app || client.user != caller.principal {
            return Err(v1::NotifyRefused::BadToken);
        }
        let here = token.data_centre == self.options.data_centre;
        if !here || (!realm.is(&client.app, token.realm.as_ref()) && !self.is(Mutant::IncarnationIgnored)) {
            return Err(v1::NotifyRefused::InvalidId);
        }
        ClientKey::of_message(Some(client), realm.generation(&client.app)).ok_or(v1::NotifyRefused::BadToken)
    }

    fn told(
        &mut self,
        now: Now,
        request: RequestId,
        lease: LeaseNumber,
        notify: v1::ClientNotify,
        out: &mut Outbox<Output>,
    ) {
        let generation = notify.realm.map_or(0, |realm| realm.generation);
        let key = ClientKey::of_message(notify.client.as_ref(), generation);
        let key = key.filter(|key| {
            let ours = self.realm.as_ref().is_some_and(|realm| realm.is(key.app(), notify.realm.as_ref()));
            ours && self.held.lease(key.hash()) == Some(lease)
        });
        let hint = notify.hint;
        let work = |guard| Work::Notify { request, guard, notify: Box::new(notify) };
        match key {
            // Whoever is online is in memory.
            Some(key) if hint && !self.clients.contains_key(&key) => {}
            Some(key) => self.give(now, &key.clone(), work(Guard { key: key.hash(), lease }), out),
            None => self.fail(work(Guard { key: KeyHash(0), lease }), Outcome::Moved, out),
        }
    }

    fn stored(&mut self, now: Now, id: StoreId, result: StoreResult, out: &mut Outbox<Output>) {
        match self.steps.remove(&id) {
            Some(Step::Loading(key)) => self.loaded(now, &key, result, out),
            Some(Step::Writing(key)) => self.written(now, &key, result.is_ok(), out),
            Some(Step::Counting(newcomer)) => self.counted(now, newcomer, result, out),
            Some(Step::Scanning(look, stretch)) => self.scanned(now, look, &stretch, result, out),
            Some(Step::Collecting(key)) => self.collecting(now, &key, result, out),
            None => {}
        }
    }

    fn sweep(&mut self, now: Now, out: &mut Outbox<Output>) {
        let silent = self.clients.iter().filter(|(_, client)| client.heard + self.options.offline_after <= now.mono);
        let silent: Vec<(ClientKey, Channel)> =
            silent.filter_map(|(key, client)| Some((key.clone(), client.channel?))).collect();
        for (key, channel) in silent {
            self.give(now, &key, Work::Closed(channel), out);
        }
        self.timers.set(Timer::Sweep, now.mono + self.options.offline_after / 4);
    }
}

impl Machine for Registrar {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Realm(realm) => self.enter(realm, out),
            Input::Keys(keys) => self.keys = keys,
            Input::Gained { range, lease } => {
                let ended = self.forget(range, out);
                self.gained = now.mono;
                let gained = self.held.gain(range, lease);
                self.scan_some(&gained, &ended, out);
                if self.timers.at(&Timer::Sweep).is_none() {
                    self.timers.set(Timer::Sweep, now.mono + self.options.offline_after / 4);
                    self.timers.set(Timer::Collect, now.mono + self.options.collect_every);
                    // A process need not live for so long: the first time is any within it.
                    let every = u64::try_from(self.options.scrub_every.as_millis()).unwrap_or(u64::MAX).max(1);
                    let first = Seeded::new(self.options.seed).fork("scrub").below(every);
                    self.timers.set(Timer::Scrub, now.mono + Duration::from_millis(first));
                }
            }
            Input::Lost { range } => {
                let ended = self.forget(range, out);
                self.held.lose(range);
                self.scan_some(&[], &ended, out);
            }
            Input::Up { caller, channel, lease, message } => {
                self.arrived(now, &caller, channel, lease, *message, out);
            }
            Input::Closed(channel) => {
                if let Some(key) = self.channels.get(&channel).cloned() {
                    self.give(now, &key, Work::Closed(channel), out);
                }
            }
            Input::Notify { request, lease, notify } => self.told(now, request, lease, *notify, out),
            Input::Matched { id, outcome, version } => self.matched(now, id, outcome, version, out),
            Input::Authorized { id, verdict } => self.authorized(now, id, verdict, out),
            Input::Confirmed { id, held } => self.confirmed(now, id, held, out),
            Input::Stored { id, result } => self.stored(now, id, result, out),
        }
        while let Some((key, channel)) = self.displaced.pop() {
            self.give(now, &key, Work::Closed(channel), out);
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Retry(key) => self.retransmit(now, &key, out),
                Timer::Log(key) => self.log_due(now, &key, out),
                Timer::Propagate(key) => self.propagate_again(now, &key, out),
                Timer::Sweep => self.sweep(now, out),
                Timer::Collect => {
                    self.scan_all(false, out);
                    self.timers.set(Timer::Collect, now.mono + self.options.collect_every);
                }
                Timer::Rescan => {
                    // What the look that is under way has passed is looked at by the next one.
                    if !self.scan_all(false, out) {
                        self.rescan_later(now);
                    }
                }
                Timer::Unread => self.read_again(now, out),
                Timer::Scrub => {
                    self.scan_all(true, out);
                    self.timers.set(Timer::Scrub, now.mono + self.options.scrub_every);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
