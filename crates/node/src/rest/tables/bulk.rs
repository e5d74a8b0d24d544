//! Exports and imports: a record a line, as JSON or as comma-separated values.

use super::query::page;
use super::{TABLE, ask, other, text_of, within_of};
use crate::rest::answer::{ErrorBody, Refusal};
use crate::rest::extract::{Anyone, Query, RawBody, Segments, bad_path};
use crate::rest::{App, Caller};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::header;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::iter::Peekable;
use tidings_base::Error;
use tidings_client::tables::form::Line;
use tidings_client::tables::{Outcome, Record, csv, form, shown};
use tidings_predicate::Key;
use tidings_predicate::json::Form;
use tidings_wire::v1;
use tidings_wire::v1::record_write::Change;
use tidings_wire::v1::tables_message::Message;

/// How many writes of an import are under way at a time, at most.
const AT_ONCE: usize = 64;

/// How records are written line by line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    Ndjson,
    Csv,
}

impl Lines {
    fn of(query: &mut Query) -> Result<Lines, Error> {
        match text_of(query, "format")?.as_deref() {
            None | Some("ndjson") => Ok(Lines::Ndjson),
            Some("csv") => Ok(Lines::Csv),
            Some(_) => Err(bad_path("`format` is `ndjson` or `csv`")),
        }
    }
}

/// All records that are visible, a line each, in the order of their keys.
#[utoipa::path(get, path = "/v1/tables/{table}/export", operation_id = "tables_export", tag = "tables",
    params(("table" = String, Path, description = "The table"),
        ("format" = Option<String>, Query, description = "`ndjson` (the default) or `csv`"),
        ("predicate" = Option<String>, Query, description = "Which records"),
        ("in" = Option<String>, Query, description = "Only records within this value of the table's partition column"),
        ("column" = Option<Vec<String>>, Query, description = "Columns of CSV; if left out, all that there are: the records are read twice"),
        ("audiences" = Option<bool>, Query, description = "NDJSON with whom each record is shown to: for the table's own application and operators")),
    responses((status = 200, description = "Lines", content_type = "application/x-ndjson"),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn export(
    State(app): State<App>,
    Anyone(caller): Anyone,
    path: Segments,
    mut query: Query,
) -> Result<Response, Refusal> {
    let lines = Lines::of(&mut query)?;
    let predicate = text_of(&mut query, "predicate")?.unwrap_or_default();
    let within = within_of(&mut query)?;
    let columns: Vec<String> =
        std::iter::from_fn(|| text_of(&mut query, "column").transpose()).collect::<Result<_, Error>>()?;
    let audiences = query.take("audiences").is_some_and(|value| value.as_ref() == b"true");
    query.finish()?;
    let ask = v1::RecordQuery { predicate, within, ..Default::default() };
    let read = v1::RecordRead { table: path.text(TABLE)?, query: Some(ask), audiences, ..Default::default() };
    let mut export = Export { app, caller, next: Some(read), lines, columns, heading: None, pieces: VecDeque::new() };
    // What is wrong with the request is told before anything is sent.
    export.pull().await?;
    let kind = match lines {
        Lines::Ndjson => "application/x-ndjson",
        Lines::Csv => "text/csv",
    };
    let body = stream::unfold(export, |mut export| async move {
        let piece = export.next().await?;
        Some((piece, export))
    });
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(body)).into_response())
}

/// An export's place between two pieces.
struct Export {
    app: App,
    caller: Caller,
    next: Option<v1::RecordRead>,
    lines: Lines,
    columns: Vec<String>,
    heading: Option<csv::Writer>,
    pieces: VecDeque<Bytes>,
}

impl Export {
    async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(Ok(piece));
            }
            self.next.as_ref()?;
            if let Err(error) = self.pull().await {
                self.next = None;
                return Some(Err(error));
            }
        }
    }

    /// Columns come and go: the names of all, from the first page and those behind it.
    async fn found(
        &self,
        read: &v1::RecordRead,
        first: &[Record],
        mut cursor: Bytes,
    ) -> Result<BTreeSet<String>, Error> {
        let mut names: BTreeSet<String> = first.iter().flat_map(|record| record.columns.keys().cloned()).collect();
        while !cursor.is_empty() {
            let records;
            (records, cursor) = page(&self.app, &self.caller, v1::RecordRead { cursor, ..read.clone() }).await?;
            names.extend(records.into_iter().flat_map(|record| record.columns.into_keys()));
        }
        Ok(names)
    }

    /// Reads a page.
    async fn pull(&mut self) -> Result<(), Error> {
        let Some(read) = self.next.take() else { return Ok(()) };
        let (records, cursor) = page(&self.app, &self.caller, read.clone()).await?;
        let mut text = String::new();
        if self.lines == Lines::Csv && self.heading.is_none() {
            let writer = match self.columns.is_empty() {
                true => csv::Writer::new(self.found(&read, &records, cursor.clone()).await?),
                false => csv::Writer::new(self.columns.iter().cloned()),
            };
            text += &writer.heading();
            self.heading = Some(writer);
        }
        for record in &records {
            match (&self.heading, &record.key) {
                (Some(writer), Some(key)) => text += &writer.record(key, &record.columns),
                _ => {
                    text += &shown::record(record, Form::Exact).to_string();
                    text.push('\n');
                }
            }
        }
        self.pieces.push_back(text.into());
        self.next = (!cursor.is_empty()).then_some(v1::RecordRead { cursor, ..read });
        Ok(())
    }
}

/// Writes a record for each line: `{"key", "in"?, "columns", "audience"?}`, or comma-separated values with a heading.
#[utoipa::path(post, path = "/v1/tables/{table}/import", operation_id = "tables_import", tag = "tables",
    request_body = String,
    params(("table" = String, Path, description = "The table"),
        ("format" = Option<String>, Query, description = "`ndjson` (the default) or `csv`"),
        ("audience" = Option<String>, Query, description = "A predicate: whom the records are shown to that do not say so")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody)
))]
pub(in crate::rest) async fn import(
    State(app): State<App>,
    caller: Caller,
    path: Segments,
    mut query: Query,
    RawBody(body): RawBody,
) -> Result<Json<Value>, Refusal> {
    let lines = Lines::of(&mut query)?;
    let audience = text_of(&mut query, "audience")?.unwrap_or_default();
    query.finish()?;
    let text = std::str::from_utf8(&body).map_err(|_| bad_path("the body is not UTF-8"))?;
    let records: Vec<(usize, Line)> = match lines {
        Lines::Csv => csv::read(text)?,
        Lines::Ndjson => (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(number, line)| Ok((number, record_of(number, line)?)))
            .collect::<Result<_, Error>>()?,
    };
    let (mut count, table) = (0, path.text(TABLE)?);
    let mut records = records.into_iter().peekable();
    loop {
        let some = together(&mut records);
        if some.is_empty() {
            return Ok(Json(json!({ "written": count })));
        }
        let writes = some
            .into_iter()
            .map(async |(number, record)| (number, write(&app, &caller, &table, &audience, record).await));
        count = form::written(count, futures::future::join_all(writes).await)?;
    }
}

/// The next records that may be written in any order: of one key the last one wins, so that it comes behind the others.
fn together(records: &mut Peekable<impl Iterator<Item = (usize, Line)>>) -> Vec<(usize, Line)> {
    let mut some = Vec::<(usize, Line)>::new();
    while some.len() < AT_ONCE {
        let other = |line: &Line| !some.iter().any(|(_, before)| may_be_one(&before.key, &line.key));
        let Some(next) = records.next_if(|(_, line)| other(line)) else { break };
        some.push(next);
    }
    some
}

/// Whether two keys may name one record: which column its table is partitioned by is not known here, and a line may have the value
/// there or beside its key, as a number or as text.
fn may_be_one(one: &Key, other: &Key) -> bool {
    let value = |key: &Key| {
        let text = key.partition_value()?.to_string();
        Some(text.parse::<i64>().map(|number| number.to_string()).unwrap_or(text))
    };
    one.own() == other.own() && value(one).zip(value(other)).is_none_or(|(one, other)| one == other)
}

async fn write(
    app: &App,
    caller: &Caller,
    table: &str,
    audience: &str,
    Line { key, columns, audience: own }: Line,
) -> Result<(), Error> {
    let audience = own.unwrap_or_else(|| audience.to_owned());
    let put = v1::RecordPut { data: Some(form::data_to(&columns)?), audience };
    let write = v1::RecordWrite {
        table: table.to_owned(),
        key: Some(form::key_to(key)),
        change: Some(Change::Put(put)),
        ..Default::default()
    };
    match ask(app, caller, Message::Write(write)).await? {
        Message::Written(written) => Outcome::try_from(written)?.committed().map(drop),
        answer => Err(other(answer)),
    }
}

fn record_of(number: usize, line: &str) -> Result<Line, Error> {
    form::line_of(line).map_err(|error| Error { message: format!("line {number}: {}", error.message), ..error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Class;

    #[test]
    fn records_that_may_be_one_are_not_written_together() {
        let line = |key: Key| Line { key, columns: Default::default(), audience: None };
        let cut = |keys: Vec<Key>| {
            let mut records = (1..).zip(keys.into_iter().map(line)).peekable();
            let batches = std::iter::from_fn(|| Some(together(&mut records)).filter(|some| !some.is_empty()));
            batches.map(|some| some.len()).collect::<Vec<usize>>()
        };
        let keys = |text: &str| text.chars().map(|key| Key::String(key.to_string())).collect::<Vec<Key>>();
        assert_eq!(cut(keys("abacbb")), [2, 3, 1]);
        assert_eq!(cut((0..150).map(|n| Key::String(n.to_string())).collect()), [64, 64, 22]);
        // Bytes are not the text that they spell; a key within a value is one within the same, however that is written, or in a column.
        let bytes = Key::Bytes(b"a".to_vec());
        let (rome, oslo) = (Key::within("Rome", "a"), Key::within("Oslo", "a"));
        assert_eq!(cut(vec![bytes, "a".into(), rome.clone()]), [2, 1]);
        assert_eq!(cut(vec![rome.clone(), oslo.clone(), Key::within("Rome", "b"), rome, oslo, "a".into()]), [3, 2, 1]);
        assert_eq!(cut(vec![Key::within(7, "a"), Key::within("7", "a"), Key::within("07", "a")]), [1, 1, 1]);
    }

    #[test]
    fn lines_are_records_and_bad_ones_are_numbered() {
        let line = record_of(1, r#"{"key":"a","columns":{"x":1},"version":7,"audience":"reader.v"}"#).unwrap();
        assert_eq!((line.key, line.columns["x"].clone()), ("a".into(), tidings_predicate::Value::Int(1)));
        assert_eq!(line.audience.as_deref(), Some("reader.v"));
        for bad in ["{", "{}", r#"{"key":3,"columns":{}}"#, r#"{"key":"a","columns":[]}"#] {
            let error = record_of(3, bad).unwrap_err();
            assert_eq!(error.class, Class::Invalid, "{bad}");
            assert!(error.message.starts_with("line 3: "), "{}", error.message);
        }
    }
}
