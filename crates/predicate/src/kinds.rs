//! Sets of kinds of values, and the check that a text can be evaluated at all.
//!
//! Columns come and go and change their kind, so most of what a text names may be anything; what is known are literals,
//! results of functions and operators, and a schema if the table has one. A text is refused only if some part of it would
//! fail for every record.

use crate::ast::{Arith, Builtin, Compare, Expr, Node, Root};
use crate::dialect::Dialect;
use crate::refusal::{Refusal, Wrong};
use crate::value::Value;
use std::fmt;
use std::ops::BitOr;

/// A set of kinds of values.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kinds(u16);

impl Kinds {
    /// Null.
    pub const NULL: Kinds = Kinds(1);
    /// True and false.
    pub const BOOL: Kinds = Kinds(1 << 1);
    /// Whole numbers.
    pub const INT: Kinds = Kinds(1 << 2);
    /// Numbers with a fraction.
    pub const FLOAT: Kinds = Kinds(1 << 3);
    /// Text.
    pub const STRING: Kinds = Kinds(1 << 4);
    /// Bytes.
    pub const BYTES: Kinds = Kinds(1 << 5);
    /// Lists.
    pub const LIST: Kinds = Kinds(1 << 6);
    /// Maps.
    pub const MAP: Kinds = Kinds(1 << 7);
    /// Times, which only expressions have.
    pub const TIME: Kinds = Kinds(1 << 8);
    /// Lengths of time, which only expressions have.
    pub const SPAN: Kinds = Kinds(1 << 9);
    /// Whatever a column, reader data or a claim may hold.
    pub const DATA: Kinds = Kinds((1 << 8) - 1);
    /// Anything.
    pub const ANY: Kinds = Kinds((1 << 10) - 1);
    /// Numbers.
    pub const NUMBER: Kinds = Kinds(Kinds::INT.0 | Kinds::FLOAT.0);
    /// Places on Earth: a list of latitude and longitude, or a map that has `lat` and `lon`.
    pub const PLACE: Kinds = Kinds(Kinds::LIST.0 | Kinds::MAP.0);

    const NONE: Kinds = Kinds(0);
    const NAMES: [&str; 10] =
        ["null", "bool", "int", "double", "string", "bytes", "list", "map", "timestamp", "duration"];

    /// The kind of a value.
    pub fn of(value: &Value) -> Kinds {
        match value {
            Value::Null => Kinds::NULL,
            Value::Bool(_) => Kinds::BOOL,
            Value::Int(_) => Kinds::INT,
            Value::Float(_) => Kinds::FLOAT,
            Value::String(_) => Kinds::STRING,
            Value::Bytes(_) => Kinds::BYTES,
            Value::List(_) => Kinds::LIST,
            Value::Map(_) => Kinds::MAP,
            Value::Time(_) => Kinds::TIME,
            Value::Span(_) => Kinds::SPAN,
        }
    }

    /// Whether the sets have a kind in common.
    pub fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    fn singles(self) -> impl Iterator<Item = Kinds> {
        (0..10).map(|bit| Kinds(1 << bit)).filter(move |kind| self.meets(*kind))
    }
}

impl BitOr for Kinds {
    type Output = Kinds;

    fn bitor(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Kinds::ANY || *self == Kinds::DATA {
            return f.write_str("anything");
        }
        let names: Vec<&str> = Kinds::NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 & (1 << bit) != 0)
            .map(|(_, name)| *name)
            .collect();
        f.write_str(&names.join(" or "))
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an operator gives for one kind on each side, if it takes them. Numbers of different kinds do not mix, as in CEL.
fn arith(operator: Arith, left: Kinds, right: Kinds) -> Kinds {
    use Arith::{Add, Remainder, Subtract};
    match (operator, left, right) {
        (_, Kinds::INT, Kinds::INT) => Kinds::INT,
        (Remainder, ..) => Kinds::NONE,
        (_, Kinds::FLOAT, Kinds::FLOAT) => Kinds::FLOAT,
        (Add, Kinds::STRING | Kinds::BYTES | Kinds::LIST, _) if left == right => left,
        (Add | Subtract, Kinds::SPAN, Kinds::SPAN) => Kinds::SPAN,
        (Add | Subtract, Kinds::TIME, Kinds::SPAN) | (Add, Kinds::SPAN, Kinds::TIME) => Kinds::TIME,
        (Subtract, Kinds::TIME, Kinds::TIME) => Kinds::SPAN,
        _ => Kinds::NONE,
    }
}

/// Whether values of these kinds have an order.
fn ordered(left: Kinds, right: Kinds) -> bool {
    let numbers = left.meets(Kinds::NUMBER) && right.meets(Kinds::NUMBER);
    let alike = [Kinds::BOOL, Kinds::STRING, Kinds::BYTES, Kinds::TIME, Kinds::SPAN]
        .iter()
        .any(|kind| left.meets(*kind) && right.meets(*kind));
    numbers || alike
}

/// Checks a text and says which kinds its value may have.
pub(crate) fn check(expr: &Expr, text: &str, dialect: &Dialect) -> Result<Kinds, Refusal> {
    Checker { text, dialect }.check(expr)
}

struct Checker<'a> {
    text: &'a str,
    dialect: &'a Dialect,
}

impl Checker<'_> {
    fn refuse(&self, at: usize, message: String) -> Refusal {
        Refusal::new(Wrong::Type, message).at(self.text, at)
    }

    /// Checks a part that must be able to be one of `wanted`.
    fn want(&self, expr: &Expr, wanted: Kinds, who: &str) -> Result<Kinds, Refusal> {
        let found = self.check(expr)?;
        if found.meets(wanted) {
            return Ok(found);
        }
        let hint = match (wanted.meets(Kinds::TIME | Kinds::SPAN), found.meets(Kinds::DATA)) {
            (true, true) => "; columns hold no times: wrap it in timestamp(…) or duration(…)",
            _ => "",
        };
        Err(self.refuse(expr.at, format!("{who} takes {wanted}, and this is {found}{hint}")))
    }

    fn check(&self, expr: &Expr) -> Result<Kinds, Refusal> {
        Ok(match &expr.node {
            Node::Literal(value) => Kinds::of(value),
            Node::Key => Kinds::STRING | Kinds::BYTES,
            Node::Path(_, fields) if fields.is_empty() => Kinds::MAP,
            Node::Path(Root::This, fields) => match self.dialect.columns.get(&fields[0]) {
                Some(kinds) if fields.len() == 1 => *kinds,
                None if self.dialect.closed => {
                    let message = format!("the table has no column `{}`", fields[0]);
                    return Err(Refusal::new(Wrong::Name, message).at(self.text, expr.at));
                }
                _ => Kinds::DATA,
            },
            Node::Path(..) => Kinds::DATA,
            Node::Select(inner, _) => {
                self.want(inner, Kinds::MAP, "selecting a field")?;
                Kinds::DATA
            }
            Node::Has(inner) => {
                self.check(inner)?;
                Kinds::BOOL
            }
            Node::Not(inner) => {
                self.want(inner, Kinds::BOOL, "`!`")?;
                Kinds::BOOL
            }
            Node::Negate(inner) => {
                let found = self.want(inner, Kinds::NUMBER | Kinds::SPAN, "`-`")?;
                Kinds(found.0 & (Kinds::NUMBER | Kinds::SPAN).0)
            }
            Node::And(parts) | Node::Or(parts) => {
                let who = if matches!(expr.node, Node::And(_)) { "`&&`" } else { "`||`" };
                for part in parts {
                    self.want(part, Kinds::BOOL, who)?;
                }
                Kinds::BOOL
            }
            Node::Choose(parts) => {
                self.want(&parts[0], Kinds::BOOL, "`?:`")?;
                self.check(&parts[1])? | self.check(&parts[2])?
            }
            Node::Compare(compare, sides) => self.compare(expr, *compare, sides)?,
            Node::In(sides) => {
                self.check(&sides[0])?;
                self.want(&sides[1], Kinds::LIST | Kinds::MAP, "`in`")?;
                Kinds::BOOL
            }
            Node::Arith(operator, sides) => self.arith(expr, *operator, sides)?,
            Node::List(items) => {
                for item in items {
                    self.check(item)?;
                }
                Kinds::LIST
            }
            Node::Call(builtin, arguments) => self.call(*builtin, arguments)?,
            Node::Matches(inner, _) => {
                self.want(inner, Kinds::STRING, "`matches`")?;
                Kinds::BOOL
            }
            Node::Udf(udf, arguments) => {
                for (argument, takes) in arguments.iter().zip(&udf.takes) {
                    self.want(argument, *takes, &format!("`{}`", udf.name))?;
                }
                udf.gives
            }
            Node::Now => Kinds::TIME,
        })
    }

    fn compare(&self, expr: &Expr, compare: Compare, sides: &[Expr; 2]) -> Result<Kinds, Refusal> {
        let (left, right) = (self.check(&sides[0])?, self.check(&sides[1])?);
        let equality = matches!(compare, Compare::Equal | Compare::Unequal);
        if !equality && !ordered(left, right) {
            let times = Kinds::TIME | Kinds::SPAN;
            let hint = if left.meets(times) != right.meets(times) {
                "; columns hold no times: wrap them in timestamp(…) or duration(…), and the time is now()"
            } else {
                ""
            };
            return Err(self.refuse(expr.at, format!("{left} and {right} have no order{hint}")));
        }
        Ok(Kinds::BOOL)
    }

    fn arith(&self, expr: &Expr, operator: Arith, sides: &[Expr; 2]) -> Result<Kinds, Refusal> {
        let (left, right) = (self.check(&sides[0])?, self.check(&sides[1])?);
        let mut gives = Kinds::NONE;
        for one in left.singles() {
            for other in right.singles() {
                gives = gives | arith(operator, one, other);
            }
        }
        if gives == Kinds::NONE {
            let message = format!("this operator does not take {left} and {right}");
            return Err(self.refuse(expr.at, message));
        }
        Ok(gives)
    }

    fn call(&self, builtin: Builtin, arguments: &[Expr]) -> Result<Kinds, Refusal> {
        let (who, takes, gives) = match builtin {
            Builtin::Size => ("`size`", Kinds::STRING | Kinds::BYTES | Kinds::LIST | Kinds::MAP, Kinds::INT),
            Builtin::StartsWith => ("`startsWith`", Kinds::STRING, Kinds::BOOL),
            Builtin::EndsWith => ("`endsWith`", Kinds::STRING, Kinds::BOOL),
            Builtin::Contains => ("`contains`", Kinds::STRING, Kinds::BOOL),
            Builtin::Timestamp => ("`timestamp`", Kinds::STRING | Kinds::INT | Kinds::TIME, Kinds::TIME),
            Builtin::Duration => ("`duration`", Kinds::STRING | Kinds::SPAN, Kinds::SPAN),
            Builtin::Distance => ("`distance`", Kinds::PLACE, Kinds::FLOAT),
        };
        for argument in arguments {
            self.want(argument, takes, who)?;
        }
        Ok(gives)
    }
}
