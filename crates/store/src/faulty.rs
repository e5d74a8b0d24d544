//! A store and feed that misbehave on purpose, by a seed.
//!
//! [`Faulty`] stands before any implementation. Its [`Plan`] is a list of rules, each with a scope (rows of groups, or
//! topics), a fault and how often it strikes; the seed and the order of calls decide the rest. Given the same calls in the
//! same order, the same faults strike.
//!
//! Loss of unsynced data: with [`Plan::sync_every`] the wrapper remembers the calls since the last sync, and
//! [`Faulty::crash`] puts a new implementation in the place of the old one, with everything but those.

use crate::api::{Feed, Store};
use crate::messages::consume;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Incarnation, Seeded};
use tidings_wire::v1;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call does not happen and says so. In a batch only the groups in scope fail.
    Fail,
    /// The call takes this long.
    Delay(Duration),
    /// The call may or may not happen, and its outcome is not told.
    Unknown,
    /// The call happens twice; the second answer is returned.
    Duplicate,
    /// The call is answered, but does not happen: an acknowledged write is lost.
    AckAndLose,
}

/// Which calls a rule is about. Bounds are half-open; an empty end is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every call.
    All,
    /// Calls to rows of groups in these ranges.
    Rows {
        /// The groups.
        groups: Range<Bytes>,
        /// The rows.
        rows: Range<Bytes>,
    },
    /// Calls to topics in this range.
    Topics(Range<Bytes>),
}

/// One rule of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which calls.
    pub scope: Scope,
    /// What happens to them.
    pub fault: Fault,
    /// Once in this many calls on average; 1 = always.
    pub one_in: u64,
}

/// What goes wrong, and how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The rules; the first that strikes counts.
    pub rules: Vec<Rule>,
    /// Calls become safe from a crash in portions of this many; 0 or 1 = at once.
    pub sync_every: usize,
}

impl Plan {
    /// A plan with one more rule.
    pub fn rule(mut self, scope: Scope, fault: Fault, one_in: u64) -> Plan {
        self.rules.push(Rule { scope, fault, one_in });
        self
    }

    /// A plan under which a crash takes up to `calls` − 1 answered calls.
    pub fn sync_every(mut self, calls: usize) -> Plan {
        self.sync_every = calls;
        self
    }

    /// A mixture that an implementation's users must survive: failures, delays, duplicates, unknown outcomes.
    pub fn rough() -> Plan {
        Plan::default()
            .rule(Scope::All, Fault::Fail, 7)
            .rule(Scope::All, Fault::Unknown, 9)
            .rule(Scope::All, Fault::Delay(Duration::from_millis(1)), 5)
            .rule(Scope::All, Fault::Duplicate, 6)
    }
}

/// How many calls since the last sync are remembered at most; then they are synced.
const MAX_UNSYNCED: usize = 100_000;

/// The wrapper. `make` makes an empty implementation, at the beginning and after each crash.
pub struct Faulty<S> {
    make: Box<dyn Fn() -> S + Send + Sync>,
    state: Mutex<State<S>>,
}

struct State<S> {
    inner: Arc<S>,
    plan: Plan,
    rng: Seeded,
    /// Every call that changed something, if a crash must be able to take the last ones back.
    calls: Vec<Call>,
    synced: usize,
}

#[derive(Clone, Debug)]
enum Call {
    Apply(v1::Apply),
    CompareAndSet(v1::CompareAndSet),
    Raise(Incarnation),
    Append(Bytes, Vec<Bytes>),
    Join(Bytes, Bytes),
    Ack(Bytes, Bytes, Vec<u64>),
}

/// What a call's draw decided.
enum Draw {
    Pass,
    Fail,
    Unknown { happens: bool },
    Duplicate,
    Lose,
}

impl<S: Send + Sync> Faulty<S> {
    /// A wrapper around what `make` makes.
    pub fn new(make: impl Fn() -> S + Send + Sync + 'static, plan: Plan, seed: u64) -> Faulty<S> {
        let rng = Seeded::new(seed).fork("faulty");
        let state = State { inner: Arc::new(make()), plan, rng, calls: Vec::new(), synced: 0 };
        Faulty { make: Box::new(make), state: Mutex::new(state) }
    }

    /// The implementation behind the faults, for looking past them.
    pub fn inner(&self) -> Arc<S> {
        self.state.lock().inner.clone()
    }

    /// Changes what goes wrong from now on.
    pub fn plan(&self, plan: Plan) {
        self.state.lock().plan = plan;
    }

    /// Makes everything so far safe from a crash.
    pub fn sync(&self) {
        let mut state = self.state.lock();
        state.synced = state.calls.len();
    }

    /// Whether the call goes wrong, and how; sleeps if it is late.
    async fn draw(&self, touches: impl Fn(&Scope) -> bool) -> Draw {
        let mut late = Duration::ZERO;
        let draw = {
            let mut state = self.state.lock();
            let State { plan, rng, .. } = &mut *state;
            let mut struck = Draw::Pass;
            for rule in &plan.rules {
                if !touches(&rule.scope) || !rng.one_in(rule.one_in) {
                    continue;
                }
                struck = match &rule.fault {
                    Fault::Delay(by) => {
                        late += *by;
                        continue;
                    }
                    Fault::Fail => Draw::Fail,
                    Fault::Unknown => Draw::Unknown { happens: rng.one_in(2) },
                    Fault::Duplicate => Draw::Duplicate,
                    Fault::AckAndLose => Draw::Lose,
                };
                break;
            }
            struck
        };
        if !late.is_zero() {
            tokio::time::sleep(late).await;
        }
        draw
    }

    /// Remembers a call that happened, and syncs when it is time.
    fn happened(&self, call: Call) {
        let mut state = self.state.lock();
        if state.plan.sync_every <= 1 {
            return;
        }
        state.calls.push(call);
        let unsynced = state.calls.len() - state.synced;
        if unsynced >= state.plan.sync_every.min(MAX_UNSYNCED) {
            state.synced = state.calls.len();
        }
    }
}

impl<S: Store + Feed> Faulty<S> {
    /// Loses every call since the last sync; how many that were.
    pub async fn crash(&self) -> Result<usize, Error> {
        let (kept, lost) = {
            let mut state = self.state.lock();
            let lost = state.calls.len() - state.synced;
            let synced = state.synced;
            state.calls.truncate(synced);
            (state.calls.clone(), lost)
        };
        let fresh = (self.make)();
        for call in kept {
            replay(&fresh, call).await?;
        }
        self.state.lock().inner = Arc::new(fresh);
        Ok(lost)
    }
}

async fn replay(fresh: &(impl Store + Feed), call: Call) -> Result<(), Error> {
    match call {
        Call::Apply(batch) => fresh.apply(batch).await.map(drop),
        Call::CompareAndSet(cas) => fresh.compare_and_set(cas).await.map(drop),
        Call::Raise(at_least) => fresh.raise_incarnation(at_least).await.map(drop),
        Call::Append(topic, entries) => fresh.append(topic, entries).await.map(drop),
        // Makes the group known; what it is given comes again at once.
        Call::Join(topic, group) => {
            let join = v1::Consume { redeliver_ms: 1, ..consume(topic, group, 1, 0) };
            fresh.consume(join).await.map(drop)
        }
        Call::Ack(topic, group, numbers) => fresh.ack(topic, group, numbers).await,
    }
}

#[async_trait]
impl<S: Store> Store for Faulty<S> {
    async fn apply(&self, batch: v1::Apply) -> Result<v1::Applied, Error> {
        let (mut passing, mut failures, mut lost) = (Vec::new(), Vec::new(), false);
        let (mut twice, mut unknown) = (false, false);
        for group in batch.groups {
            let touches = |scope: &Scope| {
                *scope == Scope::All || group.rows.iter().any(|row| in_rows(scope, &group.group, &row.row))
            };
            match self.draw(touches).await {
                Draw::Pass => passing.push(group),
                Draw::Fail => failures.push(unavailable_group(group.group)),
                Draw::Lose => lost = true,
                Draw::Duplicate => {
                    twice = true;
                    passing.push(group);
                }
                Draw::Unknown { happens } => {
                    unknown = true;
                    if happens {
                        passing.push(group);
                    }
                }
            }
        }
        let mut applied = v1::Applied { failures };
        // A batch of which nothing is left to do is still checked, unless a fault took it.
        if !passing.is_empty() || (applied.failures.is_empty() && !lost && !unknown) {
            let passing = v1::Apply { groups: passing };
            let inner = self.inner();
            if twice {
                inner.apply(passing.clone()).await?;
                self.happened(Call::Apply(passing.clone()));
            }
            applied.failures.extend(inner.apply(passing.clone()).await?.failures);
            self.happened(Call::Apply(passing));
        }
        if unknown { Err(outcome_unknown()) } else { Ok(applied) }
    }

    async fn get(&self, get: v1::Get) -> Result<Option<v1::Row>, Error> {
        let key = get.key.clone().unwrap_or_default();
        match self.draw(|scope| in_rows(scope, &key.group, &key.row)).await {
            Draw::Fail | Draw::Unknown { .. } => Err(unavailable()),
            _ => self.inner().get(get).await,
        }
    }

    async fn scan(&self, scan: v1::Scan) -> Result<v1::Rows, Error> {
        let touches = |scope: &Scope| match scope {
            Scope::All => true,
            Scope::Topics(_) => false,
            Scope::Rows { groups, rows } => {
                let ends_before = !scan.end.is_empty() && scan.end <= rows.start;
                let begins_behind = !rows.end.is_empty() && scan.start >= rows.end;
                within(groups, &scan.group) && !ends_before && !begins_behind
            }
        };
        match self.draw(touches).await {
            Draw::Fail | Draw::Unknown { .. } => Err(unavailable()),
            _ => self.inner().scan(scan).await,
        }
    }

    async fn compare_and_set(&self, cas: v1::CompareAndSet) -> Result<v1::CompareAndSetDone, Error> {
        let key = cas.key.clone().unwrap_or_default();
        let draw = self.draw(|scope| in_rows(scope, &key.group, &key.row)).await;
        match draw {
            Draw::Fail => return Err(unavailable()),
            Draw::Lose => return Ok(v1::CompareAndSetDone { written: true, actual: None }),
            Draw::Unknown { happens: false } => return Err(outcome_unknown()),
            _ => {}
        }
        let mut done = self.inner().compare_and_set(cas.clone()).await?;
        self.happened(Call::CompareAndSet(cas.clone()));
        if matches!(draw, Draw::Duplicate) {
            // The repetition of a swap that was written finds its own cell: that is how its caller learns of it.
            let again = self.inner().compare_and_set(cas).await?;
            done = if done.written { done } else { again };
        }
        if matches!(draw, Draw::Unknown { .. }) { Err(outcome_unknown()) } else { Ok(done) }
    }

    async fn incarnation(&self) -> Result<Incarnation, Error> {
        match self.draw(|scope| *scope == Scope::All).await {
            Draw::Fail | Draw::Unknown { .. } => Err(unavailable()),
            _ => self.inner().incarnation().await,
        }
    }

    async fn raise_incarnation(&self, at_least: Incarnation) -> Result<Incarnation, Error> {
        match self.draw(|scope| *scope == Scope::All).await {
            Draw::Fail => Err(unavailable()),
            Draw::Unknown { happens: false } => Err(outcome_unknown()),
            draw => {
                let raised = self.inner().raise_incarnation(at_least).await?;
                self.happened(Call::Raise(at_least));
                if matches!(draw, Draw::Unknown { .. }) { Err(outcome_unknown()) } else { Ok(raised) }
            }
        }
    }
}

#[async_trait]
impl<S: Feed> Feed for Faulty<S> {
    async fn append(&self, topic: Bytes, entries: Vec<Bytes>) -> Result<v1::Appended, Error> {
        let draw = self.draw(|scope| in_topics(scope, &topic)).await;
        match draw {
            Draw::Fail => return Err(unavailable()),
            Draw::Unknown { happens: false } => return Err(outcome_unknown()),
            // The lost entries need numbers in the answer: the real ones are taken by what comes next.
            Draw::Lose => return Ok(v1::Appended { first: u64::MAX - entries.len() as u64, last: u64::MAX - 1 }),
            _ => {}
        }
        let inner = self.inner();
        if matches!(draw, Draw::Duplicate) {
            inner.append(topic.clone(), entries.clone()).await?;
            self.happened(Call::Append(topic.clone(), entries.clone()));
        }
        let appended = inner.append(topic.clone(), entries.clone()).await?;
        self.happened(Call::Append(topic, entries));
        if matches!(draw, Draw::Unknown { .. }) { Err(outcome_unknown()) } else { Ok(appended) }
    }

    async fn consume(&self, wanted: v1::Consume) -> Result<Vec<v1::Delivery>, Error> {
        let draw = self.draw(|scope| in_topics(scope, &wanted.topic)).await;
        if matches!(draw, Draw::Fail) {
            return Err(unavailable());
        }
        let (topic, group) = (wanted.topic.clone(), wanted.group.clone());
        let deliveries = self.inner().consume(wanted).await?;
        self.happened(Call::Join(topic, group));
        match draw {
            // Entries that were given out and did not arrive come again in time.
            Draw::Unknown { .. } => Err(unavailable()),
            Draw::Lose => Ok(Vec::new()),
            _ => Ok(deliveries),
        }
    }

    async fn ack(&self, topic: Bytes, group: Bytes, numbers: Vec<u64>) -> Result<(), Error> {
        let draw = self.draw(|scope| in_topics(scope, &topic)).await;
        match draw {
            Draw::Fail => return Err(unavailable()),
            Draw::Unknown { happens: false } => return Err(outcome_unknown()),
            Draw::Lose => return Ok(()),
            _ => {}
        }
        self.inner().ack(topic.clone(), group.clone(), numbers.clone()).await?;
        self.happened(Call::Ack(topic, group, numbers));
        if matches!(draw, Draw::Unknown { .. }) { Err(outcome_unknown()) } else { Ok(()) }
    }
}

fn within(range: &Range<Bytes>, name: &Bytes) -> bool {
    *name >= range.start && (range.end.is_empty() || *name < range.end)
}

fn in_rows(scope: &Scope, group: &Bytes, row: &Bytes) -> bool {
    match scope {
        Scope::All => true,
        Scope::Rows { groups, rows } => within(groups, group) && within(rows, row),
        Scope::Topics(_) => false,
    }
}

fn in_topics(scope: &Scope, topic: &Bytes) -> bool {
    match scope {
        Scope::All => true,
        Scope::Topics(topics) => within(topics, topic),
        Scope::Rows { .. } => false,
    }
}

fn unavailable() -> Error {
    Error::new("store.unavailable", Class::Unreachable, "The store did not answer; nothing happened.")
        .hint("Try again after a pause.")
}

fn outcome_unknown() -> Error {
    Error::new("store.outcome_unknown", Class::OutcomeUnknown, "Whether it happened is not known.")
        .hint("Read before writing again.")
}

fn unavailable_group(group: Bytes) -> v1::GroupFailure {
    let message = "The rows did not answer; nothing of the group happened.".to_owned();
    v1::GroupFailure { group, code: "store.unavailable".to_owned(), message, fence: 0 }
}
