//! A member of a replicated group: its replica of the agreed log, and a state with everything that is done to it on record.
//! The driver of the machine above the log (the store's front, the cell's master) builds on it.

use crate::disk::SimDisk;
use crate::invariants::LogFact;
use crate::kernel::{Effect, HostId, NoStart, Seat};
use crate::model::{self, Replica, Temper};
use crate::mutant::Mutant;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Position, SnapshotChunks, StateFailure};
use tidings_base::{LogIndex, Machine, Mono, NodeId, Now, OpId, Outbox, Seeded};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The first byte of a message between replicas: no frame begins with it (it would be field 0).
const REPLICA_MESSAGE: u8 = 0;

/// What a replica says in a message, if it is one between replicas.
pub fn replica_message(bytes: &Bytes) -> Option<Bytes> {
    (bytes.first() == Some(&REPLICA_MESSAGE)).then(|| bytes.slice(1..))
}

/// The replica's name on a host.
fn node_of(host: HostId) -> NodeId {
    NodeId(u64::from(host.0))
}

fn host_of(node: NodeId) -> HostId {
    HostId(u32::try_from(node.0).unwrap_or(u32::MAX))
}

/// The digest of a command; the log's own entries have none.
pub fn digest(command: &[u8]) -> u64 {
    if command.is_empty() { 0 } else { xxh3_64(command).max(1) }
}

/// How the replica of a host is made.
pub fn config(
    seat: &Seat,
    members: &[HostId],
    lease: Duration,
    temper: Temper,
    mutant: Option<Mutant>,
) -> model::Config {
    model::Config {
        id: node_of(seat.host),
        members: members.iter().copied().map(node_of).collect(),
        lease,
        picture_every: 400,
        life: seat.replacements,
        temper,
        mutant,
    }
}

/// Watches entries as they go into the state of a replica.
pub trait Witness<S: AgreedState>: Send + 'static {
    /// What the scenario's processes state.
    type Fact: From<LogFact>;

    /// Applies entries under its eyes.
    fn apply(&mut self, state: &mut S, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        state.apply(entries, note)
    }

    /// Tells what it has seen.
    fn tell(&mut self, _out: &mut Outbox<Effect<Self::Fact>>) {}
}

/// Nobody watches but the claims about the log.
pub struct Unwatched<F>(PhantomData<fn() -> F>);

impl<F> Default for Unwatched<F> {
    fn default() -> Unwatched<F> {
        Unwatched(PhantomData)
    }
}

impl<S: AgreedState, F: From<LogFact> + 'static> Witness<S> for Unwatched<F> {
    type Fact = F;
}

/// The state of one replica, with everything that is done to it on record.
pub struct Recorded<S, W> {
    state: S,
    witness: W,
    log: Vec<LogFact>,
}

impl<S: AgreedState, W> Recorded<S, W> {
    /// A state that this witness watches.
    pub fn new(state: S, witness: W) -> Recorded<S, W> {
        Recorded { state, witness, log: Vec::new() }
    }

    /// How far the state is, and a digest of all of it.
    fn digest(&mut self) -> Result<(LogIndex, u64), StateFailure> {
        let mut hash = Xxh3::new();
        let mut chunks = self.state.snapshot()?;
        while let Some(chunk) = chunks.next_chunk()? {
            hash.update(&chunk);
        }
        Ok((self.state.position().index, hash.digest()))
    }
}

impl<S: AgreedState, W: Witness<S>> AgreedState for Recorded<S, W> {
    fn position(&self) -> Position {
        self.state.position()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let results = self.witness.apply(&mut self.state, entries, note)?;
        for (entry, result) in entries.iter().zip(&results) {
            let (command, result) = (digest(entry.command), xxh3_64(result));
            self.log.push(LogFact::Applied { index: entry.index, command, result });
        }
        Ok(results)
    }

    fn is_durable(&self) -> bool {
        self.state.is_durable()
    }

    fn flush(&mut self) -> Result<(), StateFailure> {
        self.state.flush()
    }

    fn snapshot(&mut self) -> Result<Box<dyn SnapshotChunks>, StateFailure> {
        self.state.snapshot()
    }

    fn restore(&mut self, position: Position, chunks: &mut dyn SnapshotChunks) -> Result<(), StateFailure> {
        self.log.push(LogFact::Restored { index: position.index });
        self.state.restore(position, chunks)
    }
}

/// What the driver of the machine above has to do next.
pub enum Next<O> {
    /// Tell the machine what the log says.
    Heard(Heard),
    /// Perform what the machine wants.
    Wants(O),
}

enum Todo<O> {
    Replica(model::Output),
    Above(O),
}

/// A replica under its driver; `O` is what the machine above wants.
pub struct Member<S: AgreedState, W: Witness<S>, O> {
    replica: Replica<Recorded<S, W>>,
    /// Digests of what was proposed here.
    commands: BTreeMap<OpId, u64>,
    todo: VecDeque<Todo<O>>,
    outputs: Outbox<model::Output>,
}

impl<S: AgreedState, W: Witness<S>, O> Member<S, W, O> {
    /// Starts from the disk.
    pub fn start(
        config: model::Config,
        state: Recorded<S, W>,
        disk: SimDisk,
        now: Now,
        rng: Seeded,
        out: &mut Outbox<Effect<W::Fact>>,
    ) -> Result<Member<S, W, O>, NoStart> {
        let life = config.life;
        let mut outputs = Outbox::new();
        let replica = Replica::start(config, Arc::new(disk), state, now, rng, &mut outputs)?;
        let started = LogFact::Started { last: LogIndex(replica.storage().last()), life };
        out.put(Effect::Fact(started.into()));
        Ok(Member { replica, commands: BTreeMap::new(), todo: VecDeque::new(), outputs })
    }

    /// The state, to read.
    pub fn state(&self) -> &S {
        &self.replica.state().state
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        self.replica.is_leader()
    }

    /// Whether it holds everything that it ever promised.
    pub fn is_whole(&self) -> bool {
        !self.replica.storage().ballot().learner
    }

    /// Up to where its log is agreed.
    pub fn commit(&self) -> LogIndex {
        self.replica.commit()
    }

    /// How far the state is, and a digest of all of it.
    pub fn state_digest(&mut self) -> Result<(LogIndex, u64), String> {
        self.replica.state_mut().digest().map_err(|failure| failure.what)
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.replica.deadline()
    }

    /// A message of another replica.
    pub fn message(&mut self, now: Now, from: HostId, bytes: Bytes) {
        self.feed(now, model::Input::Message { from: node_of(from), bytes });
    }

    /// The disk has had its time.
    pub fn disk_done(&mut self, now: Now) {
        self.feed(now, model::Input::DiskDone);
    }

    /// The machine above asks.
    pub fn ask(&mut self, now: Now, ask: Ask) {
        self.feed(now, model::Input::Ask(ask));
    }

    fn feed(&mut self, now: Now, input: model::Input) {
        self.replica.handle(now, input, &mut self.outputs);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now) {
        self.replica.wake(now, &mut self.outputs);
    }

    /// A command is proposed here: states that, and names it by its digest.
    pub fn proposed(&mut self, op: OpId, command: &[u8], out: &mut Outbox<Effect<W::Fact>>) -> u64 {
        let command = digest(command);
        self.commands.insert(op, command);
        out.put(Effect::Fact(LogFact::Proposed { command }.into()));
        command
    }

    /// What is to be done next, in the order in which it was wanted. What the replica wants of the world goes out on the way.
    pub fn next(&mut self, above: &mut Outbox<O>, out: &mut Outbox<Effect<W::Fact>>) -> Option<Next<O>> {
        loop {
            self.todo.extend(self.outputs.drain().map(Todo::Replica));
            self.todo.extend(above.drain().map(Todo::Above));
            let recorded = self.replica.state_mut();
            recorded.log.drain(..).for_each(|fact| out.put(Effect::Fact(fact.into())));
            recorded.witness.tell(out);
            match self.todo.pop_front()? {
                Todo::Above(output) => return Some(Next::Wants(output)),
                Todo::Replica(output) => {
                    if let Some(heard) = self.perform(output, out) {
                        return Some(Next::Heard(heard));
                    }
                }
            }
        }
    }

    fn perform(&mut self, output: model::Output, out: &mut Outbox<Effect<W::Fact>>) -> Option<Heard> {
        let mut state = |fact: LogFact| out.put(Effect::Fact(fact.into()));
        match output {
            model::Output::Send { to, bytes } => {
                let mut tagged = BytesMut::with_capacity(bytes.len() + 1);
                tagged.put_u8(REPLICA_MESSAGE);
                tagged.put_slice(&bytes);
                out.put(Effect::Send { to: host_of(to), bytes: tagged.freeze() });
            }
            model::Output::DiskWait => out.put(Effect::DiskWait { token: 0 }),
            model::Output::Durable { index } => state(LogFact::Durable { index }),
            model::Output::Alarm(what) => state(LogFact::Alarm(what)),
            model::Output::Stop(why) => out.put(Effect::Exit { why }),
            model::Output::Heard(heard) => {
                match &heard {
                    Heard::Role(role) => state(LogFact::Role(*role)),
                    Heard::LeaseUntil(until) => state(LogFact::LeaseUntil(*until)),
                    Heard::Applied { op, index, .. } => {
                        if let Some(command) = self.commands.remove(op) {
                            state(LogFact::Answered { index: *index, command });
                        }
                    }
                    Heard::Refused { op, .. } | Heard::Unknown { op } => {
                        self.commands.remove(op);
                    }
                    Heard::Passed { .. } => {}
                }
                return Some(heard);
            }
        }
        None
    }
}
