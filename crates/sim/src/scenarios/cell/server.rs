//! A server: a member of the group, and the cell's master above it.

use super::fact::{CellFact, Fact};
use super::line::Probe;
use super::recorded::{APP, Eyes, SharedSightseer};
use crate::disk::SimDisk;
use crate::kernel::{Effect, HostId, NoStart};
use crate::model;
use crate::scenarios::member::{Member, Next, Recorded, replica_message};
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::PoisonError;
use std::time::Duration;
use tidings_base::agreed::{Ask, Heard, Role};
use tidings_base::{Class, Mono, Now, OpId, Outbox, Seeded};
use tidings_cell::master::{Input, Master, Options, Output};
use tidings_cell::namespace::{CellState, SharedNamespace};
use tidings_wire::v1::{self, cell_command, cell_message::Message, frame::Body};
use tidings_wire::{Frame, codec, limits};

/// Once in so many asks the way from the master to its log is stuck for a while: what it asked then is late, and its
/// leadership may be over.
const STUCK: u64 = 400;
/// For how long at most, in milliseconds.
const STUCK_FOR: (u64, u64) = (50, 9_000);
/// What was asked before a deposition may even be held up until this replica leads again, but no longer than this: the
/// worst moment for a word of a master that is none any more (R1).
const STUCK_DEPOSED: Duration = Duration::from_secs(40);

/// A member of the cell's group.
pub type CellMember = Member<CellState, Eyes, Output>;

/// One server.
pub struct Server {
    member: CellMember,
    master: Master,
    state: SharedNamespace,
    sights: SharedSightseer,
    rng: Seeded,
    /// Who waits for each of the master's operations.
    clients: BTreeMap<OpId, (HostId, u64)>,
    requests: BTreeMap<(HostId, u64), OpId>,
    /// Acquires by operation, to see which of them end in a refusal.
    acquires: BTreeMap<OpId, (u64, u64)>,
    /// The handles of acquires that have come to this master, by session and number.
    queued: BTreeMap<(u64, u64), u64>,
    /// What the master asked of its log and the log has not seen yet, and until when.
    late: VecDeque<Ask>,
    stuck_until: Option<Mono>,
    stuck_deposed: bool,
    adverse: bool,
    next_op: u64,
    master_out: Outbox<Output>,
}

type Out = Outbox<Effect<CellFact>>;

fn cell(fact: Fact) -> Effect<CellFact> {
    Effect::Fact(CellFact::Cell(fact))
}

/// Who a client host is to the cell: every third is another kind of principal.
pub fn caller(host: HostId) -> v1::CellCaller {
    let principal =
        if host.0.is_multiple_of(3) { format!("user:{APP}/u{}", host.0) } else { format!("app:{APP}/k{}", host.0) };
    v1::CellCaller { app: APP.to_string(), principal, privileged: false }
}

impl Server {
    /// Starts from the disk.
    #[allow(clippy::too_many_arguments)] // Everything that a start needs, from one caller.
    pub fn start(
        config: model::Config,
        options: Options,
        sights: SharedSightseer,
        disk: SimDisk,
        adverse: bool,
        now: Now,
        rng: Seeded,
        out: &mut Out,
    ) -> Result<Server, NoStart> {
        let state = CellState::with_mutant(options.mutant);
        let shared = state.shared();
        let recorded = Recorded::new(state, Eyes::new(shared.clone(), sights.clone()));
        let own = rng.fork("driver");
        let member = Member::start(config, recorded, disk, now, rng, out)?;
        let mut server = Server {
            member,
            master: Master::new(options),
            state: shared,
            sights,
            rng: own,
            clients: BTreeMap::new(),
            requests: BTreeMap::new(),
            acquires: BTreeMap::new(),
            queued: BTreeMap::new(),
            late: VecDeque::new(),
            stuck_until: None,
            stuck_deposed: false,
            adverse,
            next_op: 1,
            master_out: Outbox::new(),
        };
        server.work(now, out);
        Ok(server)
    }

    /// Its place in the group.
    pub fn member(&self) -> &CellMember {
        &self.member
    }

    /// Its place in the group.
    pub fn member_mut(&mut self) -> &mut CellMember {
        &mut self.member
    }

    /// The state, to read.
    pub fn state(&self) -> &SharedNamespace {
        &self.state
    }

    /// The faults are over: nothing is late any more.
    pub fn calm(&mut self, now: Now) {
        self.adverse = false;
        self.stuck_until = self.stuck_until.map(|_| now.mono);
    }

    /// From now on what the master asks of its log is held up, until this replica has been deposed and leads again.
    pub fn hold_back(&mut self) {
        self.stuck_until = Some(Mono::NEVER);
        self.stuck_deposed = true;
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        [self.member.deadline(), self.master.deadline(), self.stuck_until].into_iter().flatten().min()
    }

    /// The disk has had its time.
    pub fn disk_done(&mut self, now: Now, out: &mut Out) {
        self.member.disk_done(now);
        self.work(now, out);
    }

    /// A message of another replica, a frame of a client, or a question about its connection.
    pub fn message(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if let Some(said) = replica_message(bytes) {
            self.member.message(now, from, said);
            return self.work(now, out);
        }
        if let Some(probe) = Probe::decode(bytes) {
            return self.probed(now, from, &probe, out);
        }
        let Ok(frame) = codec::decode(bytes, limits::NODE_FRAME as u32) else { return };
        let Some(Body::Cell(mut request)) = frame.body else { return };
        let op = OpId(self.next_op);
        self.next_op += 2;
        self.clients.insert(op, (from, frame.op));
        self.requests.insert((from, frame.op), op);
        request.caller = Some(caller(from));
        self.note_request(op, &request, out);
        self.feed(now, Input::Request { op, request, deadline: None });
        self.work(now, out);
    }

    /// A client asks which of its operations are still known here; what it does not name it has given up.
    fn probed(&mut self, now: Now, from: HostId, probe: &Probe, out: &mut Out) {
        let known = |op: &u64| self.requests.contains_key(&(from, *op));
        let lost = probe.ops.iter().copied().filter(|op| !known(op)).collect();
        let range = (from, 0)..(from, probe.below);
        let given_up = self.requests.range(range).filter(|((_, op), _)| !probe.ops.contains(op));
        let given_up: Vec<((HostId, u64), OpId)> = given_up.map(|(request, op)| (*request, *op)).collect();
        for (request, op) in given_up {
            self.requests.remove(&request);
            self.clients.remove(&op);
            self.acquires.remove(&op);
            self.feed(now, Input::Cancel { op });
        }
        let reply = Probe { reply: true, ops: lost, ..*probe };
        out.put(Effect::Send { to: from, bytes: reply.encode() });
        self.work(now, out);
    }

    fn feed(&mut self, now: Now, input: Input) {
        self.master.handle(now, input, &self.state.read(), &mut self.master_out);
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        if self.stuck_until.is_some_and(|until| until <= now.mono) {
            let deposed = !self.member.is_leader() && !self.late.is_empty();
            if deposed && self.adverse && !std::mem::replace(&mut self.stuck_deposed, true) {
                self.stuck_until = Some(now.mono + STUCK_DEPOSED);
            } else {
                self.unstick(now);
            }
        }
        self.member.wake(now);
        self.master.wake(now, &self.state.read(), &mut self.master_out);
        self.work(now, out);
    }

    /// The way to the log is free again.
    fn unstick(&mut self, now: Now) {
        self.stuck_until = None;
        self.stuck_deposed = false;
        for ask in std::mem::take(&mut self.late) {
            self.member.ask(now, ask);
        }
    }

    /// Performs what the two machines want of each other until they want nothing more.
    fn work(&mut self, now: Now, out: &mut Out) {
        while let Some(next) = self.member.next(&mut self.master_out, out) {
            match next {
                Next::Heard(heard) => self.heard(now, heard, out),
                Next::Wants(output) => self.perform_master(now, output, out),
            }
        }
    }

    fn heard(&mut self, now: Now, heard: Heard, out: &mut Out) {
        if let Heard::Role(role) = &heard {
            self.queued.clear();
            self.acquires.clear();
            if self.stuck_deposed && matches!(role, Role::Leader { .. }) {
                self.unstick(now);
            }
            out.put(cell(Fact::Reigns));
        }
        self.feed(now, Input::Heard(heard));
    }

    fn perform_master(&mut self, now: Now, output: Output, out: &mut Out) {
        match output {
            Output::Ask(ask) => self.ask(now, ask, out),
            Output::Reply { op, message } => {
                self.acquires.remove(&op);
                let message = v1::CellMessage { caller: None, call: None, message: Some(message) };
                self.answer(op, Body::Cell(message), out);
            }
            Output::Fail { op, error, leader } => {
                // Who could not look says nothing of the place, nor of one that another copy of the same acquire has.
                let unseen = matches!(error.class, Class::Unreachable | Class::OutcomeUnknown);
                match self.acquires.remove(&op) {
                    Some((session, number)) if unseen || error.code == "cell.resume" => {
                        out.put(cell(Fact::Unqueued { session, numbers: BTreeSet::from([number]) }));
                    }
                    Some((session, number)) => self.unqueue(session, BTreeSet::from([number]), out),
                    None => {}
                }
                let body = tidings_wire::error::body(error.redirect(leader.map(|node| node.to_string())));
                self.answer(op, body, out);
            }
            Output::Measured(_) => {}
        }
    }

    fn ask(&mut self, now: Now, ask: Ask, out: &mut Out) {
        if let Ask::Propose { op, command } = &ask {
            self.note_proposal(*op, command, out);
        }
        if self.adverse && self.stuck_until.is_none() && self.rng.one_in(STUCK) {
            let wait = Duration::from_millis(self.rng.between(STUCK_FOR.0, STUCK_FOR.1));
            self.stuck_until = Some(now.mono + wait);
        }
        match self.stuck_until {
            Some(_) => self.late.push_back(ask),
            None => self.member.ask(now, ask),
        }
    }

    fn note_proposal(&mut self, op: OpId, bytes: &Bytes, out: &mut Out) {
        let command = self.member.proposed(op, bytes, out);
        let Ok(decoded) = v1::CellCommand::decode(bytes.clone()) else { return };
        let touched = self.state.read().touches(&decoded);
        self.sights.lock().unwrap_or_else(PoisonError::into_inner).proposed(command, &touched);
        if let (Some(cell_command::Command::TakeLock(take)), Some(actor)) = (&decoded.command, &decoded.actor) {
            let (session, number) = (actor.session, actor.number);
            self.queued.remove(&(session, number));
            out.put(cell(Fact::Granting { session, number, path: take.path.clone() }));
        }
    }

    /// Notes which acquires wait at this master, in the order in which they came.
    fn note_request(&mut self, op: OpId, request: &v1::CellMessage, out: &mut Out) {
        let Some(call) = &request.call else { return };
        match &request.message {
            Some(Message::Acquire(acquire)) if !acquire.try_only => {
                self.acquires.insert(op, (call.session, call.number));
                if acquire.waits_as > 0 {
                    return self.note_renumbered(call, acquire.waits_as, out);
                }
                if self.queued.insert((call.session, call.number), acquire.handle).is_none() {
                    out.put(cell(Fact::Queued { session: call.session, number: call.number }));
                }
            }
            Some(Message::CancelAcquire(cancel)) => {
                self.unqueue(call.session, BTreeSet::from([cancel.number]), out);
            }
            Some(Message::Close(close)) => {
                let of_handle =
                    |(waiter, handle): &(&(u64, u64), &u64)| waiter.0 == call.session && **handle == close.handle;
                let numbers: BTreeSet<u64> =
                    self.queued.iter().filter(of_handle).map(|((_, number), _)| *number).collect();
                if !numbers.is_empty() {
                    self.unqueue(call.session, numbers, out);
                }
            }
            // Its place in the queues may be kept or not: nothing is claimed of it any more.
            Some(Message::CloseSession(_) | Message::ResumeSession(_)) => {
                out.put(cell(Fact::Unqueued { session: call.session, numbers: BTreeSet::new() }));
            }
            _ => {}
        }
    }

    fn note_renumbered(&mut self, call: &v1::CellCall, first: u64, out: &mut Out) {
        let (session, number) = (call.session, call.number);
        if let Some(handle) = self.queued.remove(&(session, first)) {
            self.queued.insert((session, number), handle);
            out.put(cell(Fact::Requeued { session, first, number }));
        }
    }

    fn unqueue(&mut self, session: u64, numbers: BTreeSet<u64>, out: &mut Out) {
        self.queued.retain(|(other, number), _| *other != session || !numbers.contains(number));
        out.put(cell(Fact::Unqueued { session, numbers }));
    }

    fn answer(&mut self, op: OpId, body: Body, out: &mut Out) {
        if let Some((client, client_op)) = self.clients.remove(&op) {
            self.requests.remove(&(client, client_op));
            let frame = Frame { op: client_op, more: false, body: Some(body) };
            out.put(Effect::Send { to: client, bytes: codec::to_bytes(&frame) });
        }
    }
}
