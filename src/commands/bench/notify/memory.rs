//! What a connected client costs its node, and what a million of them would cost a registrar.

use super::peer::{Hears, Peer, PeerConnection};
use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::bench::server::Server;
use crate::commands::probe;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use tidings_base::{Class, Error, KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Wall};
use tidings_notify::Outcome;
use tidings_notify::names::{Caller, Channel};
use tidings_notify::registrar::{Input, Options, Output, Registrar};
use tidings_notify::rows::{Realm, StoreReply, StoreRequest};
use tidings_notify::token::Keys;
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// Registrations of each client.
const REGISTRATIONS: usize = 5;
/// Clients that are being connected at once.
const CONNECTING: usize = 64;
/// Clients that the node is warmed with, so that what it allocates once is not counted.
const WARMING: usize = 200;
/// Files of a process that are not connections.
const OTHER_FILES: u64 = 300;
/// The registrar that is modelled.
const MILLION: f64 = 1e6;

/// Nobody publishes here.
struct Deaf;

impl Hears for Deaf {
    fn hears(&self, _: usize, _: u64) {}
}

type Connected = (Arc<dyn PeerConnection>, Box<dyn Send + Sync>);

async fn connected(peer: &dyn Peer, range: std::ops::Range<usize>) -> Result<Vec<Connected>, Error> {
    let connecting = range.map(|client| async move {
        let device = peer.device().await?;
        let objects = (client * REGISTRATIONS..(client + 1) * REGISTRATIONS).collect();
        let listening = device.listen(objects, Arc::new(Deaf)).await?;
        Ok::<_, Error>((device, listening))
    });
    futures::stream::iter(connecting).buffer_unordered(CONNECTING).try_collect().await
}

/// Growth of the node's resident memory for each client that is online and silent.
pub async fn connections(server: &Server, peer: &dyn Peer, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let files = probe::raise_open_files().saturating_sub(OTHER_FILES);
    let count = effort.notify.connections.min(usize::try_from(files).unwrap_or(usize::MAX));
    if count < effort.notify.connections / 2 {
        let message = format!("this process may open {files} files, too few for {} connections", count);
        return Err(Error::new("bench.few_files", Class::Refused, message).hint("Raise it with `ulimit -n`."));
    }
    let warming = WARMING.min(count / 4);
    let warm = connected(peer, 0..warming).await?;
    tokio::time::sleep(effort.notify.settling).await;
    let before = resident(server.pid())?;
    let held = connected(peer, warming..count).await?;
    tokio::time::sleep(effort.notify.settling).await;
    let grown = resident(server.pid())?.saturating_sub(before);
    let name =
        format!("notify: resident memory per idle WebSocket client with {REGISTRATIONS} registrations, of {count}");
    figures.add(&name, "B", Some(Goal::AtMost(12_288.0)), &[grown as f64 / held.len() as f64]);
    drop((warm, held));
    Ok(())
}

/// A registrar in this process, with so many clients online, each with objects of its own: memory for a million of them.
pub fn modelled(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let own = std::process::id();
    let mut model = Model::new()?;
    for client in 0..effort.notify.modelled / 10 {
        model.connect(client);
    }
    let (before, first) = (resident(own)?, model.registrar.clients());
    for client in effort.notify.modelled / 10..effort.notify.modelled {
        model.connect(client);
    }
    let grown = resident(own)?.saturating_sub(before);
    let each = grown as f64 / (model.registrar.clients() - first) as f64;
    let name = format!(
        "notify: registrar's state for 1,000,000 clients online with {REGISTRATIONS} objects each, from {}",
        effort.notify.modelled
    );
    figures.add(&name, "GB", Some(Goal::AtMost(1.5)), &[each * MILLION / 1e9]);
    Ok(())
}

/// A registrar whose store and matchers say yes to everything.
struct Model {
    registrar: Registrar,
    lease: LeaseNumber,
}

impl Model {
    fn new() -> Result<Model, Error> {
        let lease =
            LeaseNumber::new(1).ok_or_else(|| Error::new("bench.failed", Class::Failed, "there is no first lease"))?;
        let options = Options { max_ids: u32::MAX, max_pending: usize::MAX, ..Options::default() };
        let mut model = Model { registrar: Registrar::new(options), lease };
        model.give(Input::Keys(Keys::new([(1, &[7; 32][..])])));
        model.give(Input::Realm(Realm { incarnation: 1, ..Realm::default() }));
        model.give(Input::Gained { range: KeyRange::FULL, lease });
        Ok(model)
    }

    /// A client comes, registers, and has dealt with all it was told.
    fn connect(&mut self, client: usize) {
        let contact = 1;
        let hello = v1::NotifyHello { nonce: client as u64 + 1, persistent: true, ..Default::default() };
        let said = self.up(client, v1::NotifyUp { hello: Some(hello), contact, ..Default::default() });
        let token = said.into_iter().find_map(|down| down.grant).unwrap_or_default().token;
        let register = |object: usize| {
            let object = super::tidings::name(client * REGISTRATIONS + object).into();
            let change = Change::Register(v1::ObjectInterest { object, known_version: 0 });
            v1::RegistrationChange { change: Some(change) }
        };
        let latest = REGISTRATIONS as u64;
        let changes = (0..REGISTRATIONS).map(register).collect();
        let up = v1::NotifyUp { token: token.clone(), latest, first: 1, changes, contact, ..Default::default() };
        let told = self.up(client, up);
        let acks = told.into_iter().flat_map(|down| down.notifications);
        let acks = acks.map(|v1::Notification { object, version, unknown, .. }| v1::NotificationAck {
            object,
            version,
            unknown,
        });
        let acks = acks.collect();
        self.up(client, v1::NotifyUp { token, latest, first: latest + 1, acks, contact, ..Default::default() });
    }

    fn up(&mut self, client: usize, message: v1::NotifyUp) -> Vec<v1::NotifyDown> {
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

fn resident(pid: u32) -> Result<u64, Error> {
    let gone = || Error::new("bench.no_server", Class::Failed, "the server under test is gone");
    probe::resident(pid).ok_or_else(gone)
}
