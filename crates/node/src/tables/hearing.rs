//! The gateway, with what only whoever runs it can ask: how live queries stand in the partitions that they hear.

use std::collections::BTreeMap;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_tables::gateway::{self, Gateway};
use tokio::sync::oneshot;

/// The gateway as it runs here.
pub(super) struct Hearing(pub(super) Gateway);

/// What it is told or asked.
pub(super) enum Input {
    /// Something for the machine.
    Machine(gateway::Input),
    /// How many partitions each of these queries hears, and how many of them have not answered.
    Hears(Vec<u64>, oneshot::Sender<BTreeMap<u64, (usize, usize)>>),
}

impl Machine for Hearing {
    type Input = Input;
    type Output = gateway::Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<gateway::Output>) {
        match input {
            Input::Machine(input) => self.0.handle(now, input, out),
            Input::Hears(numbers, reply) => {
                let hears = numbers.into_iter().filter_map(|number| Some((number, self.0.hears(number)?)));
                // Who does not wait any more needs no answer.
                let _ = reply.send(hears.collect());
            }
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<gateway::Output>) {
        self.0.wake(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.0.deadline()
    }
}
