//! A live query: what enters, changes and leaves its answer, from a cursor on, across lost connections.

use super::form::{self, Columns, Record};
use super::{Table, body};
use crate::backoff::Backoff;
use crate::link::{Answers, Outflow};
use bytes::Bytes;
use futures::Stream;
use std::collections::VecDeque;
use std::time::Duration;
use tidings_base::Seeded;
use tidings_base::{Class, Error};
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, PartitionValue};
use tidings_wire::v1::live_event::Event as Said;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, Part, v1};

/// The pauses between attempts to open the query again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long one attempt waits for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How a query is watched.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// What writers' predicates see as `reader`.
    pub reader: Columns,
    /// Where an earlier watch ended; none = everything that exists, empty = nothing of it.
    pub cursor: Option<Bytes>,
    /// Leaves records out of the first read that are older, in microseconds since 1970.
    pub newer_than_us: u64,
    /// Only records within this value of the table's partition column.
    pub within: Option<PartitionValue>,
    /// R3: names this device, at random and for good: while the watch is closed, Notify tells of changes ([`objects`]). A device
    /// has one watch of each query; the latest counts.
    pub endpoint: Option<[u8; 16]>,
}

/// R3: the objects of Notify that tell a device of changes to what it watches while it is away, all in the table's application.
/// Whatever is heard of any of them means: watch again from the last cursor, and look again which objects there are.
///
/// Each part of the table has two: one of the device, and one that tells everybody that the part is in other hands, or was cut
/// or joined, and that nobody there knows who is away.
pub fn objects(info: &v1::TableInfo, endpoint: &[u8; 16]) -> Vec<String> {
    let device: String = endpoint.iter().map(|byte| format!("{byte:02x}")).collect();
    let both = |part| {
        let all = partition_object(info, part);
        let own = format!("{all}/{device}");
        [all, own]
    };
    info.partitions.iter().flat_map(both).collect()
}

pub(super) fn partition_object(info: &v1::TableInfo, part: &v1::PartitionInfo) -> String {
    format!("tables/{:016x}.{}", info.id, part.number)
}

/// What happened to the answer of a live query.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// What is known of these keys is replaced by the rows, at once when the last piece has come.
    Reset {
        /// The first key; none = from the beginning.
        start: Option<Key>,
        /// The first key behind; none = to the end.
        end: Option<Key>,
        /// Rows of this piece.
        rows: Vec<Record>,
        /// Whether it is the first piece.
        first: bool,
        /// Whether it is the last piece.
        last: bool,
    },
    /// A record belongs to it, or has changed in it.
    Put(Record),
    /// A record does not belong to it any more.
    Leave(Key),
    /// These are all rows now: of queries with projections, an order, a limit or aggregates (R9).
    Rows(Vec<Record>),
    /// After new reader data: whether it is not yet in force everywhere.
    Settling(bool),
    /// It is over: it was refused, or fell too far behind.
    Ended(Error),
}

/// A live query. It ends when it is dropped.
pub struct Watch {
    table: Table,
    query: v1::RecordQuery,
    options: WatchOptions,
    open: Option<(Outflow, Answers)>,
    items: VecDeque<Item>,
    /// Of everything that was received.
    received: Option<Bytes>,
    ended: bool,
    backoff: Backoff,
}

/// What was received and not taken yet.
enum Item {
    Event(Event),
    /// Everything before this was told.
    Cursor(Bytes),
}

impl Table {
    /// Watches a query.
    pub fn watch(&self, ask: &Ask, options: WatchOptions) -> Watch {
        let rng = Seeded::new(self.tables.seed).fork("watch");
        Watch {
            table: self.clone(),
            query: v1::RecordQuery {
                within: options.within.clone().map(form::partition_value_to),
                ..form::query_to(ask)
            },
            received: options.cursor.clone(),
            options,
            open: None,
            items: VecDeque::new(),
            ended: false,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE, rng),
        }
    }
}

impl Watch {
    /// The next event; `None` after it has ended. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.items.pop_front() {
                Some(Item::Event(event)) => {
                    self.ended |= matches!(event, Event::Ended(_));
                    return Some(event);
                }
                Some(Item::Cursor(cursor)) => {
                    self.options.cursor = Some(cursor);
                    continue;
                }
                None if self.ended => return None,
                None => {}
            }
            if let Err(error) = self.receive().await {
                self.open = None;
                if is_final(&error) {
                    self.items.push_back(Item::Event(Event::Ended(error)));
                } else {
                    tracing::debug!(%error, "tables: a live query lost its connection");
                    self.table.tables.client.follow(Part::Tables, &error);
                    tokio::time::sleep(self.backoff.next()).await;
                }
            }
        }
    }

    /// Where to go on later: everything before it was told.
    pub fn cursor(&self) -> Option<&Bytes> {
        self.options.cursor.as_ref()
    }

    /// Gives other reader data: what enters and leaves by it is told as events.
    pub async fn update(&mut self, reader: Columns) -> Result<(), Error> {
        let data = form::data_to(&reader)?;
        self.options.reader = reader;
        if let Some((outflow, _)) = &mut self.open {
            let update = v1::LiveUpdate { reader: Some(data) };
            if outflow.send(body(Message::Update(update))).await.is_err() {
                // It is opened again with the new data.
                self.open = None;
            }
        }
        Ok(())
    }

    /// Everything as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Event> + Send {
        futures::stream::unfold(self, |mut watch| async move {
            let event = watch.next().await?;
            Some((event, watch))
        })
    }

    /// Takes one frame, opening the query first if it is not.
    async fn receive(&mut self) -> Result<(), Error> {
        if self.open.is_none() {
            let query = v1::LiveQuery {
                table: self.table.name.to_string(),
                query: Some(self.query.clone()),
                reader: Some(form::data_to(&self.options.reader)?),
                cursor: self.received.clone(),
                newer_than_us: self.options.newer_than_us,
                netid: self.options.endpoint.map(|endpoint| endpoint.to_vec().into()).unwrap_or_default(),
                ..Default::default()
            };
            let link = self.table.tables.client.any(Part::Tables, CONNECT).await?;
            self.open = Some(link.open(body(Message::Watch(query)), None).await?);
        }
        let Some((_, answers)) = &mut self.open else { return Ok(()) };
        match answers.next().await.transpose()? {
            Some(Body::Tables(v1::TablesMessage { message: Some(Message::Events(events)), .. })) => {
                self.backoff.reset();
                self.take(events)
            }
            Some(_) => Err(super::unexpected()),
            None => Err(tidings_wire::error::closed()),
        }
    }

    fn take(&mut self, events: v1::LiveEvents) -> Result<(), Error> {
        for event in events.events {
            let Some(said) = event.event else { continue };
            let item = match said {
                Said::Cursor(cursor) => {
                    self.received = Some(cursor.clone());
                    Item::Cursor(cursor)
                }
                said => Item::Event(told(said)?),
            };
            self.items.push_back(item);
        }
        Ok(())
    }
}

/// An event as applications hear it; none if it is only a cursor.
pub fn event_of(event: v1::LiveEvent) -> Result<Option<Event>, Error> {
    match event.event {
        None | Some(Said::Cursor(_)) => Ok(None),
        Some(said) => told(said).map(Some),
    }
}

fn told(said: Said) -> Result<Event, Error> {
    let rows = |rows: Vec<v1::Record>| rows.into_iter().map(Record::try_from).collect::<Result<Vec<_>, Error>>();
    Ok(match said {
        Said::Reset(reset) => Event::Reset {
            start: reset.start.and_then(form::key_of),
            end: reset.end.and_then(form::key_of),
            rows: rows(reset.rows)?,
            first: reset.first,
            last: reset.last,
        },
        Said::Put(record) => Event::Put(record.try_into()?),
        Said::Leave(key) => Event::Leave(form::key_of(key).ok_or_else(super::unexpected)?),
        Said::Rows(answer) => Event::Rows(rows(answer.rows)?),
        Said::Settling(settling) => Event::Settling(settling),
        Said::Ended(error) => Event::Ended(error.into()),
        // It is no event of its own.
        Said::Cursor(_) => return Err(super::unexpected()),
    })
}

/// Whether another attempt would be answered the same way.
fn is_final(error: &Error) -> bool {
    matches!(error.class, Class::Invalid | Class::NotFound | Class::Refused) && error.code != "control.slow_reader"
}
