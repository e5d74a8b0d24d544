//! What a console draws of Tables: live queries of a table, and how all nodes fare.

use super::{TABLE, ask, other};
use crate::rest::answer::{ErrorBody, Refusal};
use crate::rest::extract::Segments;
use crate::rest::{App, Caller};
use axum::Json;
use axum::extract::State;
use serde_json::Value;
use tidings_client::tables::shown;
use tidings_wire::v1;
use tidings_wire::v1::tables_message::Message;

/// Live queries of a table, whichever nodes their clients are connected to: who watches what since when, and how much of it was
/// not taken. For whoever administers the table; a thousand are listed, and `more` says that there are others.
#[utoipa::path(get, path = "/v1/tables/{table}/queries", operation_id = "tables_queries", tag = "tables",
    params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn queries(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<Json<Value>, Refusal> {
    let asked = v1::TableQueries { table: path.text(TABLE)?, alone: false };
    match ask(&app, &caller, Message::Queries(asked)).await? {
        Message::QueriesReply(reply) => Ok(Json(shown::queries(&reply))),
        answer => Err(Refusal(other(answer))),
    }
}

/// How Tables fares, node by node: partitions, live queries, copies, and what was answered and told since each node started.
/// Operators only.
#[utoipa::path(get, path = "/v1/tables-load", operation_id = "tables_load", tag = "tables",
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn load(State(app): State<App>, caller: Caller) -> Result<Json<Value>, Refusal> {
    match ask(&app, &caller, Message::Load(v1::TablesLoad { alone: false })).await? {
        Message::LoadReply(reply) => Ok(Json(shown::load(&reply.nodes))),
        answer => Err(Refusal(other(answer))),
    }
}
