//! A server: replica, state and front under one driver.

use super::REPLICA_MESSAGE;
use super::fact::StoreFact;
use crate::disk::SimDisk;
use crate::invariants::LogFact;
use crate::kernel::{Effect, HostId, NoStart};
use crate::model::{self, Replica};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Position, SnapshotChunks, StateFailure};
use tidings_base::{Class, Error, LogIndex, Machine, Mono, NodeId, Now, OpId, Outbox, Seeded};
use tidings_store::kv::{Kv, KvReader, KvView};
use tidings_store::{Front, Input, MemoryKv, Options, Output, Reply, Request, StoreState};
use tidings_wire::v1::{self, frame::Body};
use tidings_wire::{Frame, codec, limits};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The digest of a command; the log's own entries have none.
fn digest(command: &[u8]) -> u64 {
    if command.is_empty() { 0 } else { xxh3_64(command).max(1) }
}

/// The store's state, with everything that is done to it on record.
pub struct Recorded {
    state: StoreState<MemoryKv>,
    facts: Vec<LogFact>,
}

impl AgreedState for Recorded {
    fn position(&self) -> Position {
        self.state.position()
    }

    fn apply(&mut self, entries: &[Entry<'_>], note: Bytes) -> Result<Vec<Bytes>, StateFailure> {
        let results = self.state.apply(entries, note)?;
        for (entry, result) in entries.iter().zip(&results) {
            let (command, result) = (digest(entry.command), xxh3_64(result));
            self.facts.push(LogFact::Applied { index: entry.index, command, result });
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
        self.facts.push(LogFact::Restored { index: position.index });
        self.state.restore(position, chunks)
    }
}

/// What the driver has still to do, in order.
enum Todo {
    Replica(model::Output),
    Front(Output),
}

/// One server.
pub struct Server {
    replica: Replica<Recorded>,
    front: Front,
    /// Who waits for each of the front's operations.
    clients: BTreeMap<OpId, (HostId, u64)>,
    commands: BTreeMap<OpId, u64>,
    next_op: u64,
    todo: VecDeque<Todo>,
    replica_out: Outbox<model::Output>,
    front_out: Outbox<Output>,
}

type Out = Outbox<Effect<StoreFact>>;

/// The replica's name on a host.
pub fn node_of(host: HostId) -> NodeId {
    NodeId(u64::from(host.0))
}

fn host_of(node: NodeId) -> HostId {
    HostId(u32::try_from(node.0).unwrap_or(u32::MAX))
}

fn log(fact: LogFact) -> Effect<StoreFact> {
    Effect::Fact(StoreFact::Log(fact))
}

impl Server {
    /// Starts from the disk.
    pub fn start(
        config: model::Config,
        disk: SimDisk,
        now: Now,
        rng: Seeded,
        out: &mut Out,
    ) -> Result<Server, NoStart> {
        let life = config.life;
        let state = StoreState::open(MemoryKv::new()).map_err(|failure| NoStart::Failed(failure.what))?;
        let recorded = Recorded { state, facts: Vec::new() };
        let mut replica_out = Outbox::new();
        let replica = Replica::start(config, Arc::new(disk), recorded, now, rng, &mut replica_out)?;
        out.put(log(LogFact::Started { last: LogIndex(replica.storage().last()), life }));
        let mut server = Server {
            replica,
            front: Front::new(Options::default()),
            clients: BTreeMap::new(),
            commands: BTreeMap::new(),
            next_op: 1,
            todo: VecDeque::new(),
            replica_out,
            front_out: Outbox::new(),
        };
        server.work(now, out);
        Ok(server)
    }

    /// The replica.
    pub fn replica(&self) -> &Replica<Recorded> {
        &self.replica
    }

    /// How far the state is, and a digest of all of it.
    pub fn state_digest(&self) -> (LogIndex, u64) {
        let state = &self.replica.state().state;
        let mut hash = Xxh3::new();
        let view = state.kv().reader().view();
        let scanned = view.and_then(|view| {
            view.scan(&[], &[], &mut |key, value| {
                hash.update(&(key.len() as u64).to_le_bytes());
                hash.update(&key);
                hash.update(&(value.len() as u64).to_le_bytes());
                hash.update(&value);
                std::ops::ControlFlow::Continue(())
            })
        });
        debug_assert!(scanned.is_ok(), "memory does not fail");
        (state.position().index, hash.digest())
    }

    /// Whether every group of every topic named has acknowledged everything.
    pub fn all_acknowledged(&self, topics: &[(Bytes, Vec<Bytes>)]) -> bool {
        let reader = self.replica.state().state.reader();
        topics.iter().all(|(name, groups)| match reader.topic(name) {
            Ok(Some(topic)) => {
                groups.iter().all(|group| topic.groups.get(group).is_some_and(|acks| acks.floor() >= topic.last))
            }
            Ok(None) => true,
            Err(_) => false,
        })
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        [self.replica.deadline(), self.front.deadline()].into_iter().flatten().min()
    }

    /// A message of another replica.
    pub fn replica_message(&mut self, now: Now, from: HostId, bytes: Bytes, out: &mut Out) {
        let input = model::Input::Message { from: node_of(from), bytes };
        self.replica.handle(now, input, &mut self.replica_out);
        self.work(now, out);
    }

    /// The disk has had its time.
    pub fn disk_done(&mut self, now: Now, out: &mut Out) {
        self.replica.handle(now, model::Input::DiskDone, &mut self.replica_out);
        self.work(now, out);
    }

    /// A frame of a client.
    pub fn client_message(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Ok(frame) = codec::decode(bytes, limits::NODE_FRAME as u32) else { return };
        let request = match frame.body {
            Some(Body::Store(v1::StoreMessage { message: Some(message) })) => Request::Store(message),
            Some(Body::Feed(v1::FeedMessage { message: Some(message) })) => Request::Feed(message),
            _ => return,
        };
        let op = OpId(self.next_op);
        self.next_op += 2;
        self.clients.insert(op, (from, frame.op));
        self.front.handle(now, Input::Request { op, request, deadline: None }, &mut self.front_out);
        self.work(now, out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        self.replica.wake(now, &mut self.replica_out);
        self.front.wake(now, &mut self.front_out);
        self.work(now, out);
    }

    /// Performs what the two machines want of each other until they want nothing more.
    fn work(&mut self, now: Now, out: &mut Out) {
        loop {
            self.todo.extend(self.replica_out.drain().map(Todo::Replica));
            self.todo.extend(self.front_out.drain().map(Todo::Front));
            for fact in self.replica.state_mut().facts.drain(..) {
                out.put(log(fact));
            }
            match self.todo.pop_front() {
                Some(Todo::Replica(output)) => self.perform_replica(now, output, out),
                Some(Todo::Front(output)) => self.perform_front(now, output, out),
                None => return,
            }
        }
    }

    fn perform_replica(&mut self, now: Now, output: model::Output, out: &mut Out) {
        match output {
            model::Output::Send { to, bytes } => {
                let mut tagged = BytesMut::with_capacity(bytes.len() + 1);
                tagged.put_u8(REPLICA_MESSAGE);
                tagged.put_slice(&bytes);
                out.put(Effect::Send { to: host_of(to), bytes: tagged.freeze() });
            }
            model::Output::DiskWait => out.put(Effect::DiskWait { token: 0 }),
            model::Output::Durable { index } => out.put(log(LogFact::Durable { index })),
            model::Output::Alarm(what) => out.put(log(LogFact::Alarm(what))),
            model::Output::Stop(why) => out.put(Effect::Exit { why }),
            model::Output::Heard(heard) => {
                match &heard {
                    Heard::Role(role) => out.put(log(LogFact::Role(*role))),
                    Heard::LeaseUntil(until) => out.put(log(LogFact::LeaseUntil(*until))),
                    Heard::Applied { op, index, .. } => {
                        if let Some(command) = self.commands.remove(op) {
                            out.put(log(LogFact::Answered { index: *index, command }));
                        }
                    }
                    Heard::Refused { op, .. } | Heard::Unknown { op } => {
                        self.commands.remove(op);
                    }
                    Heard::Passed { .. } => {}
                }
                self.front.handle(now, Input::Heard(heard), &mut self.front_out);
            }
        }
    }

    fn perform_front(&mut self, now: Now, output: Output, out: &mut Out) {
        match output {
            Output::Ask(ask) => {
                if let Ask::Propose { op, command } = &ask {
                    let command = digest(command);
                    self.commands.insert(*op, command);
                    out.put(log(LogFact::Proposed { command }));
                }
                self.replica.handle(now, model::Input::Ask(ask), &mut self.replica_out);
            }
            Output::Read { op, query } => {
                let mut frames = Vec::new();
                let answered = self.replica.state().state.reader().answer(&query, &mut |message, more| {
                    let body = Body::Store(v1::StoreMessage { message: Some(message) });
                    frames.push((body, more));
                });
                match answered {
                    Ok(()) => frames.into_iter().for_each(|(body, more)| self.answer(op, body, more, out)),
                    Err(failure) => out.put(Effect::Exit { why: failure.what }),
                }
            }
            Output::Look { line, query } => {
                let answer = self.replica.state().state.reader().feed(&query);
                let answer = answer.map_err(|failure| Error::new("feed.failed", Class::Failed, failure.what));
                self.front.handle(now, Input::Looked { line, answer }, &mut self.front_out);
            }
            Output::Reply { op, reply } => {
                let body = match reply {
                    Reply::Store(message) => Body::Store(v1::StoreMessage { message: Some(message) }),
                    Reply::Feed(message) => Body::Feed(v1::FeedMessage { message: Some(message) }),
                    Reply::Operated(_) => return,
                    Reply::Error { error, leader } => {
                        tidings_wire::error::body(error.redirect(leader.map(|node| node.to_string())))
                    }
                };
                self.answer(op, body, false, out);
            }
        }
    }

    fn answer(&mut self, op: OpId, body: Body, more: bool, out: &mut Out) {
        let waiting = if more { self.clients.get(&op).copied() } else { self.clients.remove(&op) };
        if let Some((client, client_op)) = waiting {
            let frame = Frame { op: client_op, more, body: Some(body) };
            out.put(Effect::Send { to: client, bytes: codec::to_bytes(&frame) });
        }
    }
}
