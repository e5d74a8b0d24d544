//! The agreed state of the cell: the same commands in the same order make the same bytes at every replica.
//!
//! ```text
//!   CellCommand ─▶ apply: epoch (R1) ─▶ session and result window (R8) ─▶ rights ─▶ sequencers (R11) ─▶ quota ─▶ change
//!        master ◀─ reads: stat, contents, children, lock, session, touches, …
//! ```
//! No clock reaches it: what needs one is decided by a master and comes as a command under its epoch. Everything is in
//! maps whose clone is cheap (`chunks`), so that a snapshot is taken between two commands and written beside later
//! ones.

mod acl;
mod apply;
pub mod backup;
mod chunks;
mod closed;
mod locks;
mod nodes;
mod quota;
mod records;
mod sessions;
mod snapshot;
mod state;
mod touches;
mod tree;

pub use locks::{Delay, LockState, MAX_LOCK_DELAY};
pub use quota::{DEFAULT_BYTES, DEFAULT_NODES};
pub use sessions::{MAX_EPHEMERALS, MAX_SESSIONS, SessionRecord, WINDOW};
pub use state::CellState;
pub use touches::Touched;

use crate::error;
use crate::mutant::Mutant;
use crate::path::{NodePath, Place};
use crate::token::Keys;
use crate::{HandleNumber, SessionId};
use acl::Lists;
use backup::Staged;
use bytes::Bytes;
use chunks::ChunkMap;
use parking_lot::RwLock;
use prost::Message;
use sessions::Sessions;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Epoch, Error, Incarnation, LogIndex};
use tidings_wire::v1;
use tidings_wire::v1::node_target::Target;
use tidings_wire::v1::placed_read::Answer;
use tree::{Node, NodeKey, Tree};

/// The state as the master reads it and the log writes it.
pub type SharedNamespace = Arc<RwLock<Namespace>>;

/// The lease of a session that asks for none, and the first ceiling.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(12);
/// R6: no ceiling is higher.
pub const MAX_CEILING: Duration = Duration::from_secs(60);

/// An answer must fit a client's frame of 1 MiB and a little: so much of one listing.
const MAX_LISTING: usize = 1 << 20;

/// What the state says at a place, be it a refusal.
pub(crate) fn placed(found: Result<v1::NodeRead, Error>) -> Answer {
    found.map_or_else(|refused| Answer::Refused(refused.into()), Answer::Found)
}

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

/// Whose command is applied.
struct Acting {
    session: SessionId,
    caller: Arc<v1::CellCaller>,
}

/// The agreed state.
#[derive(Clone, Debug)]
pub struct Namespace {
    tree: Tree,
    sessions: Sessions,
    /// The nodes whose locks are held or held back, in the order in which they are listed.
    held: ChunkMap<Place, ()>,
    /// R9: ephemeral directories that are empty and that nobody has open.
    idle: ChunkMap<NodeKey, ()>,
    lists: Lists,
    keys: Keys,
    epoch: Epoch,
    incarnation: Incarnation,
    ceiling: Duration,
    /// R6: the longest cache lease that may be in use.
    cache_lease_ms: u32,
    next_instance: u64,
    next_session: u64,
    next_delay: u64,
    staged: Staged,
    /// What the last command changed; not part of the state.
    changed: Touched,
    /// The last entry of the log that was applied: how far it is, beside what it is.
    applied: LogIndex,
    mutant: Option<Mutant>,
}

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace::new()
    }
}

/// Everything that is agreed, and everything that follows from it.
impl PartialEq for Namespace {
    fn eq(&self, other: &Namespace) -> bool {
        let numbers = |state: &Namespace| (state.next_instance, state.next_session, state.next_delay);
        let agreed =
            |state: &Namespace| (state.epoch, state.incarnation, state.ceiling, state.cache_lease_ms, numbers(state));
        agreed(self) == agreed(other)
            && self.tree == other.tree
            && self.sessions == other.sessions
            && self.held == other.held
            && self.idle == other.idle
            && self.lists == other.lists
            && self.keys == other.keys
            && self.staged == other.staged
    }
}

impl Namespace {
    /// An empty cell.
    pub fn new() -> Namespace {
        Namespace {
            tree: Tree::default(),
            sessions: Sessions::default(),
            held: ChunkMap::default(),
            idle: ChunkMap::default(),
            lists: Lists::default(),
            keys: Keys::default(),
            epoch: Epoch(0),
            incarnation: Incarnation(1),
            ceiling: DEFAULT_LEASE,
            cache_lease_ms: 0,
            next_instance: 0,
            next_session: 0,
            next_delay: 0,
            staged: Staged::default(),
            changed: Touched::default(),
            applied: LogIndex::default(),
            mutant: None,
        }
    }

    /// An empty cell that leaves a rule out.
    #[doc(hidden)]
    pub fn with_mutant(mutant: Option<Mutant>) -> Namespace {
        let mut namespace = Namespace::new();
        namespace.set_mutant(mutant);
        namespace
    }

    fn set_mutant(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant;
        self.keys.set_mutant(mutant);
    }

    /// The agreed epoch: that of the last `NewMaster`.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Raised by restore; part of every sequencer and handle.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The last entry of the log that was applied.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// R6: the longest session lease that may be in use.
    pub fn ceiling(&self) -> Duration {
        self.ceiling
    }

    /// R6: the longest cache lease that may be in use, in milliseconds.
    pub fn cache_lease_ms(&self) -> u32 {
        self.cache_lease_ms
    }

    /// R12: the keys of handles and sequencers.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What the last command really changed: always within what [`Namespace::touches`] said of it.
    pub fn changed(&self) -> &Touched {
        &self.changed
    }

    /// A session, if it has not ended.
    pub fn session(&self, id: SessionId) -> Option<&SessionRecord> {
        self.sessions.get(id).map(|session| &session.record)
    }

    /// All sessions, in order.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.sessions.iter().map(|(id, session)| (id, &session.record))
    }

    /// How many sessions there are.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// How many nodes there are, in all applications.
    pub fn node_count(&self) -> usize {
        self.tree.len()
    }

    /// R8: what a mutation of this number was answered, if it was applied and its answer is still kept.
    pub fn result(&self, session: SessionId, number: u64) -> Option<v1::CellResult> {
        if self.mutant == Some(Mutant::RepeatApplied) {
            return None;
        }
        let encoded = self.sessions.get(session)?.window.find(number)?;
        v1::CellResult::decode(encoded).ok()
    }

    /// R12: whether a number of a session stands for a handle that was closed, or for none at all.
    pub fn is_closed(&self, session: SessionId, handle: HandleNumber) -> bool {
        self.sessions.get(session).is_some_and(|session| session.closed.contains(handle.0))
    }

    /// R8: the client has the answers of all numbers of a session below this.
    pub fn answered_below(&self, session: SessionId) -> Option<u64> {
        self.sessions.get(session).map(|session| session.window.floor)
    }

    /// A node's metadata; `None` = there is no such node.
    pub fn stat(&self, place: &Place) -> Option<v1::NodeStat> {
        self.tree.at(place).map(|node| node.stat())
    }

    /// The instance of a node; `None` = there is no such node.
    pub fn instance(&self, place: &Place) -> Option<u64> {
        self.tree.at(place).map(|node| node.instance)
    }

    /// Whether a node is there and ephemeral.
    pub fn is_ephemeral(&self, place: &Place) -> bool {
        self.tree.at(place).is_some_and(|node| node.ephemeral)
    }

    /// A file's contents.
    pub fn contents(&self, place: &Place) -> Option<Bytes> {
        self.tree.at(place).filter(|node| !node.directory).map(|node| node.contents.clone())
    }

    /// A directory's children with their stats, in order; `None` if there is no such node.
    pub fn children(&self, place: &Place) -> Option<Vec<v1::Child>> {
        self.list(place, |_, node| node.stat())
    }

    /// The children as a caller may see them: of those that it may not read, their names and kinds.
    pub fn children_for(&self, caller: &v1::CellCaller, place: &Place) -> Option<Vec<v1::Child>> {
        self.list(place, |path, node| match self.allows(caller, &place.app, path, &node.acl, Right::Read) {
            Ok(()) => node.stat(),
            Err(_) => v1::NodeStat { directory: node.directory, ..Default::default() },
        })
    }

    /// What a caller who may read it is shown of a node.
    pub fn look(
        &self,
        caller: &v1::CellCaller,
        place: &Place,
        contents: bool,
        children: bool,
    ) -> Result<v1::NodeRead, Error> {
        let Some(stat) = self.stat(place) else { return Ok(v1::NodeRead::default()) };
        if contents && stat.directory {
            return Err(error::is_a_directory(&place.path));
        }
        if children && !stat.directory {
            return Err(error::not_a_directory(&place.path));
        }
        let contents = if contents { self.contents(place).unwrap_or_default() } else { Bytes::new() };
        let children = if children { self.children_for(caller, place).unwrap_or_default() } else { Vec::new() };
        let size: usize = children.iter().map(|child| child.encoded_len() + 4).sum();
        if size > MAX_LISTING {
            return Err(error::listing_too_large(&place.path, MAX_LISTING));
        }
        Ok(v1::NodeRead { stat: Some(stat), contents, children, stamp: None })
    }

    /// What this replica has applied of a node, for whoever knows that it may be old; and how far it is.
    pub fn look_applied(&self, caller: &v1::CellCaller, read: &v1::ReadNode) -> Result<v1::PlacedRead, Error> {
        let Some(Target::Path(path)) = read.target.as_ref().and_then(|target| target.target.as_ref()) else {
            return Err(error::bad_handle("what a node has applied is read by path"));
        };
        let place = Place { app: caller.app.as_str().into(), path: NodePath::parse(path)? };
        let found = self.may(caller, &place, Right::Read);
        let found = found.and_then(|()| self.look(caller, &place, read.contents, read.children));
        Ok(v1::PlacedRead { place: Some(self.place_of_answer(0)), answer: Some(placed(found)) })
    }

    /// The place of an answer from this state.
    pub(crate) fn place_of_answer(&self, index: u32) -> v1::CellPlace {
        v1::CellPlace { cluster: 0, incarnation: self.incarnation.0, height: self.applied.0, index }
    }

    fn list(&self, place: &Place, show: impl Fn(&str, &Node) -> v1::NodeStat) -> Option<Vec<v1::Child>> {
        let node = self.tree.at(place)?;
        let mut children = Vec::with_capacity(node.children as usize);
        for (key, child) in self.tree.children(&place.app, place.path.as_str()) {
            let stat = Some(show(key.place.path.as_str(), child));
            children.push(v1::Child { name: key.place.path.name().into(), stat });
        }
        children.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(children)
    }

    /// The locks that a session holds, each with the handle that holds it.
    pub fn locks_of(&self, session: SessionId) -> Vec<(Place, HandleNumber)> {
        self.sessions.get(session).map(|session| session.locks.clone()).unwrap_or_default()
    }

    /// The ephemeral nodes that a session has open, each with the handle.
    pub fn ephemerals_of(&self, session: SessionId) -> Vec<(Place, HandleNumber)> {
        self.sessions.get(session).map(|session| session.ephemerals.clone()).unwrap_or_default()
    }

    /// Who has an ephemeral node open.
    pub fn openers(&self, place: &Place) -> &[(SessionId, HandleNumber)] {
        self.tree.at(place).map(|node| node.openers.as_slice()).unwrap_or_default()
    }

    /// Ephemeral nodes that `ReapEphemeral` would delete now, with their instances.
    pub fn reapable(&self) -> Vec<(Place, u64)> {
        if self.mutant == Some(Mutant::EphemeralsStay) {
            return Vec::new();
        }
        let idle = self.idle.iter().filter_map(|(key, ())| Some((key.place.clone(), self.instance(&key.place)?)));
        idle.collect()
    }
}
