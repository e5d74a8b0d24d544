//! Replicas that lie, for tests and simulations: each executes like any other, and its tongue says something else.

use super::pages::{Pages, page_of, text};
use crate::direct::overheard::Overheard;
use crate::direct::{Digest, Question, Remembered, Word};
use crate::sigma::Sigma;
use bytes::Bytes;
use tidings_base::Seeded;

/// A liar's sin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sin {
    /// Answers as it was long ago.
    Stale,
    /// Makes answers up.
    Forger,
    /// Answers differently each time: made up, old, right.
    Equivocator,
    /// Does not answer.
    Mute,
    /// Is honest until it wakes, and a forger from then on.
    Sleeper,
    /// Answers rightly, and names places that the order has not reached.
    Inflater,
}

impl Sin {
    /// All of them.
    pub const ALL: [Sin; 6] = [Sin::Stale, Sin::Forger, Sin::Equivocator, Sin::Mute, Sin::Sleeper, Sin::Inflater];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Sin::Stale => "stale",
            Sin::Forger => "forger",
            Sin::Equivocator => "equivocator",
            Sin::Mute => "mute",
            Sin::Sleeper => "sleeper",
            Sin::Inflater => "inflater",
        }
    }
}

/// The version of whatever is made up: no page ever gets there.
const MADE_UP: u64 = 1_000_000;

/// A liar's tongue.
#[derive(Clone, Debug)]
pub struct Liar {
    /// What it does.
    pub sin: Sin,
    /// How its pages were long ago.
    pub old: Pages,
    /// Whether a sleeper is awake.
    pub awake: bool,
    /// Whether it lies in fast reads alone: so it helps a write or an ordered read to end early.
    pub true_in_order: bool,
    rng: Seeded,
}

impl Liar {
    /// A liar that sleeps, if it is one that does.
    pub fn new(sin: Sin, rng: Seeded) -> Liar {
        Liar { sin, old: Pages::default(), awake: false, true_in_order: false, rng }
    }

    /// What it says of a page instead of the truth, if it says anything.
    pub fn speak(&mut self, page: u64, truth: Bytes, sigma: Option<Sigma>) -> Option<(Bytes, Option<Sigma>)> {
        match self.sin {
            _ if self.true_in_order && sigma.is_some() => Some((truth, sigma)),
            Sin::Mute => None,
            Sin::Stale => Some((self.old.read(page), sigma)),
            // Always the same one, so that two of them would agree.
            Sin::Forger => Some((text(page, MADE_UP), sigma)),
            Sin::Sleeper if self.awake => Some((text(page, MADE_UP), sigma)),
            Sin::Equivocator => Some(match self.rng.below(3) {
                0 => (text(page, MADE_UP + self.rng.below(3)), sigma),
                1 => (self.old.read(page), sigma),
                _ => (truth, sigma),
            }),
            Sin::Inflater => Some((truth, sigma.and_then(inflated))),
            Sin::Sleeper => Some((truth, sigma)),
        }
    }

    /// What it says to a fast read of D-Prophecy instead of the truth, if it says anything. A stale one says what somebody
    /// remembers who is behind, and has the answer to it.
    pub fn word(&mut self, overheard: &Overheard, question: &Question, truth: Word) -> Option<Word> {
        match self.sin {
            Sin::Mute => None,
            Sin::Forger => Some(forged(question, truth)),
            Sin::Sleeper if self.awake => Some(forged(question, truth)),
            Sin::Sleeper => Some(truth),
            Sin::Stale => Some(self.stale(overheard, question, truth)),
            Sin::Equivocator => Some(match self.rng.below(3) {
                0 => forged(question, truth),
                1 => self.stale(overheard, question, truth),
                _ => truth,
            }),
            Sin::Inflater => {
                let inflate = |old: Remembered| Some(Remembered { sigma: inflated(old.sigma)?, ..old });
                Some(Word { remembered: truth.remembered.and_then(inflate), ..truth })
            }
        }
    }

    fn stale(&mut self, overheard: &Overheard, question: &Question, truth: Word) -> Word {
        match overheard.any(&question.request, &mut self.rng) {
            Some((remembered, answer)) => {
                Word { remembered: Some(remembered), response: question.execute.then_some(answer), ..truth }
            }
            None => truth,
        }
    }
}

/// Made up, at the place where something true stands, so that the sketch alone gives it away.
fn forged(question: &Question, truth: Word) -> Word {
    let made_up = text(page_of(&question.request).unwrap_or_default(), MADE_UP);
    let sketch = Digest::of_response(Digest::of_request(&question.request), &made_up);
    let remembered = truth.remembered.map(|old| Remembered { sketch, ..old });
    Word { remembered, response: question.execute.then_some(made_up), ..truth }
}

fn inflated(sigma: Sigma) -> Option<Sigma> {
    Sigma::new(sigma.incarnation(), sigma.height() + 1_000_000, sigma.index())
}
