//! The agreed log as machines see it: bytes in, bytes out, the same order at every replica.
//!
//! ```text
//!   machine ── Ask::Propose, Ask::ReadBarrier ──▶ agreed log ── AgreedState::apply, in order, at every replica
//!      ◀── Heard::Applied, Refused, Unknown, Passed, Role, LeaseUntil ──┘
//! ```
//! Two things stand behind it: the binding of openraft (`tidings-consensus`) and the simulator's model. One
//! conformance suite (`tidings_sim::conformance`) holds both to the same behaviour:
//! - an entry that was reported [`Heard::Applied`] is applied at every replica, at that index, for ever;
//! - an entry that was [`Heard::Refused`] is applied nowhere; after [`Heard::Unknown`] either may be true;
//! - after [`Heard::Passed`] the state here holds every entry reported applied anywhere before the barrier was asked;
//! - epochs of [`Role::Leader`] grow from one leadership to the next, restarts included;
//! - while a [`Heard::LeaseUntil`] lasts on the leader's own clock, no other replica can have become leader, as long
//!   as clock rates differ by no more than ρ.

use crate::ids::{Epoch, LogIndex, NodeId, OpId};
use crate::time::Mono;
use bytes::Bytes;
use std::fmt;

/// The largest command that may be proposed: large enough for a full cell file or table record with its frame.
pub const MAX_COMMAND: usize = 2 << 20;

/// What a machine asks of the agreed log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Append this command and apply it everywhere. Answered once, by `Applied`, `Refused` or `Unknown`.
    Propose {
        /// Names the proposal; it comes back with the answer.
        op: OpId,
        /// The command, opaque to the log.
        command: Bytes,
    },
    /// Tell when the local state is fresh enough for a linearizable read. Answered by `Passed` or `Refused`.
    ReadBarrier {
        /// Names the barrier; it comes back with the answer.
        op: OpId,
    },
}

/// What a machine hears of the agreed log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A proposal was committed and applied here.
    Applied {
        /// The proposal.
        op: OpId,
        /// Where it stands in the log.
        index: LogIndex,
        /// What the state answered.
        result: Bytes,
    },
    /// It was not appended and never will be; a barrier did not pass.
    Refused {
        /// The proposal or barrier.
        op: OpId,
        /// Why.
        refusal: Refusal,
    },
    /// The proposal may or may not be applied, now or later.
    Unknown {
        /// The proposal.
        op: OpId,
    },
    /// The barrier passed: a read of the local state is linearizable now.
    Passed {
        /// The barrier.
        op: OpId,
        /// The state here has applied at least this much.
        index: LogIndex,
    },
    /// This replica's role changed.
    Role(Role),
    /// As leader: nobody else leads before this instant of the local clock (the share for ρ is taken off already).
    LeaseUntil(Mono),
}

/// Why the agreed log did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This replica does not lead; `leader` does, if that is known.
    NotLeader {
        /// The leader, if known.
        leader: Option<NodeId>,
    },
    /// Too many requests are waiting; try again after a pause.
    Busy,
    /// The command is larger than [`MAX_COMMAND`].
    TooLarge,
    /// The replica is stopping or its disk failed.
    Stopped,
}

/// The role of a replica in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads, under this epoch, and has applied everything that earlier leaders committed.
    Leader {
        /// Larger than that of any earlier leadership of the group.
        epoch: Epoch,
    },
    /// It follows; the leader may be unknown.
    Follower {
        /// The leader, if known.
        leader: Option<NodeId>,
    },
}

/// One committed entry on its way into the state.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Where it stands in the log.
    pub index: LogIndex,
    /// The command; empty for entries that only the log itself cares about.
    pub command: &'a [u8],
}

/// How far a state has come, with the log's own note that is stored with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The last entry applied; 0 before the first.
    pub index: LogIndex,
    /// Opaque to the state (the binding keeps term and membership here).
    pub note: Bytes,
}

/// The deterministic state that a log feeds: the same entries in the same order make the same bytes.
///
/// No clock and no randomness may reach it; what it needs of either is part of a command.
pub trait AgreedState: Send + 'static {
    /// How far it has come.
    fn position(&self) -> Position;

    /// Applies entries in order and moves the position, all or nothing; one result an entry.
    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure>;

    /// Whether the state itself survives a restart. If not, the log keeps a snapshot file for it.
    fn is_durable(&self) -> bool;

    /// Makes everything applied so far durable (a no-op for a state in memory), so that the log may be cut.
    fn flush(&mut self) -> Result<(), StateFailure>;

    /// A frozen picture of the state at its present position, read lazily; later applies do not change it.
    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure>;

    /// Replaces the whole state by a picture taken elsewhere. On failure the old state is still whole, or the
    /// failure is reported again at the next open.
    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure>;
}

/// A picture of a state in pieces of at most [`SNAPSHOT_CHUNK`] bytes each.
pub trait SnapshotChunks: Send {
    /// The next piece, `None` after the last.
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure>;
}

/// The most bytes a piece of a snapshot may have: it must fit a frame with room to spare.
pub const SNAPSHOT_CHUNK: usize = 256 << 10;

/// The state could not be read or written: the replica must stop rather than go on with less than it promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFailure {
    /// What failed, with the file where one is known.
    pub what: String,
}

impl StateFailure {
    /// A failure that says what failed.
    pub fn new(what: impl Into<String>) -> StateFailure {
        StateFailure { what: what.into() }
    }
}

impl fmt::Display for StateFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for StateFailure {}
