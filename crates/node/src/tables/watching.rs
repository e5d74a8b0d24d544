//! Live queries of the clients that are connected to this node.

use super::convert;
use super::directories::TableName;
use super::hub::{Hub, Said};
use super::reading::{PAGE, Taken, too_large};
use super::rereading::Rereading;
use super::untaken::{Connection, Heard, Standing, Untaken};
use crate::connection::{Link, Requests, Responder};
use crate::metrics;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidings_base::{Class, Error, Wall};
use tidings_client::tables::form::{into_json, key_to, partition_value_of, query_of};
use tidings_predicate::query::Query;
use tidings_tables::acl::Right;
use tidings_tables::gateway::{Event, Input, Start, Watch};
use tidings_tables::live::Change;
use tidings_tables::names::{Endpoint, TableId};
use tidings_tables::refusal::Refusal;
use tidings_wire::v1::live_event::Event as Told;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, error, v1};
use tokio::time::Instant;

/// Who watches, by number.
#[derive(Default)]
pub(super) struct Watchers {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Watcher>>,
    /// Connections of frames that have live queries, by where they lie: as long as one of theirs is open.
    connections: Mutex<BTreeMap<usize, Weak<Connection>>>,
    pub(super) counts: Counts,
}

/// What live queries here were told since this node started.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) events: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Queries that ended because their clients took too little.
    pub(super) overrun: AtomicU64,
}

/// Who watches what.
#[derive(Clone)]
pub(super) struct Watcher {
    untaken: Arc<Untaken>,
    pub(super) table: TableId,
    pub(super) principal: Arc<str>,
    pub(super) query: Arc<v1::LiveQuery>,
    pub(super) since: Wall,
}

impl Watcher {
    pub(super) fn standing(&self) -> Standing {
        self.untaken.standing()
    }
}

impl Watchers {
    /// Tells whoever watches; false = there was no room, and the query is over.
    pub(super) fn tell(&self, number: u64, heard: Heard) -> bool {
        let mut open = self.open.lock();
        let ended = heard.is_err();
        // Who does not watch any more needs no event.
        let Some(watcher) = open.get(&number) else { return true };
        let told = watcher.untaken.tell(heard);
        if ended || told.is_none() {
            open.remove(&number);
            metrics::tables_watchers(open.len());
        }
        match told {
            Some(bytes) => {
                self.counts.events.fetch_add(1, Ordering::Relaxed);
                self.counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            None => {
                self.counts.overrun.fetch_add(1, Ordering::Relaxed);
                metrics::tables_overrun();
            }
        }
        told.is_some()
    }

    fn begin(&self, watcher: Watcher) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open.lock();
        open.insert(number, watcher);
        metrics::tables_watchers(open.len());
        number
    }

    fn end(&self, number: u64) {
        let mut open = self.open.lock();
        open.remove(&number);
        metrics::tables_watchers(open.len());
    }

    /// What all live queries of a connection of frames share; whoever has no such connection has one query.
    fn connection(&self, link: Option<&Arc<Link>>) -> Arc<Connection> {
        let Some(link) = link else { return Arc::default() };
        let mut connections = self.connections.lock();
        connections.retain(|_, connection| connection.strong_count() > 0);
        let at = Arc::as_ptr(link) as usize;
        let known = connections.get(&at).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let connection = Arc::<Connection>::default();
            connections.insert(at, Arc::downgrade(&connection));
            connection
        })
    }

    /// All that are open.
    pub(super) fn all(&self) -> Vec<Watcher> {
        self.open.lock().values().cloned().collect()
    }

    /// Those of a table, so many at most: the ones that began first.
    pub(super) fn of(&self, table: TableId, most: usize) -> Vec<(u64, Watcher)> {
        let open = self.open.lock();
        let of = open.iter().filter(|(_, watcher)| watcher.table == table);
        of.take(most).map(|(number, watcher)| (*number, watcher.clone())).collect()
    }

    /// Lets everybody go.
    pub(super) fn close(&self) {
        for (_, watcher) in std::mem::take(&mut *self.open.lock()) {
            watcher.untaken.close();
        }
    }
}

/// A live query. It ends when it is dropped.
pub struct Watching {
    hub: Arc<Hub>,
    number: u64,
    untaken: Arc<Untaken>,
    /// So many events that take room were handed out, and are taken when the next is asked for.
    handed: u32,
    /// The answer is to be read again, as so many events say.
    again: u32,
    /// A cursor that came behind them.
    cursor: Option<Event>,
    rereading: Rereading,
    /// What is told of an event and was not asked for yet.
    waiting: VecDeque<v1::LiveEvents>,
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
        loop {
            if let Some(events) = self.waiting.pop_front() {
                return Some(Ok(events));
            }
            let events = std::mem::take(&mut self.handed);
            if events > 0 {
                self.hub.say(Said::Gateway(Input::Taken { number: self.number, events }));
            }
            let (told, handed) = match self.again {
                0 => match self.untaken.next().await? {
                    Ok(Event::Again) => {
                        self.again = 1;
                        continue;
                    }
                    Ok(event) => {
                        let handed = takes_room(&event).into();
                        (Ok(told_of(event)), handed)
                    }
                    Err(refusal) => return Some(Err(refusal.into())),
                },
                _ => (self.read_again().await, self.again),
            };
            (self.again, self.handed) = (0, handed);
            match told.and_then(|told| self.framed(told)) {
                Ok(frames) => self.waiting = frames,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Other reader data.
    pub async fn update(&self, update: &v1::LiveUpdate) -> Result<(), Error> {
        let data = convert::data(&update.reader)?;
        self.hub.gateway(Input::UpdateData { number: self.number, data }).await;
        Ok(())
    }

    /// Events in the form that was asked for, as many together as fit a client's frame.
    fn framed(&self, mut events: Vec<Told>) -> Result<VecDeque<v1::LiveEvents>, Error> {
        if self.query.as_json {
            events.iter_mut().flat_map(records).filter_map(|record| record.data.as_mut()).try_for_each(into_json)?;
        }
        Ok(framed(events))
    }

    /// All rows, after a pause; whatever asked for them meanwhile has them.
    async fn read_again(&mut self) -> Result<Vec<Told>, Error> {
        self.rereading.turn().await;
        let (more, cursor) = self.untaken.pass_again();
        self.again += more;
        self.cursor = cursor.or(self.cursor.take());
        let begun = Instant::now();
        let rows = self.read().await?;
        self.rereading.read(begun.elapsed());
        Ok([Told::Rows(rows)].into_iter().chain(self.cursor.take().into_iter().flat_map(told_of)).collect())
    }

    /// R9: orders, limits and aggregates are read again.
    async fn read(&mut self) -> Result<v1::RecordRows, Error> {
        // R8: the connection is closed only when it is next looked at; until then nobody vouches for what the token said.
        expire(&mut self.caller, self.hub.clock.now().wall);
        let read = v1::RecordRead {
            table: self.query.table.clone(),
            query: self.query.query.clone(),
            reader: self.query.reader.clone(),
            ..Default::default()
        };
        let rows = self.hub.read(&self.caller, read, Taken::Before).await?;
        match rows.cursor.is_empty() {
            true => Ok(rows),
            false => Err(too_large("the answer is larger than a page")),
        }
    }
}

/// R8: takes from a caller what its token vouched for, once that has expired, as the gateway does with what it hears.
fn expire(caller: &mut v1::TablesCaller, now: Wall) {
    if caller.until_us == 0 || now.0 < caller.until_us {
        return;
    }
    let level = if caller.app.is_empty() { v1::TableLevel::Public } else { v1::TableLevel::App };
    *caller = v1::TablesCaller { app: std::mem::take(&mut caller.app), level: level.into(), ..Default::default() };
}

/// Whether a partition waits until an event is taken. Cursors and the like come from the gateway itself: whoever takes one has
/// made no room for changes.
fn takes_room(event: &Event) -> bool {
    match event {
        Event::Reset { .. } | Event::Changes(_) | Event::Again => true,
        Event::Settling | Event::Settled | Event::Progress { .. } => false,
    }
}

fn framed(events: Vec<Told>) -> VecDeque<v1::LiveEvents> {
    let (mut frames, mut size) = (VecDeque::<v1::LiveEvents>::new(), 0);
    for event in events.into_iter().flat_map(pieces) {
        let event = v1::LiveEvent { event: Some(event) };
        let more = event.encoded_len();
        match frames.back_mut().filter(|_| size + more <= PAGE) {
            Some(frame) => {
                frame.events.push(event);
                size += more;
            }
            None => {
                frames.push_back(v1::LiveEvents { events: vec![event] });
                size = more;
            }
        }
    }
    frames
}

/// An event in pieces that fit a client's frame: a reset has any number of rows.
fn pieces(event: Told) -> Vec<Told> {
    let Told::Reset(v1::LiveReset { start, end, rows, first, last }) = event else { return vec![event] };
    let (mut pieces, mut size) = (vec![Vec::new()], 0);
    for row in rows {
        let more = row.encoded_len();
        match pieces.last_mut().filter(|piece| piece.is_empty() || size + more <= PAGE) {
            Some(piece) => {
                piece.push(row);
                size += more;
            }
            None => {
                pieces.push(vec![row]);
                size = more;
            }
        }
    }
    let count = pieces.len();
    let reset = |(at, rows)| v1::LiveReset {
        start: start.clone(),
        end: end.clone(),
        rows,
        first: first && at == 0,
        last: last && at + 1 == count,
    };
    pieces.into_iter().enumerate().map(reset).map(Told::Reset).collect()
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
        link: Option<&Arc<Link>>,
    ) -> Result<Watching, Error> {
        self.refuse_expired(&caller)?;
        if query.query.as_ref().is_some_and(|query| query.from.is_some() || query.before.is_some()) {
            return Err(bounded());
        }
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
            false if caller.app != name.app => return Err(foreign_endpoint()),
            false => Some(Endpoint { netid: convert::netid_of(&query.netid)?, app: caller.app.clone() }),
        };
        let (caller_here, properties) = (convert::caller_of(&who), &entry.directory.properties);
        // What is wrong with it is told before anything is begun.
        entry.directory.may(&caller_here, Right::Read)?;
        let mut ask = query_of(&query.query.clone().unwrap_or_default())?;
        let within = query.query.as_ref().and_then(|query| query.within.clone()).and_then(partition_value_of);
        if let Some(value) = within {
            ask.predicate = properties.narrowed(&ask.predicate, &value)?;
        }
        // One that goes on was taken before, and may name what was a column then.
        let dialect = match query.cursor.as_ref().is_some_and(|cursor| !cursor.is_empty()) {
            true => self.dialect(properties),
            false => self.strict_dialect(properties),
        };
        Query::compile(&ask, &dialect).and_then(|query| query.check_live()).map_err(Refusal::from)?;
        if query.cursor.as_ref().is_some_and(|cursor| !cursor.is_empty() && !self.is_sealed(cursor)) {
            return Err(Refusal::BadCursor.into());
        }
        let watch = Watch {
            table: entry.table(),
            ask,
            caller: caller_here,
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
        let untaken = Arc::new(Untaken::new(self.watchers.connection(link)));
        let number = self.watchers.begin(Watcher {
            untaken: untaken.clone(),
            table: entry.table(),
            principal: caller.principal.as_str().into(),
            query: Arc::new(query.clone()),
            since: self.clock.now().wall,
        });
        let watching = Watching {
            hub: self.clone(),
            number,
            untaken,
            handed: 0,
            again: 0,
            cursor: None,
            rereading: Rereading::default(),
            waiting: VecDeque::new(),
            caller,
            query,
        };
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
        let mut watching = match self.watch(caller, query, Some(responder.link())).await {
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

fn foreign_endpoint() -> Error {
    Error::new("tables.foreign_endpoint", Class::Refused, "Notify tells only callers of the table's own application")
        .hint("Watch without a netid, or as a caller of the application that the table belongs to.")
}

fn bounded() -> Error {
    Error::new("tables.not_live", Class::Invalid, "`from` and `before` bound a read, and no live query")
        .hint("Ask for keys in the predicate: key >= 'a' && key < 'b'.")
}

fn one_frame() -> Error {
    Error::new("tables.no_query", Class::Invalid, "a live query is an operation whose request goes on")
        .hint("Send the query with `more`, and new reader data under the same operation.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_client::tables::form::key_of;

    fn row(key: u32) -> v1::Record {
        let text = v1::record_data::Form::Json("x".repeat(400 << 10));
        let key = Some(key_to(format!("k{key}").as_str().into()));
        v1::Record { key, data: Some(v1::RecordData { form: Some(text) }), ..Default::default() }
    }

    /// A live query is told of every key that its predicate is true of.
    #[tokio::test(flavor = "multi_thread")]
    async fn bounds_of_a_read_are_refused_in_a_live_query() {
        let dir = tempfile::tempdir().unwrap();
        let (services, _data) = crate::services::testing::embedded(dir.path()).await;
        let hub = services.tables_here().unwrap().hub.clone();
        let caller = v1::TablesCaller { app: "shop".to_owned(), ..Default::default() };
        let key = || Some(key_to("m".into()));
        for query in [
            v1::RecordQuery { from: key(), ..Default::default() },
            v1::RecordQuery { before: key(), ..Default::default() },
        ] {
            let query = v1::LiveQuery { table: "t".to_owned(), query: Some(query), ..Default::default() };
            let refused = hub.watch(caller.clone(), query, None).await.err().expect("refused");
            assert_eq!(refused.code, "tables.not_live");
        }
        drop(hub);
        crate::gate::Services::stop(&services).await;
    }

    #[test]
    fn large_events_are_told_in_frames_that_clients_take() {
        let reset = v1::LiveReset { rows: (0..5).map(row).collect(), first: true, last: true, ..Default::default() };
        let frames = framed(vec![Told::Settling(true), Told::Reset(reset), Told::Put(row(5)), Told::Put(row(6))]);
        assert!(frames.iter().all(|frame| frame.encoded_len() < 1 << 20), "{}", frames.len());
        let events: Vec<Told> = frames.into_iter().flat_map(|frame| frame.events).filter_map(|e| e.event).collect();
        let flags: Vec<(usize, bool, bool)> = events
            .iter()
            .filter_map(|event| match event {
                Told::Reset(reset) => Some((reset.rows.len(), reset.first, reset.last)),
                _ => None,
            })
            .collect();
        assert_eq!(flags, [(2, true, false), (2, false, false), (1, false, true)]);
        let keys: Vec<_> = events
            .iter()
            .cloned()
            .flat_map(|mut event| records(&mut event).into_iter().map(|row| row.key.clone()).collect::<Vec<_>>())
            .collect();
        let expected: Vec<_> = (0..7).map(|key| row(key).key).collect();
        assert_eq!(keys, expected);
        assert!(keys.into_iter().flatten().all(|key| key_of(key).is_some()));
        // Without rows it still replaces.
        let empty = v1::LiveReset { first: true, last: true, ..Default::default() };
        assert_eq!(framed(vec![Told::Reset(empty.clone())])[0].events[0].event, Some(Told::Reset(empty)));
    }
}
