//! P5, F7: a lookup that sees a key go from one state to another was told of a loss, and one that sees it keep its state, by
//! clean moves or none, was not.

use super::{Invariant, Sight};
use crate::scenarios::placement::fact::{Fact, Life};
use std::collections::BTreeMap;
use tidings_base::LeaseNumber;

/// What a lookup knows of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The state that the key had under the last number that was seen and really held.
    state: Option<u64>,
    /// A loss was told since.
    told: bool,
    /// The number that is seen now.
    lease: Option<LeaseNumber>,
}

/// The claim.
#[derive(Debug, Default)]
pub struct LossesAreTold {
    states: BTreeMap<(u64, LeaseNumber), u64>,
    seen: BTreeMap<(Life, u64), Seen>,
    losses: u64,
    checks: u64,
}

impl LossesAreTold {
    /// Judges the number that a lookup has seen last, if anybody held the key under it.
    fn settle(&mut self, life: Life, key: u64) -> Result<(), String> {
        let Some(seen) = self.seen.get_mut(&(life, key)) else { return Ok(()) };
        let Some(state) = seen.lease.and_then(|lease| self.states.get(&(key, lease))) else { return Ok(()) };
        if let Some(before) = seen.state {
            self.checks += 1;
            if before != *state && !seen.told {
                return Err(format!("{life:?} saw key {key} go to {:?} and heard of no loss", seen.lease));
            }
            if before == *state && seen.told {
                return Err(format!(
                    "{life:?} heard that key {key} was lost, and its state is there under {:?}",
                    seen.lease
                ));
            }
        }
        (seen.state, seen.told) = (Some(*state), false);
        Ok(())
    }
}

impl Invariant<Fact> for LossesAreTold {
    fn name(&self) -> &'static str {
        "losses_are_told"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Took { leased, states, .. } => {
                for (key, state) in states {
                    self.states.insert((*key, leased.lease), *state);
                }
            }
            Fact::Row { life, key, lease } => {
                // A loss that came with it was about the number before, which was judged then.
                if self.seen.get(&(*life, *key)).is_some_and(|seen| !seen.told) {
                    self.settle(*life, *key)?;
                }
                self.seen.entry((*life, *key)).or_default().lease = *lease;
            }
            // A namespace of the same name: all is lost, whatever was there.
            Fact::Lost { life, everything: true, .. } => {
                self.seen.retain(|(other, _), _| other != life);
            }
            Fact::Lost { life, keys, .. } => {
                for key in keys {
                    self.settle(*life, *key)?;
                    self.seen.entry((*life, *key)).or_default().told = true;
                    self.losses += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        let all: Vec<(Life, u64)> = self.seen.keys().copied().collect();
        all.into_iter().try_for_each(|(life, key)| self.settle(life, key))
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
