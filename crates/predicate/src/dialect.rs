//! What a text may name besides columns, and what is known about them.

use crate::kinds::Kinds;
use crate::udf::Functions;
use std::collections::BTreeMap;

/// What is known where a text is compiled.
#[derive(Clone, Debug, Default)]
pub struct Dialect {
    /// The functions that are registered.
    pub functions: Functions,
    /// The kinds of columns that the table's schema declares; others may hold anything.
    pub columns: BTreeMap<String, Kinds>,
    /// Whether there are no others: a text that names one is wrong.
    pub closed: bool,
    /// The name by which a query's expressions see the record that was looked up in another table.
    pub joined: Option<String>,
}
