//! σ: where in its group's order an answer stands; and, where there is no order, when it was voted on.

use std::fmt;
use tidings_base::Incarnation;

const INDEX_BITS: u32 = 18;
const HEIGHT_BITS: u32 = 43;

/// A place in the order of one group: which life of the group, which block, which command of it.
///
/// Two of different groups must not be compared; a [`History`](crate::history::History) belongs to one group. Height and
/// index together have 61 bits, so that a history's entry has room for three more: 2⁴³ blocks of 2¹⁸ commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sigma {
    incarnation: Incarnation,
    place: u64,
}

impl Sigma {
    /// A place, or `None` if a number is too large to be one.
    pub fn new(incarnation: Incarnation, height: u64, index: u32) -> Option<Sigma> {
        let fits = height < 1 << HEIGHT_BITS && index < 1 << INDEX_BITS;
        fits.then(|| Sigma { incarnation, place: height << INDEX_BITS | u64::from(index) })
    }

    /// The life of the group that it belongs to.
    pub fn incarnation(self) -> Incarnation {
        self.incarnation
    }

    /// The number of the block.
    pub fn height(self) -> u64 {
        self.place >> INDEX_BITS
    }

    /// The number within the block.
    pub fn index(self) -> u32 {
        (self.place & ((1 << INDEX_BITS) - 1)) as u32
    }

    pub(crate) fn place(self) -> u64 {
        self.place
    }

    pub(crate) fn at(incarnation: Incarnation, place: u64) -> Sigma {
        Sigma { incarnation, place }
    }
}

impl fmt::Debug for Sigma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "σ{}.{}.{}", self.incarnation, self.height(), self.index())
    }
}

/// When a replicated answer was true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// At this place of the group's order.
    Ordered(Sigma),
    /// At no known instant between two ticks of the sketcher (rule E: origins have no σ).
    Voted {
        /// The tick at which the vote began.
        began: u64,
        /// The tick at which it ended.
        ended: u64,
    },
}

impl Stamp {
    /// The life of the group; votes know of one only.
    pub(crate) fn incarnation(self) -> Incarnation {
        match self {
            Stamp::Ordered(sigma) => sigma.incarnation,
            Stamp::Voted { .. } => Incarnation(0),
        }
    }

    /// What must lie above a floor.
    pub(crate) fn from(self) -> u64 {
        match self {
            Stamp::Ordered(sigma) => sigma.place,
            Stamp::Voted { began, .. } => began,
        }
    }

    /// What an entry keeps.
    pub(crate) fn to(self) -> u64 {
        match self {
            Stamp::Ordered(sigma) => sigma.place,
            Stamp::Voted { ended, .. } => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_by_life_then_block_then_command() {
        let sigma = |life, height, index| Sigma::new(Incarnation(life), height, index).unwrap();
        assert!(sigma(1, 9, 9) < sigma(2, 1, 0));
        assert!(sigma(2, 1, 9) < sigma(2, 2, 0) && sigma(2, 2, 0) < sigma(2, 2, 1));
        assert_eq!((sigma(1, 7, 3).height(), sigma(1, 7, 3).index()), (7, 3));
    }

    #[test]
    fn what_does_not_fit_is_no_place() {
        assert_eq!(Sigma::new(Incarnation(1), 1 << 43, 0), None);
        assert_eq!(Sigma::new(Incarnation(1), 0, 1 << 18), None);
    }
}
