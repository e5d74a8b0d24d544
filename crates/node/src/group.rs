//! Store and feed on this node: the front machine on tokio, the agreed log beneath it, the state that the log feeds.
//!
//! ```text
//!   StoreGroup::request ─▶ Front (machine, one task) ─ Ask ─▶ consensus::Group ─▶ StoreState<FjallKv>
//!        ▲   ▲                │        ▲                           │                    │
//!        │   └── Reply ───────┘        └───────── Heard ───────────┘                    │
//!        └────── Read: the caller's own task reads the state through a StoreReader ◀────┘
//! ```

use crate::clock::Clock;
use crate::driver::{self, Handle, Perform};
use crate::services::admin;
use crate::waiting::{Cancelling, Waiting};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::Heard;
use tidings_base::{Class, Error, Mono, NodeId, OpId};
use tidings_consensus::{Group, GroupConfig, Transport};
use tidings_store::Calls;
use tidings_store::delivery::LineId;
use tidings_store::front::{Front, Input, Options, Output, Reply, Request};
use tidings_store::read::{FeedAnswer, FeedQuery, Query, StoreReader, Unread};
use tidings_store::state::StoreState;
use tidings_store_local::{FjallKv, FjallReader};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Inputs that may wait for the front: two batches of its driver and some; callers wait beyond that.
const QUEUE: usize = 1_024;

/// What was heard of the log is handed to the front in batches of at most this many.
const HEARD_BATCH: usize = 256;

/// Store and feed on this node. Cheap to clone.
#[derive(Clone)]
pub struct StoreGroup {
    shared: Arc<Shared>,
}

struct Shared {
    front: Handle<Input>,
    group: Group,
    reader: StoreReader<FjallReader>,
    waiting: Arc<Waiting<Answer>>,
    clock: Arc<dyn Clock>,
    tasks: Mutex<Option<Tasks>>,
    leaving: watch::Sender<bool>,
}

/// What runs for the group. Both hold the state open.
struct Tasks {
    front: JoinHandle<Front>,
    pump: JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(tasks) = self.tasks.lock().take() {
            tasks.front.abort();
            tasks.pump.abort();
        }
    }
}

/// Why a request has no answer from this node, and who could give one.
#[derive(Debug)]
pub struct Refused {
    /// What to tell the caller.
    pub error: Error,
    /// The leader, if this node is not it and knows who is.
    pub leader: Option<NodeId>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, leader: None }
    }
}

impl StoreGroup {
    /// Opens the log and the state and begins to take part in the group.
    pub async fn start(
        config: GroupConfig,
        state: StoreState<FjallKv>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
    ) -> Result<StoreGroup, Error> {
        let reader = state.reader();
        let log_clock = Arc::new(LogClock(clock.clone()));
        let group = Group::start(config, Box::new(state), transport, log_clock).await?;
        let waiting = Arc::new(Waiting::default());
        let (looks, looked) = mpsc::unbounded_channel();
        let perform = Performer { group: group.clone(), waiting: waiting.clone(), reader: reader.clone(), looks };
        let (front, driving) = driver::spawn("store", Front::new(Options::default()), perform, clock.clone(), QUEUE);
        let pump = tokio::spawn(pump(front.clone(), group.heard(), looked));
        let tasks = Mutex::new(Some(Tasks { front: driving, pump }));
        let leaving = watch::Sender::new(false);
        Ok(StoreGroup { shared: Arc::new(Shared { front, group, reader, waiting, clock, tasks, leaving }) })
    }

    /// The agreed log of the group.
    pub fn log(&self) -> &Group {
        &self.shared.group
    }

    /// Answers a request with the frames of its answer, at least one. Dropping the future cancels the request; what it
    /// wrote stays written.
    pub async fn request(&self, request: Request, patience: Option<Duration>) -> Result<Vec<Reply>, Refused> {
        let code = match request {
            Request::Feed(_) => "feed.not_leader",
            Request::Store(_) | Request::Operate(_) => "store.not_leader",
        };
        admin::refuse_hopeless(&self.shared.group, code)?;
        let deadline = patience.map(|patience| self.shared.clock.now().mono + patience);
        let wait = self.shared.waiting.begin(&self.shared.front);
        let input = Input::Request { op: wait.op(), request, deadline };
        if self.shared.front.send(input).await.is_err() {
            return Err(stopped().into());
        }
        match wait.await.ok_or_else(stopped)? {
            Answer::Read(query) => Ok(self.read(query).await?),
            Answer::Reply(Reply::Error { error, leader }) => {
                let redirect = self.shared.group.leads_at(leader);
                Err(Refused { error: admin::explain(&self.shared.group, error.redirect(redirect)), leader })
            }
            Answer::Reply(reply) => Ok(vec![reply]),
        }
    }

    /// Reads the state on the caller's own task; a scan may take long and moves to a thread for such work.
    async fn read(&self, query: Query) -> Result<Vec<Reply>, Error> {
        let reader = self.shared.reader.clone();
        match query {
            Query::Scan(_) => {
                let scan = tokio::task::spawn_blocking(move || frames(&reader, &query)).await;
                scan.map_err(|e| Error::new("store.read_failed", Class::Failed, e.to_string()))?
            }
            Query::Get(_) | Query::Status => frames(&reader, &query),
        }
    }

    /// Lets go of consumers that wait for something to come.
    pub fn let_go(&self) {
        self.shared.leaving.send_replace(true);
    }

    /// Waits until consumers are let go.
    pub async fn lets_go(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.shared.leaving.subscribe().wait_for(|leaving| *leaving).await;
    }

    /// Waits until the front has stopped by itself; its driver ends only so.
    pub async fn broken(&self) {
        self.shared.front.ended().await;
    }

    /// Hands leadership over if this node leads, and stops. Once the last clone is dropped too, the state is closed.
    pub async fn shutdown(&self) {
        self.shared.group.shutdown().await;
        self.stopped().await;
    }

    /// Stops at once, as a crash would, though what was handed to the disk stays.
    pub async fn stop(&self) {
        self.shared.group.stop().await;
        self.stopped().await;
    }

    async fn stopped(&self) {
        let tasks = self.shared.tasks.lock().take();
        if let Some(tasks) = tasks {
            tasks.pump.abort();
            tasks.front.abort();
            // Aborted tasks end as such; what matters is that they have let go of the state.
            let _ = (tasks.pump.await, tasks.front.await);
        }
    }
}

#[cfg(test)]
impl StoreGroup {
    /// Ends the front's task, as a panic in it would.
    pub(crate) fn break_front(&self) {
        self.shared.tasks.lock().iter().for_each(|tasks| tasks.front.abort());
    }
}

/// Whoever holds the group is a `Store` and a `Feed`, as long as this node leads.
#[async_trait]
impl Calls for StoreGroup {
    async fn call(&self, request: Request) -> Result<Vec<Reply>, Error> {
        self.request(request, None).await.map_err(|refused| refused.error)
    }
}

fn frames(reader: &StoreReader<FjallReader>, query: &Query) -> Result<Vec<Reply>, Error> {
    let mut frames = Vec::new();
    reader.answer(query, &mut |message, _| frames.push(Reply::Store(message))).map_err(Unread::into_error)?;
    Ok(frames)
}

fn stopped() -> Error {
    Error::new("store.stopped", Class::Unreachable, "This node is stopping.").hint("Ask another node.")
}

/// What a request gets from the front.
enum Answer {
    /// Read this from the state now: it is fresh enough.
    Read(Query),
    /// This is it.
    Reply(Reply),
}

impl Cancelling for Input {
    fn cancel(op: OpId) -> Input {
        Input::Cancel { op }
    }
}

/// Performs what the front wants.
struct Performer {
    group: Group,
    waiting: Arc<Waiting<Answer>>,
    reader: StoreReader<FjallReader>,
    looks: mpsc::UnboundedSender<(LineId, Result<FeedAnswer, Error>)>,
}

impl Perform<Output> for Performer {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Ask(ask) => self.group.ask(ask),
            Output::Read { op, query } => self.waiting.answer(op, Answer::Read(query)),
            Output::Reply { op, reply } => self.waiting.answer(op, Answer::Reply(reply)),
            Output::Look { line, query } => self.look(line, query),
        }
    }
}

impl Performer {
    /// Reads the feed on a thread that may wait for the disk. The front asks for one look a line at a time, which
    /// bounds how many there are.
    fn look(&self, line: LineId, query: FeedQuery) {
        let (reader, looks) = (self.reader.clone(), self.looks.clone());
        tokio::task::spawn_blocking(move || {
            let answer = reader.feed(&query).map_err(|failure| Unread::Failed(failure).into_error());
            // A front that is gone needs no answer.
            let _ = looks.send((line, answer));
        });
    }
}

/// Brings the front what it hears of the log and what was read for it.
async fn pump(
    front: Handle<Input>,
    mut heard: mpsc::UnboundedReceiver<Heard>,
    mut looked: mpsc::UnboundedReceiver<(LineId, Result<FeedAnswer, Error>)>,
) {
    let mut batch = Vec::with_capacity(HEARD_BATCH);
    loop {
        tokio::select! {
            taken = heard.recv_many(&mut batch, HEARD_BATCH) => {
                if taken == 0 {
                    return;
                }
                for heard in batch.drain(..) {
                    if front.send(Input::Heard(heard)).await.is_err() {
                        return;
                    }
                }
            }
            Some((line, answer)) = looked.recv() => {
                if front.send(Input::Looked { line, answer }).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The host's clock as the log wants it.
pub(crate) struct LogClock(pub Arc<dyn Clock>);

impl tidings_consensus::Clock for LogClock {
    fn mono(&self) -> Mono {
        self.0.now().mono
    }
}
