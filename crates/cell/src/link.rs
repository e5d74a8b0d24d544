//! The short lease under which anything cached may be used: one for all sessions of a link.

use crate::mutant::Mutant;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Error, Machine, Mono, Now, Outbox, time};
use tidings_wire::v1;
use tidings_wire::v1::cell_message::Message;

/// How often the lease is renewed: three attempts fit into a lease of 1.8 s as its holder may use it.
pub const RENEWAL: Duration = Duration::from_millis(500);

/// After so long a renewal is given up: its lease would hardly be worth having.
const WITHIN: Duration = Duration::from_secs(1);

/// The most renewals under way at a time: a slow one does not hold up the next, and a dead master is not flooded.
const IN_FLIGHT: usize = 2;

/// Names one request of a client to the master until it is answered; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What the link hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// A session was created or resumed on this link: renew at once, then again and again. Said again for each, so that
    /// none waits for the next turn before it may use what it caches.
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
    /// When the request was sent: only a session that was created or resumed before that may use it.
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
    /// Renewals under way, and when each was sent.
    asked: BTreeMap<Ticket, Mono>,
    /// When the next one is due; `None` while no session is there.
    next: Option<Mono>,
    last_ticket: u64,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl LinkLease {
    /// A link of this name.
    pub fn new(link: u64) -> LinkLease {
        LinkLease { link, asked: BTreeMap::new(), next: None, last_ticket: 0, mutant: None }
    }

    fn renew(&mut self, now: Mono, out: &mut Outbox<Output>) {
        self.next = Some(now + RENEWAL);
        // The driver answers every request within its time; an answer that never comes must not end all renewing.
        self.asked.retain(|_, asked| now.since(*asked) < 2 * WITHIN);
        if self.asked.len() >= IN_FLIGHT {
            return;
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.asked.insert(ticket, now);
        let clock_us = Some(now.0 / 1_000);
        let message = Some(Message::RenewCache(v1::RenewCache { link: self.link, clock_us }));
        out.put(Output::Send { ticket, message: v1::CellMessage { message, ..Default::default() }, within: WITHIN });
    }

    fn answered(&mut self, now: Mono, asked: Mono, answer: v1::CellMessage, out: &mut Outbox<Output>) {
        let Some(Message::CacheRenewed(renewed)) = answer.message else { return };
        let lease = Duration::from_micros(renewed.lease_us);
        // R3: dated from the request, and shortened, because this clock may run slow.
        let until = match self.mutant {
            Some(Mutant::LeaseFromArrival) => now + lease,
            _ => asked + time::shortened(lease),
        };
        if until > now {
            out.put(Output::Lease(Lease { epoch: renewed.epoch, asked, until, owing: renewed.owing }));
        }
    }
}

impl Machine for LinkLease {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            // With two under way already, the next turn is soon enough.
            Input::Start if self.next.is_some() && self.asked.len() >= IN_FLIGHT => {}
            Input::Start => self.renew(now.mono, out),
            Input::Stop => {
                self.next = None;
                self.asked.clear();
            }
            Input::Answered { ticket, result } => {
                // A refusal or silence changes nothing: the lease there is runs out, the next attempt comes in turn.
                if let (Some(asked), Ok(answer)) = (self.asked.remove(&ticket), result) {
                    self.answered(now.mono, asked, answer, out);
                }
            }
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.next.is_some_and(|at| at <= now.mono) {
            self.renew(now.mono, out);
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Class;

    fn at(ms: u64) -> Now {
        Now { mono: Mono(ms * 1_000_000), ..Now::default() }
    }

    fn tickets(out: Outbox<Output>) -> Vec<Ticket> {
        out.into_iter()
            .map(|output| match output {
                Output::Send { ticket, .. } => ticket,
                Output::Lease(lease) => panic!("no lease was expected: {lease:?}"),
            })
            .collect()
    }

    fn renewed(epoch: u64, lease_ms: u64, owing: Vec<u64>) -> v1::CellMessage {
        let renewed = v1::CacheRenewed { epoch, lease_us: lease_ms * 1_000, owing };
        v1::CellMessage { message: Some(Message::CacheRenewed(renewed)), ..Default::default() }
    }

    #[test]
    fn the_lease_is_dated_from_the_request_and_shortened() {
        let mut link = LinkLease::new(7);
        let mut out = Outbox::new();
        link.handle(at(1_000), Input::Start, &mut out);
        let ticket = tickets(out)[0];
        let mut out = Outbox::new();
        link.handle(at(1_300), Input::Answered { ticket, result: Ok(renewed(3, 1_800, vec![9])) }, &mut out);
        let lease = Lease { epoch: 3, asked: at(1_000).mono, until: at(2_620).mono, owing: vec![9] };
        assert_eq!(out.into_iter().collect::<Vec<_>>(), [Output::Lease(lease)]);
        // The same answer again, or one that comes after its lease is over, is nothing.
        let mut out = Outbox::new();
        link.handle(at(1_300), Input::Answered { ticket, result: Ok(renewed(3, 1_800, vec![])) }, &mut out);
        link.wake(at(1_500), &mut out);
        let ticket = tickets(out)[0];
        let mut out = Outbox::new();
        link.handle(at(3_200), Input::Answered { ticket, result: Ok(renewed(3, 1_800, vec![])) }, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn renewals_go_on_through_silence_and_refusals_two_at_a_time() {
        let mut link = LinkLease::new(7);
        let mut out = Outbox::new();
        link.handle(at(0), Input::Start, &mut out);
        for ms in [500, 1_000, 1_500] {
            assert_eq!(link.deadline(), Some(at(ms).mono));
            link.wake(at(ms), &mut out);
        }
        let sent = tickets(out);
        assert_eq!(sent.len(), 2, "at most two are under way");
        let refused = Error::new("cell.opening", Class::Unreachable, "the cell is opening");
        let mut out = Outbox::new();
        link.handle(at(1_600), Input::Answered { ticket: sent[0], result: Err(refused) }, &mut out);
        link.wake(at(2_000), &mut out);
        assert_eq!(tickets(out).len(), 1);
        // Nobody answers, not even the driver: renewing goes on all the same.
        let mut out = Outbox::new();
        link.wake(at(9_000), &mut out);
        link.handle(at(9_000), Input::Stop, &mut out);
        assert_eq!((tickets(out).len(), link.deadline()), (1, None));
    }
}
