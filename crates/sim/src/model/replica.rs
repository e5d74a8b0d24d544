//! The replica: its state, its inputs, and what followers do.

use super::leading::{Leading, Progress};
use super::message::Message;
use super::storage::{Picture, Storage};
use crate::kernel::NoStart;
use crate::mutant::Mutant;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Position, Refusal, Role, SnapshotChunks, StateFailure};
use tidings_base::disk::Disk;
use tidings_base::time::stretched;
use tidings_base::{LogIndex, Machine, Mono, NodeId, Now, OpId, Outbox, Seeded, Timers};

/// How far the adversary inside the replica may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Temper {
    /// A leader gives up for no reason once in so many signs of life; 0 = never.
    pub abdicates: u64,
    /// An election time-out is far too short once in so many; 0 = never.
    pub hasty: u64,
}

/// What a replica is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its own name.
    pub id: NodeId,
    /// All members, itself included.
    pub members: Vec<NodeId>,
    /// The leader's lease. Signs of life are sent four times as often.
    pub lease: Duration,
    /// A picture of the state is taken after so many entries.
    pub picture_every: u64,
    /// How often this replica's disk was replaced.
    pub life: u64,
    /// The adversary.
    pub temper: Temper,
    /// A deliberate bug.
    pub mutant: Option<Mutant>,
}

impl Config {
    /// How many make a majority.
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().copied().filter(|node| *node != self.id)
    }
}

/// What a replica is fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A request of the machine above.
    Ask(Ask),
    /// A message of another replica.
    Message {
        /// The sender.
        from: NodeId,
        /// An encoded [`Message`].
        bytes: Bytes,
    },
    /// The disk has had its time.
    DiskDone,
}

/// What a replica wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send to another replica.
    Send {
        /// The receiver.
        to: NodeId,
        /// An encoded [`Message`].
        bytes: Bytes,
    },
    /// For the machine above.
    Heard(Heard),
    /// Come back with [`Input::DiskDone`] when the disk has had its time.
    DiskWait,
    /// Up to here everything survives a power loss.
    Durable {
        /// The last durable index.
        index: LogIndex,
    },
    /// Something happened that the protocol rules out: a finding.
    Alarm(String),
    /// The replica cannot go on: its disk or its state failed.
    Stop(String),
}

/// The timers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// No leader was heard for long enough: try to become one.
    Election,
    /// The leader gives a sign of life.
    Beat,
    /// A replica with a new disk asks the others for their terms again.
    Learn,
}

pub(super) enum Phase {
    Follower,
    /// Asks whether an election would succeed; nothing is promised yet.
    Sounding {
        votes: BTreeSet<NodeId>,
    },
    Candidate {
        votes: BTreeSet<NodeId>,
    },
    Leader(Leading),
}

/// What a replica with a new disk has learnt so far.
pub(super) struct Learning {
    nonce: u64,
    /// What each of the others said its term and last entry were.
    answers: BTreeMap<NodeId, (u64, (u64, u64))>,
}

/// The most entries in one message.
pub(super) const BATCH: usize = 64;

/// Entries that are kept behind a picture, so that a replica that lags a little needs no picture.
const SPARE_ENTRIES: u64 = 50;

/// One replica, over the state `S`.
pub struct Replica<S> {
    pub(super) config: Config,
    pub(super) rng: Seeded,
    pub(super) storage: Storage,
    pub(super) state: S,
    pub(super) phase: Phase,
    pub(super) leader: Option<NodeId>,
    /// When the last evidence of a leader was had: no vote for another within a lease of it.
    pub(super) heard_at: Option<Mono>,
    /// A restarted replica does not know what it had promised: no vote before this.
    pub(super) silent_until: Mono,
    pub(super) commit: u64,
    pub(super) told: Role,
    pub(super) timers: Timers<Timer>,
    /// Messages that may leave only when the ballot they rest on is durable.
    held: Vec<(NodeId, Message)>,
    waiting: bool,
    /// In this term, the log equals the leader's up to this index; and the round to answer for.
    verified: (u64, u64, u64),
    learning: Learning,
    pub(super) out: Vec<Output>,
    failed: Option<String>,
}

impl<S: AgreedState> Replica<S> {
    /// Starts a replica from its disk, with a state that is empty or durable by itself.
    pub fn start(
        config: Config,
        disk: Arc<dyn Disk>,
        state: S,
        now: Now,
        rng: Seeded,
        out: &mut Outbox<Output>,
    ) -> Result<Replica<S>, NoStart> {
        let storage = Storage::open(disk, config.life > 0, config.mutant)?;
        let blank = storage.ballot() == Default::default() && storage.last() == 0;
        let silent_until = if blank && config.life == 0 {
            now.mono // Nothing was ever promised here.
        } else {
            now.mono + stretched(config.lease)
        };
        let mut replica = Replica {
            config,
            rng,
            storage,
            state,
            phase: Phase::Follower,
            leader: None,
            heard_at: None,
            silent_until,
            commit: 0,
            told: Role::Follower { leader: None },
            timers: Timers::new(),
            held: Vec::new(),
            waiting: false,
            verified: (0, 0, 0),
            learning: Learning { nonce: 0, answers: BTreeMap::new() },
            out: Vec::new(),
            failed: None,
        };
        replica.restore().map_err(|failure| NoStart::Failed(failure.what))?;
        replica.learning.nonce = replica.rng.next_u64();
        replica.set_election_timer(now.mono);
        if replica.storage.ballot().learner {
            replica.timers.set(Timer::Learn, now.mono);
        }
        replica.finish(out);
        Ok(replica)
    }

    /// The state, for reading.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The state, for what a driver keeps with it. Only the log may change what it holds.
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    /// Up to here entries are known to be committed, and applied.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.commit)
    }

    /// What is on the disk.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Whether it leads and has said so.
    pub fn is_leader(&self) -> bool {
        matches!(self.told, Role::Leader { .. })
    }

    fn restore(&mut self) -> Result<(), StateFailure> {
        let picture = self.storage.picture().clone();
        let index = LogIndex(picture.last.1);
        if self.state.position().index < index {
            self.state.restore(Position { index, note: Bytes::new() }, &mut Chunks(picture.bytes))?;
        }
        self.commit = self.state.position().index.0;
        Ok(())
    }

    pub(super) fn term(&self) -> u64 {
        self.storage.ballot().term
    }

    /// Sends a message, or holds it until the ballot it rests on is durable.
    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        if self.storage.ballot_dirty() {
            self.held.push((to, message));
        } else {
            self.out.push(Output::Send { to, bytes: message.encode() });
        }
    }

    pub(super) fn send_to_others(&mut self, message: &Message) {
        for to in self.config.others().collect::<Vec<_>>() {
            self.send(to, message.clone());
        }
    }

    pub(super) fn fail(&mut self, what: impl ToString) {
        self.failed.get_or_insert(what.to_string());
    }

    pub(super) fn tell_role(&mut self, role: Role) {
        if role != self.told {
            self.told = role;
            self.out.push(Output::Heard(Heard::Role(role)));
        }
    }

    /// After every input: what is dirty waits for the disk, what is put goes out.
    fn finish(&mut self, out: &mut Outbox<Output>) {
        if self.storage.dirty() && !self.waiting {
            self.waiting = true;
            self.out.push(Output::DiskWait);
        }
        if let Some(why) = self.failed.take() {
            self.out.push(Output::Stop(why));
        }
        self.out.drain(..).for_each(|output| out.put(output));
    }

    fn flushed(&mut self, now: Now) {
        self.waiting = false;
        if let Err(error) = self.storage.flush() {
            return self.fail(error);
        }
        self.out.push(Output::Durable { index: LogIndex(self.storage.durable()) });
        for (to, message) in std::mem::take(&mut self.held) {
            self.send(to, message);
        }
        match &self.phase {
            Phase::Candidate { .. } => self.count_own_vote(now),
            Phase::Leader(_) => self.advance_commit(),
            Phase::Follower | Phase::Sounding { .. } => self.report_durable(),
        }
    }

    /// Tells the leader how much is durable now.
    fn report_durable(&mut self) {
        let (term, index, round) = self.verified;
        if let (Some(leader), true) = (self.leader, term == self.term()) {
            self.reply_append(leader, round, true, index.min(self.storage.durable()));
        }
    }

    fn reply_append(&mut self, to: NodeId, round: u64, success: bool, index: u64) {
        let (term, learner) = (self.term(), self.storage.ballot().learner);
        let life = self.config.life;
        self.send(to, Message::AppendReply { term, round, life, learner, success, index });
    }

    fn receive(&mut self, now: Now, from: NodeId, message: Message) {
        match message {
            Message::Vote { term, pre, last } => self.vote_asked(now, from, term, pre, last),
            Message::VoteReply { term, pre, granted } => self.vote_answered(now, from, term, pre, granted),
            Message::Append { term, round, prev, commit, entries } => {
                if self.heard_leader(now, from, term, round) {
                    self.append_entries(from, round, prev, commit, entries);
                    self.apply_committed();
                    self.caught_up(commit, term);
                }
            }
            Message::Snapshot { term, round, last, picture } => {
                if self.heard_leader(now, from, term, round) {
                    self.install(from, round, last, picture);
                }
            }
            Message::AppendReply { term, round, life, learner, success, index } => {
                if term > self.term() {
                    self.step_down(now, term);
                } else if term == self.term() {
                    let reply = Progress { matched: index, life, learner, round, ..Progress::default() };
                    self.append_answered(from, reply, success);
                }
            }
            Message::TermQuery { nonce, life } => {
                if let Phase::Leader(leading) = &mut self.phase {
                    leading.disk_replaced(from, life);
                }
                // A term that is not durable is not told: the answer waits for the ballot like everything else.
                let (term, last) = (self.term(), self.storage.last_entry());
                if !self.storage.ballot().learner {
                    self.send(from, Message::TermReply { nonce, term, last });
                }
            }
            Message::TermReply { nonce, term, last } => {
                if nonce == self.learning.nonce {
                    self.learning.answers.insert(from, (term, last));
                }
            }
        }
    }

    /// A message of a leader: whether it leads in the present term.
    fn heard_leader(&mut self, now: Now, from: NodeId, term: u64, round: u64) -> bool {
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

    fn append_entries(
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
                    self.storage.truncate_after(index - 1)?;
                    let index = LogIndex(self.storage.durable());
                    self.out.push(Output::Durable { index });
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

    fn install(&mut self, from: NodeId, round: u64, last: (u64, u64), bytes: Bytes) {
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
    fn caught_up(&mut self, commit: u64, term: u64) {
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

    fn ask_terms(&mut self, now: Now) {
        if self.storage.ballot().learner {
            let (nonce, life) = (self.learning.nonce, self.config.life);
            self.send_to_others(&Message::TermQuery { nonce, life });
            self.timers.set(Timer::Learn, now.mono + self.config.lease / 2);
        }
    }

    /// Applies everything that is committed, and answers for it.
    pub(super) fn apply_committed(&mut self) {
        let applied = self.state.position().index.0;
        if self.commit <= applied || self.failed.is_some() {
            return;
        }
        let mut batch: Vec<(u64, Bytes)> = Vec::new();
        for index in applied + 1..=self.commit {
            match self.storage.entry(index) {
                Some((_, command)) => batch.push((index, command.clone())),
                None => return self.fail(format!("committed entry {index} is not in the log")),
            }
        }
        self.mutate(&mut batch);
        let entries: Vec<Entry<'_>> =
            batch.iter().map(|(index, command)| Entry { index: LogIndex(*index), command }).collect();
        let results = match self.state.apply(&entries, Bytes::new()) {
            Ok(results) => results,
            Err(failure) => return self.fail(failure),
        };
        for ((index, _), result) in batch.iter().zip(results) {
            self.answer(*index, result);
        }
        self.announce();
        self.picture_if_due();
    }

    fn mutate(&mut self, batch: &mut [(u64, Bytes)]) {
        if self.config.mutant == Some(Mutant::ReorderedApply) && batch.len() > 1 {
            let first = std::mem::take(&mut batch[0].1);
            batch[0].1 = std::mem::replace(&mut batch[1].1, first);
        }
    }

    fn picture_if_due(&mut self) {
        let index = self.state.position().index.0;
        if self.state.is_durable() || index < self.storage.picture().last.1 + self.config.picture_every {
            return;
        }
        let Some(term) = self.storage.term_at(index) else { return };
        let picture = self.state.snapshot().and_then(|mut chunks| gather(chunks.as_mut()));
        let kept = match picture {
            Ok(bytes) => self.storage.keep_picture(Picture { last: (term, index), bytes }, SPARE_ENTRIES),
            Err(failure) => return self.fail(failure),
        };
        if let Err(error) = kept {
            self.fail(error);
        }
    }

    fn ask(&mut self, now: Now, ask: Ask) {
        match ask {
            Ask::Propose { op, command } => self.propose(op, command),
            Ask::ReadBarrier { op } => self.read_barrier(now, op),
        }
    }

    pub(super) fn refuse(&mut self, op: OpId, refusal: Refusal) {
        self.out.push(Output::Heard(Heard::Refused { op, refusal }));
    }

    pub(super) fn not_leader(&self) -> Refusal {
        let leader = self.leader.filter(|leader| *leader != self.config.id);
        Refusal::NotLeader { leader }
    }
}

impl<S: AgreedState> Machine for Replica<S> {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Ask(ask) => self.ask(now, ask),
            Input::Message { from, bytes } => {
                if let Some(message) = Message::decode(bytes) {
                    self.receive(now, from, message);
                }
            }
            Input::DiskDone => self.flushed(now),
        }
        self.finish(out);
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Election => self.election_due(now),
                Timer::Beat => self.beat(now),
                Timer::Learn => self.ask_terms(now),
            }
        }
        self.finish(out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}

/// A picture's chunks, each behind its length.
struct Chunks(Bytes);

impl SnapshotChunks for Chunks {
    fn next_chunk(&mut self) -> Result<Option<Bytes>, StateFailure> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let len = self.0.try_get_u32_le().ok().and_then(|len| usize::try_from(len).ok());
        match len.filter(|len| *len <= self.0.len()) {
            Some(len) => Ok(Some(self.0.split_to(len))),
            None => Err(StateFailure::new("a picture ends in the middle of a chunk")),
        }
    }
}

fn gather(chunks: &mut dyn SnapshotChunks) -> Result<Bytes, StateFailure> {
    let mut out = BytesMut::new();
    while let Some(chunk) = chunks.next_chunk()? {
        out.put_u32_le(u32::try_from(chunk.len()).map_err(|_| StateFailure::new("a chunk is too large"))?);
        out.put_slice(&chunk);
    }
    Ok(out.freeze())
}
