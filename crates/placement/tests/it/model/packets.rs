//! What is on its way between owners, lookups and managers.

use super::world::{Setup, Who, World, mix};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::{Error, OpId};
use tidings_placement::{Ticket, lookup, manager, owner};
use tidings_wire::v1::placement_message::Message;

#[derive(Clone, Debug)]
pub struct Packet {
    pub who: Who,
    pub ticket: Ticket,
    pub manager: usize,
    pub slow: bool,
    /// Which start of the owner it belongs to.
    pub incarnation: u64,
    pub print: u64,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub enum Body {
    Request(Message),
    Reply(Result<Message, Error>),
}

/// By manager and request: who asked under which ticket, whether its packets are slow, and which start of it asked.
pub type Asked = BTreeMap<(usize, OpId), (Who, Ticket, bool, u64)>;

impl World {
    pub fn deliver(&mut self, setup: &Setup, packet: Packet) {
        match packet.body {
            Body::Request(message) => {
                let (m, slow) = (packet.manager, packet.slow);
                let op = self.op(m, packet.who, packet.ticket, slow, packet.incarnation);
                let input = match message {
                    Message::OwnerPoll(poll) => manager::Input::Owner { op, poll: Box::new(poll) },
                    Message::LookupPoll(poll) => manager::Input::Lookup { op, poll },
                    request => manager::Input::Operate { op, request },
                };
                self.feed(setup, m, packet.print, input);
            }
            Body::Reply(result) => match packet.who {
                Who::Owner(n) if self.owners[n].incarnation == packet.incarnation => {
                    let result = result.map(|message| match message {
                        Message::OwnerAnswer(answer) => answer,
                        other => panic!("not an answer to an owner: {other:?}"),
                    });
                    self.tell_owner(setup, n, packet.print, owner::Input::Answered { ticket: packet.ticket, result });
                }
                Who::Lookup => {
                    let result = result.map(|message| match message {
                        Message::LookupAnswer(answer) => answer,
                        other => panic!("not an answer to a lookup: {other:?}"),
                    });
                    self.tell_lookup(setup, packet.print, lookup::Input::Answered { ticket: packet.ticket, result });
                }
                Who::Owner(_) | Who::Operator => {}
            },
        }
    }

    pub fn op(&mut self, m: usize, who: Who, ticket: Ticket, slow: bool, incarnation: u64) -> OpId {
        self.last_op[m] += 1;
        let op = OpId(self.last_op[m]);
        Arc::make_mut(&mut self.asked).insert((m, op), (who, ticket, slow, incarnation));
        op
    }

    pub fn reply(&mut self, m: usize, op: OpId, result: Result<Message, Error>) {
        let Some((who, ticket, slow, incarnation)) = Arc::make_mut(&mut self.asked).remove(&(m, op)) else { return };
        let print = mix(self.heard[m], op.0);
        self.packets.push(Packet { who, ticket, manager: m, slow, incarnation, print, body: Body::Reply(result) });
    }

    pub fn send(&mut self, setup: &Setup, who: Who, ticket: Ticket, message: Message) {
        let loyal = setup.loyal && who == Who::Owner(0);
        let manager = if loyal { 0 } else { self.cell.leader };
        let (print, incarnation) = match who {
            Who::Owner(n) => (self.owners[n].print, self.owners[n].incarnation),
            _ => (self.lookup.as_ref().map_or(0, |seat| seat.print), 0),
        };
        let (slow, print) = ((setup.slow)(who), mix(print, ticket.0));
        self.packets.push(Packet { who, ticket, manager, slow, incarnation, print, body: Body::Request(message) });
    }
}
