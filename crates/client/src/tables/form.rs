//! Keys, columns and records as messages carry them.

use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::{Class, Error};
use tidings_predicate::json::{self, BadJson};
use tidings_predicate::query::{Aggregate, Ask, AskLookup, Direction};
use tidings_predicate::{Key, Packed, PartitionValue, Value};
use tidings_wire::v1;
use tidings_wire::v1::partition_value::Value as WireValue;
use tidings_wire::v1::record_data::Form;
use tidings_wire::v1::record_key::Key as WireKey;

/// Names and values of a record, or of a reader.
pub type Columns = BTreeMap<String, Value>;

/// A record, or a row of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its key; none if it is a group.
    pub key: Option<Key>,
    /// The position of the commit that wrote it; 0 in rows that were computed.
    pub version: u64,
    /// Its columns.
    pub columns: Columns,
    /// Who wrote it.
    pub writer: String,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// Whom it is shown to, where that was asked for; empty = everybody.
    pub audience: String,
}

impl TryFrom<v1::Record> for Record {
    type Error = Error;

    fn try_from(record: v1::Record) -> Result<Record, Error> {
        let v1::Record { key, version, data, writer, time_us, audience } = record;
        let columns = data.as_ref().map(columns).transpose()?.unwrap_or_default();
        Ok(Record { key: key.and_then(key_of), version, columns, writer, time_us, audience })
    }
}

/// The key of a message; none if it names none.
pub fn key_of(key: v1::RecordKey) -> Option<Key> {
    let own = match key.key? {
        WireKey::Bytes(bytes) => Key::Bytes(bytes.to_vec()),
        WireKey::Text(text) => Key::String(text),
    };
    match key.within {
        Some(within) => Some(Key::within(partition_value_of(within)?, own)),
        None => Some(own),
    }
}

/// A value of a partition column in a message.
pub fn partition_value_of(value: v1::PartitionValue) -> Option<PartitionValue> {
    value.value.map(|value| match value {
        WireValue::Number(number) => PartitionValue::Int(number),
        WireValue::Text(text) => PartitionValue::String(text),
    })
}

/// A value of a partition column for a message.
pub fn partition_value_to(value: PartitionValue) -> v1::PartitionValue {
    let value = match value {
        PartitionValue::Int(number) => WireValue::Number(number),
        PartitionValue::String(text) => WireValue::Text(text),
    };
    v1::PartitionValue { value: Some(value) }
}

/// A key for a message.
pub fn key_to(key: Key) -> v1::RecordKey {
    let within = key.partition_value().cloned().map(partition_value_to);
    let own = match key.into_own() {
        Key::Bytes(bytes) => Some(WireKey::Bytes(bytes.into())),
        Key::String(text) => Some(WireKey::Text(text)),
        // A key is within one value at most.
        Key::Within(_) => None,
    };
    v1::RecordKey { key: own, within }
}

/// Columns of a message, in whatever form.
pub fn packed(data: &v1::RecordData) -> Result<Packed, Error> {
    let packed = match &data.form {
        None => Ok(Packed::empty()),
        Some(Form::Packed(bytes)) => Packed::parse(bytes),
        Some(Form::Json(text)) => {
            let json = serde_json::from_str(text).map_err(|e| bad_data(format!("the columns are no JSON: {e}")))?;
            Packed::columns(json::read_columns(&json).map_err(bad_json)?)
        }
    };
    let packed = packed.map_err(|bad| bad_data(bad.to_string()))?;
    match packed.unpack() {
        Value::Map(_) => Ok(packed),
        _ => Err(bad_data(BadJson::NoObject.to_string())),
    }
}

/// Columns of a message, by name.
pub fn columns(data: &v1::RecordData) -> Result<Columns, Error> {
    match packed(data)?.unpack() {
        Value::Map(columns) => Ok(columns),
        _ => Ok(Columns::new()),
    }
}

/// Columns for a message.
pub fn data_to(columns: &Columns) -> Result<v1::RecordData, Error> {
    let columns = columns.iter().map(|(name, value)| (name.clone(), value.clone()));
    let packed = Packed::columns(columns).map_err(|bad| bad_data(bad.to_string()))?;
    Ok(data_of(&packed))
}

/// Packed columns for a message.
pub fn data_of(packed: &Packed) -> v1::RecordData {
    v1::RecordData { form: Some(Form::Packed(Bytes::from_owner(packed.clone()))) }
}

/// The columns of a message as JSON, if they are not already.
pub fn into_json(data: &mut v1::RecordData) -> Result<(), Error> {
    if let Some(Form::Packed(_)) = &data.form {
        let text = json::write_columns(&columns(data)?, json::Form::Plain).to_string();
        data.form = Some(Form::Json(text));
    }
    Ok(())
}

/// A query for a message.
pub fn query_to(ask: &Ask) -> v1::RecordQuery {
    let named = |parts: &[(String, String)]| {
        let column = |(name, expression): &(String, String)| v1::QueryColumn {
            name: name.clone(),
            expression: expression.clone(),
        };
        parts.iter().map(column).collect()
    };
    let order = ask.order.iter().map(|(expression, direction)| v1::QueryOrder {
        expression: expression.clone(),
        descending: *direction == Direction::Descending,
    });
    let aggregates = ask.aggregates.iter().map(|(name, aggregate, expression)| v1::QueryAggregate {
        name: name.clone(),
        aggregate: aggregation(*aggregate).into(),
        expression: expression.clone(),
    });
    let lookup = ask.lookup.as_ref().map(|AskLookup { table, key, name }| v1::QueryLookup {
        table: table.clone(),
        key: key.clone(),
        name: name.clone(),
    });
    v1::RecordQuery {
        predicate: ask.predicate.clone(),
        project: named(&ask.project),
        order: order.collect(),
        limit: ask.limit.map(|limit| limit as u64),
        group_by: named(&ask.group_by),
        aggregates: aggregates.collect(),
        lookup,
        from: None,
        before: None,
        within: None,
    }
}

/// The query of a message.
pub fn query_of(query: &v1::RecordQuery) -> Result<Ask, Error> {
    let named = |parts: &[v1::QueryColumn]| {
        parts.iter().map(|column| (column.name.clone(), column.expression.clone())).collect()
    };
    let direction = |descending| if descending { Direction::Descending } else { Direction::Ascending };
    let aggregates = query.aggregates.iter().map(|part| {
        let aggregate = match part.aggregate() {
            v1::QueryAggregation::Count => Aggregate::Count,
            v1::QueryAggregation::Sum => Aggregate::Sum,
            v1::QueryAggregation::Min => Aggregate::Min,
            v1::QueryAggregation::Max => Aggregate::Max,
            v1::QueryAggregation::Avg => Aggregate::Avg,
            v1::QueryAggregation::Unspecified => {
                return Err(Error::new("tables.bad_query", Class::Invalid, "an aggregate does not say which it is"));
            }
        };
        Ok((part.name.clone(), aggregate, part.expression.clone()))
    });
    Ok(Ask {
        predicate: query.predicate.clone(),
        lookup: query.lookup.as_ref().map(|lookup| AskLookup {
            table: lookup.table.clone(),
            key: lookup.key.clone(),
            name: lookup.name.clone(),
        }),
        project: named(&query.project),
        order: query.order.iter().map(|part| (part.expression.clone(), direction(part.descending))).collect(),
        limit: query.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        group_by: named(&query.group_by),
        aggregates: aggregates.collect::<Result<_, Error>>()?,
    })
}

fn aggregation(aggregate: Aggregate) -> v1::QueryAggregation {
    match aggregate {
        Aggregate::Count => v1::QueryAggregation::Count,
        Aggregate::Sum => v1::QueryAggregation::Sum,
        Aggregate::Min => v1::QueryAggregation::Min,
        Aggregate::Max => v1::QueryAggregation::Max,
        Aggregate::Avg => v1::QueryAggregation::Avg,
    }
}

/// A record of an export: a JSON object with `key`, `columns` and, unless it is shown to everybody, `audience`; in a table that
/// is partitioned by a column with `in`, the column's value, or without. Whatever else it has is ignored.
pub fn line_of(line: &str) -> Result<Line, Error> {
    let json: serde_json::Value = serde_json::from_str(line).map_err(|e| bad_data(format!("it is no JSON: {e}")))?;
    let mut key = json::read_key(&json["key"]).map_err(bad_json)?;
    if !json[json::IN].is_null() {
        key = Key::within(json::read_partition_value(&json[json::IN]).map_err(bad_json)?, key);
    }
    let columns = json::read_columns(&json["columns"]).map_err(bad_json)?;
    let audience = match &json["audience"] {
        serde_json::Value::Null => None,
        serde_json::Value::String(audience) => Some(audience.clone()),
        _ => return Err(bad_data("`audience` is the text of a predicate")),
    };
    Ok(Line { key, columns, audience })
}

/// A record that is to be written, as an import has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its key.
    pub key: Key,
    /// Its columns.
    pub columns: Columns,
    /// Whom it is shown to, if the line says so.
    pub audience: Option<String>,
}

impl From<(Key, Columns)> for Line {
    fn from((key, columns): (Key, Columns)) -> Line {
        Line { key, columns, audience: None }
    }
}

/// What came of lines that were written together, in their order, behind so many that are written: how many are by now, or which
/// is the first that is not.
pub fn written(before: usize, lines: Vec<(usize, Result<(), Error>)>) -> Result<usize, Error> {
    let count = before + lines.iter().filter(|(_, written)| written.is_ok()).count();
    let refused = lines.into_iter().find_map(|(number, written)| Some((number, written.err()?)));
    refused.map_or(Ok(count), |(number, error)| {
        Err(Error { message: format!("line {number}, with {count} others written: {}", error.message), ..error })
    })
}

/// A netid as people write it: 32 hexadecimal digits.
pub fn netid_of(text: &str) -> Result<Bytes, Error> {
    let digits = Some(text).filter(|text| text.len() == 32 && text.is_ascii());
    let bytes =
        digits.and_then(|text| (0..16).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()).collect());
    bytes.map(|bytes: Vec<u8>| bytes.into()).ok_or_else(|| {
        Error::new("tables.invalid", Class::Invalid, format!("`{text}` is no netid"))
            .hint("Draw 16 bytes at random, once, and write them as 32 hexadecimal digits.")
    })
}

/// R6: an operation as people write it: `NETID/SEQ[/ACKED[/AFTER]]`, the netid as 32 hexadecimal digits.
pub fn operation_of(text: &str) -> Result<v1::RecordOperation, Error> {
    let parse = || {
        let mut parts = text.split('/');
        let netid = parts.next().filter(|netid| netid.len() == 32 && netid.is_ascii())?;
        let netid = (0..16).map(|at| u8::from_str_radix(&netid[2 * at..2 * at + 2], 16).ok());
        let netid = netid.collect::<Option<Vec<u8>>>()?.into();
        let seq = parts.next()?.parse().ok()?;
        let mut number = || parts.next().map_or(Some(0), |number| number.parse().ok());
        let (acked_through, after) = (number()?, number()?);
        parts.next().is_none().then_some(v1::RecordOperation { netid, seq, acked_through, after })
    };
    parse().ok_or_else(|| {
        Error::new("tables.invalid", Class::Invalid, format!("`{text}` names no operation"))
            .hint("Write NETID/SEQ, NETID/SEQ/ACKED or NETID/SEQ/ACKED/AFTER, the netid as 32 hexadecimal digits.")
    })
}

/// JSON that is no data of a record.
pub fn bad_json(bad: BadJson) -> Error {
    bad_data(bad.to_string())
}

fn bad_data(why: impl Into<String>) -> Error {
    Error::new("tables.bad_data", Class::Invalid, why).hint("Columns are an object of names and values.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netids_are_read_as_people_write_them() {
        assert_eq!(netid_of("00112233445566778899aabbccddeeff").unwrap()[..2], [0, 0x11]);
        for bad in ["", "0011", &"g".repeat(32), &"é".repeat(16), &"0".repeat(33)] {
            assert_eq!(netid_of(bad).unwrap_err().code, "tables.invalid", "{bad}");
        }
    }

    #[test]
    fn operations_are_read_as_people_write_them() {
        let netid = "00112233445566778899aabbccddeeff";
        let operation = operation_of(&format!("{netid}/7/5/6")).unwrap();
        assert_eq!((operation.seq, operation.acked_through, operation.after), (7, 5, 6));
        assert_eq!((operation.netid.len(), operation.netid[15]), (16, 0xff));
        assert_eq!(operation_of(&format!("{netid}/7")).unwrap().acked_through, 0);
        for bad in [
            "",
            "7",
            netid,
            &format!("{netid}/x"),
            &format!("{netid}/1/2/3/4"),
            "é/1",
            &format!("{}/1", "é".repeat(16)),
        ] {
            assert_eq!(operation_of(bad).unwrap_err().code, "tables.invalid", "{bad}");
        }
    }
}
