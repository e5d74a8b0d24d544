//! The processor, with what only whoever runs it can ask: whether it has opened a partition, and that it gives one up.

use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_tables::directory::Opened;
use tidings_tables::names::PartitionId;
use tidings_tables::processor::{self, Processor};
use tokio::sync::oneshot;

/// The processor as it runs here.
pub(super) struct Processing(pub(super) Processor);

/// What it is told or asked.
pub(super) enum Input {
    /// Something for the machine.
    Machine(processor::Input),
    /// R1: only a partition that is open may be cut or joined; R3: and only after those who are away were told that it is.
    Opened(PartitionId, oneshot::Sender<Option<Opened>>),
    /// The same, and it is given up: when this is answered nothing is answered for it any more.
    Cede(PartitionId, oneshot::Sender<Option<Opened>>),
}

impl Machine for Processing {
    type Input = Input;
    type Output = processor::Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<processor::Output>) {
        let told = |processor: &Processor, partition| processor.has_told_of_opening(partition);
        match input {
            Input::Machine(input) => self.0.handle(now, input, out),
            Input::Opened(partition, reply) => {
                // Who does not wait any more needs no answer.
                let opened = self.0.opened(partition).filter(|_| told(&self.0, partition));
                let _ = reply.send(opened);
            }
            Input::Cede(partition, reply) => {
                let ceded = if told(&self.0, partition) { self.0.cede(partition, out) } else { None };
                let _ = reply.send(ceded);
            }
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<processor::Output>) {
        self.0.wake(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.0.deadline()
    }
}
