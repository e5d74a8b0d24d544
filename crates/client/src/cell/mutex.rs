//! A mutex that all processes of an application share.

use super::calls::Cell;
use super::handle::Handle;
use super::lock::Lock;
use super::sequencer::Sequencer;
use super::stat::Mode;
use std::sync::Arc;
use tidings_base::Error;
use tokio::sync::{Mutex as Local, OwnedMutexGuard};

/// A mutex that all processes of an application share: one file's lock, held exclusively. First come, first served
/// between processes, and within one as well.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Mutex};
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let mutex = Mutex::new(&cell, "/app/nightly-job");
/// let guard = mutex.lock().await?;
/// println!("ours, as {} proves", guard.sequencer());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    cell: Cell,
    path: Arc<str>,
    /// One handle for all: a process's own tasks take turns here.
    handle: Arc<Local<Option<Handle>>>,
}

/// The mutex is held for as long as this is kept. It is released in the background when it is dropped.
#[must_use = "a mutex that is dropped is released"]
pub struct MutexGuard {
    // Before the turn, so that the next task of this process begins after the release did.
    lock: Lock,
    _turn: OwnedMutexGuard<Option<Handle>>,
}

impl Mutex {
    /// The mutex of this path; its file is created when it is first locked.
    pub fn new(cell: &Cell, path: &str) -> Mutex {
        Mutex { cell: cell.clone(), path: path.into(), handle: Arc::default() }
    }

    /// Waits for the mutex. Dropping the future leaves the queue.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        let mut turn = self.handle.clone().lock_owned().await;
        loop {
            match self.open(&mut turn).await?.acquire(Mode::Exclusive).await {
                Ok(lock) => return Ok(MutexGuard { lock, _turn: turn }),
                // Somebody deleted the file: the next one has its own lock.
                Err(error) if error.code == "cell.node_gone" => *turn = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the mutex if it is free.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        let Ok(mut turn) = self.handle.clone().try_lock_owned() else { return Ok(None) };
        loop {
            match self.open(&mut turn).await?.try_acquire(Mode::Exclusive).await {
                Ok(lock) => return Ok(lock.map(|lock| MutexGuard { lock, _turn: turn })),
                Err(error) if error.code == "cell.node_gone" => *turn = None,
                Err(error) => return Err(error),
            }
        }
    }

    async fn open<'a>(&self, handle: &'a mut Option<Handle>) -> Result<&'a Handle, Error> {
        if handle.is_none() {
            *handle = Some(self.cell.open(&self.path).lock().create_file("").await?);
        }
        handle.as_ref().ok_or_else(super::errors::closed)
    }
}

impl MutexGuard {
    /// What proves to others that the mutex is held.
    pub fn sequencer(&self) -> Sequencer {
        self.lock.sequencer()
    }

    /// Waits until the mutex is lost.
    pub async fn lost(&self) -> Error {
        self.lock.lost().await
    }

    /// Releases the mutex, and returns when it is free. An error says that it was lost before.
    pub async fn unlock(self) -> Result<(), Error> {
        self.lock.release().await
    }
}
