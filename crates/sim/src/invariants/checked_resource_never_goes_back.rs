//! L1: a resource that checks sequencers never acts for a lower one after a higher one, nor for two holders of one exclusive one.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::Fact;
use std::collections::BTreeMap;

type Order = (u64, u64, u64);

/// The claim.
#[derive(Debug, Default)]
pub struct CheckedResourceNeverGoesBack {
    newest: BTreeMap<String, Order>,
    owners: BTreeMap<(String, Order), u64>,
    checks: u64,
}

impl Invariant<Fact> for CheckedResourceNeverGoesBack {
    fn name(&self) -> &'static str {
        "checked_resource_never_goes_back"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Resource { session, path, order, exclusive, accepted: true } = fact else { return Ok(()) };
        self.checks += 1;
        let newest = self.newest.entry(path.clone()).or_insert(*order);
        if *order < *newest {
            return Err(format!("it acted for {order:?} of {path} after {newest:?}"));
        }
        *newest = *order;
        if *exclusive {
            let owner = self.owners.entry((path.clone(), *order)).or_insert(*session);
            if owner != session {
                return Err(format!("sessions {owner} and {session} both came with {order:?} of {path}"));
            }
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
