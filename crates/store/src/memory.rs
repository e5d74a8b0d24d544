//! The smallest driver: the front and the state in memory, with a log that agrees with itself at once.
//!
//! For tests and for trying out; nothing survives it but what [`MemoryStore::reopen`] hands on.

use crate::calls::Calls;
use crate::front::{Front, Input, Options, Output, Reply, Request};
use crate::kv::{Kv, MemoryKv};
use crate::read::{StoreReader, Unread};
use crate::state::StoreState;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Role, StateFailure};
use tidings_base::{Class, Epoch, Error, LogIndex, Machine, Mono, Now, OpId, Outbox, Wall};
use tokio::sync::{Notify, oneshot};

/// Store and feed in one process without a log.
pub struct MemoryStore<K: Kv = MemoryKv> {
    core: Mutex<Core<K>>,
    /// Told whenever the front's deadline may have moved.
    moved: Notify,
    began: tokio::time::Instant,
}

struct Core<K: Kv> {
    front: Front,
    state: StoreState<K>,
    reader: StoreReader<K::Reader>,
    waiting: BTreeMap<OpId, oneshot::Sender<Result<Vec<Reply>, Error>>>,
    last_op: OpId,
    epoch: Epoch,
}

impl MemoryStore<MemoryKv> {
    /// An empty store and feed.
    pub fn new() -> MemoryStore<MemoryKv> {
        match MemoryStore::open(MemoryKv::new()) {
            Ok(store) => store,
            Err(_) => unreachable!("an empty space in memory cannot fail"),
        }
    }
}

impl Default for MemoryStore<MemoryKv> {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl<K: Kv> MemoryStore<K> {
    /// The store and feed that a space holds.
    pub fn open(kv: K) -> Result<MemoryStore<K>, StateFailure> {
        let state = StoreState::open(kv)?;
        let reader = state.reader();
        let mut core = Core {
            front: Front::new(Options::default()),
            state,
            reader,
            waiting: BTreeMap::new(),
            last_op: OpId(1),
            epoch: Epoch(0),
        };
        core.lead();
        Ok(MemoryStore { core: Mutex::new(core), moved: Notify::new(), began: now() })
    }

    /// The same content under a new leader: deliveries are forgotten, as after a restart.
    pub fn reopen(&self) {
        self.core.lock().lead();
        self.moved.notify_waiters();
    }

    /// Closes it and gives the state back.
    pub fn into_state(self) -> StoreState<K> {
        self.core.into_inner().state
    }

    fn now(&self) -> Now {
        let passed = now().duration_since(self.began);
        // Any beginning will do for either clock; nothing here depends on it.
        Now { mono: Mono(0) + Duration::from_secs(1) + passed, wall: Wall(0) + passed }
    }

    async fn sleep_until(&self, deadline: Option<Mono>) {
        match deadline {
            Some(deadline) => tokio::time::sleep(deadline.since(self.now().mono)).await,
            None => std::future::pending().await,
        }
    }
}

/// The one place that reads a clock: this is a driver, if a small one.
#[allow(clippy::disallowed_methods)]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

#[async_trait]
impl<K: Kv + Sync> Calls for MemoryStore<K> {
    async fn call(&self, request: Request) -> Result<Vec<Reply>, Error> {
        let (done, mut answer) = oneshot::channel();
        let op = {
            let mut core = self.core.lock();
            core.last_op = OpId(core.last_op.0 + 2);
            let op = core.last_op;
            core.waiting.insert(op, done);
            core.run(self.now(), Input::Request { op, request, deadline: None });
            op
        };
        let _gone = Gone { store: self, op };
        self.moved.notify_waiters();
        loop {
            let moved = self.moved.notified();
            let deadline = self.core.lock().front.deadline();
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or_else(|_| Err(stopped())),
                () = moved => {}
                () = self.sleep_until(deadline) => self.core.lock().wake(self.now()),
            }
        }
    }
}

/// Tells the front when a caller stops waiting: a consumer that is gone must not be given entries.
struct Gone<'a, K: Kv> {
    store: &'a MemoryStore<K>,
    op: OpId,
}

impl<K: Kv> Drop for Gone<'_, K> {
    fn drop(&mut self) {
        let mut core = self.store.core.lock();
        if core.waiting.remove(&self.op).is_some() {
            core.run(self.store.now(), Input::Cancel { op: self.op });
        }
    }
}

impl<K: Kv> Core<K> {
    fn lead(&mut self) {
        self.epoch = self.epoch.next();
        let role = Role::Leader { epoch: self.epoch };
        self.run(Now::default(), Input::Heard(Heard::Role(role)));
    }

    fn wake(&mut self, now: Now) {
        let mut out = Outbox::new();
        self.front.wake(now, &mut out);
        self.perform(now, out);
    }

    fn run(&mut self, now: Now, input: Input) {
        let mut out = Outbox::new();
        self.front.handle(now, input, &mut out);
        self.perform(now, out);
    }

    fn perform(&mut self, now: Now, out: Outbox<Output>) {
        let mut queue: VecDeque<Output> = out.into_iter().collect();
        while let Some(output) = queue.pop_front() {
            let input = match output {
                Output::Ask(Ask::Propose { op, command }) => Input::Heard(self.apply(op, &command)),
                Output::Ask(Ask::ReadBarrier { op }) => {
                    Input::Heard(Heard::Passed { op, index: self.state.position().index })
                }
                Output::Look { line, query } => {
                    Input::Looked { line, answer: self.reader.feed(&query).map_err(failed) }
                }
                Output::Read { op, query } => {
                    let mut frames = Vec::new();
                    let read = self.reader.answer(&query, &mut |frame, _| frames.push(Reply::Store(frame)));
                    self.finish(op, read.map(|()| frames).map_err(Unread::into_error));
                    continue;
                }
                Output::Reply { op, reply: Reply::Error { error, .. } } => {
                    self.finish(op, Err(error));
                    continue;
                }
                Output::Reply { op, reply } => {
                    self.finish(op, Ok(vec![reply]));
                    continue;
                }
            };
            let mut out = Outbox::new();
            self.front.handle(now, input, &mut out);
            queue.extend(out);
        }
    }

    fn apply(&mut self, op: OpId, command: &Bytes) -> Heard {
        let index = LogIndex(self.state.position().index.0 + 1);
        match self.state.apply(&[Entry { index, command }], Bytes::new()) {
            Ok(mut results) => Heard::Applied { op, index, result: results.pop().unwrap_or_default() },
            // What a real log does when its state fails: it stops, and nobody knows.
            Err(_) => Heard::Unknown { op },
        }
    }

    fn finish(&mut self, op: OpId, result: Result<Vec<Reply>, Error>) {
        if let Some(done) = self.waiting.remove(&op) {
            // A caller that is gone does not want its answer.
            let _ = done.send(result);
        }
    }
}

fn failed(failure: StateFailure) -> Error {
    Error::new("store.failed", Class::Failed, failure.what).hint("`tidings doctor` says what to do.")
}

fn stopped() -> Error {
    Error::new("store.stopped", Class::Unreachable, "The store was closed.")
}
