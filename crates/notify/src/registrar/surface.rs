//! How a registrar is set up, what it hears and what it wants.

use crate::mutant::Mutant;
use crate::names::{Caller, Channel, ClientKey, Guard};
use crate::rows::{Realm, StoreId, StoreRequest, StoreResult};
use crate::token::Keys;
use crate::{CallId, Outcome, RequestId};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, LeaseNumber};
use tidings_wire::v1;

/// How a registrar behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random: ids and pauses come from it.
    pub seed: u64,
    /// F8: what tokens are bound to.
    pub data_centre: String,
    /// After so much silence a client is offline; 80 min.
    pub offline_after: Duration,
    /// The first pause before a notification is sent again; 1 s.
    pub retry_first: Duration,
    /// The longest; 60 s.
    pub retry_longest: Duration,
    /// How long the ack of a client that is online is waited for before a notification is logged: what it has acknowledged
    /// by then need not be (F9). 20 ms: clients gather acks for a few.
    pub log_after: Duration,
    /// F10: offline clients are collected after this; 7 days.
    pub collect_after: Duration,
    /// F10: clients that cannot persist their token are collected after this; 1 h.
    pub collect_unpersisted_after: Duration,
    /// How often offline clients are looked through; 1 h.
    pub collect_every: Duration,
    /// Registrations of one client; 50,000.
    pub max_registrations: usize,
    /// How often a client ends a registration before it goes on under another id: its row holds marks of every name that was
    /// ended, for days, and is read whole. 100,000.
    pub max_ended: u64,
    /// Ids of one principal; 256.
    pub max_ids: u32,
    /// Registrations that are on their way to matchers; beyond it they are dropped and found again by their markers.
    pub max_pending: usize,
    /// F2: numbers that are drawn under one lease before its range is given up; 2³².
    pub numbers: u32,
    /// F3: how often every registration is taken to its matcher again, so that a loss that nobody noticed does not last;
    /// 24 h.
    pub scrub_every: Duration,
    /// Who is asked before an object is registered and before a notification is sent.
    pub hooks: Hooks,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            data_centre: String::new(),
            offline_after: Duration::from_secs(80 * 60),
            retry_first: Duration::from_secs(1),
            retry_longest: Duration::from_secs(60),
            log_after: Duration::from_millis(20),
            collect_after: Duration::from_secs(7 * 24 * 3_600),
            collect_unpersisted_after: Duration::from_secs(3_600),
            collect_every: Duration::from_secs(3_600),
            max_registrations: 50_000,
            max_ended: 100_000,
            max_ids: 256,
            max_pending: 100_000,
            numbers: u32::MAX,
            scrub_every: Duration::from_secs(24 * 3_600),
            hooks: Hooks::None,
            mutant: None,
        }
    }
}

/// Which applications are asked what their clients may register and hear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hooks {
    /// None.
    #[default]
    None,
    /// Every one.
    All,
    /// These.
    Of(BTreeSet<String>),
}

impl Hooks {
    pub(super) fn ask(&self, app: &str) -> bool {
        match self {
            Hooks::None => false,
            Hooks::All => true,
            Hooks::Of(apps) => apps.contains(app),
        }
    }
}

/// Names a question to the application until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// What the application's hook says. A driver answers every question; a time-out is `Unsure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Yes,
    /// It may not: the registration goes, and the client is told so.
    No,
    /// Nobody knows: a registration fails for now, a notification is kept.
    Unsure,
}

/// What a registrar hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// F3: the realm. Another one than before means that everything is gone.
    Realm(Realm),
    /// F8: the keys of tokens.
    Keys(Keys),
    /// A range is held from now on.
    Gained {
        /// The range.
        range: KeyRange,
        /// Its lease.
        lease: LeaseNumber,
    },
    /// A range is held no more.
    Lost {
        /// The range.
        range: KeyRange,
    },
    /// A client's message.
    Up {
        /// Whose connection it came by.
        caller: Caller,
        /// The connection.
        channel: Channel,
        /// The lease under which the caller's place was held when it arrived.
        lease: LeaseNumber,
        /// The message.
        message: Box<v1::NotifyUp>,
    },
    /// A connection is closed, or cannot be found.
    Closed(Channel),
    /// A matcher's notification.
    Notify {
        /// Names it to the driver.
        request: RequestId,
        /// The lease under which the client's place was held when it arrived.
        lease: LeaseNumber,
        /// The notification.
        notify: Box<v1::ClientNotify>,
    },
    /// A matcher's answer to a registration, with the version if one is known (0 = none).
    Matched {
        /// The call.
        id: CallId,
        /// How it ended.
        outcome: Outcome,
        /// The version.
        version: u64,
    },
    /// The application's answer.
    Authorized {
        /// The question.
        id: AskId,
        /// The answer.
        verdict: Verdict,
    },
    /// Whether the lease has held all the time since the question's work began.
    Confirmed {
        /// The question.
        id: CallId,
        /// Whether it has.
        held: bool,
    },
    /// The store's answer.
    Stored {
        /// The request.
        id: StoreId,
        /// The answer.
        result: StoreResult,
    },
}

/// What a registrar wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this to a client, if the guard holds; if the connection is gone, say [`Input::Closed`].
    Send {
        /// Where to.
        channel: Channel,
        /// What it stands on (F1).
        guard: Option<Guard>,
        /// The message.
        message: Box<v1::NotifyDown>,
    },
    /// Answer a matcher; if the guard does not hold, with `Moved`.
    Notified {
        /// The call.
        request: RequestId,
        /// What the answer stands on (F1).
        guard: Option<Guard>,
        /// How it ended.
        outcome: Outcome,
    },
    /// Take this to the matcher that owns the key. Drivers batch what goes to one owner.
    ToMatcher {
        /// Comes back with the answer.
        id: CallId,
        /// Whose it is.
        key: KeyHash,
        /// What to say.
        call: Box<v1::MatchRegistration>,
    },
    /// Ask the application.
    Authorize {
        /// Comes back with the answer.
        id: AskId,
        /// The client.
        client: ClientKey,
        /// The connection that asks, or that is to be told.
        channel: Channel,
        /// The object.
        object: Bytes,
        /// Before a notification; otherwise before a registration.
        sending: bool,
    },
    /// Ask whether the lease has held all the time (F1), and report [`Input::Confirmed`].
    Confirm {
        /// Comes back with the answer.
        id: CallId,
        /// What is to be checked.
        guard: Guard,
    },
    /// F2: few numbers are left under this lease: give up what is held under it, so that it comes back under another.
    Worn {
        /// The lease.
        lease: LeaseNumber,
    },
    /// Ask the store.
    Store {
        /// Comes back with the answer.
        id: StoreId,
        /// What.
        request: StoreRequest,
    },
}
