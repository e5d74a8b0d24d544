//! Algorithm 1 of the paper as a machine (§3.3.1), with what rules A, B and I–L add.
//!
//! ```text
//!   Ask ─ remembered? ─ no, black-listed, session too new ───────────────▶ Replicate ─▶ update ─▶ Answer
//!             │ yes                                                            ▲
//!             └──▶ Fast to one replica ─▶ equal to what is remembered *now*? ─ no
//!                                             └ yes ─▶ Answer
//! ```
//! Requests and answers are opaque: [`http`](crate::http) knows them. One machine is one thread's; several share a
//! [`History`].

mod clean;
mod limits;
mod lists;
mod replicas;
mod single;

pub use clean::Clean;
pub use limits::{Allowance, WHOLE};
pub use replicas::Standing;

use crate::group;
use crate::history::{Change, Entry, History, Visit};
use crate::mutant::Mutant;
use crate::sigma::{Sigma, Stamp};
use crate::sketch::Sketch;
use crate::{Answer, CallId, ReplicaId, RequestId};
use limits::Limits;
use lists::{Lists, Verdict};
use replicas::Replicas;
use single::{Doubt, Single};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Timers};

/// How a sketcher deals with its group.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many replicas there are.
    pub replicas: u16,
    /// How many of them may lie: no more than this are ejected.
    pub faults: u16,
    /// How a request that is no read is dealt with.
    pub writes: Writes,
    /// Whether a read that no quorum agrees on is answered by one replica and marked, instead of refused (rule E).
    pub unverified_rather_than_none: bool,
    /// How long a replica has to begin a fast answer; then the read is replicated.
    pub patience: Duration,
    /// How long a replica has that has begun to answer, or that nobody else is asked after.
    pub give_up: Duration,
    /// The most requests under way; more are refused.
    pub most_requests: usize,
    /// What each client may cause in reads that nothing is remembered of, or that go past the table (rule L).
    pub allowance: Option<Allowance>,
    /// Makes the choice of replicas unforeseeable. It arrives as input; no two machines share it.
    pub secret: [u8; 32],
    /// A rule left out, for tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Options {
    /// The usual for a group that orders what it is asked.
    pub fn of(replicas: u16, faults: u16, secret: [u8; 32]) -> Options {
        Options {
            replicas,
            faults,
            writes: Writes::Replicated,
            unverified_rather_than_none: false,
            // Well above what a healthy replica takes for a page, well below what a person waits for.
            patience: Duration::from_secs(1),
            // Long enough for a long page over a slow line, and for a write that takes its time.
            give_up: Duration::from_secs(10),
            most_requests: 65_536,
            allowance: Some(Allowance { burst: 256, every: Duration::from_millis(20) }),
            secret,
            mutant: None,
        }
    }
}

/// How a request that is no read is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The group orders and executes it.
    Replicated,
    /// It goes to exactly one replica and is marked unverified: origins do not order anything (rule E).
    One,
    /// It is refused.
    Refused,
}

/// Whether ranges of requests are this sketcher's (rule J). What it says holds at the instant of the call.
pub trait Ranges: fmt::Debug + Send + Sync {
    /// The lease under which a place on the ring is held, if it is.
    fn held(&self, at: KeyHash) -> Option<LeaseNumber>;

    /// Its part of all requests, in [`WHOLE`]ths: so much of a client's allowance is counted here (rule L). Requests are spread by
    /// their sketches, so made-up ones are, too.
    fn share(&self) -> u32 {
        WHOLE
    }
}

/// A sketcher without others beside it holds everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Ranges for Alone {
    fn held(&self, _: KeyHash) -> Option<LeaseNumber> {
        Some(LeaseNumber::default())
    }
}

/// A client's request.
#[derive(Clone, Debug)]
pub struct Ask<Q> {
    /// Its name until it is answered.
    pub id: RequestId,
    /// s(q), which covers everything in `request`.
    pub key: Sketch,
    /// What kind of request it is.
    pub kind: Kind,
    /// Whom its replicated reads are counted for, by address.
    pub client: u64,
    /// What is forwarded, opaque here.
    pub request: Q,
}

/// What kind of request it is, by the rules of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may change something.
    Write,
    /// It changes nothing.
    Read {
        /// The way that the rules give it.
        way: Way,
        /// Rule K: the session's last write, which the answer must not be older than.
        after: Option<Sigma>,
    },
}

/// The way of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Fast if possible.
    Usual,
    /// Black-listed by rule: never fast, but kept up.
    Replicated,
    /// White-listed by rule: one replica, unverified, and marked so.
    One,
    /// Never fast, since its client has named himself (rule C). That is his doing, and each such read costs N executions: he is
    /// charged for it whatever is remembered (rule L).
    Personal,
}

/// What a driver brings.
#[derive(Debug)]
pub enum Input<Q, R> {
    /// A request.
    Ask(Ask<Q>),
    /// A request that goes past the table (rule J): nothing is looked up, nothing is remembered, no range is needed. For what
    /// the table has no part in, and for reads whose range nobody holds or whose owner cannot be reached: those are put to the
    /// group. Where a group has σ, whoever brings one must know that nobody holds the range, or reads could go back.
    Aside(Ask<Q>),
    /// One replica has begun to answer. What it answers may be long, and then it takes as long as it takes.
    Began(CallId),
    /// What one replica answered to a fast read, or `None` if it did not.
    Fast(CallId, Option<Answer<R>>),
    /// One replica was not asked, since too much is under way there.
    Unasked(CallId),
    /// What the group answered. σ is missing where there is none (rule E).
    Replicated(CallId, Answer<R>, Option<Sigma>),
    /// The group did not answer, and what one of its members said all the same.
    NotReplicated(CallId, group::Refusal, Option<Answer<R>>),
    /// A range is no longer held, or will be black-listed: its entries go (rule J).
    Lost(KeyRange),
    /// Health checks found a replica up, or down.
    Health(ReplicaId, bool),
}

/// What a driver must do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<Q, R> {
    /// Ask one replica.
    Fast(CallId, ReplicaId, Q),
    /// Ask the group.
    Replicate(CallId, Sketch, Q),
    /// Answer a request.
    Answer {
        /// Which.
        id: RequestId,
        /// With what.
        response: R,
        /// How it was come by.
        how: How,
        /// σ, where the group has one: what a session carries after a write.
        sigma: Option<Sigma>,
    },
    /// Refuse a request.
    Refuse(RequestId, Refusal),
}

/// How an answer was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// One replica gave it, and it is what was remembered.
    Fast,
    /// The group agreed on it.
    Agreed,
    /// One replica gave it, and nobody looked; it must be marked so.
    Unverified,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many requests are under way.
    #[error("the sketcher has too many requests under way; try again later")]
    Busy,
    /// This client's requests miss the table too often.
    #[error("too many requests of this client had to be replicated; slow down, or ask for what was asked for before")]
    TooManyReplicated,
    /// Another sketcher owns the request, or may.
    #[error("the request belongs to another sketcher; look its range up again")]
    Moved,
    /// Only reads are served.
    #[error("only GET and HEAD are served here; send other requests to the service itself")]
    WritesRefused,
    /// A replica that was asked alone did not answer; a write may have been executed.
    #[error("the replica that was asked did not answer; a write may have been executed all the same")]
    NoAnswer,
    /// The group did not agree.
    #[error(transparent)]
    Group(#[from] group::Refusal),
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub asked: u64,
    /// Reads that one replica was asked for.
    pub tried_fast: u64,
    /// Answers that were the remembered ones.
    pub fast: u64,
    /// Requests that the group was asked for.
    pub replicated: u64,
    /// Replicated answers that differed from what was remembered.
    pub transitions: u64,
    /// Requests that are black-listed or taken off the list automatically.
    pub listed: u64,
    /// Refused requests, but for those that moved.
    pub refused: u64,
    /// Requests whose range was not held here, or no longer: they are asked again elsewhere.
    pub moved: u64,
    /// Requests that went past the table.
    pub aside: u64,
}

/// The one kind of timer: a replica was asked for a fast answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Silent(CallId);

#[derive(Debug)]
struct Pending<Q> {
    ask: Ask<Q>,
    visit: Visit,
    /// The lease under which it was taken; none if it goes past the table.
    lease: Option<LeaseNumber>,
    /// What was remembered when the request came: never decided on, but by mutants.
    then: Option<Entry>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// One replica was asked, and its answer will be compared.
    Fast(Single),
    /// One replica was asked, and its answer will be marked unverified; before it another one may have been, in vain.
    One { asked: Single, tries_left: u32, before: Option<ReplicaId> },
    /// The group was asked.
    Replicated { began: u64, doubt: Option<Doubt> },
}

/// Algorithm 1.
#[derive(Debug)]
pub struct Sketcher<Q, R> {
    options: Options,
    history: Arc<History>,
    ranges: Arc<dyn Ranges>,
    replicas: Replicas,
    lists: Lists,
    limits: Limits,
    pending: BTreeMap<CallId, Pending<Q>>,
    timers: Timers<Silent>,
    last_call: u64,
    counts: Counts,
    /// Updates that a mutant puts off.
    put_off: Vec<(Visit, Sketch, Sketch, Stamp)>,
    answers: std::marker::PhantomData<fn() -> R>,
}

impl<Q: Clone, R: Clone> Sketcher<Q, R> {
    /// A sketcher with what it remembers.
    pub fn new(options: Options, history: Arc<History>, ranges: Arc<dyn Ranges>) -> Sketcher<Q, R> {
        let most_ejected = match options.mutant {
            Some(Mutant::AllEjected) => options.replicas,
            _ => options.faults,
        };
        Sketcher {
            replicas: Replicas::new(options.replicas, most_ejected, &options.secret),
            lists: Lists::new(options.replicas),
            limits: Limits::new(options.allowance),
            options,
            history,
            ranges,
            pending: BTreeMap::new(),
            timers: Timers::new(),
            last_call: 0,
            counts: Counts::default(),
            put_off: Vec::new(),
            answers: std::marker::PhantomData,
        }
    }

    /// How often what happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What is known of each replica's conduct.
    pub fn standing(&self, now: Mono) -> Vec<Standing> {
        self.replicas.standing(now)
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.options.mutant == Some(mutant)
    }

    fn ask(&mut self, now: Now, ask: Ask<Q>, out: &mut Outbox<Output<Q, R>>) {
        self.counts.asked += 1;
        if self.pending.len() >= self.options.most_requests {
            return self.refuse(ask.id, Refusal::Busy, out);
        }
        let visit = self.history.visit(&ask.key);
        let Some(lease) = self.ranges.held(ask.key.position()) else {
            return self.refuse(ask.id, Refusal::Moved, out);
        };
        let then = self.history.look(visit, &ask.key);
        let (kind, client) = (ask.kind, ask.client);
        let stage = Stage::Replicated { began: 0, doubt: None };
        let pending = Pending { ask, visit, lease: Some(lease), then, stage };
        match kind {
            Kind::Write => self.write(now, pending, out),
            Kind::Read { way: Way::One, .. } => self.ask_one(now, pending, 2, None, out),
            Kind::Read { way: Way::Usual, after } if then.is_some_and(|entry| self.may_be_fast(&entry, after)) => {
                self.ask_fast(now, pending, out);
            }
            // A client is charged for reads that nothing is remembered of and for its own, not for what replicas or writers cause.
            Kind::Read { way, .. } if (then.is_none() || way == Way::Personal) && !self.allows(now, client) => {
                self.refuse(pending.ask.id, Refusal::TooManyReplicated, out);
            }
            Kind::Read { .. } => self.replicate(pending, None, out),
        }
    }

    /// Rule J: who does not hold the range neither looks anything up nor remembers anything. It is not the client's doing that
    /// the range moves; he is charged all the same (rule L), since queries that are made up cost as much here as elsewhere.
    fn aside(&mut self, now: Now, ask: Ask<Q>, out: &mut Outbox<Output<Q, R>>) {
        self.counts.asked += 1;
        if self.pending.len() >= self.options.most_requests {
            return self.refuse(ask.id, Refusal::Busy, out);
        }
        self.counts.aside += 1;
        let (visit, kind, client) = (self.history.visit(&ask.key), ask.kind, ask.client);
        let stage = Stage::Replicated { began: 0, doubt: None };
        let pending = Pending { ask, visit, lease: None, then: None, stage };
        match kind {
            Kind::Write => self.write(now, pending, out),
            Kind::Read { way: Way::One, .. } => self.ask_one(now, pending, 2, None, out),
            Kind::Read { .. } if !self.allows(now, client) => {
                self.refuse(pending.ask.id, Refusal::TooManyReplicated, out);
            }
            Kind::Read { .. } => self.replicate(pending, None, out),
        }
    }

    /// Rule L.
    fn allows(&mut self, now: Now, client: u64) -> bool {
        self.limits.allow(now.mono, client, self.ranges.share()) || self.is(Mutant::AllowanceIgnored)
    }

    /// Rules I and K: whether an entry lets a read be fast.
    fn may_be_fast(&self, entry: &Entry, after: Option<Sigma>) -> bool {
        let session = self.is(Mutant::SessionIgnored) || after.is_none_or(|write| entry.sigma > write);
        (!entry.black || self.is(Mutant::BlackListIgnored)) && session
    }

    fn write(&mut self, now: Now, pending: Pending<Q>, out: &mut Outbox<Output<Q, R>>) {
        match self.options.writes {
            Writes::Replicated => self.replicate(pending, None, out),
            // Never twice: it may have been executed although nobody said so.
            Writes::One => self.ask_one(now, pending, 1, None, out),
            Writes::Refused => self.refuse(pending.ask.id, Refusal::WritesRefused, out),
        }
    }

    fn call(&mut self, pending: Pending<Q>) -> CallId {
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.pending.insert(call, pending);
        call
    }

    /// Rule B: a read under way may be older than this one, so nothing is ever joined to it.
    fn replicate(&mut self, mut pending: Pending<Q>, doubt: Option<Doubt>, out: &mut Outbox<Output<Q, R>>) {
        self.counts.replicated += 1;
        pending.stage = Stage::Replicated { began: self.history.tick(), doubt };
        let (key, request) = (pending.ask.key, pending.ask.request.clone());
        let call = self.call(pending);
        out.put(Output::Replicate(call, key, request));
    }

    /// Rule B: a fast answer counts if it is what is remembered now that it has come.
    fn compare(
        &mut self,
        now: Now,
        pending: Pending<Q>,
        replica: ReplicaId,
        answer: Option<Answer<R>>,
        out: &mut Outbox<Output<Q, R>>,
    ) {
        let Some(answer) = answer else {
            let silent = Doubt::Silent { replica, group_asked: now.mono };
            return self.replicate(pending, Some(silent), out);
        };
        let key = pending.ask.key;
        let entry = match self.is(Mutant::ComparedWithThen) {
            true => pending.then,
            false => self.history.look(pending.visit, &key),
        };
        let equal = entry.is_some_and(|entry| entry.sketch == answer.sketch) || self.is(Mutant::MismatchAccepted);
        let Kind::Read { after, .. } = pending.ask.kind else { return };
        if equal && entry.is_none_or(|entry| self.may_be_fast(&entry, after)) {
            if !self.is_held_still(&pending) {
                return self.refuse(pending.ask.id, Refusal::Moved, out);
            }
            self.history.used(pending.visit, &key);
            self.replicas.was_right(replica);
            self.count_read(&pending, false, false);
            self.counts.fast += 1;
            return self.answer(&pending, answer.response, How::Fast, None, out);
        }
        let differed = |entry: Entry| Doubt::Differed { replica, answered: answer.sketch, remembered: entry.sketch };
        self.replicate(pending, entry.filter(|_| !equal).map(differed), out);
    }

    fn replicated(
        &mut self,
        now: Now,
        call: CallId,
        answer: Answer<R>,
        sigma: Option<Sigma>,
        out: &mut Outbox<Output<Q, R>>,
    ) {
        let Some((pending, began, doubt)) = self.take_replicated(call) else { return };
        if pending.ask.kind == Kind::Write || pending.lease.is_none() {
            return self.answer(&pending, answer.response, How::Agreed, sigma, out);
        }
        let stamp = match sigma {
            Some(sigma) => Stamp::Ordered(sigma),
            None => Stamp::Voted { began, ended: self.history.tick() },
        };
        let black = self.history.look(pending.visit, &pending.ask.key).is_some_and(|entry| entry.black);
        let change = self.remember(&pending, &answer, stamp);
        self.count_read(&pending, change == Change::Changed, black);
        self.settle(now, doubt, &answer);
        // Rule J: otherwise the next owner could go back behind what is answered here.
        let held = change != Change::Void && self.is_held_still(&pending);
        if !held && !self.is(Mutant::LeaseIgnored) {
            return self.refuse(pending.ask.id, Refusal::Moved, out);
        }
        self.answer(&pending, answer.response, How::Agreed, sigma, out);
    }

    /// Rule B: the table knows before the answer leaves.
    fn remember(&mut self, pending: &Pending<Q>, answer: &Answer<R>, stamp: Stamp) -> Change {
        let key = &pending.ask.key;
        if !answer.keep {
            return self.history.forget(pending.visit, key, stamp);
        }
        if self.is(Mutant::AnsweredFirst) {
            self.put_off.push((pending.visit, *key, answer.sketch, stamp));
            return Change::Same;
        }
        let newer_then = pending.then.is_some_and(|then| stamp.to() <= then.sigma.place());
        if self.is(Mutant::UpdateOfThen) && newer_then {
            return Change::Older;
        }
        self.history.update(pending.visit, key, answer.sketch, stamp)
    }

    /// A transition is a replicated answer that differs from what was remembered (rule I).
    fn count_read(&mut self, pending: &Pending<Q>, transition: bool, black: bool) {
        self.counts.transitions += u64::from(transition);
        let verdict = self.lists.count(&pending.ask.key, transition, black);
        if let Some(verdict) = verdict {
            self.counts.listed += 1;
            self.history.list(pending.visit, &pending.ask.key, verdict == Verdict::Listed);
        }
    }

    fn not_replicated(
        &mut self,
        call: CallId,
        why: group::Refusal,
        one: Option<Answer<R>>,
        out: &mut Outbox<Output<Q, R>>,
    ) {
        let Some((pending, ..)) = self.take_replicated(call) else { return };
        let read = pending.ask.kind != Kind::Write;
        match one.filter(|_| read && self.options.unverified_rather_than_none) {
            Some(one) => self.answer(&pending, one.response, How::Unverified, None, out),
            None => self.refuse(pending.ask.id, why.into(), out),
        }
    }

    fn take_replicated(&mut self, call: CallId) -> Option<(Pending<Q>, u64, Option<Doubt>)> {
        let Stage::Replicated { began, doubt } = self.pending.get(&call)?.stage else { return None };
        Some((self.pending.remove(&call)?, began, doubt))
    }

    /// Rule J: whether the range was this sketcher's from the request's arrival until now.
    fn is_held_still(&self, pending: &Pending<Q>) -> bool {
        let held = || pending.lease.is_some() && self.ranges.held(pending.ask.key.position()) == pending.lease;
        self.is(Mutant::LeaseIgnored) || held()
    }

    fn answer(
        &mut self,
        pending: &Pending<Q>,
        response: R,
        how: How,
        sigma: Option<Sigma>,
        out: &mut Outbox<Output<Q, R>>,
    ) {
        out.put(Output::Answer { id: pending.ask.id, response, how, sigma });
    }

    fn refuse(&mut self, id: RequestId, why: Refusal, out: &mut Outbox<Output<Q, R>>) {
        match why {
            Refusal::Moved => self.counts.moved += 1,
            _ => self.counts.refused += 1,
        }
        out.put(Output::Refuse(id, why));
    }
}

impl<Q: Clone, R: Clone> Machine for Sketcher<Q, R> {
    type Input = Input<Q, R>;
    type Output = Output<Q, R>;

    fn handle(&mut self, now: Now, input: Input<Q, R>, out: &mut Outbox<Output<Q, R>>) {
        if self.put_off.len() > 3 {
            let (visit, key, sketch, stamp) = self.put_off.remove(0);
            self.history.update(visit, &key, sketch, stamp);
        }
        match input {
            Input::Ask(ask) => self.ask(now, ask, out),
            Input::Aside(ask) => self.aside(now, ask, out),
            Input::Began(call) => self.began(call),
            Input::Fast(call, answer) => self.fast(now, call, answer, out),
            Input::Unasked(call) => self.unasked(now, call, out),
            Input::Replicated(call, answer, sigma) => self.replicated(now, call, answer, sigma, out),
            Input::NotReplicated(call, why, one) => self.not_replicated(call, why, one, out),
            Input::Lost(range) if !self.is(Mutant::EntriesOutliveRange) => self.history.drop_range(range),
            Input::Lost(_) => {}
            Input::Health(replica, up) => self.replicas.turned(replica, up),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output<Q, R>>) {
        while let Some(Silent(call)) = self.timers.pop_due(now.mono) {
            self.fast(now, call, None, out);
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
