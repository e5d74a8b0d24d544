//! Records as they lie in the store, and what a record may be.

use crate::calls::{MAX_COLUMNS, MAX_ENTRIES, MAX_KEY, MAX_RECORD, Visible};
use crate::directory::Schema;
use crate::names::{NetId, OperationId, Position};
use crate::refusal::Refusal;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::Wall;
use tidings_predicate::{Key, Kinds, Packed, Value, is_reserved};

/// A record at one version; one that was deleted keeps its version for a while.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub version: Position,
    pub time: Wall,
    pub writer: String,
    /// The writer's predicate; empty = everybody.
    pub predicate: Arc<str>,
    /// R6: the operation that made it: it is known longer than the operation's outcome.
    pub op: Option<OperationId>,
    /// None: deleted.
    pub columns: Option<Packed>,
}

/// The first format knew no operations.
const UNNAMED: u8 = 1;
const FORMAT: u8 = 2;
const LIVE: u8 = 0;
const DELETED: u8 = 1;

impl Record {
    /// What it counts for.
    pub fn size(&self) -> usize {
        self.predicate.len() + self.columns.as_ref().map_or(0, |columns| columns.as_bytes().len())
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(56 + self.writer.len() + self.size());
        out.put_u8(FORMAT);
        out.put_u8(if self.columns.is_some() { LIVE } else { DELETED });
        out.put_u64(self.time.0);
        for text in [&*self.writer, &*self.predicate] {
            out.put_u32(text.len() as u32);
            out.put_slice(text.as_bytes());
        }
        // Operations are numbered from 1.
        out.put_u64(self.op.map_or(0, |op| op.seq));
        if let Some(op) = self.op {
            out.put_slice(&op.netid.0);
        }
        if let Some(columns) = &self.columns {
            out.put_slice(columns.as_bytes());
        }
        out.freeze()
    }

    /// Reads what lies in the store; none if it is of a newer format or damaged.
    pub fn decode(version: u64, mut bytes: &[u8]) -> Option<Record> {
        let version = Position::from_u64(version)?;
        let (format, kind) = match (bytes.len() >= 10).then(|| (bytes.get_u8(), bytes.get_u8()))? {
            (format @ (UNNAMED | FORMAT), kind @ (LIVE | DELETED)) => (format, kind),
            _ => return None,
        };
        let time = Wall(bytes.get_u64());
        let mut text = || {
            let length = bytes.split_off(..4).map(|mut length| length.get_u32())?;
            String::from_utf8(bytes.split_off(..length as usize)?.to_vec()).ok()
        };
        let (writer, predicate) = (text()?, text()?.into());
        let seq = if format == UNNAMED { 0 } else { bytes.split_off(..8)?.get_u64() };
        let op = match seq {
            0 => None,
            seq => Some(OperationId { netid: NetId(bytes.split_off(..16)?.try_into().ok()?), seq }),
        };
        let columns = if kind == LIVE { Some(Packed::parse(bytes).ok()?) } else { None };
        Some(Record { version, time, writer, predicate, op, columns })
    }

    /// The record as a reader sees it who may.
    pub fn visible(&self, key: &Key) -> Option<Visible> {
        let columns = self.columns.clone()?;
        let (writer, audience) = (self.writer.clone(), self.predicate.clone());
        Some(Visible { key: key.clone(), version: self.version, time: self.time, writer, audience, columns })
    }
}

/// Refuses what cannot be a key.
pub(crate) fn check_key(key: &Key) -> Result<(), Refusal> {
    if key.own().size() > 0 && key.size() <= MAX_KEY { Ok(()) } else { Err(Refusal::BadKey) }
}

/// Refuses what cannot be a bound of a partition: a key, or where a value of the partition column begins.
pub(crate) fn check_bound(key: &Key) -> Result<(), Refusal> {
    match key.partition_value() {
        Some(value) if *key == Key::first_within(value.clone()) && key.size() <= MAX_KEY => Ok(()),
        _ => check_key(key),
    }
}

/// How many entries the largest map in a value has.
fn widest(value: &Value) -> usize {
    match value {
        Value::Map(entries) => entries.values().map(widest).max().unwrap_or_default().max(entries.len()),
        Value::List(items) => items.iter().map(widest).max().unwrap_or_default(),
        _ => 0,
    }
}

/// Refuses what cannot be a record's columns, whatever the table.
pub(crate) fn check_columns(columns: &Packed, predicate: &str) -> Result<(), Refusal> {
    if columns.as_bytes().len() + predicate.len() > MAX_RECORD {
        return Err(Refusal::TooLarge);
    }
    match columns.unpack() {
        Value::Map(columns) if columns.len() > MAX_COLUMNS => Err(Refusal::BadColumns(format!(
            "A record has at most {MAX_COLUMNS} columns, and this one {}: put what belongs together into lists or maps.",
            columns.len()
        ))),
        Value::Map(columns) if columns.values().any(|value| widest(value) > MAX_ENTRIES) => {
            Err(Refusal::BadColumns(format!("A map in a column has at most {MAX_ENTRIES} entries.")))
        }
        Value::Map(columns) => match columns.keys().find(|name| is_reserved(name)) {
            Some(name) => Err(Refusal::BadColumns(format!("No column can have the name `{name}`."))),
            None => Ok(()),
        },
        _ => Err(Refusal::BadColumns("The columns of a record are a map of names.".to_owned())),
    }
}

/// Refuses columns that do not fit a schema.
pub(crate) fn check_schema(schema: &Schema, columns: &Packed) -> Result<(), Refusal> {
    let columns = map(columns);
    for (name, column) in &schema.columns {
        match columns.get(name) {
            Some(value) if !column.kinds().meets(Kinds::of(value)) => {
                return Err(Refusal::Schema(format!("The column `{name}` holds {}.", Kinds::of(value))));
            }
            None if column.required => return Err(Refusal::Schema(format!("The column `{name}` is missing."))),
            _ => {}
        }
    }
    match columns.keys().find(|name| schema.closed && !schema.columns.contains_key(*name)) {
        Some(name) => Err(Refusal::Schema(format!("The table has no column `{name}`."))),
        None => Ok(()),
    }
}

/// A packed map in its own right; empty if it is none.
pub(crate) fn map(packed: &Packed) -> BTreeMap<String, Value> {
    match packed.unpack() {
        Value::Map(columns) => columns,
        _ => BTreeMap::new(),
    }
}

/// Columns after a patch.
pub(crate) fn patched(old: &Packed, set: &Packed, unset: &[String]) -> Result<Packed, Refusal> {
    let mut columns = map(old);
    unset.iter().for_each(|name| {
        columns.remove(name);
    });
    columns.extend(map(set));
    Packed::pack(&Value::Map(columns)).map_err(|bad| Refusal::BadColumns(format!("{bad}.")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Column, Kind};

    #[test]
    fn records_come_back_and_damage_is_noticed() {
        let columns = Packed::columns([("a", Value::Int(1)), ("b", Value::Null)]).unwrap();
        let op = OperationId { netid: NetId([3; 16]), seq: 9 };
        for (columns, op) in [(Some(columns), Some(op)), (None, None)] {
            let (version, time) = (Position::from_u64(77).unwrap(), Wall(5));
            let (writer, predicate) = ("ann".to_owned(), "reader.x == 1".into());
            let record = Record { version, time, writer, predicate, op, columns };
            let bytes = record.encode();
            assert_eq!(Record::decode(77, &bytes).as_ref(), Some(&record));
            for cut in 0..28 {
                assert_ne!(Record::decode(77, &bytes[..cut]).as_ref(), Some(&record));
            }
        }
    }

    #[test]
    fn records_of_the_first_format_are_read() {
        let columns = Packed::columns([("a", Value::Int(1))]).unwrap();
        let old = [&[1, 0], &5u64.to_be_bytes()[..], &3u32.to_be_bytes(), b"ann", &[0; 4], columns.as_bytes()].concat();
        let record = Record::decode(77, &old).unwrap();
        assert_eq!((record.writer.as_str(), record.op, record.columns), ("ann", None, Some(columns)));
    }

    #[test]
    fn schemas_hold() {
        let column = |kind, required| Column { holds: [kind].into(), required };
        let columns = [("a".to_owned(), column(Kind::Int, true)), ("b".to_owned(), column(Kind::String, false))];
        let schema = Schema { columns: columns.into(), closed: true };
        let check = |columns: &[(&str, Value)]| {
            check_schema(&schema, &Packed::columns(columns.iter().cloned()).unwrap()).is_ok()
        };
        assert!(check(&[("a", Value::Int(1))]));
        assert!(!check(&[("a", "1".into())]) && !check(&[]) && !check(&[("a", Value::Int(1)), ("c", Value::Null)]));
    }
}
