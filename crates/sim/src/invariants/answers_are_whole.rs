//! The frames of a request and of an answer come in order, none twice, none missing; an answer is the one to its request.

use super::{Invariant, Sight};
use crate::scenarios::wire::fact::{End, Kind, Name, Say, WireFact};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct AnswersAreWhole {
    /// Frames of answers heard, by operation.
    heard: BTreeMap<Name, u64>,
    /// Frames of requests that arrived.
    arrived: BTreeMap<Name, u64>,
    checks: u64,
}

fn next(frames: &mut BTreeMap<Name, u64>, name: Name, say: &Say) -> Result<(), String> {
    let seen = frames.entry(name).or_default();
    if say.name != name || say.index != *seen {
        return Err(format!("{name}: frame {} of {} came as the one after {seen}", say.index, say.name));
    }
    *seen += 1;
    Ok(())
}

impl Invariant<WireFact> for AnswersAreWhole {
    fn name(&self) -> &'static str {
        "answers_are_whole"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &WireFact) -> Result<(), String> {
        match fact {
            WireFact::Arrived(say) => return next(&mut self.arrived, say.name, say),
            WireFact::Heard(name, say) => return next(&mut self.heard, *name, say),
            WireFact::Ended(name, end) => {
                let heard = self.heard.remove(name).unwrap_or(0);
                let End::Answered(say) = end else { return Ok(()) };
                self.checks += 1;
                let expected = match say.kind {
                    Kind::Ask => 0,
                    Kind::Listen => say.count - 1,
                    Kind::Pour => say.count,
                };
                let came = if say.kind == Kind::Listen { heard } else { say.index };
                if say.name != *name || say.index != expected || came != expected {
                    return Err(format!("{name} ended with {say:?} after {heard} frames"));
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
