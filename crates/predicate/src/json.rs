//! Values as JSON.
//!
//! Numbers without a fraction are whole numbers, others floats; bytes are `{"base64": "…"}`. What JSON has no form for is an
//! object with one name that begins with `$`: `{"$int": "…"}`, `{"$float": "NaN"}`, and `{"$map": {…}}` for a map that would
//! otherwise be taken for one of these. R12: whole numbers beyond 2⁵³ are strings, since readers of JSON round them.

use crate::value::{Key, PartitionValue, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;

/// The largest whole number that every reader of JSON takes exactly.
const EXACT: u64 = 1 << 53;

const BYTES: &str = "base64";
const INT: &str = "$int";
const FLOAT: &str = "$float";
const MAP: &str = "$map";

/// The names of a key that is within a value of its table's partition column.
pub const IN: &str = "in";
const OWN: &str = "key";

/// How whole numbers beyond 2⁵³ are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As strings (R12).
    Plain,
    /// So that they are read as numbers again: `{"$int": "…"}`.
    Exact,
}

/// Why JSON is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadJson {
    /// A whole number does not fit 64 bits.
    TooLarge,
    /// Columns are an object.
    NoObject,
    /// A key is a string, or bytes.
    NoKey,
}

impl fmt::Display for BadJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadJson::TooLarge => "a whole number is larger than 2^63-1: write it with a fraction, or as a string",
            BadJson::NoObject => "columns and reader data are a JSON object",
            BadJson::NoKey => "a key is a string, or {\"base64\": \"…\"}; within a value it is {\"in\": …, \"key\": …}",
        })
    }
}

impl std::error::Error for BadJson {}

/// Reads a value.
pub fn read(json: &Json) -> Result<Value, BadJson> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(yes) => Value::Bool(*yes),
        Json::Number(number) => self::number(number)?,
        Json::String(text) => Value::String(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(read).collect::<Result<_, _>>()?),
        Json::Object(entries) => match tagged(entries)? {
            Some(value) => value,
            None => Value::Map(self::entries(entries)?),
        },
    })
}

/// Reads columns or reader data: an object, whatever its names are.
pub fn read_columns(json: &Json) -> Result<BTreeMap<String, Value>, BadJson> {
    json.as_object().ok_or(BadJson::NoObject).and_then(entries)
}

/// Reads a key. One that has a value and nothing else is where the value begins.
pub fn read_key(json: &Json) -> Result<Key, BadJson> {
    match read(json)? {
        Value::String(text) => Ok(Key::String(text)),
        Value::Bytes(bytes) => Ok(Key::Bytes(bytes)),
        Value::Map(mut within) => {
            let value = match within.remove(IN) {
                Some(Value::Int(number)) => PartitionValue::Int(number),
                Some(Value::String(text)) => PartitionValue::String(text),
                _ => return Err(BadJson::NoKey),
            };
            match (within.remove(OWN), within.is_empty()) {
                (Some(Value::String(text)), true) => Ok(Key::within(value, Key::String(text))),
                (Some(Value::Bytes(bytes)), true) => Ok(Key::within(value, Key::Bytes(bytes))),
                (None, true) => Ok(Key::first_within(value)),
                _ => Err(BadJson::NoKey),
            }
        }
        _ => Err(BadJson::NoKey),
    }
}

/// Reads a value of a partition column.
pub fn read_partition_value(json: &Json) -> Result<PartitionValue, BadJson> {
    match read(json)? {
        Value::Int(number) => Ok(PartitionValue::Int(number)),
        Value::String(text) => Ok(PartitionValue::String(text)),
        _ => Err(BadJson::NoKey),
    }
}

/// Writes a value.
pub fn write(value: &Value, form: Form) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(yes) => Json::Bool(*yes),
        // Times and spans are no values of columns; what an expression made of them is told in microseconds.
        Value::Int(number) | Value::Time(number) | Value::Span(number) => match (number.unsigned_abs() > EXACT, form) {
            (false, _) => Json::from(*number),
            (true, Form::Plain) => Json::from(number.to_string()),
            (true, Form::Exact) => json!({ INT: number.to_string() }),
        },
        Value::Float(number) => match Number::from_f64(*number) {
            Some(number) => Json::Number(number),
            None => json!({ FLOAT: number.to_string() }),
        },
        Value::String(text) => Json::from(text.as_str()),
        Value::Bytes(bytes) => json!({ BYTES: STANDARD.encode(bytes) }),
        Value::List(items) => items.iter().map(|item| write(item, form)).collect(),
        Value::Map(entries) => {
            let ambiguous =
                entries.len() == 1 && entries.keys().all(|name| [BYTES, INT, FLOAT, MAP].contains(&name.as_str()));
            let written = write_columns(entries, form);
            if ambiguous { json!({ MAP: written }) } else { written }
        }
    }
}

/// Writes columns: an object, whatever their names are.
pub fn write_columns(columns: &BTreeMap<String, Value>, form: Form) -> Json {
    let entries = columns.iter().map(|(name, value)| (name.clone(), write(value, form)));
    Json::Object(entries.collect())
}

/// Writes a key.
pub fn write_key(key: &Key) -> Json {
    match key {
        Key::String(text) => Json::from(text.as_str()),
        Key::Bytes(bytes) => json!({ BYTES: STANDARD.encode(bytes) }),
        Key::Within(_) => {
            let value = key.partition_value().map(write_partition_value);
            match key.own() {
                Key::Bytes(bytes) if bytes.is_empty() => json!({ IN: value }),
                own => json!({ IN: value, OWN: write_key(own) }),
            }
        }
    }
}

/// Writes a value of a partition column. A number that readers of JSON would round is text, which a table takes for the number again.
pub fn write_partition_value(value: &PartitionValue) -> Json {
    write(&Value::from(value.clone()), Form::Plain)
}

fn number(number: &Number) -> Result<Value, BadJson> {
    match (number.as_i64(), number.is_f64(), number.as_f64()) {
        (Some(whole), ..) => Ok(Value::Int(whole)),
        (None, true, Some(float)) => Ok(Value::Float(float)),
        _ => Err(BadJson::TooLarge),
    }
}

fn entries(object: &Map<String, Json>) -> Result<BTreeMap<String, Value>, BadJson> {
    object.iter().map(|(name, value)| Ok((name.clone(), read(value)?))).collect()
}

/// What an object with one name of ours stands for.
fn tagged(object: &Map<String, Json>) -> Result<Option<Value>, BadJson> {
    let mut all = object.iter();
    let (Some((name, value)), None) = (all.next(), all.next()) else { return Ok(None) };
    Ok(match (name.as_str(), value) {
        (BYTES, Json::String(text)) => STANDARD.decode(text).ok().map(Value::Bytes),
        (INT, Json::String(text)) => text.parse().ok().map(Value::Int),
        (FLOAT, Json::String(text)) => text.parse().ok().map(Value::Float),
        (MAP, Json::Object(inner)) => Some(Value::Map(entries(inner)?)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
    }

    #[test]
    fn whatever_is_written_exactly_is_read_as_it_was() {
        for value in [
            Value::Null,
            Value::Int(i64::MIN),
            Value::Int(i64::MAX),
            Value::Int(3),
            Value::Float(3.0),
            Value::Float(f64::NEG_INFINITY),
            Value::Bytes(vec![0, 255]),
            Value::from(vec![map(&[("base64", Value::from("AA=="))]), map(&[("$map", map(&[]))])]),
            map(&[("$int", Value::from("7")), ("b", Value::Null)]),
        ] {
            let written = write(&value, Form::Exact);
            let text: Json = serde_json::from_str(&written.to_string()).unwrap();
            assert_eq!(read(&text), Ok(value), "{written}");
        }
        let nan = read(&write(&Value::Float(f64::NAN), Form::Exact));
        assert!(matches!(nan, Ok(Value::Float(number)) if number.is_nan()));
    }

    #[test]
    fn whole_numbers_beyond_what_readers_take_exactly_are_strings() {
        assert_eq!(write(&Value::Int(1 << 53), Form::Plain), json!(9_007_199_254_740_992_u64));
        assert_eq!(write(&Value::Int((1 << 53) + 1), Form::Plain), json!("9007199254740993"));
        assert_eq!(read(&json!(9_007_199_254_740_993_u64)), Ok(Value::Int((1 << 53) + 1)));
        assert_eq!(read(&json!(u64::MAX)), Err(BadJson::TooLarge));
    }

    #[test]
    fn columns_are_objects_and_keys_are_strings_or_bytes() {
        assert_eq!(read_columns(&json!([])), Err(BadJson::NoObject));
        let columns = read_columns(&json!({ "base64": "AA==" })).unwrap();
        assert_eq!(columns["base64"], Value::from("AA=="), "a column may have any name");
        assert_eq!(read_key(&json!("ä")), Ok(Key::from("ä")));
        assert_eq!(read_key(&json!({ "base64": "AA==" })), Ok(Key::Bytes(vec![0])));
        for key in [Key::within("Rome", "a"), Key::within(-3, &[0, 255][..]), Key::first_within("Rome")] {
            assert_eq!(read_key(&write_key(&key)), Ok(key));
        }
        for bad in [json!({ "in": 1.5, "key": "a" }), json!({ "in": "x", "key": "a", "b": 1 }), json!({ "key": "a" })] {
            assert_eq!(read_key(&bad), Err(BadJson::NoKey), "{bad}");
        }
        assert_eq!(read_key(&json!(3)), Err(BadJson::NoKey));
    }
}
