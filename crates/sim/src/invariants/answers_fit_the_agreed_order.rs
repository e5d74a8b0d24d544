//! L3: every answer about a node, a listing or an absence, through a cache or not, is what the agreed state showed at some
//! moment between the question and the answer; and these moments agree with real time for all clients together.
//!
//! The log is the witness: it orders all changes. For each answer the earliest index is taken at which the state showed
//! it, not before anything that had been answered when it was asked (the *floor*). The earliest is the best choice: a later
//! one only raises the floor for others. Changes of unknown outcome need no search: they are in the log or they are not.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Fact, OpName, Sighting};
use crate::scenarios::cell::history::History;
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct AnswersFitTheAgreedOrder {
    history: History,
    /// The last index that some answer has shown to be in effect.
    floor: u64,
    asked: BTreeMap<OpName, (u64, u64)>,
    checks: u64,
}

impl AnswersFitTheAgreedOrder {
    fn saw(&mut self, floor: u64, sighting: &Sighting, how: &str) -> Result<(), String> {
        self.checks += 1;
        match self.history.first_fit(sighting, floor) {
            Some(index) => {
                self.floor = self.floor.max(index);
                Ok(())
            }
            None => Err(format!(
                "{how} shows {sighting:?}; nothing from entry {floor} to {} does (last shown from and to {:?})",
                self.history.last(),
                self.history.last_fit(sighting)
            )),
        }
    }

    fn told(&mut self, op: OpName, number: Option<u64>, answer: &Answer) -> Result<(), String> {
        let Some((session, floor)) = self.asked.remove(&op) else { return Ok(()) };
        let entry = number.and_then(|number| self.history.entry_of(session, number));
        if let (Some(entry), false) = (entry, matches!(answer, Answer::Unknown | Answer::Broken(_))) {
            self.floor = self.floor.max(entry);
        }
        match answer {
            // A change shows what it left behind, unless others changed it again before the answer was made.
            Answer::Saw(sightings) => {
                let floor = entry.unwrap_or(0).max(floor);
                sightings.iter().try_for_each(|sighting| self.saw(floor, sighting, "an answer"))
            }
            _ => Ok(()),
        }
    }
}

impl Invariant<Fact> for AnswersFitTheAgreedOrder {
    fn name(&self) -> &'static str {
        "answers_fit_the_agreed_order"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) => {
                self.history.add(applied);
                Ok(())
            }
            Fact::Asked { op, session, .. } => {
                self.asked.insert(*op, (*session, self.floor));
                Ok(())
            }
            Fact::Told { op, number, answer } => self
                .told(*op, *number, answer)
                .map_err(|what| format!("{}, operation {}: {what}", sight.host, op.number)),
            Fact::Cached { session, sighting } => self
                .saw(self.floor, sighting, "the cache")
                .map_err(|what| format!("{}, session {session}: {what}", sight.host)),
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
