//! What the scenario's processes tell the claims, and what records are about.

use crate::invariants::LogFact;
use crate::scenarios::placement::fact::Fact as PlacementFact;
use std::collections::BTreeMap;
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::Visible;
use tidings_tables::names::{OperationId, PartitionId, Position, TableId};

/// Keys that clients write.
pub const KEYS: u64 = 8;
/// The key of records that nobody is ever shown.
pub const SECRET: &str = "s0";

/// A key by its number.
pub fn key(number: u64) -> Key {
    format!("k{number}").as_str().into()
}

/// Whom a record is shown to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shown {
    /// Whoever reads.
    Everybody,
    /// Whoever says that it is of this team.
    Team(char),
    /// The user of this number.
    User(u32),
    /// Nobody that there is.
    Nobody,
}

impl Shown {
    /// The writer's predicate.
    pub fn predicate(self) -> String {
        match self {
            Shown::Everybody => String::new(),
            Shown::Team(team) => format!("reader.team == '{team}'"),
            Shown::User(user) => format!("user.sub == 'u{user}'"),
            Shown::Nobody => "reader.team == 'nobody'".to_owned(),
        }
    }

    /// Whether somebody of one of these teams sees it.
    pub fn to(self, teams: &[char], user: Option<u32>) -> bool {
        match self {
            Shown::Everybody => true,
            Shown::Team(team) => teams.contains(&team),
            Shown::User(of) => user == Some(of),
            Shown::Nobody => false,
        }
    }
}

/// What somebody says of itself who is of a team.
pub fn of_team(team: char) -> Packed {
    Packed::columns([("team", Value::from(team.to_string().as_str()))]).unwrap_or_else(|_| Packed::empty())
}

/// The columns of a record: a value that no other has.
pub fn columns(value: i64) -> Packed {
    Packed::columns([("n", Value::Int(value))]).unwrap_or_else(|_| Packed::empty())
}

/// The value of a record.
pub fn value_of(record: &Visible) -> i64 {
    match record.columns.unpack() {
        Value::Map(columns) => match columns.get("n") {
            Some(Value::Int(value)) => *value,
            _ => 0,
        },
        _ => 0,
    }
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It took effect at this version.
    Done(Position),
    /// Its condition did not hold.
    Conflict,
    /// Its id was another operation's.
    Forked,
    /// It was refused for this.
    Refused(String),
}

/// How fresh a read was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Sequential.
    Committed,
    /// Besides, with the client's own writes that it had begun.
    Wio,
    /// Linearizable.
    Latest,
}

/// Records by key: version and value.
pub type Rows = BTreeMap<Key, (Position, i64)>;

/// What is seen of Tables. Clients are numbered.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A client begins an operation on the lasting table.
    Begins {
        /// Which.
        op: OperationId,
        /// Whose.
        client: u32,
        /// The record.
        key: Key,
        /// The value that it is to have; none = it is deleted.
        value: Option<i64>,
        /// Whom it is shown to.
        shown: Shown,
        /// Its id was used before, for something else.
        forked: bool,
    },
    /// A client was told what became of it; perhaps not for the first time.
    Ends {
        /// Which.
        op: OperationId,
        /// What.
        told: Told,
        /// Whether something else was asked under the same id.
        forked: bool,
    },
    /// A client begins to read, or asks something of the passing table.
    Asks {
        /// Who.
        client: u32,
        /// Its number.
        id: u64,
    },
    /// A client read a record as one of team `a`, by itself or with all others.
    Read {
        /// Who.
        client: u32,
        /// The record.
        key: Key,
        /// How fresh.
        level: Level,
        /// What it saw.
        found: Option<(Position, i64)>,
        /// R5: what it had seen of the partition before it asked.
        floor: Position,
        /// How new the answer says that it is.
        position: Position,
        /// Where that was.
        partition: PartitionId,
        /// Its number.
        id: u64,
    },
    /// A client was shown a record.
    Shows {
        /// Who.
        client: u32,
        /// The teams that it may have been taken for.
        teams: Vec<char>,
        /// The record.
        key: Key,
        /// Its version.
        version: Position,
        /// Its value.
        value: i64,
    },
    /// A client was told that a record left its result.
    Leaves {
        /// Who.
        client: u32,
        /// The record.
        key: Key,
    },
    /// A live query told of a change that its client had already, or of an older one.
    Repeats {
        /// Who.
        client: u32,
        /// The record.
        key: Key,
        /// What was told.
        version: Position,
        /// What it had.
        had: Position,
    },
    /// A live query told of a change that its client did not have.
    Tells(u32),
    /// A client has been given a cursor; whether it can be read.
    Cursor {
        /// Who.
        client: u32,
        /// The cursor is sealed.
        sealed: bool,
        /// Query, reader and cursor, if the client has heard exactly what is up to there.
        exactly: Option<Vec<u8>>,
        /// What it has.
        rows: Rows,
    },
    /// A client watched by the clock; whether it was refused.
    Clocked {
        /// It was.
        refused: bool,
    },
    /// A table was dropped.
    Dropped(TableId),
    /// A client was answered about the passing table.
    Passing {
        /// Who.
        client: u32,
        /// Its number.
        id: u64,
        /// The table that the answer is of.
        table: TableId,
    },
    /// At the end: what a live query's client has, and what a fresh read says.
    Compared {
        /// Who.
        client: u32,
        /// Query and reader.
        query: String,
        /// What it was told.
        told: Rows,
        /// What there is.
        fresh: Rows,
        /// Whether it waits for partitions to switch to new data.
        settling: bool,
    },
    /// What a device has that is away and was told nothing since it began, and what a fresh read says.
    Away {
        /// Who.
        client: u32,
        /// What it has.
        knows: Rows,
        /// What there is.
        fresh: Rows,
    },
    /// A device stayed away while every record was written; the partitions of which it was told nothing.
    Stayed {
        /// Who.
        client: u32,
        /// Which.
        missed: Vec<PartitionId>,
    },
    /// At the end: every record that anybody may be shown.
    Last(Rows),
}

/// A fact of the scenario.
#[derive(Clone, Debug)]
pub enum TablesFact {
    /// Of the store's log; scenario `store` judges these.
    Log(LogFact),
    /// Of placement; scenario `placement` judges these.
    Placement(PlacementFact),
    /// Of Tables.
    Tables(Fact),
}

impl From<LogFact> for TablesFact {
    fn from(fact: LogFact) -> TablesFact {
        TablesFact::Log(fact)
    }
}

impl From<PlacementFact> for TablesFact {
    fn from(fact: PlacementFact) -> TablesFact {
        TablesFact::Placement(fact)
    }
}

impl From<Fact> for TablesFact {
    fn from(fact: Fact) -> TablesFact {
        TablesFact::Tables(fact)
    }
}
