//! `tidings table watch`: a live query that prints.

use super::read::ask;
use super::{context, shown};
use crate::cli::table::Watch;
use crate::commands::signals::Signals;
use crate::commands::{remote, runtime};
use crate::output;
use bytes::Bytes;
use tidings_base::Error;
use tidings_client::tables::{Event, Key, Record, Tables, WatchOptions, shown as told};
use tidings_predicate::json::Form;

pub fn run(args: &Watch) -> Result<(), Error> {
    let options = WatchOptions {
        reader: context(args.context.as_deref())?,
        cursor: args.new.then(Bytes::new),
        within: args.within.value(),
        newer_than_us: args.newer_than,
        ..WatchOptions::default()
    };
    let ask = ask(&args.predicate, &args.answer)?;
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let client = remote::connect(&args.remote).await?;
        remote::tell_connection(&client, args.remote.json);
        let mut watch = Tables::new(client)?.table(args.table.as_str()).watch(&ask, options);
        let watching = async {
            let mut left = args.count.unwrap_or(u64::MAX);
            let mut told = Told::default();
            while left > 0 {
                let Some(event) = watch.next().await else { break };
                if let Event::Ended(error) = event {
                    return Err(error);
                }
                left = left.saturating_sub(told.print(&event, args.remote.json));
            }
            Ok(())
        };
        tokio::select! {
            _ = signals.next() => Ok(()),
            ended = watching => ended,
        }
    })
}

/// What was told so far.
#[derive(Default)]
struct Told {
    /// The parts that were begun with, from a key and before another.
    parts: Vec<(Option<Key>, Option<Key>)>,
}

impl Told {
    /// Prints an event; how many lines that took.
    fn print(&mut self, event: &Event, json: bool) -> u64 {
        if json {
            let (name, mut line) = told::event(event);
            line["event"] = name.into();
            output::exact(line);
            return 1;
        }
        let row = |mark: &str, record: &Record| {
            let columns = told::record(record, Form::Plain)["columns"].to_string();
            let key = record.key.as_ref().map(shown).unwrap_or_default();
            output::line(format_args!("{mark} {key} {columns}"));
        };
        match event {
            Event::Reset { start, end, rows, first, .. } => {
                let again = *first && self.begins(start, end);
                if again {
                    let bound = |name: &str, key: &Option<Key>| {
                        key.as_ref().map_or(String::new(), |key| format!(" {name} {}", shown(key)))
                    };
                    output::line(format_args!("* reset{}{}", bound("from", start), bound("before", end)));
                }
                rows.iter().for_each(|record| row("=", record));
                rows.len() as u64 + u64::from(again)
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
                output::line("* rows");
                rows.iter().for_each(|record| row("=", record));
                rows.len() as u64 + 1
            }
            Event::Settling(_) | Event::Ended(_) => 0,
        }
    }

    /// A part begins; whether it takes the place of something that was told before.
    fn begins(&mut self, start: &Option<Key>, end: &Option<Key>) -> bool {
        let before = |end: &Option<Key>, start: &Option<Key>| match (end, start) {
            (Some(end), Some(start)) => end <= start,
            _ => false,
        };
        let again = self.parts.iter().any(|(from, to)| !before(to, start) && !before(end, from));
        self.parts.retain(|part| *part != (start.clone(), end.clone()));
        self.parts.push((start.clone(), end.clone()));
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_begins_again_is_told_apart_from_one_that_begins() {
        let key = |text: &str| Some(Key::from(text));
        let mut told = Told::default();
        assert!(!told.begins(&None, &key("m")));
        assert!(!told.begins(&key("m"), &None));
        assert!(told.begins(&None, &key("m")));
        // Cut or joined since.
        assert!(told.begins(&key("m"), &key("t")) && told.begins(&None, &None));
        assert_eq!(told.parts.len(), 4);
    }
}
