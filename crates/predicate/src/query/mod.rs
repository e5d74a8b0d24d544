//! What a read does with the records it may see, next to the data: project, order, limit, aggregate, look up.
//!
//! ```text
//!   Ask ─▶ Query ── selects(record)? ─▶ Collector ── add ─▶ rows or groups ── absorb those of other partitions ─▶ finish
//!                     │ lookup_key ─▶ the driver reads the other table ─▶ scope.joined_with(…)
//! ```
//! A [`Query`] holds no data and a [`Collector`] only what the answer needs: the best `limit` rows, or one tally for each
//! group. Answers do not depend on the order in which records come, apart from the last digits of sums of floats.
//! Only records that both predicates let through may reach a collector: its faults and counts tell of what it has seen.

mod groups;
mod rows;

use crate::compare::{sortable, sorted};
use crate::dialect::Dialect;
use crate::eval::{Fault, STEPS, Scope, TooSlow};
use crate::kinds::Kinds;
use crate::packed::{self, Packed, Val};
use crate::predicate::{Expression, Predicate};
use crate::refusal::{Refusal, Wrong};
use crate::value::{Key, Value};
use groups::Groups;
use rows::Rows;
use std::cmp::Ordering;
use std::fmt;

/// Columns, orders, groups and aggregates of one query, each.
pub const MAX_PARTS: usize = 64;
/// Rows that are held to be ordered, and groups, of one query.
pub const MAX_HELD: usize = 100_000;
/// Bytes of rows or groups that are held until the answer is complete.
pub const MAX_HELD_BYTES: usize = 64 << 20;

/// What is asked, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Which records; all that are visible, if empty.
    pub predicate: String,
    /// A record of another table for each of these.
    pub lookup: Option<AskLookup>,
    /// Names of columns and what they hold; the whole record, if there are none.
    pub project: Vec<(String, String)>,
    /// What comes first: expressions, each with its direction. Records that are equal in all of them come by key.
    pub order: Vec<(String, Direction)>,
    /// How many rows at most.
    pub limit: Option<usize>,
    /// Names and expressions that make a group.
    pub group_by: Vec<(String, String)>,
    /// Names of results, and what is aggregated how. With any, rows are groups.
    pub aggregates: Vec<(String, Aggregate, String)>,
}

/// A look-up by key in another table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskLookup {
    /// The other table.
    pub table: String,
    /// The key there, from a record here.
    pub key: String,
    /// The name by which other expressions see what was found; not one of the language's own.
    pub name: String,
}

/// Which of two comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The smaller.
    Ascending,
    /// The larger.
    Descending,
}

/// How values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// How many records have a value that is not null; without an expression, how many there are.
    Count,
    /// The sum of numbers: exact if all are whole.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean of numbers; null of none.
    Avg,
}

/// Why a query cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// An expression has no value for a record.
    Fault(Fault),
    /// There are more rows to order, or groups, than are held.
    TooMany,
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        Trouble::Fault(fault)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Fault(fault) => write!(f, "a projection, order, group or aggregate has no value: {fault}"),
            Trouble::TooMany => {
                let mib = MAX_HELD_BYTES >> 20;
                write!(
                    f,
                    "more than {MAX_HELD} rows or groups, or {mib} MiB of them, would have to be held: add a limit"
                )
            }
        }
    }
}

impl std::error::Error for Trouble {}

/// A row of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The record's key; none for a group.
    pub key: Option<Key>,
    /// Names and values.
    pub columns: Packed,
}

/// A query that is compiled.
#[derive(Clone, Debug)]
pub struct Query {
    predicate: Option<Predicate>,
    lookup: Option<(String, Expression)>,
    project: Vec<(String, Expression)>,
    order: Vec<(Expression, Direction)>,
    limit: Option<usize>,
    group_by: Vec<(String, Expression)>,
    aggregates: Vec<(String, Aggregate, Option<Expression>)>,
}

impl Query {
    /// Compiles what is asked.
    pub fn compile(ask: &Ask, dialect: &Dialect) -> Result<Query, Refusal> {
        let refuse = |message: &str| Err(Refusal::new(Wrong::Name, message));
        for parts in [ask.project.len(), ask.order.len(), ask.group_by.len(), ask.aggregates.len()] {
            if parts > MAX_PARTS {
                let message = format!("a query has at most {MAX_PARTS} columns, orders, groups and aggregates each");
                return Err(Refusal::new(Wrong::TooLarge, message));
            }
        }
        let grouped = !ask.aggregates.is_empty() || !ask.group_by.is_empty();
        if grouped && !(ask.project.is_empty() && ask.order.is_empty()) {
            return refuse("groups have their own columns and come in the order of their names and values");
        }
        let names = ask.project.iter().chain(&ask.group_by).map(|(name, _)| name);
        let mut names: Vec<&String> = names.chain(ask.aggregates.iter().map(|(name, ..)| name)).collect();
        names.sort_unstable();
        if names.windows(2).any(|two| two[0] == two[1]) {
            return refuse("two columns of the answer have one name");
        }
        // What finds the other record cannot depend on it, nor can which records are read.
        let plain = Dialect { joined: None, ..dialect.clone() };
        let joined = Dialect { joined: ask.lookup.as_ref().map(|lookup| lookup.name.clone()), ..plain.clone() };
        let named = |parts: &[(String, String)]| {
            let compiled = |(name, text): &(String, String)| Ok((name.clone(), Expression::compile(text, &joined)?));
            parts.iter().map(compiled).collect::<Result<Vec<_>, Refusal>>()
        };
        Ok(Query {
            predicate: match ask.predicate.trim() {
                "" => None,
                text => Some(Predicate::compile(text, &plain)?),
            },
            lookup: match &ask.lookup {
                None => None,
                Some(lookup) => Some((lookup.table.clone(), lookup_key(lookup, &plain)?)),
            },
            project: named(&ask.project)?,
            order: ask
                .order
                .iter()
                .map(|(text, direction)| Ok((Expression::compile(text, &joined)?, *direction)))
                .collect::<Result<_, Refusal>>()?,
            limit: ask.limit,
            group_by: named(&ask.group_by)?,
            aggregates: ask
                .aggregates
                .iter()
                .map(|(name, aggregate, text)| Ok((name.clone(), *aggregate, aggregated(*aggregate, text, &joined)?)))
                .collect::<Result<_, Refusal>>()?,
        })
    }

    /// R9: as a live query it is read again when something changes, which needs a predicate that can be watched and no
    /// other table.
    pub fn check_live(&self) -> Result<(), Refusal> {
        if self.lookup.is_some() {
            return Err(Refusal::new(Wrong::NotLive, "a live query cannot look into another table"));
        }
        let parts = self.project.iter().map(|(_, part)| part).chain(self.order.iter().map(|(part, _)| part));
        let parts = parts.chain(self.group_by.iter().map(|(_, part)| part));
        let parts = parts.chain(self.aggregates.iter().filter_map(|(_, _, part)| part.as_ref()));
        parts.chain(self.predicate.iter().map(|predicate| &predicate.0)).try_for_each(Expression::check_live)
    }

    /// Which records are asked for; all that are visible, if there is none.
    pub fn predicate(&self) -> Option<&Predicate> {
        self.predicate.as_ref()
    }

    /// The same, for an index that [shares](crate::index::Index::intern) it.
    pub fn predicate_mut(&mut self) -> Option<&mut Predicate> {
        self.predicate.as_mut()
    }

    /// Whether rows of the answer are groups.
    pub fn is_grouped(&self) -> bool {
        !self.aggregates.is_empty() || !self.group_by.is_empty()
    }

    /// Whether each record makes its row by itself, in the order of keys: nothing has to be held until the end.
    pub fn is_streamed(&self) -> bool {
        self.order.is_empty() && !self.is_grouped()
    }

    /// R9: whether a live query is told of single records, which are whole; otherwise its rows are read again once some may have
    /// changed.
    pub fn is_live_by_records(&self) -> bool {
        self.is_streamed() && self.limit.is_none() && self.project.is_empty()
    }

    /// How many rows at most.
    pub fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// Whether a record belongs to the answer: the reader's predicate holds, and the writer's if the record has one.
    pub fn selects(&self, scope: &Scope<'_>, writer: Option<&Predicate>) -> Result<bool, TooSlow> {
        // The writer's predicate comes first: the reader's is not even evaluated over what is hidden.
        if writer.is_some_and(|writer| !writer.holds(scope)) {
            return Ok(false);
        }
        self.predicate.as_ref().map_or(Ok(true), |own| own.holds_in_time(scope))
    }

    /// The table and the key that have to be looked up for a record; none if the record names none. What is found joins
    /// the scope only if its own writer shows it to this reader.
    pub fn lookup_key(&self, scope: &Scope<'_>) -> Result<Option<(&str, Key)>, TooSlow> {
        let Some((table, key)) = &self.lookup else { return Ok(None) };
        Ok(match key.value(scope, &mut STEPS.clone()) {
            Ok(Value::String(text)) => Some((table, Key::String(text))),
            Ok(Value::Bytes(bytes)) => Some((table, Key::Bytes(bytes))),
            Err(Fault::TooSlow) => return Err(TooSlow),
            Ok(_) | Err(_) => None,
        })
    }
}

fn lookup_key(lookup: &AskLookup, dialect: &Dialect) -> Result<Expression, Refusal> {
    let name = lookup.name.as_str();
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
    if !plain || crate::value::is_reserved(name) {
        return Err(Refusal::new(Wrong::Name, format!("`{name}` cannot name the record that is looked up")));
    }
    let key = Expression::compile(&lookup.key, dialect)?;
    if key.kinds().meets(Kinds::STRING | Kinds::BYTES) {
        return Ok(key);
    }
    Err(Refusal::new(Wrong::Type, "a key is a string or bytes").at(&lookup.key, 0))
}

fn aggregated(aggregate: Aggregate, text: &str, dialect: &Dialect) -> Result<Option<Expression>, Refusal> {
    if text.trim().is_empty() {
        return match aggregate {
            Aggregate::Count => Ok(None),
            _ => Err(Refusal::new(Wrong::Type, "only a count needs no expression")),
        };
    }
    let expression = Expression::compile(text, dialect)?;
    let numbers = matches!(aggregate, Aggregate::Sum | Aggregate::Avg);
    if numbers && !expression.kinds().meets(Kinds::NUMBER | Kinds::NULL) {
        let message = format!("numbers are added, and this is {}", expression.kinds());
        return Err(Refusal::new(Wrong::Type, message).at(text, 0));
    }
    Ok(Some(expression))
}

/// A value for a sort column or a group: null where there is none, refused where there is no order. All parts of a query share
/// the steps that one evaluation has.
fn placed(expression: &Expression, scope: &Scope<'_>, steps: &mut u32) -> Result<Box<[u8]>, Trouble> {
    let value = match expression.val(scope, steps) {
        Err(Fault::Missing) => Val::Null,
        other => other?,
    };
    sortable(&value)?;
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    Ok(bytes.into())
}

/// Compares values that [`placed`] gave.
fn by_place(left: &[u8], right: &[u8]) -> Ordering {
    let value = |bytes| packed::read(bytes).map_or(Val::Null, |(value, _)| value);
    sorted(&value(left), &value(right))
}

/// The answer of a query, as far as its records have come.
#[derive(Debug)]
pub struct Collector {
    query: Query,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Rows(Rows),
    Groups(Groups),
}

impl Collector {
    /// An answer without records.
    pub fn new(query: &Query) -> Collector {
        let held = if query.is_grouped() { Held::Groups(Groups::new(query)) } else { Held::Rows(Rows::default()) };
        Collector { query: query.clone(), held }
    }

    /// Whether further records of a scan, which come in the order of their keys, cannot change the answer: it has no order
    /// of its own, and all the rows it may have.
    pub fn is_full(&self) -> bool {
        match &self.held {
            Held::Rows(rows) => {
                self.query.order.is_empty() && self.query.limit.is_some_and(|limit| rows.len() >= limit)
            }
            Held::Groups(_) => false,
        }
    }

    /// Adds a record that [`Query::selects`] let through, with what was looked up for it.
    pub fn add(&mut self, scope: &Scope<'_>) -> Result<(), Trouble> {
        match &mut self.held {
            Held::Rows(rows) => rows.add(&self.query, scope),
            Held::Groups(groups) => groups.add(&self.query, scope),
        }
    }

    /// Takes in the answer of the same query over other records: those of another partition.
    pub fn absorb(&mut self, other: Collector) -> Result<(), Trouble> {
        match (&mut self.held, other.held) {
            (Held::Rows(rows), Held::Rows(other)) => rows.absorb(&self.query, other),
            (Held::Groups(groups), Held::Groups(other)) => groups.absorb(other),
            (Held::Rows(_), Held::Groups(_)) | (Held::Groups(_), Held::Rows(_)) => Ok(()),
        }
    }

    /// The rows, in order.
    pub fn finish(self) -> Result<Vec<Row>, Trouble> {
        let mut rows = match self.held {
            Held::Rows(rows) => rows.finish(&self.query),
            Held::Groups(groups) => groups.finish(&self.query)?,
        };
        rows.truncate(self.query.limit.unwrap_or(usize::MAX));
        Ok(rows)
    }
}

#[cfg(test)]
mod tests;
