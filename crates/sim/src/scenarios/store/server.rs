//! A server: a member of the group, and the store's front above it.

use crate::disk::SimDisk;
use crate::invariants::LogFact;
use crate::kernel::{Effect, HostId, NoStart};
use crate::model;
use crate::scenarios::member::{Member, Next, Recorded, Unwatched, replica_message};
use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::agreed::Ask;
use tidings_base::{Class, Error, Machine, Mono, Now, OpId, Outbox, Seeded};
use tidings_store::read::{Unread, join_frames};
use tidings_store::{Front, Input, MemoryKv, Options, Output, Reply, Request, StoreState};
use tidings_wire::v1::{self, frame::Body, store_command::Command, store_message};
use tidings_wire::{Frame, codec, limits};

/// A member of the store's group; `F` is what processes of the scenario state.
pub type StoreMember<F> = Member<StoreState<MemoryKv>, Unwatched<F>, Output>;

/// One server.
pub struct Server<F: From<LogFact> + 'static> {
    member: StoreMember<F>,
    front: Front,
    /// Who waits for each of the front's operations.
    clients: BTreeMap<OpId, (HostId, u64)>,
    next_op: u64,
    front_out: Outbox<Output>,
}

impl<F: From<LogFact> + 'static> Server<F> {
    /// Starts from the disk.
    pub fn start(
        config: model::Config,
        disk: SimDisk,
        now: Now,
        rng: Seeded,
        out: &mut Outbox<Effect<F>>,
    ) -> Result<Server<F>, NoStart> {
        let state = StoreState::open(MemoryKv::new()).map_err(|failure| NoStart::Failed(failure.what))?;
        let state = Recorded::new(state, Unwatched::default());
        let member = Member::start(config, state, disk, now, rng, out)?;
        let front = Front::new(Options::default());
        let mut server = Server { member, front, clients: BTreeMap::new(), next_op: 1, front_out: Outbox::new() };
        server.work(now, out);
        Ok(server)
    }

    /// Its place in the group.
    pub fn member(&self) -> &StoreMember<F> {
        &self.member
    }

    /// Its place in the group.
    pub fn member_mut(&mut self) -> &mut StoreMember<F> {
        &mut self.member
    }

    /// Whether every group of every topic named has acknowledged everything.
    pub fn all_acknowledged(&self, topics: &[(Bytes, Vec<Bytes>)]) -> bool {
        let reader = self.member.state().reader();
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
        [self.member.deadline(), self.front.deadline()].into_iter().flatten().min()
    }

    /// The disk has had its time.
    pub fn disk_done(&mut self, now: Now, out: &mut Outbox<Effect<F>>) {
        self.member.disk_done(now);
        self.work(now, out);
    }

    /// A message of another replica, or a frame of a client.
    pub fn message(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Outbox<Effect<F>>) {
        if let Some(said) = replica_message(bytes) {
            self.member.message(now, from, said);
            return self.work(now, out);
        }
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

    /// A command of an operator, or of whoever leads; nobody waits for its answer.
    pub fn operate(&mut self, now: Now, command: Command, out: &mut Outbox<Effect<F>>) {
        let op = OpId(self.next_op);
        self.next_op += 2;
        let request = Request::Operate(command);
        self.front.handle(now, Input::Request { op, request, deadline: None }, &mut self.front_out);
        self.work(now, out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Outbox<Effect<F>>) {
        self.member.wake(now);
        self.front.wake(now, &mut self.front_out);
        self.work(now, out);
    }

    /// Performs what the two machines want of each other until they want nothing more.
    fn work(&mut self, now: Now, out: &mut Outbox<Effect<F>>) {
        while let Some(next) = self.member.next(&mut self.front_out, out) {
            match next {
                Next::Heard(heard) => self.front.handle(now, Input::Heard(heard), &mut self.front_out),
                Next::Wants(output) => self.perform_front(now, output, out),
            }
        }
    }

    fn perform_front(&mut self, now: Now, output: Output, out: &mut Outbox<Effect<F>>) {
        match output {
            Output::Ask(ask) => {
                if let Ask::Propose { op, command } = &ask {
                    self.member.proposed(*op, command, out);
                }
                self.member.ask(now, ask);
            }
            Output::Read { op, query } => {
                let mut frames = Vec::new();
                match self.member.state().reader().answer(&query, &mut |message, _| frames.push(message)) {
                    Ok(()) => self.answer(op, Body::Store(v1::StoreMessage { message: joined(frames) }), out),
                    Err(Unread::Failed(failure)) => out.put(Effect::Exit { why: failure.what }),
                    Err(large) => self.answer(op, tidings_wire::error::body(large.into_error()), out),
                }
            }
            Output::Look { line, query } => {
                let answer = self.member.state().reader().feed(&query);
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
                self.answer(op, body, out);
            }
        }
    }

    fn answer(&mut self, op: OpId, body: Body, out: &mut Outbox<Effect<F>>) {
        if let Some((client, client_op)) = self.clients.remove(&op) {
            let frame = Frame { op: client_op, more: false, body: Some(body) };
            out.put(Effect::Send { to: client, bytes: codec::to_bytes(&frame) });
        }
    }
}

/// Frames of one answer as one: connections keep their order and lose none of them, which this network does not.
fn joined(mut frames: Vec<store_message::Message>) -> Option<store_message::Message> {
    if frames.len() < 2 {
        return frames.pop();
    }
    let rows = frames.into_iter().filter_map(|frame| match frame {
        store_message::Message::Rows(rows) => Some(rows),
        _ => None,
    });
    Some(store_message::Message::Rows(join_frames(rows)))
}
