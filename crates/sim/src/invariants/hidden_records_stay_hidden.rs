//! R4, R7, R8: no read, conflict or live event shows a record to whom its writer's predicate denies it, and none tells of the
//! end of a record that could never be seen.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::{Fact, SECRET, Shown};
use std::collections::BTreeMap;
use tidings_predicate::Key;

/// The claim.
#[derive(Debug, Default)]
pub struct HiddenRecordsStayHidden {
    shown: BTreeMap<i64, Shown>,
    checks: u64,
}

impl Invariant<Fact> for HiddenRecordsStayHidden {
    fn name(&self) -> &'static str {
        "hidden_records_stay_hidden"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Begins { value: Some(value), shown, .. } => {
                self.shown.insert(*value, *shown);
            }
            Fact::Shows { client, teams, key, value, .. } => {
                let Some(shown) = self.shown.get(value) else { return Ok(()) };
                self.checks += 1;
                if !shown.to(teams, Some(*client % 2)) {
                    return Err(format!("client {client} of {teams:?} was shown {key:?}, which is for {shown:?}"));
                }
            }
            Fact::Leaves { client, key } => {
                self.checks += 1;
                if *key == Key::from(SECRET) {
                    return Err(format!("client {client} was told that {key:?} left, which it could never see"));
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
