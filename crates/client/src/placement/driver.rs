//! The task of an owner or a lookup: it asks for the machine and wakes it.

use super::clock::Clock;
use super::errors;
use super::transport::PlacementTransport;
use futures::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Error, Mono};
use tidings_placement::{Ticket, To};
use tidings_wire::v1::{self, placement_message::Message};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

/// The longest that a task sleeps before it looks at the clock again: tokio's timers do not count suspended time, boot
/// time does.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How long the last message may take to leave once it is over: nobody waits for its answer. A node that speaks for an
/// application holds it back until the application believes nothing any more, which takes up to 2.2 s (F12).
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A request on its way to the transport.
pub(crate) struct Ask {
    pub(crate) ticket: Ticket,
    pub(crate) to: To,
    pub(crate) message: Message,
    pub(crate) within: Duration,
}

/// What a task runs: a machine behind a lock. Whoever brings an input runs it on the spot; nothing in it waits.
pub(crate) trait Driven: Send + Sync + 'static {
    fn transport(&self) -> &dyn PlacementTransport;
    fn clock(&self) -> &Clock;
    /// The machine wants to be woken earlier than the task knows, or it is over.
    fn alarm(&self) -> &Notify;
    /// Lets due timers act, and says when the machine next wants to be woken.
    fn wake(&self) -> Mono;
    fn answered(&self, ticket: Ticket, result: Result<Message, Error>);
    fn is_over(&self) -> bool;
}

/// Runs until it is over.
pub(crate) async fn run<D: Driven>(driven: Arc<D>, mut asks: mpsc::UnboundedReceiver<Ask>) {
    let mut asked = FuturesUnordered::new();
    while !driven.is_over() {
        let deadline = driven.wake();
        let pause = deadline.since(driven.clock().mono()).min(LONGEST_SLEEP);
        tokio::select! {
            biased;
            Some(ask) = asks.recv() => asked.push(send(driven.clone(), ask)),
            Some((ticket, result)) = asked.next(), if !asked.is_empty() => driven.answered(ticket, result),
            () = driven.alarm().notified() => {}
            () = sleep(pause) => {}
        }
    }
    while let Ok(ask) = asks.try_recv() {
        asked.push(send(driven.clone(), ask));
    }
    let _ = timeout(LAST_WORDS, async { while asked.next().await.is_some() {} }).await;
}

async fn send<D: Driven>(driven: Arc<D>, ask: Ask) -> (Ticket, Result<Message, Error>) {
    let Ask { ticket, to, message, within } = ask;
    let message = v1::PlacementMessage { message: Some(message) };
    let answer = driven.transport().call(to, message, within).await;
    (ticket, answer.and_then(|answer| answer.message.ok_or_else(errors::unexpected)))
}
