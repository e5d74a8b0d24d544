//! Channels of clients that speak HTTP alone: server-sent events or long polls down, posts up.
//!
//! The messages are those of frames, `NotifyUp` and `NotifyDown` in canonical JSON.

use super::{App, Caller, ErrorBody, Refusal, within};
use crate::notify::Reading;
use crate::principal::Identity;
use crate::rest::extract::{Query, RawBody, Segments, bad_body};
use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::v1;
use tokio::time::{Instant, Interval};
use utoipa::ToSchema;

/// Where the channel's name is in a path.
const CHANNEL: usize = 3;

/// The longest poll: proxies cut off what stays silent for longer.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A quiet stream says something so often.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A channel that was opened.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Opened {
    /// Its name; only its principal can use it.
    channel: String,
}

/// Messages that came down.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Downs {
    /// Each a `NotifyDown`.
    downs: Vec<serde_json::Value>,
}

/// Opens a channel. It is closed when nobody has streamed or polled it for a minute.
#[utoipa::path(post, path = "/v1/notify-channels/{app}", operation_id = "notify_open_channel", tag = "notify",
    params(("app" = String, Path, description = "The application")),
    responses((status = 201, body = Opened), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn open_channel(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<(StatusCode, Json<Opened>), Refusal> {
    let caller = within(caller, &path)?;
    let listener = app.gate.listener(&caller.0.principal)?;
    let seat = app.gate.notify_channel(&caller.0.principal, listener.clone()).await?;
    let channel = app.channels.keep(listener, seat)?;
    Ok((StatusCode::CREATED, Json(Opened { channel })))
}

/// Takes a message of the client, a `NotifyUp`.
#[utoipa::path(post, path = "/v1/notify-channels/{app}/{channel}", operation_id = "notify_say", tag = "notify",
    request_body = serde_json::Value,
    params(("app" = String, Path, description = "The application"), ("channel" = String, Path, description = "Its name")),
    responses((status = 204, description = "Taken; the answer comes down"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn say(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    RawBody(body): RawBody,
) -> Result<StatusCode, Refusal> {
    let listener = app.gate.listener(&within(caller, &path)?.0.principal)?;
    let text = std::str::from_utf8(&body).map_err(|_| bad_body("the body is not UTF-8"))?;
    let up: v1::NotifyUp = tidings_wire::json::from_str(text, app.config.limits.body_bytes).map_err(no_message)?;
    app.channels.say(&listener, &path.text(CHANNEL)?, up).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Waits for messages to the client, each a `NotifyDown`.
#[utoipa::path(get, path = "/v1/notify-channels/{app}/{channel}", operation_id = "notify_poll", tag = "notify",
    params(("app" = String, Path, description = "The application"), ("channel" = String, Path, description = "Its name"),
        ("wait_ms" = Option<u64>, Query, description = "How long to wait for the first, at most 30,000; not at all if left out")),
    responses((status = 200, body = Downs), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn poll(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    mut query: Query,
) -> Result<Json<Downs>, Refusal> {
    let wait = Duration::from_millis(query.take_number("wait_ms")?.unwrap_or_default()).min(MAX_WAIT);
    query.finish()?;
    let listener = app.gate.listener(&within(caller, &path)?.0.principal)?;
    let name = path.text(CHANNEL)?;
    let mut reading = app.channels.read(&listener, &name)?;
    match reading.some(wait).await {
        Some(downs) => Ok(Json(Downs { downs: downs.iter().map(tidings_wire::json::to_value).collect() })),
        None => {
            drop(reading);
            app.channels.close(&listener, &name)?;
            Err(Refusal(closed()))
        }
    }
}

/// Closes a channel: its client is offline at once.
#[utoipa::path(delete, path = "/v1/notify-channels/{app}/{channel}", operation_id = "notify_close_channel", tag = "notify",
    params(("app" = String, Path, description = "The application"), ("channel" = String, Path, description = "Its name")),
    responses((status = 204, description = "Closed"), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn close_channel(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<StatusCode, Refusal> {
    let listener = app.gate.listener(&within(caller, &path)?.0.principal)?;
    app.channels.close(&listener, &path.text(CHANNEL)?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Messages to the client as server-sent events, each a `NotifyDown`.
#[utoipa::path(get, path = "/v1/notify-channels/{app}/{channel}/events", operation_id = "notify_events", tag = "notify",
    params(("app" = String, Path, description = "The application"), ("channel" = String, Path, description = "Its name")),
    responses((status = 200, description = "Events", content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn events(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<Response, Refusal> {
    let caller = within(caller, &path)?;
    let listener = app.gate.listener(&caller.0.principal)?;
    let reading = app.channels.read(&listener, &path.text(CHANNEL)?)?;
    let every: Duration = app.config.timings.key_check.into();
    let recheck = tokio::time::interval_at(Instant::now() + every, every);
    let streaming = Streaming { app, identity: caller.0, reading, recheck };
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
    reading: Reading,
    /// When to ask again whether the caller is still who it said.
    recheck: Interval,
}

impl Streaming {
    /// The next event; `None` = no more come.
    async fn next(&mut self) -> Option<Event> {
        let mut shutdown = self.app.shutdown.clone();
        loop {
            tokio::select! {
                down = self.reading.next() => {
                    return Some(Event::default().data(tidings_wire::json::to_string(&down?)));
                }
                () = shutdown.begun() => return None,
                _ = self.recheck.tick() => {
                    if let Err(error) = self.app.auth.recheck(&self.identity).await
                        && matches!(error.class, Class::Refused | Class::Invalid | Class::NotFound)
                    {
                        return None;
                    }
                }
            }
        }
    }
}

/// Who posts a body has sent no frame that could be wrong.
fn no_message(error: Error) -> Error {
    match error.message.split_once(": ").filter(|_| error.code == "control.malformed") {
        None => error,
        Some((_, why)) => bad_body(format!("the body is no message of a client of Notify: {why}"))
            .hint("A `NotifyUp` in JSON is expected, such as {\"hello\": {\"nonce\": \"9\"}, \"contact\": \"1\"}."),
    }
}

fn closed() -> Error {
    Error::new("notify.no_channel", Class::NotFound, "the channel was closed").hint("Open another one.")
}
