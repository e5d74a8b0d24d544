//! The client: knows which registrations the application intends, and that is all that the servers need.
//!
//! ```text
//!   application ─ Register, Unregister, Reissued, Acked ─▶ Client ─ Send ─▶ channel ─▶ registrar
//!               ◀─ Event: Notify, NotifyUnknown, …          ▲  └ changes, acks, digest; repeated until answered
//!                                                           └ Received: echo, digest, notifications, grant
//! ```
//! Errors are no separate path: whatever went wrong surfaces as a notification, known or unknown. The channel may
//! lose, repeat and reorder; it says when it is open and when it closed, and that is all that is asked of it.

mod link;
mod sync;

use crate::digest::{self, Digest};
use crate::mutant::Mutant;
use crate::names::{MAX_NAME, MAX_VERSION};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use sync::Descent;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded, Timers};
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// Changes that wait for their echo, enough to register and to unregister all that a client may have; beyond it they are
/// dropped, and the digests find what is missing.
const MAX_CHANGES: usize = 1 << 17;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random: nonces and pauses come from it.
    pub seed: u64,
    /// F12: names the installation.
    pub source: Bytes,
    /// Whether [`Output::WriteState`] is kept across restarts.
    pub persistent: bool,
    /// How often it says that it is there; 20 min. `None` = never, for tests.
    pub heartbeat: Option<Duration>,
    /// How long what is to be said is gathered; 5 ms.
    pub gather: Duration,
    /// The first and the longest pause before something unanswered is said again; 1 s and 60 s.
    pub retry_first: Duration,
    /// The longest.
    pub retry_longest: Duration,
    /// The first and the longest pause before the channel is opened again; 200 ms and 5 min.
    pub reconnect_first: Duration,
    /// The longest.
    pub reconnect_longest: Duration,
    /// The longest pause before what was refused for now is tried again; 5 min.
    pub refused_longest: Duration,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            source: Bytes::new(),
            persistent: true,
            heartbeat: Some(Duration::from_secs(20 * 60)),
            gather: Duration::from_millis(5),
            retry_first: Duration::from_secs(1),
            retry_longest: Duration::from_secs(60),
            reconnect_first: Duration::from_millis(200),
            reconnect_longest: Duration::from_secs(300),
            refused_longest: Duration::from_secs(300),
            mutant: None,
        }
    }
}

/// What a client hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// Begin, with what was persisted.
    Start {
        /// The last [`Output::WriteState`], if there is one.
        state: Option<Bytes>,
    },
    /// The application intends to hear of an object; it has this version of it (0 = none).
    Register {
        /// The object.
        object: Bytes,
        /// What it has.
        known: u64,
    },
    /// The application intends to hear of it no more.
    Unregister {
        /// The object.
        object: Bytes,
    },
    /// The application has registered everything again, after [`Event::Reissue`].
    Reissued,
    /// The application has dealt with a version.
    Acked {
        /// The object.
        object: Bytes,
        /// The version.
        version: u64,
    },
    /// The application has fetched after an unknown.
    AckedUnknown {
        /// The object.
        object: Bytes,
        /// The unknown's number.
        number: u64,
    },
    /// The application has dropped a notification without having dealt with it: it is told when it comes again.
    Dropped {
        /// The object.
        object: Bytes,
        /// The version, or 0.
        version: u64,
        /// The unknown's number, or 0.
        number: u64,
    },
    /// The application is done with it, for good: nothing is told any more, and [`Output::Left`] says when it may be dropped.
    Leave,
    /// The channel is open.
    Opened,
    /// The channel is closed, or could not be opened.
    Closed,
    /// A message of the connection that is open; what an earlier one still had on its way is dropped by the driver.
    Received(Box<v1::NotifyDown>),
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Open the channel, and say [`Input::Opened`] or [`Input::Closed`].
    Connect,
    /// Send this.
    Send(Box<v1::NotifyUp>),
    /// Persist this.
    WriteState(Bytes),
    /// Tell the application.
    Event(Event),
    /// After [`Input::Leave`]: the servers have heard all that they need to.
    Left,
}

/// What the application hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An object has this version, or a later one.
    Notify {
        /// The object.
        object: Bytes,
        /// Its version.
        version: u64,
        /// What rode along; usually nothing.
        payload: Bytes,
        /// Where it was when.
        times: Option<v1::NotifyTimes>,
    },
    /// An object may have any version: fetch it.
    NotifyUnknown {
        /// The object.
        object: Bytes,
        /// Names it for its ack.
        number: u64,
    },
    /// A registration, or its end, is complete.
    RegistrationStatus {
        /// The object.
        object: Bytes,
        /// Whether it is registered.
        registered: bool,
    },
    /// A registration was refused; if that is transient, it is tried again.
    RegistrationFailure {
        /// The object.
        object: Bytes,
        /// Whether that may change.
        transient: bool,
    },
    /// Register everything again, then say [`Input::Reissued`]. At every start.
    Reissue,
    /// The servers refuse this client as it is.
    Refused {
        /// Why.
        reason: v1::NotifyRefused,
    },
}

/// An intended registration.
#[derive(Clone, Copy, Debug, Default)]
struct Intent {
    /// What the application has.
    known: u64,
    /// What it was told.
    delivered: u64,
    /// Unknowns, by their numbers.
    fetched: u64,
    unknown: u64,
    /// It heard that the registration is complete.
    told: bool,
    /// F7: transiently refused, hence left out until then.
    refused: bool,
    hash: u128,
}

/// A session as it was granted.
#[derive(Clone, Debug)]
struct Session {
    token: Bytes,
    number: u64,
    salt: Bytes,
}

/// The timers of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Send what was gathered.
    Flush,
    /// Say again what was not answered.
    Retry,
    /// Say that it is there.
    Heartbeat,
    /// Open the channel again.
    Reconnect,
    /// Try again what was transiently refused.
    Refused,
}

/// The client machine.
#[derive(Debug)]
pub struct Client {
    options: Options,
    timers: Timers<Timer>,
    rng: Seeded,
    intended: BTreeMap<Bytes, Intent>,
    digest: Digest,
    /// The application has reissued.
    complete: bool,
    session: Option<Session>,
    /// A token to begin with, and the generation that it was made under.
    previous: Option<(Bytes, u32)>,
    /// The handshake under way.
    nonce: Option<u64>,
    open: bool,
    /// How many connections there were.
    contact: u64,
    latest: u64,
    echo: u64,
    changes: VecDeque<(u64, Change)>,
    acks: BTreeMap<(Bytes, bool), u64>,
    descent: Option<Descent>,
    /// Servers and we agree, and every registration is complete.
    synced: bool,
    unanswered: u32,
    disconnected: u32,
    refusals: u32,
    /// The application is done with it.
    leaving: bool,
}

impl Client {
    /// A client that has not started.
    pub fn new(options: Options) -> Client {
        Client {
            rng: Seeded::new(options.seed).fork("client"),
            options,
            timers: Timers::new(),
            intended: BTreeMap::new(),
            digest: Digest::default(),
            complete: false,
            session: None,
            previous: None,
            nonce: None,
            open: false,
            contact: 0,
            latest: 0,
            echo: 0,
            changes: VecDeque::new(),
            acks: BTreeMap::new(),
            descent: None,
            synced: false,
            unanswered: 0,
            disconnected: 0,
            refusals: 0,
            leaving: false,
        }
    }

    /// Whether the servers are known to hold exactly what is intended.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The intended registrations.
    pub fn intended(&self) -> impl Iterator<Item = &Bytes> {
        self.intended.keys()
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.options.mutant == Some(mutant)
    }

    fn start(&mut self, state: Option<Bytes>, out: &mut Outbox<Output>) {
        // State that cannot be read is no state: everything begins anew, and nothing is lost by it.
        self.previous = state.and_then(read_state).map(|state| (state.token, state.generation));
        out.put(Output::Event(Event::Reissue));
        out.put(Output::Connect);
    }

    // ---- what the application intends -------------------------------------------------------------------------------

    fn register(&mut self, now: Now, object: Bytes, known: u64, out: &mut Outbox<Output>) {
        if !(1..=MAX_NAME).contains(&object.len()) {
            return out.put(Output::Event(Event::RegistrationFailure { object, transient: false }));
        }
        let known = known.min(MAX_VERSION);
        if let Some(intent) = self.intended.get_mut(&object)
            && !intent.refused
        {
            intent.known = intent.known.max(known);
            return;
        }
        let hash = self.hash(&object);
        let intent = self.intended.entry(object.clone()).or_default();
        (intent.known, intent.hash, intent.refused) = (intent.known.max(known), hash, false);
        let known_version = intent.known;
        self.digest.add(hash);
        self.change(now, Change::Register(v1::ObjectInterest { object, known_version }));
    }

    fn unregister(&mut self, now: Now, object: Bytes) {
        let Some(intent) = self.intended.remove(&object) else { return };
        if !intent.refused {
            self.digest.remove(intent.hash);
            self.change(now, Change::Unregister(object));
        }
    }

    fn hash(&self, object: &[u8]) -> u128 {
        self.session.as_ref().map_or(0, |session| digest::hash(&session.salt, object))
    }

    /// Numbers a change. Until the application has reissued and a session is granted, the digests say it all.
    fn change(&mut self, now: Now, change: Change) {
        self.synced = false;
        if !self.complete || self.session.is_none() {
            return;
        }
        self.descent = None;
        self.latest += 1;
        self.changes.push_back((self.latest, change));
        if self.changes.len() > MAX_CHANGES {
            self.changes.clear();
        }
        self.say(now);
    }

    fn acked(&mut self, now: Now, object: Bytes, version: u64, unknown: u64) {
        let Some(intent) = self.intended.get_mut(&object) else { return };
        // What was never delivered cannot have been dealt with.
        intent.known = intent.known.max(version.min(intent.delivered));
        intent.fetched = intent.fetched.max(unknown.min(intent.unknown));
        self.ack(now, object, version, unknown);
    }

    fn ack(&mut self, now: Now, object: Bytes, version: u64, unknown: u64) {
        for (is_unknown, number) in [(false, version), (true, unknown)].into_iter().filter(|(_, number)| *number > 0) {
            let newest = self.acks.entry((object.clone(), is_unknown)).or_insert(0);
            *newest = (*newest).max(number);
        }
        self.say(now);
    }
}

/// Whether bytes are what a client wanted kept, and not somebody's notes.
pub fn is_state(bytes: &Bytes) -> bool {
    read_state(bytes.clone()).is_some()
}

fn read_state(bytes: Bytes) -> Option<v1::NotifyClientState> {
    v1::NotifyClientState::decode(bytes).ok().filter(|state| !state.token.is_empty())
}

impl Machine for Client {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Start { state } => self.start(state, out),
            Input::Register { object, known } => self.register(now, object, known, out),
            Input::Unregister { object } => self.unregister(now, object),
            Input::Reissued => {
                self.complete = true;
                self.say(now);
            }
            Input::Acked { object, version } => self.acked(now, object, version, 0),
            Input::AckedUnknown { object, number } => self.acked(now, object, 0, number),
            Input::Dropped { object, version, number } => self.dropped(&object, version, number),
            Input::Leave => self.leave(out),
            Input::Opened => self.opened(now, out),
            Input::Closed => self.closed(now, out),
            Input::Received(down) => self.received(now, *down, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Flush => self.flush(now, out),
                Timer::Retry => {
                    self.unanswered = self.unanswered.saturating_add(1);
                    self.flush(now, out);
                }
                Timer::Heartbeat => self.flush(now, out),
                Timer::Reconnect => out.put(Output::Connect),
                Timer::Refused => self.retry_refused(now, out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
