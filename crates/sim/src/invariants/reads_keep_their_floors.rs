//! R5: no answer is older than what its client had seen of the partition.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct ReadsKeepTheirFloors {
    checks: u64,
}

impl Invariant<Fact> for ReadsKeepTheirFloors {
    fn name(&self) -> &'static str {
        "reads_keep_their_floors"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Read { client, key, floor, position, partition, .. } = fact else { return Ok(()) };
        self.checks += 1;
        match position < floor {
            true => Err(format!("client {client} had seen {floor} of {partition}, and read {key:?} at {position}")),
            false => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
