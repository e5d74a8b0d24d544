//! Once a group has taken a write under a fence's number, it takes none under a lower one.

use super::{Invariant, Sight};
use crate::scenarios::store::fact::{Action, ClientFact, OpName, Outcome};
use std::collections::BTreeMap;

/// The claim.
#[derive(Debug, Default)]
pub struct FencesNeverGoBack {
    /// The highest number known to be in effect, by group.
    highest: BTreeMap<u8, u64>,
    /// Group, number, and the highest that was in effect when it was asked.
    open: BTreeMap<OpName, (u8, u64, u64)>,
    checks: u64,
}

impl Invariant<ClientFact> for FencesNeverGoBack {
    fn name(&self) -> &'static str {
        "fences_never_go_back"
    }

    fn observe(&mut self, _: &Sight<'_>, fact: &ClientFact) -> Result<(), String> {
        match fact {
            ClientFact::Asked { op, action: Action::Write { cells, fence: Some(number), .. } } => {
                let group = cells.first().map_or(0, |cell| cell.group);
                let highest = self.highest.get(&group).copied().unwrap_or(0);
                self.open.insert(*op, (group, *number, highest));
                Ok(())
            }
            ClientFact::Told { op, outcome } => {
                let Some((group, number, before)) = self.open.remove(op) else { return Ok(()) };
                self.judge(group, number, before, outcome)
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}

impl FencesNeverGoBack {
    fn judge(&mut self, group: u8, number: u64, before: u64, outcome: &Outcome) -> Result<(), String> {
        let highest = self.highest.entry(group).or_default();
        match outcome {
            Outcome::Done | Outcome::Appended { .. } => {
                self.checks += 1;
                *highest = (*highest).max(number);
                if number < before {
                    return Err(format!("group {group} took a write under {number} after one under {before}"));
                }
            }
            Outcome::Fenced { number: seen } => {
                self.checks += 1;
                *highest = (*highest).max(*seen);
                if *seen <= number || *seen < before {
                    return Err(format!(
                        "group {group} refused {number} because of {seen}; {before} was in effect before"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
