//! A client of D-Prophecy (rule H): reads at the price of one, and nobody is trusted.
//!
//! ```text
//!   read ─▶ machine ─ Fast, signed ─▶ every replica, one executes ─ Word, MACed ─▶ machine ─▶ fast
//!              └ words that do not fit ─▶ ordered, as every `call` is ─ 2f + 1 equal replies ─▶ agreed
//! ```
//! In the strict mode a fast read needs the words of all replicas, and not of 2f + 1: one that is away, or lies, sends all reads
//! into the order. What is ordered needs 2f + 1 equal replies all the same, and not the f + 1 that the machine would be content
//! with there: other clients of the group read past the order, or by 2f + 1 words.
//!
//! The machine is [`tidings_sketch::direct::Client`]; here are its signatures and connections. Requests are dealt with one at
//! a time: who wants more at once has several names in the group. Reads never go back among all that went this way. Those of
//! [`crate::client`] go another, which asks what replicas hold and not what they remember: one that mixes both for the same
//! requests may read something older after something newer.

use crate::alarm::Alarm;
use crate::client::{Options, agreed, check_length, no_answer};
use crate::command::Signed;
use crate::frame::{self, Question, framed};
use crate::keys::{Purpose, random};
use crate::lines::{self, Line};
use crate::membership::{ClientSecrets, Membership};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidings_base::{Class, Error, Machine, Outbox};
use tidings_sketch::direct::client::{Ask, Input, Output, Refusal};
use tidings_sketch::direct::{self, Word};
use tidings_sketch::group::{self, Kind};
use tidings_sketch::replica::Command;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::{Answer, CallId, ReplicaId, RequestId};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub use tidings_sketch::direct::client::Counts;
pub use tidings_sketch::sketcher::How;

/// What a group answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The service's result.
    pub result: Bytes,
    /// Whether it is what enough replicas remember, or was agreed on now.
    pub how: How,
    /// Where it was read or executed in the order.
    pub sigma: Option<Sigma>,
}

type Ended = Result<(Bytes, How, Option<Sigma>), Refusal>;

/// The machine, and who waits for it.
struct Desk {
    machine: direct::Client,
    /// The question of the latest fast read, as it was signed.
    fast: Option<Signed>,
    /// The latest command that is ordered.
    ordered: Option<(CallId, Signed)>,
    /// In the strict mode: what was replied to it, until enough say the same.
    held: Option<Held>,
    waiting: BTreeMap<RequestId, oneshot::Sender<Ended>>,
    last_id: u64,
}

struct Shared {
    membership: Arc<Membership>,
    secrets: ClientSecrets,
    desk: Mutex<Desk>,
    replicas: Vec<Line>,
    alarm: Alarm,
}

/// Replies to one command that are kept from the machine until so many are equal.
#[derive(Default)]
struct Held {
    enough: usize,
    replies: BTreeMap<ReplicaId, frame::Reply>,
}

impl Held {
    /// Takes a reply, and gives all of them once enough are equal.
    fn take(&mut self, from: ReplicaId, mut reply: frame::Reply) -> Vec<(ReplicaId, frame::Reply)> {
        let place = |reply: &frame::Reply| (reply.group, reply.client, reply.sigma, reply.result);
        // The whole result, which one of them sends, is not lost if it replies again without it.
        let before = self.replies.get(&from).filter(|before| place(before) == place(&reply));
        reply.whole = reply.whole.or_else(|| before.and_then(|before| before.whole.clone()));
        let of_this = place(&reply);
        self.replies.insert(from, reply);
        if self.replies.values().filter(|reply| place(reply) == of_this).count() < self.enough {
            return Vec::new();
        }
        self.replies.clone().into_iter().collect()
    }
}

/// Whoever waits for a request. What nobody waits for any more is not begun.
struct Waits<'a>(&'a Shared, RequestId);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let id = self.1;
        self.0.step(|desk| desk.waiting.remove(&id).map(|_| Input::Forget(id)));
    }
}

/// A client of D-Prophecy, until it is dropped.
pub struct Client {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl Client {
    /// A client that connects to every replica and keeps at it. How long a read past the order may take,
    /// [`read_give_up`](Options::read_give_up), is how long a fast one may.
    pub fn start(membership: Arc<Membership>, secrets: ClientSecrets, options: &Options) -> Result<Client, Error> {
        Client::start_as(membership, secrets, options, false)
    }

    /// The same in the strict mode: a fast read needs the words of all replicas.
    pub fn start_strict(
        membership: Arc<Membership>,
        secrets: ClientSecrets,
        options: &Options,
    ) -> Result<Client, Error> {
        Client::start_as(membership, secrets, options, true)
    }

    fn start_as(
        membership: Arc<Membership>,
        secrets: ClientSecrets,
        options: &Options,
        strict: bool,
    ) -> Result<Client, Error> {
        let enough = 2 * usize::from(membership.faults()) + 1;
        let held = strict.then(|| Held { enough, replies: BTreeMap::new() });
        let group = group::Options {
            group: membership.number(),
            client: secrets.id,
            last_nonce: options.last_nonce,
            replicas: membership.size(),
            kind: Kind::Byzantine { faults: membership.faults(), reads_pass_by: !strict },
            resend: options.resend,
            give_up: options.give_up,
            mutant: None,
        };
        let asking = direct::Options { patience: options.read_give_up, ..direct::Options::of(group, random()?) };
        let machine = direct::Client::new(asking)
            .map_err(|misfit| Error::new("bft.misfit", Class::Invalid, misfit.to_string()))?;
        let desk = Desk { machine, fast: None, ordered: None, held, waiting: BTreeMap::new(), last_id: 0 };
        let (replicas, endings) = lines::draw(&membership);
        let shared = Arc::new(Shared { membership, secrets, desk: Mutex::new(desk), replicas, alarm: Alarm::new() });
        let at = shared.clone();
        let heard = move |from, frame| at.heard(from, frame);
        let mut tasks = lines::keep(&shared.membership, &shared.secrets, endings, options.reconnect, heard);
        tasks.spawn(keep_time(shared.clone()));
        Ok(Client { shared, _tasks: tasks })
    }

    /// Waits until so many replicas are connected.
    pub async fn connected(&mut self, replicas: usize) {
        lines::connected(&self.shared.replicas, replicas).await;
    }

    /// Reads fast if enough replicas remember the answer, otherwise in its order. Must change nothing.
    pub async fn read(&self, request: Bytes) -> Result<Answered, Error> {
        self.ask(true, request).await
    }

    /// Has a request ordered and executed.
    pub async fn call(&self, request: Bytes) -> Result<Answered, Error> {
        self.ask(false, request).await
    }

    /// How often what happened.
    pub fn counts(&self) -> Counts {
        self.shared.desk.lock().machine.counts()
    }

    async fn ask(&self, read: bool, request: Bytes) -> Result<Answered, Error> {
        check_length(&request)?;
        let (sender, receiver) = oneshot::channel();
        let mut waits = Waits(&self.shared, RequestId(0));
        self.shared.step(|desk| {
            desk.last_id += 1;
            let id = RequestId(desk.last_id);
            waits.1 = id;
            desk.waiting.insert(id, sender);
            Some(Input::Ask(Ask { id, read, request }))
        });
        // The machine answers every request; only a client that is being dropped does not.
        let ended = receiver.await.unwrap_or(Err(Refusal::Group(group::Refusal::Unreachable)));
        let (said, how, sigma) = ended.map_err(refused)?;
        // A verdict is of the order: a fast answer is the service's own, as it was remembered.
        let result = if how == How::Fast { said } else { agreed(said)? };
        Ok(Answered { result, how, sigma })
    }
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Group(refusal) => no_answer(refusal),
        Refusal::Busy => Error::new("bft.busy", Class::Refused, refusal.to_string())
            .hint("a client's requests are dealt with one at a time; use several clients"),
    }
}

impl Shared {
    /// Feeds the machine and performs what it wants.
    fn step(&self, input: impl FnOnce(&mut Desk) -> Option<Input>) {
        let desk = &mut *self.desk.lock();
        let (now, mut out, mut unasked) = (self.alarm.now(), Outbox::new(), VecDeque::new());
        match input(desk) {
            Some(input) => desk.machine.handle(now, input, &mut out),
            None => desk.machine.wake(now, &mut out),
        }
        loop {
            unasked.extend(out.drain().filter_map(|output| self.perform(desk, output)));
            // Whom a question does not reach is told one after the other: that may end a read and begin the next one.
            let Some((nonce, replica)) = unasked.pop_front() else { break };
            desk.machine.handle(now, Input::Unasked(nonce, replica), &mut out);
        }
        self.alarm.set_again();
    }

    /// Does one thing; says which fast question could not be asked, and whom.
    fn perform(&self, desk: &mut Desk, output: Output) -> Option<(u64, ReplicaId)> {
        match output {
            Output::Fast(to, question) => {
                let direct::Question { nonce, execute, request, .. } = question;
                if desk.fast.as_ref().is_none_or(|signed| signed.command.nonce != nonce) {
                    desk.fast = Some(self.signed(Purpose::Fast, nonce, request));
                }
                let line = self.replicas.get(usize::from(to.0)).filter(|line| line.is_connected());
                let asked = line.zip(desk.fast.clone()).is_some_and(|(line, signed)| {
                    line.try_send(framed(&Question::Fast { execute, signed }.encoded())).is_ok()
                });
                return (!asked).then_some((nonce, to));
            }
            Output::Send { to, call, nonce, whole, request, .. } => {
                if desk.ordered.as_ref().is_none_or(|(known, _)| *known != call) {
                    desk.ordered = Some((call, self.signed(Purpose::Order, nonce, request)));
                    if let Some(held) = &mut desk.held {
                        held.replies.clear();
                    }
                }
                if let Some(line) = self.replicas.get(usize::from(to.0))
                    && let Some((_, signed)) = desk.ordered.clone()
                {
                    // Who cannot be asked now is asked again by the timer.
                    let question = Question::Ask { purpose: Purpose::Order, whole, signed };
                    let _ = line.try_send(framed(&question.encoded()));
                }
            }
            Output::Answer { id, response, how, sigma } => end(desk, id, Ok((response, how, sigma))),
            Output::Refuse(id, refusal) => end(desk, id, Err(refusal)),
        }
        None
    }

    fn signed(&self, purpose: Purpose, nonce: u64, request: Bytes) -> Signed {
        let command = Command { client: self.secrets.id, nonce, request };
        Signed::new(&self.membership, &self.secrets.secret, purpose, command)
    }

    /// What a replica said, in a frame whose MAC is not verified yet.
    fn heard(&self, from: ReplicaId, bytes: Bytes) {
        match frame::Answer::read(bytes, &self.secrets.mac(from)) {
            Ok(Some(frame::Answer::Word(word))) => self.step(|_| {
                let frame::Word { group, client, nonce, remembered, response } = word;
                Some(Input::Word(Word { from, group, client, nonce, remembered, response }))
            }),
            Ok(Some(frame::Answer::Reply(reply))) => self.replied(from, reply),
            other => tracing::debug!(replica = from.0, ?other, "no proper answer"),
        }
    }

    fn replied(&self, from: ReplicaId, reply: frame::Reply) {
        let mut replies = vec![(from, reply)];
        {
            let desk = &mut *self.desk.lock();
            let asked = desk.ordered.as_ref().map(|(_, signed)| signed.command.nonce);
            if let Some(held) = &mut desk.held {
                let ours = replies.pop().filter(|(_, reply)| Some(reply.nonce) == asked);
                replies = ours.map(|(from, reply)| held.take(from, reply)).unwrap_or_default();
            }
        }
        for (from, reply) in replies {
            self.step(|desk| replied(desk, from, reply));
        }
    }
}

fn replied(desk: &Desk, from: ReplicaId, reply: frame::Reply) -> Option<Input> {
    let (call, signed) = desk.ordered.as_ref().filter(|(_, signed)| signed.command.nonce == reply.nonce)?;
    let frame::Reply { group, client, nonce, sigma, result, whole } = reply;
    let whole = whole.map(|whole| Answer { sketch: signed.sketch(&whole), keep: true, response: whole });
    Some(Input::Reply(*call, group::Reply { from, group, client, nonce, sigma, result, whole }))
}

fn end(desk: &mut Desk, id: RequestId, ended: Ended) {
    if let Some(waiting) = desk.waiting.remove(&id) {
        let _ = waiting.send(ended);
    }
}

/// Wakes the machine at its deadlines.
async fn keep_time(shared: Arc<Shared>) {
    shared.alarm.keep(|| shared.desk.lock().machine.deadline(), || shared.step(|_| None)).await;
}
