//! The deterministic state of store and feed: what the agreed log feeds.

use crate::key;
use crate::kv::{Kv, KvReader};
use crate::read::StoreReader;
use crate::snapshot::{PairReader, PairWriter};
use crate::work::Work;
use bytes::{BufMut, Bytes, BytesMut};
use tidings_base::LogIndex;
use tidings_base::agreed::{AgreedState, Entry, Position, SnapshotChunks, StateFailure};

/// Store and feed as one deterministic state over an ordered key-value space.
///
/// Entries are applied in batches, each batch one atomic write that moves the position too; however the log cuts its
/// entries into batches, the same entries make the same pairs and the same answers.
#[derive(Debug)]
pub struct StoreState<K: Kv> {
    kv: K,
    position: Position,
}

impl<K: Kv> StoreState<K> {
    /// The state that a space holds; an empty space is the state before the first entry.
    pub fn open(kv: K) -> Result<StoreState<K>, StateFailure> {
        let position = match kv.get(key::POSITION)? {
            None => Position::default(),
            Some(stored) => decode_position(&stored)?,
        };
        Ok(StoreState { kv, position })
    }

    /// A handle by which other threads read while entries are applied.
    pub fn reader(&self) -> StoreReader<K::Reader> {
        StoreReader::new(self.kv.reader())
    }

    /// The space beneath.
    pub fn kv(&self) -> &K {
        &self.kv
    }
}

impl<K: Kv> AgreedState for StoreState<K> {
    fn position(&self) -> Position {
        self.position.clone()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let mut at = self.position.index;
        let mut work = Work::new(&self.kv);
        let mut results = Vec::with_capacity(entries.len());
        for entry in entries {
            // The log skips what the state has. If it does not, applying twice would be worse than stopping.
            if entry.index <= at {
                let what = format!("entry {} came after entry {at}: the log repeats itself", entry.index);
                return Err(StateFailure::new(what));
            }
            at = entry.index;
            results.push(work.apply(entry.command)?);
        }
        let position = Position { index: at, note };
        let batch = work.finish(encode_position(&position));
        self.kv.write(batch)?;
        self.position = position;
        Ok(results)
    }

    fn is_durable(&self) -> bool {
        self.kv.is_durable()
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        self.kv.flush()
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        Ok(Box::new(PairWriter::new(self.kv.reader().view()?)))
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        let mut pairs = PairReader::new(chunks);
        let mut held: Option<(Bytes, Bytes)> = None;
        // The position is no part of a picture; it takes its place among the pairs here.
        let mut own = Some((Bytes::from_static(key::POSITION), encode_position(&position)));
        self.kv.replace(&mut || {
            let next = match held.take() {
                Some(pair) => Some(pair),
                None => pairs.next_pair()?,
            };
            match (next, own.take()) {
                (next, None) => Ok(next),
                (None, mine) => Ok(mine),
                (Some(pair), Some(mine)) if pair.0 > mine.0 => {
                    held = Some(pair);
                    Ok(Some(mine))
                }
                (next, mine) => {
                    own = mine;
                    Ok(next)
                }
            }
        })?;
        self.position = position;
        Ok(())
    }
}

/// Reads a stored position.
pub(crate) fn decode_position(stored: &Bytes) -> Result<Position, StateFailure> {
    let Some(index) = stored.get(..8).and_then(|head| head.try_into().ok()) else {
        return Err(StateFailure::new("the stored position is damaged"));
    };
    Ok(Position { index: LogIndex(u64::from_be_bytes(index)), note: stored.slice(8..) })
}

fn encode_position(position: &Position) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + position.note.len());
    out.put_u64(position.index.0);
    out.put_slice(&position.note);
    out.freeze()
}
