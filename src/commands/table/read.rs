//! `tidings table read`: what a query selects.

use super::{context, records, with_tables};
use crate::cli::table::{Answer, Read, Within};
use crate::output;
use tidings_base::Error;
use tidings_client::tables::{
    Aggregate, Ask, AskLookup, Direction, Key, ReadLevel, ReadOptions, RecordOperation, form,
};

pub fn run(args: &Read) -> Result<(), Error> {
    let lookup = args.lookup.as_deref().map(lookup).transpose()?;
    let ask = Ask { lookup, ..ask(&args.predicate, &args.answer)? };
    let level = match args.pending.is_empty() {
        _ if args.committed => ReadLevel::Committed,
        _ if args.uncommitted => ReadLevel::Uncommitted,
        true => ReadLevel::Latest,
        false => ReadLevel::CommittedWio,
    };
    let pending = args.pending.iter().map(|text| pending(text, &args.within)).collect::<Result<_, Error>>()?;
    let (reader, within) = (context(args.context.as_deref())?, args.within.value());
    let bound = |key: &Option<String>| key.as_deref().map(|key| args.within.key(key));
    let (from, before) = (bound(&args.from), bound(&args.before));
    let options = ReadOptions { level, reader, from, before, within, pending, ..ReadOptions::default() };
    with_tables(&args.remote, async |tables| {
        let mut rows = tables.table(args.table.as_str()).rows(&ask, &options)?;
        while let Some(row) = rows.next().await? {
            records::print(&row, &args.remote);
        }
        Ok(())
    })
}

/// A write to wait for: its name, and the key that it is on.
fn pending(text: &str, within: &Within) -> Result<(RecordOperation, Key), Error> {
    let mut parts = text.splitn(3, '/');
    let (Some(netid), Some(seq), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(output::usage(format!("`{text}` names no write of a record")).hint("Write NETID/SEQ/KEY."));
    };
    Ok((form::operation_of(&format!("{netid}/{seq}"))?, within.key(key)))
}

/// A query as it is typed, without look-ups.
pub(super) fn ask(predicate: &str, args: &Answer) -> Result<Ask, Error> {
    let named = |parts: &[String]| {
        let part = |text: &String| match text.split_once('=') {
            // `a==b` is an expression and no name.
            Some((name, expression)) if !expression.starts_with('=') => (name.to_owned(), expression.to_owned()),
            _ => (text.clone(), text.clone()),
        };
        parts.iter().map(part).collect()
    };
    let order = |text: &String| match text.strip_prefix('-') {
        Some(text) => (text.to_owned(), Direction::Descending),
        None => (text.clone(), Direction::Ascending),
    };
    Ok(Ask {
        predicate: predicate.to_owned(),
        lookup: None,
        project: named(&args.project),
        order: args.order.iter().map(order).collect(),
        limit: args.limit,
        group_by: named(&args.group_by),
        aggregates: args.aggregate.iter().map(|text| aggregate(text)).collect::<Result<_, Error>>()?,
    })
}

fn lookup(text: &str) -> Result<AskLookup, Error> {
    let parsed = text.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(':')?)));
    let (name, (table, key)) = parsed.ok_or_else(|| {
        output::usage(format!("`{text}` is no look-up")).hint("Write NAME=TABLE:EXPRESSION, such as of=prices:item.")
    })?;
    Ok(AskLookup { table: table.to_owned(), key: key.to_owned(), name: name.to_owned() })
}

fn aggregate(text: &str) -> Result<(String, Aggregate, String), Error> {
    let bad = || {
        output::usage(format!("`{text}` is no aggregate")).hint("Write NAME=count, or NAME=sum|min|max|avg:EXPRESSION.")
    };
    let (name, how) = text.split_once('=').ok_or_else(bad)?;
    let (how, expression) = how.split_once(':').unwrap_or((how, ""));
    let how = match how {
        "count" => Aggregate::Count,
        "sum" => Aggregate::Sum,
        "min" => Aggregate::Min,
        "max" => Aggregate::Max,
        "avg" => Aggregate::Avg,
        _ => return Err(bad()),
    };
    Ok((name.to_owned(), how, expression.to_owned()))
}
