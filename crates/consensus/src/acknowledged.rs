//! What each member has acknowledged to this leader, so that one that has lost it is noticed.
//!
//! Under one leader the log of a follower only grows, and openraft takes that for granted: a leader that hears otherwise
//! stops. Disks are lost all the same, and people put empty ones in their place. A member that has done so has forgotten
//! its votes too, so it is treated as if it did not answer, for as long as this leadership lasts: it is counted for
//! nothing, and the leader says who is to be replaced.

use std::collections::{BTreeMap, BTreeSet};
use tidings_base::NodeId;

/// Of one leadership: as many as there are and were members.
#[derive(Default)]
pub(crate) struct Acknowledged {
    term: u64,
    /// The last entry of each.
    last: BTreeMap<NodeId, u64>,
    lost: BTreeSet<NodeId>,
}

impl Acknowledged {
    /// The last entry that a member has acknowledged to the leader of this term.
    pub fn last(&self, term: u64, member: NodeId) -> Option<u64> {
        self.last.get(&member).copied().filter(|_| term == self.term)
    }

    /// A member has all entries up to this one.
    pub fn took(&mut self, term: u64, member: NodeId, index: u64) {
        if term > self.term {
            *self = Acknowledged { term, ..Acknowledged::default() };
        }
        if term == self.term {
            let last = self.last.entry(member).or_insert(index);
            *last = index.max(*last);
        }
    }

    /// A member does not have what it had; whether that is news.
    pub fn lost(&mut self, member: NodeId) -> bool {
        self.lost.insert(member)
    }

    /// The member was removed before and begins anew.
    pub fn forget(&mut self, member: NodeId) {
        self.last.remove(&member);
        self.lost.remove(&member);
    }

    /// Whether a member was found to have lost its log.
    pub fn has_lost(&self, member: NodeId) -> bool {
        self.lost.contains(&member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_one_leadership() {
        let (mut acknowledged, member) = (Acknowledged::default(), NodeId(2));
        acknowledged.took(3, member, 7);
        acknowledged.took(3, member, 5);
        assert_eq!((acknowledged.last(3, member), acknowledged.last(4, member)), (Some(7), None));
        assert!(acknowledged.lost(member) && !acknowledged.lost(member) && acknowledged.has_lost(member));
        acknowledged.took(2, member, 9);
        assert_eq!(acknowledged.last(3, member), Some(7));
        acknowledged.took(4, NodeId(3), 1);
        assert_eq!((acknowledged.last(4, member), acknowledged.has_lost(member)), (None, false));
    }
}
