//! F6, and what `check_continuous` rests on: what an owner has ceased to hold under a number it never holds under it again.

use super::{Invariant, Sight};
use crate::scenarios::placement::fact::{Fact, Life};
use std::collections::BTreeMap;
use tidings_base::{KeyRange, LeaseNumber, Mono};
use tidings_placement::check::Holding;

/// The claim.
#[derive(Debug, Default)]
pub struct ALapsedLeaseStaysLapsed {
    held: BTreeMap<Life, Vec<Holding>>,
    dropped: BTreeMap<(Life, LeaseNumber), Vec<KeyRange>>,
    checks: u64,
}

impl Invariant<Fact> for ALapsedLeaseStaysLapsed {
    fn name(&self) -> &'static str {
        "a_lapsed_lease_stays_lapsed"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Started(life) => {
                self.held.retain(|other, _| other.host != life.host);
                self.dropped.retain(|(other, _), _| other.host != life.host);
            }
            Fact::Dropped { life, leased } => {
                self.dropped.entry((*life, leased.lease)).or_default().push(leased.range);
            }
            Fact::Published { life, held, .. } => {
                let now = (sight.clock)(sight.host).unwrap_or(Mono(0));
                let before = self.held.get(life).map_or(&[][..], Vec::as_slice);
                let lapsed: Vec<&Holding> = before.iter().filter(|old| old.until <= now).collect();
                for new in held {
                    self.checks += 1;
                    let dropped = self.dropped.get(&(*life, new.leased.lease));
                    let dropped = dropped.is_some_and(|gone| gone.iter().any(|range| range.overlaps(new.leased.range)));
                    let mut same = lapsed.iter().filter(|old| old.leased.lease == new.leased.lease);
                    if dropped || same.any(|old| old.leased.range.overlaps(new.leased.range)) {
                        return Err(format!(
                            "{} holds {} under {:?} again",
                            sight.host, new.leased.range, new.leased.lease
                        ));
                    }
                }
                self.held.insert(*life, held.clone());
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
