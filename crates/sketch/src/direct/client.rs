//! A client of D-Prophecy: asks all replicas what they remember, and takes what enough of them say; otherwise has the read ordered.
//!
//! Its requests are dealt with one at a time and in their order (§4.2), so that what a client asked first it is answered first.

use super::{Digest, Question, Remembered, Word};
use crate::group::{self, Group, Misfit};
use crate::mutant::Mutant;
use crate::sigma::Sigma;
use crate::sketcher::How;
use crate::unforeseen::Unforeseen;
use crate::{CallId, ReplicaId, RequestId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::bounded::BoundedQueue;
use tidings_base::{Machine, Mono, Now, Outbox};

/// How a client asks.
#[derive(Clone, Debug)]
pub struct Options {
    /// How its group is asked. Every client of the group must say the same of `reads_pass_by`: with it 2f + 1 equal words and as
    /// many equal replies are needed, without it (the strict mode) the words of all replicas, and f + 1 replies.
    pub group: group::Options,
    /// How long a fast read may take; then it is ordered.
    pub patience: Duration,
    /// The most requests that wait for their turn; more are refused.
    pub most_waiting: usize,
    /// Makes the choice of who executes unforeseeable. It arrives as input; no two machines share it.
    pub secret: [u8; 32],
}

impl Options {
    /// The usual: patience well above what a healthy replica takes, well below what a person waits for.
    pub fn of(group: group::Options, secret: [u8; 32]) -> Options {
        Options { group, patience: Duration::from_millis(500), most_waiting: 1_024, secret }
    }
}

/// What a client's user asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its name until it is answered.
    pub id: RequestId,
    /// Whether it changes nothing.
    pub read: bool,
    /// What is asked.
    pub request: Bytes,
}

/// What a driver brings.
#[derive(Debug)]
pub enum Input {
    /// Ask the group.
    Ask(Ask),
    /// Nobody waits for this request any more: if it has not been begun, it is not.
    Forget(RequestId),
    /// What a replica says to a fast read.
    Word(Word),
    /// What a replica says to an ordered command.
    Reply(CallId, group::Reply<Bytes>),
    /// A replica could not be asked the question with this nonce.
    Unasked(u64, ReplicaId),
}

/// What a driver must do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask a replica what it remembers.
    Fast(ReplicaId, Question),
    /// Send a command to a replica, as [`group::Output::Send`] says.
    Send {
        /// To whom.
        to: ReplicaId,
        /// For which call.
        call: CallId,
        /// For which request.
        id: RequestId,
        /// What names the command.
        nonce: u64,
        /// Whether the replica answers in full.
        whole: bool,
        /// The command.
        request: Bytes,
    },
    /// A request is answered.
    Answer {
        /// Which one.
        id: RequestId,
        /// The answer.
        response: Bytes,
        /// Fast, or agreed on now.
        how: How,
        /// Where it was read or executed in the group's order.
        sigma: Option<Sigma>,
    },
    /// A request is not answered.
    Refuse(RequestId, Refusal),
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many wait.
    #[error("too many requests wait for their turn; ask again later")]
    Busy,
    /// The group has no answer.
    #[error("{0}")]
    Group(group::Refusal),
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that were tried fast.
    pub tried_fast: u64,
    /// Those of them that were answered so.
    pub fast: u64,
    /// Reads that were ordered.
    pub ordered_reads: u64,
}

/// A fast read under way.
#[derive(Debug)]
struct Fast {
    nonce: u64,
    request: Bytes,
    key: Digest,
    executor: ReplicaId,
    until: Mono,
    /// Of each replica its first word: what it remembers.
    words: BTreeMap<ReplicaId, Option<Remembered>>,
    /// What the executor answered, and its sketch.
    answer: Option<(Bytes, Digest)>,
}

#[derive(Debug)]
enum Way {
    Fast(Fast),
    Ordered,
}

enum Verdict {
    Accept(Bytes, Remembered),
    /// There will be no quorum: a transition, a liar, or replicas that are not equally far.
    Hopeless,
    Open,
}

/// One client of one group.
#[derive(Debug)]
pub struct Client {
    options: Options,
    quorum: u16,
    group: Group<Bytes, Bytes>,
    under_way: Option<(RequestId, Way)>,
    waiting: BoundedQueue<Ask>,
    /// Of those that wait: who is not to be begun.
    forgotten: BTreeSet<RequestId>,
    last_nonce: u64,
    last_call: u64,
    unforeseen: Unforeseen,
    counts: Counts,
}

type Out = Outbox<Output>;

impl Client {
    /// A client of a group, if D-Prophecy is possible there.
    pub fn new(options: Options) -> Result<Client, Misfit> {
        let quorum = options.group.kind.fast_quorum(options.group.replicas)?;
        let short = options.group.mutant == Some(Mutant::FastQuorumShort);
        Ok(Client {
            quorum: if short { options.group.kind.faults() + 1 } else { quorum },
            group: Group::new(options.group.clone())?,
            under_way: None,
            waiting: BoundedQueue::new(options.most_waiting),
            forgotten: BTreeSet::new(),
            last_nonce: options.group.last_nonce,
            last_call: 0,
            unforeseen: Unforeseen::new(&options.secret),
            counts: Counts::default(),
            options,
        })
    }

    /// How often what happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    fn mutant(&self) -> Option<Mutant> {
        self.options.group.mutant
    }

    fn ask(&mut self, now: Now, ask: Ask, out: &mut Out) {
        match self.waiting.push(ask) {
            Ok(()) => self.begin_next(now, out),
            Err(full) => out.put(Output::Refuse(full.0.id, Refusal::Busy)),
        }
    }

    fn begin_next(&mut self, now: Now, out: &mut Out) {
        if self.under_way.is_some() {
            return;
        }
        let ask = loop {
            let Some(ask) = self.waiting.pop() else { return };
            if !self.forgotten.remove(&ask.id) {
                break ask;
            }
        };
        if ask.read { self.ask_all(now, ask, out) } else { self.order(now, ask.id, ask.request, out) }
    }

    /// All are asked what they remember, one of them to execute.
    fn ask_all(&mut self, now: Now, ask: Ask, out: &mut Out) {
        self.counts.tried_fast += 1;
        self.last_nonce += 1;
        let (nonce, client, request) = (self.last_nonce, self.options.group.client, ask.request);
        let executor = ReplicaId(self.unforeseen.below(u64::from(self.options.group.replicas)) as u16);
        for to in (0..self.options.group.replicas).map(ReplicaId) {
            let question = Question { client, nonce, execute: to == executor, request: request.clone() };
            out.put(Output::Fast(to, question));
        }
        let fast = Fast {
            nonce,
            key: Digest::of_request(&request),
            request,
            executor,
            until: now.mono + self.options.patience,
            words: BTreeMap::new(),
            answer: None,
        };
        self.under_way = Some((ask.id, Way::Fast(fast)));
    }

    /// Rule F: a word of another group, to another client or to another question is none, and each replica has one.
    fn heard(&mut self, now: Now, word: Word, out: &mut Out) {
        let (group, mutant) = (&self.options.group, self.options.group.mutant);
        let Some((_, Way::Fast(fast))) = &mut self.under_way else { return };
        let ours = word.group == group.group && word.client == group.client && word.from.0 < group.replicas;
        let asked = word.nonce == fast.nonce || mutant == Some(Mutant::FastNonceIgnored);
        if !ours || !asked || fast.words.contains_key(&word.from) {
            return;
        }
        fast.words.insert(word.from, word.remembered);
        if word.from == fast.executor {
            fast.answer = word.response.map(|response| {
                let sketch = Digest::of_response(fast.key, &response);
                (response, sketch)
            });
        }
        self.conclude(now, out);
    }

    fn unasked(&mut self, now: Now, nonce: u64, replica: ReplicaId, out: &mut Out) {
        let Some((_, Way::Fast(fast))) = &mut self.under_way else { return };
        if nonce == fast.nonce && replica.0 < self.options.group.replicas {
            fast.words.entry(replica).or_insert(None);
            self.conclude(now, out);
        }
    }

    fn conclude(&mut self, now: Now, out: &mut Out) {
        let Some((id, Way::Fast(fast))) = &self.under_way else { return };
        let id = *id;
        match self.judge(fast) {
            Verdict::Open => {}
            Verdict::Hopeless => self.fall_back(now, out),
            Verdict::Accept(response, remembered) => {
                self.counts.fast += 1;
                let sigma = Some(remembered.sigma);
                self.end(now, Output::Answer { id, response, how: How::Fast, sigma }, out);
            }
        }
    }

    /// Rule H: enough replicas remember the same, and that is the sketch of the answer. Who executes is one of them by what it
    /// remembers: that its answer has this sketch says nothing about what it will say to the next read.
    fn judge(&self, fast: &Fast) -> Verdict {
        let answered = fast.words.contains_key(&fast.executor);
        let wanted = match &fast.answer {
            None if answered => return Verdict::Hopeless,
            Some((_, sketch)) if self.mutant() != Some(Mutant::BodyUnchecked) => Some(*sketch),
            _ => None,
        };
        let left = usize::from(self.options.group.replicas) - fast.words.len();
        let fits = |said: &&Remembered| wanted.is_none_or(|wanted| wanted == said.sketch);
        let counted = fast.words.values().flatten().filter(fits).map(|said| (self.count(fast, said), *said));
        let (best, said) = match counted.max() {
            Some((best, said)) => (best, Some(said)),
            None => (0, None),
        };
        match (&fast.answer, said) {
            _ if best + left < usize::from(self.quorum) => Verdict::Hopeless,
            (Some((response, _)), Some(said)) if best >= usize::from(self.quorum) => {
                Verdict::Accept(response.clone(), said)
            }
            _ => Verdict::Open,
        }
    }

    fn count(&self, fast: &Fast, said: &Remembered) -> usize {
        let equal = |(from, word): &(&ReplicaId, &Option<Remembered>)| match (self.mutant(), word) {
            (Some(Mutant::NullCounts), None) => true,
            (Some(Mutant::PlaceUnmatched), Some(other)) => other.sketch == said.sketch,
            (Some(Mutant::ExecutorTrusted), _) if **from == fast.executor => {
                fast.answer.as_ref().is_some_and(|(_, sketch)| *sketch == said.sketch)
            }
            (_, Some(other)) => other == said,
            (_, None) => false,
        };
        fast.words.iter().filter(equal).count()
    }

    /// The paper's transition: the read is issued again, and ordered.
    fn fall_back(&mut self, now: Now, out: &mut Out) {
        if let Some((id, Way::Fast(fast))) = self.under_way.take() {
            self.counts.ordered_reads += 1;
            self.order(now, id, fast.request, out);
        }
    }

    fn order(&mut self, now: Now, id: RequestId, request: Bytes, out: &mut Out) {
        self.last_call += 1;
        self.under_way = Some((id, Way::Ordered));
        self.tell_group(now, group::Input::Ask(CallId(self.last_call), request), out);
    }

    fn tell_group(&mut self, now: Now, input: group::Input<Bytes, Bytes>, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.group.handle(now, input, &mut outputs);
        self.of_group(now, outputs, out);
    }

    fn of_group(&mut self, now: Now, outputs: Outbox<group::Output<Bytes, Bytes>>, out: &mut Out) {
        for output in outputs {
            let Some((id, Way::Ordered)) = &self.under_way else { return };
            let id = *id;
            match output {
                group::Output::Send { to, call, nonce, whole, request } => {
                    out.put(Output::Send { to, call, id, nonce, whole, request });
                }
                group::Output::Done(_, answer, sigma) => {
                    self.end(now, Output::Answer { id, response: answer.response, how: How::Agreed, sigma }, out);
                }
                group::Output::Refused(_, why, _) => {
                    self.end(now, Output::Refuse(id, Refusal::Group(why)), out);
                }
            }
        }
    }

    fn end(&mut self, now: Now, last: Output, out: &mut Out) {
        self.under_way = None;
        out.put(last);
        self.begin_next(now, out);
    }
}

impl Machine for Client {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Out) {
        match input {
            Input::Ask(ask) => self.ask(now, ask, out),
            Input::Forget(id) if self.waiting.iter().any(|ask| ask.id == id) => {
                self.forgotten.insert(id);
            }
            Input::Forget(_) => {}
            Input::Word(word) => self.heard(now, word, out),
            Input::Reply(call, reply) => self.tell_group(now, group::Input::Reply(call, reply), out),
            Input::Unasked(nonce, replica) => self.unasked(now, nonce, replica, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.group.wake(now, &mut outputs);
        self.of_group(now, outputs, out);
        if let Some((_, Way::Fast(fast))) = &self.under_way
            && fast.until <= now.mono
        {
            self.fall_back(now, out);
        }
    }

    fn deadline(&self) -> Option<Mono> {
        let patience = match &self.under_way {
            Some((_, Way::Fast(fast))) => Some(fast.until),
            _ => None,
        };
        [patience, self.group.deadline()].into_iter().flatten().min()
    }
}
