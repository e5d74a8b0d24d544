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

/// The primary key of a record. All bytes come before all strings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Ordered as bytes.
    Bytes(Vec<u8>),
    /// Ordered by UTF-8 bytes, not normalised.
    String(String),
}

impl Key {
    pub(crate) fn as_val(&self) -> crate::packed::Val<'_> {
        match self {
            Key::Bytes(bytes) => crate::packed::Val::Bytes(bytes.as_slice().into()),
            Key::String(text) => crate::packed::Val::Str(text.as_str().into()),
        }
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
