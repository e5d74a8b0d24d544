//! R8: no client can read a cursor.

use super::{Invariant, Sight};
use crate::scenarios::tables::fact::Fact;

/// The claim.
#[derive(Debug, Default)]
pub struct CursorsAreSealed {
    checks: u64,
}

impl Invariant<Fact> for CursorsAreSealed {
    fn name(&self) -> &'static str {
        "cursors_are_sealed"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        let Fact::Cursor { client, sealed, .. } = fact else { return Ok(()) };
        self.checks += 1;
        if *sealed { Ok(()) } else { Err(format!("client {client} was given a cursor that it can read")) }
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
