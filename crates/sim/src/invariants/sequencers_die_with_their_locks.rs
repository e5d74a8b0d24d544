//! R11: a sequencer is valid while its lock is held under its generation and at no other time, lock-delay included.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Call, Fact, Key, OpName, View};
use crate::scenarios::cell::history::History;
use std::collections::BTreeMap;
use tidings_wire::v1::LockMode;

/// The claim.
#[derive(Debug, Default)]
pub struct SequencersDieWithTheirLocks {
    history: History,
    floor: u64,
    asked: BTreeMap<OpName, (u64, u64, Call)>,
    checks: u64,
}

impl Invariant<Fact> for SequencersDieWithTheirLocks {
    fn name(&self) -> &'static str {
        "sequencers_die_with_their_locks"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) => self.history.add(applied),
            Fact::Asked { op, session, call } => {
                self.asked.insert(*op, (*session, self.floor, call.clone()));
            }
            Fact::Told { op, number, answer } => {
                let Some((session, floor, call)) = self.asked.remove(op) else { return Ok(()) };
                if let (Some(number), false) = (number, matches!(answer, Answer::Unknown)) {
                    self.floor = self.floor.max(self.history.entry_of(session, *number).unwrap_or(0));
                }
                let (Answer::Checked(valid), Call::Check { path, instance, generation }) = (answer, &call) else {
                    return Ok(());
                };
                self.checks += 1;
                let held = |view: &View| {
                    view.stat.as_ref().is_some_and(|stat| {
                        stat.instance == *instance
                            && stat.lock_generation == *generation
                            && stat.lock() != LockMode::Unspecified
                    })
                };
                if self.history.first(&Key::node(path), floor, |view| held(view) == *valid).is_none() {
                    return Err(format!(
                        "{}, session {session}: generation {generation} of {path} is said to be valid = {valid}, and from \
                         entry {floor} to {} it never was so",
                        sight.host,
                        self.history.last()
                    ));
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
