//! Evaluates compiled texts: a stack of values or faults, within a budget of steps.
//!
//! A fault is a value like any other until the end (R12): `false && fault` is false, `true || fault` is true, in either
//! order as in CEL; everything else hands the fault on. Only an exhausted budget ends the evaluation at once.

use crate::ast::{Arith, Builtin, Code, Compare, Root};
use crate::clock;
use crate::compare::{equal, order};
use crate::packed::{self, Packed, Val};
use crate::place::Place;
use crate::template::{Op, Path, Program};
use crate::value::{Key, Value};
use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;

/// The steps that one evaluation may take unless told otherwise: an operation is one, and one more for each 16 bytes it
/// looks at, or for as many fields that stand before the one it looks for. A pattern looks at each byte once for each part of it.
pub const STEPS: u32 = 200_000;
pub(crate) const BYTES_A_STEP: usize = 16;
const FIELDS_A_STEP: usize = 16;

/// Why an expression has no value for a record and a reader. As a predicate it then does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A field is not there.
    Missing,
    /// A value is of a kind that the operation does not take.
    WrongKind,
    /// A number or time is beyond its range.
    Overflow,
    /// A division by zero.
    DivisionByZero,
    /// A text that is not a time or a length of time.
    BadTime,
    /// Something that is no place on Earth.
    BadPlace,
    /// NaN where an order is needed.
    NotANumber,
    /// A registered function refused its values.
    Function,
    /// The evaluation took more steps than it may.
    TooSlow,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Missing => "a field is missing",
            Fault::WrongKind => "a value is of the wrong kind",
            Fault::Overflow => "a number or time is out of range",
            Fault::DivisionByZero => "division by zero",
            Fault::BadTime => "a text is not a time (2026-01-31T12:00:00Z) or duration (1h30m)",
            Fault::BadPlace => "a place is [latitude, longitude] or a map with `lat` and `lon`, in degrees",
            Fault::NotANumber => "NaN has no order",
            Fault::Function => "a function refused its values",
            Fault::TooSlow => "the evaluation took too many steps",
        })
    }
}

impl std::error::Error for Fault {}

/// A predicate took more steps than it may: nobody knows whether it holds. Apart from that a fault does not match (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSlow;

/// Counts the steps of many evaluations, for whoever shares a thread with them.
#[derive(Debug, Default)]
pub struct Meter(Cell<u64>);

impl Meter {
    /// The steps that were taken.
    pub fn steps(&self) -> u64 {
        self.0.get()
    }

    /// Counts steps that something else takes: to compile what is evaluated then.
    pub fn add(&self, steps: u64) {
        self.0.set(self.0.get() + steps);
    }
}

/// What an expression is evaluated over; what is not given is missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    pub(crate) key: Option<&'a Key>,
    pub(crate) this: Option<&'a [u8]>,
    pub(crate) reader: Option<&'a [u8]>,
    pub(crate) user: Option<&'a [u8]>,
    pub(crate) joined: Option<&'a [u8]>,
    pub(crate) now: Option<i64>,
    pub(crate) meter: Option<&'a Meter>,
}

impl<'a> Scope<'a> {
    /// A record: its key and columns.
    pub fn record(key: &'a Key, columns: &'a Packed) -> Scope<'a> {
        Scope { key: Some(key), this: Some(columns.as_bytes()), ..Scope::default() }
    }

    /// Adds a reader: its data, and its verified claims.
    pub fn read_by(self, data: &'a Packed, claims: &'a Packed) -> Scope<'a> {
        Scope { reader: Some(data.as_bytes()), user: Some(claims.as_bytes()), ..self }
    }

    /// Adds the record that a query looked up in another table.
    pub fn joined_with(self, columns: &'a Packed) -> Scope<'a> {
        Scope { joined: Some(columns.as_bytes()), ..self }
    }

    /// Adds the time, in microseconds since 1970.
    pub fn at(self, micros: i64) -> Scope<'a> {
        Scope { now: Some(micros), ..self }
    }

    /// Counts what is evaluated over it.
    pub fn metered(self, meter: &'a Meter) -> Scope<'a> {
        Scope { meter: Some(meter), ..self }
    }

    fn root(&self, root: Root) -> Option<&'a [u8]> {
        match root {
            Root::This => self.this,
            Root::Reader => self.reader,
            Root::User => self.user,
            Root::Joined => self.joined,
        }
    }

    /// The bytes that begin with the value at `fields` under `root`.
    fn find(&self, root: Root, fields: &[Box<str>], passed: &mut usize) -> Result<&'a [u8], Fault> {
        let mut at = self.root(root).ok_or(Fault::Missing)?;
        for name in fields {
            let contents = packed::map_contents(at).ok_or(Fault::WrongKind)?;
            at = packed::field_after(contents, name, passed).ok_or(Fault::Missing)?;
        }
        Ok(at)
    }

    /// The value at a path.
    pub(crate) fn load(&self, path: &Path) -> Result<Val<'a>, Fault> {
        self.load_after(path, &mut 0)
    }

    /// The same; `passed` grows by the number of fields that were passed on the way.
    fn load_after(&self, path: &Path, passed: &mut usize) -> Result<Val<'a>, Fault> {
        match path {
            Path::Key => self.key.map(Key::as_val).ok_or(Fault::Missing),
            Path::Field(root, fields) => {
                let at = self.find(*root, fields, passed)?;
                packed::read(at).map(|(value, _)| value).ok_or(Fault::Missing)
            }
        }
    }

    /// Whether there is something at a path whose last field's holder exists.
    fn has(&self, path: &Path, passed: &mut usize) -> Result<bool, Fault> {
        let Path::Field(root, fields) = path else { return Err(Fault::WrongKind) };
        let (last, holder) = fields.split_last().ok_or(Fault::WrongKind)?;
        let contents = packed::map_contents(self.find(*root, holder, passed)?).ok_or(Fault::WrongKind)?;
        Ok(packed::field_after(contents, last, passed).is_some())
    }
}

type Slot<'a> = Result<Val<'a>, Fault>;

/// What evaluations over the same data may share, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Stack<'a>(Vec<Slot<'a>>);

/// Evaluates the operations `code` of a program.
pub(crate) fn run<'a>(
    program: Program<'a>,
    code: Code,
    scope: &Scope<'a>,
    steps: &mut u32,
    stack: &mut Stack<'a>,
) -> Result<Val<'a>, Fault> {
    stack.0.clear();
    let before = *steps;
    let value = Machine { program, scope, steps: &mut *steps, stack: &mut stack.0 }.run(code);
    if let Some(meter) = scope.meter {
        meter.add(u64::from(before - *steps));
    }
    value
}

struct Machine<'a, 's> {
    program: Program<'a>,
    scope: &'s Scope<'a>,
    steps: &'s mut u32,
    stack: &'s mut Vec<Slot<'a>>,
}

impl<'a> Machine<'a, '_> {
    fn run(&mut self, code: Code) -> Slot<'a> {
        let mut at = code.0 as usize;
        while at < code.1 as usize {
            at = self.step(at)?;
        }
        self.pop()
    }

    fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        *self.steps = self.steps.checked_sub(steps).ok_or(Fault::TooSlow)?;
        Ok(())
    }

    fn pop(&mut self) -> Slot<'a> {
        self.stack.pop().unwrap_or(Err(Fault::Missing))
    }

    /// Takes two values, charging for what an operation on them may look at.
    fn pop_two(&mut self) -> Result<Result<(Val<'a>, Val<'a>), Fault>, Fault> {
        let (right, left) = (self.pop(), self.pop());
        let both = left.and_then(|left| right.map(|right| (left, right)));
        if let Ok((left, right)) = &both {
            self.spend((left.weight() + right.weight()) / BYTES_A_STEP)?;
        }
        Ok(both)
    }

    /// Takes one value, charging for what an operation on it may look at.
    fn pop_one(&mut self) -> Result<Slot<'a>, Fault> {
        let value = self.pop();
        if let Ok(value) = &value {
            self.spend(value.weight() / BYTES_A_STEP)?;
        }
        Ok(value)
    }

    /// Performs one operation and says which comes next; fails only when the budget is spent.
    fn step(&mut self, at: usize) -> Result<usize, Fault> {
        self.spend(1)?;
        let program = self.program;
        let mut passed = 0;
        let result = match &program.ops[at] {
            Op::Constant(slot) => program.constants.get(*slot).ok_or(Fault::Missing),
            Op::Load(path) => self.scope.load_after(&program.paths[*path as usize], &mut passed),
            Op::Has(path) => self.scope.has(&program.paths[*path as usize], &mut passed).map(Val::Bool),
            Op::Select(name) => self.pop_one()?.and_then(|holder| select(&holder, &program.names[*name as usize])),
            Op::HasField(name) => self.pop_one()?.and_then(|holder| match holder {
                Val::Map(contents) => Ok(Val::Bool(packed::field(&contents, &program.names[*name as usize]).is_some())),
                _ => Err(Fault::WrongKind),
            }),
            Op::Not => self.pop().and_then(|value| truth(&value)).map(|yes| Val::Bool(!yes)),
            Op::Negate => self.pop().and_then(negate),
            Op::Compare(compare) => self.pop_two()?.and_then(|(left, right)| holds(*compare, &left, &right)),
            Op::In => self.pop_two()?.and_then(|(item, holder)| is_in(&item, &holder)),
            Op::Arith(operator) => self.pop_two()?.and_then(|(left, right)| arith(*operator, left, right)),
            Op::List(length) => self.list(*length as usize)?,
            Op::Call(builtin) => self.call(*builtin)?,
            Op::Matches(pattern) => match self.pop() {
                Ok(Val::Str(text)) => {
                    let pattern = &program.patterns[*pattern as usize];
                    self.spend(pattern.steps(text.len()))?;
                    Ok(Val::Bool(pattern.is_match(&text)))
                }
                other => other.and(Err(Fault::WrongKind)),
            },
            Op::Udf(function) => self.udf(*function as usize)?,
            Op::Now => self.scope.now.map(Val::Time).ok_or(Fault::Missing),
            Op::And(end) | Op::Or(end) => {
                let decisive = matches!(program.ops[at], Op::Or(_));
                let decided = matches!(self.stack.last(), Some(Ok(Val::Bool(yes))) if *yes == decisive);
                return Ok(if decided { *end as usize } else { at + 1 });
            }
            Op::AndJoin | Op::OrJoin => {
                let decisive = matches!(program.ops[at], Op::OrJoin);
                let (right, left) = (self.pop(), self.pop());
                join(decisive, left, right)
            }
            Op::Choose(otherwise, end) => match self.pop().and_then(|value| truth(&value)) {
                Ok(true) => return Ok(at + 1),
                Ok(false) => return Ok(*otherwise as usize),
                Err(fault) => {
                    self.stack.push(Err(fault));
                    return Ok(*end as usize);
                }
            },
            Op::Jump(end) => return Ok(*end as usize),
        };
        self.spend(passed / FIELDS_A_STEP)?;
        self.stack.push(result);
        Ok(at + 1)
    }

    fn list(&mut self, length: usize) -> Result<Slot<'a>, Fault> {
        let items = self.stack.split_off(self.stack.len().saturating_sub(length));
        let mut contents = Vec::new();
        for item in items {
            match item {
                Ok(item) => item.put(&mut contents),
                Err(fault) => return Ok(Err(fault)),
            }
        }
        self.spend(contents.len() / BYTES_A_STEP)?;
        Ok(Ok(Val::List(contents.into())))
    }

    fn call(&mut self, builtin: Builtin) -> Result<Slot<'a>, Fault> {
        Ok(match builtin {
            Builtin::Size => self.pop_one()?.and_then(|value| size(&value)),
            Builtin::Timestamp => self.pop_one()?.and_then(|value| match value {
                Val::Str(text) => clock::timestamp(&text).map(Val::Time),
                Val::Int(seconds) => clock::from_seconds(seconds).map(Val::Time),
                Val::Time(micros) => Ok(Val::Time(micros)),
                _ => Err(Fault::WrongKind),
            }),
            Builtin::Duration => self.pop_one()?.and_then(|value| match value {
                Val::Str(text) => clock::duration(&text).map(Val::Span),
                Val::Span(micros) => Ok(Val::Span(micros)),
                _ => Err(Fault::WrongKind),
            }),
            Builtin::StartsWith => self.texts(|text, part| text.starts_with(part))?,
            Builtin::EndsWith => self.texts(|text, part| text.ends_with(part))?,
            Builtin::Contains => self.texts(|text, part| text.contains(part))?,
            Builtin::Distance => {
                self.pop_two()?.and_then(|(from, to)| Ok(Val::Float(Place::of(&from)?.distance(Place::of(&to)?))))
            }
        })
    }

    fn texts(&mut self, test: fn(&str, &str) -> bool) -> Result<Slot<'a>, Fault> {
        Ok(self.pop_two()?.and_then(|both| match both {
            (Val::Str(text), Val::Str(part)) => Ok(Val::Bool(test(&text, &part))),
            _ => Err(Fault::WrongKind),
        }))
    }

    fn udf(&mut self, function: usize) -> Result<Slot<'a>, Fault> {
        let udf = &self.program.udfs[function];
        let slots = self.stack.split_off(self.stack.len().saturating_sub(udf.takes.len()));
        let weight: usize = slots.iter().flatten().map(Val::weight).sum();
        self.spend(udf.steps as usize + weight / BYTES_A_STEP)?;
        let values: Result<Vec<Value>, Fault> =
            slots.into_iter().map(|slot| slot.map(|value| value.to_value())).collect();
        let result = values.and_then(|values| udf.call(&values)).and_then(|result| {
            let packed = Packed::pack(&result).map_err(|_| Fault::Function)?;
            Ok(owned(packed::read(packed.as_bytes()).map_or(Val::Null, |(value, _)| value)))
        });
        if let Ok(result) = &result {
            self.spend(result.weight() / BYTES_A_STEP)?;
        }
        Ok(result)
    }
}

/// The same value, borrowing nothing.
fn owned(value: Val<'_>) -> Val<'static> {
    match value {
        Val::Null => Val::Null,
        Val::Bool(yes) => Val::Bool(yes),
        Val::Int(number) => Val::Int(number),
        Val::Float(number) => Val::Float(number),
        Val::Str(text) => Val::Str(text.into_owned().into()),
        Val::Bytes(bytes) => Val::Bytes(bytes.into_owned().into()),
        Val::List(contents) => Val::List(contents.into_owned().into()),
        Val::Map(contents) => Val::Map(contents.into_owned().into()),
        Val::Time(micros) => Val::Time(micros),
        Val::Span(micros) => Val::Span(micros),
    }
}

pub(crate) fn truth(value: &Val<'_>) -> Result<bool, Fault> {
    match value {
        Val::Bool(yes) => Ok(*yes),
        _ => Err(Fault::WrongKind),
    }
}

/// R12: whichever side is decisive decides, whatever the other one is; else the first fault wins.
fn join<'a>(decisive: bool, left: Slot<'a>, right: Slot<'a>) -> Slot<'a> {
    let left = left.and_then(|value| truth(&value));
    let right = right.and_then(|value| truth(&value));
    if left == Ok(decisive) || right == Ok(decisive) {
        return Ok(Val::Bool(decisive));
    }
    left.and(right).map(Val::Bool)
}

fn select<'a>(holder: &Val<'a>, name: &str) -> Slot<'a> {
    fn find<'b>(contents: &'b [u8], name: &str) -> Slot<'b> {
        packed::field(contents, name).and_then(packed::read).map(|(value, _)| value).ok_or(Fault::Missing)
    }
    match holder {
        Val::Map(Cow::Borrowed(contents)) => find(contents, name),
        Val::Map(Cow::Owned(contents)) => find(contents, name).map(owned),
        _ => Err(Fault::WrongKind),
    }
}

fn holds<'a>(compare: Compare, left: &Val<'_>, right: &Val<'_>) -> Slot<'a> {
    let by_order = |wanted: fn(Ordering) -> bool| Ok(order(left, right)?.is_some_and(wanted));
    Ok(Val::Bool(match compare {
        Compare::Equal => equal(left, right),
        Compare::Unequal => !equal(left, right),
        Compare::Less => by_order(Ordering::is_lt)?,
        Compare::LessOrEqual => by_order(Ordering::is_le)?,
        Compare::Greater => by_order(Ordering::is_gt)?,
        Compare::GreaterOrEqual => by_order(Ordering::is_ge)?,
    }))
}

fn is_in<'a>(item: &Val<'_>, holder: &Val<'_>) -> Slot<'a> {
    match (item, holder) {
        (_, Val::List(contents)) => Ok(Val::Bool(packed::items(contents).any(|other| equal(item, &other)))),
        (Val::Str(name), Val::Map(contents)) => Ok(Val::Bool(packed::field(contents, name).is_some())),
        (_, Val::Map(_)) => Ok(Val::Bool(false)),
        _ => Err(Fault::WrongKind),
    }
}

fn size<'a>(value: &Val<'_>) -> Slot<'a> {
    let size = match value {
        Val::Str(text) => text.chars().count(),
        Val::Bytes(bytes) => bytes.len(),
        Val::List(contents) => packed::items(contents).count(),
        Val::Map(contents) => packed::entries(contents).count(),
        _ => return Err(Fault::WrongKind),
    };
    Ok(Val::Int(size as i64))
}

fn negate<'a>(value: Val<'a>) -> Slot<'a> {
    match value {
        Val::Int(number) => number.checked_neg().map(Val::Int).ok_or(Fault::Overflow),
        Val::Float(number) => Ok(Val::Float(-number)),
        Val::Span(micros) => micros.checked_neg().map(Val::Span).ok_or(Fault::Overflow),
        _ => Err(Fault::WrongKind),
    }
}

fn arith<'a>(operator: Arith, left: Val<'a>, right: Val<'a>) -> Slot<'a> {
    use Arith::{Add, Subtract};
    match (operator, left, right) {
        (_, Val::Int(left), Val::Int(right)) => int_arith(operator, left, right).map(Val::Int),
        (_, Val::Float(left), Val::Float(right)) => float_arith(operator, left, right).map(Val::Float),
        (Add, Val::Str(left), Val::Str(right)) => Ok(Val::Str((left.into_owned() + &right).into())),
        (Add, Val::Bytes(left), Val::Bytes(right)) => Ok(Val::Bytes([left, right].concat().into())),
        (Add, Val::List(left), Val::List(right)) => Ok(Val::List([left, right].concat().into())),
        (Add | Subtract, Val::Span(left), Val::Span(right)) => int_arith(operator, left, right).map(Val::Span),
        (Add | Subtract, Val::Time(left), Val::Span(right)) | (Add, Val::Span(left), Val::Time(right)) => {
            clock::bounded(int_arith(operator, left, right)?).map(Val::Time)
        }
        (Subtract, Val::Time(left), Val::Time(right)) => int_arith(operator, left, right).map(Val::Span),
        _ => Err(Fault::WrongKind),
    }
}

fn int_arith(operator: Arith, left: i64, right: i64) -> Result<i64, Fault> {
    let result = match operator {
        Arith::Add => left.checked_add(right),
        Arith::Subtract => left.checked_sub(right),
        Arith::Multiply => left.checked_mul(right),
        Arith::Divide | Arith::Remainder if right == 0 => return Err(Fault::DivisionByZero),
        Arith::Divide => left.checked_div(right),
        Arith::Remainder => left.checked_rem(right),
    };
    result.ok_or(Fault::Overflow)
}

fn float_arith(operator: Arith, left: f64, right: f64) -> Result<f64, Fault> {
    let result = match operator {
        Arith::Add => left + right,
        Arith::Subtract => left - right,
        Arith::Multiply => left * right,
        Arith::Divide if right == 0.0 => return Err(Fault::DivisionByZero),
        Arith::Divide => left / right,
        Arith::Remainder => return Err(Fault::WrongKind),
    };
    if result.is_infinite() && left.is_finite() && right.is_finite() { Err(Fault::Overflow) } else { Ok(result) }
}
