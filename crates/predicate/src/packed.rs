//! Values as bytes: what records, reader data and constants lie in, read in place without copying.
//!
//! One byte of kind, then the contents; lists and maps carry their length in bytes, so that what is not wanted is
//! skipped. Names of a map are sorted and occur once: equal maps are equal bytes.

use crate::value::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How deep lists and maps may stand in one another.
pub const MAX_VALUE_DEPTH: usize = 64;

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const STRING: u8 = 5;
const BYTES: u8 = 6;
const LIST: u8 = 7;
const MAP: u8 = 8;
const TIME: u8 = 9;
const SPAN: u8 = 10;

/// A value that is read where it lies; only what an evaluation made is owned.
#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    /// The packed elements, one after the other.
    List(Cow<'a, [u8]>),
    /// The packed names and values, one after the other.
    Map(Cow<'a, [u8]>),
    Time(i64),
    Span(i64),
}

/// One value in packed form, known to be well-formed. Clones share the bytes: a record with many watchers is in memory once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Packed(Arc<[u8]>);

/// Why bytes or a value cannot be packed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadData {
    /// The bytes are not one packed value.
    Malformed,
    /// Lists and maps are nested deeper than [`MAX_VALUE_DEPTH`].
    TooDeep,
}

impl fmt::Display for BadData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadData::Malformed => write!(f, "these bytes are not one packed value"),
            BadData::TooDeep => write!(f, "lists and maps are nested deeper than {MAX_VALUE_DEPTH}"),
        }
    }
}

impl std::error::Error for BadData {}

impl Packed {
    /// Packs a value.
    pub fn pack(value: &Value) -> Result<Packed, BadData> {
        let mut bytes = Vec::new();
        put(value, 0, &mut bytes)?;
        Ok(Packed(bytes.into()))
    }

    /// Packs columns, or any map of names.
    pub fn columns<N: Into<String>>(columns: impl IntoIterator<Item = (N, Value)>) -> Result<Packed, BadData> {
        let columns: BTreeMap<String, Value> = columns.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Packed::pack(&Value::Map(columns))
    }

    /// A map without entries: reader data of somebody who gave none.
    pub fn empty() -> Packed {
        Packed(Arc::new([MAP, 0]))
    }

    /// Takes bytes from outside, if they are one packed value of the kinds that columns have.
    pub fn parse(bytes: &[u8]) -> Result<Packed, BadData> {
        match check(bytes, 0)? {
            [] => Ok(Packed(bytes.into())),
            _ => Err(BadData::Malformed),
        }
    }

    /// The packed bytes: what [`Packed::parse`] takes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The value in its own right.
    pub fn unpack(&self) -> Value {
        read(&self.0).map_or(Value::Null, |(value, _)| value.to_value())
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.unpack().fmt(f)
    }
}

pub(crate) fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A number and what follows it; `None` if it does not end or does not fit.
pub(crate) fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        if index == 9 && part > 1 {
            return None;
        }
        number |= part << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[index + 1..]));
        }
    }
    None
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn put_counted(kind: u8, contents: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    varint(contents.len() as u64, out);
    out.extend_from_slice(contents);
}

fn put_number(kind: u8, number: i64, out: &mut Vec<u8>) {
    out.push(kind);
    varint(zigzag(number), out);
}

fn put(value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<(), BadData> {
    if depth > MAX_VALUE_DEPTH {
        return Err(BadData::TooDeep);
    }
    let mut contents = Vec::new();
    let value = match value {
        Value::Null => Val::Null,
        Value::Bool(yes) => Val::Bool(*yes),
        Value::Int(number) => Val::Int(*number),
        Value::Float(number) => Val::Float(*number),
        Value::String(text) => Val::Str(text.into()),
        Value::Bytes(bytes) => Val::Bytes(bytes.into()),
        Value::List(items) => {
            for item in items {
                put(item, depth + 1, &mut contents)?;
            }
            Val::List(contents.into())
        }
        Value::Map(entries) => {
            for (name, value) in entries {
                put_name(name, &mut contents);
                put(value, depth + 1, &mut contents)?;
            }
            Val::Map(contents.into())
        }
        Value::Time(micros) => Val::Time(*micros),
        Value::Span(micros) => Val::Span(*micros),
    };
    value.put(out);
    Ok(())
}

pub(crate) fn put_name(name: &str, out: &mut Vec<u8>) {
    varint(name.len() as u64, out);
    out.extend_from_slice(name.as_bytes());
}

fn read_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_varint(bytes)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}

/// The first value of `bytes`, and what follows it.
pub(crate) fn read(bytes: &[u8]) -> Option<(Val<'_>, &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    Some(match *kind {
        NULL => (Val::Null, rest),
        FALSE => (Val::Bool(false), rest),
        TRUE => (Val::Bool(true), rest),
        INT | TIME | SPAN => {
            let (number, rest) = read_varint(rest)?;
            let number = unzigzag(number);
            match *kind {
                INT => (Val::Int(number), rest),
                TIME => (Val::Time(number), rest),
                _ => (Val::Span(number), rest),
            }
        }
        FLOAT => {
            let (number, rest) = rest.split_first_chunk::<8>()?;
            (Val::Float(f64::from_le_bytes(*number)), rest)
        }
        STRING => {
            let (text, rest) = read_counted(rest)?;
            (Val::Str(Cow::Borrowed(std::str::from_utf8(text).ok()?)), rest)
        }
        BYTES | LIST | MAP => {
            let (contents, rest) = read_counted(rest)?;
            let contents = Cow::Borrowed(contents);
            match *kind {
                BYTES => (Val::Bytes(contents), rest),
                LIST => (Val::List(contents), rest),
                _ => (Val::Map(contents), rest),
            }
        }
        _ => return None,
    })
}

/// What follows the first value of `bytes`, without looking into it.
pub(crate) fn skip(bytes: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = bytes.split_first()?;
    match *kind {
        NULL | FALSE | TRUE => Some(rest),
        INT | TIME | SPAN => Some(read_varint(rest)?.1),
        FLOAT => rest.get(8..),
        STRING | BYTES | LIST | MAP => Some(read_counted(rest)?.1),
        _ => None,
    }
}

/// The elements of a list's contents.
pub(crate) fn items(mut contents: &[u8]) -> impl Iterator<Item = Val<'_>> {
    std::iter::from_fn(move || {
        let (value, rest) = read(contents)?;
        contents = rest;
        Some(value)
    })
}

/// The names of a map's contents, each with the bytes that begin with its value.
pub(crate) fn entries(mut contents: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (name, value) = read_counted(contents)?;
        contents = skip(value)?;
        Some((name, value))
    })
}

/// The bytes that begin with the value of `name` in a map's contents.
pub(crate) fn field<'a>(contents: &'a [u8], name: &str) -> Option<&'a [u8]> {
    field_after(contents, name, &mut 0)
}

/// The same; `passed` grows by the number of fields that stand before it.
pub(crate) fn field_after<'a>(contents: &'a [u8], name: &str, passed: &mut usize) -> Option<&'a [u8]> {
    for (found, value) in entries(contents) {
        if found == name.as_bytes() {
            return Some(value);
        }
        *passed += 1;
    }
    None
}

/// The contents of a map that lies at the beginning of `bytes`.
pub(crate) fn map_contents(bytes: &[u8]) -> Option<&[u8]> {
    match bytes.split_first()? {
        (&MAP, rest) => Some(read_counted(rest)?.0),
        _ => None,
    }
}

/// Goes over bytes from outside; returns what follows the first value.
fn check(bytes: &[u8], depth: usize) -> Result<&[u8], BadData> {
    if depth > MAX_VALUE_DEPTH {
        return Err(BadData::TooDeep);
    }
    let (value, rest) = read(bytes).ok_or(BadData::Malformed)?;
    match value {
        Val::Time(_) | Val::Span(_) => return Err(BadData::Malformed),
        Val::List(Cow::Borrowed(mut contents)) => {
            while !contents.is_empty() {
                contents = check(contents, depth + 1)?;
            }
        }
        Val::Map(Cow::Borrowed(mut contents)) => {
            let mut last: Option<&str> = None;
            while !contents.is_empty() {
                let (name, value) = read_counted(contents).ok_or(BadData::Malformed)?;
                let name = std::str::from_utf8(name).map_err(|_| BadData::Malformed)?;
                if last.is_some_and(|last| last >= name) {
                    return Err(BadData::Malformed);
                }
                last = Some(name);
                contents = check(value, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(rest)
}

impl Val<'_> {
    /// Appends the packed form.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Val::Null => out.push(NULL),
            Val::Bool(yes) => out.push(if *yes { TRUE } else { FALSE }),
            Val::Int(number) => put_number(INT, *number, out),
            Val::Float(number) => {
                out.push(FLOAT);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Val::Str(text) => put_counted(STRING, text.as_bytes(), out),
            Val::Bytes(bytes) => put_counted(BYTES, bytes, out),
            Val::List(contents) => put_counted(LIST, contents, out),
            Val::Map(contents) => put_counted(MAP, contents, out),
            Val::Time(micros) => put_number(TIME, *micros, out),
            Val::Span(micros) => put_number(SPAN, *micros, out),
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        match self {
            Val::Null => Value::Null,
            Val::Bool(yes) => Value::Bool(*yes),
            Val::Int(number) => Value::Int(*number),
            Val::Float(number) => Value::Float(*number),
            Val::Str(text) => Value::String(text.to_string()),
            Val::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            Val::List(contents) => Value::List(items(contents).map(|item| item.to_value()).collect()),
            Val::Map(contents) => Value::Map(
                entries(contents)
                    .filter_map(|(name, value)| {
                        Some((String::from_utf8_lossy(name).into_owned(), read(value)?.0.to_value()))
                    })
                    .collect(),
            ),
            Val::Time(micros) => Value::Time(*micros),
            Val::Span(micros) => Value::Span(*micros),
        }
    }

    /// How many bytes an operation on this value may have to look at.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Val::Str(text) => text.len(),
            Val::Bytes(bytes) | Val::List(bytes) | Val::Map(bytes) => bytes.len(),
            _ => 0,
        }
    }
}
