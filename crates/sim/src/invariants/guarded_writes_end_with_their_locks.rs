//! A write that names a sequencer lands while that lock is held as it says, and never once the lock has moved on; decided at apply.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Applied, Fact, Key};
use crate::scenarios::cell::history::History;
use tidings_wire::v1::{self, cell_command::Command, cell_result};

/// The claim.
#[derive(Debug, Default)]
pub struct GuardedWritesEndWithTheirLocks {
    history: History,
    checks: u64,
}

impl GuardedWritesEndWithTheirLocks {
    /// Whether a lock is held as a sequencer says, by the stat that everybody sees.
    fn held(&self, sequencer: &v1::SequencerBody) -> bool {
        let stat = self.history.present(&Key::node(&sequencer.path)).and_then(|view| view.stat.as_ref());
        stat.is_some_and(|stat| {
            stat.instance == sequencer.instance
                && stat.lock_generation == sequencer.generation
                && stat.lock() == sequencer.mode()
        })
    }

    fn judge(&mut self, applied: &Applied) -> Result<(), String> {
        let Some(Command::WriteContents(write)) = &applied.command.command else { return Ok(()) };
        if write.sequencers.is_empty() || applied.repeat {
            return Ok(());
        }
        let stale = write.sequencers.iter().find(|sequencer| !self.held(sequencer));
        let refused = match &applied.result.result {
            Some(cell_result::Result::Error(error)) => error.code == "cell.stale_sequencer",
            _ => false,
        };
        self.checks += 1;
        match stale {
            Some(stale) if applied.took_effect() => {
                Err(format!("entry {} writes {} under {stale:?}, which is not held so", applied.index, write.path))
            }
            None if refused => {
                Err(format!("entry {} is refused, though {:?} are held", applied.index, write.sequencers))
            }
            _ => Ok(()),
        }
    }
}

impl Invariant<Fact> for GuardedWritesEndWithTheirLocks {
    fn name(&self) -> &'static str {
        "guarded_writes_end_with_their_locks"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Applied(applied) = fact else { return Ok(()) };
        // By what was held before this entry.
        self.judge(applied)?;
        self.history.add(applied);
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
