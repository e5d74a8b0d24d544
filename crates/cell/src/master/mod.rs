//! The master: what the leader of the cell adds to the agreed state, in memory.

use crate::mutant::Mutant;
use crate::namespace::{Namespace, SharedNamespace};
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard};
use tidings_base::{Error, Machine, Mono, NodeId, Now, OpId, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// How a master behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// This node.
    pub node: NodeId,
    /// 32 random bytes of this process: keys are derived from them, never shown.
    pub secret: [u8; 32],
    /// The lease of a session that asks for none.
    pub lease: Duration,
    /// The short lease under which anything cached may be used.
    pub cache_lease: Duration,
    /// A session without a handle and without a call for so long is ended.
    pub idle: Duration,
    /// The longest that a waiting acquire is held before the client is told to ask again.
    pub wait: Duration,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// What the master hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request. Its operation must be odd and never used before with this machine. `request.caller` was filled in by
    /// the node.
    Request {
        /// Names the request.
        op: OpId,
        /// What is asked.
        request: v1::CellMessage,
        /// When the client gives up; `None` = after the master's own time-out.
        deadline: Option<Mono>,
    },
    /// Nobody waits for this operation any more.
    Cancel {
        /// The request.
        op: OpId,
    },
    /// From the agreed log.
    Heard(Heard),
}

/// What the master wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask the agreed log.
    Ask(Ask),
    /// Answer the operation, for good.
    Reply {
        /// The request.
        op: OpId,
        /// The answer.
        message: Message,
    },
    /// Refuse the operation. The driver turns `leader` into the error's redirect.
    Fail {
        /// The request.
        op: OpId,
        /// Why.
        error: Error,
        /// Who is master, if this is not it.
        leader: Option<NodeId>,
    },
    /// For the metrics.
    Measured(Measure),
}

/// What the master measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// A KeepAlive was answered after being held for so long, extending the lease by so much.
    KeptAlive {
        /// How long it was held.
        held: Duration,
        /// The lease it gave.
        lease: Duration,
    },
    /// A change waited so long for acknowledgements.
    InvalidationWait(Duration),
    /// From the first sight of leadership until the cell opened.
    FailOver(Duration),
    /// How many there are now.
    Gauges {
        /// Sessions.
        sessions: usize,
        /// Handles.
        handles: usize,
        /// Entries that sessions may have cached.
        interest: usize,
        /// Acquires in queues.
        waiters: usize,
        /// Events and invalidations not yet acknowledged.
        undelivered: usize,
    },
}

/// The master of a cell, or a replica that is not it.
#[derive(Clone, Debug)]
pub struct Master {
    _options: Options,
}

impl Master {
    /// A replica that has heard of no leader yet.
    pub fn new(options: Options) -> Master {
        Master { _options: options }
    }

    /// Takes one input; `state` is the agreed state as it is applied here, at least as far as what was heard.
    pub fn handle(&mut self, _now: Now, _input: Input, _state: &Namespace, _out: &mut Outbox<Output>) {
        unimplemented!()
    }

    /// Lets due timers act.
    pub fn wake(&mut self, _now: Now, _state: &Namespace, _out: &mut Outbox<Output>) {
        unimplemented!()
    }

    /// When it next wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        unimplemented!()
    }
}

/// The master beside the state that it reads: what drivers run.
pub struct Mastering {
    /// The machine.
    pub master: Master,
    /// The state, which the log writes.
    pub state: SharedNamespace,
}

impl Machine for Mastering {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        self.master.handle(now, input, &self.state.read(), out);
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.master.wake(now, &self.state.read(), out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.master.deadline()
    }
}
