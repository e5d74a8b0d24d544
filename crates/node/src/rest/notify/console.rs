//! What a console draws of Notify: latencies by stage, whose the ranges are, how much there is.

use super::{App, Caller, ErrorBody, Refusal, ask, ask_as, other};
use crate::rest::extract::Segments;
use crate::rest::placement::types::{Ring, Table, TableRange};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message;
use utoipa::ToSchema;

/// How Notify fares.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct NotifyLoad {
    /// Those that answered.
    nodes: Vec<NotifyNode>,
    /// Who has how much of objects and clients.
    ring: Ring,
    /// Each range with its owner and its rate.
    ranges: Vec<TableRange>,
}

/// What a node has done since it started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct NotifyNode {
    node: u64,
    /// Clients that are connected to it.
    channels: u64,
    /// Publications that it took.
    published: u64,
    /// Notifications that its registrars sent, repeats included.
    sent: u64,
    /// Upper bounds of the counts of stages, in microseconds.
    bounds_us: Vec<u64>,
    stages: Vec<NotifyStage>,
}

/// How long notifications took in one stage.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct NotifyStage {
    /// `call` (the fast path, from the call to the matcher) or `feed` and `bridge`; then `matcher`, `registrar`.
    stage: String,
    /// How many up to each bound and beyond the one before it; the last, of those beyond all bounds.
    counts: Vec<u64>,
    /// All of them together.
    sum_us: u64,
}

impl From<v1::NotifyNodeLoad> for NotifyNode {
    fn from(load: v1::NotifyNodeLoad) -> NotifyNode {
        let v1::NotifyNodeLoad { node, channels, published, sent, bounds_us, stages } = load;
        let stage = |v1::NotifyStage { stage, counts, sum_us }| NotifyStage { stage, counts, sum_us };
        let stages = stages.into_iter().map(stage).collect();
        NotifyNode { node, channels, published, sent, bounds_us, stages }
    }
}

/// How much there is of an application.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct NotifyCounts {
    objects: u64,
    registrations: u64,
    /// Objects whose version is on its way to clients.
    pending: u64,
    clients: u64,
    /// Those that are connected.
    online: u64,
    /// Versions that clients have not acknowledged.
    unacknowledged: u64,
    /// Objects that clients are to fetch.
    unknown: u64,
    /// There are more than were counted.
    more: bool,
}

/// How all nodes fare, stage by stage, and whose the ranges are. Operators only.
#[utoipa::path(get, path = "/v1/notify-load", operation_id = "notify_load", tag = "notify", responses(
    (status = 200, body = NotifyLoad), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn load(State(app): State<App>, caller: Caller) -> Result<Json<NotifyLoad>, Refusal> {
    match ask_as(&app, &caller, Message::Load(v1::NotifyLoad { alone: false })).await? {
        Message::LoadReply(v1::NotifyLoadReply { nodes, table }) => {
            let table = table.unwrap_or_default();
            let nodes = nodes.into_iter().map(NotifyNode::from).collect();
            Ok(Json(NotifyLoad { nodes, ring: Ring::of(&table), ranges: Table::from(table).table }))
        }
        answer => Err(other(answer)),
    }
}

/// How many objects and clients an application has, as far as one look counts.
#[utoipa::path(get, path = "/v1/notify-counts/{app}", operation_id = "notify_counts", tag = "notify",
    params(("app" = String, Path, description = "The application")),
    responses((status = 200, body = NotifyCounts), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn counts(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<Json<NotifyCounts>, Refusal> {
    match ask(&app, caller, &path, Message::Count(v1::NotifyCount {})).await? {
        Message::CountReply(v1::NotifyCountReply {
            objects,
            registrations,
            pending,
            clients,
            online,
            unacknowledged,
            unknown,
            more,
        }) => {
            Ok(Json(NotifyCounts { objects, registrations, pending, clients, online, unacknowledged, unknown, more }))
        }
        answer => Err(other(answer)),
    }
}
