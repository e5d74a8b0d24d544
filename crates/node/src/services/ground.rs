//! What a part of the node stands on that owns keys by lease of placement: the store, the cell, placement, and tasks that end
//! together.

use super::{Placed, Stored, Through, Way};
use crate::tasks::Tasks;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::cell::Cell;
use tidings_client::placement::{Lookup, Owner};
use tidings_wire::error;
use tokio::sync::watch;

/// How long a node that stops waits for others to take what it owns: a few round trips, and less than a shutdown may take.
const HAND_OVER: Duration = Duration::from_secs(3);

/// What a part of the node stands on.
pub(crate) struct Ground {
    part: &'static str,
    /// Absent once it is stopped: whatever still runs must not keep the store open.
    stored: Mutex<Option<Stored>>,
    pub(crate) through: Arc<Through>,
    pub(crate) way: Way,
    pub(crate) cell: watch::Sender<Option<Cell>>,
    pub(crate) owner: OnceLock<Owner>,
    pub(crate) lookup: OnceLock<Lookup>,
    tasks: Tasks,
}

impl Ground {
    /// The ground of the part that is called so.
    pub(crate) fn new(part: &'static str, stored: Stored, placed: Placed, way: Way) -> Ground {
        Ground {
            part,
            stored: Mutex::new(Some(stored)),
            through: Arc::new(Through::new(placed)),
            way,
            cell: watch::Sender::new(None),
            owner: OnceLock::new(),
            lookup: OnceLock::new(),
            tasks: Tasks::default(),
        }
    }

    /// The store; an error once the part is stopped.
    pub(crate) fn stored(&self) -> Result<Stored, Error> {
        self.stored.lock().clone().ok_or_else(|| error::unsent(&error::going_away(None)))
    }

    /// What ends when the part stops.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Runs something until it ends or the part stops.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Lets others have what is owned, as long as there are others and they take it.
    pub(crate) async fn hand_over(&self) {
        let (part, alone) = (self.part, self.stored().map_or(true, |stored| stored.other_addresses().is_empty()));
        if let Some(owner) = self.owner.get().filter(|_| !alone) {
            match tokio::time::timeout(HAND_OVER, owner.drain()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(part, %error, "what is owned was not handed over"),
                Err(_) => {
                    tracing::warn!(part, "nobody took all that is owned in time; it waits for the end of its leases")
                }
            }
        }
    }

    /// Gives up what is still owned.
    pub(crate) fn leave(&self) {
        if let Some(owner) = self.owner.get() {
            owner.leave();
        }
    }

    /// Ends the tasks, and lets go of everything else.
    pub(crate) async fn stop(&self) {
        self.tasks.stop().await;
        *self.stored.lock() = None;
        self.cell.send_replace(None);
        self.way.close();
        self.through.close();
    }
}
