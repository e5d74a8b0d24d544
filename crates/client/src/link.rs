//! One live connection, whichever end we are: a driver that runs the session machine over a carrier, and a handle
//! through which callers and handlers on any thread reach it.
//!
//! ```text
//!   callers, handlers ── Link (a queue and a waker) ──▶ Driver: one task a connection
//!                                                          │  Session (the rules)
//!                                                          │  Carrier (gRPC stream, WebSocket)
//!                                                          └▶ Handler (what the other side begins)
//! ```
//! Nothing is spawned and nothing is locked per frame but the queue: frames that are ready together travel together.
//! Everything that waits is bounded: operations by the limits, frames of long answers by credit, and answers to
//! somebody who does not read by [`MAX_BACKLOG`].

mod carrier;
mod driver;
mod flow;
mod operation;

pub use carrier::{Carrier, HIGH_WATER, Received};
pub use driver::{Admission, Driver, Handler, RefuseAll};
pub use flow::{Answers, Gone, Outflow, TrySendError};
pub use operation::{Operation, Requests, Responder};

use flow::Flow;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::{Error, Mono, Now, OpId, Wall};
use tidings_wire::session::{Input, Side};
use tidings_wire::{Body, Limits, error};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// The most bytes of answers that wait for a reader who takes nothing; with more the connection is closed. Eight
/// largest answers of a client's, and far more small ones than may be open at once.
pub const MAX_BACKLOG: usize = 8 << 20;

/// How long a handler waits for its reader to grant more before it takes the reader for stuck.
pub const READER_PATIENCE: Duration = Duration::from_secs(30);

/// What callers and handlers want of the driver, in order.
pub(crate) enum Command {
    /// Begin an operation, and tell this reader what comes of it.
    Begin { op: OpId, body: Body, more: bool, deadline: Option<Mono>, reader: Reader },
    /// Tell this flow about credit and the end of the operation.
    Attach { op: OpId, flow: Arc<Flow> },
    /// Anything that the session itself understands.
    Session(Input),
}

/// Who waits for the answer to an operation begun here. The permit is held until the operation has ended.
pub(crate) enum Reader {
    /// One frame.
    Once(oneshot::Sender<Result<Body, Error>>, OwnedSemaphorePermit),
    /// Several. The channel needs no bound of its own: credit bounds what can be in it.
    Many(mpsc::UnboundedSender<Result<Piece, Box<Error>>>, OwnedSemaphorePermit),
}

/// A frame of a long operation, and whether more follow. Boxed: a queue has room for many from its beginning, and most
/// are idle.
type Piece = (Box<Body>, bool);

struct Queue {
    commands: Vec<Command>,
    next_op: OpId,
    /// The carrier takes nothing: long answers wait.
    blocked: bool,
    /// Flows that wait for the carrier.
    waiting: Vec<Arc<Flow>>,
    closed: Option<Error>,
}

/// The handle of a live connection. Cheap to share; it outlives the connection and then refuses.
pub struct Link {
    queue: Mutex<Queue>,
    driver: AtomicWaker,
    /// Bytes of answers in the queue.
    backlog: AtomicUsize,
    /// Whether the driver sleeps and must be woken; while it runs it looks into the queue by itself.
    parked: AtomicBool,
    started: Instant,
    limits: OnceLock<Limits>,
    /// Room for operations begun here.
    permits: OnceLock<Arc<Semaphore>>,
    left: OnceLock<tidings_wire::v1::GoAway>,
    /// Tells that the connection became ready, was left, or ended.
    changed: Notify,
}

impl Link {
    /// The handle of a connection that is about to be made.
    pub fn new(side: Side) -> Arc<Link> {
        Arc::new(Link {
            queue: Mutex::new(Queue {
                commands: Vec::new(),
                next_op: side.first_op(),
                blocked: false,
                waiting: Vec::new(),
                closed: None,
            }),
            driver: AtomicWaker::new(),
            backlog: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            started: Instant::now(),
            limits: OnceLock::new(),
            permits: OnceLock::new(),
            left: OnceLock::new(),
            changed: Notify::new(),
        })
    }

    /// The limits that both sides agreed on, once the handshake is done.
    pub fn limits(&self) -> Option<Limits> {
        self.limits.get().copied()
    }

    /// Why the connection ended, if it has.
    pub fn closed(&self) -> Option<Error> {
        self.queue.lock().closed.clone()
    }

    /// The farewell of the other side, if it said one: begin nothing new here.
    pub fn left(&self) -> Option<&tidings_wire::v1::GoAway> {
        self.left.get()
    }

    /// Waits until the connection has ended.
    pub async fn wait_closed(&self) -> Error {
        self.wait(|link| link.closed()).await
    }

    /// Waits until operations may begin.
    pub async fn wait_ready(&self) -> Result<Limits, Error> {
        self.wait(|link| match link.limits() {
            Some(limits) => Some(Ok(limits)),
            None => link.closed().map(Err),
        })
        .await
    }

    async fn wait<T>(&self, mut look: impl FnMut(&Link) -> Option<T>) -> T {
        loop {
            let mut told = std::pin::pin!(self.changed.notified());
            told.as_mut().enable();
            if let Some(found) = look(self) {
                return found;
            }
            told.await;
        }
    }

    /// Waits for the other side's farewell. Waits for ever if there is none.
    pub async fn wait_left(&self) {
        self.wait(|link| link.left().map(|_| ())).await
    }

    /// Asks for an operation and waits for its one answer. Dropping the future cancels the operation.
    pub async fn call(self: &Arc<Self>, body: Body, deadline: Option<Instant>) -> Result<Body, Error> {
        let permit = self.permit(deadline).await?;
        let (answer, answered) = oneshot::channel();
        let op = self.begin(body, false, deadline, Reader::Once(answer, permit))?;
        let mut guard = CancelOnDrop { link: self, op, armed: true };
        let result = answered.await;
        guard.armed = false;
        result.unwrap_or_else(|_| Err(error::lost(&error::closed())))
    }

    /// Begins an operation with a long answer. `deadline` holds for the whole of it.
    pub async fn stream(self: &Arc<Self>, body: Body, deadline: Option<Instant>) -> Result<Answers, Error> {
        let permit = self.permit(deadline).await?;
        let (sender, answers) = mpsc::unbounded_channel();
        let op = self.begin(body, false, deadline, Reader::Many(sender, permit))?;
        Ok(Answers::new(self.clone(), op, answers))
    }

    /// Begins an operation whose request goes on: what follows goes through the [`Outflow`].
    pub async fn open(self: &Arc<Self>, body: Body, deadline: Option<Instant>) -> Result<(Outflow, Answers), Error> {
        let permit = self.permit(deadline).await?;
        let (sender, answers) = mpsc::unbounded_channel();
        let op = self.begin(body, true, deadline, Reader::Many(sender, permit))?;
        // The first frame, which is on its way, used one.
        let outflow = Outflow::attach(self.clone(), op, 1);
        Ok((outflow, Answers::new(self.clone(), op, answers)))
    }

    /// Says goodbye: the other side begins nothing more, and the connection ends when all operations have.
    pub fn go_away(&self, reason: impl Into<String>, redirect: Option<String>) {
        self.push(Command::Session(Input::GoAway { reason: reason.into(), redirect }));
    }

    /// Ends the connection now; the other side hears why.
    pub fn close(&self, why: Error) {
        self.push(Command::Session(Input::Close(why)));
    }

    async fn permit(&self, deadline: Option<Instant>) -> Result<OwnedSemaphorePermit, Error> {
        let Some(permits) = self.permits.get() else { return Err(error::unsent(&error::slow_handshake())) };
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let acquired = permits.clone().acquire_owned();
        let acquired = match deadline {
            Some(at) => tokio::time::timeout_at(at, acquired).await.map_err(|_| error::deadline_unsent())?,
            None => acquired.await,
        };
        acquired.map_err(|_| error::unsent(&self.closed().unwrap_or_else(error::closed)))
    }

    fn begin(&self, body: Body, more: bool, deadline: Option<Instant>, reader: Reader) -> Result<OpId, Error> {
        let deadline = deadline.map(|at| self.mono(at));
        let mut queue = self.queue.lock();
        if let Some(why) = &queue.closed {
            return Err(error::unsent(why));
        }
        let op = queue.next_op;
        queue.next_op = OpId(op.0 + 2);
        queue.commands.push(Command::Begin { op, body, more, deadline, reader });
        drop(queue);
        self.wake();
        Ok(op)
    }

    pub(crate) fn push(&self, command: Command) {
        let size = size(&command);
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return;
        }
        queue.commands.push(command);
        self.backlog.fetch_add(size, Ordering::Relaxed);
        drop(queue);
        self.wake();
    }

    fn wake(&self) {
        if self.parked.swap(false, Ordering::AcqRel) {
            self.driver.wake();
        }
    }

    fn mono(&self, at: Instant) -> Mono {
        Mono::default() + at.saturating_duration_since(self.started)
    }

    /// A connection's time counts from its beginning: nothing in a session outlives it.
    fn now(&self) -> Now {
        Now { mono: self.mono(Instant::now()), wall: Wall::default() }
    }

    fn at(&self, mono: Mono) -> Instant {
        self.started + mono.since(Mono::default())
    }
}

/// What a waiting command holds in memory, roughly.
fn size(command: &Command) -> usize {
    match command {
        Command::Session(Input::Send { body, .. }) => body.encoded_len(),
        _ => 0,
    }
}

struct CancelOnDrop<'a> {
    link: &'a Arc<Link>,
    op: OpId,
    armed: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.link.push(Command::Session(Input::Cancel { op: self.op }));
        }
    }
}
