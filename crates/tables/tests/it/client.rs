//! What clients do in a world: write, read, watch and fold what they hear.

use crate::holding::{Held, held};
use crate::world::{TABLE, World, data, user};
use std::collections::BTreeMap;
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{
    Answer, Call, Caller, Condition, Level, Operation, Outcome, Page, Read, Span, Update, Visible, Write,
};
use tidings_tables::gateway::{Event, Start, Watch};
use tidings_tables::live::Change;
use tidings_tables::names::{NetId, OperationId, Position};
use tidings_tables::refusal::Refusal;

pub type Answered = Result<Answer, Refusal>;
pub type Rows = BTreeMap<Key, (Position, Packed)>;

pub fn columns(team: &str, n: i64) -> Packed {
    data(&[("team", team.into()), ("n", Value::Int(n))])
}

pub fn put(key: &str, team: &str, n: i64) -> Write {
    let change = Update::Put { columns: columns(team, n), predicate: String::new() };
    Write { op: None, key: key.into(), change, condition: Condition::Blind, data: Packed::empty(), deadline: None }
}

pub fn shown_to(mut write: Write, predicate: &str) -> Write {
    if let Update::Put { predicate: text, .. } = &mut write.change {
        *text = predicate.to_owned();
    }
    write
}

pub fn delete(key: &str) -> Write {
    Write { change: Update::Delete, ..put(key, "", 0) }
}

pub fn named(write: Write, seq: u64, acked_through: u64, after: Option<u64>) -> Write {
    let id = OperationId { netid: NetId([9; 16]), seq };
    Write { op: Some(Operation { id, acked_through, after }), ..write }
}

pub fn read(span: Span, level: Level, reader: &Packed) -> Read {
    let (data, floor) = (reader.clone(), Position::ZERO);
    Read { ask: Ask::default(), span, level, data, floor, whole: false, deadline: None }
}

/// Brings a write to a node and waits for the answer.
pub fn write(world: &mut World, node: usize, caller: &Caller, write: Write) -> Option<Answered> {
    let number = world.directory.find(&write.key).unwrap().number;
    let request = world.ask(node, number, caller.clone(), Call::Write(Box::new(write)));
    world.run(100);
    world.answer(request)
}

pub fn version(answer: Option<Answered>) -> Position {
    match answer {
        Some(Ok(Answer::Written(Outcome::Done { version }))) => version,
        other => panic!("not written: {other:?}"),
    }
}

/// All pieces of a read of one partition.
pub fn pages(world: &mut World, node: usize, number: u32, caller: &Caller, read: Read) -> Result<Page, Refusal> {
    let request = world.ask(node, number, caller.clone(), Call::Read(Box::new(read)));
    let mut all = Page { position: Position::ZERO, records: Vec::new(), rows: Vec::new(), last: false };
    for _ in 0..1_000 {
        world.run(50);
        match world.answer(request) {
            Some(Ok(Answer::Page(page))) => {
                all.records.extend(page.records);
                all.rows.extend(page.rows);
                (all.position, all.last) = (page.position, page.last);
                if all.last {
                    return Ok(all);
                }
                world.tell_processor(node, tidings_tables::processor::Input::Pull { request });
            }
            Some(Err(refusal)) => return Err(refusal),
            Some(Ok(other)) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("a read without end")
}

/// What a reader finds in all partitions now, at their owners.
pub fn fresh(world: &mut World, caller: &Caller, reader: &Packed, ask: &Ask) -> Rows {
    found(world, caller, reader, ask).unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

/// The same, unless an owner refuses: in a world without a rule one may serve nothing.
pub fn found(world: &mut World, caller: &Caller, reader: &Packed, ask: &Ask) -> Result<Rows, Refusal> {
    let mut rows = Rows::new();
    let numbers: Vec<u32> = world.directory.partitions.iter().map(|entry| entry.number).collect();
    for number in numbers {
        let (node, _) = world.owners[&number];
        let read = Read { ask: ask.clone(), ..read(Span::All, Level::Latest, reader) };
        let page = pages(world, node, number, caller, read)?;
        rows.extend(page.records.into_iter().map(|record| (record.key, (record.version, record.columns))));
    }
    Ok(rows)
}

pub fn everything(caller: &Caller, reader: &Packed, predicate: &str) -> Watch {
    Watch {
        table: TABLE,
        ask: Ask { predicate: predicate.to_owned(), ..Ask::default() },
        caller: caller.clone(),
        data: reader.clone(),
        start: Start::Everything,
        newer_than: None,
        endpoint: None,
    }
}

/// What a client has that applied every event it heard.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    pub rows: Rows,
    /// Pieces that have come, by the first key of their partition: partitions do not wait for each other.
    coming: BTreeMap<Option<Key>, Rows>,
    pub cursor: Option<Vec<u8>>,
    pub settling: bool,
    pub resets: usize,
    pub ended: Option<Refusal>,
    /// Whether something was told that changed nothing: in a calm world nothing is.
    pub needless: Option<String>,
}

impl Folded {
    /// The channel is gone: what has come of a reset counts no more.
    pub fn cut_off(&mut self) {
        self.coming.clear();
    }

    fn put(rows: &mut Rows, record: Visible, needless: &mut Option<String>) {
        let Visible { key, version, columns, .. } = record;
        if rows.get(&key).is_some_and(|(known, _)| *known >= version) {
            *needless = Some(format!("{key:?} at {version} again"));
        }
        rows.insert(key, (version, columns));
    }

    pub fn hear(&mut self, event: Result<Event, Refusal>) {
        let event = match event {
            Ok(event) => event,
            Err(refusal) => return self.ended = Some(refusal),
        };
        match event {
            Event::Reset { start, end, rows, first, last } => {
                let coming = self.coming.entry(start.clone()).or_default();
                if first {
                    coming.clear();
                }
                rows.into_iter().for_each(|row| Self::put(coming, row, &mut self.needless));
                if last {
                    self.resets += 1;
                    let inside = |key: &Key| {
                        start.as_ref().is_none_or(|start| start <= key) && end.as_ref().is_none_or(|end| key < end)
                    };
                    self.rows.retain(|key, _| !inside(key));
                    self.rows.append(coming);
                }
            }
            Event::Changes(changes) => {
                for change in changes {
                    match change {
                        Change::Put(record) => Self::put(&mut self.rows, record, &mut self.needless),
                        Change::Leave { key } => {
                            if self.rows.remove(&key).is_none() {
                                self.needless = Some(format!("{key:?} leaves and was not there"));
                            }
                        }
                    }
                }
            }
            Event::Again => {}
            Event::Settling => self.settling = true,
            Event::Settled => self.settling = false,
            Event::Progress { cursor } => self.cursor = Some(cursor),
        }
    }
}

/// What a query's client has heard so far.
pub fn folded(world: &World, number: u64) -> Folded {
    let mut folded = Folded::default();
    let events = world.events.iter().filter(|(of, _)| *of == number).map(|(_, event)| event.clone());
    events.for_each(|event| folded.hear(event));
    folded
}

/// Whether a client has what is there, and was told nothing that it had already.
pub fn agrees(world: &mut World, number: u64, reader: &Packed, predicate: &str) -> Held {
    let ask = Ask { predicate: predicate.to_owned(), ..Ask::default() };
    let (folded, fresh) = (folded(world, number), fresh(world, &user("ann"), reader, &ask));
    held(folded.rows == fresh, || format!("told {:?}, there is {fresh:?}", folded.rows))?;
    held(folded.needless.is_none(), || format!("{:?}", folded.needless))
}
