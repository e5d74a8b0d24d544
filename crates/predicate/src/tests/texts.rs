//! Random texts and data from few names and values, so that they often meet.

use crate::{Key, Packed, Value};
use proptest::prelude::*;

fn literal() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "null",
        "true",
        "false",
        "-2",
        "-1",
        "0",
        "1",
        "2",
        "3",
        "1.0",
        "2.5",
        "-0.0",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808.0",
        "'x'",
        "'xy'",
        "'xyz'",
        "''",
        "'yé'",
        "'a much longer one'",
        "b'x'",
        "[1, 2]",
        "'k1'",
        "1 + 1",
        "duration('1s')",
    ])
    .prop_map(str::to_owned)
}

fn field() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "this.s", "m.x", "key", "t", "p"]).prop_map(str::to_owned)
}

/// Something that the reader decides.
fn asked() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => literal(),
        2 => prop::sample::select(vec!["reader.a", "reader.s", "user.s", "user.t", "reader.t", "user.a", "reader.p"]).prop_map(str::to_owned),
    ]
}

fn place() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "p",
        "reader.p",
        "[0, 0]",
        "[0.0, 0.01]",
        "[89.9, 179]",
        "[0, 180]",
        "[47.0, 8.0]",
        "m",
        "user.p",
    ])
    .prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = String> {
    let compare = || prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">=", "==", "=="]);
    let side = || prop_oneof![2 => field(), 3 => asked()];
    prop_oneof![
        6 => (field(), compare(), asked()).prop_map(|(left, compare, right)| format!("{left} {compare} {right}")),
        2 => (side(), compare(), side()).prop_map(|(left, compare, right)| format!("{left} {compare} {right}")),
        2 => (field(), asked(), asked()).prop_map(|(field, low, high)| format!("{field} >= {low} && {field} < {high}")),
        2 => (side(), prop::collection::vec(asked(), 0..4)).prop_map(|(item, list)| format!("{item} in [{}]", list.join(", "))),
        2 => (side(), prop::sample::select(vec!["t", "reader.t", "user.t", "m"])).prop_map(|(item, list)| format!("{item} in {list}")),
        2 => (field(), asked()).prop_map(|(text, prefix)| format!("({text}).startsWith({prefix})")),
        2 => (place(), place(), prop::sample::select(vec!["0", "1500.0", "500000", "3e7", "reader.r"]))
            .prop_map(|(from, to, radius)| format!("distance({from}, {to}) <= {radius}")),
        1 => prop::sample::select(vec![
            "has(a)", "has(reader.a)", "b", "reader.b", "user.b", "s.matches('^x')", "size(t) > 1", "a + b > 2", "a / b == 1",
            "twice(a) == reader.a", "a % 2 == 0", "-a == reader.a", "s + 'z' == reader.s + 'z'", "true", "false", "has(m.x)",
            "s.contains('y')", "reader.s.startsWith(s)", "a < 3 && a > 1", "(b ? m : reader).x == 1", "reader.a < a",
        ]).prop_map(str::to_owned),
    ]
    .prop_map(|text| format!("({text})"))
    .prop_filter("texts that are refused for their kinds", |text| {
        crate::Predicate::compile(text, &super::dialect()).is_ok()
    })
}

/// A predicate.
pub(crate) fn text() -> impl Strategy<Value = String> {
    condition().prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" && "))),
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" || "))),
            1 => inner.clone().prop_map(|part| format!("!{part}")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(c, a, b)| format!("({c} ? {a} : {b})")),
        ]
    })
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-2i64..4).prop_map(Value::Int),
        (-2i64..4).prop_map(Value::Int),
        prop::sample::select(vec![i64::MIN, i64::MAX]).prop_map(Value::Int),
        prop::sample::select(vec![-0.0, 1.0, 2.5, f64::NAN, f64::INFINITY, 9_223_372_036_854_775_808.0, -1.0])
            .prop_map(Value::Float),
        prop::sample::select(vec!["", "x", "xy", "xyz", "yé", "a much longer one", "a much longer two"])
            .prop_map(Value::from),
        Just(Value::Bytes(b"x".to_vec())),
    ]
}

fn spot() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            [0.0, 0.0],
            [0.0, 0.01],
            [89.9, -179.0],
            [0.0, -180.0],
            [47.0, 8.0],
            [47.001, 8.0],
            [91.0, 0.0]
        ])
        .prop_map(|place| Value::from(place.to_vec())),
        Just(Value::Map([("lat".to_owned(), 47.into()), ("lon".to_owned(), 8.into())].into())),
        scalar(),
    ]
}

/// Any value.
pub(crate) fn data() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::btree_map(prop::sample::select(vec!["x", "y", "é"]).prop_map(str::to_owned), inner, 0..3)
                .prop_map(Value::Map),
        ]
    })
}

/// Columns of a record, or data of a reader: any of them may be missing or of another kind.
pub(crate) fn columns() -> impl Strategy<Value = Value> {
    let list = prop::collection::vec(scalar(), 0..3).prop_map(Value::List);
    let map = prop::collection::btree_map(prop::sample::select(vec!["x", "y"]).prop_map(str::to_owned), scalar(), 0..3)
        .prop_map(Value::Map);
    let maybe = |value: BoxedStrategy<Value>| prop::option::weighted(0.8, value);
    let parts = (
        maybe(scalar().boxed()),
        maybe(scalar().boxed()),
        maybe(scalar().boxed()),
        maybe(prop_oneof![4 => list.boxed(), 1 => data().boxed()].boxed()),
        maybe(map.boxed()),
        maybe(spot().boxed()),
        maybe(prop::sample::select(vec![1_500.0, 5e5]).prop_map(Value::Float).boxed()),
    );
    parts.prop_map(|(a, b, s, t, m, p, r)| {
        let named = [("a", a), ("b", b), ("s", s), ("t", t), ("m", m), ("p", p), ("r", r)];
        Value::Map(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    })
}

pub(crate) fn packed_columns() -> impl Strategy<Value = Packed> {
    columns().prop_map(|columns| Packed::pack(&columns).expect("not deep"))
}

pub(crate) fn key() -> impl Strategy<Value = Key> {
    prop_oneof![Just(Key::from("k1")), Just(Key::from("x")), Just(Key::from(&b"x"[..]))]
}
