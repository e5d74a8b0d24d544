//! The check behind `tidings doctor`: everything is read, whatever is wrong is named, nothing is changed.
//!
//! The engine writes when it opens: it cuts its journal, begins a new one, moves rows into tables. So a copy is opened.

use crate::error::OpenError;
use crate::kv::{FjallKv, Options, read_everything};
use crate::layout::{self, entries};
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

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

/// How many bytes [`check`] copies.
pub fn copied_bytes(dir: &Path) -> Result<u64, OpenError> {
    let generation = layout::generation_dir(dir, layout::inspect(dir)?.generation);
    bytes_below(&generation).map_err(OpenError::io(&generation))
}

/// Reads the whole state in `dir`, by way of a copy in `scratch`, which must be empty and stays filled. The process that
/// serves it must be stopped: [`OpenError::Locked`] says if not.
pub fn check(dir: &Path, scratch: &Path) -> Result<Report, OpenError> {
    let current = layout::inspect(dir)?;
    let _held = layout::hold(&layout::generation_dir(dir, current.generation))?;
    copy(dir, scratch, current.generation)?;
    check_copy(scratch, current).map_err(|error| error.moved(scratch, dir))
}

fn check_copy(dir: &Path, current: layout::Current) -> Result<Report, OpenError> {
    let kv = FjallKv::open(dir, Options { verified_bytes: u64::MAX, ..Options::default() })?;
    let read = catch_unwind(AssertUnwindSafe(|| read_everything(&kv)));
    match read {
        Ok(Ok((pairs, bytes))) => Ok(Report { generation: current.generation, flushed: current.flushed, pairs, bytes }),
        Ok(Err(failure)) => Err(OpenError::damaged(kv.path(), failure.what)),
        Err(_) => Err(OpenError::damaged(kv.path(), "the engine gave up on reading it")),
    }
}

fn copy(dir: &Path, scratch: &Path, generation: u64) -> Result<(), OpenError> {
    for name in layout::SMALL_FILES {
        fs::copy(dir.join(name), scratch.join(name)).map_err(OpenError::io(&dir.join(name)))?;
    }
    let from = layout::generation_dir(dir, generation);
    copy_tree(&from, &layout::generation_dir(scratch, generation)).map_err(OpenError::io(&from))
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for path in entries(from)? {
        let to = path.file_name().map_or(to.to_owned(), |name| to.join(name));
        match path.is_dir() {
            true => copy_tree(&path, &to)?,
            false => fs::copy(&path, &to).map(drop)?,
        }
    }
    Ok(())
}

fn bytes_below(dir: &Path) -> io::Result<u64> {
    let size = |path: PathBuf| if path.is_dir() { bytes_below(&path) } else { Ok(path.metadata()?.len()) };
    entries(dir)?.into_iter().map(size).sum()
}
