//! A client: writes under names that it repeats until it is answered, reads at every level, and holds a live query.
//!
//! What it must not forget survives its restarts: operations without outcome, floors, what its live query has told.

mod device;
mod live;

use super::fact::{Fact, KEYS, Level, Rows, SECRET, Shown, TablesFact, Told, columns, key, of_team, value_of};
use super::files::{LASTING, PASSING};
use super::letter::{Answered, Asked, Letter, Part, Post};
use super::town::Around;
use crate::kernel::{Effect, HostId, Seat};
use bytes::Bytes;
use device::Device;
use live::Live;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::{Error, Mono, Now, Outbox, Seeded, Wall};
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{
    self, Access, Caller, Condition, Conflict, Operation, Outcome, Read, Span, Update, Visible, Write,
};
use tidings_tables::names::{NetId, OperationId, PartitionId, Position};
use tidings_tables::refusal::Refusal;

/// Operations that a client has under way.
const OUTSTANDING: usize = 3;
/// When something is asked again, in milliseconds.
const AGAIN: (u64, u64) = (1_000, 4_000);
/// A read that was not answered for so long is given up.
const GIVE_UP: Duration = Duration::from_secs(20);
/// One read in so many is of all records, where there are such.
const SCANS: u64 = 3;
/// Numbers of requests that are no operations begin here, by what they are for.
const READS: u64 = 1 << 40;
const PASSES: u64 = 1 << 41;
const COMPARES: u64 = 1 << 42;
const LAST: u64 = 1 << 43;
const FORKS: u64 = 1 << 44;
const REREADS: u64 = 1 << 45;

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How long they think, on average.
    pub think: Duration,
    /// What is said comes whole: then a client has exactly what its cursor says.
    pub whole: bool,
    /// Some reads are of all records.
    pub scans: bool,
    /// Some clients are devices, which leave and hear through Notify.
    pub devices: bool,
    /// One live query is read again whenever something may have changed (R9).
    pub rereads: bool,
}

/// An operation without outcome.
#[derive(Clone, Debug)]
struct Open {
    write: Write,
    again: Mono,
}

/// What survives restarts.
#[derive(Clone, Debug)]
pub struct Memory {
    seq: u64,
    open: BTreeMap<u64, Open>,
    /// The last operation that was decided, and not acknowledged yet.
    decided: Option<(u64, Key)>,
    /// R5: what was seen of each partition.
    floors: BTreeMap<PartitionId, Position>,
    /// Versions that were seen, to write conditionally.
    seen: BTreeMap<Key, Position>,
    last_id: u64,
    team: char,
    /// R8: until when the claims of the live query hold.
    expires: Option<Wall>,
    live: Live,
    device: Device,
}

/// Where a client's memory lies.
pub type Disk = Arc<Mutex<Option<Memory>>>;

/// A read that is under way.
#[derive(Debug)]
struct Reading {
    id: u64,
    /// None: all of them.
    key: Option<Key>,
    level: Level,
    floors: BTreeMap<PartitionId, Position>,
    until: Mono,
}

/// All rows of a live query that is read again, under way.
#[derive(Debug)]
struct Rereading {
    id: u64,
    team: char,
    again: Mono,
}

impl Reading {
    fn is_of(&self, key: &Key) -> bool {
        self.key.as_ref().is_none_or(|of| of == key)
    }
}

/// A client's process.
pub struct Client {
    host: HostId,
    number: u32,
    nodes: Vec<HostId>,
    rng: Seeded,
    post: Post,
    around: Around,
    disk: Disk,
    habits: Habits,
    me: Memory,
    read: Option<Reading>,
    reread: Option<Rereading>,
    next: Mono,
    calm: bool,
    /// At the end: what is still to be compared or read, and when it is asked again.
    asks: Option<(Ends, Mono)>,
    /// How often it has compared.
    compares: u32,
    last: Rows,
}

/// What a client is asked for at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Compare,
    /// Everything that one of these teams, or users, is shown.
    Last(usize),
}

/// Who may be shown something: everybody that there is.
const READERS: [(char, Option<u32>); 4] = [('a', Some(0)), ('b', Some(1)), ('n', None), ('a', None)];

type Out = Outbox<Effect<TablesFact>>;

impl Client {
    /// Starts, with what it remembers.
    pub fn start(
        seat: Seat,
        number: u32,
        nodes: Vec<HostId>,
        around: Around,
        disk: Disk,
        habits: Habits,
        out: &mut Out,
    ) -> Client {
        let Seat { host, now, mut rng, .. } = seat;
        let remembered = disk.lock().unwrap_or_else(PoisonError::into_inner).take();
        let me = remembered.unwrap_or_else(|| Memory {
            seq: 0,
            open: BTreeMap::new(),
            decided: None,
            floors: BTreeMap::new(),
            seen: BTreeMap::new(),
            last_id: 0,
            team: if number.is_multiple_of(2) { 'a' } else { 'b' },
            expires: (number % 2 == 1).then(|| Wall(now.wall.0 + 1_000_000 * rng.between(30, 150))),
            live: Live::default(),
            device: Device::default(),
        });
        let (next, calm) = (now.mono, false);
        let mut client = Client {
            host,
            number,
            nodes,
            rng,
            post: around.post.clone(),
            around,
            disk,
            habits,
            me,
            read: None,
            reread: None,
            next,
            calm,
            asks: None,
            compares: 0,
            last: Rows::new(),
        };
        // A clock that began anew says nothing about when to ask again.
        client.me.open.values_mut().for_each(|open| open.again = now.mono);
        client.me.device.look = now.mono;
        if !client.me.device.away {
            client.open_live(now, out);
        }
        client.keep();
        client
    }

    fn keep(&self) {
        *self.disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.me.clone());
    }

    /// Nothing more of its own accord.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Whether it waits for nothing.
    pub fn is_quiet(&self) -> bool {
        self.calm && self.me.open.is_empty() && self.asks.is_none() && self.reread.is_none()
    }

    /// A frame or an answer of a node.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        match self.post.open(bytes) {
            Some(Letter::Answers { id, answer }) => self.answered(now, id, answer, out),
            Some(Letter::Happens { watch, seq, event }) => self.happens(now, watch, seq, event, out),
            Some(Letter::Kept { watch, there }) => self.kept(now, (from, watch), there, out),
            _ => {}
        }
        self.keep();
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let next = (!self.calm).then_some(self.next);
        let open = self.me.open.values().map(|open| open.again).min();
        let read = self.read.as_ref().map(|reading| reading.until);
        let asks = self.asks.map(|(_, again)| again);
        let reread = self.reread.as_ref().map(|reread| reread.again);
        let live = (!self.me.device.away).then(|| self.me.live.deadline());
        let look = self.is_device().then_some(self.me.device.look);
        [next, open, read, reread, asks, live, look].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        let due = self.me.open.iter().filter(|(_, open)| open.again <= now.mono).map(|(seq, _)| *seq);
        for seq in due.collect::<Vec<_>>() {
            self.send_write(now, seq, out);
        }
        if self.read.as_ref().is_some_and(|reading| reading.until <= now.mono) {
            self.read = None;
        }
        if self.asks.is_some_and(|(_, again)| again <= now.mono) {
            self.ask_again(now, out);
        }
        if self.reread.as_ref().is_some_and(|reread| reread.again <= now.mono) {
            self.read_again(now, out);
        }
        if !self.calm && self.next <= now.mono {
            let mean = self.habits.think.as_millis() as u64;
            self.next = now.mono + Duration::from_millis(self.rng.between(1, 2 * mean));
            self.act(now, out);
        }
        self.wake_live(now, out);
        self.wake_device(now, out);
        self.keep();
    }

    fn act(&mut self, now: Now, out: &mut Out) {
        match self.rng.below(8) {
            0 => self.pass(out),
            1..=4 if self.me.open.len() < OUTSTANDING => self.begin(now, out),
            _ if self.read.is_none() => self.look(now, out),
            _ => {}
        }
    }

    fn caller(&self) -> Caller {
        who(self.number % 2)
    }

    fn ask(&mut self, id: u64, table: u8, caller: Caller, what: Asked, out: &mut Out) {
        let node = self.rng.pick(&self.nodes).copied().unwrap_or_default();
        self.post.send(out, node, Letter::Asks { id, table, caller, what });
    }

    fn id(&mut self, kind: u64) -> u64 {
        self.me.last_id += 1;
        kind + self.me.last_id
    }

    fn op(&self, seq: u64) -> OperationId {
        let mut netid = [0; 16];
        netid[12..].copy_from_slice(&self.host.0.to_be_bytes());
        OperationId { netid: NetId(netid), seq }
    }

    // ---- writes -----------------------------------------------------------------------------------------------------

    /// Begins an operation on some record.
    pub fn begin(&mut self, now: Now, out: &mut Out) {
        let secret = self.rng.one_in(12);
        let key = if secret { SECRET.into() } else { key(self.rng.below(KEYS)) };
        // Definition 2 orders a read before what its client begins to write while it is under way: that is the client's part.
        if self.read.as_ref().is_some_and(|reading| reading.level == Level::Wio && reading.is_of(&key)) {
            return;
        }
        let shown = match self.rng.below(6) {
            _ if secret => Shown::Nobody,
            0 => Shown::Team('a'),
            1 => Shown::Team('b'),
            2 => Shown::User(self.rng.below(2) as u32),
            _ => Shown::Everybody,
        };
        self.me.seq += 1;
        let seq = self.me.seq;
        let value = (!self.rng.one_in(6)).then_some(i64::from(self.number) * 10_000_000 + seq as i64);
        let change = match value {
            Some(value) => Update::Put { columns: columns(value), predicate: shown.predicate() },
            None => Update::Delete,
        };
        // The client's operation on the same record that is still under way takes effect first (R6).
        let same = self.me.open.iter().filter(|(_, open)| open.write.key == key).map(|(seq, _)| *seq);
        let after = same.max();
        let condition = match (self.rng.below(4), after) {
            (0, Some(after)) => Condition::Operation(after),
            (1, _) => Condition::Version(self.me.seen.get(&key).copied().unwrap_or_default()),
            _ => Condition::Blind,
        };
        let acked_through = self.me.open.keys().next().copied().unwrap_or(seq) - 1;
        if self.me.decided.as_ref().is_some_and(|(decided, _)| *decided <= acked_through) {
            self.me.decided = None;
        }
        let op = Some(Operation { id: self.op(seq), acked_through, after });
        let write = Write { op, key: key.clone(), change, condition, data: of_team(self.me.team), deadline: None };
        self.me.open.insert(seq, Open { write, again: now.mono });
        let (op, client) = (self.op(seq), self.number);
        out.put(Effect::Fact(Fact::Begins { op, client, key, value, shown, forked: false }.into()));
        self.send_write(now, seq, out);
    }

    fn send_write(&mut self, now: Now, seq: u64, out: &mut Out) {
        let again = now.mono + Duration::from_millis(self.rng.between(AGAIN.0, AGAIN.1));
        let Some(open) = self.me.open.get_mut(&seq) else { return };
        open.again = again;
        let write = Box::new(open.write.clone());
        let caller = self.caller();
        self.ask(seq, LASTING, caller, Asked::Write(write), out);
    }

    /// Writes every record anew, shown to everybody and asked for by all queries.
    pub fn write_all(&mut self, now: Now, out: &mut Out) {
        for key in (0..KEYS).map(key) {
            self.me.seq += 1;
            let seq = self.me.seq;
            // Even, and above what this client has written else.
            let value = i64::from(self.number) * 10_000_000 + 5_000_000 + 2 * seq as i64;
            let change = Update::Put { columns: columns(value), predicate: String::new() };
            let acked_through = self.me.open.keys().next().copied().unwrap_or(seq) - 1;
            let op = Some(Operation { id: self.op(seq), acked_through, after: None });
            let (data, condition) = (of_team(self.me.team), Condition::Blind);
            let write = Write { op, key: key.clone(), change, condition, data, deadline: None };
            self.me.open.insert(seq, Open { write, again: now.mono });
            let (op, client, shown) = (self.op(seq), self.number, Shown::Everybody);
            out.put(Effect::Fact(Fact::Begins { op, client, key, value: Some(value), shown, forked: false }.into()));
            self.send_write(now, seq, out);
        }
        self.keep();
    }

    /// R6: something else under an id that was used: as a device whose storage was set back does.
    pub fn fork(&mut self, out: &mut Out) {
        let Some((seq, key)) = self.me.decided.clone() else { return };
        let value = -i64::from(self.number) * 10_000_000 - seq as i64;
        let change = Update::Put { columns: columns(value), predicate: String::new() };
        let op = self.op(seq);
        let named = Some(Operation { id: op, acked_through: 0, after: None });
        let write = Write {
            op: named,
            key: key.clone(),
            change,
            condition: Condition::Blind,
            data: Packed::empty(),
            deadline: None,
        };
        let (client, shown) = (self.number, Shown::Everybody);
        out.put(Effect::Fact(Fact::Begins { op, client, key, value: Some(value), shown, forked: true }.into()));
        let caller = self.caller();
        self.ask(FORKS + seq, LASTING, caller, Asked::Write(Box::new(write)), out);
    }

    fn written(&mut self, seq: u64, answer: Result<(PartitionId, Outcome), Refusal>, forked: bool, out: &mut Out) {
        let open = self.me.open.contains_key(&seq);
        let told = match answer {
            Ok((partition, Outcome::Done { version })) => {
                let floor = self.me.floors.entry(partition).or_default();
                *floor = version.max(*floor);
                Told::Done(version)
            }
            Ok((_, Outcome::Conflict(conflict))) => {
                if let Conflict::Theirs(theirs) = &conflict {
                    self.shows(theirs, vec!['a', 'b'], out);
                }
                Told::Conflict
            }
            Ok((_, Outcome::Refused(refusal))) => Told::Refused(Error::from(refusal).code.to_string()),
            Err(Refusal::Forked) => Told::Forked,
            // What was decided, told and acknowledged is not known any more: a late repeat.
            Err(_) if !open => return,
            Err(Refusal::Moved | Refusal::Behind | Refusal::Waited | Refusal::Store(_) | Refusal::Busy) => return,
            Err(refusal) => Told::Refused(Error::from(refusal).code.to_string()),
        };
        out.put(Effect::Fact(Fact::Ends { op: self.op(seq), told: told.clone(), forked }.into()));
        if forked {
            return;
        }
        if let Some(open) = self.me.open.remove(&seq) {
            let Write { key, change, .. } = open.write;
            self.me.decided = Some((seq, key.clone()));
            if let Told::Done(version) = told {
                let version = if change == Update::Delete { Position::ZERO } else { version };
                self.me.seen.insert(key, version);
            }
        }
    }

    // ---- reads ------------------------------------------------------------------------------------------------------

    /// Reads some record, as one of team `a` without claims: so everybody who reads sees the same.
    fn look(&mut self, now: Now, out: &mut Out) {
        let key = key(self.rng.below(KEYS));
        let key = (!self.habits.scans || !self.rng.one_in(SCANS)).then_some(key);
        let (level, asked) = match self.rng.below(4) {
            0 => {
                let of = |open: &Open| key.as_ref().is_none_or(|key| open.write.key == *key);
                let pending = self.me.open.iter().filter(|(_, open)| of(open));
                let pending = pending.map(|(seq, open)| (open.write.key.clone(), *seq)).collect();
                (Level::Wio, calls::Level::CommittedWio { netid: self.op(0).netid, pending })
            }
            1 => (Level::Latest, calls::Level::Latest),
            _ => (Level::Committed, calls::Level::Committed),
        };
        let id = self.id(READS);
        let floors = self.me.floors.clone();
        let seen = floors.clone().into_iter().collect();
        let what = match &key {
            Some(key) => Asked::Read(Box::new(reads(Span::Only(key.clone()), asked, 'a')), seen),
            None => Asked::Scan(Box::new(reads(Span::All, asked, 'a')), seen),
        };
        self.read = Some(Reading { id, key, level, floors, until: now.mono + GIVE_UP });
        out.put(Effect::Fact(Fact::Asks { client: self.number, id }.into()));
        self.ask(id, LASTING, nobody(), what, out);
    }

    fn found(&mut self, id: u64, partition: PartitionId, position: Position, found: Option<Visible>, out: &mut Out) {
        let Some(reading) = self.read.take_if(|reading| reading.id == id) else { return };
        let Reading { key: Some(key), level, floors, .. } = reading else { return };
        if let Some(record) = &found {
            self.shows(record, vec!['a'], out);
        }
        let floor = floors.get(&partition).copied().unwrap_or_default();
        let known = self.me.floors.entry(partition).or_default();
        *known = position.max(*known);
        let found = found.map(|record| (record.version, value_of(&record)));
        self.me.seen.insert(key.clone(), found.map(|(version, _)| version).unwrap_or_default());
        let client = self.number;
        out.put(Effect::Fact(Fact::Read { client, key, level, found, floor, position, partition, id }.into()));
    }

    /// The same of all records: each is there, or is not.
    fn scanned(&mut self, id: u64, records: Vec<Visible>, parts: &[Part], out: &mut Out) {
        let Some(Reading { level, floors, .. }) = self.read.take_if(|reading| reading.id == id) else { return };
        records.iter().for_each(|record| self.shows(record, vec!['a'], out));
        for part in parts {
            let known = self.me.floors.entry(part.partition).or_default();
            *known = part.position.max(*known);
        }
        let found: Rows = records.iter().map(|one| (one.key.clone(), (one.version, value_of(one)))).collect();
        for key in (0..KEYS).map(key) {
            let Some(part) = parts.iter().find(|part| part.end.as_ref().is_none_or(|end| key < *end)) else { continue };
            let Part { partition, position, .. } = *part;
            let floor = floors.get(&partition).copied().unwrap_or_default();
            let (client, found) = (self.number, found.get(&key).copied());
            self.me.seen.insert(key.clone(), found.map(|(version, _)| version).unwrap_or_default());
            out.put(Effect::Fact(Fact::Read { client, key, level, found, floor, position, partition, id }.into()));
        }
    }

    fn shows(&self, record: &Visible, teams: Vec<char>, out: &mut Out) {
        let (key, version, value) = (record.key.clone(), record.version, value_of(record));
        out.put(Effect::Fact(Fact::Shows { client: self.number, teams, key, version, value }.into()));
    }

    /// Writes or reads the table that is dropped now and then.
    fn pass(&mut self, out: &mut Out) {
        let id = self.id(PASSES);
        let key = key(self.rng.below(KEYS));
        let what = match self.rng.one_in(2) {
            true => {
                let value = i64::from(self.number) * 10_000_000 + id as i64 - PASSES as i64;
                let change = Update::Put { columns: columns(value), predicate: String::new() };
                let (data, condition) = (Packed::empty(), Condition::Blind);
                Asked::Write(Box::new(Write { op: None, key, change, condition, data, deadline: None }))
            }
            false => Asked::Read(Box::new(reads(Span::Only(key), calls::Level::Latest, 'a')), Vec::new()),
        };
        out.put(Effect::Fact(Fact::Asks { client: self.number, id }.into()));
        self.ask(id, PASSING, nobody(), what, out);
    }

    fn answered(&mut self, now: Now, id: u64, answer: Result<Answered, Refusal>, out: &mut Out) {
        match (id, answer) {
            (REREADS.., Ok(Answered::Rows(records, _))) => self.reread(id, records, out),
            (REREADS.., _) => {}
            (FORKS.., Ok(Answered::Written(partition, outcome))) => {
                self.written(id - FORKS, Ok((partition, outcome)), true, out);
            }
            (FORKS.., Err(refusal @ Refusal::Forked)) => self.written(id - FORKS, Err(refusal), true, out),
            (COMPARES..FORKS, Ok(Answered::Rows(records, _))) => self.read_all(now, id, records, out),
            (PASSES..COMPARES, Ok(answer)) => {
                let client = self.number;
                if let Answered::Written(PartitionId { table, .. }, _)
                | Answered::Found(PartitionId { table, .. }, ..) = answer
                {
                    out.put(Effect::Fact(Fact::Passing { client, id, table }.into()));
                }
            }
            (READS..PASSES, Ok(Answered::Found(partition, position, found))) => {
                self.found(id, partition, position, found, out);
            }
            (READS..PASSES, Ok(Answered::Rows(records, parts))) => self.scanned(id, records, &parts, out),
            (READS..PASSES, Err(_)) => drop(self.read.take_if(|reading| reading.id == id)),
            (..READS, Ok(Answered::Written(partition, outcome))) => {
                self.written(id, Ok((partition, outcome)), false, out);
            }
            (..READS, Err(refusal)) => self.written(id, Err(refusal), false, out),
            _ => {}
        }
    }

    // ---- at the end -------------------------------------------------------------------------------------------------

    /// Compares what its live query told with what a fresh read says.
    pub fn compare(&mut self, now: Now, out: &mut Out) {
        self.compares += 1;
        self.asks = Some((Ends::Compare, now.mono));
        self.ask_again(now, out);
        self.keep();
    }

    /// Reads everything that anybody may be shown.
    pub fn read_last(&mut self, now: Now, out: &mut Out) {
        self.asks = Some((Ends::Last(0), now.mono));
        self.ask_again(now, out);
        self.keep();
    }

    fn ask_again(&mut self, now: Now, out: &mut Out) {
        let Some((ends, _)) = self.asks else { return };
        self.asks = Some((ends, now.mono + Duration::from_millis(AGAIN.1)));
        let (kind, read, caller) = match ends {
            Ends::Compare => {
                let expired = self.me.expires.is_some_and(|expires| expires <= now.wall);
                let caller = if expired { nobody() } else { self.caller() };
                let read = Read { ask: self.query(), ..reads(Span::All, calls::Level::Latest, self.me.team) };
                (COMPARES, read, caller)
            }
            Ends::Last(reader) => {
                let (team, user) = READERS[reader];
                let read = reads(Span::All, calls::Level::Latest, team);
                let read = if team == 'n' { Read { data: nobody_there(), ..read } } else { read };
                (LAST, read, user.map_or_else(nobody, who))
            }
        };
        let id = self.id(kind);
        self.ask(id, LASTING, caller, Asked::Scan(Box::new(read), Vec::new()), out);
    }

    fn read_all(&mut self, now: Now, id: u64, records: Vec<Visible>, out: &mut Out) {
        let rows = records.iter().map(|record| (record.key.clone(), (record.version, value_of(record))));
        match self.asks {
            Some((Ends::Compare, _)) if id < LAST => {
                self.asks = None;
                let fresh = rows.collect();
                let compared = match self.me.device.away {
                    true => self.compared_away(fresh),
                    false => Some(self.compared(fresh)),
                };
                if let Some(fact) = compared {
                    out.put(Effect::Fact(fact.into()));
                }
            }
            Some((Ends::Last(reader), _)) if id >= LAST => {
                self.last.extend(rows);
                self.asks = (reader + 1 < READERS.len()).then_some((Ends::Last(reader + 1), now.mono));
                match self.asks {
                    Some(_) => self.ask_again(now, out),
                    None => out.put(Effect::Fact(Fact::Last(self.last.clone()).into())),
                }
            }
            _ => {}
        }
    }
}

/// A user by number.
fn who(number: u32) -> Caller {
    let user = format!("u{number}");
    let claims = Packed::columns([("sub", Value::from(user.as_str()))]).unwrap_or_else(|_| Packed::empty());
    let principal = format!("app:app/{user}");
    Caller { access: Access::User, app: "app".to_owned(), user, principal, claims, expires: None }
}

/// Somebody of whom nothing is known.
fn nobody() -> Caller {
    let (access, app, user) = (Access::Public, String::new(), String::new());
    Caller { access, app, user, principal: String::new(), claims: Packed::empty(), expires: None }
}

/// What nobody says of itself but at the end.
fn nobody_there() -> Packed {
    Packed::columns([("team", Value::from("nobody"))]).unwrap_or_else(|_| Packed::empty())
}

fn reads(span: Span, level: calls::Level, team: char) -> Read {
    let (data, floor) = (of_team(team), Position::ZERO);
    Read { ask: Ask::default(), span, level, data, floor, whole: false, deadline: None }
}
