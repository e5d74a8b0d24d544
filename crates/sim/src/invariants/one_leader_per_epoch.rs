//! No two leaderships have the same epoch, and the epochs of one replica grow, restarts included.

use super::{Invariant, LogFact, Sight};
use crate::kernel::HostId;
use std::collections::BTreeMap;
use tidings_base::Epoch;
use tidings_base::agreed::Role;

/// The claim.
#[derive(Debug, Default)]
pub struct OneLeaderPerEpoch {
    leaders: BTreeMap<Epoch, HostId>,
    latest: BTreeMap<HostId, Epoch>,
    checks: u64,
}

impl Invariant<LogFact> for OneLeaderPerEpoch {
    fn name(&self) -> &'static str {
        "one_leader_per_epoch"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &LogFact) -> Result<(), String> {
        let LogFact::Role(Role::Leader { epoch }) = fact else { return Ok(()) };
        self.checks += 1;
        if let Some(other) = self.leaders.insert(*epoch, sight.host) {
            return Err(format!("{} leads under epoch {epoch}, as {other} did", sight.host));
        }
        match self.latest.insert(sight.host, *epoch) {
            Some(before) if before >= *epoch => {
                Err(format!("{} leads under epoch {epoch} after epoch {before}", sight.host))
            }
            _ => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
