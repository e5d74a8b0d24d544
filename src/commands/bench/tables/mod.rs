//! `bench tables`: as far as there are tables, the index that matches records against subscriptions.

mod index;

use super::Effort;
use super::report::Figures;
use tidings_base::Error;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// How many subscriptions a record is matched against; the most come first, so that memory is fresh.
    pub subscriptions: &'static [u64],
    /// How many records are matched.
    pub records: usize,
    /// How many readers watch everything, of whom a writer chooses one.
    pub readers: u64,
}

impl Sizes {
    pub const FULL: Sizes =
        Sizes { subscriptions: &[1_000_000, 100_000, 10_000, 1_000], records: 100_000, readers: 100_000 };
    pub const QUICK: Sizes = Sizes { subscriptions: &[10_000, 1_000], records: 2_000, readers: 5_000 };
}

/// Measures everything.
pub fn run(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    for subscriptions in effort.tables.subscriptions {
        index::matching(*subscriptions, effort, figures)?;
    }
    index::mirror(effort, figures)
}
