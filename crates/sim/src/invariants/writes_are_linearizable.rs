//! S4, rule G: a write takes effect once; and of two writes of a page the later one, if it began after the other had ended, has
//! the higher version.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_sketch::replica::pages;

/// The claim.
#[derive(Debug, Default)]
pub struct WritesAreLinearizable {
    /// What came of each write.
    came: BTreeMap<Bytes, Bytes>,
    /// Of each write that is under way its page, and the highest version of a write of it that had ended before.
    asked: BTreeMap<u64, (u64, u64)>,
    highest: BTreeMap<u64, u64>,
    checks: u64,
}

impl Invariant<Fact> for WritesAreLinearizable {
    fn name(&self) -> &'static str {
        "writes_are_linearizable"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Came { request, result, .. } if request.starts_with(b"w") => {
                let before = self.came.insert(request.clone(), result.clone());
                if before.is_some_and(|before| before != result) {
                    return Err(format!("{:?} took effect twice", String::from_utf8_lossy(request)));
                }
            }
            Fact::Asks { id, page, write: true, .. } => {
                self.asked.insert(*id, (*page, self.highest.get(page).copied().unwrap_or(0)));
            }
            Fact::Answered { id, response, .. } => {
                let Some((page, before)) = self.asked.remove(id) else { return Ok(()) };
                self.checks += 1;
                let version = pages::version_of(response);
                if version <= before {
                    return Err(format!("write {id} of page {page} has version {version}, one before it had {before}"));
                }
                let highest = self.highest.entry(page).or_default();
                *highest = version.max(*highest);
            }
            _ => {}
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
