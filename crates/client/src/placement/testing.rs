//! A pool inside the process, for tests of what uses one: the real machines over files in memory, on tokio's time, which a
//! test can pause and move.
//!
//! ```
//! # use tidings_client::placement::testing::TestPool;
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
//! let pool = TestPool::start("counters").await?;
//! let server = pool.join("server-1").await?;
//! let lookup = pool.lookup().await?;
//! pool.settled().await;
//! assert!(server.check_now("some key").is_some());
//! assert_eq!(lookup.lookup("some key")?.hint().unwrap().owner(), "server-1");
//! # Ok::<(), tidings_base::Error>(()) }).unwrap();
//! ```

use super::clock::Clock;
use super::lookup::{Lookup, LookupOptions};
use super::operate::Placement;
use super::owner::{Owner, OwnerOptions};
use super::transport::PlacementTransport;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, OpId, Outbox};
use tidings_placement::To;
use tidings_placement::config::Times;
use tidings_placement::manager::file::{File, Kind};
use tidings_placement::manager::{Input, Manager, Options, Outcome, Output};
use tidings_wire::v1::{self, placement_message::Message};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A namespace with one manager. Cheap to clone; it stops when the last clone and the last line are dropped.
#[derive(Clone)]
pub struct TestPool {
    shared: Arc<Shared>,
    namespace: String,
}

struct Shared {
    clock: Clock,
    inner: Mutex<Inner>,
    /// The machine wants to be woken at another time.
    alarm: Notify,
}

struct Inner {
    manager: Manager,
    outbox: Outbox<Output>,
    files: BTreeMap<File, (u64, Bytes)>,
    heard: VecDeque<Input>,
    answers: BTreeMap<OpId, oneshot::Sender<Result<Message, Error>>>,
    next_op: u64,
    epoch: u64,
}

impl TestPool {
    /// Starts a pool with 12 s leases, renewed every 2.5 s. Must be called within a runtime.
    pub async fn start(namespace: &str) -> Result<TestPool, Error> {
        let (lease, renew) = (Times::FAST.lease.as_millis(), Times::FAST.renew.as_millis());
        let config =
            v1::NamespaceConfig { lease_ms: lease as u32, renew_ms: renew as u32, ..v1::NamespaceConfig::default() };
        let inner = Inner {
            manager: manager(0),
            outbox: Outbox::new(),
            files: BTreeMap::new(),
            heard: VecDeque::new(),
            answers: BTreeMap::new(),
            next_op: 1,
            epoch: 0,
        };
        let shared = Arc::new(Shared { clock: Clock::tokio(), inner: Mutex::new(inner), alarm: Notify::new() });
        tokio::spawn(keep_time(Arc::downgrade(&shared)));
        let pool = TestPool { shared, namespace: namespace.to_owned() };
        pool.fail_over();
        pool.placement().create(namespace, config).await?;
        Ok(pool)
    }

    /// What operators ask of it.
    pub fn placement(&self) -> Placement {
        Placement::new(self.line())
    }

    /// A line of its own to the manager.
    pub fn line(&self) -> Line {
        Line { pool: self.shared.clone(), up: Arc::new(watch::Sender::new(true)) }
    }

    /// Options for an owner of this pool, on its clock; its address is its name, with a port.
    pub fn options(&self, name: &str) -> OwnerOptions {
        OwnerOptions::new(&self.namespace, name, format!("{name}:1")).clock(self.shared.clock.clone())
    }

    /// An owner that joins.
    pub async fn join(&self, name: &str) -> Result<Owner, Error> {
        Owner::join(self.line(), self.options(name)).await
    }

    /// A lookup.
    pub async fn lookup(&self) -> Result<Lookup, Error> {
        self.lookup_over(self.line()).await
    }

    /// A lookup over a line that can be cut.
    pub async fn lookup_over(&self, line: Line) -> Result<Lookup, Error> {
        let options = LookupOptions { clock: self.shared.clock.clone(), ..LookupOptions::new(&self.namespace) };
        Lookup::connect(line, options).await
    }

    /// Waits until every point of the ring is said to belong to somebody who is alive, as the manager knows it, and lookups
    /// have been told.
    pub async fn settled(&self) {
        for _ in 0..1_000 {
            sleep(Duration::from_millis(150)).await;
            let Ok(table) = self.placement().table(&self.namespace).await else { continue };
            let Ok(owners) = self.placement().owners(&self.namespace).await else { continue };
            let live: Vec<u32> = owners
                .iter()
                .filter(|info| info.live)
                .filter_map(|info| info.owner.as_ref().filter(|owner| !owner.draining).map(|owner| owner.index))
                .collect();
            let all = !table.ranges.is_empty() && table.ranges.iter().all(|range| live.contains(&range.owner));
            let each = live.iter().all(|index| table.ranges.iter().any(|range| range.owner == *index));
            if all && each {
                return sleep(Duration::from_millis(150)).await;
            }
        }
    }

    /// Replaces the manager: another one takes over that knows only what was committed.
    pub fn fail_over(&self) {
        let inner = &mut *self.shared.inner.lock();
        for (_, answer) in std::mem::take(&mut inner.answers) {
            let _ = answer.send(Err(lost()));
        }
        inner.epoch += 1;
        inner.outbox = Outbox::new();
        inner.heard.clear();
        inner.manager = manager(inner.epoch);
        inner.heard.extend([Input::SessionUntil(Mono::NEVER), Input::Elected { epoch: inner.epoch }]);
        self.shared.run(inner);
    }
}

fn manager(seed: u64) -> Manager {
    Manager::new(Options { seed, ..Options::default() })
}

fn lost() -> Error {
    Error::new("control.lost", Class::OutcomeUnknown, "the connection ended before the answer")
}

impl Shared {
    fn input(&self, input: Input) {
        let inner = &mut *self.inner.lock();
        inner.heard.push_back(input);
        self.run(inner);
    }

    /// Performs until nothing is left to do: the files are written at once.
    fn run(&self, inner: &mut Inner) {
        while let Some(input) = inner.heard.pop_front() {
            inner.manager.handle(self.clock.now(), input, &mut inner.outbox);
            inner.perform();
        }
        self.alarm.notify_one();
    }
}

impl Inner {
    fn perform(&mut self) {
        let mut outbox = std::mem::take(&mut self.outbox);
        for output in outbox.drain() {
            match output {
                Output::Commit { id, file, expected, bytes } => {
                    let there = self.files.get(&file).map(|(generation, _)| *generation);
                    let outcome = match there == expected {
                        true => {
                            let generation = there.unwrap_or_default() + 1;
                            self.files.insert(file, (generation, bytes));
                            Outcome::Done { generation }
                        }
                        false => Outcome::Conflict,
                    };
                    self.heard.push_back(Input::Committed { id, outcome });
                }
                Output::Read { id, file } => {
                    let contents = Ok(self.files.get(&file).cloned());
                    self.heard.push_back(Input::FileRead { id, contents });
                }
                Output::List => {
                    let metas = self.files.keys().filter(|file| file.kind == Kind::Meta);
                    let names = Ok(metas.map(|file| file.namespace.clone()).collect());
                    self.heard.push_back(Input::Listed { names });
                }
                Output::Answer { op, message } => self.answer(op, Ok(message)),
                Output::Push { ops, message } => {
                    ops.into_iter().for_each(|op| self.answer(op, Ok(message.clone())));
                }
                Output::Fail { op, error } => self.answer(op, Err(error)),
                Output::StepDown => {}
            }
        }
        self.outbox = outbox;
    }

    fn answer(&mut self, op: OpId, result: Result<Message, Error>) {
        if let Some(answer) = self.answers.remove(&op) {
            let _ = answer.send(result);
        }
    }
}

/// Wakes the manager at its deadlines for as long as somebody has the pool.
async fn keep_time(shared: Weak<Shared>) {
    while let Some(pool) = shared.upgrade() {
        let now = pool.clock.now();
        let deadline = {
            let inner = &mut *pool.inner.lock();
            if inner.manager.deadline().is_some_and(|at| at <= now.mono) {
                inner.manager.wake(now, &mut inner.outbox);
                inner.perform();
                pool.run(inner);
            }
            inner.manager.deadline()
        };
        let pause = deadline.map_or(Duration::from_secs(1), |at| at.since(now.mono).min(Duration::from_secs(1)));
        tokio::select! {
            () = pool.alarm.notified() => {}
            () = sleep_until(Instant::now() + pause) => {}
        }
    }
}

/// A line to the manager that can be cut and mended. Cheap to clone.
#[derive(Clone)]
pub struct Line {
    pool: Arc<Shared>,
    up: Arc<watch::Sender<bool>>,
}

impl Line {
    /// Nothing gets through any more, and who waits for an answer gets none.
    pub fn cut(&self) {
        self.up.send_replace(false);
    }

    /// Requests get through again; those that waited are lost.
    pub fn mend(&self) {
        self.up.send_replace(true);
    }

    async fn ask(&self, message: v1::PlacementMessage, within: Duration) -> Result<v1::PlacementMessage, Error> {
        if !*self.up.borrow() {
            let _ = timeout(within, until(self.up.subscribe(), true)).await;
            return Err(lost());
        }
        let (answer, answered) = oneshot::channel();
        let op = {
            let mut inner = self.pool.inner.lock();
            inner.next_op += 1;
            let op = OpId(inner.next_op);
            inner.answers.insert(op, answer);
            op
        };
        let _cancel = Cancel { pool: &self.pool, op };
        self.pool.input(match message.message {
            Some(Message::OwnerPoll(poll)) => Input::Owner { op, poll: Box::new(poll) },
            Some(Message::LookupPoll(poll)) => Input::Lookup { op, poll },
            Some(request) => Input::Operate { op, request },
            None => Input::Cancel { op },
        });
        tokio::select! {
            biased;
            () = until(self.up.subscribe(), false) => {
                let _ = timeout(within, until(self.up.subscribe(), true)).await;
                Err(lost())
            }
            answer = timeout(within, answered) => match answer {
                Ok(Ok(message)) => message.map(|message| v1::PlacementMessage { message: Some(message) }),
                Ok(Err(_)) => Err(lost()),
                Err(_) => Err(tidings_wire::error::deadline()),
            },
        }
    }
}

async fn until(mut line: watch::Receiver<bool>, up: bool) {
    let _ = line.wait_for(|now| *now == up).await;
}

impl PlacementTransport for Line {
    fn call(
        &self,
        _to: To,
        message: v1::PlacementMessage,
        within: Duration,
    ) -> BoxFuture<'_, Result<v1::PlacementMessage, Error>> {
        Box::pin(self.ask(message, within))
    }
}

/// Tells the manager that nobody waits any more.
struct Cancel<'a> {
    pool: &'a Shared,
    op: OpId,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        if self.pool.inner.lock().answers.remove(&self.op).is_some() {
            self.pool.input(Input::Cancel { op: self.op });
        }
    }
}
