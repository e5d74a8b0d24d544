//! Calls between machines: to matchers and to registrars, here or on another node, in batches; each answered on its own.

use super::hub::Hub;
use crate::connection::Responder;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Error, KeyHash, LeaseNumber};
use tidings_notify::names::{client_hash, object_hash};
use tidings_notify::{CallId, Outcome, RequestId};
use tidings_notify::{bridge, matcher, registrar};
use tidings_wire::v1::match_call::Call as MatchCall;
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, error, v1};
use tokio::sync::mpsc;

/// How long a batch may take as a whole: machines ask again long before that.
const PATIENCE: Duration = Duration::from_secs(10);

/// A call of one machine to another.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Register(Box<v1::MatchRegistration>),
    Publish(Box<v1::MatchPublication>),
    Notify(Box<v1::ClientNotify>),
}

/// Whom the answer to a call is for; hints have none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    Registrar(CallId),
    Bridge(CallId),
    Matcher(CallId),
    Nobody,
}

/// An answer to the call of this number in its batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    id: u64,
    outcome: Outcome,
    version: u64,
}

/// Calls that the machines here have not answered yet.
#[derive(Default)]
pub(super) struct Asked {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
}

/// Who waits for an answer.
enum Waiting {
    /// The call's number in its batch, and who gathers the batch's answers.
    Batch(u64, mpsc::UnboundedSender<Answer>),
    /// A machine here.
    Here(Origin),
}

impl Asked {
    fn begin(&self, waiting: Waiting) -> RequestId {
        let request = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiting.lock().insert(request, waiting);
        RequestId(request)
    }

    fn end(&self, RequestId(request): RequestId) -> Option<Waiting> {
        self.waiting.lock().remove(&request)
    }
}

impl Call {
    /// Where it goes.
    fn key(&self) -> Option<KeyHash> {
        match self {
            Call::Register(call) => call.client.as_ref().map(|client| object_hash(&client.app, &call.object)),
            Call::Publish(call) => {
                call.publication.as_ref().map(|publication| object_hash(&publication.app, &publication.object))
            }
            Call::Notify(notify) => notify.client.as_ref().map(|client| client_hash(&client.app, &client.user)),
        }
    }

    fn is_hint(&self) -> bool {
        matches!(self, Call::Notify(notify) if notify.hint)
    }
}

impl Hub {
    /// Answers the machine that asked.
    pub(super) async fn answered(&self, origin: Origin, outcome: Outcome, version: u64) {
        match origin {
            Origin::Registrar(id) => self.registrar(registrar::Input::Matched { id, outcome, version }).await,
            Origin::Bridge(id) => self.bridge(bridge::Input::Matched { id, outcome }).await,
            Origin::Matcher(id) => self.matcher(matcher::Input::Notified { id, outcome }).await,
            Origin::Nobody => {}
        }
    }

    /// The same, without waiting: from one machine to another.
    pub(super) fn answered_soon(self: &Arc<Self>, origin: Origin, outcome: Outcome, version: u64) {
        let told = match origin {
            Origin::Registrar(id) => self.tell_registrar(registrar::Input::Matched { id, outcome, version }),
            Origin::Bridge(id) => self.tell_bridge(bridge::Input::Matched { id, outcome }),
            Origin::Matcher(id) => self.tell_matcher(matcher::Input::Notified { id, outcome }),
            Origin::Nobody => true,
        };
        if !told {
            let hub = self.clone();
            self.spawn(async move { hub.answered(origin, outcome, version).await });
        }
    }

    /// A machine here has answered a call.
    pub(super) fn answer(self: &Arc<Self>, request: RequestId, outcome: Outcome, version: u64) {
        match self.asked.end(request) {
            Some(Waiting::Here(origin)) => self.answered_soon(origin, outcome, version),
            Some(Waiting::Batch(id, answers)) => {
                // Who does not wait any more needs no answer.
                let _ = answers.send(Answer { id, outcome, version });
            }
            None => {}
        }
    }

    /// Gives a call of a machine here to another one here, under the lease of its key; whether there was room for it.
    pub(super) fn give_here(&self, lease: LeaseNumber, origin: Origin, call: Call) -> bool {
        let request = match call.is_hint() {
            true => RequestId(0),
            false => self.asked.begin(Waiting::Here(origin)),
        };
        let given = match call {
            Call::Register(call) => self.tell_matcher(matcher::Input::Register { request, lease, call }),
            Call::Publish(call) => self.tell_matcher(matcher::Input::Publish { request, lease, call }),
            Call::Notify(notify) => self.tell_registrar(registrar::Input::Notify { request, lease, notify }),
        };
        if !given {
            self.asked.end(request);
        }
        given
    }

    /// Gives a call to the machine here, if its key is held here (F1: from before its first read).
    async fn take(&self, id: u64, call: Call, answers: &mpsc::UnboundedSender<Answer>) {
        let Some(lease) = call.key().and_then(|key| self.lease(key)) else {
            let _ = answers.send(Answer { id, outcome: Outcome::Moved, version: 0 });
            return;
        };
        let request = match call.is_hint() {
            true => RequestId(0),
            false => self.asked.begin(Waiting::Batch(id, answers.clone())),
        };
        match call {
            Call::Register(call) => self.matcher(matcher::Input::Register { request, lease, call }).await,
            Call::Publish(call) => self.matcher(matcher::Input::Publish { request, lease, call }).await,
            Call::Notify(notify) => self.registrar(registrar::Input::Notify { request, lease, notify }).await,
        }
    }

    /// Takes a batch to its owner, and the answers back, as they come. Whatever is not answered has failed.
    pub(super) async fn deliver(&self, address: &str, batch: Vec<(Origin, Call)>) {
        let mut open: BTreeMap<u64, Origin> = BTreeMap::new();
        let mut calls = Vec::with_capacity(batch.len());
        for (id, (origin, call)) in (1..).zip(batch) {
            if !call.is_hint() {
                open.insert(id, origin);
            }
            calls.push((id, call));
        }
        let delivered = async {
            match address == self.told.address {
                true => self.deliver_here(calls, &mut open).await,
                false => self.deliver_there(address, calls, &mut open).await,
            }
        };
        match tokio::time::timeout(PATIENCE, delivered).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(address, %error, "notify: a batch was not delivered"),
            Err(_) => tracing::debug!(address, "notify: a batch was not answered in time"),
        }
        for origin in open.into_values() {
            self.answered(origin, Outcome::Failed, 0).await;
        }
    }

    async fn deliver_here(&self, calls: Vec<(u64, Call)>, open: &mut BTreeMap<u64, Origin>) -> Result<(), Error> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        for (id, call) in calls {
            self.take(id, call, &sender).await;
        }
        drop(sender);
        while let Some(answer) = answers.recv().await {
            self.close(answer, open).await;
        }
        Ok(())
    }

    async fn deliver_there(
        &self,
        address: &str,
        calls: Vec<(u64, Call)>,
        open: &mut BTreeMap<u64, Origin>,
    ) -> Result<(), Error> {
        let peers = self.stored()?.peers().clone();
        for message in messages(calls) {
            let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(message) });
            let mut frames = peers.begin(address, body, PATIENCE).await?;
            while let Some(frame) = frames.next().await {
                let Body::Notify(v1::NotifyMessage { message: Some(message), .. }) = frame? else { continue };
                for answer in answers_of(message) {
                    self.close(answer, open).await;
                }
            }
        }
        Ok(())
    }

    async fn close(&self, answer: Answer, open: &mut BTreeMap<u64, Origin>) {
        if let Some(origin) = open.remove(&answer.id) {
            self.answered(origin, answer.outcome, answer.version).await;
        }
    }
}

/// Answers a batch of another node, as its calls are answered here.
pub(super) async fn serve(hub: Arc<Hub>, message: Message, mut responder: Responder) {
    let matches = matches!(message, Message::Match(_));
    let calls = calls_of(message);
    let mut open = calls.iter().filter(|(_, call)| !call.is_hint()).count();
    let (sender, mut answers) = mpsc::unbounded_channel();
    for (id, call) in calls {
        hub.take(id, call, &sender).await;
    }
    drop(sender);
    let mut ready = Vec::new();
    while open > 0 && answers.recv_many(&mut ready, open).await > 0 {
        open = open.saturating_sub(ready.len());
        let frame = frame(matches, ready.drain(..));
        if open == 0 {
            return responder.reply(frame);
        }
        if responder.send(frame).await.is_err() {
            return;
        }
    }
    match open {
        0 => responder.reply(frame(matches, std::iter::empty())),
        _ => responder.fail(error::going_away(None)),
    }
}

fn frame(matches: bool, answers: impl Iterator<Item = Answer>) -> Body {
    let message = match matches {
        true => Message::Matched(v1::MatchAnswers {
            answers: answers
                .map(|Answer { id, outcome, version }| {
                    let (outcome, _) = outcome.to_message();
                    v1::MatchAnswer { id, outcome: outcome.into(), version }
                })
                .collect(),
        }),
        false => Message::Notified(v1::NotifyAnswers {
            answers: answers
                .map(|Answer { id, outcome, .. }| {
                    let (outcome, seqno) = outcome.to_message();
                    v1::NotifyAnswer { id, outcome: outcome.into(), seqno }
                })
                .collect(),
        }),
    };
    Body::Notify(v1::NotifyMessage { caller: None, message: Some(message) })
}

fn answers_of(message: Message) -> Vec<Answer> {
    match message {
        Message::Matched(matched) => {
            let answer = |answer: v1::MatchAnswer| {
                let outcome = Outcome::of_message(answer.outcome(), 0);
                Answer { id: answer.id, outcome, version: answer.version }
            };
            matched.answers.into_iter().map(answer).collect()
        }
        Message::Notified(notified) => {
            let answer = |answer: v1::NotifyAnswer| {
                let outcome = Outcome::of_message(answer.outcome(), answer.seqno);
                Answer { id: answer.id, outcome, version: 0 }
            };
            notified.answers.into_iter().map(answer).collect()
        }
        _ => Vec::new(),
    }
}

/// The calls of a message; what cannot be read is left out, and so fails.
fn calls_of(message: Message) -> Vec<(u64, Call)> {
    match message {
        Message::Match(batch) => {
            let call = |v1::MatchCall { id, call }: v1::MatchCall| match call? {
                MatchCall::Registration(call) => Some((id, Call::Register(Box::new(call)))),
                MatchCall::Publication(call) => Some((id, Call::Publish(Box::new(call)))),
            };
            batch.calls.into_iter().filter_map(call).collect()
        }
        Message::Notify(batch) => {
            batch.notifications.into_iter().map(|notify| (notify.id, Call::Notify(Box::new(notify)))).collect()
        }
        _ => Vec::new(),
    }
}

/// The messages that calls travel in: one of each kind.
fn messages(calls: Vec<(u64, Call)>) -> Vec<Message> {
    let (mut matches, mut notifications) = (Vec::new(), Vec::new());
    for (id, call) in calls {
        match call {
            Call::Register(call) => matches.push(v1::MatchCall { id, call: Some(MatchCall::Registration(*call)) }),
            Call::Publish(call) => matches.push(v1::MatchCall { id, call: Some(MatchCall::Publication(*call)) }),
            Call::Notify(notify) => notifications.push(v1::ClientNotify { id, ..*notify }),
        }
    }
    let mut messages = Vec::new();
    if !matches.is_empty() {
        messages.push(Message::Match(v1::MatchBatch { calls: matches }));
    }
    if !notifications.is_empty() {
        messages.push(Message::Notify(v1::NotifyBatch { notifications }));
    }
    messages
}
