//! From the order to the seat: batches by height, each executed before it is acknowledged.
//!
//! Nothing is written at execution. A replica goes on from its latest snapshot, and reads from the order's own archive what
//! was acknowledged since.

use super::Mailbox;
use super::batch::Batch;
use crate::seat::{Durable, Seat};
use commonware_actor::Feedback;
use commonware_consensus::Reporter;
use commonware_consensus::marshal::{Identifier, Update};
use commonware_consensus::types::Height;
use commonware_cryptography::Digested;
use commonware_utils::Acknowledgement;
use commonware_utils::acknowledgement::Exact;
use std::io;
use tokio::sync::mpsc;

/// A batch of the order. To drop the acknowledgement is to stop the delivery.
pub type Delivered = (Digested<Batch>, Exact);

/// Where the order puts its batches. There are never more than it lets be unacknowledged.
#[derive(Clone)]
pub struct Outlet(mpsc::UnboundedSender<Delivered>);

impl Outlet {
    /// An outlet, and what comes out of it.
    pub fn new() -> (Outlet, mpsc::UnboundedReceiver<Delivered>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Outlet(sender), receiver)
    }
}

impl Reporter for Outlet {
    type Activity = Update<Batch>;

    fn report(&mut self, activity: Update<Batch>) -> Feedback {
        match activity {
            Update::Block(batch, acknowledgement) => match self.0.send((batch, acknowledgement)) {
                Ok(()) => Feedback::Ok,
                Err(_) => Feedback::Closed,
            },
            Update::Tip(..) => Feedback::Ok,
        }
    }
}

/// Executes what was acknowledged after the seat's snapshot, and then what comes.
pub async fn deliver<S: Durable>(
    seat: &Seat<S>,
    order: &Mailbox,
    acknowledged: u64,
    mut batches: mpsc::UnboundedReceiver<Delivered>,
) -> io::Result<()> {
    while seat.height() < acknowledged {
        let height = seat.height() + 1;
        let batch = order.get_block(Identifier::Height(Height::new(height))).await;
        let batch = batch.ok_or_else(|| io::Error::other(format!("batch {height} is not in the archive")))?;
        seat.execute(&batch.inner().ordered())?;
    }
    while let Some((batch, acknowledgement)) = batches.recv().await {
        let (height, executed) = (batch.inner().number(), seat.height());
        // What comes again, and the genesis, are behind us.
        if height > executed + 1 {
            return Err(io::Error::other(format!("batch {height} does not follow {executed}")));
        } else if height > executed {
            seat.execute(&batch.inner().ordered())?;
        }
        acknowledgement.acknowledge();
    }
    Ok(())
}
