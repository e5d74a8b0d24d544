//! A client that forges handles: what it presents to a new master it was never given, and then it reads through that.

use super::fact::Fact;
use bytes::Bytes;
use prost::Message as _;
use std::collections::BTreeMap;
use tidings_base::Error;
use tidings_cell::link::Ticket;
use tidings_wire::v1::{self, cell_message::Message};

/// Handle numbers that no session reaches.
const FORGED: u64 = 1 << 40;

/// Changes resumptions on their way, and tries what came of it.
#[derive(Default)]
pub struct Forger {
    under_way: BTreeMap<Ticket, (u64, v1::CellCall)>,
    count: u64,
}

impl Forger {
    /// A request is about to leave.
    pub fn sending(&mut self, ticket: Ticket, message: &mut v1::CellMessage) {
        let (Some(Message::ResumeSession(resume)), Some(call)) = (&mut message.message, &message.call) else { return };
        self.count += 1;
        let number = FORGED + self.count;
        if let Some(forged) = resume.handles.first().and_then(|token| forge(token, number)) {
            resume.handles.push(forged);
            self.under_way.insert(ticket, (number, *call));
        }
    }

    /// An answer came. After a resumption: a read through the forged handle, to be sent under this ticket.
    pub fn resumed(&mut self, ticket: Ticket, reply: &v1::CellMessage) -> Option<(Ticket, v1::CellMessage)> {
        let (number, call) = self.under_way.remove(&ticket)?;
        let Some(Message::SessionResumed(resumed)) = &reply.message else { return None };
        let target = Some(v1::NodeTarget { target: Some(v1::node_target::Target::Handle(number)) });
        let message = Message::Read(v1::ReadNode { target, contents: true, children: false, uncached: true });
        let call = v1::CellCall { epoch: resumed.epoch, number: 0, ..call };
        Some((Ticket(number), v1::CellMessage { caller: None, call: Some(call), message: Some(message) }))
    }

    /// Whether a ticket is the forger's own.
    pub fn owns(ticket: Ticket) -> bool {
        ticket.0 > FORGED
    }

    /// What came of the read through the forged handle.
    pub fn judged(result: &Result<v1::CellMessage, Error>) -> Option<Fact> {
        match result {
            Ok(_) => Some(Fact::Forged { accepted: true }),
            Err(error) if error.code == "cell.bad_handle" => Some(Fact::Forged { accepted: false }),
            Err(_) => None,
        }
    }
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
