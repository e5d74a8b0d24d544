//! From the order to the seat: batches by height, each executed before it is acknowledged.
//!
//! Nothing is written at execution. A replica goes on from its latest snapshot, and reads from the order's own archive what
//! was acknowledged since. What lies far behind that snapshot is removed from the archive; a replica that was away for longer
//! takes a state over.

use super::Mailbox;
use super::batch::Batch;
use super::chain::SECTION;
use crate::seat::{Durable, Seat};
use crate::snapshot::EVERY;
use commonware_actor::Feedback;
use commonware_consensus::Reporter;
use commonware_consensus::marshal::{Identifier, Update};
use commonware_consensus::types::Height;
use commonware_cryptography::Digested;
use commonware_runtime::Clock;
use commonware_utils::Acknowledgement;
use commonware_utils::acknowledgement::Exact;
use std::io;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The fewest batches that are kept behind a snapshot: those that the next one may need, and a whole file.
pub const FEWEST_KEPT: u64 = EVERY + SECTION.get();
/// How long a replica that is further behind than others keep batches waits for the next one. Longer than it takes to ask each
/// other replica of a large group once.
const HOPELESS: Duration = Duration::from_secs(20);

/// A batch of the order. To drop the acknowledgement is to stop the delivery.
pub type Delivered = (Digested<Batch>, Exact);

/// Where the order puts its batches. There are never more than it lets be unacknowledged.
#[derive(Clone)]
pub struct Outlet {
    batches: mpsc::UnboundedSender<Delivered>,
    tip: watch::Sender<u64>,
}

impl Outlet {
    /// An outlet, and what comes out of it.
    pub fn new() -> (Outlet, mpsc::UnboundedReceiver<Delivered>) {
        let (batches, receiver) = mpsc::unbounded_channel();
        (Outlet { batches, tip: watch::Sender::new(0) }, receiver)
    }

    /// The highest batch that is known to be final, whether or not it is here.
    pub fn tip(&self) -> watch::Receiver<u64> {
        self.tip.subscribe()
    }
}

impl Reporter for Outlet {
    type Activity = Update<Batch>;

    fn report(&mut self, activity: Update<Batch>) -> Feedback {
        match activity {
            Update::Block(batch, acknowledgement) => match self.batches.send((batch, acknowledgement)) {
                Ok(()) => Feedback::Ok,
                Err(_) => Feedback::Closed,
            },
            Update::Tip(_, height, _) => {
                self.tip.send_replace(height.get());
                Feedback::Ok
            }
        }
    }
}

/// Why nothing more is delivered.
#[derive(Debug)]
pub enum Ended {
    /// The order has ended.
    Closed,
    /// What comes next lies further back than the others keep.
    Behind,
    /// A batch cannot be executed.
    Failed(io::Error),
}

/// What is delivered to a seat.
pub struct Delivery {
    /// Where batches that are here already are asked for, and removed.
    pub order: Mailbox,
    /// The height up to which batches were acknowledged before.
    pub acknowledged: u64,
    /// What comes.
    pub batches: mpsc::UnboundedReceiver<Delivered>,
    /// The highest batch that is known to be final.
    pub tip: watch::Receiver<u64>,
    /// How many batches are kept behind the latest snapshot.
    pub kept: u64,
}

impl Delivery {
    /// Executes what was acknowledged after the seat's snapshot, and then what comes.
    pub async fn run<S: Durable>(mut self, clock: &impl Clock, seat: &Seat<S>) -> Ended {
        if let Err(error) = self.again(seat).await {
            return Ended::Failed(error);
        }
        loop {
            let (batch, acknowledgement) = tokio::select! {
                biased;
                batch = self.batches.recv() => match batch {
                    Some(delivered) => delivered,
                    None => return Ended::Closed,
                },
                () = clock.sleep(HOPELESS) => {
                    if *self.tip.borrow() > seat.height() + self.kept {
                        return Ended::Behind;
                    }
                    continue;
                }
            };
            if let Err(error) = self.execute(seat, batch.inner()) {
                return Ended::Failed(error);
            }
            acknowledgement.acknowledge();
        }
    }

    async fn again<S: Durable>(&self, seat: &Seat<S>) -> io::Result<()> {
        while seat.height() < self.acknowledged {
            let height = seat.height() + 1;
            let batch = self.order.get_block(Identifier::Height(Height::new(height))).await;
            let batch = batch.ok_or_else(|| io::Error::other(format!("batch {height} is not in the archive")))?;
            seat.execute(&batch.inner().ordered())?;
        }
        Ok(())
    }

    fn execute<S: Durable>(&self, seat: &Seat<S>, batch: &Batch) -> io::Result<()> {
        let (height, executed) = (batch.number(), seat.height());
        // What comes again, and the genesis, are behind us.
        if height > executed + 1 {
            return Err(io::Error::other(format!("batch {height} does not follow {executed}")));
        } else if height > executed {
            seat.execute(&batch.ordered())?;
            // A snapshot was kept: whoever needs less than that begins with one.
            if height.is_multiple_of(EVERY) && height > self.kept {
                self.order.prune(Height::new(height - self.kept));
            }
        }
        Ok(())
    }
}
