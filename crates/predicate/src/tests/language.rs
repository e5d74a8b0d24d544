//! R12, clause by clause.

use super::{dialect, evaluate, packed, predicate};
use crate::{Dialect, Expression, Fault, Functions, Key, Kinds, Predicate, STEPS, Scope, Udf, Value, Wrong};

#[test]
fn operators_and_functions_mean_what_cel_means() {
    let holding = [
        "a == 3 && this.a == 3 && a != 4 && a < 4 && a <= 3 && a > 2 && a >= 3",
        "a + 1 == 4 && a - 1 == 2 && a * 2 == 6 && a / 2 == 1 && a % 2 == 1 && -a == -3 && -7 / 2 == -3 && -7 % 2 == -1",
        "f + 0.5 == 3.0 && f * 2.0 == 5.0 && f / 0.5 == 5.0 && f < 3 && f > 2 && a == 3.0",
        "yes ? a == 3 : a == 4",
        "!m.no && m.x == 7 && (yes ? m : this).x == 7",
        "a in [1, 2, 3] && 'x' in t && !('z' in t) && 'x' in m && !(1 in m)",
        "size(s) == 6 && s.size() == 6 && size(t) == 2 && size(m) == 2 && size(raw) == 2 && size('') == 0",
        "s.startsWith('hä') && s.endsWith('er') && s.contains('us') && s.matches('^h.u') && matches(s, 'r$')",
        "has(this.a) && has(a) && !has(this.nothing) && has(m.x) && !has(m.y) && has(n) && has((yes ? m : this).x)",
        "timestamp(at) > timestamp('2026-11-15T11:59:59.999Z') && timestamp(at) - timestamp(0) > duration('400000h')",
        "timestamp(at) + duration('1h30m') == timestamp('2026-11-15T14:30:00+01:00')",
        "duration('90s') == duration('1m30s') && -duration('1s') < duration('0')",
        "now() > timestamp('2025-01-01T00:00:00Z')",
        "distance(p, reader.p) == 0.0 && distance(p, [47, 9]) > 70000.0 && distance(p, [47, 9]) < 80000",
        "key == 'k1' && this.key == 'k1' && key.startsWith('k')",
        "reader.age == 20 && user.id == 'u1' && 'staff' in reader.groups && 'age' in reader",
        "twice(a) == 6 && twice(2) == 4",
        "[1, a] == [1.0, 3.0] && [1] + [2] == [1, 2] && 'a' + 'b' == 'ab' && b'\\x00' + b'\\377' == raw",
        "r'\\n' == '\\\\n' && '\\u00e4' == 'ä' && \"\"\"a\nb\"\"\" == 'a\\nb' && 0x10 == 16 && 1e3 == 1000 && .5 == 0.5",
        "a == 3 // and a remark\n && yes",
        "false || a == 3 ? true : false",
        "true",
    ];
    for text in holding {
        assert_eq!(evaluate(text), Ok(true), "{text}");
    }
}

#[test]
fn a_closed_table_has_no_other_columns() {
    let columns = [("price".to_owned(), Kinds::INT), ("at".to_owned(), Kinds::MAP)];
    let closed = Dialect { columns: columns.into(), closed: true, ..dialect() };
    for text in
        ["price < 3", "this.price < 3 && at.city == 'x'", "has(at.x)", "key == 'k' && reader.prise == user.prise"]
    {
        assert!(Predicate::compile(text, &closed).is_ok(), "{text}");
    }
    for (text, column) in [("prise < 3", 1), ("price < 3 && has(prise)", 18), ("price < 3 || this.prise.x in [1]", 14)]
    {
        let refusal = Predicate::compile(text, &closed).expect_err(text);
        assert_eq!(
            (refusal.wrong, refusal.place.as_ref().map(|place| place.column)),
            (Wrong::Name, Some(column)),
            "{text}"
        );
        assert!(refusal.to_string().contains("the table has no column `prise`"), "{refusal}");
        assert!(Predicate::compile(text, &Dialect { closed: false, ..closed.clone() }).is_ok(), "{text}");
    }
}

#[test]
fn missing_fields_and_wrong_kinds_are_faults() {
    for text in ["nothing == 1", "nothing != 1", "m.y == 1", "a.x == 1", "has(nothing.x)", "user.nothing == 1"] {
        assert!(matches!(evaluate(text), Err(Fault::Missing | Fault::WrongKind)), "{text}");
    }
    for text in [
        "s < 3",
        "a < s",
        "a + s == 1",
        "a + f == 5.5",
        "!a",
        "a && yes",
        "a ? yes : yes",
        "a in s",
        "t < t",
        "size(a) == 1",
    ] {
        assert_eq!(evaluate(text), Err(Fault::WrongKind), "{text}");
    }
}

#[test]
fn what_decides_hides_faults_in_either_order_and_nothing_else_does() {
    for text in ["false && nothing", "nothing && false", "!(yes && (nothing || true) && false)"] {
        assert!(evaluate(text).is_ok(), "{text}");
    }
    assert_eq!(evaluate("true || nothing"), Ok(true));
    assert_eq!(evaluate("nothing || true"), Ok(true));
    for text in
        ["true && nothing", "nothing && true", "false || nothing", "nothing || false", "!nothing", "nothing || nothing"]
    {
        assert_eq!(evaluate(text), Err(Fault::Missing), "{text}");
    }
    assert_eq!(evaluate("nothing ? true : true"), Err(Fault::Missing));
}

#[test]
fn a_fault_denies_even_under_not() {
    let reader = packed([]);
    let (key, this) = (Key::from("k"), packed([]));
    let scope = Scope::record(&key, &this).read_by(&reader, &reader);
    assert!(!predicate("reader.age < 21").holds(&scope));
    assert!(!predicate("!(reader.age < 21)").holds(&scope));
}

#[test]
fn null_nan_and_mixed_kinds_compare_as_r12_says() {
    for text in [
        "n == null",
        "n != 3",
        "!(n == false)",
        "!(s == 3)",
        "s != 3",
        "nan != nan",
        "!(nan == nan)",
        "!(nan < 1)",
        "!(nan >= 1)",
    ] {
        assert_eq!(evaluate(text), Ok(true), "{text}");
    }
    for text in ["n < 3", "n <= n"] {
        assert_eq!(evaluate(text), Err(Fault::WrongKind), "{text}");
    }
    assert_eq!(
        evaluate("most < 9223372036854775808.0 && most > 9223372036854774784.0 && least == -9223372036854775808.0"),
        Ok(true)
    );
    assert_eq!(evaluate("most == 9223372036854775807 && least == -9223372036854775808"), Ok(true));
}

#[test]
fn overflow_and_division_by_zero_are_faults() {
    for text in [
        "most + 1 > 0",
        "least - 1 < 0",
        "most * 2 > 0",
        "-least > 0",
        "least / -1 > 0",
        "1e308 * 10.0 > f",
        "twice(most) > 0",
    ] {
        assert_eq!(evaluate(text), Err(Fault::Overflow), "{text}");
    }
    for text in ["a / 0 == 1", "a % 0 == 1", "f / 0.0 > 1.0"] {
        assert_eq!(evaluate(text), Err(Fault::DivisionByZero), "{text}");
    }
    assert_eq!(evaluate("timestamp(most) > timestamp(0)"), Err(Fault::Overflow));
    assert_eq!(evaluate("timestamp(s) > timestamp(0)"), Err(Fault::BadTime));
    assert_eq!(evaluate("distance(p, [91, 0]) > 1.0"), Err(Fault::BadPlace));
}

#[test]
fn all_bytes_come_before_all_strings() {
    let mut keys = vec![Key::from("a"), Key::from(&[255u8][..]), Key::from(""), Key::from(&[][..])];
    keys.sort();
    assert_eq!(keys, [Key::from(&[][..]), Key::from(&[255u8][..]), Key::from(""), Key::from("a")]);
}

/// What a refusal says, as a person sees it.
fn refused(text: &str) -> (Wrong, String) {
    let refusal = Predicate::compile(text, &dialect()).err().unwrap_or_else(|| panic!("{text} is taken"));
    (refusal.wrong, refusal.to_string())
}

#[test]
fn errors_point_at_their_place() {
    let (wrong, shown) = refused("topic == 'arts' &&\n  price <");
    assert_eq!(wrong, Wrong::Syntax);
    assert_eq!(shown, "expected a value, found the end (line 2, column 10)\n    price <\n           ^");
    let (wrong, shown) = refused("'ä' == name && 'b' < 3");
    assert_eq!(wrong, Wrong::Type);
    assert_eq!(shown, "string and int have no order (line 1, column 16)\n  'ä' == name && 'b' < 3\n                 ^");
    let (_, shown) = refused(&format!("{} = 1", "x && ".repeat(100) + "y"));
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].len() < 120, "{shown}");
    let caret = lines[2].find('^').expect("a caret");
    assert_eq!(&lines[1][caret..=caret], "=", "{shown}");
}

#[test]
fn what_could_never_be_evaluated_is_refused() {
    let cases = [
        ("", Wrong::Syntax),
        ("a = 3", Wrong::Syntax),
        ("a == 'x", Wrong::Syntax),
        ("a[0] == 1", Wrong::Syntax),
        ("a == {}", Wrong::Syntax),
        ("1u == a", Wrong::Syntax),
        ("99999999999999999999 == a", Wrong::Syntax),
        ("9223372036854775808 == a", Wrong::Syntax),
        ("1e999 == f", Wrong::Syntax),
        ("'\\q' == s", Wrong::Syntax),
        ("'\\ud800' == s", Wrong::Syntax),
        ("for == 1", Wrong::Syntax),
        ("a == 1)", Wrong::Syntax),
        ("s.matches('(')", Wrong::Syntax),
        ("t.exists(x, x == 1)", Wrong::Name),
        ("nope(a)", Wrong::Name),
        ("s.nope()", Wrong::Name),
        ("3", Wrong::Type),
        ("'a' + 1 == 'a1'", Wrong::Type),
        ("1 + 1.5 == 2.5", Wrong::Type),
        ("!3", Wrong::Type),
        ("at > timestamp('2026-01-01T00:00:00Z')", Wrong::Type),
        ("s.matches(t)", Wrong::Type),
        ("has(3)", Wrong::Type),
        ("size(a, t) == 1", Wrong::Type),
        ("twice('x') == 2", Wrong::Type),
        ("a in 3", Wrong::Type),
        ("s.matches('\\\\w{900}')", Wrong::TooLarge),
    ];
    for (text, wanted) in cases {
        let (wrong, shown) = refused(text);
        assert_eq!(wrong, wanted, "{text}: {shown}");
        assert!(shown.contains('^'), "{text}: {shown}");
    }
}

#[test]
fn a_schema_is_checked_against() {
    let mut dialect = dialect();
    dialect.columns.insert("price".to_owned(), Kinds::FLOAT);
    assert_eq!(Predicate::compile("price < 'x'", &dialect).expect_err("no order").wrong, Wrong::Type);
    assert_eq!(Predicate::compile("price + 1 < 3.0", &dialect).expect_err("no sum").wrong, Wrong::Type);
    Predicate::compile("price + 1.0 < 3 && other < 'x'", &dialect).expect("fits");
}

#[test]
fn r9_live_predicates_depend_on_nothing_that_changes_unwritten() {
    let mut dialect = dialect();
    dialect.joined = Some("author".to_owned());
    for text in ["timestamp(at) > now()", "dice(a) > 3", "author.name == 'x'"] {
        let refusal = Predicate::compile(text, &dialect).expect("a predicate").check_live().expect_err(text);
        assert_eq!(refusal.wrong, Wrong::NotLive, "{text}");
    }
    predicate("twice(a) > 3 && a in reader.t").check_live().expect("pure");
}

/// What a function does wrong is a fault, and nothing else.
#[test]
fn functions_hear_and_give_what_they_say() {
    let mut functions = Functions::default();
    type Does = fn(&[Value]) -> Result<Value, Fault>;
    let bodies: [(&str, Does); 3] = [
        ("first", |values| Ok(values[0].clone())),
        ("brittle", |_| panic!("a function of an application")),
        ("liar", |_| Ok(Value::from("text"))),
    ];
    for (name, body) in bodies {
        let (takes, gives) = (vec![Kinds::INT | Kinds::FLOAT], Kinds::INT);
        let udf = Udf { name: name.to_owned(), takes, gives, pure: true, steps: 1, body: Box::new(body) };
        functions.register(udf).expect("new names");
    }
    let dialect = Dialect { functions, ..Dialect::default() };
    let (key, this) = (Key::from("k"), packed([("n", 3.into()), ("f", 1.5.into()), ("s", "x".into())]));
    let value = |text: &str| {
        let expression = Expression::compile(text, &dialect).expect("an expression");
        expression.value(&Scope::record(&key, &this), &mut STEPS.clone())
    };
    assert_eq!(value("first(n)"), Ok(3.into()));
    assert_eq!(value("first(s)"), Err(Fault::WrongKind));
    for text in ["first(f)", "brittle(n)", "brittle(1)", "liar(n)"] {
        assert_eq!(value(text), Err(Fault::Function), "{text}");
    }
    let refusal = Predicate::compile("n > 1 && nope(n)", &dialect).expect_err("no such function");
    let said = "there is no function `nope` here; there are ";
    let shown = refusal.to_string();
    assert!(
        refusal.wrong == Wrong::Name && shown.starts_with(said) && shown.contains("brittle, first, liar"),
        "{shown}"
    );
    assert!(shown.ends_with("\n  n > 1 && nope(n)\n           ^"), "{shown}");
}

#[test]
fn expressions_have_values_and_know_what_was_joined() {
    let mut dialect = dialect();
    dialect.joined = Some("author".to_owned());
    let expression = Expression::compile("title + ' by ' + author.name", &dialect).expect("an expression");
    let (key, this, author) = (Key::from("k"), packed([("title", "Tidings".into())]), packed([("name", "Ada".into())]));
    let scope = Scope::record(&key, &this);
    assert_eq!(expression.value(&scope, &mut STEPS.clone()), Err(Fault::Missing));
    let value = expression.value(&scope.joined_with(&author), &mut STEPS.clone());
    assert_eq!(value, Ok(Value::from("Tidings by Ada")));
}
