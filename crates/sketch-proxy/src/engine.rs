//! The machines, and what they want done.

use crate::config::Config;
use crate::held::Held;
use crate::ordered::{Ordered, Unfit};
use crate::survey::Live;
use crate::upstream::Upstream;
use bytes::Bytes;
use http::Method;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidings_base::{Class, Error, KeyRange, Machine, Mono, Now, Outbox, Wall};
use tidings_sketch::group::{self, Group};
use tidings_sketch::health::{self, Checked, Found, Health};
use tidings_sketch::history::{self, Carried, History};
use tidings_sketch::http::{Forwarded, Page, Rules};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::{Sketch, Sketching};
use tidings_sketch::sketcher::{self, Ask, Counts, How, Kind, Ranges, Refusal, Sketcher, Standing};
use tidings_sketch::{Answer, CallId, ReplicaId, RequestId};
use tokio::sync::{Notify, oneshot};

/// What goes upstream, what it is answered as, and by which rules.
pub(crate) struct Asked {
    pub(crate) forwarded: Forwarded,
    pub(crate) key: Sketch,
    pub(crate) rules: Arc<Rules>,
    /// What a BFT group is asked; nothing otherwise.
    pub(crate) command: Bytes,
}

pub(crate) type Question = Arc<Asked>;
/// A page, shared by whoever waits for it.
pub(crate) type Sheet = Arc<Page<Held>>;
/// What a request is answered with.
pub(crate) struct Served {
    pub(crate) page: Sheet,
    pub(crate) how: How,
    /// Where it stands in the group's order, if it was agreed on and the group has one.
    pub(crate) sigma: Option<Sigma>,
}

/// How a request ended.
pub(crate) type End = Result<Served, Refusal>;

/// The longest sleep of the alarm; a spurious wake is harmless.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Pages in a shard of a table that is one of a core's.
const ENTRIES_IN_A_SHARED_SHARD: usize = 256;

struct Machines {
    sketcher: Sketcher<Question, Sheet>,
    /// Votes on what origins say, or asks members of a cell one after the other. A BFT group agrees by itself.
    group: Option<Group<Question, Sheet>>,
    health: Option<Health>,
    waiting: BTreeMap<RequestId, oneshot::Sender<End>>,
    last_id: u64,
}

/// What the machines want of origins, or of a group.
#[derive(Default)]
struct Errands {
    fetches: Vec<Fetch>,
    orders: Vec<(CallId, Question)>,
    checks: Vec<ReplicaId>,
}

/// One origin, or one member of a group, is asked.
struct Fetch {
    from: ReplicaId,
    call: CallId,
    /// The nonce of a vote; a fast read has none.
    vote: Option<u64>,
    question: Question,
}

pub(crate) struct Engine {
    machines: Mutex<Machines>,
    pub(crate) upstream: Upstream,
    /// A group with an order in place of origins.
    ordered: Option<Ordered>,
    pub(crate) sketching: Sketching,
    history: Arc<History>,
    /// How static pages are, if that is noted.
    pub(crate) survey: Option<Live>,
    rules: RwLock<Arc<Rules>>,
    /// Whether other proxies have the same rules, and must sketch alike.
    shared: bool,
    start: Instant,
    alarm: Notify,
}

impl Engine {
    /// Machines for these origins, which answer for these ranges and sketch so; or as nobody else does.
    pub(crate) fn new(config: &Config, ranges: Arc<dyn Ranges>, sketching: Option<Sketching>) -> Result<Engine, Error> {
        let replicas = config.replicas();
        let group = config.kind().map(|kind| votes(config, kind)).transpose()?;
        let options = sketcher::Options {
            writes: config.writes,
            unverified_rather_than_none: config.unverified_rather_than_none,
            patience: config.patience,
            give_up: config.give_up,
            most_requests: config.most_requests,
            allowance: config.allowance,
            ..sketcher::Options::of(replicas, config.faults, secret()?)
        };
        let health = config.checks.as_ref().map(|checks| {
            Health::new(health::Options {
                replicas,
                interval: checks.interval,
                down: checks.down.max(1),
                up: checks.up.max(1),
            })
        });
        let shared = sketching.is_some();
        let mut table = history::Options::of(config.entries);
        if shared {
            // Ranges are dropped and carried by whole shards, so these are much smaller than ranges.
            table.shards = table.shards.max(config.entries / ENTRIES_IN_A_SHARED_SHARD);
        }
        let history = Arc::new(History::new(&table));
        let sketcher = Sketcher::new(options, Arc::clone(&history), ranges);
        let sketching = sketching.map_or_else(|| secret().map(Sketching::new), Ok)?;
        let ordered = config.group.as_ref();
        let ordered = ordered.map(|group| Ordered::start(group, sketching.clone(), config)).transpose()?;
        let rules = Rules { shared, ..held_before(ordered.as_ref(), config.rules.clone()) };
        Ok(Engine {
            machines: Mutex::new(Machines { sketcher, group, health, waiting: BTreeMap::new(), last_id: 0 }),
            upstream: Upstream::new(config, sketching.clone())?,
            ordered,
            sketching,
            history,
            survey: config.survey.then(Live::default),
            rules: RwLock::new(Arc::new(rules)),
            shared,
            start: Instant::now(),
            alarm: Notify::new(),
        })
    }

    /// The rules of now.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read())
    }

    /// Other rules from now on, in a generation of their own; what is under way goes on by the old ones.
    pub(crate) fn set_rules(self: &Arc<Self>, rules: Rules) -> u64 {
        let mut current = self.rules.write();
        if self.shared {
            // Generations are not part of what is sketched: rules that come back would find what was remembered under them.
            self.lost(KeyRange::FULL);
        }
        let generation = current.generation + 1;
        let rules = held_before(self.ordered.as_ref(), rules);
        *current = Arc::new(Rules { generation, shared: self.shared, ..rules });
        generation
    }

    /// How many pages are remembered.
    pub(crate) fn remembered(&self) -> u64 {
        self.history.len() as u64
    }

    pub(crate) fn counts(&self) -> Counts {
        self.machines.lock().sketcher.counts()
    }

    pub(crate) fn standing(&self) -> Vec<(Standing, u64)> {
        let (now, machines) = (self.now().mono, self.machines.lock());
        let differed = match (&machines.group, &self.ordered) {
            (Some(group), _) => group.differed().to_vec(),
            (None, Some(ordered)) => ordered.differed(),
            (None, None) => Vec::new(),
        };
        machines.sketcher.standing(now).into_iter().zip(differed).collect()
    }

    /// Origins as they were named, or the replicas of a group.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.ordered {
            Some(ordered) => ordered.names().to_vec(),
            None => self.upstream.origins().iter().map(ToString::to_string).collect(),
        }
    }

    /// Whether answers have a place in an order. Then reads may not go back (rule A), whatever that costs.
    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered.is_some()
    }

    /// What is asked, if it can be asked of what is behind.
    pub(crate) fn question(&self, forwarded: Forwarded, key: Sketch, rules: Arc<Rules>) -> Result<Question, Unfit> {
        let command = self.ordered.as_ref().map(|ordered| ordered.command(&forwarded));
        let command = command.transpose()?.unwrap_or_default();
        Ok(Arc::new(Asked { forwarded, key, rules, command }))
    }

    /// What health checks found of each origin; of none if there are no checks.
    pub(crate) fn health(&self) -> Vec<Found> {
        self.machines.lock().health.as_ref().map(Health::found).unwrap_or_default()
    }

    /// Asks the machines; the answer comes when it comes.
    pub(crate) async fn ask(self: &Arc<Self>, question: Question, kind: Kind, client: u64) -> End {
        self.put(question, kind, client, sketcher::Input::Ask).await
    }

    /// The same past the table: nothing is looked up or remembered.
    pub(crate) async fn aside(self: &Arc<Self>, question: Question, kind: Kind, client: u64) -> End {
        self.put(question, kind, client, sketcher::Input::Aside).await
    }

    /// Forgets what is remembered of a range.
    pub(crate) fn lost(self: &Arc<Self>, range: KeyRange) {
        self.step(|_| Some(Turn::Sketcher(sketcher::Input::Lost(range))));
    }

    /// What is remembered of a range that goes to another proxy.
    pub(crate) fn carry(&self, range: KeyRange) -> Vec<u8> {
        self.history.carry(range).to_bytes()
    }

    /// Remembers what came along with a range; how many pages it was.
    pub(crate) fn take_over(&self, range: KeyRange, carried: &Carried) -> u64 {
        self.history.take_over(range, carried, self.is_ordered()) as u64
    }

    async fn put(
        self: &Arc<Self>,
        question: Question,
        kind: Kind,
        client: u64,
        input: fn(Ask<Question>) -> sketcher::Input<Question, Sheet>,
    ) -> End {
        let (sender, receiver) = oneshot::channel();
        self.step(|machines| {
            machines.last_id += 1;
            let id = RequestId(machines.last_id);
            machines.waiting.insert(id, sender);
            let key = question.key;
            Some(Turn::Sketcher(input(Ask { id, key, kind, client, request: question })))
        });
        // The machines answer every request; only a stopped proxy does not.
        receiver.await.unwrap_or(Err(Refusal::Busy))
    }

    /// Wakes the machines at their deadlines, until it is dropped.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            let pause = {
                let earliest = self.machines.lock().deadline();
                earliest.map_or(LONGEST_SLEEP, |at| at.since(self.now().mono))
            };
            tokio::select! {
                () = tokio::time::sleep(pause.min(LONGEST_SLEEP)) => self.step(|_| None),
                () = self.alarm.notified() => {}
            }
        }
    }

    fn now(&self) -> Now {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { mono: Mono(nanos), wall: Wall(0) }
    }

    /// Lets the machines take one input, or what is due, and does what they want. Nothing is awaited under the lock.
    fn step(self: &Arc<Self>, input: impl FnOnce(&mut Machines) -> Option<Turn>) {
        let mut errands = Errands::default();
        let moved = {
            let mut machines = self.machines.lock();
            let before = machines.deadline();
            let turn = input(&mut machines);
            machines.take(self.now(), turn, &mut errands);
            machines.deadline() < before || before.is_none()
        };
        for fetch in errands.fetches {
            tokio::spawn(Arc::clone(self).fetch(fetch));
        }
        for (call, question) in errands.orders {
            tokio::spawn(Arc::clone(self).order(call, question));
        }
        for origin in errands.checks {
            tokio::spawn(Arc::clone(self).check(origin));
        }
        if moved {
            self.alarm.notify_one();
        }
    }

    async fn fetch(self: Arc<Self>, fetch: Fetch) {
        let Fetch { from, call, vote, question } = fetch;
        let answer = match (&self.ordered, vote) {
            (Some(ordered), None) => ordered.fast(from, &question).await.map(|answer| (answer, None)),
            (Some(ordered), Some(_)) => {
                ordered.newest(from, &question).await.map(|(answer, sigma)| (answer, Some(sigma)))
            }
            (None, _) => {
                // Who has begun to answer is not silent, however long the page is.
                let begun = || {
                    if vote.is_none() {
                        self.step(|_| Some(Turn::Sketcher(sketcher::Input::Began(call))));
                    }
                };
                let answer = self.upstream.fetch(from, &question, begun).await;
                let answer =
                    answer.inspect_err(|why| tracing::debug!(origin = from.0, %why, "an origin gave no answer")).ok();
                answer.map(|answer| (answer, None))
            }
        };
        self.step(|_| {
            Some(match (vote, answer) {
                (None, answer) => Turn::Sketcher(sketcher::Input::Fast(call, answer.map(|(answer, _)| answer))),
                (Some(nonce), Some((answer, sigma))) => {
                    Turn::Group(group::Input::Reply(call, reply(from, nonce, answer, sigma)))
                }
                (Some(_), None) => Turn::Group(group::Input::Failed(call, from)),
            })
        });
    }

    async fn order(self: Arc<Self>, call: CallId, question: Question) {
        let Some(ordered) = &self.ordered else { return };
        let input = match ordered.order(&question).await {
            Ok((answer, sigma)) => sketcher::Input::Replicated(call, answer, sigma),
            Err(why) => sketcher::Input::NotReplicated(call, why, None),
        };
        self.step(|_| Some(Turn::Sketcher(input)));
    }

    async fn check(self: Arc<Self>, origin: ReplicaId) {
        let checked = self.upstream.check(origin).await;
        let passed =
            checked.inspect_err(|why| tracing::debug!(origin = origin.0, %why, "a health check failed")).is_ok();
        self.step(|_| Some(Turn::Health(Checked(origin, passed))));
    }
}

/// Rules as they hold before what is behind.
fn held_before(ordered: Option<&Ordered>, rules: Rules) -> Rules {
    match ordered {
        Some(ordered) => ordered.rules(rules),
        None => rules,
    }
}

/// The machine that votes on what origins say, or asks members of a group that does not lie one after the other.
fn votes(config: &Config, kind: group::Kind) -> Result<Group<Question, Sheet>, Error> {
    let replicas = config.replicas();
    let options = group::Options {
        group: 0,
        client: 0,
        last_nonce: 0,
        replicas,
        kind,
        // Origins are asked once; whoever does not lie may be asked again, and another one too.
        resend: if kind == group::Kind::CrashTolerant { config.patience } else { config.give_up },
        give_up: config.give_up,
        mutant: None,
    };
    Group::new(options).map_err(|misfit| {
        let what = format!("{replicas} origins, f = {}, quorum {}", config.faults, config.quorum);
        Error::new("sketch.misfit", Class::Invalid, what).hint(misfit.to_string())
    })
}

fn told(origin: ReplicaId, up: bool) {
    match up {
        true => tracing::info!(origin = origin.0, "an origin is up"),
        false => tracing::warn!(origin = origin.0, "an origin is down: it is not asked alone"),
    }
}

fn reply(from: ReplicaId, nonce: u64, answer: Answer<Sheet>, sigma: Option<Sigma>) -> group::Reply<Sheet> {
    let result = answer.sketch;
    group::Reply { from, group: 0, client: 0, nonce, sigma, result, whole: Some(answer) }
}

/// An input of one of the machines.
enum Turn {
    Sketcher(sketcher::Input<Question, Sheet>),
    Group(group::Input<Question, Sheet>),
    Health(Checked),
}

impl Machines {
    fn deadline(&self) -> Option<Mono> {
        let health = self.health.as_ref().and_then(Health::deadline);
        let group = self.group.as_ref().and_then(Group::deadline);
        [self.sketcher.deadline(), group, health].into_iter().flatten().min()
    }

    /// Gives the input to its machine, and each machine what the other one wants of it, until both are content.
    fn take(&mut self, now: Now, turn: Option<Turn>, errands: &mut Errands) {
        let (mut asked, mut voted, mut checked) = (Outbox::new(), Outbox::new(), Outbox::new());
        match turn {
            Some(Turn::Sketcher(input)) => self.sketcher.handle(now, input, &mut asked),
            Some(Turn::Group(input)) => {
                if let Some(group) = &mut self.group {
                    group.handle(now, input, &mut voted);
                }
            }
            Some(Turn::Health(input)) => {
                if let Some(health) = &mut self.health {
                    health.handle(now, input, &mut checked);
                }
            }
            None => {
                self.sketcher.wake(now, &mut asked);
                if let Some(group) = &mut self.group {
                    group.wake(now, &mut voted);
                }
                if let Some(health) = &mut self.health {
                    health.wake(now, &mut checked);
                }
            }
        }
        for output in checked {
            match output {
                health::Output::Check(origin) => errands.checks.push(origin),
                health::Output::Turned(origin, up) => {
                    told(origin, up);
                    self.sketcher.handle(now, sketcher::Input::Health(origin, up), &mut asked);
                }
            }
        }
        while !asked.is_empty() || !voted.is_empty() {
            for output in std::mem::take(&mut asked) {
                match output {
                    sketcher::Output::Fast(call, from, question) => {
                        errands.fetches.push(Fetch { from, call, vote: None, question });
                    }
                    // A write is never put to several, nor again.
                    sketcher::Output::Replicate(call, _, question) => match &mut self.group {
                        Some(group) if question.forwarded.method == Method::GET => {
                            group.handle(now, group::Input::Ask(call, question), &mut voted)
                        }
                        _ => errands.orders.push((call, question)),
                    },
                    sketcher::Output::Answer { id, response: page, how, sigma } => {
                        self.end(id, Ok(Served { page, how, sigma }));
                    }
                    sketcher::Output::Refuse(id, why) => self.end(id, Err(why)),
                }
            }
            for output in std::mem::take(&mut voted) {
                let input = match output {
                    group::Output::Send { to, call, nonce, request, .. } => {
                        errands.fetches.push(Fetch { from: to, call, vote: Some(nonce), question: request });
                        continue;
                    }
                    group::Output::Done(call, answer, sigma) => sketcher::Input::Replicated(call, answer, sigma),
                    group::Output::Refused(call, why, one) => sketcher::Input::NotReplicated(call, why, one),
                };
                self.sketcher.handle(now, input, &mut asked);
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        if let Some(waiting) = self.waiting.remove(&id) {
            // A client that has gone away hears nothing.
            let _ = waiting.send(end);
        }
    }
}

fn secret() -> Result<[u8; 32], Error> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| {
        Error::new("sketch.no_randomness", Class::Failed, format!("the system gives no randomness: {error}"))
    })?;
    Ok(secret)
}
