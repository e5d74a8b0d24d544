use super::{Aggregate, Ask, AskLookup, Collector, Direction, MAX_HELD, Query, Row, Trouble};
use crate::tests::{dialect, packed, predicate};
use crate::{Fault, Key, Packed, Scope, TooSlow, Value, Wrong};

fn ask() -> Ask {
    Ask::default()
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn people() -> Vec<(Key, Packed)> {
    let person = |name: &str, team: Value, age: Value| (Key::from(name), packed([("team", team), ("age", age)]));
    vec![
        person("ada", "red".into(), 36.into()),
        person("bob", "blue".into(), 20.5.into()),
        person("cyd", "red".into(), Value::Null),
        person("dan", 1.into(), 41.into()),
        person("eve", 1.0.into(), 20.into()),
        (Key::from("fay"), packed([("team", "blue".into())])),
    ]
}

/// The answer over people, all at once and by two partitions that are put together.
fn answer(ask: &Ask) -> Result<Vec<Row>, Trouble> {
    let query = Query::compile(ask, &dialect()).unwrap_or_else(|refusal| panic!("{refusal}"));
    let people = people();
    let collect = |people: &[(Key, Packed)]| {
        let mut collector = Collector::new(&query);
        for (key, columns) in people {
            let scope = Scope::record(key, columns);
            if query.selects(&scope, None).unwrap() {
                collector.add(&scope)?;
            }
        }
        Ok::<_, Trouble>(collector)
    };
    let whole = collect(&people)?.finish();
    let mut parts = collect(&people[4..])?;
    parts.absorb(collect(&people[..4])?)?;
    assert_eq!(parts.finish(), whole);
    whole
}

fn keys(ask: &Ask) -> Vec<String> {
    let key = |row: &Row| match &row.key {
        Some(Key::String(key)) => key.clone(),
        other => panic!("{other:?}"),
    };
    answer(ask).expect("an answer").iter().map(key).collect()
}

#[test]
fn rows_are_projected_ordered_and_limited() {
    assert_eq!(keys(&ask()), ["ada", "bob", "cyd", "dan", "eve", "fay"]);
    assert_eq!(keys(&Ask { predicate: text("age > 20"), ..ask() }), ["ada", "bob", "dan"]);
    let by_age = |direction| Ask { order: vec![(text("age"), direction)], ..ask() };
    // What is missing comes with null, before everything; ties come by key.
    assert_eq!(keys(&by_age(Direction::Ascending)), ["cyd", "fay", "eve", "bob", "ada", "dan"]);
    assert_eq!(keys(&Ask { limit: Some(2), ..by_age(Direction::Descending) }), ["dan", "ada"]);
    let two = vec![(text("team"), Direction::Descending), (text("age"), Direction::Ascending)];
    assert_eq!(keys(&Ask { order: two, ..ask() }), ["cyd", "ada", "fay", "bob", "eve", "dan"]);
    let project = vec![(text("who"), text("key + '!'")), (text("twice"), text("twice(age)"))];
    let rows = answer(&Ask { predicate: text("age == 36"), project: project.clone(), ..ask() }).expect("an answer");
    assert_eq!(rows[0].columns, packed([("who", "ada!".into()), ("twice", 72.into())]));
    assert_eq!(answer(&Ask { project, ..ask() }), Err(Trouble::Fault(Fault::WrongKind)));
    let whole = answer(&Ask { predicate: text("key == 'fay'"), ..ask() }).expect("an answer");
    assert_eq!(whole[0].columns, packed([("team", "blue".into())]));
}

#[test]
fn groups_are_counted_summed_and_compared() {
    let aggregates = vec![
        (text("n"), Aggregate::Count, text("")),
        (text("aged"), Aggregate::Count, text("age")),
        (text("sum"), Aggregate::Sum, text("age")),
        (text("mean"), Aggregate::Avg, text("age")),
        (text("least"), Aggregate::Min, text("age")),
        (text("most"), Aggregate::Max, text("age")),
    ];
    let row = |team: Option<Value>, n: i64, aged: i64, rest: [Value; 4]| {
        let [sum, mean, least, most] = rest;
        let columns =
            [("n", n.into()), ("aged", aged.into()), ("sum", sum), ("mean", mean), ("least", least), ("most", most)];
        let team = team.map(|team| ("team", team));
        Row { key: None, columns: Packed::columns(columns.into_iter().chain(team)).expect("not deep") }
    };
    let by_team = Ask { group_by: vec![(text("team"), text("team"))], aggregates: aggregates.clone(), ..ask() };
    let rows = answer(&by_team).expect("an answer");
    assert_eq!(rows[0], row(Some(1.into()), 2, 2, [61.into(), 30.5.into(), 20.into(), 41.into()]));
    assert_eq!(rows[1], row(Some("blue".into()), 2, 1, [20.5.into(), 20.5.into(), 20.5.into(), 20.5.into()]));
    assert_eq!(rows[2], row(Some("red".into()), 2, 1, [36.into(), 36.0.into(), 36.into(), 36.into()]));
    assert_eq!(rows.len(), 3);
    let none = Ask { predicate: text("age > 99"), aggregates, ..ask() };
    let nothing = [0.into(), Value::Null, Value::Null, Value::Null];
    assert_eq!(answer(&none), Ok(vec![row(None, 0, 0, nothing)]));
    assert_eq!(answer(&Ask { limit: Some(1), ..by_team }).map(|rows| rows.len()), Ok(1));
}

#[test]
fn sums_are_exact_or_faults() {
    let ask = Ask { aggregates: vec![(text("sum"), Aggregate::Sum, text("a"))], ..ask() };
    let query = Query::compile(&ask, &dialect()).expect("a query");
    let sum = |values: &[Value]| {
        let mut collector = Collector::new(&query);
        for value in values {
            collector.add(&Scope::record(&Key::from("k"), &packed([("a", value.clone())])))?;
        }
        Ok(collector.finish()?[0].columns.clone())
    };
    let most = Value::Int(i64::MAX);
    assert_eq!(sum(&[most.clone(), 1.into(), (-1).into()]), Ok(packed([("sum", most.clone())])));
    assert_eq!(sum(&[most, 1.into()]), Err(Trouble::Fault(Fault::Overflow)));
    assert_eq!(sum(&["x".into()]), Err(Trouble::Fault(Fault::WrongKind)));
}

#[test]
fn what_has_no_order_is_refused_and_what_is_held_is_bounded() {
    let by = |name: &str, value: Value, limit| {
        let ask = Ask { order: vec![(text(name), Direction::Ascending)], limit, ..ask() };
        let query = Query::compile(&ask, &dialect()).expect("a query");
        Collector::new(&query).add(&Scope::record(&Key::from("k"), &packed([("a", value)])))
    };
    assert_eq!(by("a", f64::NAN.into(), None), Err(Trouble::Fault(Fault::NotANumber)));
    assert_eq!(by("a", vec![1].into(), None), Err(Trouble::Fault(Fault::WrongKind)));
    assert_eq!(by("a", 1.into(), Some(MAX_HELD + 1)), Ok(()));
    // A limit beyond what may be held is refused as soon as more is.
    let many = Ask { order: vec![(text("a"), Direction::Ascending)], limit: Some(2 * MAX_HELD), ..ask() };
    let query = Query::compile(&many, &dialect()).expect("a query");
    let (mut collector, row) = (Collector::new(&query), packed([("a", 1.into())]));
    let mut add = |n: usize| collector.add(&Scope::record(&Key::String(n.to_string()), &row));
    assert_eq!((0..MAX_HELD).try_for_each(&mut add), Ok(()));
    assert_eq!(add(MAX_HELD), Err(Trouble::TooMany));
    let large = packed([("a", "x".repeat(1 << 20).as_str().into())]);
    let held = |limit| {
        let ask = Ask { order: vec![(text("key"), Direction::Ascending)], limit, ..ask() };
        let query = Query::compile(&ask, &dialect()).expect("a query");
        let mut collector = Collector::new(&query);
        (0..100).try_for_each(|number| collector.add(&Scope::record(&Key::String(format!("{number:02}")), &large)))
    };
    assert_eq!((held(None), held(Some(90)), held(Some(20))), (Err(Trouble::TooMany), Err(Trouble::TooMany), Ok(())));
    let query = Query::compile(&Ask { limit: Some(3), ..ask() }, &dialect()).expect("a query");
    let mut collector = Collector::new(&query);
    for number in 0..100 {
        let key = Key::String(format!("{number:02}"));
        collector.add(&Scope::record(&key, &Packed::empty())).expect("room");
        assert_eq!(collector.is_full(), number >= 2);
    }
    let rows = collector.finish().expect("rows");
    assert_eq!((rows.len(), &rows[2].key), (3, &Some(Key::from("02"))));
}

#[test]
fn another_table_is_looked_into_by_key() {
    let lookup = AskLookup { table: text("authors"), key: text("by"), name: text("author") };
    let project = vec![(text("who"), text("author.name")), (text("by"), text("by"))];
    let ask = Ask { lookup: Some(lookup.clone()), project, ..ask() };
    let query = Query::compile(&ask, &dialect()).expect("a query");
    let (key, post, author) = (Key::from("p"), packed([("by", "a1".into())]), packed([("name", "Ada".into())]));
    let scope = Scope::record(&key, &post);
    assert_eq!(query.lookup_key(&scope), Ok(Some(("authors", Key::from("a1")))));
    assert_eq!(query.lookup_key(&Scope::record(&key, &Packed::empty())), Ok(None));
    let mut collector = Collector::new(&query);
    collector.add(&scope.joined_with(&author)).expect("a row");
    collector.add(&scope).expect("a row");
    let rows = collector.finish().expect("rows");
    assert_eq!(rows[0].columns, packed([("who", "Ada".into()), ("by", "a1".into())]));
    assert_eq!(rows[1].columns, packed([("by", "a1".into())]));
    assert_eq!(query.check_live().expect_err("another table").wrong, Wrong::NotLive);
    for (key, name) in [("by", "this"), ("3", "author"), ("by", "")] {
        let lookup = AskLookup { key: text(key), name: text(name), ..lookup.clone() };
        assert!(Query::compile(&Ask { lookup: Some(lookup), ..super::Ask::default() }, &dialect()).is_err());
    }
}

#[test]
fn r9_live_queries_may_order_and_aggregate_but_not_ask_the_time() {
    let live =
        |ask: Ask| Query::compile(&ask, &dialect()).expect("a query").check_live().map_err(|refusal| refusal.wrong);
    assert_eq!(live(Ask { order: vec![(text("a"), Direction::Ascending)], limit: Some(1), ..ask() }), Ok(()));
    assert_eq!(live(Ask { predicate: text("timestamp(at) < now()"), ..ask() }), Err(Wrong::NotLive));
    assert_eq!(live(Ask { project: vec![(text("n"), text("dice(a)"))], ..ask() }), Err(Wrong::NotLive));
}

#[test]
fn a_record_that_its_writer_hides_is_in_no_answer() {
    let query = Query::compile(&ask(), &dialect()).expect("a query");
    let (key, this, nobody) = (Key::from("k"), packed([]), packed([]));
    let writer = predicate("!(reader.age < 21)");
    let shown = |age: Value| {
        query.selects(&Scope::record(&key, &this).read_by(&packed([("age", age)]), &nobody), Some(&writer)).unwrap()
    };
    assert!(shown(21.into()) && !shown(20.into()) && !shown("old".into()));
    assert_eq!(query.selects(&Scope::record(&key, &this).read_by(&nobody, &nobody), Some(&writer)), Ok(false));
}

/// Who asks too much of a record is told, if the record is shown to him; a writer who does shows it to nobody.
#[test]
fn what_is_too_slow_is_told_to_whoever_asks_it() {
    let slow = vec!["s.contains('y')"; 1_000].join(" || ");
    let compile = |ask: Ask| Query::compile(&ask, &dialect()).expect("a query");
    let query = compile(Ask { predicate: slow.clone(), ..ask() });
    let (key, this, nobody) = (Key::from("k"), packed([("s", "x".repeat(1 << 20).as_str().into())]), packed([]));
    let scope = Scope::record(&key, &this).read_by(&nobody, &nobody);
    assert_eq!(query.selects(&scope, None), Err(TooSlow));
    for writer in ["false", "reader.age > 3", slow.as_str()] {
        assert_eq!(query.selects(&scope, Some(&predicate(writer))), Ok(false), "{}", writer.len());
    }
    let small = packed([("s", "x".into())]);
    assert_eq!(query.selects(&Scope::record(&key, &small).read_by(&nobody, &nobody), None), Ok(false));
    let lookup = AskLookup { table: text("t"), key: format!("{slow} ? 'a' : 'b'"), name: text("other") };
    assert_eq!(compile(Ask { lookup: Some(lookup), ..ask() }).lookup_key(&scope), Err(TooSlow));
    // All parts of a query share the steps of one evaluation.
    let parts = |count: usize| (0..count).map(|n| (format!("c{n}"), text("s.contains('y')"))).collect::<Vec<_>>();
    let added = |ask: Ask| Collector::new(&compile(ask)).add(&scope);
    assert_eq!(added(Ask { project: parts(3), ..ask() }), Ok(()));
    assert_eq!(added(Ask { project: parts(4), ..ask() }), Err(Trouble::Fault(Fault::TooSlow)));
    assert_eq!(added(Ask { group_by: parts(4), ..ask() }), Err(Trouble::Fault(Fault::TooSlow)));
}

#[test]
fn queries_that_make_no_sense_are_refused() {
    let wrong = |ask: Ask| Query::compile(&ask, &dialect()).expect_err("refused").wrong;
    let count = (text("n"), Aggregate::Count, text(""));
    let many = |number: usize| (format!("c{number}"), text("a"));
    assert_eq!(wrong(Ask { predicate: text("a <"), ..ask() }), Wrong::Syntax);
    assert_eq!(wrong(Ask { project: (0..65).map(many).collect(), ..ask() }), Wrong::TooLarge);
    assert_eq!(wrong(Ask { project: vec![many(1), many(1)], ..ask() }), Wrong::Name);
    assert_eq!(wrong(Ask { project: vec![many(1)], aggregates: vec![count], ..ask() }), Wrong::Name);
    assert_eq!(wrong(Ask { aggregates: vec![(text("s"), Aggregate::Sum, text("'x'"))], ..ask() }), Wrong::Type);
    assert_eq!(wrong(Ask { aggregates: vec![(text("s"), Aggregate::Sum, text(""))], ..ask() }), Wrong::Type);
}
