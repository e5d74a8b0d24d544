//! S2, rules A and B: delay-once for each page. No read is older than one that ended before it began, a stale one repeats one that
//! was not stale, and fast answers never go back in the order in which answers leave.

use super::{Invariant, Sight};
use crate::scenarios::sketch::fact::Fact;
use std::collections::BTreeMap;
use tidings_sketch::replica::pages;
use tidings_sketch::seen::{Read, Seen};
use tidings_sketch::sketcher::How;

/// The claim.
#[derive(Debug, Default)]
pub struct ReadsAreDelayedOnce {
    /// When it was asked, the page, and whether it is a write.
    asked: BTreeMap<u64, (u64, u64, bool)>,
    pages: BTreeMap<u64, Seen>,
    /// Reads that D-Prophecy's clients have ordered, by client and nonce: when each was asked, and its page.
    ordered: BTreeMap<(u64, u64), (u64, u64)>,
    checks: u64,
}

impl Invariant<Fact> for ReadsAreDelayedOnce {
    fn name(&self) -> &'static str {
        "reads_are_delayed_once"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Asks { id, page, write, .. } => {
                self.asked.insert(*id, (sight.at.0, *page, *write));
                Ok(())
            }
            Fact::Orders { id, client, nonce } => {
                if let Some((began, page, false)) = self.asked.get(id) {
                    self.ordered.insert((*client, *nonce), (*began, *page));
                }
                Ok(())
            }
            // It may be repeated from now on, even if its client never hears of it.
            Fact::Came { name, result, .. } => {
                if let Some((began, page)) = self.ordered.get(name) {
                    self.pages.entry(*page).or_default().took_effect(*began, pages::version_of(result));
                }
                Ok(())
            }
            Fact::Answered { id, response, how, by } => {
                let Some((began, page, write)) = self.asked.remove(id) else { return Ok(()) };
                let (ended, version) = (sight.at.0, pages::version_of(response));
                let seen = self.pages.entry(page).or_default();
                if write {
                    seen.write(ended, version);
                    return Ok(());
                }
                self.checks += 1;
                // Where there is no node, there is no one place at which answers leave in an order.
                let read = Read { began, ended, version, fast: *how == How::Fast && by.is_some() };
                seen.read(read).map_err(|broken| format!("page {page}: {broken}"))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        let broken = |(page, seen): (&u64, &Seen)| seen.finish().map_err(|broken| format!("page {page}: {broken}"));
        self.pages.iter().try_for_each(broken)
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
