//! Placement on this node: the manager's machine on tokio, its state and its election in the cell.
//!
//! ```text
//!   Placement::request ─▶ Managing (machine, one task) ─ Commit, Read, List ─▶ errands ─▶ files in the cell
//!        ▲                  │    ▲                              └──────── what came of it ◀──┘
//!        └─ Answer, Fail ───┘    └─ Elected, Deposed ── standing: a session, the lock, the leader's address
//! ```
//! Every node knows who leads: the leader writes its address into the lock's file, and whoever is asked and does not
//! lead answers with a redirect there. Nodes with the role `manager` stand for election; the cell's files lie in a tree
//! of the platform's own, [`APP`], which no application can have.

mod errands;
pub(crate) mod joining;
mod managing;
pub mod sidecar;
mod standing;

use crate::clock::Clock;
use crate::driver::{self, Handle};
use crate::services::{Cells, Way};
use crate::waiting::{Cancelling, Waiting};
use errands::Clerk;
use managing::{Managing, Performer};
use parking_lot::Mutex;
use standing::Standing;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, OpId};
use tidings_client::cell::Cell;
use tidings_placement::config::FailOver;
use tidings_placement::manager::{Gauges, Input, Manager, Options};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The application in whose tree the manager's files lie: no application's name begins with a dot.
pub const APP: &str = ".placement";

/// Inputs that may wait for the manager; callers wait beyond that.
const QUEUE: usize = 4_096;

/// How long the lock may take to be given back when a node stops; what is left ends with the session.
const FAREWELL: Duration = Duration::from_secs(1);

/// What placement on a node is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// This node's number.
    pub node: u64,
    /// Where others reach this node.
    pub address: String,
    /// Whether it stands for election.
    pub stands: bool,
    /// F10: the length of its cell session, and what leases must outlast beyond that.
    pub fail_over: FailOver,
}

/// Placement on this node. Cheap to clone.
#[derive(Clone)]
pub struct Placement {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Handle<Input>,
    waiting: Arc<Waiting<Answer>>,
    leader: watch::Receiver<Option<String>>,
    reign: Arc<Mutex<Option<Reign>>>,
    /// What the manager had a second ago.
    measured: Arc<Mutex<Gauges>>,
    told: Told,
    way: Way,
    /// Whether it stands for election, still.
    stands: watch::Sender<bool>,
    retiring: watch::Sender<bool>,
    standing: Mutex<Option<JoinHandle<()>>>,
    tasks: Mutex<Vec<tokio::task::AbortHandle>>,
}

/// What a request gets from the manager.
type Answer = Result<Message, Error>;

/// A leadership of this node: the session that holds the lock, and what proves it to the cell.
#[derive(Clone)]
struct Reign {
    epoch: u64,
    cell: Cell,
    sequencer: bytes::Bytes,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Placement {
    /// Begins to know who leads, and to stand for election if the node is told to.
    pub fn start(told: Told, cells: Cells, clock: Arc<dyn Clock>) -> Result<Placement, Error> {
        let seed = getrandom::u64()
            .map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}")))?;
        let reign = Arc::new(Mutex::new(None));
        let waiting = Arc::new(Waiting::default());
        let (errands, queue) = mpsc::unbounded_channel();
        let (step_down, stepping_down) = watch::channel(0);
        let measured = Arc::new(Mutex::new(Gauges::default()));
        let manager = Manager::new(Options { seed, mutant: None }).outlasting(told.fail_over);
        let machine = Managing::new(manager, reign.clone());
        let performer = Performer::new(waiting.clone(), errands, step_down, measured.clone());
        let (manager, driving) = driver::spawn("placement", machine, performer, clock, QUEUE);
        let way = Way::new(cells, APP, told.node);
        let clerk = Clerk::new(way.clone(), reign.clone());
        let running = tokio::spawn(errands::run(clerk, queue, manager.clone()));
        let (leader, leads) = watch::channel(None);
        let (retiring, retires) = watch::channel(false);
        let (stands, may_stand) = watch::channel(told.stands);
        let standing = Standing {
            told: told.clone(),
            way: way.clone(),
            reign: reign.clone(),
            leader,
            manager: manager.clone(),
            stepping_down,
            stands: may_stand,
            retires,
        };
        let standing = tokio::spawn(standing.run());
        let tasks = vec![driving.abort_handle(), running.abort_handle(), standing.abort_handle()];
        Ok(Placement {
            shared: Arc::new(Shared {
                manager,
                waiting,
                leader: leads,
                reign,
                measured,
                told,
                way,
                stands,
                retiring,
                standing: Mutex::new(Some(standing)),
                tasks: Mutex::new(tasks),
            }),
        })
    }

    /// Asks the manager here; namespaces have their full names. Who does not lead says who does. Dropping the future
    /// cancels what is held.
    pub async fn request(&self, request: v1::PlacementMessage) -> Result<v1::PlacementMessage, Error> {
        let shared = &self.shared;
        let wait = shared.waiting.begin(&shared.manager);
        let op = wait.op();
        let input = match request.message {
            Some(Message::OwnerPoll(poll)) => Input::Owner { op, poll: Box::new(poll) },
            Some(Message::LookupPoll(poll)) => Input::Lookup { op, poll },
            Some(request) => Input::Operate { op, request },
            None => return Err(tidings_wire::error::unsupported()),
        };
        if shared.manager.send(input).await.is_err() {
            return Err(stopped());
        }
        match wait.await {
            Some(Ok(message)) => Ok(v1::PlacementMessage { message: Some(message) }),
            Some(Err(error)) if error.code == "placement.not_leader" => Err(error.redirect(self.elsewhere())),
            Some(Err(error)) => Err(error),
            None => Err(stopped()),
        }
    }

    /// Where the leader is, unless it is this node or nobody knows.
    fn elsewhere(&self) -> Option<String> {
        self.shared.leader.borrow().clone().filter(|address| *address != self.shared.told.address)
    }

    /// How the manager here stands, for the status.
    pub fn status(&self) -> v1::PlacementStatus {
        let shared = &self.shared;
        let epoch = shared.reign.lock().as_ref().map_or(0, |reign| reign.epoch);
        let role = match (epoch, *shared.stands.borrow()) {
            (0, false) => "watching",
            (0, true) => "standing by",
            _ => "leading",
        };
        let leader = shared.leader.borrow().clone().unwrap_or_default();
        let Gauges { namespaces, platform, owners, ranges, .. } = *shared.measured.lock();
        let role = role.to_owned();
        v1::PlacementStatus { role, leader, epoch, namespaces, owners, ranges, platform_namespaces: platform }
    }

    /// How many requests are under way or held.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.len()
    }

    /// Waits until the manager's machine has stopped by itself; its driver ends only so.
    pub async fn broken(&self) {
        self.shared.manager.ended().await;
    }

    /// Leads no more and stands for election no more, for good; it still knows who leads.
    pub fn stand_down(&self) {
        self.shared.stands.send_replace(false);
    }

    /// Gives the lock back if this node leads, so that another one leads at once, and lets go of all that wait.
    pub async fn retire(&self) {
        self.shared.retiring.send_replace(true);
        let standing = self.shared.standing.lock().take();
        if let Some(standing) = standing
            && tokio::time::timeout(FAREWELL, standing).await.is_err()
        {
            tracing::warn!("the placement lock was not given back in time; it ends with its session");
        }
        self.shared.waiting.abandon();
    }

    /// Stops at once, as a crash would.
    pub fn stop(&self) {
        self.shared.let_go();
    }
}

impl Shared {
    fn let_go(&self) {
        self.way.close();
        self.tasks.lock().drain(..).for_each(|task| task.abort());
        *self.reign.lock() = None;
        self.waiting.abandon();
    }
}

impl Cancelling for Input {
    fn cancel(op: OpId) -> Input {
        Input::Cancel { op }
    }
}

fn stopped() -> Error {
    Error::new("placement.not_leader", Class::Unreachable, "this node is stopping").hint("Ask another node.")
}
