//! An open node.

use super::calls::Inner;
use super::errors;
use super::events::Watch;
use super::lock::Lock;
use super::opened::Opened;
use super::sequencer::Sequencer;
use super::session::{Answer, Meaning};
use super::stat::{Acl, File, Listing, Mode, Stat};
use super::trace;
use super::transport::unexpected;
use bytes::Bytes;
use std::sync::Arc;
use tidings_base::Error;
use tidings_cell::error;
use tidings_wire::v1::{self, cell_message::Message};

/// An open node: everything that can be done to it. Bound to the node that was there at open: after a deletion its calls
/// fail with `cell.node_gone`, even if a new node has the path. Dropping it closes it in the background, and releases
/// its lock.
pub struct Handle {
    inner: Arc<Shared>,
}

/// Kept by the handle and by its lock.
pub(crate) struct Shared {
    pub(crate) cell: Arc<Inner>,
    pub(crate) opened: Arc<Opened>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.opened.begin_close() && self.cell.core.forget(&self.opened) {
            let close = v1::CloseHandle { handle: self.opened.number };
            self.cell.core.start(Message::Close(close), Meaning::Plain);
        }
    }
}

impl Shared {
    pub(crate) fn path(&self) -> &str {
        self.opened.asked.path.as_str()
    }

    /// Calls, unless the handle is or becomes poisoned.
    pub(crate) async fn call(&self, message: Message, meaning: Meaning) -> Result<Answer, Error> {
        self.unpoisoned()?;
        tokio::select! {
            biased;
            () = self.opened.poisoned() => Err(errors::poisoned(true)),
            answer = self.cell.core.call(message, meaning) => answer,
        }
    }

    async fn ask(&self, message: Message) -> Result<Message, Error> {
        match self.call(message, Meaning::Plain).await? {
            Answer::Message(message) => Ok(message),
            _ => Err(unexpected()),
        }
    }

    fn unpoisoned(&self) -> Result<(), Error> {
        match self.opened.is_poisoned() {
            true => Err(errors::poisoned(false)),
            false => Ok(()),
        }
    }

    /// A sequencer that was valid after something was done was valid when it was done: it never becomes valid again.
    pub(crate) async fn still_fenced(&self) -> Result<(), Error> {
        for token in self.opened.sequencers() {
            match self.ask(Message::CheckSequencer(v1::CheckSequencer { token })).await? {
                Message::SequencerChecked(checked) if checked.valid => {}
                Message::SequencerChecked(checked) => return Err(error::stale_sequencer(&checked.why)),
                _ => return Err(unexpected()),
            }
        }
        Ok(())
    }

    fn target(&self) -> Option<v1::NodeTarget> {
        Some(v1::NodeTarget { target: Some(v1::node_target::Target::Handle(self.opened.number)) })
    }
}

impl Handle {
    pub(crate) fn new(cell: Arc<Inner>, opened: Arc<Opened>) -> Handle {
        Handle { inner: Arc::new(Shared { cell, opened }) }
    }

    /// The path that was opened.
    pub fn path(&self) -> &str {
        self.inner.path()
    }

    /// The instance of the node that was opened.
    pub fn instance(&self) -> u64 {
        self.inner.opened.stat.instance
    }

    /// The metadata as it was when the node was opened.
    pub fn opened_stat(&self) -> &Stat {
        &self.inner.opened.stat
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.inner.opened.stat.directory
    }

    /// Whether this open created the node.
    pub fn created(&self) -> bool {
        self.inner.opened.created
    }

    /// Contents and metadata, read together; from the cache where that is allowed.
    pub async fn contents_and_stat(&self) -> Result<File, Error> {
        if let Some(file) = self.cached(true)? {
            self.inner.still_fenced().await?;
            return Ok(file);
        }
        self.read(true).await
    }

    /// The metadata; from the cache where that is allowed.
    pub async fn stat(&self) -> Result<Stat, Error> {
        let file = match self.cached(false)? {
            Some(file) => {
                self.inner.still_fenced().await?;
                file
            }
            None => self.read(false).await?,
        };
        Ok(file.stat().clone())
    }

    /// The children of a directory with their metadata; from the cache where that is allowed.
    pub async fn read_dir(&self) -> Result<Listing, Error> {
        let asked = &self.inner.opened.asked;
        self.inner.unpoisoned()?;
        // A listing may only be had from the cache while its directory is known to be this one.
        if asked.read
            && !asked.uncached
            && let Some(Some(file)) = self.inner.cell.core.cache.stat(asked.path.as_str())
            && file.stat().instance == self.inner.opened.stat.instance
            && let Some(listing) = self.inner.cell.core.cache.listing(asked.path.as_str())
        {
            trace::hit();
            self.inner.still_fenced().await?;
            return Ok(listing);
        }
        let read = v1::ReadNode {
            target: self.inner.target(),
            children: true,
            uncached: asked.uncached,
            contents: false,
            ..Default::default()
        };
        let listing = match self.inner.ask(Message::Read(read)).await? {
            Message::NodeRead(read) => Listing::new(read.children),
            _ => return Err(unexpected()),
        };
        self.inner.still_fenced().await?;
        Ok(listing)
    }

    /// A cached copy of the very node that was opened.
    fn cached(&self, contents: bool) -> Result<Option<File>, Error> {
        let Shared { cell, opened } = &*self.inner;
        self.inner.unpoisoned()?;
        if opened.asked.uncached || !opened.asked.read {
            return Ok(None);
        }
        let path = opened.asked.path.as_str();
        let found = if contents { cell.core.cache.node(path) } else { cell.core.cache.stat(path) };
        let found = found.flatten().filter(|file| file.stat().instance == opened.stat.instance);
        if found.is_some() {
            trace::hit();
        }
        Ok(found)
    }

    async fn read(&self, contents: bool) -> Result<File, Error> {
        let uncached = self.inner.opened.asked.uncached;
        let read =
            v1::ReadNode { target: self.inner.target(), contents, children: false, uncached, ..Default::default() };
        let file = match self.inner.ask(Message::Read(read)).await? {
            Message::NodeRead(v1::NodeRead { stat: Some(stat), contents, .. }) => File::new(stat, contents),
            Message::NodeRead(_) => return Err(error::node_gone(self.path())),
            _ => return Err(unexpected()),
        };
        self.inner.still_fenced().await?;
        Ok(file)
    }

    /// Replaces the contents; with `if_generation` only if that is the present content generation, which is decided
    /// when the change is applied. Returns the metadata after it.
    pub async fn set_contents(&self, contents: impl Into<Bytes>, if_generation: Option<u64>) -> Result<Stat, Error> {
        let set = v1::SetContents {
            target: self.inner.target(),
            contents: contents.into(),
            if_generation,
            sequencers: self.inner.opened.sequencers(),
        };
        done(self.inner.ask(Message::SetContents(set)).await?)
    }

    /// Replaces the ACL names; with `if_generation` only if that is the present ACL generation.
    pub async fn set_acl(&self, acl: Acl, if_generation: Option<u64>) -> Result<Stat, Error> {
        let set = v1::SetAcl {
            target: self.inner.target(),
            acl: Some(acl.into()),
            if_generation,
            sequencers: self.inner.opened.sequencers(),
        };
        done(self.inner.ask(Message::SetAcl(set)).await?)
    }

    /// Deletes the node, which must have no children.
    pub async fn delete(&self, if_generation: Option<u64>) -> Result<(), Error> {
        let delete =
            v1::DeleteNode { target: self.inner.target(), if_generation, sequencers: self.inner.opened.sequencers() };
        done(self.inner.ask(Message::Delete(delete)).await?).map(|_| ())
    }

    /// Waits for the lock, first come, first served. Dropping the future leaves the queue.
    pub async fn acquire(&self, mode: Mode) -> Result<Lock, Error> {
        // Whoever could have the lock at once must not wait for others of the session who wait for other locks.
        if self.inner.cell.core.waits_are_full()
            && let Some(lock) = self.try_acquire(mode).await?
        {
            return Ok(lock);
        }
        self.take(mode, false).await
    }

    /// Takes the lock if it is free; `None` if somebody holds it, or it is held back.
    pub async fn try_acquire(&self, mode: Mode) -> Result<Option<Lock>, Error> {
        match self.take(mode, true).await {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.code == "cell.lock_held" => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn take(&self, mode: Mode, try_only: bool) -> Result<Lock, Error> {
        let opened = &self.inner.opened;
        self.inner.unpoisoned()?;
        tokio::select! {
            biased;
            () = opened.poisoned() => return Err(errors::poisoned(false)),
            () = opened.settled() => {}
        }
        let acquire = v1::AcquireLock { handle: opened.number, mode: mode.wire(), try_only, waits_as: 0 };
        let lock = match self.inner.call(Message::Acquire(acquire), Meaning::Acquire(opened.clone())).await? {
            Answer::Granted(grant) => Lock::new(self.inner.clone(), grant, mode),
            _ => return Err(unexpected()),
        };
        // A lock that is taken under a stale sequencer is given back by the guard.
        self.inner.still_fenced().await?;
        Ok(lock)
    }

    /// The sequencer of the lock that this handle holds.
    pub async fn sequencer(&self) -> Result<Sequencer, Error> {
        let get = v1::GetSequencer { handle: self.inner.opened.number };
        let sequencer = match self.inner.ask(Message::GetSequencer(get)).await? {
            Message::Sequencer(sequencer) => Sequencer::new(sequencer.token),
            _ => return Err(unexpected()),
        };
        self.inner.still_fenced().await?;
        Ok(sequencer)
    }

    /// Ties later calls on this handle to a lock: they fail with `cell.stale_sequencer` once it is no longer held.
    /// Changes are checked when they are applied; reads, acquires and questions are checked after they were done, and a
    /// release before, which costs a call. Closing always works. `None` unties it.
    pub fn set_sequencer(&self, sequencer: impl Into<Option<Sequencer>>) {
        let sequencers = sequencer.into().map(|s| s.token().clone());
        self.inner.opened.set_sequencers(sequencers.into_iter().collect());
    }

    /// Whether a lock is still held as its sequencer says.
    pub async fn check_sequencer(&self, sequencer: &Sequencer) -> Result<bool, Error> {
        let check = v1::CheckSequencer { token: sequencer.token().clone() };
        let valid = match self.inner.ask(Message::CheckSequencer(check)).await? {
            Message::SequencerChecked(checked) => checked.valid,
            _ => return Err(unexpected()),
        };
        self.inner.still_fenced().await?;
        Ok(valid)
    }

    /// What happens to the node from now on, of the kinds that [`Open::events`](super::Open::events) asked for.
    pub fn watch(&self) -> Watch {
        Watch { inbox: self.inner.opened.watch(), handle: None }
    }

    /// Makes every outstanding and later call on this handle fail, without closing it: other parts of a program that
    /// share it stop, and what it keeps (a lock, an ephemeral file) stays until it is released or closed.
    pub fn poison(&self) {
        self.inner.opened.poison();
    }

    /// Closes the handle, and releases its lock. Returns when the cell has done so, which it does with the last of those
    /// that share it.
    pub async fn close(self) -> Result<(), Error> {
        let Shared { cell, opened } = &*self.inner;
        if !opened.begin_close() || !cell.core.forget(opened) {
            return Ok(());
        }
        let close = v1::CloseHandle { handle: opened.number };
        let closing = cell.core.start(Message::Close(close), Meaning::Plain);
        cell.core.finished(closing).await.map(|_| ())
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shared { opened, .. } = &*self.inner;
        f.debug_struct("Handle")
            .field("path", &self.path())
            .field("instance", &opened.stat.instance)
            .finish_non_exhaustive()
    }
}

/// The metadata after a change; of what is gone, there is none.
pub(crate) fn done(message: Message) -> Result<Stat, Error> {
    match message {
        Message::Done(done) => Ok(done.stat.map(Stat::from).unwrap_or_default()),
        _ => Err(unexpected()),
    }
}
