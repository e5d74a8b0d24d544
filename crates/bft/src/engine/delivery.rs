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
use tidings_sketch::replica::Block;
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

/// Where batches are that are here already.
pub trait Archive: Send + Sync {
    /// The commands of the batch at a height.
    fn at(&self, height: u64) -> impl Future<Output = Option<Block>> + Send;

    /// Removes what lies below a height.
    fn prune(&self, below: u64);
}

impl Archive for Mailbox {
    async fn at(&self, height: u64) -> Option<Block> {
        Some(self.get_block(Identifier::Height(Height::new(height))).await?.inner().ordered())
    }

    fn prune(&self, below: u64) {
        Mailbox::prune(self, Height::new(below));
    }
}

/// What is delivered to a seat.
pub struct Delivery<A> {
    /// Where batches that are here already are asked for, and removed.
    pub order: A,
    /// The height up to which batches were acknowledged before.
    pub acknowledged: u64,
    /// The height from which the order delivers. It may lie below the state: a snapshot that was taken over is kept before the
    /// order knows that it begins there, and who is killed in between has the one without the other.
    pub delivered: u64,
    /// What comes.
    pub batches: mpsc::UnboundedReceiver<Delivered>,
    /// The highest batch that is known to be final.
    pub tip: watch::Receiver<u64>,
    /// How many batches are kept behind the latest snapshot.
    pub kept: u64,
}

impl<A: Archive> Delivery<A> {
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
                    // What counts is what the order waits for, and not how far the state is.
                    if *self.tip.borrow() > self.delivered.saturating_add(self.kept) {
                        return Ended::Behind;
                    }
                    continue;
                }
            };
            if let Err(error) = self.execute(seat, batch.inner()) {
                return Ended::Failed(error);
            }
            self.delivered = self.delivered.max(batch.inner().number());
            acknowledgement.acknowledge();
        }
    }

    async fn again<S: Durable>(&self, seat: &Seat<S>) -> io::Result<()> {
        while seat.height() < self.acknowledged {
            let height = seat.height() + 1;
            let block = self.order.at(height).await;
            let block = block.ok_or_else(|| io::Error::other(format!("batch {height} is not in the archive")))?;
            seat.execute(&block)?;
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
                self.order.prune(height - self.kept);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KeyValue;
    use crate::mark::Start;
    use crate::membership::tests::group;
    use crate::snapshot::Shelf;
    use commonware_runtime::{Runner as _, deterministic};
    use std::sync::Arc;

    /// An archive that has nothing.
    struct Empty;

    impl Archive for Empty {
        async fn at(&self, _: u64) -> Option<Block> {
            None
        }

        fn prune(&self, _: u64) {}
    }

    /// It was killed when the snapshot that it took over was kept, and the order did not know of it.
    #[test]
    fn who_waits_for_what_others_keep_no_more_is_behind_whatever_its_state() {
        let (founded, directory) = (group("one"), tempfile::tempdir().unwrap());
        let open = || {
            let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.replicas[0].clone());
            let shelf = Shelf::open(directory.path()).unwrap();
            Seat::open(membership, secrets, Start::Back, shelf, KeyValue::default(), None).unwrap()
        };
        let before = open();
        (1..=EVERY).for_each(|height| before.execute(&Block { height, commands: Vec::new() }).unwrap());
        let (kept, seat) = (FEWEST_KEPT, &open());
        assert_eq!(seat.height(), EVERY);
        for (delivered, tip, is_behind) in
            [(0, kept, false), (0, kept + 1, true), (EVERY, kept + 1, false), (EVERY, EVERY + kept + 1, true)]
        {
            let (outlet, batches) = Outlet::new();
            outlet.tip.send_replace(tip);
            let delivery = Delivery { order: Empty, acknowledged: 0, delivered, batches, tip: outlet.tip(), kept };
            let ended = deterministic::Runner::default().start(|clock| async move {
                let long = clock.sleep(10 * HOPELESS);
                tokio::select! {
                    ended = delivery.run(&clock, seat) => Some(ended),
                    () = long => None,
                }
            });
            assert_eq!(matches!(ended, Some(Ended::Behind)), is_behind, "{delivered} of {tip}: {ended:?}");
        }
    }
}
