//! The feed, over HTTP.

use super::answer::{ErrorBody, Refusal};
use super::extract::{JsonBody, Segments};
use super::{App, Caller, Text, call_waiting, unexpected};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidings_base::{Class, Error};
use tidings_wire::v1::feed_message::Message;
use tidings_wire::{Body, v1};
use utoipa::ToSchema;

/// Entries of an answer when the consumer does not say how many.
const DEFAULT_ENTRIES: u32 = 100;

/// The longest that a consumer may wait in one request: proxies cut off what stays silent for longer.
const MAX_WAIT_MS: u32 = 30_000;

/// Entries to append, in order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Append {
    entries: Vec<Text>,
}

/// The numbers that the entries got.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Appended {
    first: u64,
    last: u64,
}

/// How to consume.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Consume {
    /// At most this many entries; 100 if left out.
    limit: Option<u32>,
    /// How long to wait for the first entry, at most 30,000; not at all if left out.
    wait_ms: u32,
    /// How long until an entry that was not acknowledged is delivered again; 0 = the default.
    redeliver_ms: u32,
}

/// Entries for this consumer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Deliveries {
    deliveries: Vec<Delivery>,
}

/// One entry.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct Delivery {
    number: u64,
    entry: Text,
    /// How often it was delivered before by the present leader.
    redelivered: u32,
}

/// Which entries are done.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ack {
    numbers: Vec<u64>,
}

async fn ask(app: &App, caller: &Caller, message: Message, wait_ms: u32) -> Result<Message, Error> {
    match call_waiting(app, caller, Body::Feed(v1::FeedMessage { message: Some(message) }), wait_ms).await? {
        Body::Feed(v1::FeedMessage { message: Some(answer) }) => Ok(answer),
        other => Err(unexpected(&other)),
    }
}

fn other(answer: Message) -> Refusal {
    Refusal(unexpected(&Body::Feed(v1::FeedMessage { message: Some(answer) })))
}

/// Appends entries to a topic; answered after they are durable.
#[utoipa::path(post, path = "/v1/feed/{topic}", operation_id = "feed_append", tag = "feed", request_body = Append,
    params(("topic" = String, Path, description = "The topic")),
    responses((status = 200, body = Appended), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn append(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(body): JsonBody<Append>,
) -> Result<Json<Appended>, Refusal> {
    let entries = body.entries.into_iter().map(|entry| entry.0).collect();
    match ask(&app, &caller, Message::Append(v1::Append { topic: path.bytes(2), entries }), 0).await? {
        Message::Appended(appended) => Ok(Json(Appended { first: appended.first, last: appended.last })),
        answer => Err(other(answer)),
    }
}

/// Takes entries on behalf of a consumer group. Those not acknowledged in time are delivered again.
#[utoipa::path(post, path = "/v1/feed/{topic}/groups/{group}/consume", operation_id = "feed_consume", tag = "feed", request_body = Consume,
    params(("topic" = String, Path, description = "The topic"), ("group" = String, Path, description = "The consumer group")),
    responses((status = 200, body = Deliveries), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn consume(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(body): JsonBody<Consume>,
) -> Result<Json<Deliveries>, Refusal> {
    if body.wait_ms > MAX_WAIT_MS {
        let message = format!("`wait_ms` is {}; at most {MAX_WAIT_MS} can be waited in one request", body.wait_ms);
        return Err(Refusal(Error::new("feed.wait_too_long", Class::Invalid, message).hint("Ask again instead.")));
    }
    let consume = v1::Consume {
        topic: path.bytes(2),
        group: path.bytes(4),
        limit: body.limit.unwrap_or(DEFAULT_ENTRIES),
        wait_ms: body.wait_ms,
        redeliver_ms: body.redeliver_ms,
    };
    match ask(&app, &caller, Message::Consume(consume), body.wait_ms).await? {
        Message::Deliveries(found) => {
            let delivery =
                |d: v1::Delivery| Delivery { number: d.number, entry: Text(d.entry), redelivered: d.redelivered };
            Ok(Json(Deliveries { deliveries: found.deliveries.into_iter().map(delivery).collect() }))
        }
        answer => Err(other(answer)),
    }
}

/// Acknowledges entries: they are not delivered to this group again.
#[utoipa::path(post, path = "/v1/feed/{topic}/groups/{group}/ack", operation_id = "feed_ack", tag = "feed", request_body = Ack,
    params(("topic" = String, Path, description = "The topic"), ("group" = String, Path, description = "The consumer group")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn ack(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(body): JsonBody<Ack>,
) -> Result<StatusCode, Refusal> {
    let ack = v1::Ack { topic: path.bytes(2), group: path.bytes(4), numbers: body.numbers };
    match ask(&app, &caller, Message::Ack(ack), 0).await? {
        Message::Acked(_) => Ok(StatusCode::NO_CONTENT),
        answer => Err(other(answer)),
    }
}
