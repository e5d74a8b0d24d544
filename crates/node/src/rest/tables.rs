//! Tables, over HTTP: tables and records as JSON, live queries as server-sent events, exports and imports line by line.
//!
//! A key in a path is text; with `?bytes=true` it is bytes. Versions are told as `ETag`, and `If-Match: "version"` or
//! `If-None-Match: *` make a write conditional. `X-Tidings-Operation: NETID/SEQ[/ACKED[/AFTER]]` names a write (R6), and
//! `level=committed_wio` with `pending=NETID/SEQ[/KEY]` is a read that waits for such.

mod bulk;
mod console;
mod query;
mod watch;

pub(super) use bulk::*;
pub(super) use console::*;
pub(super) use query::*;
pub(super) use watch::*;

use super::answer::{ErrorBody, Refusal};
use super::extract::{Anyone, JsonBody, Query, Segments, bad_path};
use super::{App, Caller, call, unexpected};
use crate::gate::veiled;
use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidings_base::{Class, Error};
use tidings_client::tables::{Conflict, Outcome, Record, form, shown};
use tidings_predicate::Key;
use tidings_predicate::json::{self as values, Form};
use tidings_wire::v1::record_condition::Expected;
use tidings_wire::v1::record_write::Change;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};
use utoipa::ToSchema;

/// Where the parts of a path are: `v1`, `tables`, the table, `records`, the key.
const TABLE: usize = 2;
const KEY: usize = 4;

/// What a table is.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Properties {
    /// Who may use it: `public`, `app` (the default) or `user`, or whoever is authorised higher.
    #[schema(example = "app")]
    level: Option<String>,
    /// A predicate over `old`, `new`, `writer` (of the old record: `user:APPLICATION/SUBJECT`, or an application), `key` and `user`
    /// that guards every change.
    may_write: Option<String>,
    /// Clients may leave writes unsent.
    lossy: Option<bool>,
    /// Columns with declared kinds.
    columns: Option<BTreeMap<String, Column>>,
    /// No columns but the declared ones.
    closed: Option<bool>,
    /// The most records of a partition; 0 = no bound.
    max_records: Option<u64>,
    /// The most bytes of a partition; 0 = no bound.
    max_bytes: Option<u64>,
    /// How long a deleted record's version is kept, in seconds; 0 = the default.
    tombstones_s: Option<u64>,
    /// The column by whose value records are placed, from the beginning and for good.
    partition_by: Option<PartitionBy>,
    /// How many copies there are of its records: `cluster`, all members have them.
    #[schema(example = "cluster")]
    replication: Option<String>,
    /// Keys at which a new table is cut into partitions.
    #[schema(value_type = Vec<serde_json::Value>)]
    cuts: Vec<Value>,
}

/// What a column holds.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    /// `null`, `bool`, `int`, `double`, `string`, `bytes`, `list`, `map`.
    kinds: Vec<String>,
    #[serde(default)]
    required: bool,
}

/// A column by whose value records are placed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PartitionBy {
    /// Its name.
    #[schema(example = "city")]
    column: String,
    /// What it holds: `string` (the default) or `int`.
    #[serde(default)]
    kind: String,
}

impl Properties {
    /// The names of those that are said.
    fn said(&self) -> v1::TableSaid {
        let all = [
            ("level", self.level.is_some()),
            ("may_write", self.may_write.is_some()),
            ("lossy", self.lossy.is_some()),
            ("columns", self.columns.is_some()),
            ("closed", self.closed.is_some()),
            ("max_records", self.max_records.is_some()),
            ("max_bytes", self.max_bytes.is_some()),
            ("tombstones_s", self.tombstones_s.is_some()),
            ("partition_by", self.partition_by.is_some()),
            ("replication", self.replication.is_some()),
        ];
        v1::TableSaid { fields: all.iter().filter(|(_, said)| *said).map(|(field, _)| (*field).to_owned()).collect() }
    }

    /// What is said, and for the rest what a new table has.
    fn read(self) -> Result<(v1::TableProperties, Vec<v1::RecordKey>), Error> {
        let level = self.level.as_deref().map(|name| {
            shown::level(name).ok_or_else(|| {
                Error::new("tables.invalid", Class::Invalid, format!("`{}` is no level", crate::principal::clip(name)))
                    .hint("Use public, app or user.")
            })
        });
        let column = |(name, Column { kinds, required })| v1::TableColumn { name, kinds, required };
        let properties = v1::TableProperties {
            level: level.transpose()?.unwrap_or(v1::TableLevel::App).into(),
            may_write: self.may_write.unwrap_or_default(),
            lossy: self.lossy.unwrap_or_default(),
            columns: self.columns.unwrap_or_default().into_iter().map(column).collect(),
            closed: self.closed.unwrap_or_default(),
            max_records: self.max_records.unwrap_or_default(),
            max_bytes: self.max_bytes.unwrap_or_default(),
            tombstones_s: self.tombstones_s.unwrap_or_default(),
            partition_by: self.partition_by.map(|by| v1::TablePartitionBy { column: by.column, kind: by.kind }),
            replication: self.replication.unwrap_or_default(),
        };
        let cut = |cut: &Value| values::read_key(cut).map(form::key_to).map_err(form::bad_json);
        Ok((properties, self.cuts.iter().map(cut).collect::<Result<_, Error>>()?))
    }
}

/// A change of who may do what.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessChange {
    /// `*`, `app:APPLICATION/KEY` or `user:APPLICATION/SUBJECT`; `*` in the last place stands for all of them.
    #[schema(example = "user:shop/ann")]
    who: String,
    /// First everything that was said of it is taken back.
    #[serde(default)]
    remove: bool,
    /// `read`, `write`, `administer`, or `all`.
    #[serde(default)]
    allow: Vec<String>,
    /// The same; a denial counts more than any permission.
    #[serde(default)]
    deny: Vec<String>,
}

/// Changes of who may do what; the first makes a list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Access {
    changes: Vec<AccessChange>,
}

fn rights_of(names: &[String]) -> Result<Vec<i32>, Error> {
    let rights = |name: &String| {
        shown::rights(name).ok_or_else(|| {
            Error::new("tables.invalid", Class::Invalid, format!("`{}` is no right", crate::principal::clip(name)))
                .hint("Use read, write, administer or all.")
        })
    };
    let rights = names.iter().map(rights).collect::<Result<Vec<_>, Error>>()?;
    Ok(rights.into_iter().flatten().map(i32::from).collect())
}

/// Asks the services.
async fn ask(app: &App, caller: &Caller, message: Message) -> Result<Message, Error> {
    let body = Body::Tables(v1::TablesMessage { message: Some(message), ..Default::default() });
    match call(app, caller, body).await.map_err(|error| veiled(&caller.0.principal, error))? {
        Body::Tables(v1::TablesMessage { message: Some(answer), .. }) => Ok(answer),
        other => Err(unexpected(&other)),
    }
}

fn other(answer: Message) -> Error {
    unexpected(&Body::Tables(v1::TablesMessage { message: Some(answer), ..Default::default() }))
}

async fn info(app: &App, caller: &Caller, message: Message) -> Result<Json<Value>, Refusal> {
    match ask(app, caller, message).await? {
        Message::Info(info) => Ok(Json(shown::info(&info))),
        answer => Err(Refusal(other(answer))),
    }
}

/// The tables of the application.
#[utoipa::path(get, path = "/v1/tables", operation_id = "tables_list", tag = "tables",
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn list(State(app): State<App>, caller: Caller) -> Result<Json<Value>, Refusal> {
    match ask(&app, &caller, Message::List(v1::TableList {})).await? {
        Message::ListReply(reply) => {
            Ok(Json(json!({ "tables": reply.tables.iter().map(shown::info).collect::<Vec<_>>() })))
        }
        answer => Err(Refusal(other(answer))),
    }
}

/// A table, its partitions, and what their owners say of them.
#[utoipa::path(get, path = "/v1/tables/{table}", operation_id = "tables_stat", tag = "tables",
    params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn stat(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
) -> Result<Json<Value>, Refusal> {
    info(&app, &caller, Message::Stat(v1::TableStat { table: path.text(TABLE)? })).await
}

/// Makes a table.
#[utoipa::path(put, path = "/v1/tables/{table}", operation_id = "tables_create", tag = "tables",
    request_body = Properties, params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(properties): JsonBody<Properties>,
) -> Result<Json<Value>, Refusal> {
    let (properties, cuts) = properties.read()?;
    let table = path.text(TABLE)?;
    info(&app, &caller, Message::Create(v1::TableCreate { table, properties: Some(properties), cuts })).await
}

/// Changes the properties of a table that are given; with `If-Match`, if it has this generation still.
#[utoipa::path(patch, path = "/v1/tables/{table}", operation_id = "tables_alter", tag = "tables",
    request_body = Properties, params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn alter(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    headers: HeaderMap,
    JsonBody(properties): JsonBody<Properties>,
) -> Result<Json<Value>, Refusal> {
    let generation = match expected(&headers)? {
        Some(0) => return Err(Refusal(bad_path("a table is altered if it is there"))),
        generation => generation.unwrap_or(0),
    };
    if !properties.cuts.is_empty() {
        let message = "`cuts` says where a table is cut when it is made";
        let hint = "Cut a part of one that is there in two with `tidings table split`.";
        return Err(Refusal(Error::new("tables.invalid", Class::Invalid, message).hint(hint)));
    }
    let (table, said) = (path.text(TABLE)?, Some(properties.said()));
    let properties = Some(properties.read()?.0);
    info(&app, &caller, Message::Alter(v1::TableAlter { table, properties, generation, said })).await
}

/// Asks for a list of access, or for a change of one.
async fn access(app: &App, caller: &Caller, access: v1::TableAccess) -> Result<Json<Value>, Refusal> {
    match ask(app, caller, Message::Access(access)).await? {
        Message::Info(info) => Ok(Json(
            json!({ "table": info.table, "listed": info.acl.is_some(), "entries": info.acl.as_ref().map(shown::acl) }),
        )),
        answer => Err(Refusal(other(answer))),
    }
}

/// Who may do what with a table, for whoever administers it.
#[utoipa::path(get, path = "/v1/tables/{table}/access", operation_id = "tables_access", tag = "tables",
    params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get_access(State(app): State<App>, caller: Caller, path: Segments) -> Result<Json<Value>, Refusal> {
    access(&app, &caller, v1::TableAccess { table: path.text(TABLE)?, ..Default::default() }).await
}

/// Changes who may do what with a table. The first change makes a list: what it does not allow is denied, but to the table's
/// own application and to operators.
#[utoipa::path(patch, path = "/v1/tables/{table}/access", operation_id = "tables_change_access", tag = "tables",
    request_body = Access, params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn change_access(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    JsonBody(new): JsonBody<Access>,
) -> Result<Json<Value>, Refusal> {
    let change = |change: AccessChange| {
        let (allow, deny) = (rights_of(&change.allow)?, rights_of(&change.deny)?);
        Ok(v1::TableAccessChange { who: change.who, remove: change.remove, allow, deny })
    };
    let changes = new.changes.into_iter().map(change).collect::<Result<_, Error>>()?;
    access(&app, &caller, v1::TableAccess { table: path.text(TABLE)?, listed: Some(true), changes }).await
}

/// Takes a table's list of access away: its level alone decides.
#[utoipa::path(delete, path = "/v1/tables/{table}/access", operation_id = "tables_open_access", tag = "tables",
    params(("table" = String, Path, description = "The table")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn open_access(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
) -> Result<Json<Value>, Refusal> {
    let table = path.text(TABLE)?;
    access(&app, &caller, v1::TableAccess { table, listed: Some(false), changes: Vec::new() }).await
}

/// Drops a table with everything in it.
#[utoipa::path(delete, path = "/v1/tables/{table}", operation_id = "tables_drop", tag = "tables",
    params(("table" = String, Path, description = "The table")),
    responses((status = 204, description = "Dropped"), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn drop_table(State(app): State<App>, caller: Caller, path: Segments) -> Result<StatusCode, Refusal> {
    match ask(&app, &caller, Message::Drop(v1::TableDrop { table: path.text(TABLE)? })).await? {
        Message::Dropped(_) => Ok(StatusCode::NO_CONTENT),
        answer => Err(Refusal(other(answer))),
    }
}

// ---- records --------------------------------------------------------------------------------------------------------

fn key_of(path: &Segments, query: &mut Query) -> Result<Key, Error> {
    let own = match query.take("bytes").is_some_and(|value| value.as_ref() == b"true") {
        true => Key::Bytes(path.bytes(KEY).to_vec()),
        false => Key::String(path.text(KEY)?),
    };
    Ok(match text_of(query, values::IN)? {
        Some(value) => Key::within(value, own),
        None => own,
    })
}

/// The value of the partition column that alone is asked for: the parameter `in`.
fn within_of(query: &mut Query) -> Result<Option<v1::PartitionValue>, Error> {
    Ok(text_of(query, values::IN)?.map(|value| form::partition_value_to(value.into())))
}

/// What the reader says of itself: the parameter `reader`, a JSON object.
fn reader_of(query: &mut Query) -> Result<Option<v1::RecordData>, Error> {
    let Some(text) = query.take("reader") else { return Ok(None) };
    let text = String::from_utf8(text.to_vec()).map_err(|_| bad_path("`reader` is not UTF-8"))?;
    Ok(Some(v1::RecordData { form: Some(v1::record_data::Form::Json(text)) }))
}

/// The version that a record must have; 0 = there must be none.
fn expected(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let bad = |what: &str| Err(bad_path(what).hint("Use the `ETag` of an answer, or `If-None-Match: *`."));
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim().to_owned());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(None),
        (None, Some(any)) if any == "*" => Ok(Some(0)),
        (Some(tag), None) => match tag.trim_matches('"').parse() {
            Ok(version) => Ok(Some(version)),
            Err(_) => bad("`If-Match` is no version"),
        },
        _ => bad("`If-None-Match` can only be `*`, and not beside `If-Match`"),
    }
}

/// Reads one record.
#[utoipa::path(get, path = "/v1/tables/{table}/records/{key}", operation_id = "tables_get", tag = "tables",
    params(("table" = String, Path, description = "The table"), ("key" = String, Path, description = "The key"),
        ("in" = Option<String>, Query, description = "The value of the partition column, if the table has one"),
        ("bytes" = Option<bool>, Query, description = "The key is bytes, not text"),
        ("level" = Option<String>, Query, description = "`latest` (the default), `committed`, `committed_wio` or `uncommitted`"),
        ("pending" = Option<Vec<String>>, Query, description = "With `committed_wio`: NETID/SEQ of writes to wait for"),
        ("reader" = Option<String>, Query, description = "What writers' predicates see as `reader`: a JSON object")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(super) async fn get(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
    mut query: Query,
) -> Result<Response, Refusal> {
    let (table, key) = (path.text(TABLE)?, key_of(&path, &mut query)?);
    let (level, reader) = (level_of(text_of(&mut query, "level")?.as_deref())?, reader_of(&mut query)?);
    let (netid, pending) = pending_of(&mut query, Some(&key))?;
    query.finish()?;
    let (level, key) = (level.into(), Some(form::key_to(key)));
    let read = v1::RecordRead { table, key, level, reader, netid, pending, ..Default::default() };
    let rows = match ask(&app, &caller, Message::Read(read)).await? {
        Message::Rows(rows) => rows,
        answer => return Err(Refusal(other(answer))),
    };
    let Some(record) = rows.rows.into_iter().next() else {
        return Err(Refusal(
            Error::new("tables.no_record", Class::NotFound, "There is no such record.")
                .hint("It may be there and not be shown to this reader."),
        ));
    };
    let record = Record::try_from(record)?;
    let tag = [(header::ETAG, format!("\"{}\"", record.version))];
    Ok((tag, Json(shown::record(&record, Form::Plain))).into_response())
}

/// A request to write a record: whose it is, which record, and under which condition.
pub(super) struct Writing {
    app: App,
    caller: Caller,
    path: Segments,
    query: Query,
    headers: HeaderMap,
}

impl FromRequestParts<App> for Writing {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Writing, Response> {
        let Anyone(caller) = Anyone::from_request_parts(parts, app).await?;
        let path = Segments::from_request_parts(parts, app).await.map_err(IntoResponse::into_response)?;
        let query = Query::from_request_parts(parts, app).await.map_err(IntoResponse::into_response)?;
        Ok(Writing { app: app.clone(), caller, path, query, headers: parts.headers.clone() })
    }
}

impl Writing {
    /// Writes one record, as its change says.
    async fn write(self, change: Change) -> Result<Response, Refusal> {
        let Writing { app, caller, path, mut query, headers } = self;
        let (table, key, reader) = (path.text(TABLE)?, key_of(&path, &mut query)?, reader_of(&mut query)?);
        query.finish()?;
        let condition =
            expected(&headers)?.map(|version| v1::RecordCondition { expected: Some(Expected::Version(version)) });
        let write = v1::RecordWrite {
            table,
            key: Some(form::key_to(key)),
            operation: operation_of(&headers)?,
            condition,
            change: Some(change),
            reader,
            ..Default::default()
        };
        let outcome = match ask(&app, &caller, Message::Write(write)).await? {
            Message::Written(written) => Outcome::try_from(written)?,
            answer => return Err(Refusal(other(answer))),
        };
        match outcome {
            Outcome::Committed(version) => {
                let tag = [(header::ETAG, format!("\"{version}\""))];
                Ok((tag, Json(json!({ "version": shown::version(version) }))).into_response())
            }
            Outcome::Conflict(conflict) => Ok(conflicting(conflict)),
        }
    }
}

/// A conflict as an answer, with what stands in the way where the writer may see it.
fn conflicting(conflict: Conflict) -> Response {
    let theirs = match &conflict {
        Conflict::Theirs(theirs) => Some(shown::record(theirs, Form::Plain)),
        _ => None,
    };
    let hidden = conflict == Conflict::Hidden;
    let mut body = serde_json::to_value(ErrorBody::from(Error::from(conflict))).unwrap_or_default();
    body["theirs"] = theirs.unwrap_or_default();
    body["hidden"] = hidden.into();
    (StatusCode::PRECONDITION_FAILED, Json(body)).into_response()
}

fn columns_of(body: &Value) -> Result<v1::RecordData, Error> {
    form::data_to(&values::read_columns(body).map_err(form::bad_json)?)
}

/// Replaces one record; answered when that is durable.
#[utoipa::path(put, path = "/v1/tables/{table}/records/{key}", operation_id = "tables_put", tag = "tables",
    request_body = serde_json::Value,
    params(("table" = String, Path, description = "The table"), ("key" = String, Path, description = "The key"),
        ("in" = Option<String>, Query, description = "The value of the partition column, if the table has one"),
        ("bytes" = Option<bool>, Query, description = "The key is bytes, not text"),
        ("audience" = Option<String>, Query, description = "A predicate: whom the record is shown to"),
        ("reader" = Option<String>, Query, description = "What the writer says of itself as a reader: a JSON object")),
    responses((status = 200, body = serde_json::Value), (status = 412, body = serde_json::Value),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn put(mut writing: Writing, JsonBody(body): JsonBody<Value>) -> Result<Response, Refusal> {
    let audience = text_of(&mut writing.query, "audience")?.unwrap_or_default();
    let change = Change::Put(v1::RecordPut { data: Some(columns_of(&body)?), audience });
    writing.write(change).await
}

/// Sets some columns of one record and keeps the others.
#[utoipa::path(patch, path = "/v1/tables/{table}/records/{key}", operation_id = "tables_patch", tag = "tables",
    request_body = serde_json::Value,
    params(("table" = String, Path, description = "The table"), ("key" = String, Path, description = "The key"),
        ("in" = Option<String>, Query, description = "The value of the partition column, if the table has one"),
        ("bytes" = Option<bool>, Query, description = "The key is bytes, not text"),
        ("remove" = Option<Vec<String>>, Query, description = "Columns to take away"),
        ("reader" = Option<String>, Query, description = "What the writer says of itself as a reader: a JSON object")),
    responses((status = 200, body = serde_json::Value), (status = 412, body = serde_json::Value),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn patch(mut writing: Writing, JsonBody(body): JsonBody<Value>) -> Result<Response, Refusal> {
    let remove = std::iter::from_fn(|| text_of(&mut writing.query, "remove").transpose());
    let remove = remove.collect::<Result<_, Error>>()?;
    let change = Change::Patch(v1::RecordPatch { data: Some(columns_of(&body)?), remove });
    writing.write(change).await
}

/// Deletes one record, whether there is one or not.
#[utoipa::path(delete, path = "/v1/tables/{table}/records/{key}", operation_id = "tables_delete", tag = "tables",
    params(("table" = String, Path, description = "The table"), ("key" = String, Path, description = "The key"),
        ("in" = Option<String>, Query, description = "The value of the partition column, if the table has one"),
        ("bytes" = Option<bool>, Query, description = "The key is bytes, not text"),
        ("reader" = Option<String>, Query, description = "What the writer says of itself as a reader: a JSON object")),
    responses((status = 200, body = serde_json::Value), (status = 412, body = serde_json::Value),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(super) async fn delete(writing: Writing) -> Result<Response, Refusal> {
    writing.write(Change::Delete(v1::RecordDelete {})).await
}

fn text_of(query: &mut Query, name: &str) -> Result<Option<String>, Error> {
    let text = query.take(name).map(|value| String::from_utf8(value.to_vec()));
    text.transpose().map_err(|_| bad_path(format!("`{name}` is not UTF-8")))
}

fn level_of(name: Option<&str>) -> Result<v1::ReadLevel, Error> {
    match name {
        None | Some("latest") => Ok(v1::ReadLevel::Latest),
        Some("committed") => Ok(v1::ReadLevel::Committed),
        Some("committed_wio") => Ok(v1::ReadLevel::CommittedWio),
        // Pending writes are a device's own: a server answers it as `committed`.
        Some("uncommitted") => Ok(v1::ReadLevel::Uncommitted),
        Some(_) => Err(bad_path("`level` is `latest`, `committed`, `committed_wio` or `uncommitted`")),
    }
}

/// R6: the name of a write, if its caller gives it one.
fn operation_of(headers: &HeaderMap) -> Result<Option<v1::RecordOperation>, Error> {
    headers.get("x-tidings-operation").map(|name| form::operation_of(name.to_str().unwrap_or("?"))).transpose()
}

/// R6: the operations that a read waits for: `NETID/SEQ` on the key that is read, or `NETID/SEQ/KEY`, all of one client.
fn pending_of(query: &mut Query, key: Option<&Key>) -> Result<(Bytes, Vec<v1::PendingOperation>), Error> {
    let (mut netid, mut pending) = (Bytes::new(), Vec::new());
    while let Some(text) = text_of(query, "pending")? {
        let mut parts = text.splitn(3, '/');
        let name = format!("{}/{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let within = key.and_then(Key::partition_value);
        let said = parts.next().map(|own| within.map_or_else(|| own.into(), |value| Key::within(value.clone(), own)));
        let key = said.or_else(|| key.cloned());
        let key = key.ok_or_else(|| bad_path("an operation in `pending` lacks its key"))?;
        add_pending(&mut netid, &mut pending, &name, key)?;
    }
    Ok((netid, pending))
}

/// Adds an operation that a read waits for.
fn add_pending(netid: &mut Bytes, pending: &mut Vec<v1::PendingOperation>, name: &str, key: Key) -> Result<(), Error> {
    let operation = form::operation_of(name)?;
    if !netid.is_empty() && *netid != operation.netid {
        return Err(bad_path("`pending` names operations of one client"));
    }
    *netid = operation.netid;
    pending.push(v1::PendingOperation { key: Some(form::key_to(key)), seq: operation.seq, columns: None });
    Ok(())
}
