//! A lock that is held.

use super::errors;
use super::handle::Shared;
use super::opened::Grant;
use super::sequencer::Sequencer;
use super::session::{Answer, Meaning};
use super::stat::Mode;
use std::sync::Arc;
use tidings_base::Error;
use tidings_wire::v1::{self, cell_message::Message};
use tokio::sync::oneshot;

/// A lock that is held, for as long as this is kept. Dropping it releases the lock in the background.
///
/// Locks are advisory and held by sessions, and sessions can be lost: show the [`sequencer`](Lock::sequencer) to what
/// the lock protects, and stop when [`lost`](Lock::lost) says so.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Mode};
/// # async fn work(_: tidings_client::cell::Sequencer) {}
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let file = cell.open("/app/leader").lock().create_file("").await?;
/// let lock = file.acquire(Mode::Exclusive).await?;
/// tokio::select! {
///     () = work(lock.sequencer()) => lock.release().await?,
///     why = lock.lost() => eprintln!("stopped: {why}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    handle: Arc<Shared>,
    grant: Arc<Grant>,
    mode: Mode,
}

impl Lock {
    pub(crate) fn new(handle: Arc<Shared>, grant: Arc<Grant>, mode: Mode) -> Lock {
        Lock { handle, grant, mode }
    }

    /// The path of the node whose lock it is.
    pub fn path(&self) -> &str {
        self.handle.path()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The lock generation of this grant.
    pub fn generation(&self) -> u64 {
        self.grant.generation
    }

    /// What proves to others that this lock is held.
    pub fn sequencer(&self) -> Sequencer {
        Sequencer::new(self.grant.sequencer.clone())
    }

    /// Waits until the lock is lost: the session expired, the node or the handle is gone, or the cell says so. While the
    /// session is in jeopardy nobody knows; [`Cell::events`](super::Cell::events) tells of that.
    pub async fn lost(&self) -> Error {
        self.grant.lost().await
    }

    /// Why the lock is lost, if it is known to be.
    pub fn loss(&self) -> Option<Error> {
        self.grant.loss()
    }

    /// Releases the lock, and returns when it is free. An error says that it was lost before, or that its handle is tied to
    /// another lock that is free ([`Handle::set_sequencer`](super::Handle::set_sequencer)); then this one is released in the
    /// background, as if it were dropped.
    pub async fn release(self) -> Result<(), Error> {
        if let Some(why) = self.loss() {
            return Err(why);
        }
        // A poisoned handle keeps its lock until it is released: nothing else is asked of it.
        if !self.handle.opened.is_poisoned() {
            self.handle.still_fenced().await?;
        }
        let releasing = self.let_go();
        self.handle.cell.core.finished(releasing).await.map(|_| ())
    }

    /// Begins to release it, whoever waits for that.
    fn let_go(&self) -> oneshot::Receiver<Result<Answer, Error>> {
        let opened = &self.handle.opened;
        opened.unsettle();
        opened.lose(errors::released(self.path()));
        let release = v1::ReleaseLock { handle: opened.number };
        self.handle.cell.core.start(Message::Release(release), Meaning::Release(opened.clone()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.loss().is_none() {
            self.let_go();
        }
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock")
            .field("path", &self.path())
            .field("mode", &self.mode)
            .field("generation", &self.generation())
            .field("lost", &self.loss())
            .finish()
    }
}
