//! The master: what the leader of the cell adds to the agreed state, in memory.
//!
//! ```text
//!   Request ──▶ session known? ──▶ read: leader lease, or one barrier for many ──▶ from the state ──▶ Reply
//!                             └──▶ change: block its keys ──▶ invalidate ──▶ acknowledged, or cache leases over
//!                                           ──▶ Propose ──▶ Applied ──▶ events, unblock, Reply
//!   KeepAlive ──▶ held: a slot of the session ──▶ something to carry, or the lease is due ──▶ KeptAlive
//! ```
//! A replica that leads has a `Reign`: everything in memory that belongs to one leadership. It begins
//! with a committed `NewMaster`, whose result is its epoch (R1), waits for the sessions of the state to come back or
//! to be unable to hold a cached copy (`failover`), serves, and is dropped whole when the role is lost.
//!
//! One file per role: `sessions` and `leases` (who lives, until when), `caching` and `batches` (who may hold a
//! copy of what, and how it is told), `handles`, `closing`, `reads`, `mutations`, `locks`, `delays`, `events`,
//! `operate`; and beneath them `gate` (fresh enough to answer?), `pace` (does a client's clock keep to the bound?),
//! `wheel` (timers by the hundred thousand), `places` (paths as small numbers).
//!
//! What it deliberately does not do: change the state (only the log does), trust a grant (apply checks it again), or
//! answer from memory what the log has to decide.

mod batches;
mod caching;
mod closing;
mod delays;
mod events;
mod failover;
mod gate;
mod handles;
mod leases;
mod locks;
mod mutations;
mod operate;
mod pace;
mod places;
mod reads;
mod reign;
mod sessions;
#[cfg(test)]
mod tests;
mod wheel;

use crate::error;
use crate::mutant::Mutant;
use crate::namespace::{Namespace, SharedNamespace};
use reign::Reign;
pub use sessions::{LONGEST_LEASE, SHORTEST_LEASE};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard, Role};
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
    /// R12: a master that reigns for so long has the cell agree on new keys, and again.
    pub rotate: Duration,
    /// This replica was the only voter of its cell when the process began, and holds the lock of its data directory:
    /// whoever kept sessions on this node before is dead. Counts for the first reign only, since nobody else can have led
    /// before that.
    pub alone: bool,
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
#[derive(Clone, Debug, PartialEq)]
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
    /// A client's clock gains or loses more than ρ on the one here: it is refused to cache.
    ClockOutOfBound {
        /// Its application and principal.
        client: (Arc<str>, Arc<str>),
        /// How much passed here.
        ours: Duration,
        /// How much passed there meanwhile.
        theirs: Duration,
    },
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
    options: Options,
    /// The leader as this replica last heard, while it is not that itself.
    leader: Option<NodeId>,
    /// Everything of the present leadership.
    reign: Option<Box<Reign>>,
    /// The last number given to a proposal or barrier: even, and never used twice.
    last_op: u64,
}

impl Master {
    /// A replica that has heard of no leader yet.
    pub fn new(options: Options) -> Master {
        Master { options, leader: None, reign: None, last_op: 0 }
    }

    /// Takes one input; `state` is the agreed state as it is applied here, at least as far as what was heard.
    pub fn handle(&mut self, now: Now, input: Input, state: &Namespace, out: &mut Outbox<Output>) {
        match input {
            Input::Heard(Heard::Role(role)) => self.role(now, role, state, out),
            Input::Request { op, request, deadline } => match &mut self.reign {
                Some(reign) => {
                    let mut turn = reign.turn(now, state, out);
                    reign.request(&mut turn, op, request, deadline);
                    reign.finish(&mut turn);
                }
                None => out.put(Output::Fail { op, error: error::not_master(), leader: self.leader }),
            },
            Input::Cancel { op } => {
                if let Some(reign) = &mut self.reign {
                    reign.cancel(op);
                }
            }
            Input::Heard(heard) => {
                if let Some(reign) = &mut self.reign {
                    if let Heard::LeaseUntil(until) = heard {
                        reign.lease_until = until;
                    }
                    let mut turn = reign.turn(now, state, out);
                    reign.heard(&mut turn, heard);
                    reign.finish(&mut turn);
                }
            }
        }
    }

    /// Lets due timers act.
    pub fn wake(&mut self, now: Now, state: &Namespace, out: &mut Outbox<Output>) {
        if let Some(reign) = &mut self.reign {
            let mut turn = reign.turn(now, state, out);
            reign.wake(&mut turn);
            reign.finish(&mut turn);
        }
    }

    /// When it next wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.reign.as_ref()?.deadline()
    }

    fn role(&mut self, now: Now, role: Role, state: &Namespace, out: &mut Outbox<Output>) {
        self.depose(
            match role {
                Role::Leader { .. } => None,
                Role::Follower { leader } => leader,
            },
            now,
            state,
            out,
        );
        if let Role::Leader { .. } = role {
            let mut reign = Box::new(Reign::new(self.options.clone(), now.mono, self.last_op));
            self.options.alone = false;
            let mut turn = reign.turn(now, state, out);
            reign.begin(&mut turn);
            self.reign = Some(reign);
        }
    }

    /// Ends a reign: whoever waits asks the next master. Proposals under way may still be applied; the next master
    /// answers their repeats from the result window (R8).
    fn depose(&mut self, leader: Option<NodeId>, now: Now, state: &Namespace, out: &mut Outbox<Output>) {
        self.leader = leader;
        if let Some(mut reign) = self.reign.take() {
            self.last_op = reign.last_op;
            let mut turn = reign.turn(now, state, out);
            reign.abandon(&mut turn, leader);
        }
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
