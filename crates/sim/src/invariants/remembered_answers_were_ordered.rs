//! S3 for D-Prophecy: what is answered fast was read in the group's order before, with the same answer.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_sketch::replica::pages;
use tidings_sketch::sketcher::How;

/// The claim.
#[derive(Debug, Default)]
pub struct RememberedAnswersWereOrdered {
    ordered: BTreeSet<(u64, Bytes)>,
    asked: BTreeMap<u64, u64>,
    checks: u64,
}

impl Invariant<Fact> for RememberedAnswersWereOrdered {
    fn name(&self) -> &'static str {
        "remembered_answers_were_ordered"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asks { id, page, .. } => {
                self.asked.insert(*id, *page);
            }
            Fact::Came { request, result, .. } if request.starts_with(b"r") => {
                let page = pages::page_of(request).unwrap_or_default();
                self.ordered.insert((page, result.clone()));
            }
            Fact::Answered { id, response, how: How::Fast, by: None } => {
                let Some(page) = self.asked.remove(id) else { return Ok(()) };
                self.checks += 1;
                if !self.ordered.contains(&(page, response.clone())) {
                    let text = String::from_utf8_lossy(response);
                    return Err(format!("{text:?} was taken for page {page}, and nobody had read that in the order"));
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
