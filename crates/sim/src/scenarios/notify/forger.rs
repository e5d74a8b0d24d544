//! Somebody who presents tokens that are not its own: other users', and ones that it made itself. It knows everything but the keys.

use super::fact::{Fact, NotifyFact};
use super::letter::{Body, Letter, send};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use prost::Message as _;
use tidings_base::{Outbox, Seeded};
use tidings_wire::v1::{self, registration_change::Change};

/// A later connection than any that the client has had: what comes by it would be believed.
const CONTACT: u64 = 1 << 40;

type Out = Outbox<Effect<NotifyFact>>;

/// The forger's process.
pub struct Forger {
    nodes: Vec<HostId>,
    rng: Seeded,
    attempts: u64,
    /// What it presents as soon as its channel is open, and where.
    presents: Option<(HostId, Bytes)>,
}

impl Forger {
    /// Starts; `start` is different in every life of the host.
    pub fn start(nodes: Vec<HostId>, rng: Seeded, start: u64) -> Forger {
        Forger { nodes, rng, attempts: start << 32, presents: None }
    }

    /// Opens a channel and presents a token by it.
    pub fn present(&mut self, token: Bytes, out: &mut Out) {
        let node = self.rng.pick(&self.nodes).copied().unwrap_or_default();
        self.attempts += 1;
        self.presents = Some((node, token));
        send(out, node, self.attempts, Body::Open(true));
    }

    /// Takes a letter.
    pub fn receive(&mut self, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Some((channel, body)) = Letter::of(bytes) else { return };
        match body {
            Body::Opened(number) if channel == self.attempts => {
                let Some((node, token)) = self.presents.take().filter(|(node, _)| *node == from) else { return };
                // Whoever is believed ends all that the victim has registered, and takes its connection over.
                let nothing = v1::RegistrationChange { change: Some(Change::Replace(v1::Replacement::default())) };
                let up = v1::NotifyUp {
                    token,
                    latest: CONTACT,
                    first: CONTACT,
                    changes: vec![nothing],
                    contact: CONTACT,
                    ..Default::default()
                };
                send(out, node, number, Body::Up(up));
            }
            Body::Down(down) => {
                let accepted = down.refusal.is_none();
                out.put(Effect::Fact(Fact::Forged { accepted }.into()));
            }
            _ => {}
        }
    }
}

/// The token in what a client keeps.
pub fn token(state: &Bytes) -> Option<Bytes> {
    v1::NotifyClientState::decode(state.clone()).ok().map(|state| state.token)
}

/// The same words, not authenticated.
pub fn forge(token: &Bytes) -> Option<Bytes> {
    let sealed = v1::SealedNotifyToken::decode(token.clone()).ok()?;
    let mac: Bytes = sealed.mac.iter().map(|byte| !byte).collect();
    Some(v1::SealedNotifyToken { mac, ..sealed }.encode_to_vec().into())
}
