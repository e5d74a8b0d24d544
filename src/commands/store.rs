//! `tidings store put|get|scan|incarnation`: the store from the command line.

use super::remote::{Asked, ask, ask_many, content, printed, shown, told, with_client};
use crate::cli::{Remote, Store, quoted};
use crate::{output, stopwatch};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use tidings_base::{Class, Error};
use tidings_store::read::join_frames;
use tidings_wire::v1::admin_message::Message as AdminMessage;
use tidings_wire::v1::store_message::Message;
use tidings_wire::v1::{
    Apply, Cell, CompareAndSet, GroupWrite, IncarnationRaise, Row, RowKey, RowWrite, Rows, Scan, StoreStatus,
};

/// Runs one of the sub-commands.
pub fn run(command: Store) -> Result<(), Error> {
    match command {
        Store::Put { group, row, column, value, delete: _, timestamp, if_timestamp, remote } => {
            let value = value.as_deref().map(content).transpose()?;
            let timestamp = timestamp.unwrap_or_else(stopwatch::wall_micros);
            let key = RowKey { group: group.into(), row: row.into() };
            let cell = Cell { column: column.into(), timestamp, value };
            match if_timestamp {
                Some(expected) => compare_and_set(&remote, key, expected, cell)?,
                None => put(&remote, key, cell)?,
            }
            if remote.json {
                output::json(&json!({ "timestamp": timestamp }));
            } else {
                output::line(format_args!("written at timestamp {timestamp}"));
            }
            Ok(())
        }
        Store::Get { group, row, remote } => get(&remote, group, row),
        Store::Scan { group, start, end, limit, remote } => scan(&remote, group, start, end, limit),
        Store::Incarnation { raise: true, yes: false, .. } => {
            let what = "raising the incarnation makes everybody who keeps copies fetch them anew";
            Err(output::unconfirmed(what, "Add --yes if something acknowledged was lost; there is no way back."))
        }
        Store::Incarnation { raise, yes: _, remote } => incarnation(&remote, raise),
    }
}

fn put(remote: &Remote, key: RowKey, cell: Cell) -> Result<(), Error> {
    let rows = vec![RowWrite { row: key.row, cells: vec![cell] }];
    let apply = Apply { groups: vec![GroupWrite { group: key.group, rows, fence: None }] };
    let failures = ask(remote, Asked::Store(Message::Apply(apply)), |answer| match answer {
        Asked::Store(Message::Applied(applied)) => Some(applied.failures),
        _ => None,
    })?;
    match failures.into_iter().next() {
        None => Ok(()),
        Some(failure) => {
            let class = match failure.code.as_str() {
                "store.fenced" => Class::Refused,
                "store.unavailable" => Class::Unreachable,
                _ => Class::Failed,
            };
            let mut error = Error::new("store.failed", class, failure.message).hint("Nothing of it was written.");
            error.code = failure.code.into();
            Err(error)
        }
    }
}

fn compare_and_set(remote: &Remote, key: RowKey, expected: u64, cell: Cell) -> Result<(), Error> {
    let column = cell.column.clone();
    let message = CompareAndSet { key: Some(key), column, expected, write: Some(cell), fence: None };
    let done = ask(remote, Asked::Store(Message::CompareAndSet(message)), |answer| match answer {
        Asked::Store(Message::CompareAndSetDone(done)) => Some(done),
        _ => None,
    })?;
    if done.written {
        return Ok(());
    }
    let newest = done.actual.map_or(0, |cell| cell.timestamp);
    Err(Error::new(
        "store.condition",
        Class::Refused,
        format!("the column's newest timestamp is {newest}, not {expected}"),
    )
    .hint("Read the row again and decide anew."))
}

fn get(remote: &Remote, group: String, row: String) -> Result<(), Error> {
    // A scan of this row alone: unlike the answer to a Get, it comes in as many frames as the row needs.
    let (start, end) = (row.clone(), row.clone() + "\0");
    let only = Scan { group: group.into(), start: start.into(), end: end.into(), limit: 1, columns: Vec::new() };
    let answer = join_frames(ask_many(remote, Asked::Store(Message::Scan(only)), rows_of)?);
    let Some(found) = answer.rows.into_iter().next() else {
        return Err(Error::new("store.no_row", Class::NotFound, format!("there is no row `{row}`"))
            .hint("`tidings store scan GROUP` lists the rows of a group."));
    };
    if remote.json {
        output::json(&as_json(&found));
    } else {
        print(&[found]);
    }
    Ok(())
}

fn scan(remote: &Remote, group: String, start: String, end: String, limit: u32) -> Result<(), Error> {
    let (group, end) = (Bytes::from(group), Bytes::from(end));
    let Rows { rows, next } = with_client(remote, async |caller| {
        let mut found = Rows { rows: Vec::new(), next: Some(start.into()) };
        // The server has bounds of its own for one answer.
        while let (Some(start), left @ 1..) = (found.next.clone(), limit.saturating_sub(found.rows.len() as u32)) {
            let (group, end) = (group.clone(), end.clone());
            let message = Message::Scan(Scan { group, start, end, limit: left, columns: Vec::new() });
            let page = join_frames(caller.ask_many(Asked::Store(message), rows_of).await?);
            found.rows.extend(page.rows);
            found.next = page.next;
        }
        Ok(found)
    })?;
    let next = next.as_deref().map(shown);
    if remote.json {
        let rows: Vec<Value> = rows.iter().map(as_json).collect();
        output::json(&json!({ "rows": rows, "more": next.is_some(), "next": next }));
    } else {
        print(&rows);
        if let Some(next) = next {
            output::note(format_args!("more rows follow: go on with --start {}", quoted(&next)));
        }
    }
    Ok(())
}

fn incarnation(remote: &Remote, raise: bool) -> Result<(), Error> {
    let asked = match raise {
        true => Asked::Admin(AdminMessage::IncarnationRaise(IncarnationRaise {})),
        false => Asked::Store(Message::Status(StoreStatus {})),
    };
    let incarnation = ask(remote, asked, |answer| match answer {
        Asked::Admin(AdminMessage::IncarnationRaised(raised)) => Some(raised.incarnation),
        Asked::Store(Message::StatusReply(status)) => Some(status.incarnation),
        _ => None,
    })?;
    if remote.json {
        output::json(&json!({ "incarnation": incarnation, "raised": raise }));
    } else {
        let how = if raise { "raised to " } else { "" };
        output::line(format_args!("incarnation {how}{incarnation}"));
    }
    Ok(())
}

fn rows_of(answer: Asked) -> Option<Rows> {
    match answer {
        Asked::Store(Message::Rows(rows)) => Some(rows),
        _ => None,
    }
}

fn as_json(row: &Row) -> Value {
    let cell = |cell: &Cell| {
        (shown(&cell.column), json!({ "value": cell.value.as_deref().map(told), "timestamp": cell.timestamp }))
    };
    json!({ "row": shown(&row.row), "cells": row.cells.iter().map(cell).collect::<Map<_, _>>() })
}

fn print(rows: &[Row]) {
    let cells = rows.iter().flat_map(|row| row.cells.iter().map(|cell| (printed(&row.row), cell)));
    output::table(
        ["ROW", "COLUMN", "VALUE", "TIMESTAMP"],
        cells.map(|(row, cell)| {
            [
                row,
                printed(&cell.column),
                cell.value.as_deref().map_or(String::new(), printed),
                cell.timestamp.to_string(),
            ]
        }),
    );
}
