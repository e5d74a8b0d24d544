//! A client that presents handles which it does not have: forged ones, and ones that it closed. Then it reads through them.

use super::fact::Fact;
use bytes::Bytes;
use prost::Message as _;
use std::collections::BTreeMap;
use tidings_base::Error;
use tidings_cell::link::Ticket;
use tidings_wire::v1::{self, cell_message::Message};

/// Numbers that no session's handles and tickets reach.
const FORGED: u64 = 1 << 40;
/// Tickets of reads through closed handles are above this.
const CLOSED: u64 = 1 << 41;

/// Changes resumptions on their way, and tries what came of it.
#[derive(Default)]
pub struct Forger {
    /// Resumptions, with the handles that were added to them: which one, and the ticket of the read through it.
    under_way: BTreeMap<Ticket, (v1::CellCall, Vec<(u64, Ticket)>)>,
    count: u64,
    /// Handles that can be read through, with their tokens.
    open: BTreeMap<u64, Bytes>,
    closing: BTreeMap<Ticket, (u64, Bytes)>,
    /// What was closed last.
    closed: Option<(u64, Bytes)>,
}

impl Forger {
    /// A request is about to leave.
    pub fn sending(&mut self, ticket: Ticket, message: &mut v1::CellMessage) {
        match (&mut message.message, &message.call) {
            (Some(Message::Close(close)), _) => {
                let token = self.open.remove(&close.handle);
                self.closing.extend(token.map(|token| (ticket, (close.handle, token))));
            }
            (Some(Message::ResumeSession(resume)), Some(call)) => {
                self.count += 1;
                let number = FORGED + self.count;
                let mut added = Vec::new();
                if let Some(forged) = resume.handles.first().and_then(|token| forge(token, number)) {
                    resume.handles.push(forged);
                    added.push((number, Ticket(number)));
                }
                if let Some((handle, token)) = self.closed.clone() {
                    resume.handles.push(token);
                    added.push((handle, Ticket(CLOSED + self.count)));
                }
                self.under_way.insert(ticket, (*call, added));
            }
            _ => {}
        }
    }

    /// An answer came. After a resumption: reads through what was presented, each to be sent under its ticket.
    pub fn answered(&mut self, ticket: Ticket, reply: &v1::CellMessage) -> Vec<(Ticket, v1::CellMessage)> {
        match &reply.message {
            Some(Message::Opened(opened)) if is_readable(&opened.token) => {
                self.open.insert(opened.handle, opened.token.clone());
            }
            Some(Message::Done(_)) => self.closed = self.closing.remove(&ticket).or(self.closed.take()),
            _ => {}
        }
        let Some((call, added)) = self.under_way.remove(&ticket) else { return Vec::new() };
        let Some(Message::SessionResumed(resumed)) = &reply.message else { return Vec::new() };
        let call = v1::CellCall { epoch: resumed.epoch, number: 0, ..call };
        let read = |(handle, ticket): (u64, Ticket)| {
            let target = Some(v1::NodeTarget { target: Some(v1::node_target::Target::Handle(handle)) });
            let message = Some(Message::Read(v1::ReadNode { target, uncached: true, ..Default::default() }));
            (ticket, v1::CellMessage { caller: None, call: Some(call), message })
        };
        added.into_iter().map(read).collect()
    }

    /// Whether a ticket is the forger's own.
    pub fn owns(ticket: Ticket) -> bool {
        ticket.0 > FORGED
    }

    /// What came of a read through a handle that its client does not have.
    pub fn judged(ticket: Ticket, result: &Result<v1::CellMessage, Error>) -> Option<Fact> {
        let accepted = match result {
            Ok(_) => true,
            Err(error) if error.code == "cell.bad_handle" => false,
            Err(_) => return None,
        };
        match ticket.0 > CLOSED {
            true => Some(Fact::Revived { accepted }),
            false => Some(Fact::Forged { accepted }),
        }
    }
}

fn is_readable(token: &Bytes) -> bool {
    let sealed = v1::SealedHandle::decode(token.clone());
    let body = sealed.and_then(|sealed| v1::HandleBody::decode(sealed.body));
    body.is_ok_and(|body| body.read)
}

/// The token of another handle, under the authentication of this one.
fn forge(token: &Bytes, number: u64) -> Option<Bytes> {
    let mut sealed = v1::SealedHandle::decode(token.clone()).ok()?;
    let mut body = v1::HandleBody::decode(sealed.body.clone()).ok()?;
    body.number = number;
    body.write = true;
    body.lock = true;
    sealed.body = Bytes::from(body.encode_to_vec());
    Some(Bytes::from(sealed.encode_to_vec()))
}
