//! L4: once a change was answered, nobody is shown out of a cache what it replaced.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Fact, OpName};
use crate::scenarios::cell::history::History;
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct NoCachedReadAfterItsWriteReturned {
    history: History,
    asked: BTreeMap<OpName, u64>,
    returned: u64,
    checks: u64,
}

impl Invariant<Fact> for NoCachedReadAfterItsWriteReturned {
    fn name(&self) -> &'static str {
        "no_cached_read_after_its_write_returned"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) => self.history.add(applied),
            Fact::Asked { op, session, .. } => {
                self.asked.insert(*op, *session);
            }
            Fact::Told { op, number, answer } => {
                let session = self.asked.remove(op);
                if let (Some(session), Some(number), false) = (session, number, matches!(answer, Answer::Unknown)) {
                    let entry = self.history.entry_of(session, *number).unwrap_or(0);
                    self.returned = self.returned.max(entry);
                }
            }
            Fact::Cached { session, sighting } => {
                self.checks += 1;
                if self.history.first_fit(sighting, self.returned).is_none() {
                    return Err(format!(
                        "{}, session {session}: the cache shows {sighting:?}, which entry {} or one before it had replaced, \
                         and that was answered",
                        sight.host, self.returned
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
