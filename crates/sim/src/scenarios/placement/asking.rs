//! The way of a request to whichever manager leads, as the library's transport goes it.

use super::letter::{Body, send};
use crate::kernel::{Effect, HostId};
use std::collections::BTreeMap;
use tidings_base::{Class, Error, Outbox};
use tidings_placement::{Ticket, To};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// Requests that are remembered: a machine has one at a time, and answers come late.
const REMEMBERED: usize = 64;

/// Requests under way.
#[derive(Debug)]
pub struct Asking {
    managers: Vec<HostId>,
    /// Who answered last.
    leader: usize,
    last_id: u64,
    waiting: BTreeMap<u64, Ticket>,
}

impl Asking {
    /// Nothing was asked yet; numbers begin behind those of earlier processes.
    pub fn new(managers: Vec<HostId>, start: u64) -> Asking {
        Asking { managers, leader: 0, last_id: start << 32, waiting: BTreeMap::new() }
    }

    /// Asks.
    pub fn ask<F>(&mut self, to: To, ticket: Ticket, message: Message, out: &mut Outbox<Effect<F>>) {
        let whom = match to {
            To::Leader => vec![self.managers[self.leader]],
            To::Everyone => self.managers.clone(),
        };
        for manager in whom {
            self.last_id += 1;
            self.waiting.insert(self.last_id, ticket);
            send(out, manager, self.last_id, Body::Ask(v1::PlacementMessage { message: Some(message.clone()) }));
        }
        while self.waiting.len() > REMEMBERED {
            self.waiting.pop_first();
        }
    }

    /// What an answer means for the machine, if anything. An answer that comes twice is given twice: machines must bear it.
    pub fn answered(&mut self, from: HostId, id: u64, body: Body) -> Option<(Ticket, Result<Message, Error>)> {
        let ticket = self.waiting.get(&id).copied()?;
        let manager = self.managers.iter().position(|manager| *manager == from)?;
        match body {
            Body::Answer(answer) => {
                self.leader = manager;
                Some((ticket, Ok(answer.message?)))
            }
            Body::Failed(code) => {
                self.waiting.remove(&id);
                if code == "placement.not_leader" && manager == self.leader {
                    self.leader = (self.leader + 1) % self.managers.len();
                }
                // Somebody else may still answer.
                let others = self.waiting.values().any(|other| *other == ticket);
                (!others).then(|| (ticket, Err(error(&code))))
            }
            _ => None,
        }
    }
}

fn error(code: &str) -> Error {
    let mut error = Error::new("placement.refused", Class::Unreachable, "a manager refused");
    error.code = code.to_owned().into();
    error
}
