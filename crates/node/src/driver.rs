//! Runs a machine on tokio: inputs from a bounded queue, time from the clock, outputs to whoever performs them.
//!
//! ```text
//!   Handle::send ─▶ queue ─▶ ┌ handle(now, input) … a batch at a time ┐ ─▶ Perform::perform, in order
//!                            └ wake(now) at deadline()                ┘ ─▶ Perform::flush after each batch
//! ```
//! The machine runs on one task and needs no locks. A full queue makes senders wait ([`Handle::send`]) or tells them
//! ([`Handle::try_send`]); nothing is dropped silently.

use crate::clock::Clock;
use crate::metrics;
use std::time::Duration;
use tidings_base::{Machine, Mono, Outbox};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Inputs taken at once: enough that the clock, the wake-up and the flush cost nothing per input, few enough that
/// `now` is still now at the last of them.
const BATCH: usize = 256;

/// The longest sleep before looking at the clock again: tokio's timers do not count the time a machine was suspended,
/// boot time does, and a spurious wake is harmless.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Performs what a machine puts into its outbox. It must not block; what takes time goes to a task, and what comes of
/// it returns as an input.
pub trait Perform<Output>: Send + 'static {
    /// Performs one output; they come in the machine's order.
    fn perform(&mut self, output: Output);

    /// Called after a batch of outputs: the moment to send what was gathered.
    fn flush(&mut self) {}
}

impl<Output, F: FnMut(Output) + Send + 'static> Perform<Output> for F {
    fn perform(&mut self, output: Output) {
        self(output);
    }
}

/// Feeds a running machine. The machine stops when all its handles are gone.
pub struct Handle<Input> {
    queue: mpsc::Sender<Input>,
}

impl<Input> Clone for Handle<Input> {
    fn clone(&self) -> Self {
        Handle { queue: self.queue.clone() }
    }
}

/// The input that was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum NotTaken<Input> {
    /// The queue is full.
    Busy(Input),
    /// The machine has stopped.
    Stopped(Input),
}

impl<Input> Handle<Input> {
    /// Feeds one input, waiting while the queue is full; gives it back if the machine has stopped.
    pub async fn send(&self, input: Input) -> Result<(), NotTaken<Input>> {
        self.queue.send(input).await.map_err(|e| NotTaken::Stopped(e.0))
    }

    /// Feeds one input or gives it back.
    pub fn try_send(&self, input: Input) -> Result<(), NotTaken<Input>> {
        self.queue.try_send(input).map_err(|e| match e {
            mpsc::error::TrySendError::Full(input) => NotTaken::Busy(input),
            mpsc::error::TrySendError::Closed(input) => NotTaken::Stopped(input),
        })
    }

    /// Waits until the machine has stopped. As long as a handle is there, it stops only by a panic of its own, or because
    /// its task was ended.
    pub async fn ended(&self) {
        self.queue.closed().await;
    }

    /// Feeds one input from a thread that may block.
    pub fn blocking_send(&self, input: Input) -> Result<(), NotTaken<Input>> {
        self.queue.blocking_send(input).map_err(|e| NotTaken::Stopped(e.0))
    }
}

/// Starts a machine. `name` is its name in metrics, `capacity` bounds the inputs that wait. The task gives the machine
/// back once all handles are gone and every input was taken.
pub fn spawn<M, P>(
    name: &'static str,
    machine: M,
    perform: P,
    clock: impl Clock,
    capacity: usize,
) -> (Handle<M::Input>, JoinHandle<M>)
where
    M: Machine + Send + 'static,
    M::Input: Send + 'static,
    M::Output: Send + 'static,
    P: Perform<M::Output>,
{
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let driver = Driver { name, machine, perform, clock, outbox: Outbox::new() };
    (Handle { queue: sender }, tokio::spawn(driver.run(receiver)))
}

struct Driver<M: Machine, P, C> {
    name: &'static str,
    machine: M,
    perform: P,
    clock: C,
    outbox: Outbox<M::Output>,
}

impl<M: Machine, P: Perform<M::Output>, C: Clock> Driver<M, P, C> {
    async fn run(mut self, mut queue: mpsc::Receiver<M::Input>) -> M {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let taken = match self.machine.deadline() {
                None => queue.recv_many(&mut batch, BATCH).await,
                Some(deadline) => match self.before(deadline) {
                    Some(pause) => tokio::select! {
                        biased;
                        taken = queue.recv_many(&mut batch, BATCH) => taken,
                        () = sleep(pause) => { self.wake(); continue }
                    },
                    None => {
                        self.wake();
                        // A machine that is always due must not starve its inputs, nor the other tasks.
                        tokio::task::yield_now().await;
                        match queue.try_recv() {
                            Ok(input) => {
                                batch.push(input);
                                1
                            }
                            Err(mpsc::error::TryRecvError::Empty) => continue,
                            Err(mpsc::error::TryRecvError::Disconnected) => 0,
                        }
                    }
                },
            };
            if taken == 0 {
                return self.machine;
            }
            self.take(&mut batch);
        }
    }

    /// How long until the deadline; `None` if it is here.
    fn before(&self, deadline: Mono) -> Option<Duration> {
        let pause = deadline.since(self.clock.now().mono);
        (!pause.is_zero()).then(|| pause.min(LONGEST_SLEEP))
    }

    fn wake(&mut self) {
        self.machine.wake(self.clock.now(), &mut self.outbox);
        self.perform();
    }

    fn take(&mut self, batch: &mut Vec<M::Input>) {
        metrics::machine_inputs(self.name, batch.len());
        let now = self.clock.now();
        for input in batch.drain(..) {
            self.machine.handle(now, input, &mut self.outbox);
        }
        self.perform();
    }

    fn perform(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        for output in self.outbox.drain() {
            self.perform.perform(output);
        }
        self.perform.flush();
    }
}

#[cfg(test)]
mod tests;
