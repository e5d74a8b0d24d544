//! S4: what replicas have executed is the same at every height.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use std::collections::BTreeMap;

/// The claim. Liars execute like everybody: it is their tongues that lie.
#[derive(Debug, Default)]
pub struct CorrectReplicasNeverDiverge {
    digests: BTreeMap<(u64, u64), u64>,
    checks: u64,
}

impl Invariant<Fact> for CorrectReplicasNeverDiverge {
    fn name(&self) -> &'static str {
        "correct_replicas_never_diverge"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Executed { life, height, digest } = fact else { return Ok(()) };
        self.checks += 1;
        match self.digests.insert((*life, *height), *digest).filter(|other| other != digest) {
            Some(_) => Err(format!("{} has another state than others at height {height} of life {life}", sight.host)),
            None => Ok(()),
        }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
