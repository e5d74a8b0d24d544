//! openraft's own tests of a log and a state, run over ours.

use crate::codec::Applied;
use crate::config::{Clock, Flush, GroupConfig, Limits};
use crate::log_store::LogStore;
use crate::runtime::Runtime;
use crate::shared::Shared;
use crate::snapshot::SnapshotFiles;
use crate::state::StateMachine;
use crate::types::TypeConfig;
use bytes::Bytes;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::sync::Arc;
use tidings_base::agreed::{AgreedState, Entry, Position, SnapshotChunks, StateFailure};
use tidings_base::disk::Disk;
use tidings_base::{GroupId, Mono, NodeId};
use tidings_log::testing::SimDisk;
use tokio::sync::mpsc;

struct Stopped;

impl Clock for Stopped {
    fn mono(&self) -> Mono {
        Mono(1)
    }
}

/// A state that takes entries in any order, as the suite applies them, and keeps nothing but its position.
#[derive(Default)]
struct Loose(Position);

impl AgreedState for Loose {
    fn position(&self) -> Position {
        self.0.clone()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        self.0.index = entries.last().map_or(self.0.index, |entry| entry.index);
        self.0.note = note;
        Ok(vec![Bytes::new(); entries.len()])
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        Ok(Box::new(Nothing))
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        assert_eq!(chunks.next_chunk()?, None);
        self.0 = position;
        Ok(())
    }
}

struct Nothing;

impl SnapshotChunks for Nothing {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        Ok(None)
    }
}

struct Builder(Flush);

impl StoreBuilder<TypeConfig, LogStore, StateMachine> for Builder {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<TypeConfig>> {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
        let limits = Limits { segment_bytes: 64 << 10, cache_bytes: 200, ..Limits::default() };
        let mut config = GroupConfig::new(GroupId(0), NodeId(0), Vec::new(), disk.clone());
        (config.limits, config.flush) = (limits, self.0);
        let shared = Shared::new(&config, Arc::new(Stopped));
        let (alive, _) = mpsc::channel(1);
        let (files, stored) = SnapshotFiles::open(disk).unwrap();
        let state = Box::new(Loose::default());
        let machine = StateMachine::open(state, files, stored, shared.clone(), alive.clone()).unwrap();
        let log = LogStore::open(&config, &Applied::default(), shared, alive).unwrap();
        Ok(((), log, machine))
    }
}

#[tokio::test(start_paused = true)]
async fn our_log_and_state_pass_the_suite_of_openraft() {
    Runtime::scope(1, Suite::test_all(Builder(Flush::Inline))).await.unwrap();
}

#[tokio::test]
async fn our_log_passes_with_its_writer_thread_too() {
    Runtime::scope(1, Suite::test_all(Builder(Flush::Thread))).await.unwrap();
}
