//! Messages as the machines have them, and back: tables and records. Live queries between nodes are in [`live`].

mod live;

pub(super) use live::*;

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{Class, Error, Mono, Wall};
use tidings_client::tables::form::{data_of, key_of, key_to, packed, partition_value_of, query_of};
use tidings_predicate::query::Row;
use tidings_predicate::{Key, Packed, PartitionValue};
use tidings_tables::acl::{Acl, Change as AclChange, Right};
use tidings_tables::calls::{
    Access, Caller, Condition, Conflict, Counts, Level, Operation, Page, Read, Span, Stat, Update, Visible, Write,
};
use tidings_tables::directory::{Column, Kind, PartitionBy, PartitionKind, Properties, Schema};
use tidings_tables::names::{NetId, OperationId, PartitionId, Position, TableId};
use tidings_wire::v1;
use tidings_wire::v1::record_conflict::Conflict as Stands;
use tidings_wire::v1::record_write::Change;
use tidings_wire::v1::{ReadLevel, TableLevel, TableRight};

/// Whoever calls, as a table of an application sees it: whoever is of another application is nobody in particular there.
/// R8: a list may name it, and does not any more once its token has expired.
pub(super) fn relative(caller: &v1::TablesCaller, app: &str) -> v1::TablesCaller {
    if caller.app == app {
        return caller.clone();
    }
    v1::TablesCaller { level: TableLevel::Public.into(), claims: Bytes::new(), ..caller.clone() }
}

/// Whoever calls, as the machines have it.
pub(super) fn caller_of(caller: &v1::TablesCaller) -> Caller {
    let user = match caller.level() {
        TableLevel::User => caller.principal.clone(),
        _ => String::new(),
    };
    Caller {
        access: access_of(caller.level()),
        app: caller.app.clone(),
        user,
        principal: caller.principal.clone(),
        claims: Packed::parse(&caller.claims).unwrap_or_else(|_| Packed::empty()),
        expires: (caller.until_us > 0).then_some(Wall(caller.until_us)),
    }
}

pub(super) fn access_of(level: TableLevel) -> Access {
    match level {
        TableLevel::User => Access::User,
        TableLevel::App => Access::App,
        TableLevel::Public | TableLevel::Unspecified => Access::Public,
    }
}

pub(super) fn access_to(access: Access) -> TableLevel {
    match access {
        Access::Public => TableLevel::Public,
        Access::App => TableLevel::App,
        Access::User => TableLevel::User,
    }
}

pub(super) fn partition_to(partition: PartitionId) -> v1::PartitionRef {
    v1::PartitionRef { table: partition.table.0, number: partition.number }
}

pub(super) fn partition_of(partition: v1::PartitionRef) -> PartitionId {
    PartitionId { table: TableId(partition.table), number: partition.number }
}

// ---- tables ---------------------------------------------------------------------------------------------------------

/// The kinds of a schema by their names.
const KINDS: [(&str, Kind); 8] = [
    ("null", Kind::Null),
    ("bool", Kind::Bool),
    ("int", Kind::Int),
    ("double", Kind::Double),
    ("string", Kind::String),
    ("bytes", Kind::Bytes),
    ("list", Kind::List),
    ("map", Kind::Map),
];

/// What a table's `replication` is: all members of the cluster have its records. There is no other kind of store.
pub(super) const REPLICATION: &str = "cluster";

pub(super) fn properties_of(properties: &v1::TableProperties) -> Result<Properties, Error> {
    let column = |column: &v1::TableColumn| {
        let kind = |name: &String| {
            KINDS.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind).ok_or_else(|| {
                let shown = crate::principal::clip(name);
                Error::new("tables.schema", Class::Invalid, format!("`{shown}` is no kind of value"))
                    .hint("Use null, bool, int, double, string, bytes, list or map.")
            })
        };
        let holds = column.kinds.iter().map(kind).collect::<Result<BTreeSet<Kind>, Error>>()?;
        Ok((column.name.clone(), Column { holds, required: column.required }))
    };
    if properties.level() == TableLevel::Unspecified {
        return Err(Error::new("tables.invalid", Class::Invalid, "the table's level is not said")
            .hint("Use public, app or user."));
    }
    let columns = properties.columns.iter().map(column).collect::<Result<BTreeMap<_, _>, Error>>()?;
    let declared = !columns.is_empty() || properties.closed;
    let defaults = Properties::default();
    Ok(Properties {
        access: access_of(properties.level()),
        partition_by: properties.partition_by.as_ref().map(partition_by_of).transpose()?,
        schema: declared.then_some(Schema { columns, closed: properties.closed }),
        may_write: (!properties.may_write.is_empty()).then(|| properties.may_write.clone()),
        lossy: properties.lossy,
        max_records: (properties.max_records > 0).then_some(properties.max_records),
        max_bytes: (properties.max_bytes > 0).then_some(properties.max_bytes),
        tombstones_s: if properties.tombstones_s > 0 { properties.tombstones_s } else { defaults.tombstones_s },
        ..defaults
    })
}

fn partition_by_of(by: &v1::TablePartitionBy) -> Result<PartitionBy, Error> {
    let holds = match by.kind.as_str() {
        "" | "string" => PartitionKind::String,
        "int" => PartitionKind::Int,
        other => {
            let message =
                format!("no table is partitioned by a column of the kind `{}`", crate::principal::clip(other));
            return Err(Error::new("tables.partition_column", Class::Invalid, message)
                .hint("Use string or int: fractions, nothing and lists are no part of a name."));
        }
    };
    Ok(PartitionBy { column: by.column.clone(), holds })
}

fn partition_by_to(by: &PartitionBy) -> v1::TablePartitionBy {
    let kind = match by.holds {
        PartitionKind::String => "string",
        PartitionKind::Int => "int",
    };
    v1::TablePartitionBy { column: by.column.clone(), kind: kind.to_owned() }
}

pub(super) fn properties_to(properties: &Properties) -> v1::TableProperties {
    let schema = properties.schema.clone().unwrap_or_default();
    let kinds = |column: &Column| {
        let named = KINDS.iter().filter(|(_, kind)| column.holds.contains(kind));
        named.map(|(name, _)| (*name).to_owned()).collect()
    };
    let columns = schema.columns.iter().map(|(name, column)| v1::TableColumn {
        name: name.clone(),
        kinds: kinds(column),
        required: column.required,
    });
    v1::TableProperties {
        level: access_to(properties.access).into(),
        may_write: properties.may_write.clone().unwrap_or_default(),
        lossy: properties.lossy,
        columns: columns.collect(),
        closed: schema.closed,
        max_records: properties.max_records.unwrap_or_default(),
        max_bytes: properties.max_bytes.unwrap_or_default(),
        tombstones_s: properties.tombstones_s,
        partition_by: properties.partition_by.as_ref().map(partition_by_to),
        replication: REPLICATION.to_owned(),
    }
}

/// Properties with those of others in their place that are said, by the names of their fields.
pub(super) fn laid_over(
    mut before: v1::TableProperties,
    new: &v1::TableProperties,
    said: &[String],
) -> Result<v1::TableProperties, Error> {
    for field in said {
        match field.as_str() {
            "level" => before.level = new.level,
            "may_write" => before.may_write.clone_from(&new.may_write),
            "lossy" => before.lossy = new.lossy,
            "columns" => before.columns.clone_from(&new.columns),
            "closed" => before.closed = new.closed,
            "max_records" => before.max_records = new.max_records,
            "max_bytes" => before.max_bytes = new.max_bytes,
            "tombstones_s" => before.tombstones_s = new.tombstones_s,
            "partition_by" => before.partition_by.clone_from(&new.partition_by),
            "replication" => before.replication.clone_from(&new.replication),
            other => {
                let shown = crate::principal::clip(other);
                return Err(Error::new(
                    "tables.invalid",
                    Class::Invalid,
                    format!("`{shown}` is no property of a table"),
                )
                .hint("Server and client may be of different versions."));
            }
        }
    }
    Ok(before)
}

/// Changes of a list of access.
pub(super) fn changes_of(changes: &[v1::TableAccessChange]) -> Result<Vec<AclChange>, Error> {
    let right = |number: &i32| match TableRight::try_from(*number) {
        Ok(TableRight::Read) => Ok(Right::Read),
        Ok(TableRight::Write) => Ok(Right::Write),
        Ok(TableRight::Administer) => Ok(Right::Administer),
        Ok(TableRight::Unspecified) | Err(_) => {
            Err(Error::new("tables.invalid", Class::Invalid, format!("{number} is no right"))
                .hint("Use read, write and administer."))
        }
    };
    let rights = |rights: &[i32]| rights.iter().map(right).collect::<Result<BTreeSet<Right>, Error>>();
    let change = |change: &v1::TableAccessChange| {
        let (allow, deny) = (rights(&change.allow)?, rights(&change.deny)?);
        Ok(AclChange { who: change.who.clone(), remove: change.remove, allow, deny })
    };
    changes.iter().map(change).collect()
}

pub(super) fn acl_to(acl: &Acl) -> v1::TableAcl {
    let right = |right: &Right| match right {
        Right::Read => TableRight::Read.into(),
        Right::Write => TableRight::Write.into(),
        Right::Administer => TableRight::Administer.into(),
    };
    let entries = acl.entries().iter().map(|entry| v1::TableAclEntry {
        who: entry.who.clone(),
        allow: entry.allow.iter().map(right).collect(),
        deny: entry.deny.iter().map(right).collect(),
    });
    v1::TableAcl { entries: entries.collect() }
}

pub(super) fn stat_to(stat: Stat) -> v1::PartitionSize {
    let Stat {
        records,
        bytes,
        position,
        queries,
        quiet,
        counts,
        waiting,
        undelivered,
        log_changes,
        log_bytes,
        away,
        copies,
    } = stat;
    let Counts { reads, writes, events } = counts;
    v1::PartitionSize {
        records,
        bytes,
        position: position.get(),
        // A copy is nobody's query.
        queries: queries.saturating_sub(copies),
        quiet,
        reads,
        writes,
        events,
        waiting,
        undelivered,
        log_changes,
        log_bytes,
        away,
        copies,
    }
}

// ---- records --------------------------------------------------------------------------------------------------------

pub(super) fn record_to(record: Visible) -> v1::Record {
    v1::Record {
        key: Some(key_to(record.key)),
        version: record.version.get(),
        data: Some(data_of(&record.columns)),
        writer: record.writer,
        time_us: record.time.0,
        audience: String::new(),
    }
}

/// A record with whom it is shown to, if that is to be told.
pub(super) fn record_with(record: Visible, audience: bool) -> v1::Record {
    match audience {
        true => v1::Record { audience: record.audience.to_string(), ..record_to(record) },
        false => record_to(record),
    }
}

/// A record of another node; none if it is not one.
pub(super) fn record_of(record: v1::Record) -> Option<Visible> {
    Some(Visible {
        key: key_of(record.key?)?,
        version: Position::from_u64(record.version)?,
        time: Wall(record.time_us),
        writer: record.writer,
        audience: record.audience.into(),
        columns: packed(record.data.as_ref()?).ok()?,
    })
}

pub(super) fn row_to(row: Row) -> v1::Record {
    v1::Record { key: row.key.map(key_to), data: Some(data_of(&row.columns)), ..Default::default() }
}

pub(super) fn conflict_to(conflict: Conflict) -> v1::RecordConflict {
    let conflict = match conflict {
        Conflict::Theirs(theirs) => Stands::Theirs(record_to(*theirs)),
        Conflict::Absent => Stands::Absent(v1::RecordAbsent {}),
        Conflict::Hidden => Stands::Hidden(v1::RecordHidden {}),
        Conflict::Predecessor => Stands::Dependent(v1::RecordDependent {}),
    };
    v1::RecordConflict { conflict: Some(conflict) }
}

pub(super) fn write_of(write: &v1::RecordWrite, deadline: Mono) -> Result<Write, Error> {
    let change = match write.change.as_ref().ok_or_else(|| missing("change"))? {
        Change::Put(put) => Update::Put { columns: data(&put.data)?, predicate: put.audience.clone() },
        Change::Patch(patch) => Update::Patch { set: data(&patch.data)?, unset: patch.remove.clone() },
        Change::Delete(_) => Update::Delete,
    };
    let condition = match write.condition.as_ref().and_then(|condition| condition.expected.as_ref()) {
        None => Condition::Blind,
        Some(v1::record_condition::Expected::Version(version)) => Condition::Version(position(*version)?),
        Some(v1::record_condition::Expected::Operation(seq)) => Condition::Operation(*seq),
    };
    let op = write.operation.as_ref().map(|operation| {
        let id = OperationId { netid: netid_of(&operation.netid)?, seq: operation.seq };
        let after = (operation.after > 0).then_some(operation.after);
        Ok::<_, Error>(Operation { id, acked_through: operation.acked_through, after })
    });
    Ok(Write {
        op: op.transpose()?,
        key: key(&write.key)?,
        change,
        condition,
        data: data(&write.reader)?,
        deadline: Some(deadline),
    })
}

/// R1: the key that a write's record is stored under, which the write names from now on.
pub(super) fn stored_key(properties: &Properties, key: Key, write: &mut v1::RecordWrite) -> Result<Key, Error> {
    let columns = match &write.change {
        Some(Change::Put(put)) if properties.partition_by.is_some() => Some(data(&put.data)?),
        _ => None,
    };
    let key = properties.stored(key, columns.as_ref())?;
    write.key = Some(key_to(key.clone()));
    Ok(key)
}

/// The same of a read of one record, and of operations that it waits for; bounds begin with a value.
pub(super) fn locate(properties: &Properties, read: &mut v1::RecordRead) -> Result<(), Error> {
    let stored = |key: &mut Option<v1::RecordKey>, columns: Option<&Packed>| match self::key(key) {
        Ok(named) => properties.stored(named, columns).map(|named| *key = Some(key_to(named))).map_err(Error::from),
        Err(_) => Ok(()),
    };
    stored(&mut read.key, None)?;
    let within = read.query.as_ref().and_then(|query| query.within.clone()).and_then(partition_value_of);
    for mut pending in std::mem::take(&mut read.pending) {
        let columns = pending.columns.take().filter(|_| properties.partition_by.is_some());
        match columns.map(|columns| packed(&columns)).transpose()? {
            // What no record is named by is refused as a write, and never takes effect.
            Some(columns) if stored(&mut pending.key, Some(&columns)).is_err() => continue,
            Some(_) => {}
            None => {
                pending.key = pending.key.map(|key| placed(key, within.as_ref()));
                stored(&mut pending.key, None)?;
            }
        }
        read.pending.push(pending);
    }
    let Some(query) = &mut read.query else { return Ok(()) };
    for bound in [&mut query.from, &mut query.before] {
        if let Some(at) = bound.take().and_then(key_of) {
            *bound = Some(key_to(properties.bound(at)?));
        }
    }
    let Some(value) = query.within.take().and_then(partition_value_of) else { return Ok(()) };
    let (from, before) = properties.span(&value)?;
    let later = query.from.take().and_then(key_of).filter(|own| *own > from);
    query.from = Some(key_to(later.unwrap_or(from)));
    let earlier = query.before.take().and_then(key_of).filter(|own| before.as_ref().is_none_or(|before| own < before));
    query.before = earlier.or(before).map(key_to);
    Ok(())
}

/// A key that has no value of a partition column, within this one.
fn placed(key: v1::RecordKey, within: Option<&PartitionValue>) -> v1::RecordKey {
    match (key_of(key.clone()), within) {
        (Some(own), Some(value)) if own.partition_value().is_none() => key_to(Key::within(value.clone(), own)),
        _ => key,
    }
}

/// What a partition is asked to read; whoever asks gives the span.
pub(super) fn read_of(
    read: &v1::RecordRead,
    partition: u32,
    span: Span,
    whole: bool,
    deadline: Mono,
) -> Result<Read, Error> {
    let level = match read.level() {
        ReadLevel::Uncommitted => Level::Uncommitted,
        ReadLevel::Committed => Level::Committed,
        ReadLevel::Latest | ReadLevel::Unspecified => Level::Latest,
        // Nothing of the client's is under way.
        ReadLevel::CommittedWio if read.netid.is_empty() && read.pending.is_empty() => Level::Committed,
        ReadLevel::CommittedWio => {
            let pending = read.pending.iter().map(|pending| Ok((key(&pending.key)?, pending.seq)));
            Level::CommittedWio {
                netid: netid_of(&read.netid)?,
                pending: pending.collect::<Result<Vec<(Key, u64)>, Error>>()?,
            }
        }
    };
    let floor = read.floors.iter().find(|floor| floor.partition == partition);
    Ok(Read {
        ask: read.query.as_ref().map(query_of).transpose()?.unwrap_or_default(),
        span,
        level,
        data: data(&read.reader)?,
        floor: position(floor.map_or(0, |floor| floor.position))?,
        whole,
        deadline: Some(deadline),
    })
}

/// The span of a read that another node sent.
pub(super) fn span_of(read: &v1::RecordRead) -> Result<Span, Error> {
    let query = read.query.clone().unwrap_or_default();
    let (from, before) = (query.from.and_then(key_of), query.before.and_then(key_of));
    Ok(match (&read.key, read.after.clone().and_then(key_of)) {
        (Some(_), _) => Span::Only(key(&read.key)?),
        (None, Some(after)) => Span::After(after, before),
        (None, None) => Span::Between(from, before),
    })
}

/// A piece of an answer; records come with their audiences if those are asked for.
pub(super) fn page_to(partition: u32, page: Page, audiences: bool) -> v1::RecordRows {
    let rows =
        page.records.into_iter().map(|record| record_with(record, audiences)).chain(page.rows.into_iter().map(row_to));
    let position = page.position.get();
    v1::RecordRows {
        rows: rows.collect(),
        cursor: Bytes::new(),
        positions: vec![v1::PartitionPosition { partition, position }],
        ..Default::default()
    }
}

/// The columns of a message; none are an empty map.
pub(super) fn data(data: &Option<v1::RecordData>) -> Result<Packed, Error> {
    data.as_ref().map_or_else(|| Ok(Packed::empty()), packed)
}

pub(super) fn key(key: &Option<v1::RecordKey>) -> Result<Key, Error> {
    key.clone().and_then(key_of).ok_or_else(|| missing("key"))
}

pub(super) fn netid_of(bytes: &[u8]) -> Result<NetId, Error> {
    bytes.try_into().map(NetId).map_err(|_| {
        Error::new("tables.invalid", Class::Invalid, "a netid has 16 bytes").hint("Draw them at random, once.")
    })
}

pub(super) fn position(number: u64) -> Result<Position, Error> {
    Position::from_u64(number)
        .ok_or_else(|| Error::new("tables.invalid", Class::Invalid, format!("{number} is no version")))
}

fn missing(field: &str) -> Error {
    Error::new("control.missing_field", Class::Invalid, format!("the request lacks its field `{field}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a caller says takes the place of what was there, and nothing else does.
    #[test]
    fn properties_that_are_not_said_stay() {
        let before = v1::TableProperties::default();
        let column = v1::TableColumn { name: "n".into(), kinds: vec!["int".into()], required: true };
        let new = v1::TableProperties {
            level: TableLevel::User.into(),
            may_write: "true".into(),
            lossy: true,
            columns: vec![column],
            closed: true,
            max_records: 1,
            max_bytes: 2,
            tombstones_s: 3,
            partition_by: Some(v1::TablePartitionBy { column: "city".into(), kind: "int".into() }),
            replication: REPLICATION.into(),
        };
        let laid = |fields: &[&str]| {
            let said: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            laid_over(before.clone(), &new, &said)
        };
        let one = |change: fn(&mut v1::TableProperties, v1::TableProperties)| {
            let mut properties = before.clone();
            change(&mut properties, new.clone());
            properties
        };
        let all = [
            ("level", one(|p, new| p.level = new.level)),
            ("may_write", one(|p, new| p.may_write = new.may_write)),
            ("lossy", one(|p, new| p.lossy = new.lossy)),
            ("columns", one(|p, new| p.columns = new.columns)),
            ("closed", one(|p, new| p.closed = new.closed)),
            ("max_records", one(|p, new| p.max_records = new.max_records)),
            ("max_bytes", one(|p, new| p.max_bytes = new.max_bytes)),
            ("tombstones_s", one(|p, new| p.tombstones_s = new.tombstones_s)),
            ("partition_by", one(|p, new| p.partition_by = new.partition_by)),
            ("replication", one(|p, new| p.replication = new.replication)),
        ];
        for (field, expected) in &all {
            assert_eq!(laid(&[field]).as_ref(), Ok(expected), "{field}");
        }
        assert_eq!(laid(&all.each_ref().map(|(field, _)| *field)), Ok(new.clone()), "none is left out");
        assert_eq!(laid(&[]), Ok(before.clone()));
        assert_eq!(laid(&["level", "colour"]).unwrap_err().code, "tables.invalid");
    }
}
