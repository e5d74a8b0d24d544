//! `tidings table watch`: a live query that prints.

use super::{context, shown};
use crate::cli::table::Watch;
use crate::commands::signals::Signals;
use crate::commands::{remote, runtime};
use crate::output;
use bytes::Bytes;
use tidings_base::Error;
use tidings_client::Client;
use tidings_client::tables::{Ask, Event, Record, Tables, WatchOptions, shown as told};
use tidings_predicate::json::Form;

pub fn run(args: &Watch) -> Result<(), Error> {
    let options = WatchOptions {
        reader: context(args.context.as_deref())?,
        cursor: args.new.then(Bytes::new),
        ..WatchOptions::default()
    };
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let client = Client::connect(remote::config(&args.remote)?).await?;
        remote::tell_connection(&client, args.remote.json);
        let ask = Ask { predicate: args.predicate.clone(), ..Ask::default() };
        let mut watch = Tables::new(client)?.table(args.table.as_str()).watch(&ask, options);
        let watching = async {
            let mut left = args.count.unwrap_or(u64::MAX);
            while left > 0 {
                let Some(event) = watch.next().await else { break };
                if let Event::Ended(error) = event {
                    return Err(error);
                }
                left = left.saturating_sub(print(&event, args.remote.json));
            }
            Ok(())
        };
        tokio::select! {
            _ = signals.next() => Ok(()),
            ended = watching => ended,
        }
    })
}

/// Prints an event; how many lines that took.
fn print(event: &Event, json: bool) -> u64 {
    if json {
        let (name, mut line) = told::event(event);
        line["event"] = name.into();
        output::line(line);
        return 1;
    }
    let row = |mark: &str, record: &Record| {
        let columns = told::record(record, Form::Plain)["columns"].to_string();
        let key = record.key.as_ref().map(shown).unwrap_or_default();
        output::line(format_args!("{mark} {key} {columns}"));
    };
    match event {
        Event::Reset { rows, .. } => {
            rows.iter().for_each(|record| row("=", record));
            rows.len() as u64
        }
        Event::Put(record) => {
            row("+", record);
            1
        }
        Event::Leave(key) => {
            output::line(format_args!("- {}", shown(key)));
            1
        }
        Event::Rows(rows) => {
            rows.iter().for_each(|record| row("=", record));
            rows.len() as u64
        }
        Event::Settling(_) | Event::Ended(_) => 0,
    }
}
