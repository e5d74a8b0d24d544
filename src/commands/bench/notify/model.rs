//! A registrar in this process, for what it holds and what messages cost it.

use bytes::Bytes;
use tidings_base::{Class, Error, KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Wall};
use tidings_notify::Outcome;
use tidings_notify::names::{Caller, Channel};
use tidings_notify::registrar::{Input, Options, Output, Registrar};
use tidings_notify::rows::{Realm, StoreReply, StoreRequest};
use tidings_notify::token::Keys;
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// Changes of one message: as many as it may have.
pub const AT_ONCE: usize = 512;

/// A registrar whose store and matchers say yes to everything.
pub struct Model {
    pub registrar: Registrar,
    lease: LeaseNumber,
}

impl Model {
    pub fn new() -> Result<Model, Error> {
        let lease =
            LeaseNumber::new(1).ok_or_else(|| Error::new("bench.failed", Class::Failed, "there is no first lease"))?;
        let options = Options { max_ids: u32::MAX, max_pending: usize::MAX, ..Options::default() };
        let mut model = Model { registrar: Registrar::new(options), lease };
        model.give(Input::Keys(Keys::new([(1, &[7; 32][..])])));
        model.give(Input::Realm(Realm { incarnation: 1, ..Realm::default() }));
        model.give(Input::Gained { range: KeyRange::FULL, lease });
        Ok(model)
    }

    /// A client comes, registers, and has dealt with all it was told; its token.
    pub fn connect(&mut self, client: usize, registrations: usize) -> Bytes {
        let contact = 1;
        let hello = v1::NotifyHello { nonce: client as u64 + 1, persistent: true, ..Default::default() };
        let said = self.up(client, v1::NotifyUp { hello: Some(hello), contact, ..Default::default() });
        let token = said.into_iter().find_map(|down| down.grant).unwrap_or_default().token;
        for first in (0..registrations).step_by(AT_ONCE) {
            let objects = first..registrations.min(first + AT_ONCE);
            let changes = objects.map(|object| register(client * registrations + object)).collect();
            self.say(client, &token, first as u64 + 1, changes);
        }
        token
    }

    /// A message with changes; what the client is told is acknowledged.
    pub fn say(&mut self, client: usize, token: &Bytes, first: u64, changes: Vec<v1::RegistrationChange>) {
        let (token, latest, contact) = (token.clone(), first + changes.len() as u64 - 1, 1);
        let told = self
            .up(client, v1::NotifyUp { token: token.clone(), latest, first, changes, contact, ..Default::default() });
        let acks = told.into_iter().flat_map(|down| down.notifications);
        let acks = acks.map(|v1::Notification { object, version, unknown, .. }| v1::NotificationAck {
            object,
            version,
            unknown,
        });
        let acks = acks.collect();
        self.up(client, v1::NotifyUp { token, latest, first: latest + 1, acks, contact, ..Default::default() });
    }

    pub fn up(&mut self, client: usize, message: v1::NotifyUp) -> Vec<v1::NotifyDown> {
        let caller = Caller { app: super::tidings::APP.to_owned(), principal: format!("user-{client}") };
        let channel = Channel { node: 1, number: client as u64 };
        self.give(Input::Up { caller, channel, lease: self.lease, message: Box::new(message) })
    }

    fn give(&mut self, input: Input) -> Vec<v1::NotifyDown> {
        let now = Now { mono: Mono(1), wall: Wall(1) };
        let (mut inputs, mut said) = (vec![input], Vec::new());
        while let Some(input) = inputs.pop() {
            let mut out = Outbox::new();
            self.registrar.handle(now, input, &mut out);
            for output in out {
                match output {
                    Output::Send { message, .. } => said.push(*message),
                    Output::ToMatcher { id, .. } => {
                        inputs.push(Input::Matched { id, outcome: Outcome::Done, version: 0 });
                    }
                    Output::Store { id, request } => {
                        let reply = match request {
                            StoreRequest::Write(_) => StoreReply::Written,
                            StoreRequest::Get(_) => StoreReply::Row(None),
                            StoreRequest::Scan(_) => StoreReply::Rows(v1::Rows::default()),
                        };
                        inputs.push(Input::Stored { id, result: Ok(reply) });
                    }
                    _ => {}
                }
            }
        }
        said
    }
}

fn register(object: usize) -> v1::RegistrationChange {
    let object = super::tidings::name(object).into();
    let change = Change::Register(v1::ObjectInterest { object, known_version: 0 });
    v1::RegistrationChange { change: Some(change) }
}
