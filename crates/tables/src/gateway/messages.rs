//! What a gateway is told, what it wants done, and what clients hear.

use crate::calls::{Caller, Visible};
use crate::directory::Directory;
use crate::live::{Change, Frame, Install, Progress, Reader};
use crate::mutant::Mutant;
use crate::names::{Endpoint, GatewayId, NetId, PartitionId, QueryId, TableId};
use crate::refusal::Refusal;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{LeaseNumber, Wall};
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed};

/// Seals cursors (R8). The shell has the key; a cursor that was not sealed here opens as `None`.
pub trait Sealer: Send {
    /// Encrypts and authenticates.
    fn seal(&self, open: &[u8]) -> Vec<u8>;
    /// The bytes that were sealed.
    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>>;
}

/// A client's request for a live query.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The table.
    pub table: TableId,
    /// What is asked.
    pub ask: Ask,
    /// Who asks.
    pub caller: Caller,
    /// What it says of itself.
    pub data: Packed,
    /// Where to begin.
    pub start: Start,
    /// Of what is there already, only what was written since.
    pub newer_than: Option<Wall>,
    /// Whom Notify tells of changes while the client is away.
    pub endpoint: Option<Endpoint>,
}

/// Where a client begins (R4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// No cursor: with everything.
    Everything,
    /// The cursor 0: with nothing that is there already.
    Nothing,
    /// A cursor that came with an event.
    Cursor(Vec<u8>),
}

/// What a driver brings to a gateway.
#[derive(Debug)]
pub enum Input {
    /// A client asks for a live query; the number is the driver's, and never used again.
    Watch {
        /// Names it.
        number: u64,
        /// What is asked.
        watch: Box<Watch>,
    },
    /// `update_data`: the client says something else of itself.
    UpdateData {
        /// The query.
        number: u64,
        /// What it says now.
        data: Packed,
    },
    /// The client wants no more, or is gone.
    Unwatch {
        /// The query.
        number: u64,
    },
    /// The client took so many events: there is room for as many.
    Taken {
        /// The query.
        number: u64,
        /// How many.
        events: u32,
    },
    /// A table's directory, at first and whenever it changed. Before a query of the table.
    Directory(Arc<Directory>),
    /// The table is dropped.
    Dropped(TableId),
    /// A partition's owner, at first and whenever it or its lease changed.
    Owner {
        /// The partition.
        partition: PartitionId,
        /// The lease; none = nobody that is known.
        lease: Option<LeaseNumber>,
    },
    /// A processor said something about a query.
    Frame {
        /// The query.
        number: u64,
        /// What it said.
        frame: Box<Frame>,
    },
    /// A processor said how far queries are.
    Progress(Box<Progress>),
}

/// What a driver performs for a gateway.
#[derive(Debug)]
pub enum Output {
    /// Bring this to the owner of its partition; if that fails, nothing need be done: it is repeated.
    Install(Box<Install>),
    /// Bring this to the owner of the partition.
    Update {
        /// The partition.
        partition: PartitionId,
        /// The query.
        query: QueryId,
        /// The reader at its next epoch.
        reader: Box<Reader>,
    },
    /// Bring this to the owner of the partition; where it must arrive it is repeated.
    Remove {
        /// The partition.
        partition: PartitionId,
        /// The query.
        query: QueryId,
        /// Whether the query was refused, or has ended: otherwise its client has only gone.
        over: bool,
        /// The device that Notify is to tell.
        netid: Option<NetId>,
    },
    /// Bring this to the owner of the partition.
    Taken {
        /// The partition.
        partition: PartitionId,
        /// The query.
        query: QueryId,
        /// How many frames.
        frames: u32,
    },
    /// Tell the client.
    Event {
        /// The query.
        number: u64,
        /// What happened.
        event: Event,
    },
    /// Tell the client that its query is over, and forget it.
    Ended {
        /// The query.
        number: u64,
        /// Why.
        refusal: Refusal,
    },
}

/// What a client hears of its live query.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// R4 `reset`: what the client has of these keys is replaced by the rows that follow, at once when the last has come.
    Reset {
        /// The first key; none = from the beginning.
        start: Option<Key>,
        /// The first key behind; none = to the end.
        end: Option<Key>,
        /// The rows.
        rows: Vec<Visible>,
        /// Whether it is the first piece.
        first: bool,
        /// Whether it is the last piece.
        last: bool,
    },
    /// Records entered, changed or left, in order.
    Changes(Vec<Change>),
    /// A query with an order, a limit, groups or aggregates: read it again.
    Again,
    /// After new data: rows may be of the old and the new data until [`Event::Settled`].
    Settling,
    /// All partitions have switched.
    Settled,
    /// Everything up to this cursor has been told.
    Progress {
        /// Opaque: give it back to begin there.
        cursor: Vec<u8>,
    },
}

/// How a gateway paces itself.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which gateway this is.
    pub gateway: GatewayId,
    /// Queries that may be open.
    pub queries: usize,
    /// Frames of one query and partition that may be under way.
    pub window: u32,
    /// How long a partition may say nothing before its queries are installed again.
    pub patience: Duration,
    /// How often a client is given a cursor.
    pub progress: Duration,
    /// For tests alone: a rule that is left out.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Options {
    /// The usual ones.
    pub fn new(gateway: GatewayId) -> Options {
        Options {
            gateway,
            queries: 1_000_000,
            window: 64,
            // Three progress frames were lost, or their sender.
            patience: Duration::from_secs(4),
            progress: Duration::from_secs(1),
            mutant: None,
        }
    }
}
