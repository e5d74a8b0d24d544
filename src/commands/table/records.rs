//! `tidings table put|patch|rm|get`: one record.

use super::{columns, context, shown, with_tables};
use crate::cli::Remote;
use crate::cli::table::{Condition, Keyed};
use crate::commands::remote::content;
use crate::output;
use serde_json::json;
use tidings_base::{Class, Error};
use tidings_client::tables::{Key, ReadOptions, Record, Write, form, shown as told};
use tidings_predicate::json::Form;

pub fn put(
    record: &Keyed,
    json: &str,
    audience: Option<String>,
    condition: &Condition,
    remote: &Remote,
) -> Result<(), Error> {
    let write = Write::put(key(record)?, columns(&content(json)?)?).audience(audience.unwrap_or_default());
    written(record, write, condition, remote)
}

pub fn patch(
    record: &Keyed,
    json: &str,
    remove: Vec<String>,
    condition: &Condition,
    remote: &Remote,
) -> Result<(), Error> {
    let write = Write::patch(key(record)?, columns(&content(json)?)?);
    written(record, remove.into_iter().fold(write, Write::remove), condition, remote)
}

pub fn rm(record: &Keyed, condition: &Condition, remote: &Remote) -> Result<(), Error> {
    written(record, Write::delete(key(record)?), condition, remote)
}

fn written(record: &Keyed, write: Write, condition: &Condition, remote: &Remote) -> Result<(), Error> {
    let write = match condition.if_version {
        Some(version) => write.if_version(version),
        None => write,
    };
    let write = write.reader(context(condition.context.as_deref())?);
    let write = match &condition.operation {
        Some(name) => write.operation(form::operation_of(name)?),
        None => write,
    };
    let outcome = with_tables(remote, async |tables| tables.table(record.table.as_str()).write(write).await)?;
    let version = outcome.committed()?;
    match remote.json {
        true => output::json(&json!({ "version": told::version(version) })),
        false => output::line(format_args!("version {version}")),
    }
    Ok(())
}

pub fn get(record: &Keyed, context_text: Option<&str>, remote: &Remote) -> Result<(), Error> {
    let key = key(record)?;
    let options = ReadOptions { reader: context(context_text)?, ..ReadOptions::default() };
    let found =
        with_tables(remote, async |tables| tables.table(record.table.as_str()).get_with(key.clone(), &options).await)?;
    let Some(found) = found else {
        let message = format!("there is no record `{}` in `{}`", shown(&key), record.table);
        return Err(Error::new("tables.no_record", Class::NotFound, message)
            .hint("It may be there and not be shown to this reader: `tidings table read` lists what is."));
    };
    print(&found, remote);
    Ok(())
}

/// Prints one record.
pub fn print(record: &Record, remote: &Remote) {
    if remote.json {
        output::exact(told::record(record, Form::Plain));
        return;
    }
    let columns = told::record(record, Form::Plain)["columns"].to_string();
    match &record.key {
        Some(key) => output::line(format_args!("{} {columns}", shown(key))),
        None => output::line(columns),
    }
}

fn key(record: &Keyed) -> Result<Key, Error> {
    if !record.hex {
        return Ok(record.within.key(record.key.as_str()));
    }
    let digit = |at: usize| record.key.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let bytes: Option<Vec<u8>> = (0..record.key.len()).step_by(2).map(digit).collect();
    bytes.map(|bytes| record.within.key(Key::Bytes(bytes))).ok_or_else(|| {
        output::usage(format!("`{}` is not hexadecimal", record.key)).hint("Write two digits for each byte.")
    })
}
