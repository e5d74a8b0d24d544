//! What a table is, apart from its records and partitions: who may use it, what columns hold, how much there may be.

use crate::calls::Access;
use crate::partitioned::PartitionBy;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_predicate::{Dialect, Functions, Kinds, Predicate, Wrong};

/// The most columns of a schema.
pub const MAX_SCHEMA: usize = 512;
/// The longest name of a column that is declared, or that a table is partitioned by, in bytes.
pub const MAX_COLUMN: usize = 256;
/// What a rule for writers sees besides `key` and `user`.
const SEEN: [&str; 3] = ["old", "new", "writer"];

/// What a table is, apart from its records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Properties {
    /// Who may use it: whoever is authorised at this level or higher.
    pub access: Access,
    /// The application that made it: only it may alter or drop it. Set by [`Directory::create`](crate::directory::Directory::create).
    pub app: String,
    /// What columns hold; none = anything.
    pub schema: Option<Schema>,
    /// R1: the column by whose value records are placed; for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<PartitionBy>,
    /// A predicate over `old`, `new` (columns, or null), `writer` (of the old record as that names it, `user:shop/ann` or `shop`, or
    /// null), `key` and `user.` that guards every change. None: in tables of the level `user` only a record's writer may replace it.
    pub may_write: Option<String>,
    /// R11: whether clients may leave writes unsent.
    pub lossy: bool,
    /// The most records.
    pub max_records: Option<u64>,
    /// The most bytes of records.
    pub max_bytes: Option<u64>,
    /// How long a deleted record's version is kept, in seconds.
    pub tombstones_s: u64,
}

impl Default for Properties {
    fn default() -> Properties {
        Properties {
            access: Access::default(),
            app: String::new(),
            schema: None,
            partition_by: None,
            may_write: None,
            lossy: false,
            max_records: None,
            max_bytes: None,
            // A device that was away for a day still learns which version ended.
            tombstones_s: 24 * 3600,
        }
    }
}

impl Properties {
    /// How long a deleted record's version is kept.
    pub fn tombstones(&self) -> Duration {
        Duration::from_secs(self.tombstones_s)
    }

    /// What texts over this table's records may name: any column, since records that were there before may have what a schema does
    /// not declare, and live queries ask for it.
    pub fn dialect(&self) -> Dialect {
        let columns = self.schema.iter().flat_map(|schema| &schema.columns);
        let columns = columns.map(|(name, column)| (name.clone(), column.kinds()));
        let by = self.partition_by.iter().map(|by| (by.column.clone(), by.holds.column().kinds()));
        Dialect { columns: columns.chain(by).collect(), ..Dialect::default() }
    }

    /// What new texts may name: of a closed table no column that it does not have.
    pub fn strict_dialect(&self) -> Dialect {
        let closed = self.schema.as_ref().is_some_and(|schema| schema.closed);
        Dialect { closed, ..self.dialect() }
    }

    /// What guards its writes, if anything does: it may call functions that are pure, where whoever decides knows them.
    pub fn guard(&self, functions: &Functions) -> Result<Option<Predicate>, Refusal> {
        let Some(text) = &self.may_write else { return Ok(None) };
        let columns = SEEN.map(|name| (name.to_owned(), Kinds::DATA)).into();
        let dialect = Dialect { functions: functions.clone(), columns, closed: true, ..Dialect::default() };
        let guard = Predicate::compile(text, &dialect).map_err(|mut refusal| {
            if refusal.wrong == Wrong::Name {
                refusal.message +=
                    "; a rule for writers sees `old`, `new` (columns stand as `new.price`), `writer`, `key` and `user`";
            }
            refusal
        })?;
        guard.check_pure()?;
        Ok(Some(guard))
    }

    /// Refuses what cannot be a table's properties.
    pub fn check(&self, functions: &Functions) -> Result<(), Refusal> {
        self.guard(functions)?;
        if let Some(by) = &self.partition_by {
            by.check(self.schema.as_ref())?;
        }
        let Some(schema) = &self.schema else { return Ok(()) };
        if schema.columns.len() > MAX_SCHEMA {
            return Err(Refusal::Schema(format!("A schema has at most {MAX_SCHEMA} columns.")));
        }
        for (name, column) in &schema.columns {
            if tidings_predicate::is_reserved(name) || name.is_empty() {
                return Err(Refusal::BadColumns(format!("No column can have the name `{name}`.")));
            }
            check_length(name)?;
            if column.holds.is_empty() {
                return Err(Refusal::Schema(format!("The column `{name}` could hold nothing.")));
            }
        }
        Ok(())
    }
}

/// Refuses a name that is longer than its table's directory takes.
pub(crate) fn check_length(name: &str) -> Result<(), Refusal> {
    if name.len() <= MAX_COLUMN {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    Err(Refusal::BadColumns(format!(
        "The name of a declared column has at most {MAX_COLUMN} bytes, and `{shown}…` more."
    )))
}

/// What columns hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schema {
    /// Columns by name.
    pub columns: BTreeMap<String, Column>,
    /// Whether there may be no other columns.
    pub closed: bool,
}

/// One column of a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Column {
    /// What it may hold.
    pub holds: BTreeSet<Kind>,
    /// Whether every record has it.
    pub required: bool,
}

/// A kind of value, as a schema names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Null.
    Null,
    /// True or false.
    Bool,
    /// A whole number.
    Int,
    /// A number with a fraction.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// Values in order.
    List,
    /// Values by name.
    Map,
}

impl Column {
    /// What it may hold, as predicates are checked against it.
    pub fn kinds(&self) -> Kinds {
        let kind = |kind: &Kind| match kind {
            Kind::Null => Kinds::NULL,
            Kind::Bool => Kinds::BOOL,
            Kind::Int => Kinds::INT,
            Kind::Double => Kinds::FLOAT,
            Kind::String => Kinds::STRING,
            Kind::Bytes => Kinds::BYTES,
            Kind::List => Kinds::LIST,
            Kind::Map => Kinds::MAP,
        };
        self.holds.iter().map(kind).reduce(|left, right| left | right).unwrap_or(Kinds::DATA)
    }
}
