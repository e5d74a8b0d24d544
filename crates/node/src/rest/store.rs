//! The store, over HTTP.

use super::answer::{ErrorBody, Refusal};
use super::extract::{JsonBody, Query, Segments};
use super::{App, Caller, Text, call, unexpected};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tidings_base::{Class, Error};
use tidings_wire::v1::store_message::Message;
use tidings_wire::{Body, v1};
use utoipa::ToSchema;

/// Rows of a scan when it does not say how many.
const DEFAULT_ROWS: u32 = 100;

/// A column's value at a timestamp.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cell {
    column: Text,
    /// 1 to 2^63-1; newest wins. Left out of a write: the server's clock, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
    /// Left out of a write: the cell is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Text>,
}

/// Rejects the write if the group has seen a higher number under this name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fence {
    name: Text,
    number: u64,
}

/// What to write to one row.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    cells: Vec<Cell>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
}

/// A row: its newest cells.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    row: Text,
    cells: Vec<Cell>,
}

/// Rows in order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Rows {
    rows: Vec<Row>,
    /// Where to go on (`start`), if there is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Text>,
}

/// Writes to one group, all or nothing.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupWrite {
    group: Text,
    rows: Vec<Row>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
}

/// Writes to several groups: atomic in each, not across.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    groups: Vec<GroupWrite>,
}

/// What did not happen; empty when everything did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Applied {
    failures: Vec<Failure>,
}

/// A group that was not written.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Failure {
    group: Text,
    #[schema(example = "store.fenced")]
    code: String,
    message: String,
    /// With `store.fenced`: the number that the group has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
}

/// A write that happens if the column is as expected.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CompareAndSet {
    column: Text,
    /// The column's newest timestamp, deletions included; 0 if there must be no cell.
    expected: u64,
    /// Its timestamp; left out: the server's clock, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
    /// Left out: the cell is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
}

/// Whether it was written, and if not, what stood in the way.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct CompareAndSetDone {
    written: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actual: Option<Cell>,
}

/// How far the store is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct StoreStatus {
    /// Raised whenever a loss was detected.
    incarnation: u64,
    /// The last entry of the agreed log that is in the state.
    applied: u64,
}

impl Cell {
    /// The cell as a message; `now` is its timestamp unless it has one.
    fn into_message(self, now: u64) -> v1::Cell {
        let timestamp = self.timestamp.unwrap_or(now);
        v1::Cell { column: self.column.0, timestamp, value: self.value.map(|value| value.0) }
    }

    fn from_message(cell: v1::Cell) -> Cell {
        Cell { column: Text(cell.column), timestamp: Some(cell.timestamp), value: cell.value.map(Text) }
    }
}

impl Row {
    fn from_message(row: v1::Row) -> Row {
        Row { row: Text(row.row), cells: row.cells.into_iter().map(Cell::from_message).collect() }
    }
}

fn fence(fence: Option<Fence>) -> Option<v1::Fence> {
    fence.map(|fence| v1::Fence { name: fence.name.0, number: fence.number })
}

async fn ask(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    match call(app, caller, Body::Store(v1::StoreMessage { message: Some(message) })).await? {
        Body::Store(v1::StoreMessage { message: Some(answer) }) => Ok(answer),
        other => Err(unexpected(&other)),
    }
}

fn other(answer: Message) -> Refusal {
    Refusal(unexpected(&Body::Store(v1::StoreMessage { message: Some(answer) })))
}

/// The store's incarnation and how far it has applied its log.
#[utoipa::path(get, path = "/v1/store", operation_id = "store_status", tag = "store", responses(
    (status = 200, body = StoreStatus), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn status(State(app): State<App>, caller: Caller) -> Result<Json<StoreStatus>, Refusal> {
    match ask(&app, &caller, Message::Status(v1::StoreStatus {})).await? {
        Message::StatusReply(reply) => Ok(Json(StoreStatus { incarnation: reply.incarnation, applied: reply.applied })),
        answer => Err(other(answer)),
    }
}

/// Writes a batch: atomic in each group. Groups that were not written are named in the answer.
#[utoipa::path(post, path = "/v1/store", operation_id = "store_apply", tag = "store", request_body = Batch, responses(
    (status = 200, body = Applied), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn apply(
    State(app): State<App>,
    caller: Caller,
    JsonBody(batch): JsonBody<Batch>,
) -> Result<Json<Applied>, Refusal> {
    let now = app.clock.now().wall.0;
    let groups = batch.groups.into_iter().map(|group| v1::GroupWrite {
        group: group.group.0,
        rows: group.rows.into_iter().map(|row| row_write(row, now)).collect(),
        fence: fence(group.fence),
    });
    let failures = write(&app, &caller, groups.collect()).await?.into_iter();
    let failures = failures.map(|failure| Failure {
        group: Text(failure.group),
        fence: (failure.code == "store.fenced").then_some(failure.fence),
        code: failure.code,
        message: failure.message,
    });
    Ok(Json(Applied { failures: failures.collect() }))
}

fn row_write(row: Row, now: u64) -> v1::RowWrite {
    v1::RowWrite { row: row.row.0, cells: row.cells.into_iter().map(|cell| cell.into_message(now)).collect() }
}

async fn write(app: &App, caller: &Caller, groups: Vec<v1::GroupWrite>) -> Result<Vec<v1::GroupFailure>, Refusal> {
    match ask(app, caller, Message::Apply(v1::Apply { groups })).await? {
        Message::Applied(applied) => Ok(applied.failures),
        answer => Err(other(answer)),
    }
}

/// Rows of a group, in the order of their keys.
#[utoipa::path(get, path = "/v1/store/{group}", operation_id = "store_scan", tag = "store",
    params(
        ("group" = String, Path, description = "The group"),
        ("start" = Option<String>, Query, description = "The first row"),
        ("end" = Option<String>, Query, description = "The row to stop before"),
        ("limit" = Option<u32>, Query, description = "At most this many rows; 100 if left out"),
        ("column" = Option<Vec<String>>, Query, description = "Only these columns"),
    ),
    responses((status = 200, body = Rows), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn scan(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    mut query: Query,
) -> Result<Json<Rows>, Refusal> {
    let scan = v1::Scan {
        group: path.bytes(2),
        start: query.take("start").unwrap_or_default(),
        end: query.take("end").unwrap_or_default(),
        limit: query.take_number("limit")?.unwrap_or(DEFAULT_ROWS),
        columns: query.take_all("column"),
    };
    query.finish()?;
    match ask(&app, &caller, Message::Scan(scan)).await? {
        Message::Rows(rows) => {
            Ok(Json(Rows { rows: rows.rows.into_iter().map(Row::from_message).collect(), next: rows.next.map(Text) }))
        }
        answer => Err(other(answer)),
    }
}

/// One row.
#[utoipa::path(get, path = "/v1/store/{group}/{row}", operation_id = "store_get", tag = "store",
    params(
        ("group" = String, Path, description = "The group"),
        ("row" = String, Path, description = "The row"),
        ("column" = Option<Vec<String>>, Query, description = "Only these columns"),
    ),
    responses((status = 200, body = Row), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    mut query: Query,
) -> Result<Json<Row>, Refusal> {
    let key = v1::RowKey { group: path.bytes(2), row: path.bytes(3) };
    let columns = query.take_all("column");
    query.finish()?;
    match ask(&app, &caller, Message::Get(v1::Get { key: Some(key), columns })).await? {
        Message::Rows(rows) => match rows.rows.into_iter().next() {
            Some(row) => Ok(Json(Row::from_message(row))),
            None => Err(Refusal(no_row())),
        },
        answer => Err(other(answer)),
    }
}

fn no_row() -> Error {
    Error::new("store.no_row", Class::NotFound, "the row has no cells")
        .hint("`GET /v1/store/{group}` lists the rows of a group.")
}

/// Writes cells of one row.
#[utoipa::path(put, path = "/v1/store/{group}/{row}", operation_id = "store_put", tag = "store", request_body = Write,
    params(("group" = String, Path, description = "The group"), ("row" = String, Path, description = "The row")),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(body): JsonBody<Write>,
) -> Result<http::StatusCode, Refusal> {
    let row = row_write(Row { row: Text(path.bytes(3)), cells: body.cells }, app.clock.now().wall.0);
    let group = v1::GroupWrite { group: path.bytes(2), rows: vec![row], fence: fence(body.fence) };
    match write(&app, &caller, vec![group]).await?.into_iter().next() {
        None => Ok(http::StatusCode::NO_CONTENT),
        Some(failure) => Err(Refusal(failed(failure))),
    }
}

/// The failure of a batch's only group, as the error of the request.
fn failed(failure: v1::GroupFailure) -> Error {
    let class = match failure.code.as_str() {
        "store.fenced" => Class::Refused,
        "store.unavailable" => Class::Unreachable,
        _ => Class::Failed,
    };
    let hint = match failure.code.as_str() {
        "store.fenced" => {
            format!("The group has seen {}; whoever holds a lower number has been replaced.", failure.fence)
        }
        _ => String::new(),
    };
    Error { code: Cow::Owned(failure.code), ..Error::new("store.failed", class, failure.message).hint(hint) }
}

/// Writes a cell if its column's newest timestamp is as expected.
#[utoipa::path(post, path = "/v1/store/{group}/{row}/compare-and-set", operation_id = "store_compare_and_set", tag = "store", request_body = CompareAndSet,
    params(("group" = String, Path, description = "The group"), ("row" = String, Path, description = "The row")),
    responses((status = 200, body = CompareAndSetDone), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn compare_and_set(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(set): JsonBody<CompareAndSet>,
) -> Result<Json<CompareAndSetDone>, Refusal> {
    let cell = Cell { column: set.column.clone(), timestamp: set.timestamp, value: set.value };
    let request = v1::CompareAndSet {
        key: Some(v1::RowKey { group: path.bytes(2), row: path.bytes(3) }),
        column: set.column.0,
        expected: set.expected,
        write: Some(cell.into_message(app.clock.now().wall.0)),
        fence: fence(set.fence),
    };
    match ask(&app, &caller, Message::CompareAndSet(request)).await? {
        Message::CompareAndSetDone(done) => {
            Ok(Json(CompareAndSetDone { written: done.written, actual: done.actual.map(Cell::from_message) }))
        }
        answer => Err(other(answer)),
    }
}
