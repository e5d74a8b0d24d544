//! The tasks: one a session, which asks the master and keeps its timers; one a link, which renews.

use super::link::Shared;
use super::session::{Core, Outgoing};
use futures::stream::{FuturesUnordered, StreamExt};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Mono, Outbox};
use tidings_cell::link::{Input, Output};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// The longest that the link sleeps before it looks at the clock again: tokio's timers do not count suspended time,
/// boot time does.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A deadline that never comes, as a timer can hold it.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Runs a session until it is over.
pub(crate) async fn run_session(core: Arc<Core>, mut requests: mpsc::UnboundedReceiver<Outgoing>) {
    let _leave = Leave(core.clone());
    let mut asked = FuturesUnordered::new();
    let mut timer = pin!(sleep(NEVER));
    let mut armed = Mono::NEVER;
    while !core.state().is_over() {
        let deadline = core.wake();
        if deadline != armed {
            armed = deadline;
            timer.as_mut().reset(Instant::now() + deadline.since(core.clock.mono()).min(NEVER));
        }
        tokio::select! {
            biased;
            Some(outgoing) = requests.recv() => {
                asked.push(ask(core.clone(), outgoing));
                while let Ok(outgoing) = requests.try_recv() {
                    asked.push(ask(core.clone(), outgoing));
                }
            }
            Some((ticket, result)) = asked.next(), if !asked.is_empty() => core.answered(ticket, result),
            () = &mut timer => armed = Mono::NEVER,
            () = core.alarm.notified() => {}
        }
    }
}

async fn ask(
    core: Arc<Core>,
    outgoing: Outgoing,
) -> (tidings_cell::link::Ticket, Result<tidings_wire::v1::CellMessage, tidings_base::Error>) {
    let Outgoing { ticket, message, within } = outgoing;
    (ticket, core.link.send(message, within).await)
}

/// However the task ends, nobody is left waiting.
struct Leave(Arc<Core>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.abandon();
        self.0.link.leave(&self.0);
    }
}

/// Renews a link's cache lease for as long as it has sessions.
pub(crate) async fn run_link(link: Arc<Shared>) {
    let mut asked = FuturesUnordered::new();
    let mut out = Outbox::new();
    let mut warned = false;
    while let Some(sessions) = link.sessions() {
        // A session that has just begun need not wait for the next turn before it may use what it caches.
        let input = link.take_began().then_some(Input::Start);
        link.run(input, &mut out);
        for output in out.drain() {
            match output {
                Output::Send { ticket, message, within } => {
                    let link = link.clone();
                    asked.push(async move { (ticket, link.send(message, within).await) });
                }
                Output::Lease(lease) => {
                    for session in &sessions {
                        session.renewed(lease.clone());
                    }
                }
            }
        }
        // After a suspension the sessions' own timers come late.
        for session in &sessions {
            if session.is_overdue() {
                session.alarm.notify_one();
            }
        }
        drop(sessions);
        let pause = link.deadline().map_or(LONGEST_SLEEP, |at| at.since(link.clock.mono()).min(LONGEST_SLEEP));
        tokio::select! {
            biased;
            Some((ticket, result)) = asked.next(), if !asked.is_empty() => {
                warn_of_clock(&result, &mut warned);
                link.run(Some(Input::Answered { ticket, result }), &mut out);
            }
            () = sleep_until(Instant::now() + pause) => {}
            () = link.changed.notified() => {}
        }
    }
}

/// A client that may not cache is slow, and nobody would know why. Said once for as long as it is so.
fn warn_of_clock(renewed: &Result<tidings_wire::v1::CellMessage, tidings_base::Error>, warned: &mut bool) {
    match renewed {
        Ok(_) => *warned = false,
        Err(error) if error.code == "cell.clock_out_of_bound" && !std::mem::replace(warned, true) => {
            tracing::warn!(%error, "nothing is served from the cache");
        }
        Err(_) => {}
    }
}
