//! L5, R8: a change that was acknowledged is in the agreed order, once; one that was refused changed nothing; a repeat changes nothing.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Call, Fact, OpName};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct AcknowledgedCallsTakeEffectOnce {
    /// By session and number: whether the state took it, and whether it changed anything.
    applied: BTreeMap<(u64, u64), (bool, bool)>,
    asked: BTreeMap<OpName, (u64, Call)>,
    /// The first number of a wait that goes on under another.
    former: BTreeMap<(u64, u64), u64>,
    checks: u64,
}

impl Invariant<Fact> for AcknowledgedCallsTakeEffectOnce {
    fn name(&self) -> &'static str {
        "acknowledged_calls_take_effect_once"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) => {
                let Some(call) = applied.call() else { return Ok(()) };
                let changes = !applied.changed.is_empty();
                match self.applied.get(&call) {
                    Some(_) if changes => {
                        return Err(format!(
                            "call {call:?} was applied again at {} and changed something",
                            applied.index
                        ));
                    }
                    None if applied.decides() => {
                        self.applied.insert(call, (applied.succeeded(), changes));
                    }
                    _ => {}
                }
            }
            Fact::Asked { op, session, call } => {
                self.asked.insert(*op, (*session, call.clone()));
            }
            Fact::Renumbered { session, first, number } => {
                self.former.insert((*session, *number), *first);
            }
            Fact::Told { op, number, answer } => {
                let Some((session, call)) = self.asked.remove(op) else { return Ok(()) };
                let mut entry = None;
                let mut next = *number;
                while let (None, Some(number)) = (entry, next) {
                    entry = self.applied.get(&(session, number));
                    next = self.former.get(&(session, number)).copied();
                }
                let who = format!("{}, session {session}, operation {}", sight.host, op.number);
                match (answer, &call, entry) {
                    (Answer::Acquired { .. }, _, None) => {
                        return Err(format!("{who}: it was told that it holds a lock, and no such grant was applied"));
                    }
                    (Answer::Done { .. } | Answer::Acquired { .. }, _, Some((false, _))) => {
                        return Err(format!("{who}: it was told of success, and the state had refused it"));
                    }
                    (Answer::Refused(code), _, Some((true, true))) if code != "cell.lock_held" => {
                        return Err(format!("{who}: it was told {code}, and the state had done it"));
                    }
                    _ => self.checks += u64::from(entry.is_some()),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
