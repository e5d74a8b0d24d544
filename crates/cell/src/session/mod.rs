//! The client's side of a session: its own view of the lease, jeopardy and grace, the cache, recovery of handles.

use crate::link::{Lease, Ticket};
use crate::mutant::Mutant;
use crate::path::NodePath;
use crate::{HandleNumber, SessionId};
use std::time::Duration;
use tidings_base::{Error, Machine, Mono, Now, OpId, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

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
    /// Contact again, and the session still exists; these handles lost their locks.
    Safe {
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
    /// lease and the link's. Checked on every read, after the entry was looked up.
    Until(Mono),
}

/// One session of a client.
#[derive(Clone, Debug)]
pub struct Session {
    _options: Options,
}

impl Session {
    /// A session that has not begun.
    pub fn new(options: Options) -> Session {
        Session { _options: options }
    }
}

impl Machine for Session {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Now, _input: Input, _out: &mut Outbox<Output>) {
        unimplemented!()
    }

    fn wake(&mut self, _now: Now, _out: &mut Outbox<Output>) {
        unimplemented!()
    }

    fn deadline(&self) -> Option<Mono> {
        unimplemented!()
    }
}
