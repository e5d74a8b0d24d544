//! R7: a session that was ended is served no more: nothing that it asks afterwards succeeds, nothing is safe, nothing comes out of its cache.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Condition, Fact, OpName};
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1::cell_command::Command;

/// The claim.
#[derive(Debug, Default)]
pub struct EndedSessionsStayEnded {
    ended: BTreeSet<u64>,
    /// Asked by a session that had ended already.
    late: BTreeMap<OpName, u64>,
    checks: u64,
}

impl Invariant<Fact> for EndedSessionsStayEnded {
    fn name(&self) -> &'static str {
        "ended_sessions_stay_ended"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) if applied.took_effect() => {
                if let Some(Command::StopSession(stop)) = &applied.command.command {
                    self.ended.insert(stop.session);
                }
                let session = applied.command.actor.as_ref().map_or(0, |actor| actor.session);
                let stops = matches!(&applied.command.command, Some(Command::StopSession(_)));
                if self.ended.contains(&session) && !stops && !applied.changed.is_empty() {
                    return Err(format!(
                        "entry {} changed something for session {session}, which had ended",
                        applied.index
                    ));
                }
            }
            Fact::Asked { op, session, .. } if self.ended.contains(session) => {
                self.late.insert(*op, *session);
            }
            Fact::Told { op, answer, .. } => {
                let Some(session) = self.late.remove(op) else { return Ok(()) };
                self.checks += 1;
                if !matches!(answer, Answer::Unknown | Answer::Refused(_)) {
                    return Err(format!("{}, session {session} had ended, and was answered {answer:?}", sight.host));
                }
            }
            Fact::Session { session, condition } => {
                self.checks += 1;
                if *condition == Condition::Safe && self.ended.contains(session) {
                    return Err(format!("{}, session {session} had ended, and is told that it is safe", sight.host));
                }
            }
            Fact::Cached { session, .. } => {
                self.checks += 1;
                if self.ended.contains(session) {
                    return Err(format!("{}, session {session} had ended, and reads from its cache", sight.host));
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
