//! S3: a mismatch always takes the agreed path. What one replica said leaves a node only if the group had agreed on the same answer
//! to the same request before, as this node heard in this life.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::{Fact, Life};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_sketch::sketcher::How;

/// The claim.
#[derive(Debug, Default)]
pub struct FastAnswersWereAgreedOn {
    agreed: BTreeMap<Life, BTreeSet<(u64, Bytes)>>,
    asked: BTreeMap<u64, u64>,
    checks: u64,
}

impl Invariant<Fact> for FastAnswersWereAgreedOn {
    fn name(&self) -> &'static str {
        "fast_answers_were_agreed_on"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asks { id, page, .. } => {
                self.asked.insert(*id, *page);
            }
            Fact::Agreed { by, page, response } => {
                self.agreed.entry(*by).or_default().insert((*page, response.clone()));
            }
            Fact::Answered { id, response, how: How::Fast, by: Some(by) } => {
                let Some(page) = self.asked.remove(id) else { return Ok(()) };
                self.checks += 1;
                if !self.agreed.get(by).is_some_and(|agreed| agreed.contains(&(page, response.clone()))) {
                    let text = String::from_utf8_lossy(response);
                    return Err(format!("{text:?} left {} on the word of one replica", by.host));
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
