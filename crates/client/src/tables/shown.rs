//! Tables, records and events as JSON, as REST and the command line show them.

use super::form::{Record, key_of};
use super::watch::{Event, partition_object};
use serde_json::{Value as Json, json};
use tidings_base::Error;
use tidings_predicate::json::{Form, IN, write, write_columns, write_key, write_partition_value};
use tidings_predicate::{Key, Value};
use tidings_wire::v1;
use tidings_wire::v1::{TableLevel, TableRight};

/// A record; a row that was computed has no version, and one of a group no key.
pub fn record(record: &Record, form: Form) -> Json {
    let mut json = json!({ "columns": write_columns(&record.columns, form) });
    if let Some(key) = &record.key {
        named(&mut json, key);
    }
    if record.version > 0 {
        json["version"] = version(record.version);
        json["writer"] = record.writer.as_str().into();
        json["time_us"] = record.time_us.into();
    }
    if !record.audience.is_empty() {
        json["audience"] = record.audience.as_str().into();
    }
    json
}

/// What names a record: its key, and the value of the partition column that it is within, if the table has one.
fn named(json: &mut Json, key: &Key) {
    json["key"] = write_key(key.own());
    if let Some(value) = key.partition_value() {
        json[IN] = write_partition_value(value);
    }
}

/// A version: a string where a number would be rounded (R12).
pub fn version(version: u64) -> Json {
    write(&Value::Int(i64::try_from(version).unwrap_or(i64::MAX)), Form::Plain)
}

/// A table.
pub fn info(info: &v1::TableInfo) -> Json {
    let key = |key: &Option<v1::RecordKey>| key.clone().and_then(key_of).map(|key| write_key(&key));
    let partition = |part: &v1::PartitionInfo| {
        let mut json = json!({
            "partition": part.number,
            "object": partition_object(info, part),
            "term": part.term,
            "start": key(&part.start),
            "end": key(&part.end),
            "owner": (!part.owner.is_empty()).then_some(&part.owner),
        });
        if let Some(size) = &part.size {
            json["records"] = size.records.into();
            json["bytes"] = size.bytes.into();
            json["position"] = version(size.position);
            json["live_queries"] = size.queries.into();
            json["live_queries_away"] = size.away.into();
            json["copies"] = size.copies.into();
            json["reads"] = size.reads.into();
            json["writes"] = size.writes.into();
            json["events"] = size.events.into();
            json["waiting"] = size.waiting.into();
            json["undelivered"] = size.undelivered.into();
            json["log_changes"] = size.log_changes.into();
            json["log_bytes"] = size.log_bytes.into();
        }
        json
    };
    // Every table has a part: whoever is told of none is told what records are called by, and no more.
    if info.partitions.is_empty() {
        let mut told = properties(&info.properties.clone().unwrap_or_default());
        if let Some(told) = told.as_object_mut() {
            told.retain(|name, _| ["level", "columns", "partition_by"].contains(&name.as_str()));
        }
        return json!({ "table": info.table, "app": info.app, "properties": told });
    }
    let mut json = json!({
        "table": info.table,
        "app": info.app,
        "generation": info.generation,
        "properties": properties(&info.properties.clone().unwrap_or_default()),
        "partitions": info.partitions.iter().map(partition).collect::<Vec<_>>(),
    });
    if let Some(list) = &info.acl {
        json["access"] = acl(list);
    }
    json
}

/// Live queries of a table.
pub fn queries(reply: &v1::TableQueriesReply) -> Json {
    json!({ "queries": reply.queries.iter().map(query).collect::<Vec<_>>(), "more": reply.more })
}

/// A live query: what is asked, as in the body of a query, and how it stands.
fn query(query: &v1::TableQuery) -> Json {
    let named = |all: &[v1::QueryColumn]| {
        all.iter().map(|column| json!({ "name": column.name, "expression": column.expression })).collect::<Vec<_>>()
    };
    let order = query.order.iter().map(|by| json!({ "expression": by.expression, "descending": by.descending }));
    let aggregates = query.aggregates.iter().map(|aggregate| {
        let how = aggregation_name(aggregate.aggregate());
        json!({ "name": aggregate.name, "aggregate": how, "expression": aggregate.expression })
    });
    let endpoint = query.endpoint.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    json!({
        "node": query.node,
        "number": query.number,
        "principal": query.principal,
        "endpoint": (!endpoint.is_empty()).then_some(endpoint),
        "predicate": query.predicate,
        "project": named(&query.project),
        "order": order.collect::<Vec<_>>(),
        "limit": query.limit,
        "group_by": named(&query.group_by),
        "aggregates": aggregates.collect::<Vec<_>>(),
        "partitions": query.partitions,
        "silent": query.silent,
        "untaken": query.untaken,
        "untaken_bytes": query.untaken_bytes,
        "settling": query.settling,
        "since_us": query.since_us,
    })
}

fn aggregation_name(aggregation: v1::QueryAggregation) -> &'static str {
    match aggregation {
        v1::QueryAggregation::Count => "count",
        v1::QueryAggregation::Sum => "sum",
        v1::QueryAggregation::Min => "min",
        v1::QueryAggregation::Max => "max",
        v1::QueryAggregation::Avg => "avg",
        v1::QueryAggregation::Unspecified => "?",
    }
}

/// How Tables fares on some nodes.
pub fn load(nodes: &[v1::TablesNodeLoad]) -> Json {
    let node = |load: &v1::TablesNodeLoad| {
        let answers = load.answers.iter().map(|answers| (answers.kind.clone(), answers.count.into()));
        json!({
            "node": load.node,
            "partitions": load.partitions,
            "copies": load.copies,
            "live_queries": load.queries,
            "answers": answers.collect::<serde_json::Map<_, _>>(),
            "events": load.events,
            "event_bytes": load.event_bytes,
            "untaken": load.untaken,
            "untaken_bytes": load.untaken_bytes,
            "overrun": load.overrun,
        })
    };
    json!({ "nodes": nodes.iter().map(node).collect::<Vec<_>>() })
}

/// A list of access.
pub fn acl(acl: &v1::TableAcl) -> Json {
    let rights = |rights: &[i32]| rights.iter().map(|right| right_name(*right)).collect::<Vec<_>>();
    let entry = |entry: &v1::TableAclEntry| json!({ "who": entry.who, "allow": rights(&entry.allow), "deny": rights(&entry.deny) });
    acl.entries.iter().map(entry).collect()
}

/// The name of a right.
pub fn right_name(right: i32) -> &'static str {
    match TableRight::try_from(right) {
        Ok(TableRight::Read) => "read",
        Ok(TableRight::Write) => "write",
        Ok(TableRight::Administer) => "administer",
        Ok(TableRight::Unspecified) | Err(_) => "?",
    }
}

/// The rights of a name: one of them, or `all`.
pub fn rights(name: &str) -> Option<Vec<TableRight>> {
    let all = [TableRight::Read, TableRight::Write, TableRight::Administer];
    match name {
        "all" => Some(all.to_vec()),
        name => all.into_iter().find(|right| right_name((*right).into()) == name).map(|right| vec![right]),
    }
}

fn properties(properties: &v1::TableProperties) -> Json {
    let columns = properties
        .columns
        .iter()
        .map(|column| (column.name.clone(), json!({ "kinds": column.kinds, "required": column.required })));
    json!({
        "level": level_name(properties.level()),
        "may_write": (!properties.may_write.is_empty()).then_some(&properties.may_write),
        "lossy": properties.lossy,
        "columns": columns.collect::<serde_json::Map<_, _>>(),
        "partition_by": properties.partition_by.as_ref().map(|by| json!({ "column": by.column, "kind": by.kind })),
        "replication": properties.replication,
        "closed": properties.closed,
        "max_records": (properties.max_records > 0).then_some(properties.max_records),
        "max_bytes": (properties.max_bytes > 0).then_some(properties.max_bytes),
        "tombstones_s": properties.tombstones_s,
    })
}

/// The name of a level.
pub fn level_name(level: TableLevel) -> &'static str {
    match level {
        TableLevel::Public | TableLevel::Unspecified => "public",
        TableLevel::App => "app",
        TableLevel::User => "user",
    }
}

/// The level of a name.
pub fn level(name: &str) -> Option<TableLevel> {
    [TableLevel::Public, TableLevel::App, TableLevel::User].into_iter().find(|level| level_name(*level) == name)
}

/// An event of a live query: what it is called, and what it says.
pub fn event(event: &Event) -> (&'static str, Json) {
    let key = |key: &Option<Key>| key.as_ref().map(write_key);
    let rows = |rows: &[Record]| rows.iter().map(|row| record(row, Form::Plain)).collect::<Vec<_>>();
    match event {
        Event::Reset { start, end, rows: all, first, last } => {
            let rows = rows(all);
            let json = json!({ "start": key(start), "end": key(end), "rows": rows, "first": first, "last": last });
            ("reset", json)
        }
        Event::Put(put) => ("put", record(put, Form::Plain)),
        Event::Leave(key) => {
            let mut json = json!({});
            named(&mut json, key);
            ("leave", json)
        }
        Event::Rows(all) => ("rows", json!({ "rows": rows(all) })),
        Event::Settling(settling) => ("settling", json!({ "settling": settling })),
        Event::Ended(Error { code, message, hint, .. }) => {
            ("ended", json!({ "code": code, "message": message, "hint": hint }))
        }
    }
}
