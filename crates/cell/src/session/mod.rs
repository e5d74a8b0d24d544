//! The client's side of a session: its own view of the lease, jeopardy and grace, the cache, recovery of handles.
//!
//! ```text
//!   New ─Begin▶ Starting ─SessionCreated▶ Active{until} ◀──KeptAlive, SessionResumed──▶ Active
//!                                            │ the local lease ran out    ▲ Safe: a reply proves that it exists (R7)
//!                                            ▼                            │
//!                                         Jeopardy{since} ────────────────┘
//!                                            │ grace over, or the master says: ended
//!                                            ▼
//!                         Closing ─▶ Closed   Expired
//! ```
//! One message of the session's own is always under way (`keepalive`): create, KeepAlive, resume or close. Calls
//! (`calls`) go beside it while the session is active and wait otherwise.

mod cache;
mod calls;
mod handles;
mod keepalive;
mod lease;
#[cfg(test)]
mod tests;

use crate::link::{Lease, Ticket};
use crate::mutant::Mutant;
use crate::path::NodePath;
use crate::{HandleNumber, SessionId};
use cache::Cache;
use calls::Calls;
use handles::Handles;
use keepalive::Contact;
use lease::Phase;
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, Now, OpId, Outbox, Seeded, Timers};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// A session whose cache is in use makes a call at least so often. A master ends sessions that make none for a minute, or
/// for longer if it was told so, and sees nothing of what is read from caches.
pub const STIR: Duration = Duration::from_secs(30);

/// How a session behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lease to ask for; zero = the cell's default.
    pub lease: Duration,
    /// How long an application is kept waiting after the lease ran out.
    pub grace: Duration,
    /// Random: proves later calls.
    pub secret: u64,
    /// The link that carries it.
    pub link: u64,
    /// The most entries to cache; the oldest go first.
    pub cache: usize,
    /// Seeds the back-off between attempts.
    pub seed: u64,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// What the session hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// Begin: create the session.
    Begin,
    /// The application calls. `message` is one of open, close, read, read_many, set_contents, set_acl, delete, acquire,
    /// cancel_acquire, release, get_sequencer, check_sequencer, and the operators' requests.
    Call {
        /// Names the call.
        op: OpId,
        /// The request; the session adds its number.
        message: Message,
    },
    /// Nobody waits for this call any more. A mutation goes on until its outcome is known; an acquire is cancelled.
    Cancel {
        /// The call.
        op: OpId,
    },
    /// The transport's answer: a message, or why there is none.
    Answered {
        /// The request.
        ticket: Ticket,
        /// The answer.
        result: Result<v1::CellMessage, Error>,
    },
    /// The link's cache lease moved.
    CacheLease(Lease),
    /// Something was served from the cache since this was last said, or since the session began. Said at least as often
    /// as the link's lease moves, so that a session which lives on its cache is not taken for idle.
    Served,
    /// End the session in order.
    Close,
}

/// What the session wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask the master, wherever it is, and give up after so long. Answered once by [`Input::Answered`].
    Send {
        /// Comes back with the answer.
        ticket: Ticket,
        /// The request.
        message: v1::CellMessage,
        /// For how long to try.
        within: Duration,
    },
    /// Answer a call, for good.
    Answer {
        /// The call.
        op: OpId,
        /// The master's answer or a named error.
        result: Result<Message, Error>,
    },
    /// Tell the application.
    Tell(Event),
    /// Change the cache that readers see, before anything that comes after this in the outbox.
    Cache(CacheChange),
}

/// What the application hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The session exists.
    Begun(SessionId),
    /// The local lease ran out: nothing cached is served, calls wait.
    Jeopardy,
    /// Contact again, and the session still exists; what became of its locks.
    Safe {
        /// Handles that hold their locks still.
        survived: Vec<HandleNumber>,
        /// Handles whose locks are lost.
        lost: Vec<HandleNumber>,
    },
    /// The session is gone, and everything of it. The last event.
    Expired,
    /// Something happened to a node that a handle is open on.
    Node(v1::CellEvent),
    /// The session was closed in order. The last event.
    Closed,
}

/// A change of the cache that readers see.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheChange {
    /// A node's answer (absent nodes have no stat), or a listing, may be served from now on.
    ///
    /// The contents are there if they have the length that the stat says; an open or a stat alone leaves them out. For
    /// a handle it may be served only if the stat's instance is the handle's.
    Put {
        /// Which.
        path: NodePath,
        /// The listing of its children.
        listing: bool,
        /// What to serve.
        read: v1::NodeRead,
    },
    /// It may not be served any more.
    Drop {
        /// Which.
        path: NodePath,
        /// The listing of its children.
        listing: bool,
    },
    /// Nothing may be served any more.
    Flush,
    /// Entries may be served before this instant of the local clock and not after: the earlier end of the session's
    /// lease and the link's. Checked on every read, after the entry was looked up. Before the first of these nothing
    /// may be served.
    Until(Mono),
}

/// What the master knows the session by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    session: SessionId,
    /// Of the master that it was created or resumed at.
    epoch: u64,
}

/// Everything that the session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Cached entries may not be used any more.
    Cache,
    /// The local lease ends.
    Lease,
    /// The application is not kept waiting any longer.
    Grace,
    /// Starting or closing took too long.
    GiveUp,
    /// The pause before the session's next own message is over.
    Contact,
    /// Time to doubt that the message under way will be answered.
    Doubt,
    /// The pause before a call's next attempt is over.
    Call(u64),
    /// The cache is in use, and the master has heard no call for long.
    Stir,
}

/// One session of a client.
#[derive(Clone, Debug)]
pub struct Session {
    options: Options,
    phase: Phase,
    me: Option<Identity>,
    contact: Contact,
    calls: Calls,
    cache: Cache,
    handles: Handles,
    timers: Timers<Timer>,
    last_ticket: u64,
    rng: Seeded,
}

impl Session {
    /// A session that has not begun.
    pub fn new(options: Options) -> Session {
        Session {
            phase: Phase::New,
            me: None,
            contact: Contact::new(options.lease),
            calls: Calls::new(),
            cache: Cache::new(options.cache),
            handles: Handles::default(),
            timers: Timers::new(),
            last_ticket: 0,
            rng: Seeded::new(options.seed),
            options,
        }
    }

    /// Its number, once it exists.
    pub fn id(&self) -> Option<SessionId> {
        self.me.map(|me| me.session)
    }

    /// Until when its owner may count on it, by the local clock; `None` unless it is active.
    pub fn lease_until(&self) -> Option<Mono> {
        match self.phase {
            Phase::Active { until } => Some(until),
            _ => None,
        }
    }

    /// The lease that it was granted last.
    pub fn lease(&self) -> Duration {
        self.contact.lease
    }

    /// Whether it is over, by expiry or in order.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Expired { .. } | Phase::Closed)
    }

    fn mutant(&self, mutant: Mutant) -> bool {
        self.options.mutant == Some(mutant)
    }

    fn ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    /// Acts on every timer that is due. The first thing at every input: a lease that ran out while nobody looked has
    /// run out before what comes now.
    fn pass(&mut self, now: Mono, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Cache => self.cache_lapsed(now, out),
                Timer::Lease => self.lease_ended(now, out),
                Timer::Grace => self.expire(ended_locally(), out),
                Timer::GiveUp => self.gave_up(out),
                Timer::Contact => self.send_contact(now, out),
                Timer::Doubt => self.doubt(now, out),
                Timer::Call(id) => self.retry_call(now, id, out),
                Timer::Stir => self.stir(now, out),
            }
        }
    }
}

impl Machine for Session {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        let now = now.mono;
        // What is answered now is not under way any more, whatever a due timer thinks of it.
        let answered = match &input {
            Input::Answered { ticket, .. } => self.contact.take(*ticket),
            _ => None,
        };
        self.pass(now, out);
        match input {
            Input::Begin => self.begin(now, out),
            Input::Call { op, message } => self.call(now, op, message, out),
            Input::Cancel { op } => self.cancel_call(now, op, out),
            Input::Answered { ticket, result } => match answered {
                Some(sent) => self.contact_answered(now, sent, result, out),
                None => self.call_answered(now, ticket, result, out),
            },
            Input::CacheLease(lease) => self.link_renewed(now, &lease, out),
            Input::Served => self.served(now),
            Input::Close => self.close(now, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.pass(now.mono, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}

/// The grace period passed without a word from a master.
fn ended_locally() -> Error {
    expired("no master was reached before the grace period ended")
}

/// The session is gone.
fn expired(why: &str) -> Error {
    Error::new("cell.expired", Class::Refused, format!("the session is over: {why}"))
        .hint("Begin a new session; its locks, ephemeral files and handles are gone.")
}

/// The session was closed by its owner.
fn closed() -> Error {
    Error::new("cell.closed", Class::Refused, "the session was closed").hint("Begin a new session.")
}

/// More calls than a session may have under way.
fn too_many_calls(bound: usize) -> Error {
    Error::new("cell.busy", Class::Unreachable, format!("{bound} calls of this session are under way already"))
        .hint("Wait for some of them to be answered.")
}

/// A message that is not one of an application's calls.
fn not_a_call() -> Error {
    Error::new("cell.bad_call", Class::Invalid, "this message is not a call on a session")
        .hint("Use the calls on nodes and locks; the session makes its own messages.")
}
