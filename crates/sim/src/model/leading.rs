//! What a leader does: entries out, acknowledgements in, the lease, barriers.

use super::message::Message;
use super::replica::{BATCH, Output, Phase, Replica, Timer};
use crate::mutant::Mutant;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use tidings_base::agreed::{AgreedState, Heard, MAX_COMMAND, Refusal, Role};
use tidings_base::time::shortened;
use tidings_base::{Epoch, LogIndex, Mono, NodeId, Now, OpId};

/// How many proposals may wait for their commitment.
const MAX_PENDING: usize = 1_024;

/// What the leader knows of one follower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub next: u64,
    pub matched: u64,
    pub life: u64,
    pub learner: bool,
    pub round: u64,
}

struct Barrier {
    op: OpId,
    round: u64,
}

/// The state of a leadership.
pub(super) struct Leading {
    followers: BTreeMap<NodeId, Progress>,
    /// When each round that is not yet answered by a majority was sent.
    rounds: VecDeque<(u64, Mono)>,
    round: u64,
    /// When the last round was sent that a majority answered; `None` before the first.
    base: Option<Mono>,
    began: Mono,
    pending: BTreeMap<u64, OpId>,
    barriers: Vec<Barrier>,
}

impl Leading {
    /// From when on followers may count a lease of this leader.
    pub fn lease_base(&self) -> Option<Mono> {
        self.base
    }

    /// A follower has a new disk: what its old one acknowledged no longer counts.
    pub fn disk_replaced(&mut self, follower: NodeId, life: u64) {
        if let Some(progress) = self.followers.get_mut(&follower).filter(|progress| progress.life < life) {
            *progress = Progress { next: 1, life, learner: true, ..Progress::default() };
        }
    }
}

impl<S: AgreedState> Replica<S> {
    /// Takes the lead of the present term; it is announced when an entry of the term is applied.
    pub(super) fn lead(&mut self, now: Now) {
        let next = self.storage.last() + 1;
        let followers = self.config.members.iter().filter(|node| **node != self.config.id);
        let followers = followers.map(|node| (*node, Progress { next, ..Progress::default() })).collect();
        self.leader = Some(self.config.id);
        self.phase = Phase::Leader(Leading {
            followers,
            rounds: VecDeque::new(),
            round: 0,
            base: None,
            began: now.mono,
            pending: BTreeMap::new(),
            barriers: Vec::new(),
        });
        self.timers.cancel(&Timer::Election);
        if let Err(error) = self.storage.append(vec![(self.term(), Bytes::new())]) {
            return self.fail(error);
        }
        self.new_round(now);
        self.advance_commit();
    }

    /// A sign of life to everybody, and the end of a leadership that nobody answers.
    pub(super) fn beat(&mut self, now: Now) {
        let Phase::Leader(leading) = &self.phase else { return };
        let answered = leading.base.unwrap_or(leading.began).max(leading.began);
        // Far later than it could: safety rests on the lease, and a leader that is wrong about itself for long tests it.
        let alone = now.mono.since(answered) > self.config.lease * 4;
        if alone || self.rng.one_in(self.config.temper.abdicates) {
            return self.step_down(now, self.term());
        }
        self.new_round(now);
    }

    fn new_round(&mut self, now: Now) {
        let Phase::Leader(leading) = &mut self.phase else { return };
        leading.round += 1;
        leading.rounds.push_back((leading.round, now.mono));
        self.timers.set(Timer::Beat, now.mono + self.config.lease / 4);
        for follower in leading.followers.keys().copied().collect::<Vec<_>>() {
            self.replicate(follower);
        }
        self.count_round();
    }

    /// Sends a follower what it lacks, or a sign of life.
    fn replicate(&mut self, to: NodeId) {
        let (term, commit) = (self.storage.ballot().term, self.commit);
        let Phase::Leader(leading) = &mut self.phase else { return };
        let round = leading.round;
        let Some(progress) = leading.followers.get_mut(&to) else { return };
        progress.next = progress.next.clamp(1, self.storage.last() + 1);
        let reachable = progress.next >= self.storage.first();
        let Some(prev_term) = self.storage.term_at(progress.next - 1).filter(|_| reachable) else {
            let picture = self.storage.picture().clone();
            progress.next = picture.last.1 + 1;
            return self.send(to, Message::Snapshot { term, round, last: picture.last, picture: picture.bytes });
        };
        let prev = (prev_term, progress.next - 1);
        let entries = self.storage.entries_from(progress.next, BATCH);
        progress.next += entries.len() as u64;
        self.send(to, Message::Append { term, round, prev, commit, entries });
    }

    pub(super) fn append_answered(&mut self, from: NodeId, reply: Progress, success: bool) {
        let last = self.storage.last();
        let Phase::Leader(leading) = &mut self.phase else { return };
        let Some(progress) = leading.followers.get_mut(&from) else { return };
        if reply.life < progress.life {
            return; // Said on a disk that is gone.
        }
        if reply.life > progress.life {
            *progress = Progress { next: reply.matched + 1, life: reply.life, ..Progress::default() };
        }
        progress.learner = reply.learner;
        progress.round = progress.round.max(reply.round);
        if success {
            progress.matched = progress.matched.max(reply.matched);
            progress.next = progress.next.max(progress.matched + 1);
        } else {
            progress.next = progress.next.min(reply.matched + 1).max(progress.matched + 1);
        }
        if !success || progress.next <= last {
            self.replicate(from);
        }
        self.count_round();
        self.advance_commit();
    }

    /// The latest value that a majority has reached; learners have reached nothing.
    fn majority(&self, own: u64, of: impl Fn(&Progress) -> u64) -> u64 {
        let Phase::Leader(leading) = &self.phase else { return 0 };
        let followers = leading.followers.values().map(|p| if p.learner { 0 } else { of(p) });
        let mut values: Vec<u64> = followers.chain([own]).collect();
        values.sort_unstable_by(|a, b| b.cmp(a));
        values[self.config.quorum() - 1]
    }

    /// A majority has answered a later round: the lease is longer, barriers may pass.
    fn count_round(&mut self) {
        let Phase::Leader(leading) = &self.phase else { return };
        let answered = self.majority(leading.round, |p| p.round);
        let Phase::Leader(leading) = &mut self.phase else { return };
        let before = leading.base;
        while let Some((_, sent)) = leading.rounds.front().copied().filter(|(round, _)| *round <= answered) {
            leading.rounds.pop_front();
            leading.base = Some(sent);
        }
        let changed = leading.base != before;
        if changed && self.is_leader() {
            self.tell_lease();
        }
        self.pass_barriers(answered);
    }

    fn tell_lease(&mut self) {
        if let Phase::Leader(Leading { base: Some(base), .. }) = &self.phase {
            let until = *base + shortened(self.config.lease);
            self.out.push(Output::Heard(Heard::LeaseUntil(until)));
        }
    }

    fn pass_barriers(&mut self, answered: u64) {
        if !self.is_leader() {
            return;
        }
        let index = LogIndex(self.commit);
        let Phase::Leader(leading) = &mut self.phase else { return };
        let out = &mut self.out;
        leading.barriers.retain(|barrier| {
            let passed = barrier.round <= answered;
            if passed {
                out.push(Output::Heard(Heard::Passed { op: barrier.op, index }));
            }
            !passed
        });
    }

    /// Commits what a majority holds durably, if it is of this term; earlier entries come with it.
    pub(super) fn advance_commit(&mut self) {
        let index = self.majority(self.storage.durable(), |p| p.matched);
        if index > self.commit && self.storage.term_at(index) == Some(self.term()) {
            self.commit = index;
            self.apply_committed();
        }
    }

    /// Answers a proposal whose index was applied.
    pub(super) fn answer(&mut self, index: u64, result: Bytes) {
        let Phase::Leader(leading) = &mut self.phase else { return };
        if let Some(op) = leading.pending.remove(&index) {
            self.out.push(Output::Heard(Heard::Applied { op, index: LogIndex(index), result }));
        }
    }

    /// A leader whose own term is applied holds everything that was ever committed: now it may be told.
    pub(super) fn announce(&mut self) {
        let term = self.term();
        let applied = self.state.position().index.0;
        if !matches!(self.phase, Phase::Leader(_)) || self.storage.term_at(applied) != Some(term) || self.is_leader() {
            return;
        }
        self.tell_role(Role::Leader { epoch: Epoch(term) });
        self.tell_lease();
        self.count_round();
    }

    pub(super) fn propose(&mut self, op: OpId, command: Bytes) {
        if command.len() > MAX_COMMAND {
            return self.refuse(op, Refusal::TooLarge);
        }
        if !self.is_leader() {
            return self.refuse(op, self.not_leader());
        }
        let (term, index) = (self.term(), self.storage.last() + 1);
        let Phase::Leader(leading) = &mut self.phase else { return self.refuse(op, self.not_leader()) };
        if leading.pending.len() >= MAX_PENDING {
            return self.refuse(op, Refusal::Busy);
        }
        let mut entries = vec![(term, command)];
        if self.config.mutant == Some(Mutant::DoubleApply) && self.rng.one_in(50) {
            entries.push(entries[0].clone());
        }
        if let Err(error) = self.storage.append(entries) {
            self.out.push(Output::Heard(Heard::Unknown { op }));
            return self.fail(error);
        }
        leading.pending.insert(index, op);
        for follower in leading.followers.keys().copied().collect::<Vec<_>>() {
            self.replicate(follower);
        }
        if self.config.mutant == Some(Mutant::EarlyAcknowledgement) {
            self.advance_commit();
        }
    }

    pub(super) fn read_barrier(&mut self, now: Now, op: OpId) {
        if !self.is_leader() {
            return self.refuse(op, self.not_leader());
        }
        let distrust = self.rng.one_in(4);
        let Phase::Leader(leading) = &mut self.phase else { return self.refuse(op, self.not_leader()) };
        let leased = leading.base.is_some_and(|base| now.mono < base + shortened(self.config.lease));
        if (leased && !distrust) || self.config.mutant == Some(Mutant::StaleRead) {
            let index = LogIndex(self.commit);
            return self.out.push(Output::Heard(Heard::Passed { op, index }));
        }
        leading.barriers.push(Barrier { op, round: leading.round + 1 });
        self.new_round(now);
    }

    /// The leadership is over: nobody knows what becomes of its proposals.
    pub(super) fn abandon(&mut self, leading: Leading) {
        for op in leading.pending.into_values() {
            self.out.push(Output::Heard(Heard::Unknown { op }));
        }
        for barrier in leading.barriers {
            self.refuse(barrier.op, Refusal::NotLeader { leader: None });
        }
    }
}
