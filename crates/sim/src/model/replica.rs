//! The replica: its state, its inputs and its outputs.

use super::following::Learning;
use super::leading::{Leading, Progress};
use super::message::Message;
use super::storage::Storage;
use crate::kernel::NoStart;
use crate::mutant::Mutant;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Heard, Refusal, Role};
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

/// The most entries in one message.
pub(super) const BATCH: usize = 64;

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
    pub(super) verified: (u64, u64, u64),
    pub(super) learning: Learning,
    pub(super) out: Vec<Output>,
    pub(super) failed: Option<String>,
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
        let silent_until = if (blank && config.life == 0) || config.mutant == Some(Mutant::ForgottenLease) {
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
