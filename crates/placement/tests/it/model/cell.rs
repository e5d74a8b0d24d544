//! The cell as two managers see it: files, and a lock that one of them holds.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_placement::manager::file::{File, Kind};
use tidings_placement::manager::{Input, Outcome, Output};

/// Files, and who may change them.
#[derive(Clone)]
pub struct Cell {
    files: Arc<BTreeMap<File, (u64, Bytes)>>,
    /// Who holds the lock, and its generation.
    pub leader: usize,
    pub epoch: u64,
    /// Who cannot reach the cell.
    pub cut: [bool; 2],
    /// Everything that was ever committed, as one number.
    pub print: u64,
}

impl Cell {
    pub fn new() -> Cell {
        Cell { files: Arc::default(), leader: 0, epoch: 1, cut: [false; 2], print: 0 }
    }

    /// Performs what a manager asked for; what it hears.
    pub fn perform(&mut self, manager: usize, output: Output) -> Option<Input> {
        let reached = !self.cut[manager];
        Some(match output {
            Output::Commit { id, file, expected, bytes } => {
                let there = self.files.get(&file).map(|(generation, _)| *generation);
                let outcome = match () {
                    () if !reached => Outcome::Unknown,
                    () if there != expected || manager != self.leader => Outcome::Conflict,
                    () => {
                        let generation = there.unwrap_or_default() + 1;
                        self.print = super::world::mix(self.print, tidings_base::KeyHash::of(&bytes).0);
                        Arc::make_mut(&mut self.files).insert(file, (generation, bytes));
                        Outcome::Done { generation }
                    }
                };
                Input::Committed { id, outcome }
            }
            Output::Read { id, file } if reached => {
                Input::FileRead { id, contents: Ok(self.files.get(&file).cloned()) }
            }
            Output::Read { id, .. } => Input::FileRead { id, contents: Err(silent()) },
            Output::List if reached => {
                let metas = self.files.keys().filter(|file| file.kind == Kind::Meta);
                Input::Listed { names: Ok(metas.map(|file| file.namespace.clone()).collect()) }
            }
            Output::List => Input::Listed { names: Err(silent()) },
            _ => return None,
        })
    }
}

fn silent() -> Error {
    Error::new("control.lost", Class::OutcomeUnknown, "nobody knows")
}
