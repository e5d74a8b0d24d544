//! A client: asks all replicas, and takes what enough of them say alike (rule F).
//!
//! Ordered commands need 2f + 1 equal replies, because reads may pass the order by: with f + 1, a read could come back older
//! than a write that had ended. A read asks everybody for what they hold now; 2f + 1 equal answers are taken, otherwise the
//! read is ordered. Whoever remembers the sketch of the right answer, as a sketcher does, may ask one replica alone.

use crate::alarm::Alarm;
use crate::command::{ALONE, LONGEST_REQUEST, Signed};
use crate::frame::{Answer as Frame, Question, Reply, Status, framed};
use crate::keys::{Purpose, random};
use crate::lines::{self, Line};
use crate::membership::{ClientSecrets, Membership};
use crate::seat::Verdict;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Now, Outbox};
use tidings_sketch::group::{self, Group, Kind, Output, Refusal};
use tidings_sketch::replica::Command;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::{Answer, CallId, ReplicaId};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// How a group is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nonces begin after this one. One that was used before would be answered with its old answer: count on, or use the time.
    pub last_nonce: u64,
    /// When those that have not answered are asked again.
    pub resend: Duration,
    /// When a command is given up; it may be executed all the same.
    pub give_up: Duration,
    /// When a read past the order is given up, and ordered instead.
    pub read_give_up: Duration,
    /// Between two attempts to reach a replica.
    pub reconnect: Duration,
}

impl Options {
    /// As for most clients: a resend is later than an order takes on a bad day without faults.
    pub fn after(last_nonce: u64) -> Options {
        Options {
            last_nonce,
            resend: Duration::from_secs(1),
            give_up: Duration::from_secs(30),
            read_give_up: Duration::from_millis(500),
            reconnect: Duration::from_millis(200),
        }
    }
}

/// What a group answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The service's result.
    pub result: Bytes,
    /// Where the command stands in the order; a read past the order stands nowhere.
    pub sigma: Option<Sigma>,
}

type Ended = Result<(Bytes, Option<Sigma>), Refusal>;

/// One of the two ways of asking, with its machine.
struct Way {
    purpose: Purpose,
    group: Group<Bytes, Bytes>,
    /// By nonce: which call it is, and the command as it was signed.
    asked: BTreeMap<u64, (CallId, Signed)>,
    waiting: BTreeMap<CallId, oneshot::Sender<Ended>>,
    calls: u64,
}

struct Shared {
    membership: Arc<Membership>,
    secrets: ClientSecrets,
    ways: Mutex<[Way; 2]>,
    replicas: Vec<Line>,
    /// By replica: the nonce of the question, and who waits.
    statuses: Mutex<BTreeMap<u16, (u64, oneshot::Sender<Status>)>>,
    /// By nonce: questions to one replica alone.
    alone: Mutex<BTreeMap<u64, Alone>>,
    last_alone: AtomicU64,
    alarm: Alarm,
}

/// A question to one replica.
struct Alone {
    to: ReplicaId,
    signed: Signed,
    waiting: oneshot::Sender<Bytes>,
}

/// Whoever asks one replica; what it asked is forgotten with it.
struct Asking<'a>(&'a Shared, u64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.alone.lock().remove(&self.1);
    }
}

/// A client of a group, until it is dropped.
pub struct Client {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

const ORDER: usize = 0;
const READ: usize = 1;

impl Client {
    /// A client that connects to every replica and keeps at it.
    pub fn start(membership: Arc<Membership>, secrets: ClientSecrets, options: &Options) -> Result<Client, Error> {
        let faults = membership.faults();
        let way = |purpose, kind, give_up| {
            let options = group::Options {
                group: membership.number(),
                client: secrets.id,
                last_nonce: options.last_nonce,
                replicas: membership.size(),
                kind,
                resend: options.resend,
                give_up,
                mutant: None,
            };
            let group =
                Group::new(options).map_err(|misfit| Error::new("bft.misfit", Class::Invalid, misfit.to_string()))?;
            Ok::<_, Error>(Way { purpose, group, asked: BTreeMap::new(), waiting: BTreeMap::new(), calls: 0 })
        };
        let ordered = Kind::Byzantine { faults, reads_pass_by: true };
        // A read past the order is a vote among servers that answer for themselves.
        let voted = Kind::Origins { faults, quorum: 2 * faults + 1 };
        let ways = [way(Purpose::Order, ordered, options.give_up)?, way(Purpose::Read, voted, options.read_give_up)?];
        let (replicas, endings) = lines::draw(&membership);
        let shared = Arc::new(Shared {
            membership,
            secrets,
            ways: Mutex::new(ways),
            replicas,
            statuses: Mutex::default(),
            alone: Mutex::default(),
            last_alone: AtomicU64::new(options.last_nonce),
            alarm: Alarm::new(),
        });
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

    /// Has a request ordered and executed.
    pub async fn call(&self, request: Bytes) -> Result<Answered, Error> {
        let ended = self.ask(ORDER, request).await?;
        let (bytes, sigma) = ended.map_err(no_answer)?;
        Ok(Answered { result: agreed(bytes)?, sigma })
    }

    /// Reads past the order if 2f + 1 replicas say the same, otherwise in its order. Must change nothing.
    pub async fn read(&self, request: Bytes) -> Result<Answered, Error> {
        if let Ok((bytes, sigma)) = self.ask(READ, request.clone()).await?
            && let Ok(Verdict::Done(result)) = Verdict::read(bytes)
        {
            return Ok(Answered { result, sigma });
        }
        self.call(request).await
    }

    /// What one replica answers to a read as things stand there; `None` if it cannot be asked, or says nothing that it could have
    /// said. It may be stale or made up: it is for whoever knows the sketch of the right answer. Waits until it is dropped.
    pub async fn one(&self, of: ReplicaId, request: Bytes) -> Option<Bytes> {
        let shared = &self.shared;
        let line = shared.replicas.get(usize::from(of.0)).filter(|line| line.is_connected())?;
        check_length(&request).ok()?;
        let nonce = ALONE | (shared.last_alone.fetch_add(1, Relaxed) + 1);
        let command = Command { client: shared.secrets.id, nonce, request };
        let signed = Signed::new(&shared.membership, &shared.secrets.secret, Purpose::Read, command);
        let question = Question::Ask { purpose: Purpose::Read, whole: true, signed: signed.clone() };
        let (sender, receiver) = oneshot::channel();
        shared.alone.lock().insert(nonce, Alone { to: of, signed, waiting: sender });
        let _asking = Asking(shared, nonce);
        line.try_send(framed(&question.encoded())).ok()?;
        match Verdict::read(receiver.await.ok()?) {
            Ok(Verdict::Done(result)) => Some(result),
            _ => None,
        }
    }

    /// How one replica is, if it says so in time.
    pub async fn status(&self, of: ReplicaId, patience: Duration) -> Option<Status> {
        // Drawn, so that an answer from before, which somebody kept, is none.
        let [a, b, c, d, e, f, g, h, ..] = random().ok()?;
        let nonce = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let (sender, receiver) = oneshot::channel();
        self.shared.statuses.lock().insert(of.0, (nonce, sender));
        let question = Question::Status { client: self.shared.secrets.id, nonce };
        self.shared.replicas.get(usize::from(of.0))?.try_send(framed(&question.encoded())).ok()?;
        tokio::time::timeout(patience, receiver).await.ok()?.ok()
    }

    /// How often each replica's word was not the group's.
    pub fn differed(&self) -> Vec<u64> {
        let ways = self.shared.ways.lock();
        let both = ways[ORDER].group.differed().iter().zip(ways[READ].group.differed());
        both.map(|(ordered, read)| ordered + read).collect()
    }

    async fn ask(&self, way: usize, request: Bytes) -> Result<Ended, Error> {
        check_length(&request)?;
        let (sender, receiver) = oneshot::channel();
        self.shared.step(way, |way| {
            way.calls += 1;
            let call = CallId(way.calls);
            way.waiting.insert(call, sender);
            Some(group::Input::Ask(call, request))
        });
        // The machine answers every call; only a client that is being dropped does not.
        Ok(receiver.await.unwrap_or(Err(Refusal::Unreachable)))
    }
}

impl Shared {
    fn now(&self) -> Now {
        self.alarm.now()
    }

    /// Feeds one machine and performs what it wants.
    fn step(&self, which: usize, input: impl FnOnce(&mut Way) -> Option<group::Input<Bytes, Bytes>>) {
        let mut ways = self.ways.lock();
        let way = &mut ways[which];
        let (now, mut out) = (self.now(), Outbox::new());
        match input(way) {
            Some(input) => way.group.handle(now, input, &mut out),
            None => way.group.wake(now, &mut out),
        }
        let mut unreached = Vec::new();
        for output in out.drain() {
            if let Some(unsent) = self.perform(way, output) {
                unreached.push(unsent);
            }
        }
        for (call, replica) in unreached {
            let mut out = Outbox::new();
            way.group.handle(now, group::Input::Failed(call, replica), &mut out);
            out.drain().for_each(|output| {
                self.perform(way, output);
            });
        }
        drop(ways);
        self.alarm.set_again();
    }

    /// Does one thing; says who could not be asked.
    fn perform(&self, way: &mut Way, output: Output<Bytes, Bytes>) -> Option<(CallId, ReplicaId)> {
        match output {
            Output::Send { to, call, nonce, whole, request } => {
                let (_, signed) = way.asked.entry(nonce).or_insert_with(|| {
                    let command = Command { client: self.secrets.id, nonce, request };
                    (call, Signed::new(&self.membership, &self.secrets.secret, way.purpose, command))
                });
                let question = Question::Ask { purpose: way.purpose, whole, signed: signed.clone() };
                let sent =
                    self.replicas.get(usize::from(to.0)).map(|queue| queue.try_send(framed(&question.encoded())));
                (!matches!(sent, Some(Ok(())))).then_some((call, to))
            }
            Output::Done(call, answer, sigma) => {
                end(way, call, Ok((answer.response, sigma)));
                None
            }
            Output::Refused(call, refusal, _) => {
                end(way, call, Err(refusal));
                None
            }
        }
    }

    /// What a replica said, in a frame whose MAC is not verified yet.
    fn heard(&self, from: ReplicaId, frame: Bytes) {
        let reply = match Frame::read(frame, &self.secrets.mac(from)) {
            Ok(Some(Frame::Reply(reply))) => reply,
            Ok(Some(Frame::Status(status))) => {
                let mut statuses = self.statuses.lock();
                // A client's MACs are the same in every life of its group.
                let ours = status.group == self.membership.number();
                let asked = statuses.get(&from.0).is_some_and(|(nonce, _)| *nonce == status.nonce);
                if ours
                    && asked
                    && let Some((_, waiting)) = statuses.remove(&from.0)
                {
                    let _ = waiting.send(status);
                }
                return;
            }
            other => return tracing::debug!(replica = from.0, ?other, "no proper answer"),
        };
        if reply.sigma.is_none() && reply.nonce & ALONE != 0 {
            return self.heard_alone(from, reply);
        }
        // Ordered replies have a place and reads have none, so that neither passes for the other.
        let way = if reply.sigma.is_some() { ORDER } else { READ };
        self.step(way, |way| {
            let (call, signed) = way.asked.get(&reply.nonce)?;
            let whole = reply.whole.map(|whole| Answer { sketch: signed.sketch(&whole), keep: true, response: whole });
            let reply = group::Reply {
                from,
                group: reply.group,
                client: reply.client,
                nonce: reply.nonce,
                sigma: reply.sigma,
                result: reply.result,
                whole,
            };
            Some(group::Input::Reply(*call, reply))
        });
    }

    /// What one replica answered that was asked alone. Somebody else's word for it is none.
    fn heard_alone(&self, from: ReplicaId, reply: Reply) {
        let ours = reply.group == self.membership.number() && reply.client == self.secrets.id;
        let Some(whole) = reply.whole.filter(|_| ours) else { return };
        let mut alone = self.alone.lock();
        let fits = |asked: &Alone| asked.to == from && asked.signed.sketch(&whole) == reply.result;
        if alone.get(&reply.nonce).is_some_and(fits)
            && let Some(asked) = alone.remove(&reply.nonce)
        {
            let _ = asked.waiting.send(whole);
        }
    }
}

fn end(way: &mut Way, call: CallId, ended: Ended) {
    way.asked.retain(|_, (asked, _)| *asked != call);
    if let Some(waiting) = way.waiting.remove(&call) {
        let _ = waiting.send(ended);
    }
}

/// Wakes the machines at their deadlines.
async fn keep_time(shared: Arc<Shared>) {
    let deadline = || shared.ways.lock().each_ref().map(|way| way.group.deadline()).into_iter().flatten().min();
    let wake = || [ORDER, READ].into_iter().for_each(|way| shared.step(way, |_| None));
    shared.alarm.keep(deadline, wake).await;
}

/// A request that is too long is refused where it is made.
pub(crate) fn check_length(request: &Bytes) -> Result<(), Error> {
    let message = || format!("a request has at most {LONGEST_REQUEST} bytes");
    if request.len() > LONGEST_REQUEST { Err(Error::new("bft.too_large", Class::Invalid, message())) } else { Ok(()) }
}

/// The group did not answer an ordered command.
pub(crate) fn no_answer(refusal: Refusal) -> Error {
    let class = if refusal == Refusal::Unreachable { Class::OutcomeUnknown } else { Class::Failed };
    Error::new("bft.no_answer", class, refusal.to_string())
        .hint("it may have been executed; `tidings bft status` shows who is there")
}

/// The service's result in what the group said of an ordered command.
pub(crate) fn agreed(said: Bytes) -> Result<Bytes, Error> {
    match Verdict::read(said) {
        Ok(Verdict::Done(result)) => Ok(result),
        Ok(Verdict::TooOld) => Err(Error::new("bft.too_old", Class::OutcomeUnknown, "the nonce is below the window")
            .hint("nonces must rise; is this client's key used in two places?")),
        Ok(Verdict::Behind) => Err(Error::new("bft.malformed", Class::Failed, "a command cannot be behind")),
        Err(malformed) => Err(Error::new("bft.malformed", Class::Failed, malformed.to_string())),
    }
}
