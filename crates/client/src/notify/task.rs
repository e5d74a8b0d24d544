//! Runs the client machine: what the application says, what the channel brings, and time.

use super::channel::{Channel, Heard};
use super::events::Mailbox;
use super::state::State;
use crate::Client;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Machine as _, Mono, Now, Outbox, Wall};
use tidings_notify::client::{Client as Machine, Input, Output};
use tidings_wire::Part;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The longest sleep: a spurious wake is harmless.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How long a goodbye may take: what the servers do not hear they find out by themselves.
const FAREWELL: Duration = Duration::from_secs(2);

/// The task of one listener.
pub(super) struct Task {
    client: Client,
    machine: Machine,
    outbox: Outbox<Output>,
    state: State,
    mailbox: Arc<Mailbox>,
    channel: Channel,
    started: Instant,
    /// Somebody said no, and nobody has spoken since.
    denied: bool,
    /// The machine has nothing more to say.
    left: bool,
}

impl Task {
    pub(super) fn new(client: Client, machine: Machine, state: State, mailbox: Arc<Mailbox>) -> Task {
        let (outbox, channel, started) = (Outbox::new(), Channel::Closed, Instant::now());
        Task { client, machine, outbox, state, mailbox, channel, started, denied: false, left: false }
    }

    /// Runs until the application leaves or has dropped its last handle.
    pub(super) async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        let state = self.state.take();
        self.take(Input::Start { state });
        loop {
            let pause =
                self.machine.deadline().map_or(LONGEST_SLEEP, |at| at.since(self.now().mono).min(LONGEST_SLEEP));
            let input = tokio::select! {
                said = inputs.recv() => match said {
                    Some(Input::Leave) | None => break,
                    Some(input) => Some(input),
                },
                heard = self.channel.next() => Some(self.heard(heard)),
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
        // Whoever still waits hears at once that it is over.
        self.mailbox.end();
        // It takes no longer than this; what is not heard by then costs the servers an hour's memory.
        let _ = tokio::time::timeout(FAREWELL, self.leave()).await;
        // Whoever waits for the end, by `inputs`, may use the state again.
        drop(self);
    }

    async fn leave(&mut self) {
        self.take(Input::Leave);
        while !self.left {
            let heard = self.channel.next().await;
            let input = self.heard(heard);
            self.take(input);
        }
    }

    fn heard(&mut self, heard: Heard) -> Input {
        match heard {
            Heard::Opened => Input::Opened,
            Heard::Down(down) => {
                if std::mem::take(&mut self.denied) {
                    self.mailbox.admit();
                }
                Input::Received(down)
            }
            Heard::Closed(why) => {
                if let Some(error) = why {
                    tracing::debug!(%error, "notify: the channel closed");
                    self.client.follow(Part::Notify, &error);
                    if is_denial(&error) {
                        self.denied = true;
                        self.mailbox.deny(error);
                    }
                }
                Input::Closed
            }
        }
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
                Output::Left => self.left = true,
            }
        }
    }
}

/// Whether somebody said no for good reasons; one who read too slowly may try again.
fn is_denial(error: &Error) -> bool {
    matches!(error.class, Class::Invalid | Class::NotFound | Class::Refused) && error.code != "control.slow_reader"
}
