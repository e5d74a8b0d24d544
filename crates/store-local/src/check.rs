//! The check behind `tidings doctor`: everything is read, whatever is wrong is named.

use crate::error::OpenError;
use crate::kv::{FjallKv, Options, read_everything};
use crate::layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// What a whole state looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The generation that holds it.
    pub generation: u64,
    /// It was durable up to this entry of the log.
    pub flushed: u64,
    /// Pairs of keys and values.
    pub pairs: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// Reads the whole state in `dir`. The process that serves it must be stopped: [`OpenError::Locked`] says if not.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    let current = layout::inspect(dir)?;
    let kv = FjallKv::open(dir, Options::default())?;
    let read = catch_unwind(AssertUnwindSafe(|| read_everything(&kv)));
    match read {
        Ok(Ok((pairs, bytes))) => Ok(Report { generation: current.generation, flushed: current.flushed, pairs, bytes }),
        Ok(Err(failure)) => Err(OpenError::damaged(kv.path(), failure.what)),
        Err(_) => Err(OpenError::damaged(kv.path(), "the engine gave up on reading it")),
    }
}
