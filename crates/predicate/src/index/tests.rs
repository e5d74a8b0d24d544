//! The index held against evaluating everything.

use super::{Index, Limits, SubscriptionId, Work};
use crate::tests::texts::{key, packed_columns, text};
use crate::tests::{packed, predicate};
use crate::{Key, Meter, Packed, Predicate, STEPS, Scope, Value, Wrong};
use proptest::prelude::*;

/// What can happen to an index.
#[derive(Clone, Debug)]
enum Step {
    Subscribe(String, Packed, Packed),
    Unsubscribe(prop::sample::Index),
    Update(prop::sample::Index, Packed, Packed),
    Match(Key, Packed, Option<String>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (text(), packed_columns(), packed_columns()).prop_map(|(text, data, claims)| Step::Subscribe(text, data, claims)),
        1 => any::<prop::sample::Index>().prop_map(Step::Unsubscribe),
        2 => (any::<prop::sample::Index>(), packed_columns(), packed_columns()).prop_map(|(which, data, claims)| Step::Update(which, data, claims)),
        6 => (key(), packed_columns(), prop::option::of(text())).prop_map(|(key, columns, writer)| Step::Match(key, columns, writer)),
    ]
}

/// An index and all that it should know.
struct Both {
    index: Index,
    all: Vec<(SubscriptionId, Predicate, Packed, Packed)>,
}

impl Both {
    fn new(limits: Limits) -> Both {
        Both { index: Index::new(limits, 7), all: Vec::new() }
    }

    fn subscribe(&mut self, text: &str, data: Packed, claims: Packed) {
        let mut predicate = predicate(text);
        let id = self.index.subscribe(&predicate, &data, &claims).expect("room");
        // What it has in common with others means what it meant alone.
        self.index.intern(id, &mut predicate);
        self.all.push((id, predicate, data, claims));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Subscribe(text, data, claims) => self.subscribe(&text, data, claims),
            Step::Unsubscribe(which) if !self.all.is_empty() => {
                let (id, ..) = self.all.swap_remove(which.index(self.all.len()));
                assert!(self.index.unsubscribe(id));
                assert!(!self.index.unsubscribe(id));
            }
            Step::Update(which, data, claims) if !self.all.is_empty() => {
                let at = which.index(self.all.len());
                let known = &mut self.all[at];
                assert_eq!(self.index.update_data(known.0, &data, &claims), Ok(true));
                (known.2, known.3) = (data, claims);
            }
            Step::Unsubscribe(_) | Step::Update(..) => {}
            Step::Match(key, columns, writer) => {
                let writer = writer.map(|text| predicate(&text));
                self.check(&key, &columns, writer.as_ref());
            }
        }
        assert_eq!(self.index.len(), self.all.len());
    }

    /// Matches a record in both ways.
    fn check(&mut self, key: &Key, columns: &Packed, writer: Option<&Predicate>) -> Work {
        let record = Scope::record(key, columns);
        let mut wanted: Vec<SubscriptionId> = self
            .all
            .iter()
            .filter(|(_, predicate, data, claims)| {
                let scope = record.read_by(data, claims);
                // All of the text, whatever the plan says.
                let holds = |of: &Predicate| of.evaluate(&scope, &mut STEPS.clone()) == Ok(true);
                holds(predicate) && writer.is_none_or(holds)
            })
            .map(|(id, ..)| *id)
            .collect();
        wanted.sort();
        let mut found = Vec::new();
        let work = self.index.matches(&record, writer, &mut found);
        assert_eq!(found, wanted, "{columns:?} {writer:?}");
        work
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]

    #[test]
    fn it_finds_what_evaluating_everything_finds(steps in prop::collection::vec(step(), 1..60), many in prop_oneof![Just(0), Just(5), Just(1_000)]) {
        let mut both = Both::new(Limits { many, ..Limits::default() });
        for step in steps {
            both.take(step);
        }
        // All that is taken leaves again.
        for (id, ..) in std::mem::take(&mut both.all) {
            prop_assert!(both.index.unsubscribe(id));
        }
        let index = both.index;
        prop_assert!(index.is_empty() && index.postings.is_empty() && index.bounds.is_empty());
        prop_assert!(index.by_shape.is_empty() && index.by_fields.is_empty() && index.by_column.is_empty());
        prop_assert!(index.always.is_empty() && index.scanned.is_empty() && index.by_key.is_empty() && index.places == 0);
        prop_assert_eq!(index.scanned_steps, 0);
    }
}

fn nobody() -> Packed {
    Packed::empty()
}

#[test]
fn a_record_is_held_against_few_of_many() {
    let mut both = Both::new(Limits::default());
    for number in 0..3_000i64 {
        let data = packed([("p", vec![47.0 + number as f64 * 0.01, 8.0].into())]);
        let text = match number % 6 {
            0 => format!("topic == 't{number}'"),
            1 => format!("price >= {number} && price < {}", number + 20),
            2 => "distance(loc, reader.p) < 1000.0".to_owned(),
            // Everybody asks for this kind; the sellers differ.
            3 => format!("kind == 'sale' && seller == 's{number}'"),
            4 => format!("name.startsWith('n{number}x')"),
            _ => format!("'tag{number}' in tags && price > 0"),
        };
        both.subscribe(&text, data, nobody());
    }
    let record = packed([
        ("topic", "t600".into()),
        ("price", 1_500.into()),
        ("loc", vec![47.02, 8.001].into()),
        ("kind", "sale".into()),
        ("seller", "s603".into()),
        ("name", "n604xyz".into()),
        ("tags", vec!["tag605", "other"].into()),
    ]);
    let work = both.check(&Key::from("k"), &record, None);
    assert!(work.candidates < 30, "{work:?}");
    assert!(both.index.scanned() == 0);
}

#[test]
fn a_bound_finds_only_those_beyond_it() {
    let mut both = Both::new(Limits::default());
    for number in 0..1_000i64 {
        both.subscribe(&format!("price < {number}"), nobody(), nobody());
        both.subscribe(&format!("{number} <= weight"), nobody(), nobody());
    }
    let record = packed([("price", 995.5.into()), ("weight", 3.into())]);
    let work = both.check(&Key::from("k"), &record, None);
    assert_eq!(work.candidates, 8, "{work:?}");
}

#[test]
fn writers_find_readers_by_the_mirror() {
    let mut both = Both::new(Limits::default());
    for number in 0..3_000i64 {
        let data = packed([
            ("age", (number % 100).into()),
            ("p", vec![number as f64 * 0.02, 8.0].into()),
            ("groups", vec![format!("g{}", number % 500).as_str()].into()),
        ]);
        both.subscribe("true", data, packed([("id", format!("u{number}").as_str().into())]));
    }
    let record = packed([("loc", vec![20.0, 8.0].into()), ("to", vec!["u5", "u7"].into())]);
    for (text, most) in [
        ("user.id == 'u77'", 1),
        ("user.id in to", 2),
        ("distance(reader.p, loc) < 5000", 40),
        ("'g3' in reader.groups && reader.age >= 3", 6),
        ("user.id.startsWith('u299')", 11),
        ("reader.age > 98", 60),
        ("key == 'no' && user.id == 'u1' || user.id == 'u2'", 1),
    ] {
        let work = both.check(&Key::from("k"), &record, Some(&predicate(text)));
        assert!(work.mirrored && work.candidates <= most, "{text}: {work:?}");
    }
    let work = both.check(&Key::from("k"), &record, Some(&predicate("key == 'no'")));
    assert_eq!(work, Work { candidates: 0, evaluated: 1, mirrored: false });
    let (id, ..) = both.all[77];
    both.index.update_data(id, &nobody(), &packed([("id", "somebody".into())])).expect("room");
    let mut found = Vec::new();
    both.index.matches(&Scope::record(&Key::from("k"), &record), Some(&predicate("user.id == 'somebody'")), &mut found);
    assert_eq!(found, [id]);
}

#[test]
fn a_field_is_mirrored_when_going_without_has_cost_as_much() {
    let mut both = Both::new(Limits { many: 10, mirrors: 1, ..Limits::default() });
    for number in 0..1_000i64 {
        let text = if number % 10 == 0 { "true" } else { "a == 1" };
        both.subscribe(text, packed([("n", number.into()), ("m", number.into())]), nobody());
    }
    let record = packed([("b", 1.into())]);
    let mut asked = |text: &str| both.check(&Key::from("k"), &record, Some(&predicate(text))).mirrored;
    // A hundred candidates each time, a thousand readers to mirror.
    let first = (1..20).find(|_| asked("reader.n == 500"));
    assert_eq!(first, Some(10));
    // One field has room, and the other is asked for as often.
    assert_eq!((1..20).find(|_| asked("reader.m == 500")), Some(10));
    assert!(!asked("reader.n == 500") && asked("reader.m == 501"));
}

#[test]
fn a_writer_that_asks_the_time_shows_nothing_live() {
    let mut index = Index::new(Limits::default(), 1);
    index.subscribe(&predicate("true"), &nobody(), &nobody()).expect("room");
    let (key, record, mut found) = (Key::from("k"), packed([]), Vec::new());
    for text in ["now() > timestamp(0)", "now() > timestamp(0) || reader.a == 1"] {
        index.matches(&Scope::record(&key, &record).at(1), Some(&predicate(text)), &mut found);
    }
    assert!(found.is_empty());
}

#[test]
fn a_reader_moves_without_subscribing_again() {
    let mut index = Index::new(Limits::default(), 1);
    let at = |lat: f64| packed([("p", vec![lat, 8.0].into())]);
    let id = index.subscribe(&predicate("distance(loc, reader.p) < 1000"), &at(47.0), &nobody()).expect("room");
    let here = |index: &mut Index, lat: f64| {
        let mut found = Vec::new();
        let record = packed([("loc", vec![lat, 8.0].into())]);
        index.matches(&Scope::record(&Key::from("k"), &record), None, &mut found);
        found == [id]
    };
    assert!(here(&mut index, 47.0) && !here(&mut index, 48.0));
    assert_eq!(index.update_data(id, &at(48.0), &nobody()), Ok(true));
    assert!(!here(&mut index, 47.0) && here(&mut index, 48.0));
    assert_eq!(index.update_data(id, &nobody(), &nobody()), Ok(true));
    assert!(!here(&mut index, 47.0) && !here(&mut index, 48.0));
}

#[test]
fn what_cannot_be_looked_up_is_bounded_by_name() {
    let limits = Limits { scanned: 2, templates: 6, subscriptions: 8, reader_data: 100, ..Limits::default() };
    let mut index = Index::new(limits, 1);
    let mut subscribe =
        |text: &str| index.subscribe(&predicate(text), &nobody(), &nobody()).map_err(|refusal| refusal.wrong);
    assert!(subscribe("a != 1").is_ok() && subscribe("a != 2").is_ok());
    assert_eq!(subscribe("a != 3"), Err(Wrong::Full));
    assert_eq!(subscribe("!(a < 3)"), Err(Wrong::Full));
    // What holds for everybody needs no evaluation, and what is looked up is not counted.
    assert!(subscribe("true").is_ok() && subscribe("a == 1 && b != 2").is_ok() && subscribe("a < 1 || b == 2").is_ok());
    assert!(subscribe("c == 1").is_ok() && subscribe("d == 1").is_ok());
    assert_eq!(subscribe("e == 1"), Err(Wrong::Full));
    assert!(subscribe("d == 2").is_ok());
    assert_eq!(subscribe("d == 3"), Err(Wrong::Full));
    let mut index_of_values = Index::new(Limits { places: 5, ..Limits::default() }, 1);
    let mut subscribe =
        |text: &str| index_of_values.subscribe(&predicate(text), &nobody(), &nobody()).map_err(|refusal| refusal.wrong);
    assert!(subscribe("a in [1, 2, 3]").is_ok() && subscribe("a == 1 || b == 2").is_ok());
    assert_eq!(subscribe("a == 1"), Err(Wrong::Full));
    let mut index_of_patterns = Index::new(Limits { patterns: 2, ..Limits::default() }, 1);
    let mut subscribe = |text: &str| {
        index_of_patterns.subscribe(&predicate(text), &nobody(), &nobody()).map_err(|refusal| refusal.wrong)
    };
    assert!(subscribe("a.matches('x') && b.matches('y')").is_ok() && subscribe("c == 1").is_ok());
    assert_eq!(subscribe("a.matches('z')"), Err(Wrong::Full));
    assert_eq!(index.len(), 8);
    let large = packed([("s", "x".repeat(200).as_str().into())]);
    let refusal = Index::new(limits, 1).subscribe(&predicate("true"), &large, &nobody()).expect_err("large");
    assert_eq!(refusal.wrong, Wrong::TooLarge);
    let refusal =
        Index::new(limits, 1).subscribe(&predicate("now() > timestamp(a)"), &nobody(), &nobody()).expect_err("r9");
    assert_eq!(refusal.wrong, Wrong::NotLive);
}

#[test]
fn what_is_evaluated_for_every_record_is_bounded_by_its_length_too() {
    let mut index = Index::new(Limits { scanned_steps: 1_000, ..Limits::default() }, 1);
    let chain = |count: usize| vec!["a != 1"; count].join(" || ");
    let list = format!("!(a in [{}])", vec!["12345678"; 1_000].join(", "));
    let mut subscribe = |text: &str| index.subscribe(&predicate(text), &nobody(), &nobody());
    let long = subscribe(&chain(150)).expect("room");
    for text in [chain(150), list.clone()] {
        assert_eq!(subscribe(&text).expect_err("full").wrong, Wrong::Full);
    }
    let short = subscribe("a != 1").expect("room");
    // What is looked up may be as long as it likes.
    let indexed = subscribe(&format!("b == 1 && ({})", chain(1_000))).expect("room");
    assert!(
        index.crowds(long, index.template_of(long).unwrap(), 2)
            && index.crowds(short, index.template_of(short).unwrap(), 2)
    );
    assert!(!index.crowds(indexed, index.template_of(indexed).unwrap(), 2));
    assert!(index.unsubscribe(long) && !index.crowds(short, index.template_of(short).unwrap(), 2));
    index.subscribe(&predicate(&chain(150)), &nobody(), &nobody()).expect("room");
    // The longest text that there may be has a third of all.
    let mut index = Index::new(Limits::default(), 1);
    let longest = format!("a{}", "||a".repeat((crate::MAX_TEXT - 1) / 3));
    for _ in 0..3 {
        index.subscribe(&predicate(&longest), &nobody(), &nobody()).expect("room");
    }
    assert_eq!(index.subscribe(&predicate(&longest), &nobody(), &nobody()).expect_err("full").wrong, Wrong::Full);
}

#[test]
fn predicates_of_one_shape_hold_it_once() {
    let mut index = Index::new(Limits::default(), 1);
    let mut all = ["a == 1 && b != 2", "a == 3 && b != 4", "a == 1 || b != 2"].map(predicate);
    let [first, second, _] = &all;
    assert!(!first.shares_with(second));
    for predicate in &mut all {
        let id = index.subscribe(predicate, &nobody(), &nobody()).expect("room");
        index.intern(id, predicate);
    }
    let [first, second, other] = &all;
    assert!(first.shares_with(second) && !first.shares_with(other));
    let (key, record) = (Key::from("k"), packed([("a", 3.into()), ("b", 2.into())]));
    assert_eq!(all.each_ref().map(|one| one.holds(&Scope::record(&key, &record))), [false, true, false]);
}

#[test]
fn a_bound_that_leaves_out_nothing_finds_nothing() {
    let limits = Limits { scanned: 0, ..Limits::default() };
    let most = "\u{10ffff}";
    for bound in [
        "key >= ''",
        "key >= reader.none",
        "key.startsWith('')",
        &format!("key <= '{most}'"),
        &format!("key > '' && key < '{most}{most}'"),
        "n >= -9223372036854775808",
        "n < 1e300",
        "yes >= false",
        "yes <= true",
        "distance(loc, [0, 0]) < 30000000",
    ] {
        let mut index = Index::new(limits, 1);
        let reader = packed([("none", "".into())]);
        let mut subscribe = |text: &str| index.subscribe(&predicate(text), &reader, &nobody()).map(drop);
        let residual = format!("{bound} && this.x.contains('a')");
        assert_eq!(subscribe(&residual).expect_err(bound).wrong, Wrong::Full, "{bound}");
        // Found by something else, or with nothing left to be evaluated, it is taken.
        subscribe(&format!("{residual} && team == 'a'")).expect(bound);
        subscribe(bound).expect(bound);
        assert!(index.scanned() == 0);
    }
    let mut index = Index::new(limits, 1);
    for bound in ["key >= 'a'", "key.startsWith('a')", "n >= 0", "distance(loc, [0, 0]) < 1000", "yes >= true"] {
        let residual = format!("{bound} && this.x.contains('a')");
        index.subscribe(&predicate(&residual), &nobody(), &nobody()).expect(bound);
    }
}

#[test]
fn what_is_evaluated_beside_an_equality_is_bounded() {
    let mut both = Both::new(Limits::default());
    for number in 0..200 {
        both.subscribe(&format!("team == 'a' && (text.contains('{number}y') || n == {number})"), nobody(), nobody());
    }
    for number in 0..200 {
        both.subscribe(&format!("team == 'a' && n == {number}"), nobody(), nobody());
    }
    let record = packed([("team", "a".into()), ("n", 7.into()), ("text", "x".repeat(100_000).as_str().into())]);
    let (key, mut found, mut some) = (Key::from("k"), Vec::new(), Vec::new());
    both.check(&key, &record, None);
    let (meter, scope) = (Meter::default(), Scope::record(&key, &record));
    both.index.matches(&scope, None, &mut found);
    assert_eq!(found.len(), 2);
    both.index.matches_within(&scope.metered(&meter), None, 20_000, &mut some);
    assert!(meter.steps() < 50_000, "{}", meter.steps());
    // What was evaluated is known, and of the others none is left out.
    assert!(found.iter().all(|id| some.contains(id)) && (150..300).contains(&some.len()), "{}", some.len());
}

#[test]
fn the_opposite_of_a_comparison_is_not_another_comparison() {
    let mut both = Both::new(Limits::default());
    both.subscribe("!(a < 3)", nobody(), nobody());
    both.subscribe("a >= 3", nobody(), nobody());
    both.subscribe("!(a != 3)", nobody(), nobody());
    for (value, wanted) in [(f64::NAN.into(), 1), (3.into(), 3), (3.0.into(), 3), (2.into(), 0), ("x".into(), 0)] {
        let mut found = Vec::new();
        let record = packed([("a", value)]);
        both.check(&Key::from("k"), &record, None);
        both.index.matches(&Scope::record(&Key::from("k"), &record), None, &mut found);
        assert_eq!(found.len(), wanted, "{record:?}");
    }
    let work = both.check(&Key::from("k"), &packed([("b", 3.into())]), None);
    assert_eq!(work.candidates, 1, "only the first is evaluated for a record without the column");
}

#[test]
fn data_that_there_is_no_room_for_changes_nothing() {
    let mut index = Index::new(Limits { scanned: 0, ..Limits::default() }, 1);
    let list = |length: i64| packed([("t", (0..length).collect::<Vec<_>>().into())]);
    let id = index.subscribe(&predicate("a in reader.t"), &list(10), &nobody()).expect("room");
    assert_eq!(index.update_data(id, &list(2_000), &nobody()).expect_err("full").wrong, Wrong::Full);
    let mut found = Vec::new();
    index.matches(&Scope::record(&Key::from("k"), &packed([("a", 9.into())])), None, &mut found);
    assert_eq!(found, [id]);
    assert!(index.unsubscribe(id) && index.is_empty());
    assert_eq!(index.update_data(id, &list(1), &nobody()), Ok(false));
}

#[test]
fn who_takes_of_what_there_is_little_of_crowds_beyond_its_part() {
    let mut index = Index::new(Limits { scanned: 4, patterns: 4, ..Limits::default() }, 1);
    let mut subscribe = |text: &str| {
        let id = index.subscribe(&predicate(text), &nobody(), &nobody()).unwrap();
        index.crowds(id, index.template_of(id).unwrap(), 2)
    };
    assert!(!subscribe("a != 1") && !subscribe("a != 2") && subscribe("a != 3"));
    assert!(!subscribe("b == 1"), "what is looked up does not");
    assert!(!subscribe("b == 1 && a.matches('x')") && !subscribe("b == 1 && a.matches('y')"));
    assert!(subscribe("b == 1 && a.matches('z')"));
}

#[test]
fn who_is_away_leaves_half_of_the_shapes() {
    let mut index = Index::new(Limits { templates: 4, ..Limits::default() }, 1);
    let mut keep = |text: &str| {
        let id = index.subscribe(&predicate(text), &nobody(), &nobody()).unwrap();
        index.keep(id, 2)
    };
    assert!(keep("a == 1") && keep("b == 1") && !keep("c == 1"));
    assert!(keep("a == 2"), "of a shape that is kept already");
}

#[test]
fn without_room_for_a_scheme_a_predicate_is_scanned() {
    let limits = Limits { schemes: 1, scanned: 1, ..Limits::default() };
    let mut both = Both::new(limits);
    both.subscribe("a == 1", nobody(), nobody());
    both.subscribe("b == 1", nobody(), nobody());
    assert_eq!(both.index.scanned(), 1);
    both.check(&Key::from("k"), &packed([("a", 1.into()), ("b", 1.into())]), None);
    assert_eq!(both.index.subscribe(&predicate("c == 1"), &nobody(), &nobody()).expect_err("full").wrong, Wrong::Full);
}

#[test]
fn very_long_lists_are_scanned_and_many_subscribers_of_one_value_leave() {
    let mut both = Both::new(Limits::default());
    let list = |length: i64| Packed::columns([("t", Value::from((0..length).collect::<Vec<_>>()))]).expect("not deep");
    both.subscribe("a in reader.t", list(1_000), nobody());
    assert_eq!(both.index.scanned(), 0);
    both.subscribe("a in reader.t", list(2_000), nobody());
    assert_eq!(both.index.scanned(), 1);
    for _ in 0..1_000 {
        both.subscribe("a == 7", nobody(), nobody());
    }
    let record = packed([("a", 7.into())]);
    both.check(&Key::from("k"), &record, None);
    for _ in 0..999 {
        let (id, ..) = both.all.remove(2);
        assert!(both.index.unsubscribe(id));
    }
    both.check(&Key::from("k"), &record, None);
}
