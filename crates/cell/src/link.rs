//! The short lease under which anything cached may be used: one for all sessions of a link.

use crate::mutant::Mutant;
use std::time::Duration;
use tidings_base::{Error, Machine, Mono, Now, Outbox};
use tidings_wire::v1;

/// Names one request of a client to the master until it is answered; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the link hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// Sessions there are: begin to renew.
    Start,
    /// No session is left: stop.
    Stop,
    /// The transport's answer.
    Answered {
        /// The request.
        ticket: Ticket,
        /// The answer, or why there is none.
        result: Result<v1::CellMessage, Error>,
    },
}

/// What the link wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask the master, and give up after so long.
    Send {
        /// Comes back with the answer.
        ticket: Ticket,
        /// The request.
        message: v1::CellMessage,
        /// For how long to try.
        within: Duration,
    },
    /// Tell every session of this link.
    Lease(Lease),
}

/// The link's cache lease, as dated by rule R3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Granted under this epoch: sessions of another one may not use it.
    pub epoch: u64,
    /// When the request was sent: a session that was created or resumed after that may not use it.
    pub asked: Mono,
    /// Anything cached may be used before this instant.
    pub until: Mono,
    /// Sessions that it does not hold for.
    pub owing: Vec<u64>,
}

/// Keeps the cache lease of one link.
#[derive(Clone, Debug)]
pub struct LinkLease {
    /// The link's name.
    pub link: u64,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl LinkLease {
    /// A link of this name.
    pub fn new(link: u64) -> LinkLease {
        LinkLease { link, mutant: None }
    }
}

impl Machine for LinkLease {
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
