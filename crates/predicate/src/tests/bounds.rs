//! Texts and data that nobody should write: no panic, bounded time and depth, a named refusal.

use super::texts::{data, text};
use super::{dialect, packed, predicate};
use crate::{BadData, Fault, Key, MAX_TEXT, MAX_VALUE_DEPTH, Packed, Predicate, STEPS, Scope, TooSlow, Value, Wrong};
use proptest::prelude::*;

fn wrong(text: &str) -> Wrong {
    Predicate::compile(text, &dialect()).err().unwrap_or_else(|| panic!("taken: {} bytes", text.len())).wrong
}

#[test]
fn too_large_and_too_deep_texts_are_refused() {
    assert_eq!(wrong(&format!("s == '{}'", "x".repeat(MAX_TEXT))), Wrong::TooLarge);
    let deep = 20_000;
    for text in [
        "(".repeat(deep),
        "!".repeat(deep) + "yes",
        "-".repeat(deep) + "a",
        "[".repeat(deep),
        "a ? b : ".repeat(deep / 4) + "c",
        "size(".repeat(deep / 4),
        "a == ".repeat(deep / 4) + "a",
        "1".to_owned() + &" + a".repeat(deep / 4) + " == 1",
    ] {
        assert_eq!(wrong(&text), Wrong::TooLarge, "{}", &text[..40]);
    }
    let names: Vec<String> = (0..3_000).map(|number| format!("c{number} == 1")).collect();
    assert_eq!(wrong(&names.join(" && ")), Wrong::TooLarge);
    let patterns: Vec<String> = (0..100).map(|number| format!("s.matches('{number}')")).collect();
    assert_eq!(wrong(&patterns.join(" || ")), Wrong::TooLarge);
}

#[test]
fn long_chains_are_not_deep() {
    let chain: Vec<String> = (0..5_000).map(|number| format!("a == {number}")).collect();
    let (key, this) = (Key::from("k"), packed([("a", 4_999.into())]));
    assert!(predicate(&chain.join(" || ")).holds(&Scope::record(&key, &this)));
    let sums = format!("a in [{}]", vec!["1 + 1"; 5_000].join(", "));
    assert!(!predicate(&sums).holds(&Scope::record(&key, &this)));
    predicate(&format!("a{} == 1", ".b".repeat(1_000)));
}

#[test]
fn an_evaluation_ends_when_its_steps_are_spent() {
    let (key, this) = (Key::from("k"), packed([("s", "x".repeat(1 << 20).as_str().into())]));
    let scope = Scope::record(&key, &this);
    // No operator hides it: what is too slow ends at once.
    let text = vec!["s.contains('y')"; 1_000].join(" || ") + " || true";
    assert_eq!(predicate(&text).evaluate(&scope, &mut 200_000), Err(Fault::TooSlow));
    assert_eq!(predicate("s + s + s + s == s").evaluate(&scope, &mut 200_000), Err(Fault::TooSlow));
    assert_eq!(predicate("s.contains('y')").evaluate(&scope, &mut 200_000), Ok(false));
    // Looking for a field costs what stands before it.
    let names = (0..50_000).map(|number| format!("c{number:05}")).chain(["z".to_owned()]);
    let wide = Packed::columns(names.map(|name| (name, Value::Int(1)))).unwrap();
    let wide = Scope::record(&key, &wide);
    let text = |count: usize| vec!["z == 2"; count].join(" || ");
    assert_eq!(predicate(&text(60)).evaluate(&wide, &mut 200_000), Ok(false));
    assert_eq!(predicate(&text(70)).evaluate(&wide, &mut 200_000), Err(Fault::TooSlow));
    assert_eq!(predicate(&["has(a)"; 70].join(" || ")).evaluate(&wide, &mut 200_000), Err(Fault::TooSlow));
    let mut steps = 2;
    assert_eq!(predicate("s == 'x'").evaluate(&scope, &mut steps), Err(Fault::TooSlow));
}

#[test]
fn what_an_equality_leaves_out_is_not_evaluated() {
    let (key, this) = (Key::from("k"), packed([("s", "x".repeat(1 << 20).as_str().into()), ("team", "a".into())]));
    let nobody = Packed::empty();
    let scope = Scope::record(&key, &this).read_by(&nobody, &nobody);
    let slow = ["s.contains('y')"; 5].join(" || ");
    for (text, wanted) in [
        ("(SLOW) && team == 'b'", Ok(false)),
        ("(SLOW) && team == 'a'", Err(TooSlow)),
        ("(SLOW) && none == 1", Ok(false)),
        ("(SLOW) && team in ['b', 'c'] && !(team != 'b')", Ok(false)),
        ("(SLOW) && (team == 'b' || team < 'a')", Ok(false)),
        ("(SLOW) && (team == 'b' || team != 'c')", Err(TooSlow)),
        ("(SLOW) && !(team == 'b')", Err(TooSlow)),
        ("(SLOW) && reader.none == 1", Ok(false)),
        ("SLOW || team == 'b'", Err(TooSlow)),
        ("(SLOW ? team : team) == 'b'", Err(TooSlow)),
    ] {
        assert_eq!(predicate(&text.replace("SLOW", &slow)).holds_in_time(&scope), wanted, "{text}");
    }
}

#[test]
fn a_pattern_costs_as_much_as_it_may_take() {
    let key = Key::from("k");
    // No table of its states fits: each byte is held against all of its program.
    let large = "s.matches('a[ab]{3000}[cd]')";
    for (length, text, wanted) in [
        (16 << 10, large, Err(Fault::TooSlow)),
        (1_000, large, Ok(false)),
        (1 << 20, "s.matches('^a+c')", Ok(false)),
        (1 << 20, "s.matches('^a[ab]+b$')", Ok(true)),
    ] {
        let this = packed([("s", "ab".repeat(length / 2).as_str().into())]);
        assert_eq!(
            predicate(text).evaluate(&Scope::record(&key, &this), &mut STEPS.clone()),
            wanted,
            "{text} {length}"
        );
    }
}

#[test]
fn data_that_is_too_deep_or_malformed_is_refused() {
    let mut value = Value::Null;
    for _ in 0..=MAX_VALUE_DEPTH {
        value = Value::List(vec![value]);
    }
    assert_eq!(Packed::pack(&value), Err(BadData::TooDeep));
    let mut bytes = vec![0];
    for _ in 0..70 {
        bytes = [vec![7, bytes.len() as u8], bytes].concat();
    }
    assert!(bytes.len() < 256 && Packed::parse(&bytes).is_err());
    // Names out of order, a name twice, times as data, text that is not UTF-8, a length beyond the end.
    for bad in [
        &[8, 6, 1, b'b', 0, 1, b'a', 0][..],
        &[8, 6, 1, b'a', 0, 1, b'a', 0],
        &[9, 0],
        &[5, 1, 0xff],
        &[6, 9, 1],
        &[0, 0],
        &[],
    ] {
        assert_eq!(Packed::parse(bad), Err(BadData::Malformed), "{bad:?}");
    }
    let named = Packed::columns([("ключ", Value::from(1)), ("", Value::Null)]).expect("not deep");
    assert_eq!(Packed::parse(named.as_bytes()), Ok(named));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,80}") {
        let _ = Predicate::compile(&text, &dialect());
    }

    #[test]
    fn no_words_in_any_order_make_it_panic(
        words in prop::collection::vec(prop::sample::select(vec![
            "a", "this", "reader", ".", "(", ")", "[", "]", ",", "&&", "||", "!", "-", "+", "*", "/", "%", "<", "<=", "==",
            "!=", "in", "?", ":", "1", "-9223372036854775808", "1.5", "'x'", "b'\\377'", "r'\\'", "null", "true", "has", "size",
            "startsWith", "matches", "timestamp", "duration", "distance", "now", "twice", "key", "'", "\\", "é", "\n",
        ]), 0..24)
    ) {
        if let Ok(predicate) = Predicate::compile(&words.join(" "), &dialect()) {
            let (key, empty) = (Key::from("k"), Packed::empty());
            predicate.holds(&Scope::record(&key, &empty).read_by(&empty, &empty));
        }
    }

    #[test]
    fn a_text_with_one_wrong_byte_does_not_panic(text in text(), at in any::<prop::sample::Index>(), with in any::<char>()) {
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        chars[at] = with;
        let _ = Predicate::compile(&chars.into_iter().collect::<String>(), &dialect());
    }

    #[test]
    fn no_bytes_make_packed_data_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), text in text()) {
        if let Ok(packed) = Packed::parse(&bytes) {
            let key = Key::from("k");
            predicate(&text).holds(&Scope::record(&key, &packed).read_by(&packed, &packed));
            let _ = Packed::pack(&packed.unpack());
        }
    }

    #[test]
    fn packing_loses_nothing(value in data()) {
        let packed = Packed::pack(&value).expect("not deep");
        prop_assert_eq!(format!("{:?}", packed.unpack()), format!("{value:?}"));
        prop_assert_eq!(Packed::parse(packed.as_bytes()), Ok(packed));
    }
}

#[test]
fn a_record_with_many_watchers_is_in_memory_once() {
    let columns = packed([("s", "x".repeat(1 << 10).as_str().into())]);
    assert!(std::ptr::eq(columns.as_bytes(), columns.clone().as_bytes()));
}
