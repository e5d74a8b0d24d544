//! What a request may contain. The front refuses what is beyond it before it reaches the log; the state checks again,
//! so that a command from elsewhere changes nothing either, identically at every replica. Members of one cluster must
//! agree on these bounds: raising one takes two releases, the state's check first.

use crate::merge::MAX_TIMESTAMP;
use thiserror::Error;
use tidings_base::agreed::MAX_COMMAND;
use tidings_base::{Class, Error};
use tidings_wire::v1;
use tidings_wire::v1::store_command::Command;

/// The longest name of a group, in bytes; escaped names of a cell together must fit an engine's key of 64 KiB.
pub const MAX_GROUP: usize = 1 << 10;
/// The longest key of a row, in bytes.
pub const MAX_ROW: usize = 4 << 10;
/// The longest name of a column, in bytes.
pub const MAX_COLUMN: usize = 4 << 10;
/// The largest value of a cell: a full table record of 1 MiB with what stands around it. With its names it still fits a
/// client's frame.
pub const MAX_VALUE: usize = (1 << 20) + (32 << 10);
/// The longest name of a fence, in bytes.
pub const MAX_FENCE: usize = 1 << 10;
/// The longest name of a topic, in bytes.
pub const MAX_TOPIC: usize = 1 << 10;
/// The longest name of a consumer group, in bytes.
pub const MAX_CONSUMER_GROUP: usize = 256;
/// The largest entry of a feed.
pub const MAX_ENTRY: usize = MAX_VALUE;
/// The most entries of one append: one command must not make the trimming behind it long.
pub const MAX_APPEND: usize = 1024;
/// The most numbers of one acknowledgement.
pub const MAX_ACK: usize = 4096;
/// The most entries of one answer to a consumer.
pub const MAX_CONSUME: u32 = 1024;
/// The most columns that a read may name.
pub const MAX_COLUMNS: usize = 1024;

/// Why a request can never succeed as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Invalid {
    /// A batch without writes.
    #[error("the batch contains nothing to do")]
    EmptyBatch,
    /// A name that must not be empty is.
    #[error("the name of a {0} is empty")]
    EmptyName(&'static str),
    /// Something is larger than its bound.
    #[error("a {what} of {size} bytes is larger than {most}")]
    TooLarge {
        /// What it is.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        most: usize,
    },
    /// More of something than its bound.
    #[error("{count} {what} are more than {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A timestamp outside 1 … 2⁶³−1.
    #[error("the timestamp {0} is not between 1 and 2^63-1")]
    BadTimestamp(u64),
    /// A compare-and-set whose write would stay hidden behind the cell it replaces.
    #[error("the timestamp {write} is not above the expected {expected}")]
    NotNewer {
        /// The write's timestamp.
        write: u64,
        /// The expected timestamp.
        expected: u64,
    },
    /// A group twice in one batch.
    #[error("a group stands in the batch twice")]
    DuplicateGroup,
    /// A fence with the number zero.
    #[error("the fence's number is zero")]
    BadFence,
    /// A required part of the message is absent.
    #[error("the request has no {0}")]
    Missing(&'static str),
    /// A scan whose end is not behind its start.
    #[error("the scan's end is not behind its start")]
    BadRange,
    /// An entry's number zero.
    #[error("entries are numbered from 1")]
    BadNumber,
    /// Bytes that are no command, or one of a newer version.
    #[error("the command is not understood")]
    Malformed,
}

/// Which half of the group a request belongs to: its errors are named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rows and cells.
    Store,
    /// Topics and entries.
    Feed,
}

impl Invalid {
    /// The error as a user meets it.
    pub fn into_error(self, part: Part) -> Error {
        let message = format!("{self}.");
        let (store, feed, hint) = match &self {
            Invalid::EmptyBatch => ("store.empty_batch", "feed.empty_batch", "Send at least one write or entry."),
            Invalid::EmptyName(_) => ("store.empty_name", "feed.empty_name", "Give it a name of at least one byte."),
            Invalid::TooLarge { .. } => ("store.too_large", "feed.too_large", "Split it, or store it in pieces."),
            Invalid::TooMany { .. } => ("store.too_many", "feed.too_many", "Send several smaller requests."),
            Invalid::BadTimestamp(_) => {
                ("store.bad_timestamp", "feed.bad_timestamp", "Choose a timestamp between 1 and 2^63-1.")
            }
            Invalid::NotNewer { .. } => {
                ("store.bad_timestamp", "feed.bad_timestamp", "Choose a timestamp above the expected one.")
            }
            Invalid::DuplicateGroup => {
                ("store.duplicate_group", "feed.duplicate_group", "Put all writes of a group into one entry.")
            }
            Invalid::BadFence => ("store.bad_fence", "feed.bad_fence", "Number fences from 1."),
            Invalid::Missing(_) => ("store.missing_field", "feed.missing_field", "Fill in the field."),
            Invalid::BadRange => {
                ("store.bad_range", "feed.bad_range", "Let the end be empty or larger than the start.")
            }
            Invalid::BadNumber => ("store.bad_number", "feed.bad_number", "Acknowledge numbers that were delivered."),
            Invalid::Malformed => ("store.malformed", "feed.malformed", "Use a client no newer than the server."),
        };
        Error::new(if part == Part::Store { store } else { feed }, Class::Invalid, message).hint(hint)
    }
}

/// Checks everything about a command that does not depend on the state.
pub fn check(command: &Command) -> Result<(), Invalid> {
    match command {
        Command::Apply(apply) => groups(&apply.groups, false),
        Command::CompareAndSet(cas) => compare_and_set(cas),
        Command::ApplyAndAppend(both) => {
            groups(&both.groups, true)?;
            append(both.append.as_ref().ok_or(Invalid::Missing("entries to append"))?)
        }
        Command::Append(a) => append(a),
        Command::Ack(a) => ack(a),
        Command::FeedJoin(join) => consumer_group(&join.topic, &join.group),
        Command::FeedLeave(leave) => consumer_group(&leave.topic, &leave.group),
        Command::FeedRetain(retain) => {
            name("topic", &retain.topic, MAX_TOPIC)?;
            retain.retention.as_ref().map(|_| ()).ok_or(Invalid::Missing("retention"))
        }
        Command::FeedTrim(trim) => name("topic", &trim.topic, MAX_TOPIC),
        Command::StoreCollect(collect) => {
            name("group", &collect.group, MAX_GROUP)?;
            timestamp(collect.seen)
        }
        Command::StoreRaise(_) => Ok(()),
    }?;
    size("request", command.encoded_len(), MAX_COMMAND - COMMAND_OVERHEAD)
}

/// The bytes that wrap a command's message: a tag and a length.
const COMMAND_OVERHEAD: usize = 16;

/// Checks a read of one row.
pub fn get(get: &v1::Get) -> Result<(), Invalid> {
    let key = get.key.as_ref().ok_or(Invalid::Missing("key"))?;
    row_key(key)?;
    columns(&get.columns)
}

/// Checks a scan.
pub fn scan(scan: &v1::Scan) -> Result<(), Invalid> {
    name("group", &scan.group, MAX_GROUP)?;
    size("row key", scan.start.len().max(scan.end.len()), MAX_ROW)?;
    columns(&scan.columns)?;
    if !scan.end.is_empty() && scan.end <= scan.start { Err(Invalid::BadRange) } else { Ok(()) }
}

/// Checks a consumer's request.
pub fn consume(consume: &v1::Consume) -> Result<(), Invalid> {
    consumer_group(&consume.topic, &consume.group)
}

fn groups(groups: &[v1::GroupWrite], may_be_empty: bool) -> Result<(), Invalid> {
    if groups.is_empty() && !may_be_empty {
        return Err(Invalid::EmptyBatch);
    }
    for group in groups {
        name("group", &group.group, MAX_GROUP)?;
        fence(group.fence.as_ref())?;
        // A fence without rows seals the group: nothing but the number is written.
        if group.rows.is_empty() && group.fence.is_none() {
            return Err(Invalid::EmptyBatch);
        }
        for row in &group.rows {
            name("row", &row.row, MAX_ROW)?;
            if row.cells.is_empty() {
                return Err(Invalid::EmptyBatch);
            }
            row.cells.iter().try_for_each(cell)?;
        }
    }
    match groups {
        [] | [_] => Ok(()),
        _ => {
            let mut names: Vec<&[u8]> = groups.iter().map(|g| &g.group[..]).collect();
            names.sort_unstable();
            if names.windows(2).any(|pair| pair[0] == pair[1]) { Err(Invalid::DuplicateGroup) } else { Ok(()) }
        }
    }
}

fn compare_and_set(cas: &v1::CompareAndSet) -> Result<(), Invalid> {
    row_key(cas.key.as_ref().ok_or(Invalid::Missing("key"))?)?;
    name("column", &cas.column, MAX_COLUMN)?;
    fence(cas.fence.as_ref())?;
    let write = cas.write.as_ref().ok_or(Invalid::Missing("write"))?;
    timestamp(write.timestamp)?;
    size("value", write.value.as_ref().map_or(0, |v| v.len()), MAX_VALUE)?;
    if write.timestamp <= cas.expected {
        return Err(Invalid::NotNewer { write: write.timestamp, expected: cas.expected });
    }
    Ok(())
}

fn append(append: &v1::Append) -> Result<(), Invalid> {
    name("topic", &append.topic, MAX_TOPIC)?;
    if append.entries.is_empty() {
        return Err(Invalid::EmptyBatch);
    }
    count("entries", append.entries.len(), MAX_APPEND)?;
    append.entries.iter().try_for_each(|entry| size("entry", entry.len(), MAX_ENTRY))
}

fn ack(ack: &v1::Ack) -> Result<(), Invalid> {
    consumer_group(&ack.topic, &ack.group)?;
    if ack.numbers.is_empty() {
        return Err(Invalid::EmptyBatch);
    }
    count("numbers", ack.numbers.len(), MAX_ACK)?;
    if ack.numbers.contains(&0) { Err(Invalid::BadNumber) } else { Ok(()) }
}

fn consumer_group(topic: &[u8], group: &[u8]) -> Result<(), Invalid> {
    name("topic", topic, MAX_TOPIC)?;
    name("consumer group", group, MAX_CONSUMER_GROUP)
}

fn row_key(key: &v1::RowKey) -> Result<(), Invalid> {
    name("group", &key.group, MAX_GROUP)?;
    name("row", &key.row, MAX_ROW)
}

fn columns(columns: &[bytes::Bytes]) -> Result<(), Invalid> {
    count("columns", columns.len(), MAX_COLUMNS)?;
    columns.iter().try_for_each(|column| name("column", column, MAX_COLUMN))
}

fn cell(cell: &v1::Cell) -> Result<(), Invalid> {
    name("column", &cell.column, MAX_COLUMN)?;
    timestamp(cell.timestamp)?;
    size("value", cell.value.as_ref().map_or(0, |v| v.len()), MAX_VALUE)
}

fn fence(fence: Option<&v1::Fence>) -> Result<(), Invalid> {
    match fence {
        None => Ok(()),
        Some(fence) if fence.number == 0 => Err(Invalid::BadFence),
        Some(fence) => name("fence", &fence.name, MAX_FENCE),
    }
}

fn timestamp(timestamp: u64) -> Result<(), Invalid> {
    if (1..=MAX_TIMESTAMP).contains(&timestamp) { Ok(()) } else { Err(Invalid::BadTimestamp(timestamp)) }
}

fn name(what: &'static str, name: &[u8], most: usize) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::EmptyName(what));
    }
    size(what, name.len(), most)
}

fn size(what: &'static str, size: usize, most: usize) -> Result<(), Invalid> {
    if size > most { Err(Invalid::TooLarge { what, size, most }) } else { Ok(()) }
}

fn count(what: &'static str, count: usize, most: usize) -> Result<(), Invalid> {
    if count > most { Err(Invalid::TooMany { what, count, most }) } else { Ok(()) }
}
