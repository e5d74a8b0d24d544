//! Runs the client machine: what the application says, what the channel brings, and time.

use super::channel::{Channel, Heard};
use super::events::Mailbox;
use super::state::State;
use crate::Client;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Machine as _, Mono, Now, Outbox, Wall};
use tidings_notify::client::{Client as Machine, Input, Output};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The longest sleep: a spurious wake is harmless.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The task of one listener.
pub(super) struct Task {
    client: Client,
    machine: Machine,
    outbox: Outbox<Output>,
    state: State,
    mailbox: Arc<Mailbox>,
    channel: Channel,
    started: Instant,
}

impl Task {
    pub(super) fn new(client: Client, machine: Machine, state: State, mailbox: Arc<Mailbox>) -> Task {
        let (outbox, channel, started) = (Outbox::new(), Channel::Closed, Instant::now());
        Task { client, machine, outbox, state, mailbox, channel, started }
    }

    /// Runs until the application has dropped its last handle.
    pub(super) async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        let state = self.state.take();
        self.take(Input::Start { state });
        loop {
            let pause =
                self.machine.deadline().map_or(LONGEST_SLEEP, |at| at.since(self.now().mono).min(LONGEST_SLEEP));
            let input = tokio::select! {
                said = inputs.recv() => match said {
                    Some(input) => Some(input),
                    None => break,
                },
                heard = self.channel.next() => Some(match heard {
                    Heard::Opened => Input::Opened,
                    Heard::Down(down) => Input::Received(down),
                    Heard::Closed(why) => {
                        if let Some(error) = why {
                            tracing::debug!(%error, "notify: the channel closed");
                        }
                        Input::Closed
                    }
                }),
                () = tokio::time::sleep(pause) => None,
            };
            match input {
                Some(input) => self.take(input),
                None => {
                    let now = self.now();
                    self.machine.wake(now, &mut self.outbox);
                    self.perform();
                }
            }
        }
        self.mailbox.end();
    }

    /// Its time counts from its beginning: nothing in the machine outlives it, and it has no use for the wall clock.
    fn now(&self) -> Now {
        Now { mono: Mono(1) + self.started.elapsed(), wall: Wall::default() }
    }

    fn take(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(now, input, &mut self.outbox);
        self.perform();
    }

    fn perform(&mut self) {
        let outputs: Vec<Output> = self.outbox.drain().collect();
        for output in outputs {
            match output {
                Output::Connect => self.channel.connect(&self.client),
                Output::Send(message) => self.channel.send(*message),
                Output::WriteState(bytes) => self.state.write(bytes),
                Output::Event(event) => self.mailbox.tell(event),
            }
        }
    }
}
