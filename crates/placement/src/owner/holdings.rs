//! The ranges that an owner holds: F6, geometry that may change under one number, freezing.

use super::OwnershipChange;
use crate::Leased;
use crate::check::Holding;
use crate::mutant::Mutant;
use std::collections::BTreeSet;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};

/// Lease numbers that were held and are not any more: a repeated grant must not revive them. Numbers grow, so those
/// below the smallest that is remembered count as dropped, too.
const REMEMBERED: usize = 4_096;

/// One piece of the complete set that a manager wants this owner to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It should hold it already.
    Renewal(Leased),
    /// It gets it now.
    Grant {
        /// The lease.
        leased: Leased,
        /// The clean move by which its state arrived.
        token: Option<u64>,
    },
    /// It would get it cleanly, and its state is not here.
    Missing(Leased),
}

/// What became of a complete set.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// For the application.
    pub change: OwnershipChange,
    /// To be reported: not remembered, lapsed, or missing.
    pub refused: Vec<Leased>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    leased: Leased,
    until: Mono,
    frozen: bool,
}

/// The ranges that an owner holds, sorted by start.
#[derive(Clone, Debug)]
pub struct Holdings {
    held: Vec<Held>,
    dropped: BTreeSet<LeaseNumber>,
    floor: Option<LeaseNumber>,
    mutant: Option<Mutant>,
}

impl Holdings {
    /// Nothing.
    pub fn new(mutant: Option<Mutant>) -> Holdings {
        Holdings { held: Vec::new(), dropped: BTreeSet::new(), floor: None, mutant }
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What is held at an instant, frozen or not.
    pub fn claims(&self, now: Mono) -> Vec<Leased> {
        self.held.iter().filter(|held| now < held.until).map(|held| held.leased).collect()
    }

    /// What may be served, and until when.
    pub fn served(&self, now: Mono) -> Vec<Holding> {
        let served = self.held.iter().filter(|held| !held.frozen && now < held.until);
        served.map(|held| Holding { leased: held.leased, until: held.until }).collect()
    }

    /// When the next lease lapses.
    pub fn next_lapse(&self) -> Option<Mono> {
        self.held.iter().map(|held| held.until).min()
    }

    /// Puts a complete set in place of what is held. Renewals hold for what is held and has not lapsed; anything that
    /// is not in the set is recalled.
    pub fn take(&mut self, now: Mono, until: Mono, set: Vec<Wanted>, frozen: &[Leased]) -> Taken {
        let mut taken = Taken::default();
        let mut next: Vec<Held> = Vec::with_capacity(set.len());
        for wanted in set {
            match wanted {
                Wanted::Renewal(leased) | Wanted::Grant { leased, .. } if self.covers(leased, now) => {
                    next.push(Held { leased, until, frozen: false });
                }
                // An answer that lay about while its owner slept grants nothing: the lease is over.
                Wanted::Grant { leased, token } if now < until && !self.was_dropped(leased.lease) => {
                    taken.change.granted.push((leased, token));
                    next.push(Held { leased, until, frozen: false });
                }
                Wanted::Renewal(leased) if self.mutant == Some(Mutant::LapseRevived) => {
                    next.push(Held { leased, until, frozen: false });
                }
                Wanted::Renewal(leased) | Wanted::Grant { leased, .. } | Wanted::Missing(leased) => {
                    taken.refused.push(leased);
                }
            }
        }
        next.sort_by_key(|held| held.leased.range.start);
        for held in &mut next {
            held.frozen = frozen.iter().any(|f| f.lease == held.leased.lease && f.range.overlaps(held.leased.range));
        }
        taken.change.revoked = uncovered(&self.held, &next);
        self.replace(next);
        taken
    }

    /// Whether every point of a lease is held under its number and has not lapsed. The manager may have cut or joined
    /// ranges since: a cut inherits the number, a join needs one number.
    pub fn covers(&self, leased: Leased, now: Mono) -> bool {
        let same = self.held.iter().filter(|held| held.leased.lease == leased.lease && now < held.until);
        let mut at = leased.range.start;
        for held in same {
            if held.leased.range.contains(at) {
                if held.leased.range.last >= leased.range.last {
                    return true;
                }
                at = KeyHash(held.leased.range.last.0 + 1);
            }
        }
        false
    }

    /// Stops serving a lease without giving it up.
    pub fn freeze(&mut self, leased: Leased) {
        self.mark(leased, true);
    }

    /// Serves it again, if it is still held.
    pub fn unfreeze(&mut self, leased: Leased) {
        self.mark(leased, false);
    }

    /// Gives a lease up for good.
    pub fn give_up(&mut self, leased: Leased) {
        let mut next = Vec::with_capacity(self.held.len());
        for held in &self.held {
            if held.leased.lease != leased.lease {
                next.push(*held);
                continue;
            }
            let rest = without(held.leased.range, leased.range);
            next.extend(rest.map(|range| Held { leased: Leased { range, lease: leased.lease }, ..*held }));
        }
        self.replace(next);
    }

    /// Gives up everything; what it was.
    pub fn drop_all(&mut self) -> Vec<Leased> {
        let all = self.held.iter().map(|held| held.leased).collect();
        self.replace(Vec::new());
        all
    }

    /// Forgets what has lapsed; what it was. A lapsed lease is never revived (F6).
    pub fn lapse(&mut self, now: Mono) -> Vec<Leased> {
        let (next, lapsed): (Vec<Held>, Vec<Held>) = self.held.iter().partition(|held| now < held.until);
        self.replace(next);
        lapsed.into_iter().map(|held| held.leased).collect()
    }

    fn mark(&mut self, leased: Leased, frozen: bool) {
        let touched = |held: &&mut Held| held.leased.lease == leased.lease && held.leased.range.overlaps(leased.range);
        self.held.iter_mut().filter(touched).for_each(|held| held.frozen = frozen);
    }

    fn was_dropped(&self, lease: LeaseNumber) -> bool {
        self.dropped.contains(&lease) || self.floor.is_some_and(|floor| lease <= floor)
    }

    fn replace(&mut self, next: Vec<Held>) {
        let kept: BTreeSet<LeaseNumber> = next.iter().map(|held| held.leased.lease).collect();
        let gone = self.held.iter().map(|held| held.leased.lease).filter(|lease| !kept.contains(lease));
        self.dropped.extend(gone);
        while self.dropped.len() > REMEMBERED {
            self.floor = self.dropped.pop_first().max(self.floor);
        }
        self.held = next;
    }
}

/// What is left of a range when another is cut out of it; neither wraps.
fn without(range: KeyRange, cut: KeyRange) -> impl Iterator<Item = KeyRange> {
    let apart = !range.overlaps(cut);
    let whole = apart.then_some(range);
    let before = (!apart && range.start < cut.start).then(|| KeyRange::new(range.start, KeyHash(cut.start.0 - 1)));
    let after = (!apart && cut.last < range.last).then(|| KeyRange::new(KeyHash(cut.last.0 + 1), range.last));
    [whole, before, after].into_iter().flatten()
}

/// The pieces of `before` that `after` does not hold under the same number.
fn uncovered(before: &[Held], after: &[Held]) -> Vec<Leased> {
    let mut gone = Vec::new();
    for held in before {
        let mut at = Some(held.leased.range.start);
        let same = after
            .iter()
            .filter(|next| next.leased.lease == held.leased.lease && next.leased.range.overlaps(held.leased.range));
        for next in same {
            let Some(start) = at else { break };
            if next.leased.range.start > start {
                let range = KeyRange::new(start, KeyHash(next.leased.range.start.0 - 1));
                gone.push(Leased { range, lease: held.leased.lease });
            }
            at = (next.leased.range.last < held.leased.range.last).then(|| KeyHash(next.leased.range.last.0 + 1));
        }
        if let Some(start) = at {
            gone.push(Leased { range: KeyRange::new(start, held.leased.range.last), lease: held.leased.lease });
        }
    }
    gone
}
