//! One machine at a desk: the store answers at once unless it is held, everything else is laid out.

use crate::model::Store;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use tidings_base::{KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Wall};
use tidings_notify::bridge::{self, Bridge};
use tidings_notify::matcher::{self, Matcher};
use tidings_notify::names::{Caller, Channel, ClientKey};
use tidings_notify::registrar::{self, Registrar};
use tidings_notify::rows::{Realm, StoreId, StoreRequest, StoreResult};
use tidings_notify::token::Keys;
use tidings_notify::{CallId, Outcome, RequestId};
use tidings_wire::v1;

pub const APP: &str = "app";

pub fn lease() -> LeaseNumber {
    LeaseNumber::new(5).unwrap()
}

pub fn realm() -> Realm {
    Realm { incarnation: 1, generations: BTreeMap::new() }
}

pub fn wire_realm() -> Option<v1::NotifyRealm> {
    Some(v1::NotifyRealm { incarnation: 1, generation: 0 })
}

pub fn ann() -> Caller {
    Caller { app: APP.into(), principal: "ann".into() }
}

pub fn channel(number: u64) -> Channel {
    Channel { node: 1, number }
}

pub fn client_key(user: &str, at: u8) -> ClientKey {
    ClientKey::new(APP, 0, user, [at; 16])
}

/// What a desk needs to know of a machine.
pub trait Seated: Machine {
    fn asked(output: Self::Output) -> Result<(StoreId, StoreRequest), Self::Output>;
    fn stored(id: StoreId, result: StoreResult) -> Self::Input;
}

macro_rules! seated {
    ($machine:ty, $module:ident) => {
        impl Seated for $machine {
            fn asked(output: $module::Output) -> Result<(StoreId, StoreRequest), $module::Output> {
                match output {
                    $module::Output::Store { id, request, .. } => Ok((id, request)),
                    other => Err(other),
                }
            }
            fn stored(id: StoreId, result: StoreResult) -> $module::Input {
                $module::Input::Stored { id, result }
            }
        }
    };
}
seated!(Registrar, registrar);
seated!(Matcher, matcher);
seated!(Bridge, bridge);

pub struct Desk<M: Seated> {
    pub machine: M,
    pub store: Store,
    pub ms: u64,
    pub out: Vec<M::Output>,
    /// Requests that wait for [`Desk::release`].
    pub held: VecDeque<(StoreId, StoreRequest)>,
    pub hold: bool,
    pub writes: Vec<v1::RowWrite>,
}

impl<M: Seated> Desk<M> {
    pub fn seat(machine: M) -> Desk<M> {
        let (store, out, held, writes) = (Store::default(), Vec::new(), VecDeque::new(), Vec::new());
        Desk { machine, store, ms: 1, out, held, hold: false, writes }
    }

    pub fn now(&self) -> Now {
        Now { mono: Mono(self.ms * 1_000_000), wall: Wall(1_700_000_000_000_000 + self.ms * 1_000) }
    }

    pub fn give(&mut self, input: M::Input) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.machine.handle(now, input, &mut out);
        self.settle(out);
    }

    fn settle(&mut self, out: Outbox<M::Output>) {
        for output in out {
            match M::asked(output) {
                Ok((id, request)) if self.hold => self.held.push_back((id, request)),
                Ok((id, request)) => self.perform(id, &request),
                Err(output) => self.out.push(output),
            }
        }
    }

    fn perform(&mut self, id: StoreId, request: &StoreRequest) {
        let result = self.store.perform(request);
        if let (StoreRequest::Write(apply), true) = (request, result.is_ok()) {
            self.writes.extend(apply.groups.iter().flat_map(|group| group.rows.clone()));
        }
        self.give(M::stored(id, result));
    }

    /// Performs the first request that is held.
    pub fn release(&mut self) -> bool {
        let Some((id, request)) = self.held.pop_front() else { return false };
        self.perform(id, &request);
        true
    }

    pub fn release_all(&mut self) {
        self.hold = false;
        while self.release() {}
    }

    /// Lets time pass, waking the machine whenever it wants to be.
    pub fn pass(&mut self, ms: u64) {
        let end = self.ms + ms;
        while let Some(at) = self.machine.deadline().map(|at| at.0.div_ceil(1_000_000)).filter(|at| *at <= end) {
            self.ms = self.ms.max(at);
            let (now, mut out) = (self.now(), Outbox::new());
            self.machine.wake(now, &mut out);
            self.settle(out);
        }
        self.ms = end;
    }

    pub fn take(&mut self) -> Vec<M::Output> {
        std::mem::take(&mut self.out)
    }
}

impl Desk<Registrar> {
    pub fn registrar(options: registrar::Options) -> Desk<Registrar> {
        let mut desk = Desk::seat(Registrar::new(options));
        desk.give(registrar::Input::Keys(Keys::new([(1, &b"secret"[..])])));
        desk.give(registrar::Input::Realm(realm()));
        desk.give(registrar::Input::Gained { range: KeyRange::FULL, lease: lease() });
        desk
    }

    /// A message by a connection; the client counts them as we do.
    pub fn from(&mut self, caller: Caller, number: u64, mut message: v1::NotifyUp) {
        message.contact = number;
        let message = Box::new(message);
        self.give(registrar::Input::Up { caller, channel: channel(number), lease: lease(), message });
    }

    /// A handshake; its grant.
    pub fn hello(&mut self, number: u64, nonce: u64, previous: &Bytes) -> Option<v1::NotifyGrant> {
        let (previous, source) = (previous.clone(), Bytes::from_static(b"phone"));
        let hello = v1::NotifyHello { nonce, previous, source, persistent: true };
        self.from(ann(), number, v1::NotifyUp { hello: Some(hello), ..Default::default() });
        self.downs().into_iter().find_map(|down| down.grant)
    }

    /// What was sent to clients.
    pub fn downs(&mut self) -> Vec<v1::NotifyDown> {
        let (sent, rest) = self.take().into_iter().partition(|out| matches!(out, registrar::Output::Send { .. }));
        self.out = rest;
        let message = |out| match out {
            registrar::Output::Send { message, .. } => *message,
            _ => unreachable!(),
        };
        Vec::into_iter(sent).map(message).collect()
    }

    pub fn refusals(&mut self) -> Vec<v1::NotifyRefused> {
        self.downs().into_iter().filter_map(|down| down.refusal.map(|refusal| refusal.reason())).collect()
    }

    pub fn register(&mut self, grant: &v1::NotifyGrant, number: u64, op: u64, object: &'static [u8]) {
        let interest = v1::ObjectInterest { object: object.into(), known_version: 0 };
        let change = Some(v1::registration_change::Change::Register(interest));
        let changes = vec![v1::RegistrationChange { change }];
        let token = grant.token.clone();
        self.from(ann(), number, v1::NotifyUp { token, latest: op, first: op, changes, ..Default::default() });
    }

    pub fn ack(&mut self, grant: &v1::NotifyGrant, number: u64, object: &'static [u8], version: u64, unknown: u64) {
        let acks = vec![v1::NotificationAck { object: object.into(), version, unknown }];
        let token = grant.token.clone();
        self.from(ann(), number, v1::NotifyUp { token, first: 100, latest: 99, acks, ..Default::default() });
    }

    /// Answers every call to matchers with a version (0 = none is known).
    pub fn match_all(&mut self, version: u64) -> Vec<v1::MatchRegistration> {
        let mut calls = Vec::new();
        loop {
            let mut ids: Vec<CallId> = Vec::new();
            let rest = self.take().into_iter().filter_map(|out| match out {
                registrar::Output::ToMatcher { id, call, .. } => {
                    ids.push(id);
                    calls.push(*call);
                    None
                }
                other => Some(other),
            });
            self.out = rest.collect();
            if ids.is_empty() {
                return calls;
            }
            for id in ids {
                self.give(registrar::Input::Matched { id, outcome: Outcome::Done, version });
            }
        }
    }

    /// Answers a collection that asks whether the lease held; whether one did.
    pub fn confirm(&mut self, held: bool) -> bool {
        let asks = |out: &registrar::Output| matches!(out, registrar::Output::Confirm { .. });
        let asked = self.out.iter().position(asks).map(|at| self.out.remove(at));
        let Some(registrar::Output::Confirm { id, .. }) = asked else { return false };
        self.give(registrar::Input::Confirmed { id, held });
        true
    }

    pub fn key_of(&self, grant: &v1::NotifyGrant) -> ClientKey {
        let sealed = v1::SealedNotifyToken::decode(grant.token.clone()).unwrap();
        let body = v1::NotifyTokenBody::decode(sealed.body).unwrap();
        ClientKey::of_message(body.client.as_ref(), 0).unwrap()
    }

    /// A matcher's notification; how it was answered.
    pub fn notify(&mut self, key: &ClientKey, object: &'static [u8], version: u64, hint: bool) -> Option<Outcome> {
        let notify = v1::ClientNotify {
            realm: wire_realm(),
            client: Some(key.to_message()),
            object: object.into(),
            version,
            hint,
            ..Default::default()
        };
        let request = RequestId(77);
        self.give(registrar::Input::Notify { request, lease: lease(), notify: Box::new(notify) });
        let answered = self.out.iter().position(|out| matches!(out, registrar::Output::Notified { .. }))?;
        match self.out.remove(answered) {
            registrar::Output::Notified { outcome, .. } => Some(outcome),
            _ => None,
        }
    }
}

impl Desk<Matcher> {
    pub fn matcher(options: matcher::Options) -> Desk<Matcher> {
        let mut desk = Desk::seat(Matcher::new(options));
        desk.give(matcher::Input::Realm(realm()));
        desk.give(matcher::Input::Gained { range: KeyRange::FULL, lease: lease() });
        desk
    }

    pub fn publish(&mut self, request: u64, object: &'static [u8], version: u64, source: &'static [u8]) {
        self.publish_by(false, request, object, version, source);
    }

    /// The same of what was held up on its way.
    pub fn publish_from_scratch(&mut self, request: u64, object: &'static [u8], version: u64) {
        self.publish_by(true, request, object, version, b"");
    }

    fn publish_by(&mut self, scratch: bool, request: u64, object: &'static [u8], version: u64, source: &'static [u8]) {
        let publication = v1::Publication {
            app: APP.into(),
            object: object.into(),
            version,
            source: source.into(),
            ..Default::default()
        };
        let call = v1::MatchPublication { realm: wire_realm(), publication: Some(publication), scratch };
        let request = RequestId(request);
        self.give(matcher::Input::Publish { request, lease: lease(), call: Box::new(call) });
    }

    pub fn registers(
        &mut self,
        request: u64,
        object: &'static [u8],
        client: &ClientKey,
        source: &'static [u8],
        seqno: u64,
    ) {
        let call = v1::MatchRegistration {
            realm: wire_realm(),
            client: Some(client.to_message()),
            object: object.into(),
            source: source.into(),
            seqno,
            registered: true,
        };
        let request = RequestId(request);
        self.give(matcher::Input::Register { request, lease: lease(), call: Box::new(call) });
    }

    /// Answers given so far: request, outcome, version, and whether they are guarded.
    pub fn answers(&mut self) -> Vec<(u64, Outcome, u64, bool)> {
        let (answers, rest) = self.take().into_iter().partition(|out| matches!(out, matcher::Output::Answer { .. }));
        self.out = rest;
        let answer = |out| match out {
            matcher::Output::Answer { request, guard, outcome, version } => {
                (request.0, outcome, version, guard.is_some())
            }
            _ => unreachable!(),
        };
        Vec::into_iter(answers).map(answer).collect()
    }

    /// Calls to registrars made so far.
    pub fn tells(&mut self) -> Vec<(CallId, v1::ClientNotify)> {
        let (calls, rest) = self.take().into_iter().partition(|out| matches!(out, matcher::Output::ToRegistrar { .. }));
        self.out = rest;
        let call = |out| match out {
            matcher::Output::ToRegistrar { id, notify, .. } => (id, *notify),
            _ => unreachable!(),
        };
        Vec::into_iter(calls).map(call).collect()
    }

    /// Answers all calls to registrars; whom they were about, and which version.
    pub fn tell_all(&mut self, outcome: Outcome) -> Vec<(String, u64)> {
        let calls = self.tells();
        for (id, _) in &calls {
            self.give(matcher::Input::Notified { id: *id, outcome });
        }
        calls.into_iter().map(|(_, notify)| (notify.client.unwrap().user, notify.version)).collect()
    }
}
