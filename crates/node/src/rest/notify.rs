//! Notify, over HTTP: publications, what is there, and channels of clients that speak nothing else.

mod channels;
mod console;

pub(super) use channels::*;
pub(super) use console::*;

use super::answer::{ErrorBody, Refusal};
use super::extract::{AnyJson, JsonBody, Query, Segments};
use super::{App, Caller, Text, call, unexpected};
use crate::notify::{MAX_LISTED, MAX_TRACES};
use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidings_base::{Class, Error};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, v1};
use utoipa::ToSchema;

/// Where the parts of a path are: `v1`, `notify`, the application, then the object.
const APPLICATION: usize = 2;
const OBJECT: usize = 3;

/// A new version of the object that the path names.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewVersion {
    /// 1 to 2^63-1; it should grow.
    version: u64,
    /// The installation that made it, which need not be told.
    #[serde(default)]
    source: Text,
    /// Rides along where all is well, up to 4 KiB; never to be relied on.
    #[serde(default)]
    payload: Text,
}

/// A new version of an object.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewVersionOf {
    object: Text,
    version: u64,
    #[serde(default)]
    source: Text,
    #[serde(default)]
    payload: Text,
}

/// New versions of objects.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Publications {
    publications: Vec<NewVersionOf>,
}

/// Objects of the application.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Objects {
    objects: Vec<ObjectInfo>,
    /// There are more.
    more: bool,
}

/// An object.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ObjectInfo {
    object: Text,
    /// Null = not known.
    version: Option<u64>,
    source: Text,
    /// How many clients have registered it.
    registrations: u32,
    /// The version is on its way to clients.
    pending: bool,
    /// The last version that was published after a later one, and so ignored; null = none.
    behind: Option<u64>,
}

/// The latest notifications.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Traces {
    /// The earliest first.
    traces: Vec<Trace>,
}

/// Where a notification was when, in microseconds since 1970; 0 = it was not there.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Trace {
    object: Text,
    version: u64,
    /// The node that saw it.
    node: u64,
    /// Not null: it was ignored, since this later version was known.
    behind: Option<u64>,
    published_us: u64,
    feed_us: u64,
    bridge_us: u64,
    matcher_us: u64,
    registrar_us: u64,
    sent_us: u64,
}

impl From<v1::NotifyTrace> for Trace {
    fn from(trace: v1::NotifyTrace) -> Trace {
        let v1::NotifyTrace { object, version, times, node, behind } = trace;
        let v1::NotifyTimes { published_us, feed_us, bridge_us, matcher_us, registrar_us, sent_us } =
            times.unwrap_or_default();
        let behind = (behind > 0).then_some(behind);
        let object = Text(object);
        Trace { object, version, node, behind, published_us, feed_us, bridge_us, matcher_us, registrar_us, sent_us }
    }
}

/// Clients of the application.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Clients {
    clients: Vec<ClientInfo>,
    /// There are more.
    more: bool,
}

/// A client.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ClientInfo {
    principal: String,
    id: String,
    /// The node that it is connected to; null = offline.
    node: Option<u64>,
    /// That node does not answer: the client may be gone with it.
    silent: bool,
    registrations: u32,
    unacknowledged: u32,
    unknown: u32,
    /// Registrations that have not reached their matchers yet.
    pending: u32,
}

/// The caller in the application that the path names.
fn within(caller: Caller, path: &Segments) -> Result<Caller, Error> {
    Ok(Caller(caller.0.acting_in(Some(&path.text(APPLICATION)?))?))
}

/// Asks in the application that the path names.
async fn ask(app: &App, caller: Caller, path: &Segments, message: Message) -> Result<Message, Error> {
    ask_as(app, &within(caller, path)?, message).await
}

async fn ask_as(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(message) });
    match call(app, caller, body).await? {
        Body::Notify(v1::NotifyMessage { message: Some(answer), .. }) => Ok(answer),
        other => Err(unexpected(&other)),
    }
}

fn other(answer: Message) -> Refusal {
    Refusal(unexpected(&Body::Notify(v1::NotifyMessage { caller: None, message: Some(answer) })))
}

async fn publish(
    app: &App,
    caller: Caller,
    path: &Segments,
    publications: Vec<v1::Publication>,
) -> Result<StatusCode, Refusal> {
    match ask(app, caller, path, Message::Publish(v1::Publish { publications })).await? {
        Message::Published(_) => Ok(StatusCode::NO_CONTENT),
        answer => Err(other(answer)),
    }
}

/// Says that an object has a new version; answered after that is durable.
#[utoipa::path(post, path = "/v1/notify/{app}/{object}", operation_id = "notify_publish", tag = "notify",
    request_body = NewVersion,
    params(("app" = String, Path, description = "The application"), ("object" = String, Path, description = "The object")),
    responses((status = 204, description = "Durable"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn publish_one(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(NewVersion { version, source, payload }): JsonBody<NewVersion>,
) -> Result<StatusCode, Refusal> {
    let (object, source, payload) = (path.bytes(OBJECT), source.0, payload.0);
    let publication = v1::Publication { object, version, source, payload, ..Default::default() };
    publish(&app, caller, &path, vec![publication]).await
}

/// Says that objects have new versions; answered after all of that is durable.
#[utoipa::path(post, path = "/v1/notify/{app}", operation_id = "notify_publish_many", tag = "notify",
    request_body = Publications, params(("app" = String, Path, description = "The application")),
    responses((status = 204, description = "Durable"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn publish_many(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(body): JsonBody<Publications>,
) -> Result<StatusCode, Refusal> {
    let publications = body.publications.into_iter().map(|NewVersionOf { object, version, source, payload }| {
        let (object, source, payload) = (object.0, source.0, payload.0);
        v1::Publication { object, version, source, payload, ..Default::default() }
    });
    publish(&app, caller, &path, publications.collect()).await
}

/// Takes events of the application in its own format, which the nodes' configuration translates; answered after all of
/// them are durable.
#[utoipa::path(post, path = "/v1/notify-events/{app}", operation_id = "notify_publish_events", tag = "notify",
    request_body = serde_json::Value, params(("app" = String, Path, description = "The application")),
    responses((status = 204, description = "Durable"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn publish_events(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    AnyJson(body): AnyJson,
) -> Result<StatusCode, Refusal> {
    let name = path.text(APPLICATION)?;
    let Some(format) = app.config.notify.formats.get(name.as_str()) else {
        // Who may not publish, or names no application, hears of that first.
        let asked = Message::Publish(v1::Publish { publications: Vec::new() });
        match ask(&app, caller, &path, asked).await {
            Err(error) if error.code != "notify.bad_batch" => return Err(error.into()),
            _ => {}
        }
        let error =
            Error::new("notify.no_format", Class::NotFound, "no format of events is configured for this application");
        return Err(error
            .hint("Let the operator set `notify.formats`, or publish with `POST /v1/notify/{app}`.")
            .into());
    };
    let events = match &body {
        serde_json::Value::Array(events) => events.as_slice(),
        event => std::slice::from_ref(event),
    };
    let publications = events.iter().map(|event| format.read(event)).collect::<Result<_, Error>>()?;
    publish(&app, caller, &path, publications).await
}

async fn list_objects(app: &App, caller: Caller, path: &Segments, list: v1::ObjectList) -> Result<Objects, Refusal> {
    match ask(app, caller, path, Message::ObjectList(list)).await? {
        Message::ObjectListReply(reply) => {
            let objects = reply.objects.into_iter().map(|info| ObjectInfo {
                object: Text(info.object),
                version: (info.version > 0).then_some(info.version),
                source: Text(info.source),
                registrations: info.registrations,
                pending: info.pending,
                behind: (info.behind > 0).then_some(info.behind),
            });
            Ok(Objects { objects: objects.collect(), more: reply.more })
        }
        answer => Err(other(answer)),
    }
}

/// Objects that have a version or registrations.
#[utoipa::path(get, path = "/v1/notify/{app}", operation_id = "notify_objects", tag = "notify",
    params(("app" = String, Path, description = "The application"),
        ("limit" = Option<u32>, Query, description = "At most so many, up to 10,000; 100 if left out")),
    responses((status = 200, body = Objects), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn objects(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    mut query: Query,
) -> Result<Json<Objects>, Refusal> {
    let limit = query.take_limit(MAX_LISTED)?;
    query.finish()?;
    Ok(Json(list_objects(&app, caller, &path, v1::ObjectList { limit, ..Default::default() }).await?))
}

/// One object: its version, and how many have registered it.
#[utoipa::path(get, path = "/v1/notify/{app}/{object}", operation_id = "notify_object", tag = "notify",
    params(("app" = String, Path, description = "The application"), ("object" = String, Path, description = "The object")),
    responses((status = 200, body = Objects), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn object(State(app): State<App>, caller: Caller, path: Segments) -> Result<Json<Objects>, Refusal> {
    let list = v1::ObjectList { object: path.bytes(OBJECT), limit: 1 };
    Ok(Json(list_objects(&app, caller, &path, list).await?))
}

/// The latest notifications of an object, and where each was when, as far as nodes remember.
#[utoipa::path(get, path = "/v1/notify-traces/{app}/{object}", operation_id = "notify_traces", tag = "notify",
    params(("app" = String, Path, description = "The application"), ("object" = String, Path, description = "The object"),
        ("limit" = Option<u32>, Query, description = "At most so many, up to 1,000, the latest; 100 if left out")),
    responses((status = 200, body = Traces), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn traces(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    query: Query,
) -> Result<Json<Traces>, Refusal> {
    let object = path.bytes(OBJECT);
    list_traces(&app, caller, &path, object, query).await
}

/// The latest notifications of all objects of an application, as far as nodes remember.
#[utoipa::path(get, path = "/v1/notify-traces/{app}", operation_id = "notify_recent", tag = "notify",
    params(("app" = String, Path, description = "The application"),
        ("limit" = Option<u32>, Query, description = "At most so many, up to 1,000, the latest; 100 if left out")),
    responses((status = 200, body = Traces), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn recent(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    query: Query,
) -> Result<Json<Traces>, Refusal> {
    list_traces(&app, caller, &path, Bytes::new(), query).await
}

async fn list_traces(
    app: &App,
    caller: Caller,
    path: &Segments,
    object: Bytes,
    mut query: Query,
) -> Result<Json<Traces>, Refusal> {
    let limit = query.take_limit(MAX_TRACES)?;
    query.finish()?;
    match ask(app, caller, path, Message::TraceList(v1::TraceList { object, limit, alone: false })).await? {
        Message::TraceListReply(reply) => {
            Ok(Json(Traces { traces: reply.traces.into_iter().map(Trace::from).collect() }))
        }
        answer => Err(other(answer)),
    }
}

/// Clients, online or not.
#[utoipa::path(get, path = "/v1/notify-clients/{app}", operation_id = "notify_clients", tag = "notify",
    params(("app" = String, Path, description = "The application"),
        ("limit" = Option<u32>, Query, description = "At most so many, up to 10,000; 100 if left out")),
    responses((status = 200, body = Clients), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn clients(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    mut query: Query,
) -> Result<Json<Clients>, Refusal> {
    let limit = query.take_limit(MAX_LISTED)?;
    query.finish()?;
    match ask(&app, caller, &path, Message::ClientList(v1::ClientList { limit })).await? {
        Message::ClientListReply(reply) => {
            let clients = reply.clients.into_iter().map(|info| {
                let name = info.client.unwrap_or_default();
                ClientInfo {
                    principal: name.user,
                    id: name.uuid.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")),
                    node: info.channel.map(|channel| channel.node),
                    silent: info.silent,
                    registrations: info.registrations,
                    unacknowledged: info.unacknowledged,
                    unknown: info.unknown,
                    pending: info.pending,
                }
            });
            Ok(Json(Clients { clients: clients.collect(), more: reply.more }))
        }
        answer => Err(other(answer)),
    }
}
