//! P3, F8: whoever gets a key later gets it under a higher number, no number is ever given to two processes, and only the
//! latest serves.

use super::{Invariant, Sight};
use crate::scenarios::placement::fact::{Fact, Life, keys_of};
use std::collections::BTreeMap;
use tidings_base::LeaseNumber;

/// The claim.
#[derive(Debug, Default)]
pub struct LeaseNumbersOnlyGrow {
    latest: BTreeMap<u64, (LeaseNumber, Life)>,
    given: BTreeMap<LeaseNumber, Life>,
    checks: u64,
}

impl Invariant<Fact> for LeaseNumbersOnlyGrow {
    fn name(&self) -> &'static str {
        "lease_numbers_only_grow"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Took { life, leased, .. } => {
                self.checks += 1;
                let first = self.given.entry(leased.lease).or_insert(*life);
                if first != life {
                    return Err(format!("{:?} was given to {first:?} and to {life:?}", leased.lease));
                }
                for key in keys_of(*leased) {
                    let before = self.latest.insert(key, (leased.lease, *life));
                    if let Some((number, whose)) = before.filter(|(number, _)| *number >= leased.lease) {
                        return Err(format!(
                            "key {key} went from {number:?} of {whose:?} to {:?} of {life:?}",
                            leased.lease
                        ));
                    }
                }
            }
            Fact::Served { life, key, lease, state } => {
                self.checks += 1;
                let latest = self.latest.get(key).copied();
                if latest != Some((*lease, *life)) {
                    return Err(format!("{life:?} served key {key} under {lease:?}, and the latest is {latest:?}"));
                }
                if state.is_none() {
                    return Err(format!("{life:?} served key {key} under {lease:?} without its state"));
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
