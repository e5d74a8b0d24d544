//! What clients of the store state: what they asked, and what they were told.

use crate::invariants::LogFact;
use crate::kernel::HostId;

/// Names an operation of a client for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpName {
    /// The client's host.
    pub client: HostId,
    /// Never used before on that host.
    pub number: u64,
}

/// One cell of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellName {
    /// The group.
    pub group: u8,
    /// The row.
    pub row: u8,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Blind writes to cells of one group, all with one timestamp that no other operation uses.
    Write {
        /// The cells.
        cells: Vec<CellName>,
        /// The timestamp; the value is the same number.
        timestamp: u64,
        /// Whether the cells are removed instead.
        tombstone: bool,
        /// The number under the group's fence.
        fence: Option<u64>,
        /// A feed entry in the same commit: topic and the entry itself.
        append: Option<(u8, u64)>,
    },
    /// Replaces a cell if it is as expected.
    CompareAndSet {
        /// The cell.
        cell: CellName,
        /// The expected timestamp.
        expected: u64,
        /// The new timestamp; the value is the same number.
        timestamp: u64,
    },
    /// Reads cells, all at one instant.
    Read {
        /// The cells.
        cells: Vec<CellName>,
    },
    /// Appends entries to a topic.
    Append {
        /// The topic.
        topic: u8,
        /// Numbers that no other entry has.
        entries: Vec<u64>,
    },
    /// Waits for entries.
    Consume {
        /// The topic.
        topic: u8,
        /// The consumer group.
        group: u8,
    },
    /// Acknowledges entries.
    Ack {
        /// The topic.
        topic: u8,
        /// The consumer group.
        group: u8,
        /// The entries' numbers in the topic.
        numbers: Vec<u64>,
    },
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The write, the replacement or the acknowledgement happened.
    Done,
    /// The entries were appended from this number on (with a write: both happened).
    Appended {
        /// The first entry's number.
        first: u64,
    },
    /// The fence has seen a higher number.
    Fenced {
        /// That number.
        number: u64,
    },
    /// The cell was not as expected.
    Differs {
        /// Its timestamp; `None` if there is no cell.
        actual: Option<u64>,
    },
    /// The timestamps of the cells that were read; `None` for those that are not there.
    Cells(Vec<(CellName, Option<u64>)>),
    /// Entries: number and entry.
    Delivered(Vec<(u64, u64)>),
    /// Nothing happened, for certain.
    Refused,
    /// It may or may not have happened.
    Unknown,
    /// An answer that a correct client must never get.
    Broken(String),
}

/// What a client states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFact {
    /// It asks.
    Asked {
        /// The operation.
        op: OpName,
        /// What.
        action: Action,
    },
    /// It is told.
    Told {
        /// The operation.
        op: OpName,
        /// What.
        outcome: Outcome,
    },
}

/// A fact of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFact {
    /// Of a replica.
    Log(LogFact),
    /// Of a client.
    Client(ClientFact),
}

impl From<LogFact> for StoreFact {
    fn from(fact: LogFact) -> StoreFact {
        StoreFact::Log(fact)
    }
}
