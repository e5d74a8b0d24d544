//! Who may lead until when, computed on our own clock.
//!
//! openraft has a lease of its own, on a clock that stops while the machine sleeps and without a share for clocks that
//! run at different rates. It is left in place because it keeps elections calm, and trusted for nothing. Here:
//! - A voter that accepted an append promises, for one lease from its receipt, neither to grant a vote nor to ask for
//!   one ([`Leases::may_vote`] guards both directions of the wire). A restarted voter does not remember what it
//!   promised and keeps still for (1+ρ) leases (cell spec, R2).
//! - A leader that sent an append at `s` and heard that it was accepted holds that voter's promise until at least
//!   `s` + (1−ρ) lease on its own clock. With such promises from a majority (from both majorities while the membership
//!   changes) nobody else can be elected before the earliest of them ends: that is the lease.
//! - A leader that holds a lease keeps it even if it stops leading: until then it votes for nobody.
//! - Appends and votes are handled at the same time. Whoever has a part in the election of a term, or is about to,
//!   promises nothing to leaders of earlier terms and counts on no lease of its own in them: an append that was accepted
//!   just before the vote must not be taken for a promise not to give it.
//! - A hand-over gives the lease up first: the leader stops renewing, waits until what it announced has run out, and
//!   only then asks a voter to take over. Votes of that election pass the guard.
//!
//! Membership counts from the moment it is written to the log, before any other member can have seen it: leases that
//! depend on later sends need the majorities of the new one, and leases from earlier sends end before a majority of the
//! new one, which received it later than that, can have let its promise go.

use crate::mutant::Mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::Mono;
use tidings_base::time::{shortened, stretched};

/// Promises and leases of one replica in one group.
#[derive(Debug)]
pub(crate) struct Leases {
    node: u64,
    lease: Duration,
    /// No vote is given or asked for before this.
    promised_until: Mono,
    leading: Option<Leading>,
    /// A hand-over of this term is under way: no lease in it or an earlier one. In a later term the election that the
    /// hand-over began cannot be won any more, whoever leads.
    suspended: Option<u64>,
    /// The latest end of a lease that was announced or used here, in any term.
    announced: Mono,
    /// The highest term that this replica gave its vote in, or asked for votes in.
    elected: u64,
    /// Terms of the elections whose votes are being considered here right now.
    considering: Vec<u64>,
    /// Memberships in the log, oldest first, each with its index; the last is in effect.
    memberships: Vec<(u64, Vec<BTreeSet<u64>>)>,
    mutant: Option<Mutant>,
}

#[derive(Debug)]
struct Leading {
    term: u64,
    /// For each voter, when the latest append that it accepted was sent.
    accepted: BTreeMap<u64, Mono>,
}

impl Leases {
    pub fn new(node: u64, lease: Duration, mutant: Option<Mutant>) -> Leases {
        Leases {
            node,
            lease,
            promised_until: Mono(0),
            leading: None,
            suspended: None,
            announced: Mono(0),
            elected: 0,
            considering: Vec::new(),
            memberships: Vec::new(),
            mutant,
        }
    }

    /// A voter restarted and may have promised anything up to now.
    pub fn restarted(&mut self, now: Mono) {
        self.promised_until = self.promised_until.max(now + stretched(self.lease));
    }

    /// Whether a vote may be given or asked for now; `transfer`: the leader itself began this election.
    pub fn may_vote(&self, now: Mono, transfer: bool) -> bool {
        transfer || now >= self.quiet_until()
    }

    /// When votes may be given and asked for again.
    pub fn quiet_until(&self) -> Mono {
        self.promised_until.max(self.announced)
    }

    /// A vote in the election of `term` is asked of this replica; whether it may be considered. If so, what came of it
    /// must be told by [`considered`](Leases::considered).
    pub fn consider(&mut self, now: Mono, term: u64, transfer: bool) -> bool {
        let may = self.may_vote(now, transfer);
        if may {
            self.considering.push(term);
        }
        may
    }

    /// What came of a vote that was considered.
    pub fn considered(&mut self, term: u64, granted: bool) {
        if let Some(at) = self.considering.iter().position(|considered| *considered == term) {
            self.considering.swap_remove(at);
        }
        if granted {
            self.elected = self.elected.max(term);
        }
    }

    /// This replica wants to ask for votes in the election of `term`; whether it may.
    pub fn campaign(&mut self, now: Mono, term: u64, transfer: bool) -> bool {
        let may = self.may_vote(now, transfer);
        if may {
            self.elected = self.elected.max(term);
        }
        may
    }

    /// An append of the leader of `term`, received at `received`, was accepted. Whether the leader may take that for a
    /// promise: not if this replica has a part in a later election.
    pub fn promise(&mut self, received: Mono, term: u64) -> bool {
        if self.is_outvoted(term) && self.mutant != Some(Mutant::PromiseBesideVote) {
            return false;
        }
        self.promised_until = self.promised_until.max(received + self.lease);
        true
    }

    /// Whether a leader was heard within two leases.
    pub fn heard_lately(&self, now: Mono) -> bool {
        now < self.promised_until + self.lease
    }

    /// Whether this replica has, or may have in a moment, a part in an election after that of `term`.
    fn is_outvoted(&self, term: u64) -> bool {
        self.elected > term || self.considering.iter().any(|considered| *considered > term)
    }

    /// An append was sent as leader of `term` at `sent`, and `voter` accepted it.
    pub fn accepted(&mut self, term: u64, voter: u64, sent: Mono) {
        let leading = match &mut self.leading {
            Some(leading) if leading.term == term => leading,
            Some(leading) if leading.term > term => return,
            other => other.insert(Leading { term, accepted: BTreeMap::new() }),
        };
        let latest = leading.accepted.entry(voter).or_insert(sent);
        *latest = sent.max(*latest);
    }

    /// The lease of the leader of `term`, if it has one now; what is returned counts as announced.
    pub fn hold(&mut self, now: Mono, term: u64) -> Option<Mono> {
        let until = self.lease_until(now, term)?;
        let suspended = self.suspended.is_some_and(|of| term <= of);
        let outvoted = self.is_outvoted(term) && self.mutant != Some(Mutant::LeaseBesideVote);
        if suspended || now >= until || outvoted {
            return None;
        }
        self.announced = self.announced.max(until);
        Some(until)
    }

    fn lease_until(&self, now: Mono, term: u64) -> Option<Mono> {
        let none = BTreeMap::new();
        let accepted = match &self.leading {
            Some(leading) if leading.term == term => &leading.accepted,
            Some(leading) if leading.term > term => return None,
            _ => &none,
        };
        let (_, configs) = self.memberships.last()?;
        let sent = |voter: &u64| if *voter == self.node { Some(now) } else { accepted.get(voter).copied() };
        let mut earliest = now;
        for voters in configs {
            let mut times: Vec<Mono> = voters.iter().filter_map(sent).collect();
            let majority = voters.len() / 2 + 1;
            if times.len() < majority {
                return None;
            }
            times.sort_unstable_by(|a, b| b.cmp(a));
            earliest = earliest.min(times[majority - 1]);
        }
        Some(earliest + shortened(self.lease))
    }

    /// Who accepted an append of the leader of `term` within the last lease.
    pub fn in_touch(&self, now: Mono, term: u64) -> BTreeSet<u64> {
        let Some(leading) = self.leading.as_ref().filter(|leading| leading.term == term) else {
            return BTreeSet::new();
        };
        leading.accepted.iter().filter(|(_, sent)| now.since(**sent) < self.lease).map(|(voter, _)| *voter).collect()
    }

    /// No leases in `term` until [`resume`](Leases::resume); returns when the announced ones have run out.
    pub fn suspend(&mut self, term: u64) -> Mono {
        self.suspended = Some(term);
        self.announced
    }

    /// Another leader is known, or nobody was asked to take over: whatever hand-over there was is over.
    pub fn resume(&mut self) {
        self.suspended = None;
    }

    /// A snapshot up to `index` was put in place, with the membership as of there.
    pub fn snapshot(&mut self, index: u64, configs: Vec<BTreeSet<u64>>) {
        self.memberships.retain(|(at, _)| *at > index);
        self.memberships.insert(0, (index, configs));
    }

    /// A membership entered the log at `index`.
    pub fn membership(&mut self, index: u64, configs: Vec<BTreeSet<u64>>) {
        self.memberships.retain(|(at, _)| *at < index);
        self.memberships.push((index, configs));
    }

    /// Entries after `index` were cut off the log.
    pub fn truncated(&mut self, index: u64) {
        self.memberships.retain(|(at, _)| *at <= index);
    }

    /// Everything up to `index` is committed: of the memberships up to there only the last can matter again.
    pub fn committed(&mut self, index: u64) {
        let settled = self.memberships.iter().filter(|(at, _)| *at <= index).count();
        self.memberships.drain(..settled.saturating_sub(1));
    }

    /// Whether this replica alone is all voters there are.
    pub fn alone(&self) -> bool {
        let only = BTreeSet::from([self.node]);
        self.memberships.last().is_some_and(|(_, configs)| configs.iter().all(|voters| *voters == only))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Mono {
        Mono(0) + Duration::from_secs(seconds)
    }

    fn leases(configs: &[&[u64]]) -> Leases {
        leases_without(None, configs)
    }

    fn leases_without(mutant: Option<Mutant>, configs: &[&[u64]]) -> Leases {
        let mut leases = Leases::new(1, LEASE, mutant);
        leases.membership(1, configs.iter().map(|c| c.iter().copied().collect()).collect());
        leases
    }

    #[test]
    fn a_majority_of_promises_makes_a_lease_from_the_time_of_sending() {
        let mut l = leases(&[&[1, 2, 3, 4, 5]]);
        assert_eq!(l.hold(at(100), 7), None);
        l.accepted(7, 2, at(98));
        assert_eq!(l.hold(at(100), 7), None, "two of five are no majority");
        l.accepted(7, 3, at(95));
        assert_eq!(l.hold(at(100), 7), Some(at(104)), "95 s + 9 s");
        l.accepted(7, 4, at(97));
        l.accepted(7, 4, at(90));
        assert_eq!(l.hold(at(100), 7), Some(at(106)), "an older reply takes nothing away");
        assert_eq!(l.hold(at(106), 7), None, "it ends at its end");
        assert_eq!(l.hold(at(100), 8), None, "promises to one term are none to another");
        assert_eq!(l.hold(at(100), 6), None);
    }

    #[test]
    fn a_joint_membership_needs_both_majorities() {
        let mut l = leases(&[&[1, 2, 3]]);
        l.accepted(7, 2, at(100));
        assert!(l.hold(at(100), 7).is_some());
        l.membership(9, vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([3, 4, 5])]);
        assert_eq!(l.hold(at(100), 7), None);
        l.accepted(7, 4, at(99));
        l.accepted(7, 5, at(98));
        assert_eq!(l.hold(at(100), 7), Some(at(107)));
        l.truncated(8);
        assert_eq!(l.hold(at(100), 7), Some(at(109)));
    }

    #[test]
    fn one_voter_alone_always_holds_it() {
        let mut l = leases(&[&[1]]);
        assert!(l.alone());
        assert_eq!(l.hold(at(50), 3), Some(at(59)));
    }

    #[test]
    fn promises_silence_a_voter_and_a_restart_does_too() {
        let mut l = leases(&[&[1, 2, 3]]);
        assert!(l.may_vote(at(0), false));
        assert!(l.promise(at(5), 1));
        assert!(!l.may_vote(at(14), false) && l.may_vote(at(15), false) && l.may_vote(at(6), true));
        l.restarted(at(20));
        assert!(!l.may_vote(at(30), false) && l.may_vote(at(31), false));
    }

    #[test]
    fn a_leader_keeps_its_own_lease_and_gives_it_up_before_a_hand_over() {
        let mut l = leases(&[&[1, 2, 3]]);
        l.accepted(7, 2, at(100));
        assert_eq!(l.hold(at(101), 7), Some(at(109)));
        assert!(!l.may_vote(at(108), false), "it would vote its own lease away");
        assert_eq!((l.in_touch(at(109), 7), l.in_touch(at(110), 7)), (BTreeSet::from([2]), BTreeSet::new()));
        assert_eq!(l.suspend(7), at(109));
        l.accepted(7, 2, at(105));
        assert_eq!(l.hold(at(105), 7), None);
        // Nobody took over, and this one was elected again: the hand-over is over by that.
        l.accepted(8, 2, at(120));
        assert!(l.hold(at(120), 8).is_some(), "a later term has leases again");
        l.suspend(8);
        assert_eq!(l.hold(at(121), 8), None);
        l.resume();
        assert!(l.hold(at(121), 8).is_some(), "nobody was asked to take over");
    }

    #[test]
    fn an_append_accepted_beside_a_vote_is_no_promise() {
        let mut l = leases(&[&[1, 2, 3]]);
        assert!(l.consider(at(1), 8, false));
        assert!(!l.promise(at(1), 7), "the vote for term 8 may be given in a moment");
        assert!(l.promise(at(1), 8));
        l.considered(8, true);
        assert!(!l.promise(at(2), 7) && l.promise(at(2), 8));
        assert!(!l.consider(at(3), 9, false), "promised to the leader of term 8");
    }

    #[test]
    fn a_refused_vote_leaves_promises_and_leases_as_they_were() {
        a_refused_vote(None);
    }

    #[test]
    #[should_panic(expected = "this leader may vote for another in a moment")]
    fn a_lease_beside_a_vote_is_noticed() {
        a_refused_vote(Some(Mutant::LeaseBesideVote));
    }

    fn a_refused_vote(mutant: Option<Mutant>) {
        let mut l = leases_without(mutant, &[&[1, 2, 3]]);
        assert!(l.consider(at(100), 8, false));
        l.accepted(7, 2, at(100));
        assert_eq!(l.hold(at(100), 7), None, "this leader may vote for another in a moment");
        l.considered(8, false);
        assert_eq!(l.hold(at(100), 7), Some(at(109)));
        assert!(!l.campaign(at(100), 8, false));
        assert!(l.campaign(at(110), 8, false));
        l.accepted(7, 2, at(110));
        assert_eq!(l.hold(at(110), 7), None, "it asked for votes in a later term");
    }

    #[test]
    fn only_memberships_that_may_come_back_are_kept() {
        let mut l = leases(&[&[1]]);
        for index in 2..50 {
            l.membership(index, vec![BTreeSet::from([1, index])]);
            l.committed(index - 1);
            assert!(l.memberships.len() <= 2);
        }
    }
}
