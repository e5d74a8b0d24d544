//! Elections: when a replica asks for votes, and when it gives one.

use super::message::Message;
use super::replica::{Phase, Replica, Timer};
use super::storage::Ballot;
use std::collections::BTreeSet;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Role};
use tidings_base::{Mono, NodeId, Now};

impl<S: AgreedState> Replica<S> {
    /// The usual wait is one to two leases behind the earliest moment at which others would vote.
    pub(super) fn set_election_timer(&mut self, now: Mono) {
        let lease = u64::try_from(self.config.lease.as_nanos()).unwrap_or(u64::MAX);
        let wait = if self.rng.one_in(self.config.temper.hasty) {
            self.rng.between(lease / 20, lease)
        } else {
            self.rng.between(lease + lease / 20, 2 * lease)
        };
        self.timers.set(Timer::Election, now + Duration::from_nanos(wait));
    }

    pub(super) fn election_due(&mut self, now: Now) {
        if matches!(self.phase, Phase::Leader(_)) {
            return;
        }
        self.set_election_timer(now.mono);
        if self.storage.ballot().learner || self.bound_to_leader(now.mono) {
            return;
        }
        self.leader = None;
        self.tell_role(Role::Follower { leader: None });
        if self.config.members.len() == 1 {
            return self.campaign(now);
        }
        self.phase = Phase::Sounding { votes: BTreeSet::from([self.config.id]) };
        let (term, last) = (self.term() + 1, self.storage.last_entry());
        self.send_to_others(&Message::Vote { term, pre: true, last });
    }

    /// Whether voting now could break the lease of a leader that was heard, or was heard before a restart.
    fn bound_to_leader(&self, now: Mono) -> bool {
        let heard = match &self.phase {
            Phase::Leader(leading) => leading.lease_base(),
            _ => self.heard_at,
        };
        now < self.silent_until || heard.is_some_and(|at| now < at + self.config.lease)
    }

    fn campaign(&mut self, now: Now) {
        let ballot = self.storage.ballot();
        self.storage.set_ballot(Ballot { term: ballot.term + 1, voted: Some(self.config.id), ..ballot });
        self.phase = Phase::Candidate { votes: BTreeSet::new() };
        let (term, last) = (self.term(), self.storage.last_entry());
        self.send_to_others(&Message::Vote { term, pre: false, last });
        if !self.storage.ballot_dirty() {
            // Only a replica that forgets its votes gets here: it needs no disk to believe itself.
            self.count_own_vote(now);
        }
    }

    /// The own vote counts when it is durable.
    pub(super) fn count_own_vote(&mut self, now: Now) {
        let (id, term) = (self.config.id, self.term());
        self.vote_answered(now, id, term, false, true);
    }

    pub(super) fn vote_asked(&mut self, now: Now, from: NodeId, term: u64, pre: bool, last: (u64, u64)) {
        if self.storage.ballot().learner || self.bound_to_leader(now.mono) {
            return;
        }
        let up_to_date = last >= self.storage.last_entry();
        if pre {
            let granted = up_to_date && term > self.term();
            let term = if granted { term } else { self.term() };
            return self.send(from, Message::VoteReply { term, pre, granted });
        }
        if term > self.term() {
            self.step_down(now, term);
        }
        let ballot = self.storage.ballot();
        let granted = term == ballot.term && ballot.voted.is_none_or(|node| node == from) && up_to_date;
        if granted {
            self.storage.set_ballot(Ballot { voted: Some(from), ..ballot });
            self.set_election_timer(now.mono);
        }
        self.send(from, Message::VoteReply { term: ballot.term, pre, granted });
    }

    pub(super) fn vote_answered(&mut self, now: Now, from: NodeId, term: u64, pre: bool, granted: bool) {
        if !granted {
            if term > self.term() {
                self.step_down(now, term);
            }
            return;
        }
        let own_term = self.term();
        let quorum = self.config.quorum();
        let won = match &mut self.phase {
            Phase::Sounding { votes } if pre && term == own_term + 1 => {
                votes.insert(from);
                votes.len() >= quorum
            }
            Phase::Candidate { votes } if !pre && term == own_term => {
                votes.insert(from);
                votes.len() >= quorum
            }
            _ => false,
        };
        match (won, pre) {
            (true, true) => self.campaign(now),
            (true, false) => self.lead(now),
            (false, _) => {}
        }
    }

    /// Becomes a follower, in this term if it is newer.
    pub(super) fn step_down(&mut self, now: Now, term: u64) {
        if let Phase::Leader(leading) = std::mem::replace(&mut self.phase, Phase::Follower) {
            // Whoever answered the last round may rely on this leader for a lease from then; so does it itself.
            self.heard_at = self.heard_at.max(leading.lease_base());
            self.timers.cancel(&Timer::Beat);
            self.abandon(leading);
        }
        let ballot = self.storage.ballot();
        if term > ballot.term {
            self.storage.set_ballot(Ballot { term, voted: None, ..ballot });
        }
        self.leader = None;
        self.tell_role(Role::Follower { leader: None });
        self.set_election_timer(now.mono);
    }
}
