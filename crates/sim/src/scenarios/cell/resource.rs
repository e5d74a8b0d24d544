//! What locks protect: a resource that verifies sequencers by itself, and refuses what is older than the newest it saw.

use super::fact::{CellFact, Fact};
use super::line::Line;
use super::script::Touch;
use crate::kernel::{Effect, HostId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};
use tidings_cell::token::{PublicKeys, compare_sequencers};
use tidings_wire::v1::{self, cell_message::Message};

/// The first byte of a touch: no frame and no probe begins so.
const TOUCH: u8 = 3;
/// How long the resource waits for the cell's keys.
const PATIENCE: Duration = Duration::from_secs(3);

/// A touch as bytes.
pub fn encode(touch: &Touch) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(TOUCH);
    bytes.put_u64_le(touch.session);
    bytes.put_slice(&touch.sequencer);
    bytes.freeze()
}

/// The resource.
pub struct Resource {
    line: Line<()>,
    keys: Option<PublicKeys>,
    asking: bool,
    newest: BTreeMap<String, v1::SequencerBody>,
}

type Out = Outbox<Effect<CellFact>>;

impl Resource {
    /// A resource that can ask these servers for the cell's keys.
    pub fn new(servers: Vec<HostId>, rng: Seeded, start: u64) -> Resource {
        Resource { line: Line::new(servers, rng, start), keys: None, asking: false, newest: BTreeMap::new() }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.line.deadline()
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        if !self.line.wake(now, out).is_empty() {
            self.asking = false;
        }
    }

    /// A message of a client or of a server.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if bytes.first() == Some(&TOUCH) && bytes.len() > 9 {
            let mut bytes = bytes.slice(1..);
            let session = bytes.get_u64_le();
            return self.touched(now, session, &bytes, out);
        }
        for ended in self.line.receive(now, from, bytes, out) {
            self.asking = false;
            if let Ok(v1::CellMessage { message: Some(Message::KeysReply(reply)), .. }) = ended.result {
                self.keys = Some(PublicKeys::from_wire(&reply.keys));
            }
        }
    }

    fn touched(&mut self, now: Now, session: u64, token: &[u8], out: &mut Out) {
        let verified = self.keys.as_ref().and_then(|keys| keys.verify_sequencer(token).ok());
        let Some(body) = verified else {
            // Unknown keys: it cannot tell, so it does nothing, and learns them for the next time.
            if !std::mem::replace(&mut self.asking, true) {
                let message = Some(Message::Keys(v1::CellKeys {}));
                self.line.send(now, (), v1::CellMessage { caller: None, call: None, message }, PATIENCE, out);
            }
            return;
        };
        let newest = self.newest.get(&body.path);
        let older = newest.is_some_and(|newest| compare_sequencers(&body, newest).is_ok_and(|order| order.is_lt()));
        out.put(Effect::Fact(CellFact::Cell(Fact::Resource {
            session,
            path: body.path.clone(),
            order: (body.incarnation, body.instance, body.generation),
            exclusive: body.mode() == v1::LockMode::Exclusive,
            accepted: !older,
        })));
        if !older {
            self.newest.insert(body.path.clone(), body);
        }
    }
}
