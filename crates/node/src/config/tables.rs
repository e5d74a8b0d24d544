//! What can be set about tables.

use serde::{Deserialize, Serialize};

/// Tables on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tables {
    /// Reads a second of one partition that this node passes on to its owner, from which on it answers them from a copy of
    /// its own; 0 = it copies nothing. 1,000: a copy costs its memory and every change once more, which so many reads are
    /// worth. Only reads that a copy may answer count: at `committed`, with what the client has seen.
    pub copy_reads: u64,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables { copy_reads: 1_000 }
    }
}
