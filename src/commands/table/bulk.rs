//! `tidings table export|import`: a record a line.

use super::with_tables;
use crate::cli::Remote;
use crate::cli::table::Format;
use crate::output::{self, broken};
use futures::future::join_all;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use tidings_base::Error;
use tidings_client::tables::form::Line;
use tidings_client::tables::{Ask, ReadOptions, Table, Write, csv, form, shown as told};
use tidings_predicate::json::Form;

/// Writes that are under way at a time.
const AT_ONCE: usize = 256;

pub fn export(
    table: &str,
    predicate: String,
    format: Format,
    options: &ReadOptions,
    remote: &Remote,
) -> Result<(), Error> {
    let ask = Ask { predicate, ..Ask::default() };
    with_tables(remote, async |tables| {
        let table = tables.table(table);
        let writer = match format {
            Format::Ndjson => None,
            Format::Csv => Some(heading(&table, &ask, options).await?),
        };
        let mut rows = table.rows(&ask, options)?;
        while let Some(record) = rows.next().await? {
            match (&writer, &record.key) {
                (Some(writer), Some(key)) => output::exact(line(&writer.record(key, &record.columns))),
                _ => output::exact(told::record(&record, Form::Exact)),
            }
        }
        Ok(())
    })
}

/// Columns come and go: all records are looked at for their names first.
async fn heading(table: &Table, ask: &Ask, options: &ReadOptions) -> Result<csv::Writer, Error> {
    let mut names = BTreeSet::new();
    let mut rows = table.rows(ask, options)?;
    while let Some(record) = rows.next().await? {
        names.extend(record.columns.into_keys());
    }
    let writer = csv::Writer::new(names);
    output::exact(line(&writer.heading()));
    Ok(writer)
}

/// A line of values without its end: what its last value ends with stays.
fn line(text: &str) -> &str {
    text.strip_suffix("\r\n").unwrap_or(text)
}

pub fn import(
    table: &str,
    file: &Path,
    format: Option<Format>,
    audience: Option<String>,
    remote: &Remote,
) -> Result<(), Error> {
    let failed = |error| broken(format_args!("cannot read {}", file.display()), error);
    let mut input: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let audience = audience.unwrap_or_default();
    let named_csv = file.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"));
    let format = format.unwrap_or(if named_csv { Format::Csv } else { Format::Ndjson });
    let count = with_tables(remote, async |tables| {
        let table = tables.table(table);
        if format == Format::Csv {
            let mut text = String::new();
            input.read_to_string(&mut text).map_err(failed)?;
            return write(&table, &audience, 0, csv::read(&text)?).await;
        }
        let (mut count, mut batch) = (0, Vec::new());
        for (number, line) in (1..).zip(BufReader::new(input).lines()) {
            let line = line.map_err(failed)?;
            if line.trim().is_empty() {
                continue;
            }
            let record = form::line_of(&line);
            let record = record.map_err(|error| Error {
                message: format!("line {number}: {}; {count} records before it are written", error.message),
                ..error
            })?;
            batch.push((number, record));
            if batch.len() == AT_ONCE {
                count = write(&table, &audience, count, std::mem::take(&mut batch)).await?;
            }
        }
        write(&table, &audience, count, batch).await
    })?;
    match remote.json {
        true => output::json(&json!({ "written": count })),
        false => output::line(format_args!("{count} records are written")),
    }
    Ok(())
}

/// Writes lines behind so many that are written; how many are then.
async fn write(table: &Table, audience: &str, mut count: usize, records: Vec<(usize, Line)>) -> Result<usize, Error> {
    let mut records = records.into_iter();
    loop {
        let some: Vec<_> = records.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return Ok(count);
        }
        let writes = some.into_iter().map(async |(number, Line { key, columns, audience: own })| {
            let write = Write::put(key, columns).audience(own.unwrap_or_else(|| audience.to_owned()));
            (number, table.write(write).await.and_then(|outcome| outcome.committed()).map(drop))
        });
        count = form::written(count, join_all(writes).await)?;
    }
}
