//! Live queries as server-sent events.

use super::query::{LiveAsk, cursor_of, cursor_to};
use super::{TABLE, reader_of, text_of, within_of};
use crate::gate::veiled;
use crate::principal::Identity;
use crate::rest::answer::{ErrorBody, Refusal};
use crate::rest::extract::{Anyone, JsonBody, Query, Segments};
use crate::rest::{App, Caller};
use crate::tables::Watching;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::HeaderMap;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::tables::{Event as Told, event_of, form, shown};
use tidings_wire::v1;
use tidings_wire::v1::live_event::Event as Said;
use tokio::time::{Instant, Interval};

/// A quiet stream says something so often.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Watches what a predicate selects: `reset`, `put`, `leave`, `settling` and `ended` as they happen. The id of an event is a
/// cursor: a browser that connects again goes on where it was.
#[utoipa::path(get, path = "/v1/tables/{table}/watch", operation_id = "tables_watch", tag = "tables",
    params(("table" = String, Path, description = "The table"),
        ("predicate" = Option<String>, Query, description = "Which records; all that are visible if left out"),
        ("in" = Option<String>, Query, description = "Only records within this value of the table's partition column"),
        ("reader" = Option<String>, Query, description = "What writers' predicates see as `reader`: a JSON object"),
        ("cursor" = Option<String>, Query, description = "Where an earlier stream ended; empty = nothing that exists"),
        ("newer_than_us" = Option<u64>, Query, description = "Leaves records out of the first rows that were written before, in microseconds since 1970"),
        ("netid" = Option<String>, Query, description = "Names the device, as 32 hexadecimal digits: Notify tells it of changes while it is away")),
    responses((status = 200, description = "Events", content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn watch(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let predicate = text_of(&mut query, "predicate")?.unwrap_or_default();
    let (within, reader) = (within_of(&mut query)?, reader_of(&mut query)?);
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let cursor = last.or(text_of(&mut query, "cursor")?);
    let netid = text_of(&mut query, "netid")?.map(|netid| form::netid_of(&netid)).transpose()?;
    let newer_than_us = query.take_number("newer_than_us")?.unwrap_or_default();
    query.finish()?;
    let query = v1::LiveQuery {
        table: path.text(TABLE)?,
        query: Some(v1::RecordQuery { predicate, within, ..Default::default() }),
        reader,
        cursor: cursor.map(|cursor| cursor_of(&cursor)).transpose()?,
        netid: netid.unwrap_or_default(),
        newer_than_us,
        ..Default::default()
    };
    stream_of(app, caller, query).await
}

/// Watches any query, in the form of `tables_query`. Where it projects, orders, limits or aggregates, `rows` has all rows whenever
/// some have changed.
#[utoipa::path(post, path = "/v1/tables/{table}/watch", operation_id = "tables_watch_query", tag = "tables",
    request_body = LiveAsk, params(("table" = String, Path, description = "The table")),
    responses((status = 200, description = "Events", content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn watch_query(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
    JsonBody(ask): JsonBody<LiveAsk>,
) -> Result<Response, Refusal> {
    let query = ask.message(path.text(TABLE)?)?;
    stream_of(app, caller, query).await
}

async fn stream_of(app: App, caller: Caller, query: v1::LiveQuery) -> Result<Response, Refusal> {
    let watching =
        app.gate.tables_watch(&caller.0.principal, query).await.map_err(|error| veiled(&caller.0.principal, error))?;
    let every: Duration = app.config.timings.key_check.into();
    let recheck = tokio::time::interval_at(Instant::now() + every, every);
    let streaming = Streaming { app, identity: caller.0, watching, recheck, waiting: VecDeque::new(), ended: false };
    let events = stream::unfold(streaming, |mut streaming| async move {
        let event = streaming.next().await?;
        Some((Ok::<Event, Infallible>(event), streaming))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("still here")).into_response())
}

/// A stream's place between two events.
struct Streaming {
    app: App,
    identity: Identity,
    watching: Watching,
    /// When to ask again whether the caller is still who it said.
    recheck: Interval,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl Streaming {
    /// The next event; `None` = no more come.
    async fn next(&mut self) -> Option<Event> {
        let mut shutdown = self.app.shutdown.clone();
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            tokio::select! {
                heard = self.watching.next() => {
                    let taken = heard?.and_then(|events| self.take(events));
                    if let Err(error) = taken {
                        self.end(error);
                    }
                }
                () = shutdown.begun() => return None,
                _ = self.recheck.tick() => {
                    if let Err(error) = self.app.auth.recheck(&self.identity).await
                        && matches!(error.class, Class::Refused | Class::Invalid | Class::NotFound)
                    {
                        self.end(error);
                    }
                }
            }
        }
    }

    fn end(&mut self, why: Error) {
        self.ended = true;
        self.waiting.push_back(shown_as(&Told::Ended(why)));
    }

    fn take(&mut self, events: v1::LiveEvents) -> Result<(), Error> {
        for event in events.events {
            let event = match &event.event {
                Some(Said::Cursor(cursor)) => Some(Event::default().event("cursor").id(cursor_to(cursor)).data("{}")),
                _ => event_of(event)?.map(|event| shown_as(&event)),
            };
            self.waiting.extend(event);
        }
        Ok(())
    }
}

fn shown_as(event: &Told) -> Event {
    let (name, data) = shown::event(event);
    Event::default().event(name).data(data.to_string())
}
