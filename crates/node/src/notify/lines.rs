//! One line to each owner: what gathers while a batch is being made up goes together.

use super::exchange::{Call, Origin};
use super::hub::Hub;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::KeyHash;
use tidings_notify::Outcome;
use tokio::sync::{Semaphore, mpsc};

/// Calls of one batch: with the largest names and payloads well below a frame of nodes.
const BATCH: usize = 128;
/// Batches of one line that wait for answers.
const UNDER_WAY: usize = 64;
/// Calls that wait for one line; what comes beyond has failed at once.
const WAITING: usize = 16_384;

/// The lines, by address.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<BTreeMap<String, mpsc::Sender<(Origin, Call)>>>,
}

impl Lines {
    pub(super) fn close(&self) {
        self.lines.lock().clear();
    }
}

impl Hub {
    /// Takes a call to whoever owns a key. It never waits: what cannot be taken is answered as moved or failed.
    pub(super) fn route(self: &Arc<Self>, key: KeyHash, origin: Origin, call: Call) {
        let refused = match self.owner_of(key) {
            None => Outcome::Moved,
            Some(address) => match self.line(address).try_send((origin, call)) {
                Ok(()) => return,
                Err(_) => Outcome::Failed,
            },
        };
        let hub = self.clone();
        self.spawn(async move { hub.answered(origin, refused, 0).await });
    }

    fn line(self: &Arc<Self>, address: String) -> mpsc::Sender<(Origin, Call)> {
        let mut lines = self.lines.lines.lock();
        let line = lines.entry(address.clone()).or_insert_with(|| {
            let (sender, queue) = mpsc::channel(WAITING);
            self.spawn(run(self.clone(), address, queue));
            sender
        });
        line.clone()
    }
}

async fn run(hub: Arc<Hub>, address: String, mut queue: mpsc::Receiver<(Origin, Call)>) {
    let room = Arc::new(Semaphore::new(UNDER_WAY));
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let (hub_, address, batch) = (hub.clone(), address.clone(), std::mem::take(&mut batch));
        hub.spawn(async move {
            hub_.deliver(&address, batch).await;
            drop(permit);
        });
    }
}
