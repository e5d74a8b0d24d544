//! R1: tables that are partitioned by a column.
//!
//! A record is named by the column's value and a key, and stored under both, in this order ([`Key::Within`]): records of one
//! value stand together, two values have room for the same key, and everything that goes by keys — versions, outcomes, bounds,
//! cursors — goes by the pair. The value is a part of the name: every record has the column, and it does not change.

use crate::directory::{Column, Kind, Properties, Schema};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use tidings_predicate::{Key, Kinds, Packed, PartitionValue, Value};

/// R1: a column by whose value records are placed. Every record has it, and for good: it is a part of the record's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionBy {
    /// The column.
    pub column: String,
    /// What it holds.
    pub holds: PartitionKind,
}

/// What a column may hold that a table is partitioned by: what equals nothing but itself, and is always in one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionKind {
    /// A whole number.
    Int,
    /// Text.
    #[default]
    String,
}

impl PartitionKind {
    /// As a schema declares it.
    pub(crate) fn column(self) -> Column {
        let kind = match self {
            PartitionKind::Int => Kind::Int,
            PartitionKind::String => Kind::String,
        };
        Column { holds: [kind].into(), required: true }
    }
}

impl PartitionBy {
    /// Refuses what cannot be such a column.
    pub(crate) fn check(&self, schema: Option<&Schema>) -> Result<(), Refusal> {
        let name = &self.column;
        let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain || tidings_predicate::is_reserved(name) {
            return Err(Refusal::BadColumns(format!("No table can be partitioned by a column `{name}`.")));
        }
        crate::properties::check_length(name)?;
        let declared = schema.and_then(|schema| schema.columns.get(name));
        if declared.is_some_and(|column| column.holds != self.holds.column().holds) {
            return Err(Refusal::Schema(format!(
                "The column `{name}`, which the table is partitioned by, holds {} and nothing else.",
                self.holds.column().kinds()
            )));
        }
        match declared.is_none() && schema.is_some_and(|schema| schema.closed) {
            true => {
                Err(Refusal::Schema(format!("The table has no column `{name}`, by which it is to be partitioned.")))
            }
            false => Ok(()),
        }
    }

    /// A value that somebody names: a number may be written as text.
    fn value(&self, said: &PartitionValue) -> Result<PartitionValue, Refusal> {
        match (self.holds, said) {
            (PartitionKind::String, PartitionValue::String(_)) | (PartitionKind::Int, PartitionValue::Int(_)) => {
                Ok(said.clone())
            }
            (PartitionKind::Int, PartitionValue::String(text)) => {
                text.parse().map(PartitionValue::Int).map_err(|_| self.wrong(Kinds::STRING))
            }
            (PartitionKind::String, PartitionValue::Int(_)) => Err(self.wrong(Kinds::INT)),
        }
    }

    /// The value that a record has.
    fn held(&self, columns: &Packed) -> Result<PartitionValue, Refusal> {
        match (self.holds, crate::record::map(columns).remove(&self.column)) {
            (PartitionKind::String, Some(Value::String(text))) => Ok(PartitionValue::String(text)),
            (PartitionKind::Int, Some(Value::Int(number))) => Ok(PartitionValue::Int(number)),
            (_, Some(other)) => Err(self.wrong(Kinds::of(&other))),
            (_, None) => Err(Refusal::PartitionColumn(format!(
                "The column `{}` is missing, by which the table is partitioned.",
                self.column
            ))),
        }
    }

    fn wrong(&self, found: Kinds) -> Refusal {
        let (column, kinds) = (&self.column, self.holds.column().kinds());
        Refusal::PartitionColumn(format!("The table is partitioned by `{column}`, which holds {kinds}, not {found}."))
    }

    fn moved(&self, from: &PartitionValue, to: &PartitionValue) -> Refusal {
        let short = |value: &PartitionValue| value.to_string().chars().take(80).collect::<String>();
        Refusal::PartitionColumn(format!(
            "The table is partitioned by `{}`: a record within `{}` cannot become one within `{}`; delete it and put it there.",
            self.column,
            short(from),
            short(to)
        ))
    }
}

impl Properties {
    /// R1: the key that a record is stored under. In a table that is partitioned by a column it is within the column's value,
    /// which the key says, or the columns of a whole record that is written.
    pub fn stored(&self, key: Key, columns: Option<&Packed>) -> Result<Key, Refusal> {
        let Some(by) = &self.partition_by else { return unplaced(key) };
        let said = key.partition_value().map(|value| by.value(value)).transpose()?;
        let held = columns.map(|columns| by.held(columns)).transpose()?;
        match (said, held) {
            (Some(said), Some(held)) if said != held => Err(by.moved(&said, &held)),
            (Some(value), _) | (None, Some(value)) => Ok(Key::within(value, key)),
            (None, None) => Err(Refusal::PartitionColumn(format!(
                "The table is partitioned by `{}`: its value names the record together with the key.",
                by.column
            ))),
        }
    }

    /// The same for a bound: a key without a value is the value, and the bound is where it begins.
    pub fn bound(&self, key: Key) -> Result<Key, Refusal> {
        let Some(by) = &self.partition_by else { return unplaced(key) };
        let within = |value: &PartitionValue, own: &Key| Ok(Key::within(by.value(value)?, own.clone()));
        match (&key, key.partition_value()) {
            (_, Some(value)) => within(value, key.own()),
            (Key::String(text), None) => by.value(&PartitionValue::from(text.as_str())).map(Key::first_within),
            (_, None) => Err(by.wrong(Kinds::BYTES)),
        }
    }

    /// A predicate that selects the same records within a value alone.
    pub fn narrowed(&self, predicate: &str, value: &PartitionValue) -> Result<String, Refusal> {
        let Some(by) = &self.partition_by else { return Err(by_none()) };
        let literal = match by.value(value)? {
            PartitionValue::Int(number) => number.to_string(),
            PartitionValue::String(text) => quoted(&text),
        };
        let within = format!("{} == {literal}", by.column);
        Ok(if predicate.trim().is_empty() { within } else { format!("{within} && ({predicate}\n)") })
    }

    /// Where records within a value begin, and where they end; none = with the table.
    pub fn span(&self, value: &PartitionValue) -> Result<(Key, Option<Key>), Refusal> {
        let Some(by) = &self.partition_by else { return Err(by_none()) };
        let value = by.value(value)?;
        let end = value.next().map(Key::first_within);
        Ok((Key::first_within(value), end))
    }

    /// Refuses a record that is not what it is stored under.
    pub(crate) fn check_placed(&self, key: &Key, columns: &Packed) -> Result<(), Refusal> {
        match (&self.partition_by, key.partition_value()) {
            (None, None) => Ok(()),
            (Some(by), Some(value)) => match by.held(columns)? {
                held if held == *value => Ok(()),
                held => Err(by.moved(value, &held)),
            },
            (None, Some(_)) | (Some(_), None) => self.stored(key.clone(), None).map(drop),
        }
    }

    /// Refuses a key that names no record of the table.
    pub(crate) fn check_named(&self, key: &Key) -> Result<(), Refusal> {
        match self.stored(key.clone(), None)? == *key {
            true => Ok(()),
            false => Err(Refusal::BadKey),
        }
    }
}

fn unplaced(key: Key) -> Result<Key, Refusal> {
    match key.partition_value() {
        None => Ok(key),
        Some(_) => Err(by_none()),
    }
}

fn by_none() -> Refusal {
    Refusal::PartitionColumn("The table is partitioned by no column: nothing in it is within a value.".to_owned())
}

/// A text as predicates write it.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\U{:08x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_predicate::{Functions, Predicate, Scope};

    fn by(holds: PartitionKind) -> Properties {
        Properties { partition_by: Some(PartitionBy { column: "city".to_owned(), holds }), ..Properties::default() }
    }

    fn columns(value: impl Into<Value>) -> Packed {
        Packed::columns([("city", value.into()), ("n", Value::Int(1))]).unwrap()
    }

    fn why<T: std::fmt::Debug>(refused: Result<T, Refusal>) -> String {
        match refused {
            Err(Refusal::PartitionColumn(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_is_stored_under_the_value_of_its_column_and_its_key() {
        let table = by(PartitionKind::String);
        let stored = Key::within("Rome", "ann");
        let rome = columns("Rome");
        for key in [Key::from("ann"), stored.clone()] {
            assert_eq!(table.stored(key, Some(&rome)), Ok(stored.clone()));
        }
        assert_eq!(table.stored(stored.clone(), None), Ok(stored.clone()));
        assert_eq!(table.check_placed(&stored, &rome), Ok(()));
        assert!(why(table.stored("ann".into(), None)).contains("`city`"));
        assert!(why(table.stored(stored.clone(), Some(&columns("Paris")))).contains("cannot become"));
        assert!(why(table.check_placed(&stored, &columns("Paris"))).contains("`Paris`"));
        assert!(why(table.check_placed(&"ann".into(), &rome)).contains("partitioned by `city`"));
        let missing = Packed::columns([("n", Value::Int(1))]).unwrap();
        assert!(why(table.stored("ann".into(), Some(&missing))).contains("missing"));
        for wrong in [Value::Null, Value::Int(1), Value::Float(f64::NAN), Value::Bytes(vec![1]), Value::Bool(true)] {
            assert!(why(table.stored("ann".into(), Some(&columns(wrong)))).contains("holds string, not"));
        }
        // Elsewhere a key is within nothing.
        assert!(why(Properties::default().stored(stored.clone(), None)).contains("no column"));
        assert!(why(Properties::default().check_placed(&stored, &rome)).contains("no column"));
    }

    #[test]
    fn numbers_may_be_named_by_text_and_a_bound_is_where_a_value_begins() {
        let table = by(PartitionKind::Int);
        let stored = Key::within(-7, "ann");
        assert_eq!(table.stored(Key::within("-7", "ann"), Some(&columns(-7))), Ok(stored.clone()));
        assert_eq!(table.check_named(&stored), Ok(()));
        assert_eq!(table.check_named(&Key::within("-7", "ann")), Err(Refusal::BadKey));
        assert!(why(table.stored(Key::within("x", "ann"), None)).contains("holds int, not string"));
        assert!(why(table.stored("ann".into(), Some(&columns(Value::Float(-7.0))))).contains("holds int, not"));
        assert_eq!(table.bound("-7".into()), Ok(Key::first_within(-7)));
        assert_eq!(table.bound(stored.clone()), Ok(stored));
        assert!(table.bound(Key::from(&[1][..])).is_err() && table.bound("x".into()).is_err());
        assert_eq!(Properties::default().bound("x".into()), Ok("x".into()));
    }

    #[test]
    fn what_is_within_a_value_is_selected_whatever_the_value_is() {
        let table = by(PartitionKind::String);
        for text in ["Rome", "", "a\"b\\n", "\u{0}\u{7f}\n", "é\u{2028}"] {
            let narrowed = table.narrowed("n == 1 // ours", &text.into()).unwrap();
            let predicate = Predicate::compile(&narrowed, &table.dialect()).unwrap();
            let holds = |value: &str| predicate.holds(&Scope::record(&"k".into(), &columns(value)));
            assert!(holds(text) && !holds("Paris"), "{narrowed}");
            let (from, before) = table.span(&text.into()).unwrap();
            assert!(from < Key::within(text, "a") && Key::within(text, "z") < before.unwrap());
        }
        assert_eq!(by(PartitionKind::Int).narrowed("", &"-3".into()), Ok("city == -3".to_owned()));
        assert_eq!(by(PartitionKind::Int).span(&i64::MAX.into()), Ok((Key::first_within(i64::MAX), None)));
        assert!(why(Properties::default().span(&"x".into())).contains("no column"));
    }

    #[test]
    fn a_table_is_partitioned_by_a_column_that_every_record_can_have() {
        let schema = |holds: &[Kind], closed| {
            let column = Column { holds: holds.iter().copied().collect(), required: false };
            Schema { columns: [("city".to_owned(), column)].into(), closed }
        };
        let with = |schema| Properties { schema: Some(schema), ..by(PartitionKind::String) };
        assert_eq!(with(schema(&[Kind::String], true)).check(&Functions::default()), Ok(()));
        assert!(matches!(
            with(schema(&[Kind::String, Kind::Int], false)).check(&Functions::default()),
            Err(Refusal::Schema(_))
        ));
        assert!(matches!(
            with(Schema { closed: true, ..Schema::default() }).check(&Functions::default()),
            Err(Refusal::Schema(_))
        ));
        for name in ["", "key", "this", "a b", "3a", "é"] {
            let by = PartitionBy { column: name.to_owned(), holds: PartitionKind::Int };
            let properties = Properties { partition_by: Some(by), ..Properties::default() };
            assert!(matches!(properties.check(&Functions::default()), Err(Refusal::BadColumns(_))), "{name}");
        }
    }
}
