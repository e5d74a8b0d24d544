//! One lookup as it runs: the machine behind a lock, and what its outputs do to the outside.

use super::super::clock::Clock;
use super::super::driver::{Ask, Driven};
use super::super::errors;
use super::super::stream::{Mailbox, Readers};
use super::super::transport::PlacementTransport;
use super::{LookupOptions, Loss};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error, Machine, Mono, Outbox};
use tidings_placement::Ticket;
use tidings_placement::directory::Directory;
use tidings_placement::lookup::{Input, Lookup, Options, Output};
use tidings_placement::published::Published;
use tidings_wire::v1::placement_message::Message;
use tokio::sync::{Notify, mpsc, watch};

/// How a lookup stands, for those who wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Counts tables.
    pub(super) tables: u64,
    /// The managers refused it for good reasons; asking on would not help a caller that waits.
    refused: bool,
    /// Nobody can lead: the cell has no majority.
    hopeless: bool,
    pub(super) over: bool,
}

pub(super) struct Core {
    transport: Arc<dyn PlacementTransport>,
    clock: Clock,
    directory: Published<Directory>,
    /// When a manager of the highest epoch last answered; 0 = never.
    heard: AtomicU64,
    inner: Mutex<Inner>,
    standing: watch::Sender<Standing>,
    asks: mpsc::UnboundedSender<Ask>,
    alarm: Notify,
}

struct Inner {
    machine: Lookup,
    outbox: Outbox<Output>,
    readers: Readers<Loss>,
    refusal: Option<Error>,
}

impl Core {
    pub(super) fn new(
        transport: Arc<dyn PlacementTransport>,
        options: LookupOptions,
        seed: u64,
    ) -> (Arc<Core>, mpsc::UnboundedReceiver<Ask>) {
        let (asks, receiver) = mpsc::unbounded_channel();
        let inner = Inner {
            machine: Lookup::new(Options { namespace: options.namespace, seed }),
            outbox: Outbox::new(),
            readers: Readers::new(),
            refusal: None,
        };
        let core = Core {
            transport,
            clock: options.clock,
            directory: Published::new(Directory::default()),
            heard: AtomicU64::new(0),
            inner: Mutex::new(inner),
            standing: watch::Sender::new(Standing::default()),
            asks,
            alarm: Notify::new(),
        };
        (Arc::new(core), receiver)
    }

    pub(super) fn begin(&self) {
        self.input(&mut self.inner.lock(), Input::Start);
    }

    pub(super) fn stop(&self) {
        self.inner.lock().readers.end();
        self.standing.send_modify(|standing| standing.over = true);
        self.alarm.notify_one();
    }

    #[inline]
    pub(super) fn directory(&self) -> &Published<Directory> {
        &self.directory
    }

    #[inline]
    pub(super) fn heard(&self) -> Mono {
        Mono(self.heard.load(Ordering::Relaxed))
    }

    pub(super) fn lsn(&self) -> u64 {
        self.inner.lock().machine.lsn()
    }

    pub(super) fn refusal(&self) -> Option<Error> {
        self.inner.lock().refusal.clone()
    }

    pub(super) fn losses(&self) -> Arc<Mailbox<Loss>> {
        self.inner.lock().readers.subscribe()
    }

    /// Waits until the managers refuse it for good reasons, such as that there is no such namespace any more.
    pub(super) async fn until_refused(&self) -> Error {
        let mut standing = self.standing.subscribe();
        // While this waits the lookup lives, and with it the sender.
        let _ = standing.wait_for(|standing| standing.refused).await;
        self.refusal().unwrap_or_else(errors::no_manager)
    }

    /// Waits for the first table, or for a refusal that will last.
    pub(super) async fn first_table(&self, within: Duration) -> Result<(), Error> {
        let mut standing = self.standing.subscribe();
        let first = standing.wait_for(|standing| standing.tables > 0 || standing.refused || standing.hopeless);
        match tokio::time::timeout(within, first).await.map(|standing| standing.map(|standing| *standing)) {
            Ok(Ok(Standing { tables: 1.., .. })) => Ok(()),
            _ => Err(self.refusal().unwrap_or_else(errors::no_manager)),
        }
    }

    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn input(&self, inner: &mut Inner, input: Input) {
        let Inner { machine, outbox, .. } = inner;
        machine.handle(self.clock.now(), input, outbox);
        self.perform(inner);
    }

    fn perform(&self, inner: &mut Inner) {
        // Before anybody hears of a table: whoever waits for the first one asks for its age at once.
        if let Some(fresh) = inner.machine.fresh() {
            self.heard.store(fresh.0, Ordering::Relaxed);
        }
        let mut outbox = std::mem::take(&mut inner.outbox);
        for output in outbox.drain() {
            match output {
                Output::Send { ticket, to, poll, within } => {
                    // Without a task the lookup is over, and nobody waits.
                    let _ = self.asks.send(Ask { ticket, to, message: Message::LookupPoll(poll), within });
                }
                Output::Changed => {
                    self.directory.put(Directory::of(inner.machine.table()));
                    self.standing.send_modify(|standing| standing.tables += 1);
                }
                Output::Lost(ranges) => inner.readers.tell(&Loss::new(ranges)),
                Output::Refused(error) => self.refused(inner, error),
            }
        }
        inner.outbox = outbox;
    }

    fn refused(&self, inner: &mut Inner, error: Error) {
        let lasting = matches!(error.class, Class::Invalid | Class::NotFound | Class::Refused);
        inner.refusal = Some(error);
        if lasting {
            self.standing.send_modify(|standing| standing.refused = true);
        }
    }
}

fn is_of_placement(error: &Error) -> bool {
    error.code.starts_with("placement.")
}

impl Driven for Core {
    fn transport(&self) -> &dyn PlacementTransport {
        &*self.transport
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn alarm(&self) -> &Notify {
        &self.alarm
    }

    fn wake(&self) -> Mono {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        if inner.machine.deadline().is_some_and(|at| at <= now.mono) {
            let Inner { machine, outbox, .. } = &mut *inner;
            machine.wake(now, outbox);
            self.perform(&mut inner);
        }
        inner.machine.deadline().unwrap_or(Mono::NEVER)
    }

    fn answered(&self, ticket: Ticket, result: Result<Message, Error>) {
        let mut inner = self.inner.lock();
        let result = result.and_then(|message| match message {
            Message::LookupAnswer(answer) => Ok(answer),
            _ => Err(errors::unexpected()),
        });
        let hopeless = result.as_ref().is_err_and(Error::lacks_majority);
        inner.refusal = match (result.as_ref().err(), inner.refusal.take()) {
            // Who does not lead knows less than who said what it waits for.
            (Some(error), Some(before)) if error.code == "placement.not_leader" && is_of_placement(&before) => {
                Some(before)
            }
            (error, _) => error.cloned(),
        };
        self.standing.send_if_modified(|standing| {
            let now = Standing { hopeless, refused: standing.refused && result.is_err(), ..*standing };
            std::mem::replace(standing, now) != now
        });
        self.input(&mut inner, Input::Answered { ticket, result });
    }

    fn is_over(&self) -> bool {
        self.standing.borrow().over
    }
}
