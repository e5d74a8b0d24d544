//! The machines, and what they want done.

use crate::config::Site;
use crate::held::{Held, Room, check_spool};
use crate::ordered::{self, Ordered, Unfit};
use crate::seats::Seats;
use crate::upstream::Upstream;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{Method, Uri, request};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tidings_base::{Class, Error, KeyRange, Machine, Mono, Now, Outbox, Wall};
use tidings_sketch::group::{self, Group};
use tidings_sketch::health::{self, Checked, Found, Health};
use tidings_sketch::history::{self, Carried, History};
use tidings_sketch::http::{Forwarded, Page, Rules};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::{Of, Sketch, Sketching};
use tidings_sketch::sketcher::{self, Ask, Counts, How, Kind, Ranges, Refusal, Sketcher, Standing, Writes};
use tidings_sketch::{Answer, CallId, ReplicaId, RequestId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

/// What goes upstream, what it is answered as, and by which rules.
pub(crate) struct Asked {
    pub(crate) forwarded: Forwarded,
    pub(crate) key: Sketch,
    pub(crate) rules: Arc<Rules>,
    /// What a BFT group is asked; nothing otherwise.
    pub(crate) command: Bytes,
    /// Where bodies of a group's answers are held.
    pub(crate) room: Room,
    /// What its own body takes, as long as anybody has it to send.
    _body: Option<OwnedSemaphorePermit>,
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
    /// What the site is called, for the log.
    site: String,
    /// What origins are called, for the log.
    origins: Vec<String>,
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

/// What somebody fetches who waits for it. Should he go away, it goes on: who was asked is still to be heard, and not to be blamed.
struct Fetching(Option<BoxFuture<'static, ()>>);

impl Future for Fetching {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(fetch) = &mut self.0 {
            std::task::ready!(fetch.as_mut().poll(context));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        if let (Some(fetch), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(fetch);
        }
    }
}

/// What is between clients and what is behind one site.
pub(crate) struct Engine {
    pub(crate) site: Site,
    machines: Mutex<Machines>,
    pub(crate) upstream: Upstream,
    /// A group with an order in place of origins.
    ordered: Option<Ordered>,
    /// By origin, or member of a group.
    seats: Vec<Seats>,
    room: Room,
    pub(crate) sketching: Sketching,
    /// What proxies of a core call this site by; it tells nobody else what it is.
    pub(crate) identity: Sketch,
    history: Arc<History>,
    rules: RwLock<Arc<Rules>>,
    /// Whether other proxies have the same rules, and must sketch alike.
    shared: bool,
    start: Instant,
    alarm: Notify,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.site.name)
    }
}

impl Engine {
    /// Machines for this site, which answer for these ranges and sketch so, or as nobody else does; bodies take this room.
    pub(crate) fn new(
        site: &Site,
        ranges: Arc<dyn Ranges>,
        sketching: Option<Sketching>,
        threads: NonZeroUsize,
        room: &Room,
    ) -> Result<Engine, Error> {
        let replicas = site.replicas();
        let group = site.kind().map(|kind| votes(site, kind)).transpose()?;
        let options = sketcher::Options {
            writes: site.writes,
            unverified_rather_than_none: site.unverified_rather_than_none,
            patience: site.patience,
            give_up: site.give_up,
            most_requests: site.most_requests,
            allowance: site.allowance,
            ..sketcher::Options::of(replicas, site.faults, secret()?)
        };
        let health = site.checks.as_ref().map(|checks| {
            Health::new(health::Options {
                replicas,
                interval: checks.interval,
                down: checks.down.max(1),
                up: checks.up.max(1),
            })
        });
        let shared = sketching.is_some();
        // What a group says is held in memory; what other proxies of a core say need not be.
        if site.group.is_none() || shared {
            check_spool(&site.spool)?;
        }
        let mut table = history::Options::of(site.entries);
        if shared {
            // Ranges are dropped and carried by whole shards, so these are much smaller than ranges.
            table.shards = table.shards.max(site.entries / ENTRIES_IN_A_SHARED_SHARD);
        }
        let history = Arc::new(History::new(&table));
        let sketcher = Sketcher::new(options, Arc::clone(&history), ranges);
        let sketching = sketching.map_or_else(|| secret().map(Sketching::new), Ok)?;
        let ordered = site.group.as_ref();
        let ordered = ordered.map(|group| Ordered::start(group, sketching.clone(), site)).transpose()?;
        let rules = Rules { shared, ..held_before(ordered.as_ref(), site.rules.clone()) };
        Ok(Engine {
            site: site.clone(),
            machines: Mutex::new(Machines {
                site: site.name.clone(),
                origins: site.origins.iter().map(ToString::to_string).collect(),
                sketcher,
                group,
                health,
                waiting: BTreeMap::new(),
                last_id: 0,
            }),
            upstream: Upstream::new(site, sketching.clone(), threads, room.clone())?,
            ordered,
            room: room.clone(),
            seats: (0..replicas).map(|_| Seats::of(replicas, site.most_requests)).collect(),
            identity: sketching.begin(Of::Group).finish(),
            sketching,
            history,
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

    /// A request for a name as all spellings of it are asked: a write to one is a write to all, and so is a read.
    pub(crate) fn spelled(&self, mut parts: request::Parts) -> request::Parts {
        let target = parts.uri.path_and_query().map(PathAndQuery::as_str);
        let spelled = self.ordered.as_ref().zip(target).and_then(|(ordered, target)| ordered.spelled(target));
        // One that is too long to be spelt out is too long to be asked for.
        if let Some(target) = spelled.and_then(|target| PathAndQuery::try_from(target).ok()) {
            let mut uri = parts.uri.clone().into_parts();
            uri.path_and_query = Some(target);
            parts.uri = Uri::from_parts(uri).unwrap_or(parts.uri);
        }
        parts
    }

    /// What is asked, if it can be asked of what is behind, and what its body takes.
    pub(crate) fn question(
        &self,
        forwarded: Forwarded,
        key: Sketch,
        rules: Arc<Rules>,
        body: Option<OwnedSemaphorePermit>,
    ) -> Result<Question, Unfit> {
        let command = match &self.ordered {
            Some(ordered) => ordered.command(&forwarded)?,
            None if self.site.writes == Writes::One => ordered::known_conditions(&forwarded).map(|()| Bytes::new())?,
            None => Bytes::new(),
        };
        Ok(Arc::new(Asked { forwarded, key, rules, command, room: self.room.clone(), _body: body }))
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
    pub(crate) fn carry(&self, range: KeyRange) -> Carried {
        self.history.carry(range)
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
        let (sender, mut receiver) = oneshot::channel();
        let mut errands = self.turn(|machines| {
            machines.last_id += 1;
            let id = RequestId(machines.last_id);
            machines.waiting.insert(id, sender);
            let key = question.key;
            Some(Turn::Sketcher(input(Ask { id, key, kind, client, request: question })))
        });
        // What one origin is asked for is fetched here, and not by a task that two threads would have to hear of.
        let own = if errands.fetches.len() == 1 { errands.fetches.pop() } else { None };
        self.perform(errands);
        if let Some(fetch) = own {
            let mut fetching = Fetching(Some(Box::pin(Arc::clone(self).fetch(fetch))));
            tokio::select! {
                biased;
                () = &mut fetching => {}
                end = &mut receiver => return end.unwrap_or(Err(Refusal::Busy)),
            }
        }
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

    /// Lets the machines take one input, or what is due, and does what they want.
    fn step(self: &Arc<Self>, input: impl FnOnce(&mut Machines) -> Option<Turn>) {
        let errands = self.turn(input);
        self.perform(errands);
    }

    /// Lets the machines take one input, or what is due; what they want. Nothing is awaited under the lock.
    fn turn(&self, input: impl FnOnce(&mut Machines) -> Option<Turn>) -> Errands {
        let mut errands = Errands::default();
        let moved = {
            let mut machines = self.machines.lock();
            let before = machines.deadline();
            let turn = input(&mut machines);
            machines.take(self.now(), turn, &mut errands);
            machines.deadline() < before || before.is_none()
        };
        if moved {
            self.alarm.notify_one();
        }
        errands
    }

    fn perform(self: &Arc<Self>, errands: Errands) {
        for fetch in errands.fetches {
            tokio::spawn(Arc::clone(self).fetch(fetch));
        }
        for (call, question) in errands.orders {
            tokio::spawn(Arc::clone(self).order(call, question));
        }
        for origin in errands.checks {
            tokio::spawn(Arc::clone(self).check(origin));
        }
    }

    async fn fetch(self: Arc<Self>, fetch: Fetch) {
        let Fetch { from, call, vote, question } = fetch;
        let seats = self.seats.get(usize::from(from.0));
        let Some(_seat) = seats.and_then(|seats| seats.take(vote.is_none())) else {
            return self.step(|_| {
                Some(match vote {
                    None => Turn::Sketcher(sketcher::Input::Unasked(call)),
                    Some(_) => Turn::Group(group::Input::Failed(call, from)),
                })
            });
        };
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
                let answer = answer
                    .inspect_err(
                        |why| tracing::debug!(origin = self.upstream.name(from), %why, "an origin gave no answer"),
                    )
                    .ok();
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
        let passed = checked
            .inspect_err(|why| tracing::debug!(origin = self.upstream.name(origin), %why, "a health check failed"))
            .is_ok();
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
fn votes(site: &Site, kind: group::Kind) -> Result<Group<Question, Sheet>, Error> {
    let replicas = site.replicas();
    let options = group::Options {
        group: 0,
        client: 0,
        last_nonce: 0,
        replicas,
        kind,
        // Origins are asked once; whoever does not lie may be asked again, and another one too.
        resend: if kind == group::Kind::CrashTolerant { site.patience } else { site.give_up },
        give_up: site.give_up,
        mutant: None,
    };
    Group::new(options).map_err(|misfit| {
        let what = format!("{replicas} origins, f = {}, quorum {}", site.faults, site.quorum);
        Error::new("sketch.misfit", Class::Invalid, what).hint(misfit.to_string())
    })
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
                    self.sketcher.handle(now, sketcher::Input::Health(origin, up), &mut asked);
                    self.tell(now.mono, origin, up);
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

    /// Logs that an origin is up, or down. However many are down, no more are left out than may be wrong.
    fn tell(&self, now: Mono, origin: ReplicaId, up: bool) {
        let at = usize::from(origin.0);
        let left_out = self.sketcher.standing(now).get(at).is_some_and(|standing| standing.ejected);
        let (site, origin) = (self.site.as_str(), self.origins.get(at).map_or("", String::as_str));
        match (up, left_out) {
            (true, _) => tracing::info!(site, origin, "an origin is up"),
            (false, true) => tracing::warn!(site, origin, "an origin is down: it is not asked alone"),
            (false, false) => {
                tracing::warn!(site, origin, "an origin is down, and asked alone all the same: too many are")
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
