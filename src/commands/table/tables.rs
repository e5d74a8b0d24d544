//! `tidings table create|alter|drop|ls|stat|split|merge`.

use super::{shown, with_tables};
use crate::cli::Remote;
use crate::cli::table::{Level, Properties};
use crate::output;
use serde_json::json;
use tidings_base::Error;
use tidings_client::tables::form::key_of;
use tidings_client::tables::{
    Key, TableColumn, TableInfo, TableLevel, TablePartitionBy, TableProperties, shown as told,
};

pub fn create(
    table: &str,
    properties: Properties,
    partition_by: Option<String>,
    cut: Vec<String>,
    remote: &Remote,
) -> Result<(), Error> {
    let by = |text: String| {
        let (column, kind) = text.split_once(':').unwrap_or((&text, ""));
        TablePartitionBy { column: column.to_owned(), kind: kind.to_owned() }
    };
    let properties = TableProperties { partition_by: partition_by.map(by), ..read(properties)? };
    let cuts = cut.into_iter().map(Key::String);
    let info = with_tables(remote, async |tables| tables.create_cut(table, properties, cuts).await)?;
    done(remote, &info, format_args!("table `{table}` is made"));
    Ok(())
}

pub fn alter(table: &str, properties: Properties, generation: u64, remote: &Remote) -> Result<(), Error> {
    let said = [
        ("level", properties.level.is_some()),
        ("may_write", properties.may_write.is_some()),
        ("lossy", properties.lossy.is_some()),
        ("columns", !properties.column.is_empty()),
        ("closed", properties.closed.is_some()),
        ("max_records", properties.max_records.is_some()),
        ("max_bytes", properties.max_bytes.is_some()),
        ("tombstones_s", properties.tombstones.is_some()),
        ("replication", properties.replication.is_some()),
    ];
    let fields: Vec<&str> = said.iter().filter(|(_, said)| *said).map(|(field, _)| *field).collect();
    let properties = read(properties)?;
    let info = with_tables(remote, async |tables| tables.alter_only(table, &fields, properties, generation).await)?;
    done(remote, &info, format_args!("table `{table}` is altered"));
    Ok(())
}

pub fn drop(table: &str, remote: &Remote) -> Result<(), Error> {
    with_tables(remote, async |tables| tables.drop(table).await)?;
    match remote.json {
        true => output::json(&json!({ "table": table, "dropped": true })),
        false => output::line(format_args!("table `{table}` is dropped")),
    }
    Ok(())
}

pub fn split(table: &str, key: Key, remote: &Remote) -> Result<(), Error> {
    let info = with_tables(remote, async |tables| tables.split(table, key).await)?;
    done(remote, &info, format_args!("table `{table}` has {}", partitions(&info)));
    Ok(())
}

pub fn merge(table: &str, key: Key, remote: &Remote) -> Result<(), Error> {
    let info = with_tables(remote, async |tables| tables.merge(table, key).await)?;
    done(remote, &info, format_args!("table `{table}` has {}", partitions(&info)));
    Ok(())
}

pub fn list(remote: &Remote) -> Result<(), Error> {
    let all = with_tables(remote, async |tables| tables.list().await)?;
    if remote.json {
        output::json(&json!({ "tables": all.iter().map(told::info).collect::<Vec<_>>() }));
        return Ok(());
    }
    output::table(
        ["TABLE", "LEVEL", "PARTITIONS"],
        all.iter().map(|info| {
            let level = told::level_name(info.properties.clone().unwrap_or_default().level());
            [info.table.clone(), level.to_owned(), info.partitions.len().to_string()]
        }),
    );
    Ok(())
}

pub fn stat(table: &str, remote: &Remote) -> Result<(), Error> {
    let info = with_tables(remote, async |tables| tables.stat(table).await)?;
    if remote.json {
        output::json(&told::info(&info));
        return Ok(());
    }
    let properties = info.properties.clone().unwrap_or_default();
    let level = told::level_name(properties.level());
    output::line(format_args!("{} (level {level}, generation {})", info.table, info.generation));
    if !properties.may_write.is_empty() {
        output::line(format_args!("may_write: {}", properties.may_write));
    }
    output::line(format_args!("replication: {}", properties.replication));
    if let Some(by) = &properties.partition_by {
        output::line(format_args!("partition_by: {} ({})", by.column, by.kind));
    }
    for (name, value, said) in [
        ("max_records", properties.max_records, properties.max_records > 0),
        ("max_bytes", properties.max_bytes, properties.max_bytes > 0),
        ("tombstones_s", properties.tombstones_s, true),
    ] {
        if said {
            output::line(format_args!("{name}: {value}"));
        }
    }
    for (what, said) in
        [("lossy: clients may leave writes unsent", properties.lossy), ("closed: no other columns", properties.closed)]
    {
        if said {
            output::line(what);
        }
    }
    for column in &properties.columns {
        let required = if column.required { ", required" } else { "" };
        output::line(format_args!("column {}: {}{required}", column.name, column.kinds.join(" or ")));
    }
    output::table(
        ["PARTITION", "FROM", "BEFORE", "TERM", "OWNER", "RECORDS", "BYTES", "LIVE QUERIES"],
        info.partitions.iter().map(|part| {
            let key = |key: &Option<_>| key.clone().and_then(key_of).map_or(String::new(), |key| shown(&key));
            let size = |pick: fn(&tidings_client::tables::PartitionSize) -> u64| {
                part.size.as_ref().map_or("?".to_owned(), |size| pick(size).to_string())
            };
            let owner = if part.owner.is_empty() { "nobody".to_owned() } else { part.owner.clone() };
            [
                part.number.to_string(),
                key(&part.start),
                key(&part.end),
                part.term.to_string(),
                owner,
                size(|size| size.records),
                size(|size| size.bytes),
                size(|size| size.queries),
            ]
        }),
    );
    counted(&info);
    Ok(())
}

/// What owners say of their partitions; to whoever may not know it nobody says anything.
fn counted(info: &TableInfo) {
    let sizes: Vec<_> = info.partitions.iter().filter_map(|part| Some((part.number, part.size.as_ref()?))).collect();
    if sizes.is_empty() {
        return;
    }
    output::line("");
    output::table(
        ["PARTITION", "READS", "WRITES", "EVENTS", "WAITING", "UNDELIVERED", "AWAY", "COPIES", "LOG"],
        sizes.into_iter().map(|(number, size)| {
            [
                number.to_string(),
                size.reads.to_string(),
                size.writes.to_string(),
                size.events.to_string(),
                size.waiting.to_string(),
                size.undelivered.to_string(),
                size.away.to_string(),
                size.copies.to_string(),
                format!("{} ({} bytes)", size.log_changes, size.log_bytes),
            ]
        }),
    );
}

fn partitions(info: &TableInfo) -> String {
    match info.partitions.len() {
        1 => "one partition".to_owned(),
        count => format!("{count} partitions"),
    }
}

fn done(remote: &Remote, info: &TableInfo, text: std::fmt::Arguments<'_>) {
    match remote.json {
        true => output::json(&told::info(info)),
        false => output::line(text),
    }
}

/// What is said, and for the rest what a new table has.
fn read(said: Properties) -> Result<TableProperties, Error> {
    let level = said.level.map(|level| match level {
        Level::Public => TableLevel::Public,
        Level::App => TableLevel::App,
        Level::User => TableLevel::User,
    });
    let column = |text: &String| {
        let (name, kind) = text.rsplit_once(':').ok_or_else(|| {
            output::usage(format!("`{text}` declares no column"))
                .hint("Write NAME:KIND, or NAME:KIND! if it is required.")
        })?;
        let (kind, required) = kind.strip_suffix('!').map_or((kind, false), |kind| (kind, true));
        let kinds = kind.split('|').map(str::to_owned).collect();
        Ok(TableColumn { name: name.to_owned(), kinds, required })
    };
    let columns = said.column.iter().map(column).collect::<Result<Vec<_>, Error>>()?;
    Ok(TableProperties {
        level: level.unwrap_or(TableLevel::App).into(),
        may_write: said.may_write.unwrap_or_default(),
        lossy: said.lossy.unwrap_or_default(),
        columns,
        closed: said.closed.unwrap_or_default(),
        max_records: said.max_records.unwrap_or_default(),
        max_bytes: said.max_bytes.unwrap_or_default(),
        tombstones_s: said.tombstones.unwrap_or_default(),
        partition_by: None,
        replication: said.replication.unwrap_or_default(),
    })
}
