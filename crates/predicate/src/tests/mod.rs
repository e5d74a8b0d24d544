//! The language held against a simple model of it, and against texts that nobody should write.

mod bounds;
mod language;
mod model;
pub(crate) mod texts;

use crate::{Dialect, Fault, Functions, Key, Kinds, Packed, Predicate, STEPS, Scope, Udf, Value};

/// A dialect with one pure and one changing function.
pub(crate) fn dialect() -> Dialect {
    let mut functions = Functions::default();
    for (name, pure) in [("twice", true), ("dice", false)] {
        let body = |values: &[Value]| match values {
            [Value::Int(number)] => number.checked_mul(2).map(Value::Int).ok_or(Fault::Overflow),
            _ => Err(Fault::WrongKind),
        };
        let (takes, gives) = (vec![Kinds::INT], Kinds::INT);
        let udf = Udf { name: name.to_owned(), takes, gives, pure, steps: 10, body: Box::new(body) };
        functions.register(udf).expect("new names");
    }
    Dialect { functions, ..Dialect::default() }
}

pub(crate) fn predicate(text: &str) -> Predicate {
    Predicate::compile(text, &dialect()).unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
}

pub(crate) fn packed<const N: usize>(columns: [(&str, Value); N]) -> Packed {
    Packed::columns(columns).expect("not deep")
}

/// Evaluates a text over one record and reader that all of these tests share.
fn evaluate(text: &str) -> Result<bool, Fault> {
    let key = Key::from("k1");
    let place = Value::from(vec![47.0, 8.0]);
    let this = packed([
        ("a", 3.into()),
        ("f", 2.5.into()),
        ("n", Value::Null),
        ("nan", f64::NAN.into()),
        ("s", "häuser".into()),
        ("t", vec!["x", "y"].into()),
        ("p", place.clone()),
        ("at", "2026-11-15T12:00:00Z".into()),
        ("m", Value::Map([("x".to_owned(), 7.into()), ("no".to_owned(), false.into())].into())),
        ("yes", true.into()),
        ("least", i64::MIN.into()),
        ("most", i64::MAX.into()),
        ("raw", Value::Bytes(vec![0, 255])),
    ]);
    let reader = packed([("age", 20.into()), ("p", place), ("groups", vec!["staff"].into())]);
    let claims = packed([("id", "u1".into())]);
    let scope = Scope::record(&key, &this).read_by(&reader, &claims).at(1_763_208_000_000_000);
    predicate(text).evaluate(&scope, &mut STEPS.clone())
}
