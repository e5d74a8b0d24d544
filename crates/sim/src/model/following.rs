//! What followers do: take entries and pictures, and, with a new disk, learn their way back to a vote.

use super::applying::Chunks;
use super::message::Message;
use super::replica::{Output, Phase, Replica, Timer};
use super::storage::Picture;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use tidings_base::agreed::{AgreedState, Position, Role};
use tidings_base::{LogIndex, NodeId, Now};

/// What a replica with a new disk has learnt so far.
pub(super) struct Learning {
    pub nonce: u64,
    /// What each of the others said its term and last entry were.
    pub answers: BTreeMap<NodeId, (u64, (u64, u64))>,
}

impl<S: AgreedState> Replica<S> {
    /// Tells the leader how much is durable now.
    pub(super) fn report_durable(&mut self) {
        let (term, index, round) = self.verified;
        if let (Some(leader), true) = (self.leader, term == self.term()) {
            self.reply_append(leader, round, true, index.min(self.storage.durable()));
        }
    }

    pub(super) fn reply_append(&mut self, to: NodeId, round: u64, success: bool, index: u64) {
        let (term, learner) = (self.term(), self.storage.ballot().learner);
        let life = self.config.life;
        self.send(to, Message::AppendReply { term, round, life, learner, success, index });
    }

    /// A message of a leader: whether it leads in the present term.
    pub(super) fn heard_leader(&mut self, now: Now, from: NodeId, term: u64, round: u64) -> bool {
        if term < self.term() {
            self.reply_append(from, round, false, self.storage.last());
            return false;
        }
        if term > self.term() || !matches!(self.phase, Phase::Follower) {
            if matches!(self.phase, Phase::Leader(_)) && term == self.term() {
                self.out.push(Output::Alarm(format!("{from} leads in term {term} and so do I, {}", self.config.id)));
                return false;
            }
            self.step_down(now, term);
        }
        self.heard_at = Some(now.mono);
        self.leader = Some(from);
        self.tell_role(Role::Follower { leader: Some(from) });
        self.set_election_timer(now.mono);
        true
    }

    pub(super) fn append_entries(
        &mut self,
        from: NodeId,
        round: u64,
        prev: (u64, u64),
        commit: u64,
        mut entries: Vec<(u64, Bytes)>,
    ) {
        let (mut prev_term, mut prev_index) = prev;
        let have = self.storage.picture().last.1.min(self.commit);
        if prev_index < have {
            // What the picture covers is committed and needs no comparison.
            let skip = usize::try_from(have - prev_index).unwrap_or(usize::MAX).min(entries.len());
            let skipped: Vec<_> = entries.drain(..skip).collect();
            prev_index += skipped.len() as u64;
            prev_term = skipped.last().map_or(prev_term, |(term, _)| *term);
            if prev_index < have {
                let index = prev_index.min(self.storage.durable());
                return self.reply_append(from, round, true, index);
            }
        }
        if self.storage.term_at(prev_index) != Some(prev_term) {
            let hint = self.storage.last().min(prev_index.saturating_sub(1)).max(self.commit.min(prev_index));
            return self.reply_append(from, round, false, hint);
        }
        if let Err(error) = self.take_entries(prev_index, &mut entries) {
            return self.fail(error);
        }
        let verified = prev_index + entries.len() as u64;
        let known = if self.verified.0 == self.term() { self.verified.1.max(verified) } else { verified };
        self.verified = (self.term(), known, round);
        self.commit_to(commit.min(verified));
        self.reply_append(from, round, true, known.min(self.storage.durable()));
    }

    /// Appends what is new, dropping what contradicts it. `entries` stays whole.
    fn take_entries(&mut self, prev_index: u64, entries: &mut [(u64, Bytes)]) -> io::Result<()> {
        for (i, (term, _)) in entries.iter().enumerate() {
            let index = prev_index + 1 + i as u64;
            match self.storage.term_at(index) {
                Some(known) if known == *term => continue,
                Some(_) => {
                    if index <= self.commit {
                        let alarm = format!("entry {index} was committed here and another leader replaces it");
                        self.out.push(Output::Alarm(alarm));
                    }
                    // Said before it is done: a cut that fails half-way may have happened.
                    let left = LogIndex(self.storage.durable().min(index - 1));
                    self.out.push(Output::Durable { index: left });
                    self.storage.truncate_after(index - 1)?;
                }
                None => {}
            }
            return self.storage.append(entries[i..].to_vec());
        }
        Ok(())
    }

    fn commit_to(&mut self, index: u64) {
        self.commit = self.commit.max(index.min(self.storage.last()));
    }

    pub(super) fn install(&mut self, from: NodeId, round: u64, last: (u64, u64), bytes: Bytes) {
        if last.1 > self.commit {
            let position = Position { index: LogIndex(last.1), note: Bytes::new() };
            if let Err(failure) = self.state.restore(position, &mut Chunks(bytes.clone())) {
                return self.fail(failure);
            }
            if let Err(error) = self.storage.take_picture(Picture { last, bytes }) {
                return self.fail(error);
            }
            self.commit = last.1;
            self.verified = (self.term(), last.1, round);
        }
        self.reply_append(from, round, true, last.1.min(self.storage.durable()));
    }

    /// A replica with a new disk may vote again once it holds all that its old disk can have helped to commit.
    ///
    /// Everybody else has told a term and a last entry since the disk was replaced. The leader's term is at least all
    /// of those, so no forgotten vote was for a higher one; an entry of the leader's own term is committed, so its log
    /// holds what earlier leaders committed; and this log now reaches as far as anybody's did, so it also holds what the
    /// present leader committed with the old disk's help.
    pub(super) fn caught_up(&mut self, commit: u64, term: u64) {
        let mut ballot = self.storage.ballot();
        let others = self.config.members.len() - 1;
        if !ballot.learner || self.learning.answers.len() < others {
            return;
        }
        let floor = self.learning.answers.values().map(|(term, _)| *term).max().unwrap_or(0);
        let furthest = self.learning.answers.values().map(|(_, last)| *last).max().unwrap_or((0, 0));
        let own_term_committed = self.storage.term_at(commit) == Some(term);
        let holds = self.commit >= commit && self.storage.durable() == self.storage.last();
        if term >= floor && own_term_committed && holds && self.storage.last_entry() >= furthest {
            ballot.learner = false;
            // What was voted in this term is forgotten: no second vote in it.
            ballot.voted.get_or_insert(self.config.id);
            self.storage.set_ballot(ballot);
            self.timers.cancel(&Timer::Learn);
        }
    }

    pub(super) fn ask_terms(&mut self, now: Now) {
        if self.storage.ballot().learner {
            let (nonce, life) = (self.learning.nonce, self.config.life);
            self.send_to_others(&Message::TermQuery { nonce, life });
            self.timers.set(Timer::Learn, now.mono + self.config.lease / 2);
        }
    }
}
