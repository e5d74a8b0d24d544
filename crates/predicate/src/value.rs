//! What columns, reader data and claims hold, and what predicates compute.

use std::collections::BTreeMap;

/// A value in its own right: to build data with, and what expressions end in.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing; equals only itself.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text, ordered by its UTF-8 bytes, not normalised.
    String(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Values in order.
    List(Vec<Value>),
    /// Values by name.
    Map(BTreeMap<String, Value>),
    /// A time in microseconds since 1970 (UTC). Only expressions have it: no column does.
    Time(i64),
    /// A length of time in microseconds. Only expressions have it: no column does.
    Span(i64),
}

/// The primary key of a record. All bytes come before all strings, and these before all keys within values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Ordered as bytes.
    Bytes(Vec<u8>),
    /// Ordered by UTF-8 bytes, not normalised.
    String(String),
    /// Of a table that is partitioned by a column: ordered by its values, then by the keys there.
    Within(Box<Within>),
}

/// A key among the records that have one value in the column that their table is partitioned by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Within {
    value: PartitionValue,
    own: Key,
}

/// A value of the column that a table is partitioned by. All numbers come before all texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartitionValue {
    /// A whole number.
    Int(i64),
    /// Text, ordered by its UTF-8 bytes.
    String(String),
}

impl Key {
    /// The key of a record within a value. A key has one at most: what it had before is replaced.
    pub fn within(value: impl Into<PartitionValue>, own: impl Into<Key>) -> Key {
        let own = match own.into() {
            Key::Within(within) => within.own,
            own => own,
        };
        Key::Within(Box::new(Within { value: value.into(), own }))
    }

    /// Where a value begins: no key within it is before this.
    pub fn first_within(value: impl Into<PartitionValue>) -> Key {
        Key::within(value, Key::Bytes(Vec::new()))
    }

    /// The value that it is within, if it is within one.
    pub fn partition_value(&self) -> Option<&PartitionValue> {
        match self {
            Key::Within(within) => Some(&within.value),
            Key::Bytes(_) | Key::String(_) => None,
        }
    }

    /// The key without that value: what predicates name `key`.
    pub fn own(&self) -> &Key {
        match self {
            Key::Within(within) => &within.own,
            own => own,
        }
    }

    /// The same as a key of its own.
    pub fn into_own(self) -> Key {
        match self {
            Key::Within(within) => within.own,
            own => own,
        }
    }

    /// Bytes of the key, and of the value that it is within.
    pub fn size(&self) -> usize {
        match self {
            Key::Bytes(bytes) => bytes.len(),
            Key::String(text) => text.len(),
            Key::Within(within) => within.own.size() + within.value.size(),
        }
    }

    pub(crate) fn as_val(&self) -> crate::packed::Val<'_> {
        match self {
            Key::Bytes(bytes) => crate::packed::Val::Bytes(bytes.as_slice().into()),
            Key::String(text) => crate::packed::Val::Str(text.as_str().into()),
            Key::Within(within) => within.own.as_val(),
        }
    }
}

impl PartitionValue {
    fn size(&self) -> usize {
        match self {
            PartitionValue::Int(_) => size_of::<i64>(),
            PartitionValue::String(text) => text.len(),
        }
    }

    /// The value behind this one, with nothing between them; none behind the last.
    pub fn next(&self) -> Option<PartitionValue> {
        match self {
            PartitionValue::Int(number) => number.checked_add(1).map(PartitionValue::Int),
            PartitionValue::String(text) => Some(PartitionValue::String(format!("{text}\0"))),
        }
    }
}

impl std::fmt::Display for PartitionValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PartitionValue::Int(number) => number.fmt(f),
            PartitionValue::String(text) => text.fmt(f),
        }
    }
}

impl From<i64> for PartitionValue {
    fn from(number: i64) -> PartitionValue {
        PartitionValue::Int(number)
    }
}

impl From<&str> for PartitionValue {
    fn from(text: &str) -> PartitionValue {
        PartitionValue::String(text.to_owned())
    }
}

impl From<String> for PartitionValue {
    fn from(text: String) -> PartitionValue {
        PartitionValue::String(text)
    }
}

impl From<PartitionValue> for Value {
    fn from(value: PartitionValue) -> Value {
        match value {
            PartitionValue::Int(number) => Value::Int(number),
            PartitionValue::String(text) => Value::String(text),
        }
    }
}

/// A value and a key within it.
impl<V: Into<PartitionValue>, K: Into<Key>> From<(V, K)> for Key {
    fn from((value, own): (V, K)) -> Key {
        Key::within(value, own)
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Key {
        Key::String(text.to_owned())
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Key {
        Key::Bytes(bytes.to_owned())
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Value {
        Value::Bool(yes)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Float(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

impl<V: Into<Value>> From<Vec<V>> for Value {
    fn from(items: Vec<V>) -> Value {
        Value::List(items.into_iter().map(Into::into).collect())
    }
}

/// Whether a name has a meaning of its own in predicates, so that no column may have it.
pub fn is_reserved(name: &str) -> bool {
    matches!(name, "this" | "reader" | "user" | "key")
}
