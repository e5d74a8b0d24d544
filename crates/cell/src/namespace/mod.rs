//! The agreed state of the cell: the same commands in the same order make the same bytes at every replica.

use crate::path::{CacheKey, Place};
use crate::token::Keys;
use crate::{HandleNumber, SessionId};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Entry, Position, SnapshotChunks, StateFailure};
use tidings_base::{Epoch, Error, Incarnation};
use tidings_wire::v1;

/// The state as the master reads it and the log writes it.
pub type SharedNamespace = Arc<RwLock<Namespace>>;

/// A right on a node, each governed by one of its three ACL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Read contents, stat and children.
    Read,
    /// Write, delete, create below, take the lock.
    Write,
    /// Change the ACL names.
    ChangeAcl,
}

/// What a command may change that somebody may have cached: a superset, fixed before it is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// These.
    Keys(Vec<CacheKey>),
    /// Anything of this application (an ACL file changed).
    App(Arc<str>),
    /// Anything at all.
    All,
}

/// A session as it is agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Whose it is.
    pub caller: Arc<v1::CellCaller>,
    /// Its lease.
    pub lease: Duration,
    /// What its client chose.
    pub secret: u64,
    /// How often it took a lock or opened an ephemeral node: `StopSession` names it.
    pub gains: u64,
}

/// The lock of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    /// `Unspecified` = free.
    pub mode: v1::LockMode,
    /// Who holds it, with the lock-delay each asked for.
    pub holders: BTreeMap<(SessionId, HandleNumber), Duration>,
    /// Grows when the lock goes from free to held.
    pub generation: u64,
    /// Held back after a loss: for how long, and whether shared requests are held back too.
    pub delay: Option<Delay>,
}

/// A lock held back after its holder was lost. A duration: each new master waits it in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// For how long.
    pub length: Duration,
    /// A lost shared holder holds back exclusive requests only.
    pub exclusive_only: bool,
    /// Names this delay: `EndDelay` does not end a later one.
    pub number: u64,
}

/// The agreed state.
#[derive(Clone, Debug, Default)]
pub struct Namespace {}

impl Namespace {
    /// An empty cell.
    pub fn new() -> Namespace {
        Namespace::default()
    }

    /// Applies one command. Refusals are results; they change nothing but the result window.
    pub fn apply(&mut self, _command: &v1::CellCommand) -> v1::CellResult {
        unimplemented!()
    }

    /// The agreed epoch: that of the last `NewMaster`.
    pub fn epoch(&self) -> Epoch {
        unimplemented!()
    }

    /// Raised by restore; part of every sequencer and handle.
    pub fn incarnation(&self) -> Incarnation {
        unimplemented!()
    }

    /// R6: the longest session lease that may be in use.
    pub fn ceiling(&self) -> Duration {
        unimplemented!()
    }

    /// A session, if it has not ended.
    pub fn session(&self, _id: SessionId) -> Option<&SessionRecord> {
        unimplemented!()
    }

    /// All sessions, in order.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        std::iter::empty()
    }

    /// R8: what a mutation of this number was answered, if it was applied and its answer is still kept.
    pub fn result(&self, _session: SessionId, _number: u64) -> Option<v1::CellResult> {
        unimplemented!()
    }

    /// A node's metadata; `None` = there is no such node.
    pub fn stat(&self, _place: &Place) -> Option<v1::NodeStat> {
        unimplemented!()
    }

    /// A file's contents.
    pub fn contents(&self, _place: &Place) -> Option<Bytes> {
        unimplemented!()
    }

    /// A directory's children with their stats, in order; `None` if there is no such node.
    pub fn children(&self, _place: &Place) -> Option<Vec<v1::Child>> {
        unimplemented!()
    }

    /// Whether a caller has a right on a node (or, where there is none, on its nearest ancestor).
    pub fn may(&self, _caller: &v1::CellCaller, _place: &Place, _right: Right) -> Result<(), Error> {
        unimplemented!()
    }

    /// The lock of a node; `None` if there is no such node.
    pub fn lock(&self, _place: &Place) -> Option<&LockState> {
        unimplemented!()
    }

    /// All locks that are held or held back.
    pub fn locks(&self) -> impl Iterator<Item = (Place, &LockState)> {
        std::iter::empty()
    }

    /// The locks that a session holds, each with the handle that holds it.
    pub fn locks_of(&self, _session: SessionId) -> Vec<(Place, HandleNumber)> {
        unimplemented!()
    }

    /// The ephemeral nodes that a session has open, each with the handle.
    pub fn ephemerals_of(&self, _session: SessionId) -> Vec<(Place, HandleNumber)> {
        unimplemented!()
    }

    /// Ephemeral nodes that `ReapEphemeral` would delete now.
    pub fn reapable(&self) -> Vec<(Place, u64)> {
        unimplemented!()
    }

    /// What a command may change that somebody may have cached, whatever is applied before it.
    pub fn touches(&self, _command: &v1::CellCommand) -> Touched {
        unimplemented!()
    }

    /// R11: whether a lock is still held as this sequencer says; if not, why.
    pub fn check_sequencer(&self, _sequencer: &v1::SequencerBody) -> Result<(), &'static str> {
        unimplemented!()
    }

    /// R12: the keys of handles and sequencers.
    pub fn keys(&self) -> &Keys {
        unimplemented!()
    }

    /// Who has an ephemeral node open.
    pub fn openers(&self, _place: &Place) -> &[(SessionId, HandleNumber)] {
        unimplemented!()
    }

    /// The instance of a node; `None` = there is no such node.
    pub fn instance(&self, _place: &Place) -> Option<u64> {
        unimplemented!()
    }

    /// Bounds and use of a directory.
    pub fn quota(&self, _place: &Place) -> Option<v1::Quota> {
        unimplemented!()
    }
}

/// The state behind the log of group 0.
pub struct CellState {
    shared: SharedNamespace,
    position: Position,
}

impl CellState {
    /// An empty state.
    pub fn new() -> CellState {
        CellState { shared: Arc::default(), position: Position::default() }
    }

    /// An empty state with a rule left out of `apply` (R1, R8, R9, R10, R11 live there).
    #[doc(hidden)]
    pub fn with_mutant(_mutant: Option<crate::mutant::Mutant>) -> CellState {
        CellState::new()
    }

    /// The same state, to read.
    pub fn shared(&self) -> SharedNamespace {
        self.shared.clone()
    }
}

impl Default for CellState {
    fn default() -> CellState {
        CellState::new()
    }
}

impl AgreedState for CellState {
    fn position(&self) -> Position {
        self.position.clone()
    }

    fn apply(&mut self, _entries: &[Entry<'_>], _note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        unimplemented!()
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        unimplemented!()
    }

    fn restore(&mut self, _position: Position, _chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        unimplemented!()
    }
}
