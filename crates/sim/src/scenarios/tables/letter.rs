//! What clients and nodes send each other.
//!
//! The machines' messages have no encoding of their own here (that of the wire is the node's, and held by golden vectors): a
//! letter lies at the [`Post`] while the network carries its number. Whoever receives it gets a copy.

use crate::scenarios::post::Marked;
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed};
use tidings_tables::calls::{Answer, Call, Caller, Outcome, Read, Visible, Write};
use tidings_tables::gateway::{self, Start};
use tidings_tables::live::{Frame, Install, Progress, Reader};
use tidings_tables::names::{Endpoint, NetId, PartitionId, Position, QueryId};
use tidings_tables::processor;
use tidings_tables::refusal::Refusal;

/// One message. They lie where they are put, so that their size costs nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Letter {
    /// A client asks a node.
    Asks {
        /// The client's number for it.
        id: u64,
        /// Which table, by its name.
        table: u8,
        /// Who asks.
        caller: Caller,
        /// What.
        what: Asked,
    },
    /// The node's answer.
    Answers {
        /// The client's number.
        id: u64,
        /// The answer.
        answer: Result<Answered, Refusal>,
    },
    /// A node asks another for one partition.
    Calls {
        /// The asking node's number for it.
        id: u64,
        /// The partition.
        partition: PartitionId,
        /// Who asks.
        caller: Box<Caller>,
        /// What.
        call: Call,
    },
    /// The other node's answer, all pieces of it.
    Called {
        /// The asking node's number.
        id: u64,
        /// The answer.
        answer: Result<Answer, Refusal>,
    },
    /// A gateway asks a processor.
    Live(Live),
    /// A processor tells a gateway something of one query.
    Frame {
        /// The query.
        query: QueryId,
        /// What.
        frame: Box<Frame>,
    },
    /// A processor tells a gateway how far its queries are.
    Progress {
        /// The gateway.
        gateway: u64,
        /// What.
        progress: Box<Progress>,
    },
    /// A client opens a live query under a number of its own.
    Watches {
        /// The client's number, never used again.
        watch: u64,
        /// Which table.
        table: u8,
        /// What is asked.
        asks: Watches,
    },
    /// Something happened to it, in order.
    Happens {
        /// The client's number.
        watch: u64,
        /// Which event.
        seq: u64,
        /// What.
        event: Result<gateway::Event, Refusal>,
    },
    /// The client says that it is there, what it took, and what it says of itself now.
    Keeps {
        /// The client's number.
        watch: u64,
        /// Which of these letters it is: late ones say nothing.
        seq: u64,
        /// Events that it took, all together.
        taken: u32,
        /// What it says of itself.
        data: Packed,
    },
    /// The node says that the query is there, or that it is not.
    Kept {
        /// The client's number.
        watch: u64,
        /// It is.
        there: bool,
    },
    /// The client wants no more.
    Ends {
        /// The client's number.
        watch: u64,
    },
}

/// A live query that a client asks for.
#[derive(Clone, Debug)]
pub struct Watches {
    /// Who asks.
    pub caller: Caller,
    /// What is asked.
    pub ask: Ask,
    /// What it says of itself.
    pub data: Packed,
    /// Where it begins.
    pub start: Start,
    /// Who is told through Notify when it is away.
    pub endpoint: Option<Endpoint>,
}

/// What a client asks.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A change.
    Write(Box<Write>),
    /// One record, with the client's floors (R5).
    Read(Box<Read>, Vec<(PartitionId, Position)>),
    /// All records that match, of all partitions, with the client's floors.
    Scan(Box<Read>, Vec<(PartitionId, Position)>),
}

/// What a client is answered.
#[derive(Clone, Debug)]
pub enum Answered {
    /// What became of a write, and where.
    Written(PartitionId, Outcome),
    /// A record, if there is one to be seen, and how new the answer is.
    Found(PartitionId, Position, Option<Visible>),
    /// Records, and the partitions that were asked in their order.
    Rows(Vec<Visible>, Vec<Part>),
}

/// A partition that has answered a read over all.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which.
    pub partition: PartitionId,
    /// The first key behind it; none = it is the last.
    pub end: Option<Key>,
    /// How new its answer is.
    pub position: Position,
}

/// What a gateway asks of a processor.
#[derive(Clone, Debug)]
pub enum Live {
    /// Install a query.
    Install(Box<Install>),
    /// Its reader has changed.
    Update(QueryId, PartitionId, Box<Reader>),
    /// It is over.
    Remove(QueryId, PartitionId, bool, Option<NetId>),
    /// There is room for more frames.
    Taken(QueryId, PartitionId, u32),
}

impl Live {
    /// The query.
    pub fn query(&self) -> QueryId {
        match self {
            Live::Install(install) => install.query,
            Live::Update(query, ..) | Live::Remove(query, ..) | Live::Taken(query, ..) => *query,
        }
    }

    /// As a processor hears it.
    pub fn input(self) -> processor::Input {
        match self {
            Live::Install(install) => processor::Input::Install(install),
            Live::Update(query, partition, reader) => processor::Input::Update { query, partition, reader },
            Live::Remove(query, partition, over, netid) => processor::Input::Remove { query, partition, over, netid },
            Live::Taken(query, partition, frames) => processor::Input::Taken { query, partition, frames },
        }
    }
}

impl Marked for Letter {
    fn mark(&self) -> u64 {
        match self {
            Letter::Asks { id, .. } | Letter::Answers { id, .. } => *id,
            Letter::Calls { id, .. } | Letter::Called { id, .. } => *id,
            Letter::Live(live) => live.query().number,
            Letter::Frame { frame, .. } => frame.position.get(),
            Letter::Progress { progress, .. } => progress.position.get(),
            Letter::Happens { seq, .. } => *seq,
            Letter::Watches { watch, .. } | Letter::Keeps { watch, .. } => *watch,
            Letter::Kept { watch, .. } | Letter::Ends { watch } => *watch,
        }
    }
}

/// Where letters lie.
pub type Post = crate::scenarios::post::Post<Letter>;
