//! Queries, over HTTP: a page of rows at a time.

use super::{TABLE, add_pending, ask, level_of, other, pending_of, reader_of, text_of, within_of};
use crate::rest::answer::{ErrorBody, Refusal};
use crate::rest::extract::{Anyone, JsonBody, Query, Segments};
use crate::rest::{App, Caller};
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidings_base::{Class, Error};
use tidings_client::tables::{Record, form, shown};
use tidings_predicate::json::{self as values, Form};
use tidings_wire::v1;
use tidings_wire::v1::tables_message::Message;
use utoipa::ToSchema;

/// What is asked. Expressions are of the language of predicates.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::rest) struct Ask {
    /// Which records; all that are visible if empty.
    #[schema(example = "price < 10 && in_stock")]
    predicate: String,
    /// Columns of the answer; whole records if there are none.
    project: Vec<Named>,
    /// What comes first.
    order: Vec<Order>,
    /// At most so many rows; no limit if left out.
    limit: Option<u64>,
    group_by: Vec<Named>,
    aggregates: Vec<Aggregate>,
    /// A record of another table for each, by its key.
    lookup: Option<Lookup>,
    /// Only keys from here on.
    #[schema(value_type = Option<serde_json::Value>)]
    from: Option<Value>,
    /// Only keys before this one.
    #[schema(value_type = Option<serde_json::Value>)]
    before: Option<Value>,
    /// Only records within this value of the table's partition column.
    #[serde(rename = "in")]
    #[schema(value_type = Option<serde_json::Value>)]
    within: Option<Value>,
    /// What writers' predicates see as `reader`.
    #[schema(value_type = Option<serde_json::Value>)]
    reader: Option<Value>,
    /// `latest` (the default), `committed`, `committed_wio` or `uncommitted`, which is answered as `committed`.
    level: Option<String>,
    /// With `committed_wio`: writes of one client that are waited for.
    pending: Vec<Pending>,
    /// Where an earlier answer ended.
    cursor: String,
}

/// A write that may be under way.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Pending {
    /// Its name: NETID/SEQ.
    operation: String,
    /// The key that it is on.
    #[schema(value_type = serde_json::Value)]
    key: Value,
}

/// An expression with a name.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Named {
    name: String,
    expression: String,
}

/// An expression to order by.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Order {
    expression: String,
    #[serde(default)]
    descending: bool,
}

/// What is aggregated how.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Aggregate {
    name: String,
    /// `count`, `sum`, `min`, `max` or `avg`.
    #[schema(example = "count")]
    aggregate: String,
    #[serde(default)]
    expression: String,
}

/// A look-up by key in another table.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::rest) struct Lookup {
    table: String,
    key: String,
    name: String,
}

/// What is watched. Expressions are of the language of predicates.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::rest) struct LiveAsk {
    /// Which records; all that are visible if empty.
    #[schema(example = "price < 10 && in_stock")]
    predicate: String,
    /// Columns of the answer; whole records if there are none.
    project: Vec<Named>,
    /// What comes first.
    order: Vec<Order>,
    /// At most so many rows; no limit if left out.
    limit: Option<u64>,
    group_by: Vec<Named>,
    aggregates: Vec<Aggregate>,
    /// Only records within this value of the table's partition column.
    #[serde(rename = "in")]
    #[schema(value_type = Option<serde_json::Value>)]
    within: Option<Value>,
    /// What writers' predicates see as `reader`.
    #[schema(value_type = Option<serde_json::Value>)]
    reader: Option<Value>,
    /// Where an earlier stream ended; empty = nothing that exists.
    cursor: Option<String>,
    /// Leaves records out of the first rows that were written before, in microseconds since 1970.
    newer_than_us: u64,
    /// Names the device, as 32 hexadecimal digits: Notify tells it of changes while it is away.
    netid: Option<String>,
}

impl LiveAsk {
    pub(super) fn message(self, table: String) -> Result<v1::LiveQuery, Error> {
        let LiveAsk { predicate, project, order, limit, group_by, aggregates, within, reader, .. } = self;
        let ask = Ask { predicate, project, order, limit, group_by, aggregates, within, reader, ..Ask::default() };
        let v1::RecordRead { table, query, reader, .. } = ask.message(table)?;
        Ok(v1::LiveQuery {
            table,
            query,
            reader,
            cursor: self.cursor.map(|cursor| cursor_of(&cursor)).transpose()?,
            newer_than_us: self.newer_than_us,
            netid: self.netid.map(|netid| form::netid_of(&netid)).transpose()?.unwrap_or_default(),
            ..Default::default()
        })
    }
}

impl Ask {
    fn message(self, table: String) -> Result<v1::RecordRead, Error> {
        let key = |key: Option<Value>| key.map(|key| values::read_key(&key).map(form::key_to)).transpose();
        let named = |parts: Vec<Named>| {
            let part = |Named { name, expression }| v1::QueryColumn { name, expression };
            parts.into_iter().map(part).collect::<Vec<_>>()
        };
        let order =
            self.order.into_iter().map(|Order { expression, descending }| v1::QueryOrder { expression, descending });
        let aggregates = self.aggregates.into_iter().map(|Aggregate { name, aggregate, expression }| {
            Ok(v1::QueryAggregate { name, aggregate: aggregation(&aggregate)?.into(), expression })
        });
        let within =
            self.within.map(|value| values::read_partition_value(&value).map(form::partition_value_to)).transpose();
        let query = v1::RecordQuery {
            predicate: self.predicate,
            project: named(self.project),
            order: order.collect(),
            limit: self.limit,
            group_by: named(self.group_by),
            aggregates: aggregates.collect::<Result<_, Error>>()?,
            lookup: self.lookup.map(|Lookup { table, key, name }| v1::QueryLookup { table, key, name }),
            from: key(self.from).map_err(form::bad_json)?,
            before: key(self.before).map_err(form::bad_json)?,
            within: within.map_err(form::bad_json)?,
        };
        let reader = self.reader.map(|reader| values::read_columns(&reader)).transpose().map_err(form::bad_json)?;
        let level = level_of(self.level.as_deref())?;
        let (mut netid, mut pending) = (Bytes::new(), Vec::new());
        for Pending { operation, key } in self.pending {
            let key = values::read_key(&key).map_err(form::bad_json)?;
            add_pending(&mut netid, &mut pending, &operation, key)?;
        }
        Ok(v1::RecordRead {
            table,
            query: Some(query),
            level: level.into(),
            reader: reader.map(|reader| form::data_to(&reader)).transpose()?,
            cursor: cursor_of(&self.cursor)?,
            netid,
            pending,
            ..Default::default()
        })
    }
}

fn aggregation(name: &str) -> Result<v1::QueryAggregation, Error> {
    Ok(match name {
        "count" => v1::QueryAggregation::Count,
        "sum" => v1::QueryAggregation::Sum,
        "min" => v1::QueryAggregation::Min,
        "max" => v1::QueryAggregation::Max,
        "avg" => v1::QueryAggregation::Avg,
        _ => {
            return Err(Error::new("tables.bad_query", Class::Invalid, "there is no such aggregate")
                .hint("Use count, sum, min, max or avg."));
        }
    })
}

pub(super) fn cursor_of(text: &str) -> Result<Bytes, Error> {
    BASE64.decode(text).map(Bytes::from).map_err(|_| {
        Error::new("tables.bad_cursor", Class::Invalid, "This cursor was not made here.")
            .hint("Begin without a cursor.")
    })
}

pub(super) fn cursor_to(cursor: &[u8]) -> String {
    BASE64.encode(cursor)
}

/// A page of rows, as records.
pub(super) async fn page(app: &App, caller: &Caller, read: v1::RecordRead) -> Result<(Vec<Record>, Bytes), Error> {
    match ask(app, caller, Message::Read(read)).await? {
        Message::Rows(rows) => {
            let records = rows.rows.into_iter().map(Record::try_from).collect::<Result<_, Error>>()?;
            Ok((records, rows.cursor))
        }
        answer => Err(other(answer)),
    }
}

async fn rows(app: &App, caller: &Caller, read: v1::RecordRead) -> Result<Json<Value>, Refusal> {
    let (records, cursor) = page(app, caller, read).await?;
    let rows: Vec<Value> = records.iter().map(|record| shown::record(record, Form::Plain)).collect();
    let cursor = (!cursor.is_empty()).then(|| cursor_to(&cursor));
    Ok(Json(json!({ "rows": rows, "cursor": cursor })))
}

/// Asks a query: a page of its rows, and a cursor if there are more.
#[utoipa::path(post, path = "/v1/tables/{table}/query", operation_id = "tables_query", tag = "tables",
    request_body = Ask, params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn query(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
    JsonBody(ask): JsonBody<Ask>,
) -> Result<Json<Value>, Refusal> {
    let read = ask.message(path.text(TABLE)?)?;
    rows(&app, &caller, read).await
}

/// Records that a predicate selects: a page of them, and a cursor if there are more.
#[utoipa::path(get, path = "/v1/tables/{table}/records", operation_id = "tables_read", tag = "tables",
    params(("table" = String, Path, description = "The table"),
        ("predicate" = Option<String>, Query, description = "Which records; all that are visible if left out"),
        ("in" = Option<String>, Query, description = "Only records within this value of the table's partition column"),
        ("limit" = Option<u64>, Query, description = "At most so many"),
        ("cursor" = Option<String>, Query, description = "Where an earlier answer ended"),
        ("level" = Option<String>, Query, description = "`latest` (the default), `committed`, `committed_wio` or `uncommitted`"),
        ("pending" = Option<Vec<String>>, Query, description = "With `committed_wio`: NETID/SEQ/KEY of writes to wait for"),
        ("reader" = Option<String>, Query, description = "What writers' predicates see as `reader`: a JSON object")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn records(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
    mut query: Query,
) -> Result<Json<Value>, Refusal> {
    let predicate = text_of(&mut query, "predicate")?.unwrap_or_default();
    let (limit, within) = (query.take_number("limit")?, within_of(&mut query)?);
    let cursor = cursor_of(&text_of(&mut query, "cursor")?.unwrap_or_default())?;
    let (level, reader) = (level_of(text_of(&mut query, "level")?.as_deref())?, reader_of(&mut query)?);
    let (netid, pending) = pending_of(&mut query, None)?;
    query.finish()?;
    let query = Some(v1::RecordQuery { predicate, limit, within, ..Default::default() });
    let table = path.text(TABLE)?;
    let level = level.into();
    let read = v1::RecordRead { table, query, cursor, level, reader, netid, pending, ..Default::default() };
    rows(&app, &caller, read).await
}
