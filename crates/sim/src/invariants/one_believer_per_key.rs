//! P1: at any true instant at most one owner believes that it holds a key.
//!
//! What an owner's threads check against changes only when it publishes, so two beliefs that overlap in time do so at the
//! moment when the later one is published. At each of these moments what was published is held against what everybody else
//! believes then, each by its own clock; a paused owner counts, since its threads may be about to look.

use super::{Invariant, Sight};
use crate::kernel::HostId;
use crate::scenarios::placement::fact::Fact;
use std::collections::BTreeMap;
use tidings_base::Mono;
use tidings_placement::check::Holding;

/// The claim.
#[derive(Debug, Default)]
pub struct OneBelieverPerKey {
    beliefs: BTreeMap<HostId, Vec<Holding>>,
    checks: u64,
}

impl Invariant<Fact> for OneBelieverPerKey {
    fn name(&self) -> &'static str {
        "one_believer_per_key"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Started(_) => drop(self.beliefs.remove(&sight.host)),
            Fact::Published { held, .. } => {
                let mut held = held.clone();
                held.sort_by_key(|holding| holding.leased.range.start);
                let now = (sight.clock)(sight.host).unwrap_or(Mono(0));
                for (other, theirs) in self.beliefs.iter().filter(|(other, _)| **other != sight.host) {
                    // Whoever does not run believes nothing.
                    let Some(their_now) = (sight.clock)(*other) else { continue };
                    self.checks += 1;
                    if let Some((a, b)) = overlap(&held, now, theirs, their_now) {
                        return Err(format!(
                            "{} and {other} both believe that they hold {}: {:?} for {:?} more, {:?} for {:?} more",
                            sight.host,
                            a.leased.range,
                            a.leased.lease,
                            a.until.since(now),
                            b.leased.lease,
                            b.until.since(their_now),
                        ));
                    }
                }
                self.beliefs.insert(sight.host, held);
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}

/// Two beliefs that share a key; both lists are sorted.
fn overlap(ours: &[Holding], now: Mono, theirs: &[Holding], their_now: Mono) -> Option<(Holding, Holding)> {
    let mut theirs = theirs.iter().filter(|holding| their_now < holding.until).peekable();
    for a in ours.iter().filter(|holding| now < holding.until) {
        while theirs.next_if(|b| b.leased.range.last < a.leased.range.start).is_some() {}
        if let Some(b) = theirs.peek().filter(|b| b.leased.range.start <= a.leased.range.last) {
            return Some((*a, **b));
        }
    }
    None
}
