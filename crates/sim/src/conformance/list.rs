//! The state that clusters under test apply into: it remembers everything.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidings_base::LogIndex;
use tidings_base::agreed::{AgreedState, Entry, Position, SNAPSHOT_CHUNK, SnapshotChunks, StateFailure};

/// What a [`ListState`] holds, to be read by the test while the replica owns the state.
#[derive(Clone, Debug, Default)]
pub struct ListView {
    list: Arc<Mutex<Vec<(LogIndex, Bytes)>>>,
}

impl ListView {
    /// An empty view.
    pub fn new() -> ListView {
        ListView::default()
    }

    /// Everything that is applied, without the log's own entries.
    pub fn read(&self) -> Vec<(LogIndex, Bytes)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(LogIndex, Bytes)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A state in memory: the list of all commands. It answers each with how many there are.
#[derive(Debug)]
pub struct ListState {
    view: ListView,
    position: Position,
}

impl ListState {
    /// An empty state that shows itself in `view`.
    pub fn new(view: ListView) -> ListState {
        view.lock().clear();
        ListState { view, position: Position::default() }
    }
}

impl AgreedState for ListState {
    fn position(&self) -> Position {
        self.position.clone()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let mut list = self.view.lock();
        let mut results = Vec::with_capacity(entries.len());
        for entry in entries {
            if entry.index != self.position.index.next() {
                let what = format!("entry {} was applied after {}", entry.index, self.position.index);
                return Err(StateFailure::new(what));
            }
            self.position.index = entry.index;
            if !entry.command.is_empty() {
                list.push((entry.index, Bytes::copy_from_slice(entry.command)));
            }
            results.push(Bytes::copy_from_slice(&(list.len() as u64).to_le_bytes()));
        }
        self.position.note = note;
        Ok(results)
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        let mut out = BytesMut::new();
        for (index, command) in self.view.lock().iter() {
            out.put_u64_le(index.0);
            out.put_u64_le(command.len() as u64);
            out.put_slice(command);
        }
        Ok(Box::new(Pieces(out.freeze())))
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        let mut whole = BytesMut::new();
        while let Some(chunk) = chunks.next_chunk()? {
            whole.put_slice(&chunk);
        }
        let list = parse(whole.freeze()).ok_or_else(|| StateFailure::new("the picture is cut short"))?;
        *self.view.lock() = list;
        self.position = position;
        Ok(())
    }
}

fn parse(mut bytes: Bytes) -> Option<Vec<(LogIndex, Bytes)>> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let (index, len) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
        let len = usize::try_from(len).ok().filter(|len| *len <= bytes.len())?;
        list.push((LogIndex(index), bytes.split_to(len)));
    }
    Some(list)
}

struct Pieces(Bytes);

impl SnapshotChunks for Pieces {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        let len = self.0.len().min(SNAPSHOT_CHUNK);
        Ok((len > 0).then(|| self.0.split_to(len)))
    }
}
