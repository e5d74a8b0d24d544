//! S1: with at most f liars every verified answer was true at some time, and is of the page that was asked for.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_sketch::replica::pages;
use tidings_sketch::sketcher::How;

/// The claim.
#[derive(Debug, Default)]
pub struct AnswersWereTrue {
    truths: BTreeSet<Bytes>,
    asked: BTreeMap<u64, u64>,
    checks: u64,
}

impl Invariant<Fact> for AnswersWereTrue {
    fn name(&self) -> &'static str {
        "answers_were_true"
    }

    fn observe(&mut self, _sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Came { result, .. } => {
                self.truths.insert(result.clone());
            }
            Fact::Asks { id, page, .. } => {
                self.asked.insert(*id, *page);
            }
            Fact::Answered { id, response, how, .. } if *how != How::Unverified => {
                self.checks += 1;
                let text = String::from_utf8_lossy(response);
                let asked = self.asked.remove(id);
                if asked.is_none() || pages::page_of_answer(response) != asked {
                    return Err(format!("{text:?} answers request {id}, which was for page {asked:?}"));
                }
                // Nobody need have written a page for it to be as it is at first.
                if pages::version_of(response) != 0 && !self.truths.contains(response) {
                    return Err(format!("{text:?}, the answer to request {id}, never was"));
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
