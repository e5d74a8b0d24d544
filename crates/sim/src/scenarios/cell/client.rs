//! A client host: one link and its cache lease, one or two sessions on it.

use super::fact::{CellFact, Fact};
use super::line::{Line, Outcome};
use super::resource;
use super::seat::{Habits, Seat, Want};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_cell::link::{self, LinkLease, Ticket};

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Link(Ticket),
    Seat { at: usize, life: u64, ticket: Ticket },
}

/// A client host.
pub struct Client {
    line: Line<Whose>,
    link: LinkLease,
    link_out: Outbox<link::Output>,
    seats: Vec<Seat>,
    resource: HostId,
}

type Out = Outbox<Effect<CellFact>>;

fn state(fact: Fact) -> Effect<CellFact> {
    Effect::Fact(CellFact::Cell(fact))
}

impl Client {
    /// A host with so many sessions.
    #[allow(clippy::too_many_arguments)] // Everything that a start needs, from one caller.
    pub fn start(
        host: HostId,
        start: u64,
        servers: Vec<HostId>,
        resource: HostId,
        seats: usize,
        habits: &Habits,
        now: Now,
        mut rng: Seeded,
        out: &mut Out,
    ) -> Client {
        out.put(state(Fact::ClientStarted));
        let name = rng.next_u64();
        let mut link = LinkLease::new(name);
        link.mutant = habits.mutant;
        let seat = |at: usize| {
            let first_op = (start << 40) | ((at as u64) << 36);
            Seat::new(host, name, habits.clone(), rng.fork(&format!("seat {at}")), now, first_op)
        };
        let seats = (0..seats).map(seat).collect();
        let line = Line::new(servers, rng.fork("line"), start);
        let mut client = Client { line, link, link_out: Outbox::new(), seats, resource };
        client.link.handle(now, link::Input::Start, &mut client.link_out);
        client.work(now, Vec::new(), out);
        client
    }

    /// Its sessions.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// Whether a command runs here.
    pub fn runs_a_command(&self) -> bool {
        self.seats.iter().any(Seat::runs_a_command)
    }

    /// When its link renews the cache lease next.
    pub fn next_renewal(&self) -> Option<Mono> {
        self.link.deadline()
    }

    /// Begins nothing new.
    pub fn stop(&mut self) {
        self.seats.iter_mut().for_each(Seat::stop);
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let seats = self.seats.iter().filter_map(Seat::deadline).min();
        [self.line.deadline(), self.link.deadline(), seats].into_iter().flatten().min()
    }

    /// A message from a server.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let ended = self.line.receive(now, from, bytes, out);
        self.work(now, ended, out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        let ended = self.line.wake(now, out);
        if self.link.deadline().is_some_and(|at| at <= now.mono) {
            self.link.wake(now, &mut self.link_out);
        }
        self.work(now, ended, out);
        for at in 0..self.seats.len() {
            if self.seats[at].deadline().is_some_and(|due| due <= now.mono) {
                let wants = self.seats[at].wake(now);
                self.want(now, at, wants, out);
            }
        }
        self.work(now, Vec::new(), out);
    }

    fn work(&mut self, now: Now, ended: Vec<Outcome<Whose>>, out: &mut Out) {
        for Outcome { whose, result } in ended {
            match whose {
                Whose::Link(ticket) => {
                    self.link.handle(now, link::Input::Answered { ticket, result }, &mut self.link_out);
                }
                Whose::Seat { at, life, ticket } if self.seats[at].life == life => {
                    let wants = self.seats[at].answered(now, ticket, result);
                    self.want(now, at, wants, out);
                }
                Whose::Seat { .. } => {}
            }
        }
        let outputs: Vec<link::Output> = self.link_out.drain().collect();
        for output in outputs {
            match output {
                link::Output::Send { ticket, message, within } => {
                    self.line.send(now, Whose::Link(ticket), message, within, out);
                }
                link::Output::Lease(lease) => {
                    for at in 0..self.seats.len() {
                        let wants = self.seats[at].leased(now, lease.clone());
                        self.want(now, at, wants, out);
                    }
                }
            }
        }
    }

    fn want(&mut self, now: Now, at: usize, wants: Vec<Want>, out: &mut Out) {
        for want in wants {
            match want {
                Want::Send(ticket, message, within) => {
                    let whose = Whose::Seat { at, life: self.seats[at].life, ticket };
                    self.line.send(now, whose, message, within, out);
                }
                Want::State(fact) => out.put(state(fact)),
                Want::Touch(touch) => {
                    out.put(Effect::Send { to: self.resource, bytes: resource::encode(&touch) });
                }
            }
        }
    }
}
