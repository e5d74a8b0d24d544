//! One line for each stage to each owner: what gathers while a batch is being made up goes together.
//!
//! Nothing waits while there is little to do. The more batches of a line wait for answers, the longer the next one gathers,
//! up to what is configured for its stage: batches grow with load, and delays stay bounded. What goes from one machine to
//! another of the same node takes no line.

use super::exchange::{Call, Origin};
use super::hub::Hub;
use crate::config::Gather;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::KeyHash;
use tidings_notify::Outcome;
use tokio::sync::{Semaphore, mpsc};

/// Calls of one batch: with the largest names and payloads well below a frame of nodes.
const BATCH: usize = 128;
/// Batches of one line that wait for answers.
const UNDER_WAY: usize = 64;
/// Calls that wait for one line; what comes beyond has failed at once.
const WAITING: usize = 16_384;
/// The shortest delay that timers can tell from none.
const SHORTEST: Duration = Duration::from_millis(1);

/// Where a call is on the way of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// From bridges to matchers.
    Publications,
    /// From matchers to registrars.
    Notifications,
    /// From registrars to matchers.
    Registrations,
}

impl Stage {
    fn of(call: &Call) -> Stage {
        match call {
            Call::Publish(_) => Stage::Publications,
            Call::Notify(_) => Stage::Notifications,
            Call::Register(_) => Stage::Registrations,
        }
    }

    fn longest(self, gather: &Gather) -> Duration {
        match self {
            Stage::Publications => gather.bridge.into(),
            Stage::Notifications => gather.matcher.into(),
            Stage::Registrations => gather.registrar.into(),
        }
    }
}

/// The way into a line.
type Entrance = mpsc::Sender<(Origin, Call)>;

/// The lines, by stage and address.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<BTreeMap<(Stage, String), Entrance>>,
}

impl Lines {
    pub(super) fn close(&self) {
        self.lines.lock().clear();
    }
}

impl Hub {
    /// Takes a call to whoever owns a key. It never waits: what cannot be taken is answered as moved or failed.
    pub(super) fn route(self: &Arc<Self>, key: KeyHash, origin: Origin, call: Call) {
        // F1: the lease is looked at before the first read.
        if let Some(lease) = self.lease(key) {
            if !self.give_here(lease, origin, call) {
                self.answered_soon(origin, Outcome::Failed, 0);
            }
            return;
        }
        let refused = match self.owner_of(key) {
            None => Outcome::Moved,
            Some(address) => match self.line(Stage::of(&call), address).try_send((origin, call)) {
                Ok(()) => return,
                Err(_) => Outcome::Failed,
            },
        };
        self.answered_soon(origin, refused, 0);
    }

    fn line(self: &Arc<Self>, stage: Stage, address: String) -> Entrance {
        let mut lines = self.lines.lines.lock();
        let line = lines.entry((stage, address)).or_insert_with_key(|(stage, address)| {
            let (sender, queue) = mpsc::channel(WAITING);
            let longest = stage.longest(&self.told.config.gather);
            self.spawn(run(self.clone(), address.clone(), longest, queue));
            sender
        });
        line.clone()
    }
}

async fn run(hub: Arc<Hub>, address: String, longest: Duration, mut queue: mpsc::Receiver<(Origin, Call)>) {
    let room = Arc::new(Semaphore::new(UNDER_WAY));
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let delay = delay(longest, UNDER_WAY - room.available_permits());
        if batch.len() < BATCH && delay >= SHORTEST {
            let more = async {
                while batch.len() < BATCH {
                    let room = BATCH - batch.len();
                    if queue.recv_many(&mut batch, room).await == 0 {
                        return;
                    }
                }
            };
            // When the time is over, what is there goes.
            let _ = tokio::time::timeout(delay, more).await;
        }
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let (hub_, address, batch) = (hub.clone(), address.clone(), std::mem::take(&mut batch));
        hub.spawn(async move {
            hub_.deliver(&address, batch).await;
            drop(permit);
        });
    }
}

/// How long to gather while so many batches wait for answers: nothing for a few, the longest for half of what may.
fn delay(longest: Duration, under_way: usize) -> Duration {
    const FEW: usize = 4;
    let load = under_way.saturating_sub(FEW).min(UNDER_WAY / 2 - FEW);
    longest * load as u32 / (UNDER_WAY / 2 - FEW) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_with_load_and_are_bounded() {
        let longest = Duration::from_millis(5);
        let delays: Vec<Duration> = (0..=UNDER_WAY).map(|under_way| delay(longest, under_way)).collect();
        assert!(delays[..=4].iter().all(Duration::is_zero));
        assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!((delays[UNDER_WAY / 2], delays[UNDER_WAY]), (longest, longest));
    }
}
