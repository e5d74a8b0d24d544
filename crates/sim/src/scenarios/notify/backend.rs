//! The application's backend: makes versions and publishes them.

use super::fact::{Fact, NotifyFact, Publication, object};
use super::shared::{APP, Shared};
use crate::kernel::{Effect, HostId};
use crate::scenarios::store::line::{Ended, Line};
use bytes::Bytes;
use prost::Message as _;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};
use tidings_wire::v1::{self, feed_message, frame::Body, notify_message};
use tidings_wire::{Frame, codec};

/// The topic of publications.
pub const TOPIC: &[u8] = b"notify";

/// A publication under way.
#[derive(Clone, Debug)]
struct Under {
    publication: Publication,
    /// The device that made it, as an installation.
    source: Bytes,
    /// F3: the incarnation that it is called for under.
    incarnation: u64,
    /// It is called for once, whatever comes of it.
    once: bool,
}

/// The backend's process.
pub struct Backend {
    rng: Seeded,
    shared: Shared,
    devices: Vec<HostId>,
    nodes: Vec<HostId>,
    line: Line<Under>,
    think: Duration,
    next: Mono,
    calm: bool,
}

type Out = Outbox<Effect<NotifyFact>>;

impl Backend {
    /// Starts; `start` is different in every life of the host.
    pub fn start(
        servers: Vec<HostId>,
        (devices, nodes): (Vec<HostId>, Vec<HostId>),
        shared: Shared,
        think: Duration,
        (rng, start): (Seeded, u64),
        now: Now,
    ) -> Backend {
        let line = Line::new(servers, rng.fork("calls"), start);
        Backend { rng, shared, devices, nodes, line, think, next: now.mono, calm: false }
    }

    /// No more of its own accord.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.calm && !self.line.is_busy()
    }

    /// Every object gets one more version.
    pub fn last_round(&mut self, now: Now, out: &mut Out) {
        (0..self.shared.objects()).for_each(|object| self.make(now, object, out));
    }

    /// A frame of a server.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if let Some(ended) = self.line.receive(now, from, bytes) {
            self.ended(now, ended, out);
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let next = (!self.calm).then_some(self.next);
        [next, self.line.deadline()].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        for ended in self.line.wake(now, out) {
            self.ended(now, ended, out);
        }
        if !self.calm && self.next <= now.mono {
            let mean = self.think.as_millis() as u64;
            self.next = now.mono + Duration::from_millis(self.rng.below(2 * mean + 1));
            let object = self.rng.below(self.shared.objects());
            // Now and then several at once, so that some collapse.
            let many = if self.rng.one_in(5) { self.rng.between(2, 4) } else { 1 };
            (0..many).for_each(|_| self.make(now, object, out));
        }
    }

    /// Makes a version of an object and publishes it.
    pub fn make(&mut self, now: Now, number: u64, out: &mut Out) {
        let publication = self.version(number);
        let maker = self.rng.one_in(2).then(|| self.rng.pick(&self.devices).copied()).flatten();
        let source = maker.and_then(|maker| Some((maker, self.shared.source(maker)?))).map(|(maker, source)| {
            out.put(Effect::Fact(Fact::Made(maker, publication).into()));
            source
        });
        self.call(now, publication, (source.unwrap_or_default(), false), out);
    }

    /// Makes a version of an object, to be published later.
    pub fn version(&mut self, number: u64) -> Publication {
        let version = self.shared.make(&object(number), self.rng.between(1, 3));
        Publication { generation: self.shared.generation(), object: number, version }
    }

    /// Publishes a version that no device made.
    pub fn announce(&mut self, now: Now, publication: Publication, out: &mut Out) {
        self.call(now, publication, (Bytes::new(), false), out);
    }

    /// The same, by somebody who does not try again if it fails.
    pub fn announce_once(&mut self, now: Now, publication: Publication, out: &mut Out) {
        self.call(now, publication, (Bytes::new(), true), out);
    }

    fn call(&mut self, now: Now, publication: Publication, (source, once): (Bytes, bool), out: &mut Out) {
        out.put(Effect::Fact(Fact::Calls(publication).into()));
        let incarnation = self.shared.realm().incarnation;
        self.publish(now, Under { publication, source, incarnation, once }, out);
    }

    fn publish(&mut self, now: Now, under: Under, out: &mut Out) {
        let Publication { generation, object: number, version } = under.publication;
        let entry = v1::Publication {
            app: APP.into(),
            object: object(number),
            version,
            source: under.source.clone(),
            generation,
            incarnation: under.incarnation,
            ..Default::default()
        };
        self.hint(entry.clone(), out);
        let append = v1::Append { topic: TOPIC.into(), entries: vec![entry.encode_to_vec().into()] };
        let body = Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Append(append)) });
        self.line.call(now, under, body, out);
    }

    /// A node that takes a publication may tell of it before it is durable; whether it ever is remains to be seen.
    fn hint(&mut self, publication: v1::Publication, out: &mut Out) {
        let publish = notify_message::Message::Publish(v1::Publish { publications: vec![publication] });
        let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(publish) });
        let frame = Frame { op: 1, more: false, body: Some(body) };
        if let Some(node) = self.rng.pick(&self.nodes).copied() {
            out.put(Effect::Send { to: node, bytes: codec::to_bytes(&frame) });
        }
    }

    fn ended(&mut self, now: Now, ended: Ended<Under>, out: &mut Out) {
        let under = ended.whose;
        match ended.result {
            Ok(Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Appended(_)) })) => {
                out.put(Effect::Fact(Fact::Published(under.publication).into()));
            }
            // It may have happened; publishing again is harmless.
            _ => {
                let again = !under.once && (self.calm || self.rng.one_in(2));
                if again && under.publication.generation == self.shared.generation() {
                    let incarnation = self.shared.realm().incarnation;
                    self.publish(now, Under { incarnation, ..under }, out);
                }
            }
        }
    }
}
