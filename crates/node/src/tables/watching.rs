//! Live queries of the clients that are connected to this node.

use super::convert;
use super::directories::TableName;
use super::hub::{Hub, Said};
use crate::connection::{Requests, Responder};
use crate::metrics;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_base::{Class, Error, Wall};
use tidings_client::tables::form::{into_json, key_to, query_of};
use tidings_tables::gateway::{Event, Input, Start, Watch};
use tidings_tables::live::Change;
use tidings_tables::names::Endpoint;
use tidings_tables::refusal::Refusal;
use tidings_wire::v1::live_event::Event as Told;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, error, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What the gateway says of a query; a refusal is the last.
type Heard = Result<Event, Refusal>;

/// Who watches, by number.
#[derive(Default)]
pub(super) struct Watchers {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, mpsc::UnboundedSender<Heard>>>,
}

impl Watchers {
    /// Tells whoever watches. The gateway has so much under way at most as was taken before.
    pub(super) fn tell(&self, number: u64, heard: Heard) {
        let mut open = self.open.lock();
        let ended = heard.is_err();
        if let Some(events) = open.get(&number) {
            // Who does not watch any more needs no event.
            let _ = events.send(heard);
        }
        if ended {
            open.remove(&number);
            metrics::tables_watchers(open.len());
        }
    }

    fn begin(&self, events: mpsc::UnboundedSender<Heard>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open.lock();
        open.insert(number, events);
        metrics::tables_watchers(open.len());
        number
    }

    fn end(&self, number: u64) {
        let mut open = self.open.lock();
        open.remove(&number);
        metrics::tables_watchers(open.len());
    }

    /// Lets everybody go.
    pub(super) fn close(&self) {
        self.open.lock().clear();
    }
}

/// A live query. It ends when it is dropped.
pub struct Watching {
    hub: Arc<Hub>,
    number: u64,
    events: mpsc::UnboundedReceiver<Heard>,
    /// An event was handed out, and is taken when the next is asked for.
    handed: bool,
    /// The answer is to be read again.
    again: bool,
    caller: v1::TablesCaller,
    query: v1::LiveQuery,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.hub.watchers.end(self.number);
        self.hub.say(Said::Gateway(Input::Unwatch { number: self.number }));
    }
}

impl Watching {
    /// The next events; `None` once this node stops, an error when the query is over. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<Result<v1::LiveEvents, Error>> {
        if std::mem::take(&mut self.handed) {
            self.hub.say(Said::Gateway(Input::Taken { number: self.number, events: 1 }));
        }
        if !self.again {
            match self.events.recv().await? {
                Ok(Event::Again) => self.again = true,
                Ok(event) => {
                    self.handed = true;
                    return Some(self.told(told_of(event)));
                }
                Err(refusal) => return Some(Err(refusal.into())),
            }
        }
        let rows = self.read().await;
        (self.again, self.handed) = (false, true);
        Some(rows.and_then(|rows| self.told(vec![Told::Rows(rows)])))
    }

    /// Other reader data.
    pub async fn update(&self, update: &v1::LiveUpdate) -> Result<(), Error> {
        let data = convert::data(&update.reader)?;
        self.hub.gateway(Input::UpdateData { number: self.number, data }).await;
        Ok(())
    }

    /// Events in the form that was asked for.
    fn told(&self, mut events: Vec<Told>) -> Result<v1::LiveEvents, Error> {
        if self.query.as_json {
            events.iter_mut().flat_map(records).filter_map(|record| record.data.as_mut()).try_for_each(into_json)?;
        }
        Ok(v1::LiveEvents { events: events.into_iter().map(|event| v1::LiveEvent { event: Some(event) }).collect() })
    }

    /// R9: orders, limits and aggregates are read again.
    async fn read(&self) -> Result<v1::RecordRows, Error> {
        let read = v1::RecordRead {
            table: self.query.table.clone(),
            query: self.query.query.clone(),
            reader: self.query.reader.clone(),
            ..Default::default()
        };
        self.hub.read(&self.caller, read).await
    }
}

/// What a client hears; that something is to be read again it never does.
fn told_of(event: Event) -> Vec<Told> {
    match event {
        Event::Reset { start, end, rows, first, last } => vec![Told::Reset(v1::LiveReset {
            start: start.map(key_to),
            end: end.map(key_to),
            rows: rows.into_iter().map(convert::record_to).collect(),
            first,
            last,
        })],
        Event::Changes(changes) => changes
            .into_iter()
            .map(|change| match change {
                Change::Put(record) => Told::Put(convert::record_to(record)),
                Change::Leave { key } => Told::Leave(key_to(key)),
            })
            .collect(),
        Event::Settling => vec![Told::Settling(true)],
        Event::Settled => vec![Told::Settling(false)],
        // An empty one would mean to begin with nothing.
        Event::Progress { cursor } if !cursor.is_empty() => vec![Told::Cursor(cursor.into())],
        Event::Progress { .. } | Event::Again => Vec::new(),
    }
}

fn records(event: &mut Told) -> Vec<&mut v1::Record> {
    match event {
        Told::Reset(reset) => reset.rows.iter_mut().collect(),
        Told::Put(record) => vec![record],
        Told::Rows(rows) => rows.rows.iter_mut().collect(),
        Told::Leave(_) | Told::Settling(_) | Told::Cursor(_) | Told::Ended(_) => Vec::new(),
    }
}

impl Hub {
    /// Begins a live query for somebody.
    pub(super) async fn watch(
        self: &Arc<Self>,
        caller: v1::TablesCaller,
        query: v1::LiveQuery,
    ) -> Result<Watching, Error> {
        let name = TableName::parse(&caller.app, &query.table)?;
        let until = Instant::now() + super::serving::CALL;
        let entry = loop {
            match self.table(&name).await {
                Ok(entry) => break entry,
                Err(error) => self.again(error, until).await?,
            }
        };
        let who = convert::relative(&caller, &name.app);
        let endpoint = match query.netid.is_empty() {
            true => None,
            false => Some(Endpoint { netid: convert::netid_of(&query.netid)?, app: caller.app.clone() }),
        };
        let watch = Watch {
            table: entry.table(),
            ask: query_of(&query.query.clone().unwrap_or_default())?,
            caller: convert::caller_of(&who),
            data: convert::data(&query.reader)?,
            start: match &query.cursor {
                None => Start::Everything,
                Some(cursor) if cursor.is_empty() => Start::Nothing,
                Some(cursor) => Start::Cursor(cursor.to_vec()),
            },
            newer_than: (query.newer_than_us > 0).then_some(Wall(query.newer_than_us)),
            endpoint,
        };
        self.tell_gateway(&entry).await;
        // As much as the gateway has under way.
        let (sender, events) = mpsc::unbounded_channel();
        let number = self.watchers.begin(sender);
        let watching = Watching { hub: self.clone(), number, events, handed: false, again: false, caller, query };
        self.gateway(Input::Watch { number, watch: Box::new(watch) }).await;
        Ok(watching)
    }

    /// Serves one live query to its end.
    pub(super) async fn serve_watch(
        self: Arc<Self>,
        caller: v1::TablesCaller,
        query: v1::LiveQuery,
        rest: Option<Requests>,
        mut responder: Responder,
    ) {
        let Some(mut rest) = rest else { return responder.fail(one_frame()) };
        let mut watching = match self.watch(caller, query).await {
            Ok(watching) => watching,
            Err(error) => return responder.fail(error),
        };
        loop {
            tokio::select! {
                event = watching.next() => {
                    let events = match event {
                        Some(Ok(events)) => events,
                        Some(Err(error)) => return responder.fail(error),
                        None => return responder.fail(error::going_away(None)),
                    };
                    let message = Some(Message::Events(events));
                    let body = Body::Tables(v1::TablesMessage { message, ..Default::default() });
                    if responder.send(body).await.is_err() {
                        return;
                    }
                }
                said = rest.next() => match said {
                    Ok(Some(Body::Tables(v1::TablesMessage { message: Some(Message::Update(update)), .. }))) => {
                        if let Err(error) = watching.update(&update).await {
                            return responder.fail(error);
                        }
                        watching.query.reader = update.reader;
                    }
                    Ok(Some(_)) => return responder.fail(error::unsupported()),
                    Ok(None) | Err(_) => return responder.fail(error::closed()),
                }
            }
        }
    }
}

fn one_frame() -> Error {
    Error::new("tables.no_query", Class::Invalid, "a live query is an operation whose request goes on")
        .hint("Send the query with `more`, and new reader data under the same operation.")
}
