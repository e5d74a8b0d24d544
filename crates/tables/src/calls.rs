//! What callers ask of a partition, and what they are answered.

use crate::names::{NetId, OperationId, Position};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidings_base::{Mono, Wall};
use tidings_predicate::query::{Ask, Row};
use tidings_predicate::{Key, Packed};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 1 << 10;
/// The largest record: its columns and its writer's predicate.
pub const MAX_RECORD: usize = 1 << 20;
/// The columns of a record. Whoever names one passes over those before it, sixteen in a step: in the widest record every reader
/// can name hundreds.
pub const MAX_COLUMNS: usize = 4_096;
/// The entries of a map in a column.
pub const MAX_ENTRIES: usize = 16_384;
/// R6: operations of one client without acknowledged outcome.
pub const MAX_OUTSTANDING: u64 = 1_024;

/// How much is known of somebody; a table asks for a level or more (§3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Nobody in particular.
    Public,
    /// An application.
    App,
    /// A user of an application.
    #[default]
    User,
}

/// Whoever calls, as the server has verified it.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    /// What is known of it.
    pub access: Access,
    /// Its application; empty if unknown.
    pub app: String,
    /// Its user; empty if unknown.
    pub user: String,
    /// Who it is, as lists of access name it: `app:APPLICATION/KEY`, `user:APPLICATION/SUBJECT`, `operator`; empty if unknown.
    pub principal: String,
    /// Its verified claims: what predicates name `user.`; a map.
    pub claims: Packed,
    /// R8: when the claims expire.
    pub expires: Option<Wall>,
}

impl Caller {
    /// Whether it runs the cluster.
    pub fn is_operator(&self) -> bool {
        self.principal == "operator"
    }

    /// Whether it shows nothing of who it is.
    pub fn is_nobody(&self) -> bool {
        self.principal == crate::acl::NOBODY
    }

    /// Whether it speaks for an application: with a key of it, or as an operator.
    pub fn speaks_for(&self, app: &str) -> bool {
        let trusted = self.is_operator() || self.principal.starts_with("app:");
        trusted && self.app == app && self.access >= Access::App
    }
}

/// A request to the owner of a partition.
#[derive(Clone, Debug)]
pub enum Call {
    /// Changes a record.
    Write(Box<Write>),
    /// Reads records.
    Read(Box<Read>),
    /// Asks how large the partition is.
    Stat,
}

/// A change of one record.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// R6: its name; none = at most once, and nobody can ask for its outcome.
    pub op: Option<Operation>,
    /// The record.
    pub key: Key,
    /// What becomes of it.
    pub change: Update,
    /// Under which condition.
    pub condition: Condition,
    /// What the writer says of itself as a reader: what a conflict may show (R7), and what a patch must see.
    pub data: Packed,
    /// When the caller gives up waiting for earlier operations.
    pub deadline: Option<Mono>,
}

/// An operation's name, with what the client says of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its name.
    pub id: OperationId,
    /// Outcomes up to this number have reached the client.
    pub acked_through: u64,
    /// The client's operation on the same key before this one: it takes effect first.
    pub after: Option<u64>,
}

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// Replaces the record and its writer's predicate.
    Put {
        /// The columns: a map.
        columns: Packed,
        /// Whom it is shown to; empty = all who may read the table.
        predicate: String,
    },
    /// Changes some columns of a record that the writer sees. Never blind.
    Patch {
        /// Columns that get a value: a map.
        set: Packed,
        /// Columns that go.
        unset: Vec<String>,
    },
    /// Deletes it.
    Delete,
}

/// When a change takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always. A patch with it takes whatever version there is.
    Blind,
    /// If the record has this version; [`Position::ZERO`] = if there is no record.
    Version(Position),
    /// If the record has the version that this client's operation made.
    Operation(u64),
}

/// How fresh a read is (Table 3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// At a server the same as committed: pending writes are the client's own.
    Uncommitted,
    /// Sequential: at or above the floor.
    #[default]
    Committed,
    /// Sequential with write-invocation order: waits for these operations of the client.
    CommittedWio {
        /// The client.
        netid: NetId,
        /// Its unfinished operations in the read's range, with their keys.
        pending: Vec<(Key, u64)>,
    },
    /// Linearizable: the owner's word, under its lease.
    Latest,
}

/// Which keys; bounds that are not there are the partition's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// All.
    #[default]
    All,
    /// One.
    Only(Key),
    /// From the first, up to and without the second.
    Between(Option<Key>, Option<Key>),
    /// Those behind this key, up to and without the second: where an earlier answer ended.
    After(Key, Option<Key>),
}

impl Span {
    /// The key, if it is one record's.
    pub fn only(&self) -> Option<&Key> {
        match self {
            Span::Only(key) => Some(key),
            _ => None,
        }
    }
}

/// A read of one partition's records.
#[derive(Clone, Debug)]
pub struct Read {
    /// What is asked.
    pub ask: Ask,
    /// Of which keys.
    pub span: Span,
    /// How fresh.
    pub level: Level,
    /// What the reader says of itself.
    pub data: Packed,
    /// R5: what the client has seen of this partition.
    pub floor: Position,
    /// Whether this partition alone has all records, so that it projects, orders and aggregates. Otherwise it answers with
    /// the records that match, and a [`Gather`](crate::gather::Gather) does the rest. Never with a look-up.
    pub whole: bool,
    /// When the caller gives up waiting (for operations of its own).
    pub deadline: Option<Mono>,
}

/// A record as a reader sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Visible {
    /// Its key.
    pub key: Key,
    /// Its version.
    pub version: Position,
    /// When it was written, by the owner's clock.
    pub time: Wall,
    /// The user who wrote it, or the application; empty if unknown.
    pub writer: String,
    /// Whom it is shown to; empty = everybody. The shell tells it to whoever may copy the table, and to nobody else.
    pub audience: Arc<str>,
    /// Its columns.
    pub columns: Packed,
}

/// An answer, or a piece of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// What became of a write.
    Written(Outcome),
    /// A piece of a read. Unless it is the last, the next comes after [`Pull`](crate::processor::Input::Pull).
    Page(Page),
    /// How large the partition is.
    Stat(Stat),
}

/// What became of a write that was decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It took effect; the record has this version.
    Done {
        /// The position of the commit.
        version: Position,
    },
    /// Its condition did not hold.
    Conflict(Conflict),
    /// It was refused, and will be whenever it is repeated.
    Refused(Refusal),
}

/// Why a condition did not hold (R7).
#[derive(Clone, Debug, PartialEq)]
pub enum Conflict {
    /// The record is this one.
    Theirs(Box<Visible>),
    /// There is no record.
    Absent,
    /// There is a record that this writer may not see.
    Hidden,
    /// The operation that it depends on failed.
    Predecessor,
}

/// A piece of a read.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The answer is at least as new as this: the client's next floor.
    pub position: Position,
    /// Records that match, in order of keys, unless the read was `whole`.
    pub records: Vec<Visible>,
    /// Rows of the answer, if the read was `whole`.
    pub rows: Vec<Row>,
    /// Whether it is the last piece.
    pub last: bool,
}

/// How large a partition is, and how it fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Its records.
    pub records: u64,
    /// Bytes of their columns and predicates.
    pub bytes: u64,
    /// Where its history is.
    pub position: Position,
    /// Its live queries, copies among them.
    pub queries: u64,
    /// Whether it has long been small and had few requests: it may be joined with a neighbour that is so, too.
    pub quiet: bool,
    /// What was asked since its owner serves it.
    pub counts: Counts,
    /// Operations that wait to be decided.
    pub waiting: u64,
    /// Positions that wait to be sent to live queries, of all of them.
    pub undelivered: u64,
    /// Changes that the log reaches back over.
    pub log_changes: u64,
    /// The bytes of them.
    pub log_bytes: u64,
    /// Live queries of clients that are away.
    pub away: u64,
    /// Copies that are fed from it.
    pub copies: u64,
}

/// What was asked of a partition since its owner serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of any outcome.
    pub reads: u64,
    /// Writes of any outcome.
    pub writes: u64,
    /// Changes that live queries were told; that one should be read again is one.
    pub events: u64,
}

impl Counts {
    pub(crate) fn count(&mut self, call: &Call) {
        match call {
            Call::Read(_) => self.reads += 1,
            Call::Write(_) => self.writes += 1,
            Call::Stat => {}
        }
    }
}
