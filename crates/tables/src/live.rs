//! Live queries between gateway and processor: what is installed, and what comes back (R3, R4).

use crate::calls::{Access, Visible};
use crate::names::{Endpoint, PartitionId, Position, QueryId, Term};
use crate::refusal::Refusal;
use tidings_base::Wall;
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed};

/// Whose query it is, at one data epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Reader {
    /// What is known of it.
    pub access: Access,
    /// What it says of itself.
    pub data: Packed,
    /// Its verified claims; empty once they expired (R8).
    pub claims: Packed,
    /// Raised by every change of data or claims.
    pub epoch: u64,
}

/// A live query for one partition. Installing it again replaces it. A query of a [copy](QueryId::is_copy) hears everything,
/// whoever may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Install {
    /// Its name.
    pub query: QueryId,
    /// The partition.
    pub partition: PartitionId,
    /// Which installation of the query in the partition this is; frames carry it, so that none of an earlier one counts.
    pub installation: u64,
    /// What is asked. With an order, a limit, groups or aggregates only [`Body::Dirty`] comes back.
    pub ask: Ask,
    /// Whose it is.
    pub reader: Reader,
    /// Where to begin.
    pub from: From,
    /// Of what is there already, only what was written since (the owner's clock).
    pub newer_than: Option<Wall>,
    /// How many frames may be under way: each [`Taken`](crate::processor::Input::Taken) makes room.
    pub window: u32,
    /// Whom Notify tells of changes; none = nobody.
    pub endpoint: Option<Endpoint>,
}

/// Where a live query begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// With everything there is, as a snapshot.
    Everything,
    /// With nothing that is there already.
    Nothing,
    /// With what changed since these positions: of the partition, or of those its keys were in before.
    After(Vec<(PartitionId, Position)>),
}

/// What a processor says of one query in one partition. `previous` ≠ the cursor is a gap (R3).
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The partition.
    pub partition: PartitionId,
    /// R1: the term of the owner that says it: what an earlier owner had installed is gone, whatever the lease.
    pub term: Term,
    /// The installation that it belongs to.
    pub installation: u64,
    /// The reader's data epoch that visibility was decided with.
    pub epoch: u64,
    /// The data epoch of the frame before this one: where they differ, this one is the switch.
    pub previous_epoch: u64,
    /// The query had heard everything up to here before; [`Position::ZERO`] if it begins anew.
    pub previous: Position,
    /// The query has heard everything up to here once the last piece has come.
    pub position: Position,
    /// Which piece of what is said between the two positions; from 0.
    pub piece: u32,
    /// Whether more pieces follow.
    pub more: bool,
    /// What it says.
    pub body: Body,
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Records changed, in order. None: the query is installed and goes on after `position`.
    Changes(Vec<Change>),
    /// R4 `reset`: all rows of the partition; the client replaces what it has when the last piece has come.
    Snapshot(Vec<Visible>),
    /// The answer may have changed: read it again.
    Dirty,
    /// The query is no longer here.
    Ended(Refusal),
}

/// A change of a query's result.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A record entered the result, or changed in it.
    Put(Visible),
    /// A record left the result.
    Leave {
        /// Its key, and nothing else of it.
        key: Key,
    },
}

/// R3: what a processor says to a gateway about all its queries in a partition, at most a second apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The partition.
    pub partition: PartitionId,
    /// R1: the term of the owner that says it: queries that an earlier one answered are not installed there.
    pub term: Term,
    /// The position of the progress frame before this one. Another one was lost: ask for all queries again.
    pub previous: Position,
    /// Every query that is not named below has heard everything up to here.
    pub position: Position,
    /// Queries that were sent something since the frame before, with the position of the last; a query whose cursor is
    /// another has lost something.
    pub sent: Vec<(QueryId, Position)>,
    /// Queries that still have something waiting, and are complete only as far as they heard.
    pub behind: Vec<QueryId>,
}
