//! The cell on this node: the master's machine on tokio, the agreed log of group 0 beneath it, the namespace that the
//! log feeds and the master reads.
//!
//! ```text
//!   CellGroup::request ─▶ Mastering (machine, one task) ─ Ask ─▶ consensus::Group ─▶ CellState
//!        ▲                  │      ▲        └──────── reads ◀───────────────────────────┘ (one lock, held while applying)
//!        └── Reply, Fail ───┘      └──────────── Heard ───────────────┘
//! ```
//! The state is in memory; the log keeps snapshot files for it. A request that the master holds (KeepAlive, acquire)
//! is an entry in a table and a small future, not a task.

mod measured;
mod screen;
mod spares;

pub(crate) use spares::{Spare, Spares, watch as watch_spares};

use crate::clock::Clock;
use crate::driver::{self, Handle, NotTaken, Perform};
use crate::gate::Answers;
use crate::group::{LogClock, Refused};
use crate::metrics;
use crate::services::admin;
use crate::waiting::{Cancelling, Wait, Waiting};
use futures::StreamExt;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{Heard, Role};
use tidings_base::{Class, Error, NodeId, OpId};
use tidings_cell::master::{Input, Master, Mastering, Options, Output};
use tidings_cell::namespace::{CellState, SharedNamespace, backup};
use tidings_consensus::{ClusterId, Group, GroupConfig, Transport};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Body, v1};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Inputs that may wait for the master: some batches of its driver; callers wait beyond that.
const QUEUE: usize = 4_096;

/// What was heard of the log is handed to the master in batches of at most this many.
const HEARD_BATCH: usize = 256;

/// Pieces of a backup that are made before they are read.
const PIECES_AHEAD: usize = 4;

/// What is under way when a node stops may still be answered for so long before the rest is let go.
const LAST_ANSWERS: Duration = Duration::from_millis(50);

/// The cell on this node. Cheap to clone.
#[derive(Clone)]
pub struct CellGroup {
    shared: Arc<Shared>,
}

struct Shared {
    node: NodeId,
    master: Handle<Input>,
    group: Group,
    state: SharedNamespace,
    waiting: Arc<Waiting<Answer>>,
    tasks: Mutex<Option<Tasks>>,
}

/// What runs for the group. The first holds the state.
struct Tasks {
    master: JoinHandle<Mastering>,
    pump: JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(tasks) = self.tasks.lock().take() {
            tasks.master.abort();
            tasks.pump.abort();
        }
    }
}

/// Where a request's answer comes from.
enum Asked<S> {
    /// From here, at once.
    Here(Result<Box<Message>, Box<Error>>),
    /// From the master, once it has taken the request.
    Master(Wait<Answer, Input>, Option<S>),
}

/// What a request gets from the master. Boxed: many wait, few are answered at a time.
type Answer = Box<Result<Message, Refused>>;

impl CellGroup {
    /// Opens the log, restores the state and begins to take part in the group.
    pub async fn start(
        config: GroupConfig,
        mut options: Options,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
    ) -> Result<CellGroup, Error> {
        let state = CellState::new();
        let shared = state.shared();
        let log_clock = Arc::new(LogClock(clock.clone()));
        let group = Group::start(config, Box::new(state), transport, log_clock).await?;
        let waiting = Arc::new(Waiting::default());
        let node = options.node;
        options.alone = group.began_alone();
        let machine = Mastering { master: Master::new(options), state: shared.clone() };
        let perform = Performer { group: group.clone(), waiting: waiting.clone() };
        let (master, driving) = driver::spawn("cell", machine, perform, clock, QUEUE);
        let pump = tokio::spawn(pump(master.clone(), group.heard()));
        let tasks = Mutex::new(Some(Tasks { master: driving, pump }));
        Ok(CellGroup { shared: Arc::new(Shared { node, master, group, state: shared, waiting, tasks }) })
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// The agreed log of the group.
    pub fn log(&self) -> &Group {
        &self.shared.group
    }

    /// How many requests are under way or held.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.len()
    }

    /// Asks the master here; `request.caller` says for whom. It is asked at once; dropping the future cancels it, and
    /// what it changed stays changed.
    pub fn request(
        &self,
        request: v1::CellMessage,
    ) -> impl Future<Output = Result<v1::CellMessage, Refused>> + Send + use<> {
        let shared = self.shared.clone();
        let refused = |message: &Message| screen::refused(&shared.state, message).or_else(|| shared.hopeless(message));
        let asked = match request.message.as_ref().and_then(refused) {
            Some(refused) => Asked::Here(Err(refused)),
            None => match shared.applied(&request) {
                Some(answer) => Asked::Here(answer.map(Box::new).map_err(Box::new)),
                None => {
                    let (wait, unsent) = shared.ask(request);
                    Asked::Master(wait, unsent)
                }
            },
        };
        async move {
            let (wait, unsent) = match asked {
                Asked::Here(answer) => {
                    return answer.map(|message| shared.said(*message)).map_err(|refused| (*refused).into());
                }
                Asked::Master(wait, unsent) => (wait, unsent),
            };
            if let Some(sending) = unsent
                && !sending.await
            {
                return Err(stopped().into());
            }
            shared.answered(wait).await
        }
    }

    /// A backup of the whole cell, in pieces, as of a moment after it was asked for. Only the leader makes one, since
    /// only it knows that nothing newer was acknowledged.
    pub async fn backup(&self) -> Result<Answers, Refused> {
        let shared = &self.shared;
        if let Role::Follower { leader } = *shared.group.role().borrow() {
            return Err(shared.elsewhere(leader));
        }
        if shared.group.barrier().await.is_err() {
            let leader = match *shared.group.role().borrow() {
                Role::Follower { leader } => leader,
                Role::Leader { .. } => None,
            };
            return Err(shared.elsewhere(leader));
        }
        let pieces = backup::pieces(&shared.state.read());
        pieces.check()?;
        // Made on a thread that may take its time, no faster than they are read.
        let (sender, made) = mpsc::channel(PIECES_AHEAD);
        tokio::task::spawn_blocking(move || {
            for bytes in pieces {
                if sender.blocking_send(bytes).is_err() {
                    return;
                }
            }
        });
        let frames = futures::stream::unfold(made, |mut made| async move {
            let message = Some(Message::BackupChunk(v1::BackupChunk { bytes: made.recv().await? }));
            Some((Ok(Body::Cell(v1::CellMessage { message, ..Default::default() })), made))
        });
        Ok(frames.boxed())
    }

    /// Waits until the master's machine has stopped by itself; its driver ends only so.
    pub async fn broken(&self) {
        self.shared.master.ended().await;
    }

    /// Lets go of all that wait, after leadership was handed over: they ask the next master.
    pub async fn let_go(&self) {
        tokio::time::sleep(LAST_ANSWERS).await;
        self.shared.waiting.abandon();
    }

    /// Hands leadership over if this node leads, and stops.
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
            tasks.master.abort();
            let _ = (tasks.pump.await, tasks.master.await);
        }
        self.shared.waiting.abandon();
    }
}

#[cfg(test)]
impl CellGroup {
    /// Ends the master's task, as a panic in it would.
    pub(crate) fn break_master(&self) {
        self.shared.tasks.lock().iter().for_each(|tasks| tasks.master.abort());
    }
}

impl Shared {
    /// Refuses at once what begins something while nothing can be agreed on. Sessions that are there know what to do.
    fn hopeless(&self, message: &Message) -> Option<Box<Error>> {
        let begins = matches!(
            message,
            Message::CreateSession(_)
                | Message::SetQuota(_)
                | Message::GetQuota(_)
                | Message::ListSessions(_)
                | Message::ListLocks(_)
                | Message::EndSession(_)
                | Message::Restore(_)
        );
        let refused = begins.then(|| admin::refuse_hopeless(&self.group, "cell.not_master").err());
        refused.flatten().map(Box::new)
    }

    /// Hands a request to the master: what waits for the answer, and what is still to be done before there can be one.
    fn ask(
        &self,
        request: v1::CellMessage,
    ) -> (Wait<Answer, Input>, Option<Pin<Box<impl Future<Output = bool> + Send + use<>>>>) {
        let wait = self.waiting.begin(&self.master);
        // With room in the queue, which is nearly always, the future need not keep the request.
        let unsent = match self.master.try_send(Input::Request { op: wait.op(), request, deadline: None }) {
            Ok(()) => None,
            Err(NotTaken::Busy(input) | NotTaken::Stopped(input)) => {
                let (master, input) = (self.master.clone(), Box::new(input));
                Some(Box::pin(async move { master.send(*input).await.is_ok() }))
            }
        };
        (wait, unsent)
    }

    /// What this node itself answers, without the master: what it has applied, for whoever says that it may be old.
    fn applied(&self, request: &v1::CellMessage) -> Option<Result<Message, Error>> {
        let Some(Message::Read(read)) = &request.message else { return None };
        (read.place() == v1::ReadPlace::Applied).then(|| {
            let nobody = || Error::new("cell.malformed", Class::Failed, "it does not say who calls");
            let caller = request.caller.as_ref().ok_or_else(nobody)?;
            self.state.read().look_applied(caller, read).map(Message::PlacedRead)
        })
    }

    /// An answer as it leaves: a place says of which cell it is.
    fn said(&self, mut message: Message) -> v1::CellMessage {
        if let Message::PlacedRead(v1::PlacedRead { place: Some(place), .. }) = &mut message {
            place.cluster = self.group.cluster().map_or(0, ClusterId::get);
        }
        v1::CellMessage { message: Some(message), ..Default::default() }
    }

    async fn answered(&self, wait: Wait<Answer, Input>) -> Result<v1::CellMessage, Refused> {
        match wait.await.map(|answer| *answer) {
            Some(Ok(message)) => Ok(self.said(message)),
            Some(Err(refused)) => {
                // Only what certainly did not happen may be asked elsewhere as if it were new.
                let leader = refused.leader.filter(|_| refused.error.class == Class::Unreachable);
                let redirect = self.group.leads_at(leader);
                Err(Refused { error: admin::explain(&self.group, refused.error.redirect(redirect)), leader })
            }
            None => Err(let_go().into()),
        }
    }

    fn elsewhere(&self, leader: Option<NodeId>) -> Refused {
        let redirect = self.group.leads_at(leader);
        let error = Error::new("cell.not_master", Class::Unreachable, "This node is not the master of the cell.")
            .hint("Ask the master; `tidings status` names it.")
            .redirect(redirect);
        Refused { error: admin::explain(&self.group, error), leader }
    }
}

/// It was never asked.
fn stopped() -> Error {
    Error::new("cell.stopped", Class::Unreachable, "This node is stopping.").hint("Ask another node.")
}

/// It was asked, and nobody here will say what came of it.
fn let_go() -> Error {
    Error::new("cell.stopped", Class::OutcomeUnknown, "This node stopped before the answer.")
        .hint("Ask another node under the same number.")
}

impl Cancelling for Input {
    fn cancel(op: OpId) -> Input {
        Input::Cancel { op }
    }
}

/// Performs what the master wants.
struct Performer {
    group: Group,
    waiting: Arc<Waiting<Answer>>,
}

impl Perform<Output> for Performer {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Ask(ask) => self.group.ask(ask),
            Output::Reply { op, message } => self.waiting.answer(op, Box::new(Ok(message))),
            Output::Fail { op, error, leader } => self.waiting.answer(op, Box::new(Err(Refused { error, leader }))),
            Output::Measured(measure) => measured::record(measure),
        }
    }
}

/// Brings the master what it hears of the log.
async fn pump(master: Handle<Input>, mut heard: mpsc::UnboundedReceiver<Heard>) {
    let mut batch = Vec::with_capacity(HEARD_BATCH);
    while heard.recv_many(&mut batch, HEARD_BATCH).await > 0 {
        for heard in batch.drain(..) {
            if let Heard::Role(Role::Follower { .. }) = heard {
                // What a master counts is nobody's count any more.
                metrics::cell_gauges(&metrics::CellGauges::default());
            }
            if master.send(Input::Heard(heard)).await.is_err() {
                return;
            }
        }
    }
}
