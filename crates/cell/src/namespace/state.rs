//! The agreed state behind the log of group 0.

use super::snapshot::{self, Writer};
use super::{Namespace, SharedNamespace};
use crate::error;
use crate::mutant::Mutant;
use bytes::Bytes;
use parking_lot::RwLock;
use prost::Message;
use std::sync::Arc;
use tidings_base::agreed::{AgreedState, Entry, Position, SnapshotChunks, StateFailure};
use tidings_wire::v1;

/// The state behind the log of group 0: commands and results as bytes, the namespace shared with who reads it.
pub struct CellState {
    shared: SharedNamespace,
    position: Position,
    mutant: Option<Mutant>,
}

impl CellState {
    /// An empty state.
    pub fn new() -> CellState {
        CellState::with_mutant(None)
    }

    /// An empty state that leaves a rule out.
    #[doc(hidden)]
    pub fn with_mutant(mutant: Option<Mutant>) -> CellState {
        let shared = Arc::new(RwLock::new(Namespace::with_mutant(mutant)));
        CellState { shared, position: Position::default(), mutant }
    }

    /// The same state, to read.
    pub fn shared(&self) -> SharedNamespace {
        self.shared.clone()
    }
}

impl Default for CellState {
    fn default() -> CellState {
        CellState::new()
    }
}

impl AgreedState for CellState {
    fn position(&self) -> Position {
        self.position.clone()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let mut next = self.position.index;
        for entry in entries {
            if entry.index != next.next() {
                return Err(StateFailure::new(format!("entry {} was to be applied after {next}", entry.index)));
            }
            next = entry.index;
        }
        let mut namespace = self.shared.write();
        let results = entries.iter().map(|entry| apply(&mut namespace, entry.command)).collect();
        namespace.applied = next;
        self.position = Position { index: next, note };
        Ok(results)
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        Ok(Box::new(Writer::new(self.shared.read().clone())))
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        let mut state = snapshot::read(chunks, self.mutant)?;
        state.applied = position.index;
        *self.shared.write() = state;
        self.position = position;
        Ok(())
    }
}

/// An empty command is an entry of the log itself. Bytes that are no command are refused alike at every replica.
fn apply(namespace: &mut Namespace, command: &[u8]) -> Bytes {
    if command.is_empty() {
        return Bytes::new();
    }
    let result = match v1::CellCommand::decode(command) {
        Ok(command) => namespace.apply(&command),
        Err(_) => {
            let error = error::bad_command("it cannot be decoded");
            v1::CellResult { result: Some(v1::cell_result::Result::Error(error.into())) }
        }
    };
    Bytes::from(result.encode_to_vec())
}
