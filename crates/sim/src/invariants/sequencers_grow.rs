//! L2: whoever asks for a lock after another has got it gets a higher sequencer, or the same if both share it; fail-over or not.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Call, Fact, OpName};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct SequencersGrow {
    newest: BTreeMap<String, (u64, u64)>,
    asked: BTreeMap<OpName, (String, bool, (u64, u64), u64)>,
    /// Who got each generation, and whether for itself alone.
    got: BTreeMap<(String, (u64, u64)), (u64, bool)>,
    checks: u64,
}

impl Invariant<Fact> for SequencersGrow {
    fn name(&self) -> &'static str {
        "sequencers_grow"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asked { op, session, call: Call::Acquire { path, exclusive, .. } } => {
                let newest = self.newest.get(path).copied().unwrap_or_default();
                self.asked.insert(*op, (path.clone(), *exclusive, newest, *session));
            }
            Fact::Told { op, answer, .. } => {
                let Some((path, exclusive, before, session)) = self.asked.remove(op) else { return Ok(()) };
                let Answer::Acquired { instance, generation } = answer else { return Ok(()) };
                self.checks += 1;
                let order = (*instance, *generation);
                if order < before || (exclusive && order == before) {
                    return Err(format!(
                        "session {session} got {order:?} of {path}, though {before:?} was held before"
                    ));
                }
                let (owner, alone) = *self.got.entry((path.clone(), order)).or_insert((session, exclusive));
                if (alone || exclusive) && owner != session {
                    return Err(format!("sessions {owner} and {session} both got {order:?} of {path}"));
                }
                let newest = self.newest.entry(path).or_default();
                *newest = (*newest).max(order);
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
