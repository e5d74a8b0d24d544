//! What can be set about tables.

use super::Time;
use serde::{Deserialize, Serialize};

/// Tables on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tables {
    /// Reads a second of one partition that this node passes on to its owner, from which on it answers them from a copy of
    /// its own; 0 = it copies nothing. 1,000: a copy costs its memory and every change once more, which so many reads are
    /// worth. Only reads that a copy may answer count: at `committed`, with what the client has seen.
    pub copy_reads: u64,
    /// Bytes of records from which on a partition that this node serves is cut by itself. 1 GiB: what a new owner reads and
    /// a live query is told at first stays within seconds; parts that are much smaller are many to find and to keep.
    pub cut_bytes: u64,
    /// How long two neighbours that were cut apart by themselves have few requests, and together far less than what is cut,
    /// before they are joined. Ten minutes: far longer than what makes a partition busy.
    pub quiet: Time,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables { copy_reads: 1_000, cut_bytes: 1 << 30, quiet: Time::seconds(600) }
    }
}
