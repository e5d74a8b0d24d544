//! `tidings table …`: tables and their records.
//!
//! ```text
//!   tables.rs    make, alter, drop, list, show, cut
//!   acl.rs       who may do what
//!   console.rs   who watches, and how nodes fare
//!   records.rs   one record: put, patch, rm, get
//!   read.rs      what a query selects
//!   watch.rs     a live query of the library, which survives restarts of servers
//!   bulk.rs      export, import
//! ```

mod acl;
mod bulk;
mod console;
mod read;
mod records;
mod tables;
mod watch;

use crate::cli::Remote;
use crate::cli::table::{Table, Within};
use crate::commands::{remote, runtime};
use crate::output;
use tidings_base::Error;
use tidings_client::tables::{Columns, Key, PartitionValue, ReadOptions, Tables};
use tidings_predicate::json;

/// Runs one of the sub-commands.
pub fn run(command: Table) -> Result<(), Error> {
    match command {
        Table::Create { table, properties, partition_by, cut, remote } => {
            tables::create(&table, properties, partition_by, cut, &remote)
        }
        Table::Alter { table, properties, if_generation, remote } => {
            tables::alter(&table, properties, if_generation, &remote)
        }
        Table::Drop { table, yes: false, .. } => {
            let what = format!("dropping `{table}` deletes everything in it");
            Err(output::unconfirmed(what, "Add --yes; there is no way back."))
        }
        Table::Drop { table, yes: true, remote } => tables::drop(&table, &remote),
        Table::Acl { table, changes, remote } => acl::run(&table, &changes, &remote),
        Table::Ls { remote } => tables::list(&remote),
        Table::Stat { table, remote } => tables::stat(&table, &remote),
        Table::Queries { table, remote } => console::queries(&table, &remote),
        Table::Load { remote } => console::load(&remote),
        Table::Split { table, key, within, remote } => tables::split(&table, within.key(key.as_str()), &remote),
        Table::Merge { table, key, within, remote } => tables::merge(&table, within.key(key.as_str()), &remote),
        Table::Put { record, json, audience, condition, remote } => {
            records::put(&record, &json, audience, &condition, &remote)
        }
        Table::Patch { record, json, remove, condition, remote } => {
            records::patch(&record, &json, remove, &condition, &remote)
        }
        Table::Rm { record, condition, remote } => records::rm(&record, &condition, &remote),
        Table::Get { record, context, remote } => records::get(&record, context.as_deref(), &remote),
        Table::Read(args) => read::run(&args),
        Table::Watch(args) => watch::run(&args),
        Table::Export { table, predicate, within, format, audiences, remote } => {
            let options = ReadOptions { within: within.value(), audiences, ..ReadOptions::default() };
            bulk::export(&table, predicate, format, &options, &remote)
        }
        Table::Import { table, file, format, audience, remote } => {
            bulk::import(&table, &file, format, audience, &remote)
        }
    }
}

/// Connects and lets `work` use the tables.
fn with_tables<T>(remote: &Remote, work: impl AsyncFnOnce(Tables) -> Result<T, Error>) -> Result<T, Error> {
    runtime()?.block_on(async { work(Tables::new(remote::connect(remote).await?)?).await })
}

/// Columns or reader data as they are typed.
fn columns(text: &[u8]) -> Result<Columns, Error> {
    let bad = |what: String| output::usage(what).hint("Write an object, such as '{\"price\": 3}'.");
    let json = serde_json::from_slice(text).map_err(|e| bad(format!("the columns are no JSON: {e}")))?;
    json::read_columns(&json).map_err(|e| bad(e.to_string()))
}

/// Reader data, if it was given.
fn context(text: Option<&str>) -> Result<Columns, Error> {
    text.map_or_else(|| Ok(Columns::new()), |text| columns(text.as_bytes()))
}

impl Within {
    /// The value as it was typed: a table takes text for a number where it has numbers.
    fn value(&self) -> Option<PartitionValue> {
        self.value.clone().map(PartitionValue::from)
    }

    /// A key that is within it.
    fn key(&self, own: impl Into<Key>) -> Key {
        match self.value() {
            Some(value) => Key::within(value, own),
            None => own.into(),
        }
    }
}

/// A key for people.
fn shown(key: &Key) -> String {
    if let Some(value) = key.partition_value() {
        let value = remote::printed(value.to_string().as_bytes());
        return match key.own() {
            // Where the value begins.
            Key::Bytes(bytes) if bytes.is_empty() => value,
            own => format!("{value}/{}", shown(own)),
        };
    }
    match key.own() {
        Key::String(text) => remote::printed(text.as_bytes()),
        Key::Bytes(bytes) => bytes.iter().fold("base16:".to_owned(), |text, byte| text + &format!("{byte:02x}")),
        Key::Within(_) => String::new(),
    }
}
