//! The meaning of the language, written once more as plainly as possible, and held against what is compiled.

use super::texts::{columns, key, text};
use super::{dialect, predicate};
use crate::ast::{Arith, Builtin, Compare, Expr, Node, Root};
use crate::place::Place;
use crate::{Fault, Key, Packed, STEPS, Scope, Value, clock, parser};
use proptest::prelude::*;
use std::cmp::Ordering;

struct World {
    key: Key,
    this: Value,
    reader: Value,
    user: Value,
}

type Outcome = Result<Value, ()>;

fn order(left: &Value, right: &Value) -> Result<Option<Ordering>, ()> {
    // Wide enough for every i64 and for every float that is near one.
    let number = |value: &Value| match value {
        Value::Int(int) => Some((Some(*int as i128 * 2), 0.0)),
        Value::Float(float) if float.is_nan() => Some((None, *float)),
        Value::Float(float) if float.abs() > 1e19 => {
            Some((Some(if *float > 0.0 { i128::MAX } else { i128::MIN }), *float))
        }
        Value::Float(float) => Some((Some((float.floor() as i128) * 2 + i128::from(float.floor() != *float)), *float)),
        _ => None,
    };
    match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => Ok(Some(a.cmp(b))),
        (Value::String(a), Value::String(b)) => Ok(Some(a.as_bytes().cmp(b.as_bytes()))),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Some(a.cmp(b))),
        (Value::Time(a), Value::Time(b)) | (Value::Span(a), Value::Span(b)) => Ok(Some(a.cmp(b))),
        _ => {
            let ((a, x), (b, y)) = (number(left).ok_or(())?, number(right).ok_or(())?);
            let whole = a.zip(b).map(|(a, b)| a.cmp(&b));
            let floats = matches!((left, right), (Value::Float(_), Value::Float(_)));
            Ok(if floats { x.partial_cmp(&y) } else { whole })
        }
    }
}

fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::List(a), Value::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => order(left, right) == Ok(Some(Ordering::Equal)),
    }
}

fn number(value: Option<i64>) -> Outcome {
    value.map(Value::Int).ok_or(())
}

impl World {
    fn bool(&self, expr: &Expr) -> Result<bool, ()> {
        match self.value(expr)? {
            Value::Bool(yes) => Ok(yes),
            _ => Err(()),
        }
    }

    fn text(&self, expr: &Expr) -> Result<String, ()> {
        match self.value(expr)? {
            Value::String(text) => Ok(text),
            _ => Err(()),
        }
    }

    fn place(&self, expr: &Expr) -> Result<Place, ()> {
        let number = |value: Option<&Value>| match value {
            Some(Value::Int(int)) => Ok(*int as f64),
            Some(Value::Float(float)) => Ok(*float),
            _ => Err(()),
        };
        let (lat, lon) = match self.value(expr)? {
            Value::List(items) if items.len() == 2 => (number(items.first())?, number(items.last())?),
            Value::Map(entries) => (number(entries.get("lat"))?, number(entries.get("lon"))?),
            _ => return Err(()),
        };
        if lat.abs() <= 90.0 && lon.abs() <= 180.0 { Ok(Place { lat, lon }) } else { Err(()) }
    }

    /// A chain whose decisive value wins, else any fault, else the other value.
    fn chain(&self, parts: &[Expr], decisive: bool) -> Outcome {
        let outcomes: Vec<Result<bool, ()>> = parts.iter().map(|part| self.bool(part)).collect();
        if outcomes.contains(&Ok(decisive)) {
            return Ok(Value::Bool(decisive));
        }
        if outcomes.iter().any(Result::is_err) { Err(()) } else { Ok(Value::Bool(!decisive)) }
    }

    fn value(&self, expr: &Expr) -> Outcome {
        let field = |holder: &Value, name: &str| match holder {
            Value::Map(entries) => entries.get(name).cloned().ok_or(()),
            _ => Err(()),
        };
        Ok(match &expr.node {
            Node::Literal(value) => value.clone(),
            Node::Key => match self.key.own() {
                Key::Bytes(bytes) => Value::Bytes(bytes.clone()),
                Key::String(text) => Value::String(text.clone()),
                Key::Within(_) => return Err(()),
            },
            Node::Path(root, fields) => {
                let root = match root {
                    Root::This => &self.this,
                    Root::Reader => &self.reader,
                    Root::User => &self.user,
                    Root::Joined => return Err(()),
                };
                fields.iter().try_fold(root.clone(), |holder, name| field(&holder, name))?
            }
            Node::Select(holder, name) => field(&self.value(holder)?, name)?,
            Node::Has(inner) => {
                let (holder, name) = match &inner.node {
                    Node::Path(root, fields) => {
                        let (name, holder) = fields.split_last().ok_or(())?;
                        (Expr::new(0, Node::Path(*root, holder.to_vec())), name)
                    }
                    Node::Select(holder, name) => ((**holder).clone(), name),
                    _ => return Err(()),
                };
                match self.value(&holder)? {
                    Value::Map(entries) => Value::Bool(entries.contains_key(name)),
                    _ => return Err(()),
                }
            }
            Node::Not(inner) => Value::Bool(!self.bool(inner)?),
            Node::Negate(inner) => match self.value(inner)? {
                Value::Int(int) => number(int.checked_neg())?,
                Value::Float(float) => Value::Float(-float),
                Value::Span(span) => Value::Span(span.checked_neg().ok_or(())?),
                _ => return Err(()),
            },
            Node::And(parts) => self.chain(parts, false)?,
            Node::Or(parts) => self.chain(parts, true)?,
            Node::Choose(parts) => self.value(if self.bool(&parts[0])? { &parts[1] } else { &parts[2] })?,
            Node::Compare(compare, sides) => {
                let (left, right) = (self.value(&sides[0])?, self.value(&sides[1])?);
                Value::Bool(match compare {
                    Compare::Equal => equal(&left, &right),
                    Compare::Unequal => !equal(&left, &right),
                    Compare::Less => order(&left, &right)?.is_some_and(Ordering::is_lt),
                    Compare::LessOrEqual => order(&left, &right)?.is_some_and(Ordering::is_le),
                    Compare::Greater => order(&left, &right)?.is_some_and(Ordering::is_gt),
                    Compare::GreaterOrEqual => order(&left, &right)?.is_some_and(Ordering::is_ge),
                })
            }
            Node::In(sides) => {
                let item = self.value(&sides[0])?;
                Value::Bool(match (self.value(&sides[1])?, &item) {
                    (Value::List(items), _) => items.iter().any(|other| equal(&item, other)),
                    (Value::Map(entries), Value::String(name)) => entries.contains_key(name),
                    (Value::Map(_), _) => false,
                    _ => return Err(()),
                })
            }
            Node::Arith(operator, sides) => self.arith(*operator, self.value(&sides[0])?, self.value(&sides[1])?)?,
            Node::List(items) => Value::List(items.iter().map(|item| self.value(item)).collect::<Result<_, ()>>()?),
            Node::Call(builtin, arguments) => self.call(*builtin, arguments)?,
            Node::Matches(inner, pattern) => {
                Value::Bool(regex::Regex::new(pattern).map_err(|_| ())?.is_match(&self.text(inner)?))
            }
            Node::Udf(udf, arguments) => {
                let values: Vec<Value> = arguments.iter().map(|part| self.value(part)).collect::<Result<_, ()>>()?;
                (udf.body)(&values).map_err(|_| ())?
            }
            Node::Now => return Err(()),
        })
    }

    fn arith(&self, operator: Arith, left: Value, right: Value) -> Outcome {
        match (left, right) {
            (Value::Int(a), Value::Int(b)) => number(match operator {
                Arith::Add => a.checked_add(b),
                Arith::Subtract => a.checked_sub(b),
                Arith::Multiply => a.checked_mul(b),
                Arith::Divide => a.checked_div(b),
                Arith::Remainder => a.checked_rem(b),
            }),
            (Value::Float(a), Value::Float(b)) => {
                let sum = match operator {
                    Arith::Add => a + b,
                    Arith::Subtract => a - b,
                    Arith::Multiply => a * b,
                    Arith::Divide if b != 0.0 => a / b,
                    _ => return Err(()),
                };
                if sum.is_infinite() && a.is_finite() && b.is_finite() { Err(()) } else { Ok(Value::Float(sum)) }
            }
            (Value::String(a), Value::String(b)) if operator == Arith::Add => Ok(Value::String(a + &b)),
            (Value::Bytes(a), Value::Bytes(b)) if operator == Arith::Add => Ok(Value::Bytes([a, b].concat())),
            (Value::List(a), Value::List(b)) if operator == Arith::Add => Ok(Value::List([a, b].concat())),
            _ => Err(()),
        }
    }

    fn call(&self, builtin: Builtin, arguments: &[Expr]) -> Outcome {
        Ok(match builtin {
            Builtin::Size => Value::Int(match self.value(&arguments[0])? {
                Value::String(text) => text.chars().count() as i64,
                Value::Bytes(bytes) => bytes.len() as i64,
                Value::List(items) => items.len() as i64,
                Value::Map(entries) => entries.len() as i64,
                _ => return Err(()),
            }),
            Builtin::StartsWith => Value::Bool(self.text(&arguments[0])?.starts_with(&self.text(&arguments[1])?)),
            Builtin::EndsWith => Value::Bool(self.text(&arguments[0])?.ends_with(&self.text(&arguments[1])?)),
            Builtin::Contains => Value::Bool(self.text(&arguments[0])?.contains(&self.text(&arguments[1])?)),
            Builtin::Timestamp => Value::Time(clock::timestamp(&self.text(&arguments[0])?).map_err(|_| ())?),
            Builtin::Duration => Value::Span(clock::duration(&self.text(&arguments[0])?).map_err(|_| ())?),
            Builtin::Distance => Value::Float(self.place(&arguments[0])?.distance(self.place(&arguments[1])?)),
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn what_is_compiled_means_what_is_written(text in text(), key in key(), this in columns(), reader in columns(), user in columns()) {
        let expr = parser::parse(&text, &dialect()).expect("a text");
        let pack = |value: &Value| Packed::pack(value).expect("not deep");
        let (columns, data, claims) = (pack(&this), pack(&reader), pack(&user));
        let found = predicate(&text).evaluate(&Scope::record(&key, &columns).read_by(&data, &claims), &mut STEPS.clone());
        prop_assert!(found != Err(Fault::TooSlow));
        let world = World { key: key.clone(), this, reader, user };
        prop_assert_eq!(found.map_err(|_| ()), world.bool(&expr), "{}", text);
    }
}
