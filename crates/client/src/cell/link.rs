//! The link: what the sessions of one client share, so that thousands of them cost one renewal.

use super::calls::{Cell, SessionOptions};
use super::clock::Clock;
use super::driver;
use super::errors;
use super::session::{Core, State};
use super::transport::CellTransport;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Error, Machine, Mono, Outbox};
use tidings_cell::link::{Input, LinkLease, Output};
use tidings_cell::session::{Input as SessionInput, Options};
use tidings_wire::v1::{self, cell_message::Message};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// The most calls of a link that are on their way at once. A connection carries 1,024 operations; the rest is left
/// to KeepAlives and waiting acquires.
const MAX_CALLS: usize = 384;

/// The most acquires of a link that wait at the master at once; further ones wait here, so that waiting for locks
/// never keeps anybody from releasing them.
const MAX_WAITS: usize = 256;

/// What carries sessions: a transport and one short cache lease for all of them.
///
/// One link serves most programs; [`Cell::connect`] makes its own. Many sessions on one link share its renewals, up to
/// the few hundred held KeepAlives that one connection carries.
///
/// ```no_run
/// # use tidings_client::{Client, ClientConfig, cell::{Link, SessionOptions}};
/// # async fn example() -> Result<(), tidings_base::Error> {
/// let client = Client::connect(ClientConfig::new(["http://127.0.0.1:7400"])).await?;
/// let link = Link::new(client)?;
/// let one = link.session(SessionOptions::default()).await?;
/// let two = link.session(SessionOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// The link as its sessions know it.
pub(crate) struct Shared {
    pub(crate) transport: Arc<dyn CellTransport>,
    pub(crate) clock: Clock,
    name: u64,
    calls: Semaphore,
    waits: Semaphore,
    inner: Mutex<Inner>,
    /// The sessions or the machine's deadline changed.
    pub(crate) changed: Notify,
}

struct Inner {
    machine: LinkLease,
    sessions: Vec<Weak<Core>>,
    /// A task renews.
    running: bool,
    /// A session began since the task last looked.
    began: bool,
}

impl Link {
    /// A link over a connection, or over anything else that reaches a master.
    pub fn new(transport: impl CellTransport) -> Result<Link, Error> {
        Link::over(Arc::new(transport), Clock::Boot)
    }

    pub(crate) fn over(transport: Arc<dyn CellTransport>, clock: Clock) -> Result<Link, Error> {
        let name = getrandom::u64().map_err(errors::no_randomness)?;
        let inner = Inner { machine: LinkLease::new(name), sessions: Vec::new(), running: false, began: false };
        let shared = Shared {
            transport,
            clock,
            name,
            calls: Semaphore::new(MAX_CALLS),
            waits: Semaphore::new(MAX_WAITS),
            inner: Mutex::new(inner),
            changed: Notify::new(),
        };
        Ok(Link { shared: Arc::new(shared) })
    }

    /// Creates a session, and waits until it exists; no longer than until the cell says that it has no majority.
    pub async fn session(&self, options: SessionOptions) -> Result<Cell, Error> {
        let secret = getrandom::u64().map_err(errors::no_randomness)?;
        let seed = getrandom::u64().map_err(errors::no_randomness)?;
        let machine = Options {
            lease: options.lease,
            grace: options.grace,
            secret,
            link: self.shared.name,
            cache: options.cache,
            seed,
            mutant: options.mutant,
        };
        let (core, requests) = Core::new(self.shared.clone(), machine);
        let mut states = core.states();
        // From here on the session is closed if this future is dropped.
        let cell = Cell::of(core.clone(), options.lock_delay);
        self.shared.join(&core);
        tokio::spawn(driver::run_session(core.clone(), requests));
        core.input(SessionInput::Begin);
        let begun = states.wait_for(|state| *state != State::Starting);
        let state = tokio::select! {
            begun = tokio::time::timeout(options.begin_within, begun) => begun.ok().and_then(|state| Some(*state.ok()?)),
            () = core.hopeless.notified() => None,
        };
        match state {
            Some(State::Active | State::Jeopardy) => Ok(cell),
            _ => Err(errors::not_begun(core.last_error())),
        }
    }
}

impl Shared {
    fn join(self: &Arc<Self>, core: &Arc<Core>) {
        let mut inner = self.inner.lock();
        inner.sessions.push(Arc::downgrade(core));
        if !std::mem::replace(&mut inner.running, true) {
            tokio::spawn(driver::run_link(self.clone()));
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// A session exists now.
    pub(crate) fn began(&self) {
        self.inner.lock().began = true;
        self.changed.notify_one();
    }

    pub(crate) fn take_began(&self) -> bool {
        std::mem::take(&mut self.inner.lock().began)
    }

    /// A session is over.
    pub(crate) fn leave(&self, core: &Arc<Core>) {
        let gone = Arc::downgrade(core);
        self.inner.lock().sessions.retain(|session| !session.ptr_eq(&gone));
        self.changed.notify_one();
    }

    /// Those that still live. If there is none the machine is stopped, and the task that asked must end.
    pub(crate) fn sessions(&self) -> Option<Vec<Arc<Core>>> {
        let mut inner = self.inner.lock();
        let sessions: Vec<_> = inner.sessions.iter().filter_map(Weak::upgrade).collect();
        if sessions.is_empty() {
            inner.running = false;
            inner.machine.handle(self.clock.now(), Input::Stop, &mut Outbox::new());
            return None;
        }
        Some(sessions)
    }

    /// Runs the link's machine on an input, or wakes it if it is due.
    pub(crate) fn run(&self, input: Option<Input>, out: &mut Outbox<Output>) {
        let machine = &mut self.inner.lock().machine;
        let now = self.clock.now();
        match input {
            Some(input) => machine.handle(now, input, out),
            None if machine.deadline().is_some_and(|at| at <= now.mono) => machine.wake(now, out),
            None => {}
        }
    }

    pub(crate) fn deadline(&self) -> Option<Mono> {
        self.inner.lock().machine.deadline()
    }

    /// Asks the master, as soon as there is room for this kind of request.
    pub(crate) async fn send(&self, message: v1::CellMessage, within: Duration) -> Result<v1::CellMessage, Error> {
        let Ok(_room) = tokio::time::timeout(within, self.room(&message)).await else {
            return Err(tidings_wire::error::deadline_unsent());
        };
        self.transport.call(message, within).await
    }

    /// What keeps sessions alive or frees something never waits behind what may take long.
    async fn room(&self, message: &v1::CellMessage) -> Option<SemaphorePermit<'_>> {
        let room = match &message.message {
            Some(Message::Acquire(acquire)) if !acquire.try_only => &self.waits,
            Some(
                Message::Open(_)
                | Message::Read(_)
                | Message::ReadMany(_)
                | Message::SetContents(_)
                | Message::SetAcl(_)
                | Message::Delete(_),
            ) => &self.calls,
            _ => return None,
        };
        room.acquire().await.ok()
    }
}
