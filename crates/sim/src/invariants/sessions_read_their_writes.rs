//! Rule K: whoever shows its session's cookie reads what it has written.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use std::collections::BTreeMap;
use tidings_sketch::replica::pages;

/// The claim.
#[derive(Debug, Default)]
pub struct SessionsReadTheirWrites {
    asked: BTreeMap<u64, u64>,
    checks: u64,
}

impl Invariant<Fact> for SessionsReadTheirWrites {
    fn name(&self) -> &'static str {
        "sessions_read_their_writes"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asks { id, own: Some(own), .. } => {
                self.asked.insert(*id, *own);
            }
            Fact::Answered { id, response, .. } => {
                let Some(own) = self.asked.remove(id) else { return Ok(()) };
                self.checks += 1;
                if pages::version_of(response) < own {
                    let text = String::from_utf8_lossy(response);
                    return Err(format!(
                        "request {id} was answered {text:?}, and its session had written version {own}"
                    ));
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
