//! Names and numbers, each with a type of its own.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl $name {
            /// The next number. Overflow is a bug: these counters cannot be used up.
            pub fn next(self) -> $name {
                $name(self.0.checked_add(1).expect("a counter of this width is never used up"))
            }
        }
    };
}

number! {
    /// Names one operation on one connection or machine. Clients use odd numbers, servers even ones.
    OpId(u64)
}
number! {
    /// Names a node of a cluster for good; the operator chooses it in the node's configuration.
    NodeId(u64)
}
number! {
    /// A Raft group: 0 is the cell, 1 is store and feed together, more are cell partitions.
    GroupId(u32)
}
number! {
    /// A position in an agreed log; the first entry has index 1.
    LogIndex(u64)
}
number! {
    /// Grows with every leadership of a group: whatever a leader does on its own account carries it.
    Epoch(u64)
}
number! {
    /// Grows whenever a thing loses its memory: a process, a store, a cell.
    Incarnation(u64)
}

impl GroupId {
    /// The group of the cell.
    pub const CELL: GroupId = GroupId(0);
    /// The group of store and feed, together so that a feed entry and the state it makes can share one commit.
    pub const STORE: GroupId = GroupId(1);
}

impl Incarnation {
    /// The incarnation that follows `self`, never below the wall clock's milliseconds, so that it grows even where
    /// the previous one was lost.
    pub fn raised(self, wall: crate::time::Wall) -> Incarnation {
        self.next().max(Incarnation(wall.millis()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Wall;

    #[test]
    fn an_incarnation_grows_with_and_without_a_good_clock() {
        assert_eq!(Incarnation(7).raised(Wall(0)), Incarnation(8));
        assert_eq!(Incarnation(7).raised(Wall(9_000_000)), Incarnation(9_000));
    }
}
