//! The key-value space in fjall.

use crate::error::{OpenError, describe};
use crate::layout::{self, Current};
use crate::tables;
use bytes::Bytes;
use fjall::config::{HashRatioPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use parking_lot::RwLock;
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidings_base::agreed::StateFailure;
use tidings_store::key;
use tidings_store::kv::{Batch, Kv, KvReader, KvView, Pairs, Visit};

/// The one keyspace: with two, a crash could keep a write of one and lose the earlier write of the other.
const KEYSPACE: &str = "data";

/// How the engine is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of blocks kept in memory: a million small rows fit 128 MiB for the most part.
    pub cache_bytes: u64,
    /// Bytes of journals before the oldest rows are moved into tables: what an open has to replay at most.
    pub journal_bytes: u64,
    /// Bytes of new rows gathered in memory before they become a table; taken when the space is made. With 16 MiB a
    /// million rows are open again in a third of the time that 64 MiB take, and are written as fast (see
    /// `examples/measure.rs`); 8 MiB cost a third more to write.
    pub gathered_bytes: u64,
    /// Bytes of tables whose checksums an open compares, the newest first; what is beyond is checked block by block when
    /// it is read. A gigabyte takes less than a second.
    pub verified_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 128 << 20, journal_bytes: 128 << 20, gathered_bytes: 16 << 20, verified_bytes: 1 << 30 }
    }
}

/// An ordered key-value space in a directory.
pub struct FjallKv {
    dir: PathBuf,
    options: Options,
    current: Current,
    engine: Engine,
    readers: FjallReader,
}

/// The reader's handle of a [`FjallKv`]; after a restore it reads the new content.
///
/// It does not keep the files open: once the space is closed, there is nothing to view.
#[derive(Clone)]
pub struct FjallReader {
    engine: Arc<RwLock<Option<Engine>>>,
}

/// A frozen picture of a [`FjallKv`].
pub struct FjallView {
    snapshot: Snapshot,
    engine: Engine,
}

#[derive(Clone)]
struct Engine {
    database: Database,
    data: Keyspace,
    path: Arc<Path>,
}

impl FjallKv {
    /// Opens the space in `dir`, which is created if it is not there.
    pub fn open(dir: &Path, options: Options) -> Result<FjallKv, OpenError> {
        let current = layout::prepare(dir)?;
        let path = layout::generation_dir(dir, current.generation);
        let journals = layout::journals(&path)?;
        let engine = match tables::verify(&path, options.verified_bytes).and_then(|()| Engine::open(&path, options)) {
            Ok(engine) => engine,
            // It was never durable, so the log has everything: a crash amid its creation is no damage.
            Err(OpenError::Damaged { what, .. }) if current.flushed == 0 => {
                tracing::warn!(path = %path.display(), what, "state was never durable and is rebuilt from the log");
                fs::remove_dir_all(&path).map_err(OpenError::io(&path))?;
                Engine::open(&path, options)?
            }
            Err(error) => return Err(error),
        };
        layout::remove_others(dir, current.generation)?;
        let has = engine.position().map_err(|failure| OpenError::damaged(&path, failure.what))?;
        if has < current.flushed {
            return Err(OpenError::Lost { path, journals, has, flushed: current.flushed });
        }
        let readers = FjallReader { engine: Arc::new(RwLock::new(Some(engine.clone()))) };
        Ok(FjallKv { dir: dir.to_owned(), options, current, engine, readers })
    }

    /// The directory of the engine's files.
    pub fn path(&self) -> &Path {
        &self.engine.path
    }

    /// Bytes on disk, journals included.
    pub fn disk_bytes(&self) -> Result<u64, StateFailure> {
        self.engine.database.disk_space().map_err(|e| self.engine.failure(&e))
    }

    fn build(&self, path: &Path, pairs: &mut Pairs<'_>) -> Result<Engine, StateFailure> {
        let engine = Engine::open(path, self.options).map_err(|e| StateFailure::new(e.to_string()))?;
        let failure = |e: fjall::Error| engine.failure(&e);
        let mut ingestion = engine.data.start_ingestion().map_err(failure)?;
        while let Some((at, stored)) = pairs()? {
            ingestion.write(at, stored).map_err(failure)?;
        }
        ingestion.finish().map_err(failure)?;
        engine.database.persist(PersistMode::SyncAll).map_err(failure)?;
        Ok(engine)
    }

    fn make_current(&mut self, current: Current) -> Result<(), StateFailure> {
        layout::write_current(&self.dir, current).map_err(|error| {
            StateFailure::new(format!("{} cannot be written: {error}", self.dir.join("CURRENT").display()))
        })?;
        self.current = current;
        Ok(())
    }
}

impl Engine {
    fn open(path: &Path, options: Options) -> Result<Engine, OpenError> {
        // Some damage makes the engine panic instead of saying so.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let database = Database::builder(path)
                .cache_size(options.cache_bytes)
                .max_journaling_size(options.journal_bytes)
                // Batches stay in the process until the buffer is full: the log above has them.
                .manual_journal_persist(true)
                .open()?;
            let data = database.keyspace(KEYSPACE, || keyspace_options(options))?;
            Ok((database, data))
        }));
        match opened {
            Ok(Ok((database, data))) => Ok(Engine { database, data, path: path.into() }),
            Ok(Err(error)) => Err(OpenError::engine(path, error)),
            Err(panic) => {
                let what = panic.downcast_ref::<String>().map(String::as_str);
                let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
                Err(OpenError::damaged(path, format!("the engine gave up on it ({what})")))
            }
        }
    }

    /// The last entry in the state.
    fn position(&self) -> Result<u64, StateFailure> {
        match self.data.get(key::POSITION).map_err(|e| self.failure(&e))? {
            None => Ok(0),
            Some(stored) => match stored.get(..8).and_then(|head| head.try_into().ok()) {
                Some(index) => Ok(u64::from_be_bytes(index)),
                None => Err(StateFailure::new("the stored position is damaged")),
            },
        }
    }

    fn failure(&self, error: &fjall::Error) -> StateFailure {
        StateFailure::new(format!("{}: {}", self.path.display(), describe(error)))
    }

    fn visit(&self, pairs: fjall::Iter, visit: &mut Visit<'_>) -> Result<(), StateFailure> {
        for guard in pairs {
            let (at, stored) = guard.into_inner().map_err(|e| self.failure(&e))?;
            if visit(at.into(), stored.into()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn keyspace_options(options: Options) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.gathered_bytes)
        // Every blind write looks its cell up first: filters of the upper levels stay in memory, and blocks answer by
        // hash instead of by search.
        .filter_block_pinning_policy(PinningPolicy::new([true, true, false]))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(0.75))
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The bounds of a scan; `None` if it is empty, which the engine would not take.
fn bounds<'a>(from: &'a [u8], to: &'a [u8]) -> Option<Bounds<'a>> {
    match to {
        [] => Some((Bound::Included(from), Bound::Unbounded)),
        to if from < to => Some((Bound::Included(from), Bound::Excluded(to))),
        _ => None,
    }
}

impl KvView for FjallView {
    fn get(&self, at: &[u8]) -> Result<Option<Bytes>, StateFailure> {
        let stored = self.snapshot.get(&self.engine.data, at).map_err(|e| self.engine.failure(&e))?;
        Ok(stored.map(Bytes::from))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateFailure> {
        let Some(bounds) = bounds(from, to) else { return Ok(()) };
        self.engine.visit(self.snapshot.range::<&[u8], _>(&self.engine.data, bounds), visit)
    }
}

impl KvReader for FjallReader {
    type View = FjallView;

    fn view(&self) -> Result<FjallView, StateFailure> {
        let engine = self.engine.read().clone().ok_or_else(|| StateFailure::new("the state is closed"))?;
        Ok(FjallView { snapshot: engine.database.snapshot(), engine })
    }
}

impl KvView for FjallKv {
    fn get(&self, at: &[u8]) -> Result<Option<Bytes>, StateFailure> {
        Ok(self.engine.data.get(at).map_err(|e| self.engine.failure(&e))?.map(Bytes::from))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StateFailure> {
        let Some(bounds) = bounds(from, to) else { return Ok(()) };
        self.engine.visit(self.engine.data.range::<&[u8], _>(bounds), visit)
    }
}

impl Kv for FjallKv {
    type Reader = FjallReader;

    fn reader(&self) -> FjallReader {
        self.readers.clone()
    }

    fn write(&mut self, batch: Batch) -> Result<(), StateFailure> {
        let mut changes = self.engine.database.batch();
        for (at, stored) in batch.changes {
            match stored {
                Some(stored) => changes.insert(&self.engine.data, at, stored),
                None => changes.remove(&self.engine.data, at),
            }
        }
        changes.commit().map_err(|e| self.engine.failure(&e))
    }

    fn replace(&mut self, pairs: &mut Pairs<'_>) -> Result<(), StateFailure> {
        let generation = self.current.generation + 1;
        let path = layout::generation_dir(&self.dir, generation);
        let clear = |path: &Path| match fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StateFailure::new(format!("{} cannot be removed: {error}", path.display())))
            }
            _ => Ok(()),
        };
        clear(&path)?;
        let engine = match self.build(&path, pairs) {
            Ok(engine) => engine,
            Err(failure) => {
                // What stays is removed by the next restore or open.
                let _ = clear(&path);
                return Err(failure);
            }
        };
        let flushed = engine.position()?;
        self.make_current(Current { generation, flushed })?;
        let old = std::mem::replace(&mut self.engine, engine.clone());
        *self.readers.engine.write() = Some(engine);
        // Views of the old generation keep its files open; the names may go.
        if let Err(failure) = clear(&old.path) {
            tracing::warn!(failure = failure.what, "an old generation is left until the next open");
        }
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        self.engine.database.persist(PersistMode::SyncAll).map_err(|e| self.engine.failure(&e))?;
        let flushed = self.engine.position()?;
        if flushed != self.current.flushed {
            self.make_current(Current { flushed, ..self.current })?;
        }
        Ok(())
    }
}

/// Readers' handles may live on elsewhere; the files and their lock must not, so that a next open can have them.
impl Drop for FjallKv {
    fn drop(&mut self) {
        *self.readers.engine.write() = None;
    }
}

impl std::fmt::Debug for FjallKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallKv").field("dir", &self.dir).field("current", &self.current).finish_non_exhaustive()
    }
}

/// Reads every pair, so that every checksum is looked at; how many pairs and bytes there are.
pub(crate) fn read_everything(kv: &FjallKv) -> Result<(u64, u64), StateFailure> {
    let (mut pairs, mut bytes) = (0, 0);
    kv.scan(&[], &[], &mut |at, stored| {
        pairs += 1;
        bytes += (at.len() + stored.len()) as u64;
        ControlFlow::Continue(())
    })?;
    Ok((pairs, bytes))
}
