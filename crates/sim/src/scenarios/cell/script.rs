//! What one session's application does: files, listings, absences, locks, watches, ephemerals, by the dice.

mod access;
mod locking;
mod visiting;

use super::doing::{Doing, Purpose, Slot, answer_of, sightings};
use super::fact::{Answer, Call, Change, Condition, Fact, OpName, Sighting};
use super::recorded::shown;
use super::seat::{Cache, Habits};
use super::{CLOSED, DIRECTORIES, DOORS, EPHEMERALS, FILES, HERD, LOCKS};
use crate::kernel::HostId;
use bytes::Bytes;
use locking::Held;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Error, Mono, Now, OpId, Seeded};
use tidings_cell::session::{Event, Input};
use tidings_wire::v1::{self, LockMode, cell_message::Message};

/// The most handles that an application keeps open besides those of its lock.
const HANDLES: usize = 6;
/// Names in one `read_many`.
const MANY: u64 = 128;

/// An open handle.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub number: u64,
    pub path: String,
    pub instance: u64,
    pub purpose: Purpose,
    pub delay: Duration,
}

/// A touch of the resource that a lock protects.
pub struct Touch {
    /// The lock.
    pub path: String,
    /// The session.
    pub session: u64,
    /// The claim to it.
    pub sequencer: Bytes,
}

/// What a script wants done.
pub enum Wish {
    /// Feed the session.
    Feed(Input),
    /// State a fact.
    State(Fact),
    /// Act on the resource.
    Touch(Touch),
}

/// The application of one session.
pub struct Script {
    host: HostId,
    rng: Seeded,
    think: Duration,
    session: u64,
    condition: Condition,
    next_at: Mono,
    next_op: u64,
    open: BTreeMap<OpId, (Doing, Option<u64>)>,
    busy: BTreeSet<Slot>,
    handles: BTreeMap<u64, Opened>,
    known: BTreeMap<String, u64>,
    held: Option<Held>,
    /// When a waiting acquire is given up.
    patience: Option<(OpId, Mono)>,
    /// A sequencer of a lock that was given back, to be checked.
    spent: Option<(String, u64, u64, Bytes)>,
    herding: u64,
    visits: bool,
    /// Everybody who may be let in or shut out.
    principals: Arc<[String]>,
    prepared: usize,
    stopped: bool,
    /// It asked for the end of its session: nothing is done under it any more.
    leaving: bool,
    answered: u64,
    wishes: Vec<Wish>,
}

impl Script {
    /// The application of a new session; `first_op` is larger than any number used on this host before.
    pub fn new(host: HostId, rng: Seeded, habits: &Habits, now: Now, first_op: u64) -> Script {
        Script {
            host,
            rng,
            think: habits.think,
            session: 0,
            condition: Condition::Jeopardy,
            next_at: now.mono,
            next_op: first_op | 1,
            open: BTreeMap::new(),
            busy: BTreeSet::new(),
            handles: BTreeMap::new(),
            known: BTreeMap::new(),
            held: None,
            patience: None,
            spent: None,
            herding: if habits.herds { HERD } else { 0 },
            visits: habits.visits,
            principals: habits.principals.clone(),
            prepared: 0,
            stopped: false,
            leaving: false,
            answered: 0,
            wishes: Vec::new(),
        }
    }

    /// Takes what it wants done.
    pub fn wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    /// The session's number; 0 before it began.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// A number that no call of this host has used.
    pub fn next_op(&self) -> u64 {
        self.next_op
    }

    /// Whether the session is over.
    pub fn is_over(&self) -> bool {
        matches!(self.condition, Condition::Expired | Condition::Closed)
    }

    /// Whether the session ended without its will.
    pub fn is_expired(&self) -> bool {
        self.condition == Condition::Expired
    }

    /// Begins nothing new, and gives back its lock.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether it is served and has nothing open.
    pub fn is_quiet(&self) -> bool {
        self.condition == Condition::Safe && self.open.is_empty() && self.held.is_none()
    }

    /// What it still waits for, for messages.
    pub fn waits_for(&self) -> String {
        format!("session {} is {:?}, open {:?}, holds {:?}", self.session, self.condition, self.open, self.held)
    }

    /// How many calls were answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        if self.condition != Condition::Safe || self.leaving {
            return None;
        }
        let touch = self.held.as_ref().map(|held| held.next_touch);
        let patience = self.patience.map(|(_, at)| at);
        [Some(self.next_at), touch, patience].into_iter().flatten().min()
    }

    fn state(&mut self, fact: Fact) {
        self.wishes.push(Wish::State(fact));
    }

    /// The session's machine tells something.
    pub fn told(&mut self, event: &Event) {
        let condition = match event {
            Event::Begun(session) => {
                self.session = session.0;
                Condition::Begun
            }
            Event::Jeopardy => Condition::Jeopardy,
            Event::Safe { lost, .. } => {
                if self.held.as_ref().is_some_and(|held| lost.iter().any(|handle| handle.0 == held.handle)) {
                    self.held = None;
                }
                Condition::Safe
            }
            Event::Expired => Condition::Expired,
            Event::Closed => Condition::Closed,
            Event::Node(event) => return self.notified(event),
        };
        self.condition = if condition == Condition::Begun { Condition::Safe } else { condition };
        self.state(Fact::Session { session: self.session, condition });
        if self.is_over() {
            self.held = None;
            self.give_up();
        }
    }

    fn notified(&mut self, event: &v1::CellEvent) {
        use v1::CellEventKind as Kind;
        let (session, handle, kind) = (self.session, event.handle, event.kind());
        self.state(Fact::Notified { session, handle, kind });
        if matches!(kind, Kind::LockLost | Kind::HandleInvalid)
            && self.held.as_ref().is_some_and(|held| held.handle == handle)
        {
            self.held = None;
        }
        if kind == Kind::HandleInvalid {
            self.handles.remove(&handle);
            self.state(Fact::Unwatched { session, handle });
        }
    }

    /// Whatever is still open ends with an unknown outcome.
    pub fn give_up(&mut self) {
        for (op, (_, number)) in std::mem::take(&mut self.open) {
            let op = self.name(op);
            self.state(Fact::Told { op, number, answer: Answer::Unknown });
        }
        self.busy.clear();
        self.patience = None;
    }

    fn name(&self, op: OpId) -> OpName {
        OpName { client: self.host, number: op.0 }
    }

    /// The session sends a numbered request: which call it belongs to.
    pub fn sent(&mut self, message: &Message, number: u64) {
        let slot = Slot::of(message);
        if let Message::Acquire(v1::AcquireLock { waits_as: first @ 1.., .. }) = message {
            return self.renumbered(*first, number, message);
        }
        let mine = self.open.values_mut().find(|(doing, known)| Some(doing.slot()) == slot && known.is_none());
        if let Some((doing, known)) = mine {
            *known = Some(number);
            if let Doing::Acquire { path, .. } = doing {
                let (session, path, exclusive) = (self.session, path.clone(), is_exclusive(message));
                self.state(Fact::Numbered { session, number, path, exclusive });
            }
        }
    }

    /// The session lets an acquire wait under another number.
    fn renumbered(&mut self, first: u64, number: u64, message: &Message) {
        let mine = self.open.values_mut().find(|(_, known)| *known == Some(first));
        if let Some((Doing::Acquire { path, .. }, known)) = mine {
            *known = Some(number);
            let (session, path, exclusive) = (self.session, path.clone(), is_exclusive(message));
            self.state(Fact::Numbered { session, number, path, exclusive });
            self.state(Fact::Renumbered { session, first, number });
        }
    }

    /// The application goes on.
    pub fn wake(&mut self, now: Now, cache: &Cache) {
        if self.condition != Condition::Safe || self.leaving {
            return;
        }
        self.hold(now);
        if let Some((op, _)) = self.patience.filter(|(_, at)| *at <= now.mono || self.stopped) {
            self.patience = None;
            if let Some((doing, number)) = self.open.remove(&op) {
                self.busy.remove(&doing.slot());
                let name = self.name(op);
                self.state(Fact::Told { op: name, number, answer: Answer::Unknown });
                self.wishes.push(Wish::Feed(Input::Cancel { op }));
            }
        }
        if now.mono >= self.next_at {
            let think = u64::try_from(self.think.as_nanos()).unwrap_or(u64::MAX / 4);
            self.next_at = now.mono + Duration::from_nanos(1_000_000 + self.rng.below(2 * think));
            if !self.stopped {
                self.act(now, cache);
            }
        }
    }

    fn call(&mut self, doing: Doing, call: Call, message: Message) {
        let op = OpId(self.next_op);
        self.next_op += 2;
        self.busy.insert(doing.slot());
        let name = self.name(op);
        self.state(Fact::Asked { op: name, session: self.session, call });
        self.open.insert(op, (doing, None));
        self.wishes.push(Wish::Feed(Input::Call { op, message }));
    }

    fn free(&self, slot: Slot) -> bool {
        !self.busy.contains(&slot)
    }

    fn pick(&mut self, among: &[&str]) -> String {
        self.rng.pick(among).map(|path| path.to_string()).unwrap_or_default()
    }

    fn act(&mut self, now: Now, cache: &Cache) {
        if self.prepared < DIRECTORIES.len() + LOCKS.len() + 2 {
            return self.prepare();
        }
        if self.herding > 0 && self.free(Slot::Read) {
            return self.herd();
        }
        if self.visits && self.rng.one_in(3) {
            return self.visit(now, cache);
        }
        match self.rng.below(100) {
            0..=32 => self.read(now, cache),
            33..=39 => self.list(now, cache),
            40..=42 if self.free(Slot::Read) => self.read_many(),
            43..=57 if self.free(Slot::Change) => self.write(),
            58..=60 if self.free(Slot::Change) => self.guarded_write(),
            61 if self.free(Slot::Change) => self.write_closed(),
            62..=67 if self.free(Slot::Change) => self.create(),
            68..=72 if self.free(Slot::Change) => self.delete(),
            73..=76 if self.free(Slot::Change) => self.watch(),
            77..=79 if self.free(Slot::Change) => self.ephemeral(),
            80..=83 if self.free(Slot::Change) => self.close(),
            84..=95 => self.lock(now),
            96..=97 if self.free(Slot::Read) => self.check(),
            // Rarely: everybody's cache is emptied by it.
            98 if self.rng.one_in(4) && self.free(Slot::Change) => self.shut_doors(),
            99 if self.rng.one_in(12) && self.open.is_empty() => self.leave(),
            _ => {}
        }
    }

    fn leave(&mut self) {
        self.leaving = true;
        self.held = None;
        self.wishes.push(Wish::Feed(Input::Close));
    }

    /// What everybody relies on is made by whoever comes first: directories, files whose locks are taken, an access list
    /// and what it closes.
    fn prepare(&mut self) {
        if !self.free(Slot::Change) {
            return;
        }
        let at = self.prepared;
        self.prepared += 1;
        let all = DIRECTORIES.iter().chain(LOCKS).chain(&[DOORS, CLOSED]);
        let path = all.copied().nth(at).unwrap_or_default();
        let directory = at < DIRECTORIES.len();
        let contents = match path {
            _ if directory => Bytes::new(),
            DOORS => self.doors(),
            _ => self.contents(),
        };
        let acl = (path == CLOSED).then(|| v1::NodeAcl { read: list_name(), write: list_name(), ..Default::default() });
        let create = v1::CreateNode { directory, contents, acl, ..Default::default() };
        let open = v1::OpenNode { path: path.to_string(), read: true, create: Some(create), ..Default::default() };
        self.open_node(open, Purpose::Passing);
    }

    fn contents(&mut self) -> Bytes {
        Bytes::from(format!("{}-{}", self.host, self.next_op))
    }

    fn some_path(&mut self) -> String {
        match self.rng.below(12) {
            0 => self.pick(DIRECTORIES),
            1 => self.pick(LOCKS),
            2 => self.pick(EPHEMERALS),
            3 => format!("/herd-{}", self.rng.below(HERD)),
            4 => CLOSED.to_string(),
            _ => self.pick(FILES),
        }
    }

    fn read(&mut self, now: Now, cache: &Cache) {
        let path = self.some_path();
        let uncached = self.rng.one_in(8);
        self.read_path(now, cache, path, uncached);
    }

    fn read_path(&mut self, now: Now, cache: &Cache, path: String, uncached: bool) {
        if let Some(read) = cache.get(now, &path, false).filter(|_| !uncached) {
            for sighting in sightings(&path, read, true, false) {
                self.learn(&sighting);
                self.state(Fact::Cached { session: self.session, sighting });
            }
            return;
        }
        if self.free(Slot::Read) {
            let target = Some(target(&path));
            let message =
                Message::Read(v1::ReadNode { target, contents: true, children: false, uncached, ..Default::default() });
            self.call(Doing::Read { path, children: false }, Call::Read, message);
        }
    }

    fn list(&mut self, now: Now, cache: &Cache) {
        let path = if self.rng.one_in(3) { "/".to_string() } else { self.pick(DIRECTORIES) };
        if let Some(read) = cache.get(now, &path, true) {
            for sighting in sightings(&path, read, false, true) {
                self.state(Fact::Cached { session: self.session, sighting });
            }
            return;
        }
        if self.free(Slot::Read) {
            let target = Some(target(&path));
            let message = Message::Read(v1::ReadNode {
                target,
                contents: false,
                children: true,
                uncached: false,
                ..Default::default()
            });
            self.call(Doing::Read { path, children: true }, Call::Read, message);
        }
    }

    fn read_many(&mut self) {
        let paths: Vec<String> = FILES.iter().map(|path| path.to_string()).collect();
        self.many(paths);
    }

    /// More names than the master remembers for one session (R15).
    fn herd(&mut self) {
        let count = self.herding.min(MANY);
        self.herding -= count;
        let paths = (self.herding..self.herding + count).map(|i| format!("/herd-{i}")).collect();
        self.many(paths);
    }

    fn many(&mut self, paths: Vec<String>) {
        let message = Message::ReadMany(v1::ReadMany { paths: paths.clone() });
        self.call(Doing::Many { paths }, Call::Read, message);
    }

    fn write(&mut self) {
        let mut path = if self.rng.one_in(8) { self.pick(LOCKS) } else { self.pick(FILES) };
        let own: Vec<Opened> =
            self.handles.values().filter(|opened| opened.purpose == Purpose::Writing).cloned().collect();
        let mut target = target(&path);
        if let Some(opened) = self.rng.pick(&own).filter(|_| own.len() > 2) {
            path = opened.path.clone();
            target = v1::NodeTarget { target: Some(v1::node_target::Target::Handle(opened.number)) };
        }
        let if_generation = self.known.get(&path).copied().filter(|_| self.rng.one_in(3));
        let contents = self.contents();
        let change = Change::Write { path, contents: shown(&contents), if_generation };
        let message = Message::SetContents(v1::SetContents {
            target: Some(target),
            contents,
            if_generation,
            sequencers: Vec::new(),
        });
        self.call(Doing::Write, Call::Change(change), message);
    }

    fn create(&mut self) {
        let herd = self.rng.one_in(6);
        let path = if herd { format!("/herd-{}", self.rng.below(HERD)) } else { self.pick(FILES) };
        let keep = self.rng.one_in(4) && self.handles.len() < HANDLES;
        let purpose = if keep { Purpose::Writing } else { Purpose::Passing };
        let (contents, exclusive) = (self.contents(), self.rng.one_in(3));
        let create = v1::CreateNode { contents, exclusive, ..Default::default() };
        let open = v1::OpenNode { path, read: true, write: true, create: Some(create), ..Default::default() };
        self.open_node(open, purpose);
    }

    fn delete(&mut self) {
        let path = if self.rng.one_in(6) { format!("/herd-{}", self.rng.below(HERD)) } else { self.pick(FILES) };
        let if_generation = self.known.get(&path).copied().filter(|_| self.rng.one_in(4));
        let target = Some(target(&path));
        let message = Message::Delete(v1::DeleteNode { target, if_generation, sequencers: Vec::new() });
        self.call(Doing::Delete, Call::Change(Change::Delete { path, if_generation }), message);
    }

    fn watch(&mut self) {
        if self.handles.len() >= HANDLES {
            return;
        }
        let path = if self.rng.one_in(4) { self.pick(DIRECTORIES) } else { self.pick(FILES) };
        let open = v1::OpenNode { path, read: true, events: 15, ..Default::default() };
        self.open_node(open, Purpose::Watching);
    }

    fn ephemeral(&mut self) {
        if self.handles.len() >= HANDLES {
            return;
        }
        let (path, contents) = (self.pick(EPHEMERALS), self.contents());
        let create = v1::CreateNode { ephemeral: true, contents, ..Default::default() };
        let open = v1::OpenNode { path, read: true, write: true, create: Some(create), ..Default::default() };
        self.open_node(open, Purpose::Ephemeral);
    }

    fn open_node(&mut self, open: v1::OpenNode, purpose: Purpose) {
        let (path, events) = (open.path.clone(), open.events);
        let call = match &open.create {
            Some(create) if !create.ephemeral && !create.directory => {
                let (contents, exclusive) = (shown(&create.contents), create.exclusive);
                Call::Change(Change::Create { path: path.clone(), contents, exclusive })
            }
            Some(_) => Call::Change(Change::Other),
            None => Call::Read,
        };
        let delay = Duration::from_millis(open.lock_delay_ms.unwrap_or(0).into());
        self.call(Doing::Open { path, purpose, events, delay }, call, Message::Open(open));
    }

    fn close(&mut self) {
        let holds = self.held.as_ref().map(|held| held.handle);
        let idle =
            self.handles.values().filter(|opened| opened.purpose != Purpose::Locking && Some(opened.number) != holds);
        let idle: Vec<u64> = idle.map(|opened| opened.number).collect();
        if let Some(handle) = self.rng.pick(&idle).copied() {
            self.close_handle(handle);
        }
    }

    fn close_handle(&mut self, handle: u64) {
        self.handles.remove(&handle);
        self.state(Fact::Unwatched { session: self.session, handle });
        self.call(Doing::Close, Call::Change(Change::Other), Message::Close(v1::CloseHandle { handle }));
    }

    fn learn(&mut self, sighting: &Sighting) {
        if let (false, Some(stat)) = (sighting.key.listing, &sighting.stat) {
            match stat {
                Some(stat) => self.known.insert(sighting.key.path.clone(), stat.content_generation),
                None => self.known.remove(&sighting.key.path),
            };
        }
    }

    /// A call is answered.
    pub fn answered_call(&mut self, now: Now, op: OpId, result: Result<Message, Error>) {
        let Some((doing, number)) = self.open.remove(&op) else { return };
        self.busy.remove(&doing.slot());
        if self.patience.is_some_and(|(waiting, _)| waiting == op) {
            self.patience = None;
        }
        let answer = answer_of(&doing, &result);
        if !matches!(answer, Answer::Unknown | Answer::Broken(_)) {
            self.answered += 1;
        }
        if let Answer::Saw(sightings) = &answer {
            sightings.iter().for_each(|sighting| self.learn(sighting));
        }
        let name = self.name(op);
        self.state(Fact::Told { op: name, number, answer });
        match (doing, result) {
            (Doing::Open { path, purpose, events, delay }, Ok(Message::Opened(opened))) => {
                self.opened(path, purpose, events, delay, &opened);
            }
            (Doing::Acquire { handle, path, instance, exclusive }, Ok(Message::Acquired(acquired))) => {
                let delay = self.handles.get(&handle).map_or(Duration::ZERO, |opened| opened.delay);
                let until = now.mono + Duration::from_millis(self.rng.between(100, 5_000));
                let (generation, sequencer) = (acquired.generation, acquired.sequencer);
                let next_touch = now.mono;
                let held = Held { handle, path, instance, generation, sequencer, exclusive, delay, until, next_touch };
                self.held = Some(held);
            }
            (Doing::Release, Ok(_)) if self.rng.one_in(2) && self.free(Slot::Read) => self.check(),
            _ => {}
        }
    }

    fn opened(&mut self, path: String, purpose: Purpose, events: u32, delay: Duration, opened: &v1::NodeOpened) {
        let (number, instance) = (opened.handle, opened.stat.as_ref().map_or(0, |stat| stat.instance));
        if purpose == Purpose::Passing {
            return self.close_handle(number);
        }
        if events > 0 {
            let session = self.session;
            let path = path.clone();
            self.state(Fact::Watching { session, handle: number, path, instance, events });
        }
        self.handles.insert(number, Opened { number, path, instance, purpose, delay });
    }
}

fn is_exclusive(message: &Message) -> bool {
    matches!(message, Message::Acquire(acquire) if acquire.mode() == LockMode::Exclusive)
}

/// What nodes call the access list.
fn list_name() -> String {
    DOORS.rsplit('/').next().unwrap_or_default().to_string()
}

fn target(path: &str) -> v1::NodeTarget {
    v1::NodeTarget { target: Some(v1::node_target::Target::Path(path.to_string())) }
}
