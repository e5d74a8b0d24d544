//! R1: what a master proposed changes nothing once another master was agreed on.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::Fact;
use tidings_wire::v1::{cell_command::Command, cell_result};

/// The claim.
#[derive(Debug, Default)]
pub struct AMastersWordEndsWithItsEpoch {
    epoch: u64,
    checks: u64,
}

impl Invariant<Fact> for AMastersWordEndsWithItsEpoch {
    fn name(&self) -> &'static str {
        "a_masters_word_ends_with_its_epoch"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Applied(applied) = fact else { return Ok(()) };
        if let Some(cell_result::Result::NewMaster(done)) = &applied.result.result {
            let before = std::mem::replace(&mut self.epoch, done.epoch);
            if done.epoch <= before {
                return Err(format!("epoch {} follows {before} at {}", done.epoch, applied.index));
            }
            return Ok(());
        }
        let nothing = matches!(&applied.command.command, None | Some(Command::Nothing(_)));
        let stale = applied.command.epoch < self.epoch && !nothing;
        self.checks += 1;
        if stale && (applied.succeeded() || !applied.changed.is_empty()) {
            return Err(format!(
                "entry {} is of epoch {} and took effect in epoch {}: {:?}",
                applied.index, applied.command.epoch, self.epoch, applied.command.command
            ));
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
