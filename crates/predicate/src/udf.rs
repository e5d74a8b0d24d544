//! Functions that a program adds to the language.

use crate::eval::Fault;
use crate::kinds::Kinds;
use crate::value::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The names that the language itself gives to functions.
pub(crate) const BUILTINS: [&str; 10] =
    ["has", "size", "startsWith", "endsWith", "contains", "matches", "timestamp", "duration", "distance", "now"];

/// What a function does with its values.
pub type Body = dyn Fn(&[Value]) -> Result<Value, Fault> + Send + Sync;

/// A function that a program registers under a name.
pub struct Udf {
    /// The name it is called by.
    pub name: String,
    /// The kinds of values it takes, in order.
    pub takes: Vec<Kinds>,
    /// The kinds of values it gives.
    pub gives: Kinds,
    /// Whether the same values always give the same result. Live predicates take only such functions (R9).
    pub pure: bool,
    /// How many steps of an evaluation's budget one call takes.
    pub steps: u32,
    /// What it does with values of the kinds it takes. It must not wait, and must come to an end; where it panics, or gives
    /// something else than it says, there is a fault instead of a value.
    pub body: Box<Body>,
}

impl Udf {
    /// Calls it.
    pub(crate) fn call(&self, values: &[Value]) -> Result<Value, Fault> {
        let fits = |(value, takes): (&Value, &Kinds)| Kinds::of(value).meets(*takes);
        if values.len() != self.takes.len() || !values.iter().zip(&self.takes).all(fits) {
            return Err(Fault::WrongKind);
        }
        let body = AssertUnwindSafe(|| (self.body)(values));
        let result = catch_unwind(body).unwrap_or(Err(Fault::Function))?;
        if Kinds::of(&result).meets(self.gives) { Ok(result) } else { Err(Fault::Function) }
    }
}

impl fmt::Debug for Udf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?}) -> {:?}", self.name, self.takes, self.gives)
    }
}

/// The functions that are registered. One name means one function for as long as the program runs.
#[derive(Clone, Debug, Default)]
pub struct Functions(BTreeMap<String, Arc<Udf>>);

/// Why a function cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadFunction {
    /// Predicates could not call it by this name.
    Name(String),
    /// There is one of this name already.
    Taken(String),
}

impl fmt::Display for BadFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadFunction::Name(name) => write!(f, "`{name}` is not a name: letters, digits and `_`, not first a digit"),
            BadFunction::Taken(name) => write!(f, "there is a function `{name}` already"),
        }
    }
}

impl std::error::Error for BadFunction {}

impl Functions {
    /// Registers a function.
    pub fn register(&mut self, udf: Udf) -> Result<(), BadFunction> {
        let name = udf.name.clone();
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain || name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(BadFunction::Name(name));
        }
        if BUILTINS.contains(&name.as_str()) || self.0.contains_key(&name) {
            return Err(BadFunction::Taken(name));
        }
        self.0.insert(name, Arc::new(udf));
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Udf>> {
        self.0.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
