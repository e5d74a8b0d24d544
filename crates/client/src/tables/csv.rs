//! Records as lines of comma-separated values: the key, then one column after the other (RFC 4180).
//!
//! A field is JSON if it is quoted so or begins like it (`3`, `true`, `[…]`, `{…}`, `"…"`), otherwise text; an empty field is
//! no value at all.

use super::form::{Columns, Line};
use std::collections::BTreeSet;
use tidings_base::{Class, Error};
use tidings_predicate::json::{self, Form};
use tidings_predicate::{Key, Value};

/// The heading of the key's field.
pub const KEY: &str = "key";

/// Lines with these columns, in order.
pub struct Writer {
    columns: Vec<String>,
}

impl Writer {
    /// Lines with these columns.
    pub fn new(columns: impl IntoIterator<Item = String>) -> Writer {
        let columns: BTreeSet<String> = columns.into_iter().collect();
        Writer { columns: columns.into_iter().collect() }
    }

    /// The first line.
    pub fn heading(&self) -> String {
        let names = std::iter::once(KEY).chain(self.columns.iter().map(String::as_str));
        line(names.map(field))
    }

    /// The line of a record; its columns that the heading does not name are left out.
    pub fn record(&self, key: &Key, columns: &Columns) -> String {
        // The value that it may be within is a column.
        let key = match key.own() {
            Key::String(text) => shown(&Value::String(text.clone())),
            Key::Bytes(bytes) => shown(&Value::Bytes(bytes.clone())),
            Key::Within(_) => String::new(),
        };
        let values = self.columns.iter().map(|name| columns.get(name).map_or(String::new(), shown));
        line(std::iter::once(key).chain(values).map(|text| field(&text)))
    }
}

/// A value's text before it is quoted: text as it is unless it could be taken for something else.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        value => json::write(value, Form::Exact).to_string(),
    }
}

/// Whether a text is read as itself.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && serde_json::from_str::<serde_json::Value>(text).is_err()
}

fn value(text: &str) -> Result<Option<Value>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(text) {
        Ok(read) => json::read(&read).map(Some).map_err(super::form::bad_json),
        Err(_) => Ok(Some(Value::from(text))),
    }
}

fn line(fields: impl Iterator<Item = String>) -> String {
    let mut line = fields.collect::<Vec<_>>().join(",");
    line.push_str("\r\n");
    line
}

fn field(text: &str) -> String {
    match text.contains([',', '"', '\r', '\n']) || text.starts_with(' ') || text.ends_with(' ') {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Reads lines, each with its number.
pub fn read(text: &str) -> Result<Vec<(usize, Line)>, Error> {
    // Spreadsheets mark their UTF-8 by an invisible character.
    let mut lines = fields(text.strip_prefix('\u{feff}').unwrap_or(text))?.into_iter();
    let Some(heading) = lines.next() else { return Ok(Vec::new()) };
    let at = heading.iter().position(|name| name == KEY).ok_or_else(|| bad(1, "the heading names no `key`"))?;
    let mut names = BTreeSet::new();
    if let Some(twice) = heading.iter().find(|name| !names.insert(*name)) {
        return Err(bad(1, format!("the heading names `{twice}` twice")));
    }
    let record = |(number, line): (usize, Vec<String>)| {
        if line.len() != heading.len() {
            return Err(bad(number, format!("it has {} fields, and the heading {}", line.len(), heading.len())));
        }
        let value = |text: &str| value(text).map_err(|error| bad(number, error.message));
        let key = match value(&line[at])? {
            Some(Value::String(text)) => Key::String(text),
            Some(Value::Bytes(bytes)) => Key::Bytes(bytes),
            Some(_) => Key::String(line[at].clone()),
            None => return Err(bad(number, "it has no key")),
        };
        let mut columns = Columns::new();
        for (name, text) in heading.iter().zip(&line).filter(|(name, _)| *name != KEY) {
            if let Some(value) = value(text)? {
                columns.insert(name.clone(), value);
            }
        }
        Ok((number, Line::from((key, columns))))
    };
    (2..).zip(lines).map(record).collect()
}

/// The fields of all lines, unquoted.
fn fields(text: &str) -> Result<Vec<Vec<String>>, Error> {
    let (mut lines, mut line, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if field.is_empty() => quoted = true,
            ',' if !quoted => line.push(std::mem::take(&mut field)),
            '\r' if !quoted && chars.peek() == Some(&'\n') => {}
            '\n' if !quoted => {
                line.push(std::mem::take(&mut field));
                if line.iter().any(|field| !field.is_empty()) {
                    lines.push(std::mem::take(&mut line));
                }
                line.clear();
            }
            c => field.push(c),
        }
    }
    if quoted {
        return Err(bad(lines.len() + 1, "a quotation mark is not closed"));
    }
    if !field.is_empty() || !line.is_empty() {
        line.push(field);
        lines.push(line);
    }
    Ok(lines)
}

fn bad(line: usize, why: impl std::fmt::Display) -> Error {
    Error::new("tables.bad_csv", Class::Invalid, format!("line {line} cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let values = [
            ("int", Value::Int(i64::MAX)),
            ("text", Value::from("a,\"b\"\nc")),
            ("number", Value::from("3")),
            ("blank", Value::from("")),
            ("null", Value::Null),
            ("list", Value::from(vec![1_i64, 2])),
            ("float", Value::Float(2.0)),
            ("spaces", Value::from(" \u{a0}")),
            ("tab", Value::from("\t")),
        ];
        let columns: Columns = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let writer = Writer::new(columns.keys().cloned());
        for key in [Key::from("k"), Key::from("3"), Key::Bytes(vec![0, 255])] {
            let text = writer.heading() + &writer.record(&key, &columns);
            let expected = [(2, Line::from((key, columns.clone())))];
            assert_eq!(read(&text).unwrap(), expected, "{text}");
            assert_eq!(read(&format!("\u{feff}{text}")).unwrap(), expected, "as spreadsheets write it");
        }
        let fewer = Columns::from([("int".to_owned(), Value::Int(1))]);
        let text = writer.heading() + &writer.record(&Key::from("k"), &fewer);
        assert_eq!(read(&text).unwrap(), [(2, Line::from((Key::from("k"), fewer)))]);
    }

    #[test]
    fn bad_lines_are_named() {
        for (bad, line) in [
            ("a,b\n1,2\n", 1),
            ("key,a,a\nx,1,2\n", 1),
            ("key,key\nx,y\n", 1),
            ("key,b\nx\n", 2),
            ("key\n\"x\n", 2),
            ("key,b\nx,1\n,1\n", 3),
            ("key,b\nx,9223372036854775808\n", 2),
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.code, "tables.bad_csv", "{bad:?}");
            assert!(error.message.starts_with(&format!("line {line} ")), "{bad:?}: {}", error.message);
        }
        assert_eq!(read("").unwrap(), []);
        let x = Columns::from([("a".to_owned(), Value::from("x"))]);
        assert_eq!(read("key,a\n7,x").unwrap(), [(2, Line::from((Key::from("7"), x)))]);
    }
}
