//! A client that reads and writes cells, and appends to the feed.

use super::caller::{Caller, Ended};
use super::fact::{Action, CellName, ClientFact, OpName, Outcome, StoreFact};
use super::{CAS_GROUP, FENCED_GROUP, GROUPS, ROWS, TOPICS};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox, Seeded};
use tidings_wire::v1::{self, feed_message, frame::Body, store_message};

/// How long a client waits for an answer before it takes the outcome for unknown.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The wall clock, in milliseconds, from which timestamps are counted: far enough back for any jump.
const TIMESTAMP_EPOCH: u64 = 1_767_000_000_000;

/// The one column.
const COLUMN: &[u8] = b"v";

/// The one fence.
const FENCE: &[u8] = b"owner";

/// A client.
pub struct Client {
    host: HostId,
    start: u64,
    rng: Seeded,
    caller: Caller,
    think: Duration,
    next_at: Mono,
    number: u64,
    clock: u64,
    fence: u64,
    known: BTreeMap<CellName, u64>,
    open: Option<(OpName, Action)>,
    stopped: bool,
    answered: u64,
}

type Out = Outbox<Effect<StoreFact>>;

impl Client {
    /// A client that asks again `think` after each answer, on average.
    pub fn new(host: HostId, start: u64, servers: Vec<HostId>, now: Now, rng: Seeded, think: Duration) -> Client {
        let caller = Caller::new(servers, rng.fork("calls"));
        Client {
            host,
            start,
            rng,
            caller,
            think,
            next_at: now.mono,
            number: start << 32,
            clock: 0,
            fence: 1,
            known: BTreeMap::new(),
            open: None,
            stopped: false,
            answered: 0,
        }
    }

    /// Asks nothing more once the present operation has ended.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether it has nothing open and asks nothing more.
    pub fn is_quiet(&self) -> bool {
        self.stopped && self.open.is_none()
    }

    /// How many operations were answered, refusals and unknown outcomes aside.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        match (&self.open, self.stopped) {
            (Some(_), _) => self.caller.deadline(),
            (None, true) => None,
            (None, false) => Some(self.next_at),
        }
    }

    /// A message from a server.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        if let Some(ended) = self.caller.receive(now, from, bytes, out) {
            self.ended(now, ended, out);
        }
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        if self.open.is_some() {
            if let Some(ended) = self.caller.wake(now, out) {
                self.ended(now, ended, out);
            }
        } else if !self.stopped && now.mono >= self.next_at {
            self.begin(now, out);
        }
    }

    fn begin(&mut self, now: Now, out: &mut Out) {
        self.number += 1;
        let op = OpName { client: self.host, number: self.number };
        let action = self.choose(now);
        let writes = !matches!(action, Action::Read { .. });
        let body = body_of(&action);
        out.put(Effect::Fact(StoreFact::Client(ClientFact::Asked { op, action: action.clone() })));
        self.open = Some((op, action));
        self.caller.call(now, body, writes, TIMEOUT, out);
    }

    /// A timestamp that nobody else uses: a logical clock that follows the wall clock, the host, the start.
    fn timestamp(&mut self, now: Now) -> u64 {
        self.clock = (self.clock + 1).max(now.wall.millis().saturating_sub(TIMESTAMP_EPOCH));
        (self.clock << 24) | (u64::from(self.host.0) << 16) | (self.start & 0xffff)
    }

    fn row(&mut self) -> u8 {
        self.rng.below(u64::from(ROWS)) as u8
    }

    fn choose(&mut self, now: Now) -> Action {
        let group = self.rng.below(u64::from(GROUPS)) as u8;
        match self.rng.below(20) {
            0..=4 => self.blind_write(now, false),
            5..=6 => self.fenced_write(now),
            7..=9 => {
                let cell = CellName { group: CAS_GROUP, row: self.row() % 2 };
                let expected = self.known.get(&cell).copied().unwrap_or(0);
                self.clock = self.clock.max(expected >> 24);
                Action::CompareAndSet { cell, expected, timestamp: self.timestamp(now) }
            }
            10..=12 => Action::Read { cells: vec![CellName { group, row: self.row() }] },
            13..=14 => Action::Read { cells: (0..ROWS).map(|row| CellName { group, row }).collect() },
            15..=16 => self.blind_write(now, true),
            _ => {
                let topic = self.rng.below(u64::from(TOPICS)) as u8;
                let count = self.rng.between(1, 3);
                let entries = (0..count).map(|_| self.timestamp(now)).collect();
                Action::Append { topic, entries }
            }
        }
    }

    fn blind_write(&mut self, now: Now, and_append: bool) -> Action {
        let group = self.rng.below(u64::from(CAS_GROUP)) as u8;
        let mut rows: Vec<u8> = (0..ROWS).collect();
        self.rng.shuffle(&mut rows);
        rows.truncate(self.rng.between(1, 3) as usize);
        let cells = rows.into_iter().map(|row| CellName { group, row }).collect();
        let timestamp = self.timestamp(now);
        let append = and_append.then(|| (self.rng.below(u64::from(TOPICS)) as u8, timestamp));
        Action::Write { cells, timestamp, tombstone: self.rng.one_in(8), fence: None, append }
    }

    fn fenced_write(&mut self, now: Now) -> Action {
        let number = if self.rng.one_in(4) { self.fence + 1 } else { self.fence };
        let number = if self.rng.one_in(10) { self.rng.between(1, number) } else { number };
        let cells = vec![CellName { group: FENCED_GROUP, row: self.row() }];
        Action::Write { cells, timestamp: self.timestamp(now), tombstone: false, fence: Some(number), append: None }
    }

    fn ended(&mut self, now: Now, ended: Ended, out: &mut Out) {
        let Some((op, action)) = self.open.take() else { return };
        let outcome = match ended {
            Ended::Answer(body) => read_answer(&action, body),
            Ended::Refused => Outcome::Refused,
            Ended::Unknown => Outcome::Unknown,
            Ended::Broken(what) => Outcome::Broken(what),
        };
        self.learn(&action, &outcome);
        out.put(Effect::Fact(StoreFact::Client(ClientFact::Told { op, outcome })));
        let think = u64::try_from(self.think.as_nanos()).unwrap_or(u64::MAX / 4);
        self.next_at = now.mono + Duration::from_nanos(self.rng.below(2 * think));
    }

    fn learn(&mut self, action: &Action, outcome: &Outcome) {
        if !matches!(outcome, Outcome::Refused | Outcome::Unknown | Outcome::Broken(_)) {
            self.answered += 1;
        }
        match (action, outcome) {
            (Action::CompareAndSet { cell, timestamp, .. }, Outcome::Done) => {
                self.known.insert(*cell, *timestamp);
            }
            (Action::CompareAndSet { cell, .. }, Outcome::Differs { actual }) => {
                self.known.insert(*cell, actual.unwrap_or(0));
            }
            (Action::Write { fence: Some(_), .. }, Outcome::Fenced { number }) => self.fence = *number,
            (Action::Write { fence: Some(number), .. }, Outcome::Done) => self.fence = self.fence.max(*number),
            (_, Outcome::Cells(cells)) => {
                for (cell, timestamp) in cells {
                    let timestamp = timestamp.unwrap_or(0);
                    self.clock = self.clock.max(timestamp >> 24);
                    if cell.group == CAS_GROUP {
                        self.known.insert(*cell, timestamp);
                    }
                }
            }
            _ => {}
        }
    }
}

fn group_name(group: u8) -> Bytes {
    Bytes::from(format!("group-{group}"))
}

fn row_name(row: u8) -> Bytes {
    Bytes::from(format!("row-{row}"))
}

pub(super) fn topic_name(topic: u8) -> Bytes {
    Bytes::from(format!("topic-{topic}"))
}

pub(super) fn consumer_group_name(group: u8) -> Bytes {
    Bytes::from(format!("readers-{group}"))
}

fn value(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

fn cell(timestamp: u64, tombstone: bool) -> v1::Cell {
    let value = (!tombstone).then(|| value(timestamp));
    v1::Cell { column: Bytes::from_static(COLUMN), timestamp, value }
}

fn group_write(cells: &[CellName], timestamp: u64, tombstone: bool, fence: Option<u64>) -> v1::GroupWrite {
    let rows =
        cells.iter().map(|name| v1::RowWrite { row: row_name(name.row), cells: vec![cell(timestamp, tombstone)] });
    v1::GroupWrite {
        group: group_name(cells.first().map_or(0, |cell| cell.group)),
        rows: rows.collect(),
        fence: fence.map(|number| v1::Fence { name: Bytes::from_static(FENCE), number }),
    }
}

fn append(topic: u8, entries: &[u64]) -> v1::Append {
    v1::Append { topic: topic_name(topic), entries: entries.iter().map(|entry| value(*entry)).collect() }
}

fn store(message: store_message::Message) -> Body {
    Body::Store(v1::StoreMessage { message: Some(message) })
}

pub(super) fn feed(message: feed_message::Message) -> Body {
    Body::Feed(v1::FeedMessage { message: Some(message) })
}

/// The request that an action makes.
fn body_of(action: &Action) -> Body {
    use store_message::Message;
    match action {
        Action::Write { cells, timestamp, tombstone, fence, append: None } => {
            let groups = vec![group_write(cells, *timestamp, *tombstone, *fence)];
            store(Message::Apply(v1::Apply { groups }))
        }
        Action::Write { cells, timestamp, tombstone, fence, append: Some((topic, entry)) } => {
            let groups = vec![group_write(cells, *timestamp, *tombstone, *fence)];
            let append = Some(append(*topic, &[*entry]));
            store(Message::ApplyAndAppend(v1::ApplyAndAppend { groups, append }))
        }
        Action::CompareAndSet { cell: name, expected, timestamp } => store(Message::CompareAndSet(v1::CompareAndSet {
            key: Some(v1::RowKey { group: group_name(name.group), row: row_name(name.row) }),
            column: Bytes::from_static(COLUMN),
            expected: *expected,
            write: Some(cell(*timestamp, false)),
            fence: None,
        })),
        Action::Read { cells } if cells.len() == 1 => store(Message::Get(v1::Get {
            key: Some(v1::RowKey { group: group_name(cells[0].group), row: row_name(cells[0].row) }),
            columns: vec![Bytes::from_static(COLUMN)],
        })),
        Action::Read { cells } => store(Message::Scan(v1::Scan {
            group: group_name(cells.first().map_or(0, |cell| cell.group)),
            ..v1::Scan::default()
        })),
        Action::Append { topic, entries } => feed(feed_message::Message::Append(append(*topic, entries))),
        Action::Consume { topic, group } => feed(feed_message::Message::Consume(v1::Consume {
            topic: topic_name(*topic),
            group: consumer_group_name(*group),
            limit: 16,
            wait_ms: 2_000,
            redeliver_ms: 5_000,
        })),
        Action::Ack { topic, group, numbers } => feed(feed_message::Message::Ack(v1::Ack {
            topic: topic_name(*topic),
            group: consumer_group_name(*group),
            numbers: numbers.clone(),
        })),
    }
}

/// The request of a consumer.
pub(super) fn consumer_body(action: &Action) -> Body {
    body_of(action)
}

/// Reads the answer to an action.
pub(super) fn read_answer(action: &Action, body: Body) -> Outcome {
    let broken = |what: String| Outcome::Broken(format!("{action:?} was answered with {what}"));
    match (action, body) {
        (_, Body::Store(v1::StoreMessage { message: Some(message) })) => match message {
            store_message::Message::Applied(applied) => failures(&applied.failures).unwrap_or(Outcome::Done),
            store_message::Message::AppliedAndAppended(done) => match (failures(&done.failures), done.appended) {
                (Some(failed), _) => failed,
                (None, Some(appended)) => Outcome::Appended { first: appended.first },
                (None, None) => broken("neither failures nor numbers".to_string()),
            },
            store_message::Message::CompareAndSetDone(done) if done.written => Outcome::Done,
            store_message::Message::CompareAndSetDone(done) => {
                Outcome::Differs { actual: done.actual.map(|cell| cell.timestamp) }
            }
            store_message::Message::Rows(rows) => read_rows(action, &rows),
            other => broken(format!("{other:?}")),
        },
        (_, Body::Feed(v1::FeedMessage { message: Some(message) })) => match message {
            feed_message::Message::Appended(appended) => Outcome::Appended { first: appended.first },
            feed_message::Message::Acked(_) => Outcome::Done,
            feed_message::Message::Deliveries(deliveries) => {
                let entries = deliveries.deliveries.iter().map(|one| Some((one.number, number(&one.entry)?)));
                match entries.collect::<Option<Vec<_>>>() {
                    Some(entries) => Outcome::Delivered(entries),
                    None => broken("an entry that is no number".to_string()),
                }
            }
            other => broken(format!("{other:?}")),
        },
        (_, other) => broken(format!("{other:?}")),
    }
}

fn failures(failures: &[v1::GroupFailure]) -> Option<Outcome> {
    let failure = failures.first()?;
    Some(match failure.code.as_str() {
        "store.fenced" => Outcome::Fenced { number: failure.fence },
        code => Outcome::Broken(format!("{code}: {}", failure.message)),
    })
}

fn number(bytes: &Bytes) -> Option<u64> {
    Some(u64::from_le_bytes(bytes[..].try_into().ok()?))
}

fn read_rows(action: &Action, rows: &v1::Rows) -> Outcome {
    let Action::Read { cells } = action else { return Outcome::Broken(format!("{action:?} was answered with rows")) };
    let mut seen = Vec::with_capacity(cells.len());
    for name in cells {
        let row = rows.rows.iter().find(|row| row.row == row_name(name.row));
        let cell = row.and_then(|row| row.cells.first());
        if let Some(cell) = cell.filter(|cell| cell.value != Some(value(cell.timestamp))) {
            return Outcome::Broken(format!("{name:?} holds a value that was never written there: {cell:?}"));
        }
        seen.push((*name, cell.map(|cell| cell.timestamp)));
    }
    Outcome::Cells(seen)
}
