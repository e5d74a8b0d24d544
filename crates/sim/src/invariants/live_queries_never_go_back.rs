//! R3, R4: a live query tells of each change once, and never of an older one after a newer one.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct LiveQueriesNeverGoBack {
    checks: u64,
}

impl Invariant<Fact> for LiveQueriesNeverGoBack {
    fn name(&self) -> &'static str {
        "live_queries_never_go_back"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Tells(_) => self.checks += 1,
            Fact::Repeats { client, key, version, had } => {
                return Err(format!("client {client} was told of {key:?} at {version}, and had it at {had}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
