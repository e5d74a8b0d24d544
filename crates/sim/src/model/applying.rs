//! From the log into the state: committed entries, pictures out, pictures in.

use super::replica::Replica;
use super::storage::Picture;
use crate::mutant::Mutant;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidings_base::LogIndex;
use tidings_base::agreed::{AgreedState, Entry, Position, SnapshotChunks, StateFailure};

/// Entries that are kept behind a picture, so that a replica that lags a little needs no picture.
const SPARE_ENTRIES: u64 = 50;

impl<S: AgreedState> Replica<S> {
    pub(super) fn restore(&mut self) -> Result<(), StateFailure> {
        let picture = self.storage.picture().clone();
        let index = LogIndex(picture.last.1);
        if self.state.position().index < index {
            self.state.restore(Position { index, note: Bytes::new() }, &mut Chunks(picture.bytes))?;
        }
        self.commit = self.state.position().index.0;
        Ok(())
    }

    /// Applies everything that is committed, and answers for it.
    pub(super) fn apply_committed(&mut self) {
        let applied = self.state.position().index.0;
        if self.commit <= applied || self.failed.is_some() {
            return;
        }
        let mut batch: Vec<(u64, Bytes)> = Vec::new();
        for index in applied + 1..=self.commit {
            match self.storage.entry(index) {
                Some((_, command)) => batch.push((index, command.clone())),
                None => return self.fail(format!("committed entry {index} is not in the log")),
            }
        }
        self.mutate(&mut batch);
        let entries: Vec<Entry<'_>> =
            batch.iter().map(|(index, command)| Entry { index: LogIndex(*index), command }).collect();
        let results = match self.state.apply(&entries, Bytes::new()) {
            Ok(results) => results,
            Err(failure) => return self.fail(failure),
        };
        for ((index, _), result) in batch.iter().zip(results) {
            self.answer(*index, result);
        }
        self.announce();
        self.picture_if_due();
    }

    fn mutate(&mut self, batch: &mut [(u64, Bytes)]) {
        if self.config.mutant == Some(Mutant::ReorderedApply) && batch.len() > 1 {
            let first = std::mem::take(&mut batch[0].1);
            batch[0].1 = std::mem::replace(&mut batch[1].1, first);
        }
    }

    fn picture_if_due(&mut self) {
        let index = self.state.position().index.0;
        if self.state.is_durable() || index < self.storage.picture().last.1 + self.config.picture_every {
            return;
        }
        let Some(term) = self.storage.term_at(index) else { return };
        let picture = self.state.snapshot().and_then(|mut chunks| gather(chunks.as_mut()));
        let kept = match picture {
            Ok(bytes) => self.storage.keep_picture(Picture { last: (term, index), bytes }, SPARE_ENTRIES),
            Err(failure) => return self.fail(failure),
        };
        if let Err(error) = kept {
            self.fail(error);
        }
    }
}

/// A picture's chunks, each behind its length.
pub(super) struct Chunks(pub Bytes);

impl SnapshotChunks for Chunks {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let len = self.0.try_get_u32_le().ok().and_then(|len| usize::try_from(len).ok());
        match len.filter(|len| *len <= self.0.len()) {
            Some(len) => Ok(Some(self.0.split_to(len))),
            None => Err(StateFailure::new("a picture ends in the middle of a chunk")),
        }
    }
}

fn gather(chunks: &mut dyn SnapshotChunks) -> Result<Bytes, StateFailure> {
    let mut out = BytesMut::new();
    while let Some(chunk) = chunks.next_chunk()? {
        out.put_u32_le(u32::try_from(chunk.len()).map_err(|_| StateFailure::new("a chunk is too large"))?);
        out.put_slice(&chunk);
    }
    Ok(out.freeze())
}
