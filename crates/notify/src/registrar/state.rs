//! A client in memory: what its row says, packed, and what is under way.

use super::interned::Names;
use super::pending::{Pending, Pendings};
use crate::RequestId;
use crate::digest::{self, Digest};
use crate::names::{Channel, ClientKey, Guard};
use crate::rows::{self, AFTER_LOSS, CREATED, ENDED, LAST_SEQNO, LOG, PENDING_OF, PRESENCE, REG, SESSION, TOLD, UNK};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidings_base::Mono;
use tidings_wire::v1;

/// Work that waits for one client, and how much of it may be messages, which can be large.
const MAX_QUEUE: usize = 64;
const MAX_MESSAGES: usize = 8;
/// Cells that wait for a write of the row; beyond it nothing more is done before that one is stable.
const MAX_CELLS: usize = 16_384;
/// So many registrations at most are taken out one by one.
const FEW: usize = 8;

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its row is being read.
    Loading,
    /// Its row is in memory.
    Ready,
    /// F10: it is being collected.
    Collecting(Collecting),
}

/// F10: the steps of a collection, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collecting {
    /// `created` is being deleted.
    Deleting,
    /// Whether the lease held until that was stable is being asked.
    Confirming,
    /// Matchers are told to forget its registrations.
    Unregistering,
    /// What is left of its row is read.
    Reading,
    /// That is deleted, each cell at its own timestamp.
    Clearing,
}

/// A registration: 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg {
    pub object: u32,
    /// What was known when it was made is stored, and not acknowledged.
    pub told: bool,
    pub seqno: u64,
    /// The highest version that was sent in this session or is stored (F9); 0 = none.
    pub version: u64,
    /// The highest that the client has, as far as it said.
    pub acked: u64,
    /// The version of the live log cell; 0 = none.
    pub logged: u64,
}

impl Reg {
    pub fn new(object: u32, seqno: u64) -> Reg {
        Reg { object, told: false, seqno, version: 0, acked: 0, logged: 0 }
    }

    /// The version that the client has not acknowledged.
    pub fn unacked(&self) -> Option<u64> {
        (self.version > self.acked).then_some(self.version)
    }
}

/// What to do when a row write is stable.
#[derive(Clone, Debug)]
pub(super) enum After {
    /// Answer a message.
    Reply { channel: Channel, statuses: Vec<v1::RegistrationStatus>, query: Option<v1::SyncQuery> },
    /// F8: grant a session.
    Grant { channel: Channel, nonce: u64 },
    /// Answer a matcher.
    Notified { request: RequestId, guard: Guard },
    /// Take a change to its matcher.
    Spread { object: u32, seqno: u64 },
    /// Tell the client how a registration stands, and what is known of the object.
    Told { object: u32, status: v1::RegistrationStatus },
}

/// A notification that was sent and waits for its ack, or for being logged.
#[derive(Clone, Debug)]
pub(super) struct Unlogged {
    pub request: RequestId,
    pub guard: Guard,
    pub object: Bytes,
    pub version: u64,
}

/// Cells for one write of the row, and what waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pub cells: Vec<v1::Cell>,
    pub after: Vec<After>,
    /// The state that is durable once the write is.
    pub op: u64,
    pub digest: Digest,
    pub channel: Option<Channel>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.after.is_empty()
    }
}

/// A message whose registrations the application is asked about.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub channel: Channel,
    pub up: v1::NotifyUp,
    pub waiting: BTreeSet<super::AskId>,
    pub verdicts: BTreeMap<Bytes, super::Verdict>,
}

/// What a client is to do next.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// A message of a session.
    Up { channel: Channel, session: u64, up: Box<v1::NotifyUp> },
    /// A handshake that names this id, from a token of this session.
    Hello { channel: Channel, contact: u64, session: u64, hello: v1::NotifyHello },
    /// A connection closed.
    Closed(Channel),
    /// A matcher's notification.
    Notify { request: RequestId, guard: Guard, notify: Box<v1::ClientNotify> },
    /// F10: collect it, if it is time.
    Collect,
    /// F5: it was found with something to do.
    Look,
    /// F3: take its registrations to their matchers again.
    Scrub,
    /// Another id has come in its place, by this connection, if it is still in this session.
    Replaced { channel: Channel, session: u64 },
}

/// A client in memory.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub state: State,
    pub queue: VecDeque<Work>,
    /// F10: whether the row has its `created`.
    pub created: bool,
    pub persistent: bool,
    /// F3: it was known before something was lost.
    pub after_loss: bool,
    pub source: Bytes,
    pub session: u64,
    pub nonce: u64,
    pub channel: Option<Channel>,
    /// Which of the client's connections that is, by its own count; and since which number it is there.
    pub contact: u64,
    pub seated: u64,
    /// F8: its token was made with a key that will be retired.
    pub ages: bool,
    /// F10: it goes for good, and hears by this connection when that is certain.
    pub leaving: Option<Channel>,
    /// The worn id in whose place this one has come, and its session: it goes once this one is stable.
    pub replaces: Option<Box<(ClientKey, u64)>>,
    /// Whether the store holds that it can be reached there.
    pub present: bool,
    /// When it last said something, in monotonic time, and when its row was last used, in wall-clock milliseconds.
    pub heard: Mono,
    pub used_ms: u64,
    /// The latest change of the session that was applied; `None` until the session has said where it stands.
    pub op: Option<u64>,
    pub durable: (u64, Digest),
    /// Sorted by object.
    pub regs: Vec<Reg>,
    pub digest: Digest,
    /// How often one was ended, in all sessions.
    pub ended: u64,
    /// F4: unknowns that are not acknowledged, sorted by object.
    pub unknown: Vec<(u32, u64)>,
    pub pending: Pendings,
    /// F3: what is complete goes to its matchers again, from this object on.
    pub scrubs_from: Option<u32>,
    /// Changes are on their way that memory has no room for.
    pub shed: bool,
    pub dirty: Batch,
    pub writing: Option<Batch>,
    pub asking: Option<Box<Asking>>,
    pub unlogged: Vec<Unlogged>,
    /// Retransmissions since the last news.
    pub resent: u32,
    /// The object that notifications were last sent up to; whether others wait, and how many were acknowledged since.
    pub sent_to: u32,
    pub waits: bool,
    pub acked: usize,
}

impl Client {
    pub fn new(now: Mono) -> Client {
        Client {
            state: State::Loading,
            queue: VecDeque::new(),
            created: false,
            persistent: false,
            after_loss: false,
            source: Bytes::new(),
            session: 0,
            nonce: 0,
            channel: None,
            contact: 0,
            seated: 0,
            ages: false,
            leaving: None,
            replaces: None,
            present: false,
            heard: now,
            used_ms: 0,
            op: None,
            durable: (0, Digest::default()),
            regs: Vec::new(),
            digest: Digest::default(),
            ended: 0,
            unknown: Vec::new(),
            pending: Pendings::default(),
            scrubs_from: None,
            shed: false,
            dirty: Batch::default(),
            writing: None,
            asking: None,
            unlogged: Vec::new(),
            resent: 0,
            sent_to: 0,
            waits: false,
            acked: 0,
        }
    }

    /// Whether it can do more work of any kind.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready && self.asking.is_none()
    }

    /// Whether something more may wait; what may not is dropped, and sent again by whoever sent it.
    pub fn has_room_for(&self, work: &Work) -> bool {
        let is_message = |work: &&Work| matches!(work, Work::Up { .. });
        let messages = || self.queue.iter().filter(is_message).count();
        match work {
            // One is as good as two.
            Work::Scrub => !self.queue.iter().any(|work| matches!(work, Work::Scrub)),
            work => self.queue.len() < MAX_QUEUE && !(is_message(&work) && messages() >= MAX_MESSAGES),
        }
    }

    /// It is looked at once its row has been read, before anything else.
    pub fn looks(&mut self) {
        if !self.queue.iter().any(|work| matches!(work, Work::Look)) {
            self.queue.push_front(Work::Look);
        }
    }

    /// What it can do next. While the application is asked about a message, what does not depend on it goes on: a hook
    /// that hangs holds up no news of other objects.
    pub fn next_work(&mut self) -> Option<Work> {
        if self.writing.is_some() && self.dirty.cells.len() > MAX_CELLS {
            return None;
        }
        match (self.state, &self.asking) {
            (State::Ready, None) => self.queue.pop_front(),
            (State::Ready, Some(_)) => {
                let at = self.queue.iter().position(|work| matches!(work, Work::Notify { .. }))?;
                self.queue.remove(at)
            }
            _ => None,
        }
    }

    /// Whether nothing holds it in memory.
    pub fn is_idle(&self) -> bool {
        let still = self.dirty.is_empty() && self.writing.is_none() && self.unlogged.is_empty();
        let quiet = self.queue.is_empty() && still && self.asking.is_none();
        self.state == State::Ready && quiet && self.channel.is_none() && self.pending.is_empty()
    }

    /// Whether the store holds all that memory says.
    pub fn is_settled(&self) -> bool {
        self.writing.is_none() && self.dirty.cells.is_empty()
    }

    pub fn reg(&self, object: u32) -> Option<&Reg> {
        self.regs.binary_search_by_key(&object, |reg| reg.object).ok().and_then(|at| self.regs.get(at))
    }

    pub fn reg_mut(&mut self, object: u32) -> Option<&mut Reg> {
        self.regs.binary_search_by_key(&object, |reg| reg.object).ok().and_then(|at| self.regs.get_mut(at))
    }

    /// Adds a registration, or numbers it anew; whether it was not there. The caller holds the name once for a new one.
    pub fn insert(&mut self, reg: Reg, hash: u128) -> bool {
        match self.regs.binary_search_by_key(&reg.object, |reg| reg.object) {
            Ok(at) => {
                (self.regs[at].seqno, self.regs[at].told, self.regs[at].acked) = (reg.seqno, false, reg.acked);
                false
            }
            Err(at) => {
                self.regs.insert(at, reg);
                self.digest.add(hash);
                true
            }
        }
    }

    /// Removes registrations, all of which are there, and what is unknown of their objects, in one go; sorted by object.
    pub fn remove(&mut self, objects: &[(u32, u128)]) {
        objects.iter().for_each(|(_, hash)| self.digest.remove(*hash));
        if objects.len() <= FEW {
            for (object, _) in objects {
                self.make_known(*object);
                if let Ok(at) = self.regs.binary_search_by_key(object, |reg| reg.object) {
                    self.regs.remove(at);
                }
            }
            return;
        }
        let is_one = |object: u32| objects.binary_search_by_key(&object, |(object, _)| *object).is_ok();
        self.regs.retain(|reg| !is_one(reg.object));
        self.unknown.retain(|(object, _)| !is_one(*object));
    }

    /// The number of what is unknown of an object.
    pub fn unknown_of(&self, object: u32) -> Option<u64> {
        let at = self.unknown.binary_search_by_key(&object, |(object, _)| *object).ok()?;
        self.unknown.get(at).map(|(_, seqno)| *seqno)
    }

    /// An object is unknown under this number, and no longer under an earlier one.
    pub fn make_unknown(&mut self, object: u32, seqno: u64) {
        match self.unknown.binary_search_by_key(&object, |(object, _)| *object) {
            Ok(at) => self.unknown[at].1 = seqno,
            Err(at) => self.unknown.insert(at, (object, seqno)),
        }
    }

    /// An object is unknown no more; under which number it was.
    pub fn make_known(&mut self, object: u32) -> Option<u64> {
        let at = self.unknown.binary_search_by_key(&object, |(object, _)| *object).ok()?;
        Some(self.unknown.remove(at).1)
    }

    /// Registrations that have not reached their matchers yet, as far as the client is concerned.
    pub fn incomplete(&self) -> u32 {
        self.pending.awaited() as u32 + u32::from(self.shed)
    }

    /// Every name that it holds, as often as it does.
    pub fn names(&self) -> impl Iterator<Item = u32> {
        self.regs.iter().map(|reg| reg.object).chain(self.pending.objects())
    }

    /// What the client has not acknowledged.
    pub fn unacked(&self) -> impl Iterator<Item = u32> {
        let known = self.regs.iter().filter(|reg| reg.unacked().is_some()).map(|reg| reg.object);
        known.chain(self.unknown.iter().map(|(object, _)| *object))
    }

    pub fn has_unacked(&self) -> bool {
        !self.unknown.is_empty() || self.regs.iter().any(|reg| reg.unacked().is_some())
    }

    /// What would be written, and is being written.
    pub fn batches(&mut self) -> Vec<Batch> {
        self.writing.take().into_iter().chain([std::mem::take(&mut self.dirty)]).collect()
    }

    /// Takes a row's content; whether there was any.
    pub fn fill(&mut self, key: &ClientKey, row: Option<v1::Row>, names: &mut Names) -> bool {
        let Some(row) = row else { return false };
        let salt = key.uuid();
        for cell in &row.cells {
            let Some(value) = &cell.value else { continue };
            match cell.column.as_ref() {
                AFTER_LOSS => self.after_loss = true,
                CREATED => {
                    self.created = true;
                    self.persistent = value.first() == Some(&1);
                    self.source = value.slice(value.len().min(1)..);
                }
                SESSION => {
                    self.session = cell.timestamp;
                    self.nonce = number(value);
                }
                PRESENCE => {
                    self.channel = value.get(..16).and_then(Channel::from_bytes);
                    self.seated = cell.timestamp;
                    self.contact = value.get(16..).and_then(|n| n.try_into().ok()).map_or(0, u64::from_be_bytes);
                }
                LAST_SEQNO => self.used_ms = number(value),
                ENDED => self.ended = number(value),
                column => {
                    if let Some(name) = column.strip_prefix(REG) {
                        let object = names.hold(name);
                        self.insert(Reg::new(object, cell.timestamp), digest::hash(&salt, name));
                    }
                }
            }
        }
        // What is logged or unknown of an object counts while it is registered.
        for cell in &row.cells {
            if let Some(name) = cell.column.strip_prefix(LOG) {
                if let Some(reg) = names.find(name).and_then(|object| self.reg_mut(object)) {
                    (reg.version, reg.logged) = (reg.version.max(cell.timestamp), cell.timestamp);
                }
            } else if let Some(name) = cell.column.strip_prefix(TOLD) {
                let version = cell.value.as_ref().map_or(0, number);
                if let Some(reg) = names.find(name).and_then(|object| self.reg_mut(object))
                    && reg.seqno == cell.timestamp
                {
                    (reg.version, reg.told) = (reg.version.max(version), true);
                }
            } else if let Some(name) = cell.column.strip_prefix(UNK) {
                if let Some(object) = names.find(name).filter(|object| self.reg(*object).is_some()) {
                    self.make_unknown(object, cell.timestamp);
                }
            } else if let Some(name) = cell.column.strip_prefix(PENDING_OF) {
                let object = names.hold(name);
                let registered = self.reg(object).is_some();
                // F6: what the client said it knew is in the marker.
                let known = cell.value.as_ref().map_or(0, number);
                if let Some(reg) = self.reg_mut(object) {
                    reg.acked = reg.acked.max(known);
                }
                self.pending.insert(object, Pending::new(cell.timestamp, registered));
            }
        }
        self.durable = (self.op.unwrap_or(0), self.digest);
        self.present = self.channel.is_some();
        !row.cells.is_empty()
    }

    pub fn put(&mut self, cell: v1::Cell) {
        self.dirty.cells.push(cell);
    }

    /// Marks the row as used (§4.2.1: whenever a sequence number is).
    pub fn used(&mut self, seqno: u64, wall_ms: u64) {
        self.used_ms = wall_ms;
        self.dirty.cells.push(rows::cell(LAST_SEQNO, seqno, wall_ms.to_be_bytes().to_vec()));
    }
}

/// A number as a cell's value.
fn number(value: &Bytes) -> u64 {
    value.as_ref().try_into().map_or(0, u64::from_be_bytes)
}
