//! Predicates of Tables: one language for readers and writers, and an index that matches records against a million of
//! them (the Mobius row, §3, §7.4).
//!
//! ```text
//!   text ─▶ lexer ─▶ parser ─▶ kinds ─▶ template ─▶ Predicate ── holds(scope)? ──▶ true, false, or a fault
//!                                          │                                          (a fault does not match)
//!                                        access: what must be true of a record, or of a reader
//!                                          │
//!   record and its writer predicate ─▶ index ─▶ subscriptions whose predicate holds, and to whom the record shows itself
//! ```
//! - [`Predicate`]: a subset of CEL with R12's meaning, evaluated within a budget of steps over a [`Scope`].
//! - [`index`]: subscriptions, found by the fields of a record; readers, found by a writer's predicate.
//! - [`query`]: what a read does with the records that match: project, order, limit, aggregate, look up.
//! - [`mix`]: what the index is measured with.
//! - [`json`]: how values are written for people and other languages.
//! - [`Packed`]: how records, reader data and constants lie in memory.
//!
//! It touches no clock, file or socket: time is part of the scope, and who is shown what is decided here only as far as
//! the two predicates decide it. What it deliberately does not do: store anything, know tables, deliver events.

mod access;
mod ast;
mod clock;
mod compare;
mod dialect;
mod eval;
pub mod index;
pub mod json;
mod kinds;
mod lexer;
pub mod mix;
mod packed;
mod parser;
mod pattern;
mod place;
mod predicate;
pub mod query;
mod refusal;
mod template;
mod udf;
mod value;

#[cfg(test)]
mod tests;

pub use dialect::Dialect;
pub use eval::{Fault, Meter, STEPS, Scope, TooSlow};
pub use kinds::Kinds;
pub use packed::{BadData, MAX_VALUE_DEPTH, Packed};
pub use parser::{MAX_DEPTH, MAX_TEXT};
pub use predicate::{Expression, Predicate};
pub use refusal::{Place, Refusal, Wrong};
pub use udf::{BadFunction, Body, Functions, Udf};
pub use value::{Key, PartitionValue, Value, Within, is_reserved};
