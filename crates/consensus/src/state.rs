//! The state that the log feeds, as openraft sees it.
//!
//! A durable state keeps its own position and needs no snapshot file: «taking a snapshot» flushes it, so that the log
//! may be cut, and a snapshot for another member is read from a frozen picture while it is sent. A state in memory gets
//! a file.

use crate::codec::Applied;
use crate::error::StartError;
use crate::shared::{Shared, blocking};
use crate::snapshot::{SnapshotFiles, StoredSnapshot};
use crate::types::{Answer, Command, Entry, SnapshotMeta, StoredMembership, TypeConfig, index_of, index_or_zero};
use futures::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tidings_base::agreed::{self, AgreedState, Position, SnapshotChunks, StateFailure};
use tokio::sync::mpsc;

/// The most entries and bytes that are applied in one step: enough to make a step's fixed cost small, little enough
/// that other work of the thread is not held up.
const APPLY_ENTRIES: usize = 1_024;
const APPLY_BYTES: usize = 4 << 20;

type Snapshot = openraft::Snapshot<crate::types::CommittedLeaderId, u64, openraft::BasicNode, SnapshotData>;

/// Where the bytes of a snapshot are.
pub enum SnapshotData {
    /// Nowhere: the state is durable up to there itself.
    Flushed,
    /// In a picture of the state or in its snapshot file, read while it is sent.
    Picture(Box<dyn SnapshotChunks>),
    /// In a file that was received, whole, under its temporary name.
    Received(String),
}

/// The state behind the log.
pub struct StateMachine {
    state: Mutex<Box<dyn AgreedState>>,
    applied: Applied,
    files: SnapshotFiles,
    stored: Arc<Mutex<Option<StoredSnapshot>>>,
    shared: Arc<Shared>,
    /// Dropped with the state, so that whoever stops the replica can wait for it.
    _alive: mpsc::Sender<()>,
}

fn storage(failure: StateFailure) -> io::Error {
    io::Error::other(failure)
}

impl StateMachine {
    /// Opens the state where it stands: a state in memory is restored from its snapshot file.
    pub(crate) fn open(
        mut state: Box<dyn AgreedState>,
        files: SnapshotFiles,
        stored: Option<StoredSnapshot>,
        shared: Arc<Shared>,
        alive: mpsc::Sender<()>,
    ) -> Result<StateMachine, StartError> {
        let mut stored = stored;
        if state.is_durable() {
            // What the process before this one wrote may still be in the operating system's hands only.
            state.flush()?;
            if let Some(left) = stored.take() {
                files.discard(&left.name).map_err(|e| StartError::disk(&left.name, e))?;
            }
        } else if let Some(stored) = &stored {
            let position = position_of(&stored.applied);
            if state.position().index < position.index {
                state.restore(position, &mut files.read(&stored.name)?)?;
            }
        }
        let position = state.position();
        let applied = Applied::from_note(&position.note).map_err(|e| StartError::damaged("the state's note", e))?;
        if index_or_zero(applied.last.as_ref()) != position.index {
            let why = format!(
                "it speaks of entry {}, the state of entry {}",
                index_or_zero(applied.last.as_ref()),
                position.index
            );
            return Err(StartError::Damaged { file: "the state's note".into(), why });
        }
        shared.applied.send_replace(applied.last);
        Ok(StateMachine {
            state: Mutex::new(state),
            applied,
            files,
            stored: Arc::new(Mutex::new(stored)),
            shared,
            _alive: alive,
        })
    }

    pub(crate) fn position(&self) -> &Applied {
        &self.applied
    }

    fn apply_batch(&mut self, batch: Vec<(Entry, Option<ApplyResponder<TypeConfig>>)>) -> Result<(), io::Error> {
        let Some((last, _)) = batch.last() else { return Ok(()) };
        let mut applied = Applied { last: Some(last.log_id), membership: self.applied.membership.clone() };
        let mut entries = Vec::with_capacity(batch.len());
        for (entry, _) in &batch {
            let command = match &entry.payload {
                EntryPayload::Normal(command) => {
                    if let Command::Cluster(cluster) = command {
                        // Written down before it counts as applied: the entry may be cut off the log after that.
                        blocking(|| self.shared.identity.adopt(*cluster))?;
                    }
                    command.for_state()
                }
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(entry.log_id()), membership.clone());
                    &[]
                }
                EntryPayload::Blank => &[],
            };
            entries.push(agreed::Entry { index: index_of(&entry.log_id), command });
        }
        let results = self.state.get_mut().apply(&entries, applied.note()).map_err(storage)?;
        if results.len() != batch.len() {
            return Err(io::Error::other("the state did not answer each entry once"));
        }
        self.shared.leases.lock().committed(index_of(&last.log_id).0);
        self.shared.applied.send_replace(applied.last);
        self.applied = applied;
        for ((_, responder), result) in batch.into_iter().zip(results) {
            if let Some(responder) = responder {
                responder.send(Answer(result));
            }
        }
        Ok(())
    }

    fn install(&mut self, applied: Applied, data: SnapshotData) -> Result<(), io::Error> {
        let name = match data {
            SnapshotData::Received(name) => name,
            SnapshotData::Picture(mut chunks) => copy(&self.files, "copied", &applied, &mut *chunks)?,
            SnapshotData::Flushed => return Err(io::Error::other("this snapshot has no bytes to install")),
        };
        let state = self.state.get_mut();
        let mut chunks = self.files.read(&name).map_err(storage)?;
        if state.is_durable() {
            state.restore(position_of(&applied), &mut chunks).map_err(storage)?;
            state.flush().map_err(storage)?;
            drop(chunks);
            self.files.discard(&name)?;
        } else {
            // The file first: if restoring fails or the power goes, the next start restores from it.
            let mut stored = self.stored.lock();
            let before = stored.as_ref().map(|s| s.name.clone());
            *stored = Some(self.files.adopt(&name, &applied, before.as_deref())?);
            drop(stored);
            state.restore(position_of(&applied), &mut chunks).map_err(storage)?;
        }
        self.shared.applied.send_replace(applied.last);
        self.applied = applied;
        Ok(())
    }
}

/// Writes all pieces into a file under a temporary name, which is returned.
fn copy(
    files: &SnapshotFiles,
    label: &str,
    applied: &Applied,
    chunks: &mut dyn SnapshotChunks,
) -> Result<String, io::Error> {
    let mut writer = files.write(label, applied)?;
    while let Some(piece) = chunks.next_chunk().map_err(storage)? {
        writer.piece(&piece)?;
    }
    Ok(writer.finish()?.0)
}

fn position_of(applied: &Applied) -> Position {
    Position { index: index_or_zero(applied.last.as_ref()), note: applied.note() }
}

fn meta_of(applied: &Applied) -> SnapshotMeta {
    SnapshotMeta { last_log_id: applied.last, last_membership: applied.membership.clone() }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<crate::types::LogId>, StoredMembership), io::Error> {
        Ok((self.applied.last, self.applied.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            if let EntryPayload::Normal(command) = &entry.payload {
                bytes += command.for_state().len();
            }
            batch.push((entry, responder));
            if batch.len() >= APPLY_ENTRIES || bytes >= APPLY_BYTES {
                self.apply_batch(std::mem::take(&mut batch))?;
                bytes = 0;
                // After a restart there may be much to apply; heartbeats must not wait for all of it.
                tokio::task::yield_now().await;
            }
        }
        self.apply_batch(batch)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let state = self.state.get_mut();
        let picture =
            if state.is_durable() { blocking(|| state.flush()).map(|()| None) } else { state.snapshot().map(Some) };
        Builder {
            applied: self.applied.clone(),
            picture: Mutex::new(Some(picture)),
            files: self.files.clone(),
            stored: self.stored.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> Result<(), io::Error> {
        let applied = Applied { last: meta.last_log_id, membership: meta.last_membership.clone() };
        if let Some(last) = &applied.last {
            let configs = applied.membership.membership().get_joint_config().clone();
            self.shared.leases.lock().snapshot(index_of(last).0, configs);
        }
        blocking(|| self.install(applied, snapshot))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let state = self.state.get_mut();
        if !state.is_durable() {
            // Opened under the lock: from then on it can be read even if a later one takes its place.
            let stored = self.stored.lock();
            let Some(stored) = stored.as_ref() else { return Ok(None) };
            let reader = self.files.read(&stored.name).map_err(storage)?;
            let snapshot = SnapshotData::Picture(Box::new(reader));
            return Ok(Some(Snapshot { meta: meta_of(&stored.applied), snapshot }));
        }
        if self.applied.last.is_none() {
            return Ok(None);
        }
        let picture = state.snapshot().map_err(storage)?;
        Ok(Some(Snapshot { meta: meta_of(&self.applied), snapshot: SnapshotData::Picture(picture) }))
    }
}

type Picture = Result<Option<Box<dyn SnapshotChunks>>, StateFailure>;

/// Writes a picture of a state into a file; for a durable state there is nothing left to do.
pub struct Builder {
    applied: Applied,
    picture: Mutex<Option<Picture>>,
    files: SnapshotFiles,
    stored: Arc<Mutex<Option<StoredSnapshot>>>,
}

impl Builder {
    fn write(&self, picture: &mut dyn SnapshotChunks) -> Result<(), io::Error> {
        let name = copy(&self.files, "built", &self.applied, picture)?;
        let mut stored = self.stored.lock();
        if stored.as_ref().is_some_and(|s| s.applied.last >= self.applied.last) {
            // A later one came from the leader meanwhile.
            return self.files.discard(&name);
        }
        let before = stored.as_ref().map(|s| s.name.clone());
        *stored = Some(self.files.adopt(&name, &self.applied, before.as_deref())?);
        Ok(())
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let flushed = match self.picture.get_mut().take() {
            Some(Ok(Some(mut picture))) => blocking(|| self.write(&mut *picture)),
            Some(Ok(None)) => return Ok(Snapshot { meta: meta_of(&self.applied), snapshot: SnapshotData::Flushed }),
            Some(Err(failure)) => Err(storage(failure)),
            None => Err(io::Error::other("a snapshot is built once")),
        };
        if let Err(e) = flushed {
            // Without a new snapshot the log is not cut and nothing is lost; a full disk must not stop the replica
            // here. To report the one before tells openraft that nothing changed.
            tracing::warn!(error = %e, "no snapshot was taken; the log grows on");
        }
        let meta = self.stored.lock().as_ref().map_or_else(SnapshotMeta::default, |s| meta_of(&s.applied));
        Ok(Snapshot { meta, snapshot: SnapshotData::Flushed })
    }
}
