//! A cell inside the process, for tests of what uses one: the real machines over a log that agrees at once, on tokio's
//! time, which a test can pause and move.
//!
//! ```
//! # use tidings_client::cell::testing::TestCell;
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
//! let test = TestCell::start();
//! let cell = test.connect().await?;
//! cell.write("/greeting", "hello").await?;
//! assert_eq!(cell.read("/greeting").await?.unwrap().text(), "hello");
//! # Ok::<(), tidings_base::Error>(()) }).unwrap();
//! ```

use super::calls::{Cell, SessionOptions};
use super::clock::Clock;
use super::link::Link;
use super::transport::CellTransport;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Role};
use tidings_base::{Class, Epoch, Error, LogIndex, Machine, Mono, NodeId, OpId, Outbox};
use tidings_cell::master::{Input, Master, Mastering, Options, Output};
use tidings_cell::namespace::CellState;
use tidings_wire::v1::{self, cell_message::Message};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// A cell of one replica. Cheap to clone; it stops when the last clone and the last link are dropped.
#[derive(Clone)]
pub struct TestCell {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    replica: Mutex<Replica>,
    /// The machine wants to be woken at another time.
    alarm: Notify,
}

struct Replica {
    mastering: Mastering,
    log: CellState,
    outbox: Outbox<Output>,
    heard: VecDeque<Heard>,
    answers: BTreeMap<OpId, oneshot::Sender<Result<Message, Error>>>,
    next_op: u64,
    index: u64,
    leadership: u64,
}

impl TestCell {
    /// Starts a cell. Must be called within a runtime.
    pub fn start() -> TestCell {
        let log = CellState::new();
        let replica = Replica {
            mastering: Mastering { master: Master::new(options()), state: log.shared() },
            log,
            outbox: Outbox::new(),
            heard: VecDeque::new(),
            answers: BTreeMap::new(),
            next_op: 1,
            index: 0,
            leadership: 0,
        };
        let shared = Shared { clock: Clock::Tokio(Instant::now()), replica: Mutex::new(replica), alarm: Notify::new() };
        let cell = TestCell { shared: Arc::new(shared) };
        tokio::spawn(keep_time(Arc::downgrade(&cell.shared)));
        cell.fail_over();
        cell
    }

    /// A session of the application `app`.
    pub async fn connect(&self) -> Result<Cell, Error> {
        self.line("app:app/test").link()?.session(SessionOptions::default()).await
    }

    /// A line of its own to the cell, for somebody of the application `app`.
    pub fn line(&self, principal: &str) -> Line {
        let privileged = principal == "operator";
        let caller = v1::CellCaller { app: "app".into(), principal: principal.into(), privileged };
        Line { cell: self.clone(), caller, up: Arc::new(watch::Sender::new(true)) }
    }

    /// Replaces the master: another one takes over that knows only what was agreed.
    pub fn fail_over(&self) {
        let mut replica = self.shared.replica.lock();
        for (_, answer) in std::mem::take(&mut replica.answers) {
            let _ = answer.send(Err(lost()));
        }
        replica.outbox = Outbox::new();
        replica.leadership += 1;
        replica.mastering.master = Master::new(options());
        let epoch = Epoch(replica.leadership);
        replica.heard.extend([Heard::Role(Role::Leader { epoch }), Heard::LeaseUntil(Mono::NEVER)]);
        self.shared.run(&mut replica);
    }
}

fn options() -> Options {
    Options {
        node: NodeId(1),
        secret: [7; 32],
        lease: Duration::from_secs(12),
        cache_lease: Duration::from_millis(1_800),
        idle: Duration::from_secs(60),
        wait: Duration::from_secs(25),
        rotate: Duration::from_secs(24 * 3_600),
        alone: false,
        mutant: None,
    }
}

fn lost() -> Error {
    Error::new("control.lost", Class::OutcomeUnknown, "the connection ended before the answer")
}

impl Shared {
    fn input(&self, input: Input) {
        let replica = &mut *self.replica.lock();
        replica.mastering.handle(self.clock.now(), input, &mut replica.outbox);
        self.run(replica);
    }

    /// Performs until nothing is left to do: the log agrees at once.
    fn run(&self, replica: &mut Replica) {
        loop {
            let mut outbox = std::mem::take(&mut replica.outbox);
            for output in outbox.drain() {
                replica.perform(output);
            }
            replica.outbox = outbox;
            let Some(heard) = replica.heard.pop_front() else { break };
            replica.mastering.handle(self.clock.now(), Input::Heard(heard), &mut replica.outbox);
        }
        self.alarm.notify_one();
    }
}

impl Replica {
    fn perform(&mut self, output: Output) {
        match output {
            Output::Ask(Ask::Propose { op, command }) => {
                self.index += 1;
                let index = LogIndex(self.index);
                let entry = Entry { index, command: &command };
                let results = self.log.apply(&[entry], Default::default()).expect("a state in memory does not fail");
                let result = results.into_iter().next().unwrap_or_default();
                self.heard.push_back(Heard::Applied { op, index, result });
            }
            Output::Ask(Ask::ReadBarrier { op }) => {
                self.heard.push_back(Heard::Passed { op, index: LogIndex(self.index) });
            }
            Output::Reply { op, message } => self.answer(op, Ok(message)),
            Output::Fail { op, error, .. } => self.answer(op, Err(error)),
            Output::Measured(_) => {}
        }
    }

    fn answer(&mut self, op: OpId, result: Result<Message, Error>) {
        if let Some(answer) = self.answers.remove(&op) {
            let _ = answer.send(result);
        }
    }
}

/// Wakes the master at its deadlines for as long as somebody has the cell.
async fn keep_time(shared: Weak<Shared>) {
    while let Some(cell) = shared.upgrade() {
        let now = cell.clock.now();
        let deadline = {
            let replica = &mut *cell.replica.lock();
            if replica.mastering.deadline().is_some_and(|at| at <= now.mono) {
                replica.mastering.wake(now, &mut replica.outbox);
                cell.run(replica);
            }
            replica.mastering.deadline()
        };
        let pause = deadline.map_or(Duration::from_secs(1), |at| at.since(now.mono).min(Duration::from_secs(1)));
        tokio::select! {
            () = cell.alarm.notified() => {}
            () = sleep_until(Instant::now() + pause) => {}
        }
    }
}

/// A line to the cell that can be cut and mended. Cheap to clone.
#[derive(Clone)]
pub struct Line {
    cell: TestCell,
    caller: v1::CellCaller,
    up: Arc<watch::Sender<bool>>,
}

impl Line {
    /// A link over this line, on tokio's time.
    pub fn link(&self) -> Result<Link, Error> {
        Link::over(Arc::new(self.clone()), self.cell.shared.clock)
    }

    /// Nothing gets through any more, and who waits for an answer gets none.
    pub fn cut(&self) {
        self.up.send_replace(false);
    }

    /// Requests get through again; those that waited are lost.
    pub fn mend(&self) {
        self.up.send_replace(true);
    }

    async fn ask(&self, mut message: v1::CellMessage, within: Duration) -> Result<v1::CellMessage, Error> {
        if !*self.up.borrow() {
            let _ = timeout(within, until(self.up.subscribe(), true)).await;
            return Err(lost());
        }
        message.caller = Some(self.caller.clone());
        let (answer, answered) = oneshot::channel();
        let shared = &self.cell.shared;
        let op = {
            let mut replica = shared.replica.lock();
            let op = OpId(replica.next_op);
            replica.next_op += 2;
            replica.answers.insert(op, answer);
            op
        };
        let _cancel = Cancel { shared, op };
        shared.input(Input::Request { op, request: message, deadline: Some(shared.clock.mono() + within) });
        let answered = timeout(within, answered);
        tokio::select! {
            biased;
            () = until(self.up.subscribe(), false) => {
                let _ = timeout(within, until(self.up.subscribe(), true)).await;
                Err(lost())
            }
            answer = answered => match answer {
                Ok(Ok(message)) => message.map(|message| v1::CellMessage { message: Some(message), ..Default::default() }),
                Ok(Err(_)) => Err(lost()),
                Err(_) => Err(tidings_wire::error::deadline()),
            },
        }
    }
}

async fn until(mut line: watch::Receiver<bool>, up: bool) {
    let _ = line.wait_for(|now| *now == up).await;
}

impl CellTransport for Line {
    fn call(&self, message: v1::CellMessage, within: Duration) -> BoxFuture<'_, Result<v1::CellMessage, Error>> {
        Box::pin(self.ask(message, within))
    }
}

/// Tells the master that nobody waits any more.
struct Cancel<'a> {
    shared: &'a Shared,
    op: OpId,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        if self.shared.replica.lock().answers.remove(&self.op).is_some() {
            self.shared.input(Input::Cancel { op: self.op });
        }
    }
}
