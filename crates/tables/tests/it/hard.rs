//! What is hard on a table and must not be: answers without end, storms, crowds, values of every kind, clocks that disagree. And
//! what nobody may learn of a record that is hidden from him.

use crate::client::{agrees, everything, folded, fresh, pages, put, read, shown_to, version, write};
use crate::holding::public;
use crate::world::{World, data, user};
use std::collections::BTreeMap;
use tidings_base::{Error, Wall};
use tidings_predicate::query::{Aggregate, Ask, Direction};
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{Answer, Call, Conflict, Level, Outcome, Page, Read, Span, Update, Write};
use tidings_tables::gateway::{Event, Start, Watch};
use tidings_tables::names::RequestId;
use tidings_tables::processor::Input;
use tidings_tables::refusal::Refusal;

fn columns(key: &str, columns: &[(&str, Value)]) -> Write {
    Write { change: Update::Put { columns: data(columns), predicate: String::new() }, ..put(key, "", 0) }
}

/// A table with so many records, all of them written.
fn filled(records: usize, tune: impl FnOnce(&mut tidings_tables::processor::Options)) -> World {
    let mut world = World::tuned(None, public(), tune);
    let asked: Vec<RequestId> = (0..records)
        .map(|n| {
            let write = put(&format!("k{n:06}"), "a", n as i64);
            world.ask(0, 0, user("ann"), Call::Write(Box::new(write)))
        })
        .collect();
    world.run(5_000);
    for request in asked {
        version(world.answer(request));
    }
    world
}

fn page(world: &mut World, request: RequestId) -> Option<Page> {
    world.run(100);
    match world.answer(request) {
        Some(Ok(Answer::Page(page))) => Some(page),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_of_everything_comes_in_pieces_and_can_be_given_up() {
    const RECORDS: usize = 4_000;
    let mut world = filled(RECORDS, |options| (options.page, options.page_bytes) = (64, 8 << 10));
    let ask = |world: &mut World| {
        let read = read(Span::All, Level::Latest, &Packed::empty());
        world.ask(0, 0, user("ann"), Call::Read(Box::new(read)))
    };
    // Each piece is small, and none comes before it is asked for: nothing is gathered for a reader that is slow.
    let (request, mut found, mut pieces) = (ask(&mut world), 0, 0);
    loop {
        let page = page(&mut world, request).expect("a piece");
        let size: usize = page.records.iter().map(|record| record.columns.as_bytes().len()).sum();
        assert!(size < 2 * (8 << 10), "{size} bytes in one piece");
        (found, pieces) = (found + page.records.len(), pieces + 1);
        if page.last {
            break;
        }
        world.run(2_000);
        assert_eq!(world.answer(request), None, "nobody has asked for it");
        world.tell_processor(0, Input::Pull { request });
    }
    assert_eq!((found, pieces > 5), (RECORDS, true), "{pieces}");
    // One that is given up takes nothing more, and says nothing more.
    let request = ask(&mut world);
    page(&mut world, request).expect("a piece");
    world.tell_processor(0, Input::Cancel { request });
    world.tell_processor(0, Input::Pull { request });
    assert_eq!(page(&mut world, request), None);
    // A live query over everything is as bounded: its window is full, and the rest waits.
    world.taking = false;
    world.watch(1, everything(&user("ann"), &Packed::empty(), ""));
    world.run(10_000);
    let told = world.events.iter().filter(|(_, event)| matches!(event, Ok(Event::Reset { .. }))).count();
    assert!((1..=64).contains(&told), "{told} pieces that nobody has taken");
}

#[test]
fn a_storm_of_queries_is_refused_by_name_and_disturbs_nobody() {
    let mut world = World::tuned(None, public(), |options| options.index.subscriptions = 100);
    let ann = user("ann");
    for number in 1..=100 {
        world.watch(number, everything(&ann, &Packed::empty(), &format!("n == {number}")));
    }
    world.run(1_000);
    for number in 101..=1_000 {
        world.watch(number, everything(&ann, &Packed::empty(), &format!("n == {number}")));
    }
    version(write(&mut world, 0, &ann, put("k", "a", 7)));
    world.run(2_000);
    for number in 101..=1_000 {
        let ended = folded(&world, number).ended.expect("there is no room");
        assert_eq!(Error::from(ended).code, "tables.predicate_full");
    }
    let rows = |number| folded(&world, number).rows.len();
    assert!((1..=100).all(|number| rows(number) == usize::from(number == 7)));
    // Those who were let in are still served, and so is whoever comes when others have left.
    for number in 1..=50 {
        world.tell_gateway(tidings_tables::gateway::Input::Unwatch { number });
    }
    world.run(100);
    world.watch(2_000, everything(&ann, &Packed::empty(), ""));
    world.run(3_000);
    agrees(&mut world, 2_000, &Packed::empty(), "").unwrap();
}

#[test]
fn a_hot_record_reaches_a_crowd_once_each() {
    const CROWD: u64 = 100_000;
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let watch = |predicate| Watch { start: Start::Nothing, ..everything(&ann, &Packed::empty(), predicate) };
    for number in 1..=CROWD {
        world.watch(number, watch("key == 'hot'"));
    }
    world.watch(CROWD + 1, watch("key == 'cold'"));
    world.run(200);
    world.events.clear();
    let last = version(write(&mut world, 0, &ann, put("hot", "a", 1)));
    world.run(200);
    let mut heard = vec![0u8; CROWD as usize + 2];
    for (number, event) in &world.events {
        if let Ok(Event::Changes(changes)) = event {
            assert_eq!(changes.len(), 1);
            heard[*number as usize] += 1;
        }
    }
    assert!(heard[1..=CROWD as usize].iter().all(|times| *times == 1), "{last}");
    assert_eq!(heard[CROWD as usize + 1], 0);
}

#[test]
fn a_column_may_change_its_type() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let asked = "n > 5";
    world.watch(1, everything(&ann, &Packed::empty(), asked));
    world.run(1_000);
    let values = [
        Value::Int(9),
        "nine".into(),
        Value::Float(9.5),
        Value::List(vec![Value::Int(9)]),
        Value::Null,
        Value::Int(7),
        Value::Bool(true),
        Value::Bytes(vec![9]),
        Value::Map(BTreeMap::from([("n".to_owned(), Value::Int(9))])),
        Value::Float(f64::NAN),
        Value::Float(f64::INFINITY),
    ];
    for (at, value) in values.into_iter().enumerate() {
        // What cannot be compared does not match, and is no trouble for what can.
        let matches = matches!(&value, Value::Int(_)) || matches!(&value, Value::Float(n) if *n > 5.0);
        version(write(&mut world, 0, &ann, columns("k", &[("n", value)])));
        world.run(1_500);
        assert_eq!(folded(&world, 1).rows.len(), usize::from(matches), "value {at}");
        agrees(&mut world, 1, &Packed::empty(), asked).unwrap();
    }
}

#[test]
fn keys_and_values_of_every_kind_are_kept_as_they_are() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    // Unnormalised: the two forms of one letter are two keys. A key's order is that of its bytes.
    let keys = ["a\u{0}b", "e\u{301}", "é", "Ａ", "שלום", "日本", "🦀", "\u{10ffff}", "\u{feff}k"];
    let deep = (0..60).fold(Value::Int(1), |inner, _| Value::List(vec![inner]));
    let values = [
        Value::Int(i64::MIN),
        Value::Int(i64::MAX),
        Value::Float(-0.0),
        Value::Float(f64::MIN_POSITIVE),
        Value::Float(f64::NAN),
        Value::Float(f64::NEG_INFINITY),
        deep,
        "\u{0}\u{fffd}".into(),
        Value::Map(BTreeMap::from([(String::new(), Value::Null), ("$int".to_owned(), "5".into())])),
    ];
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(1_000);
    let written: Vec<(Key, Packed)> =
        keys.iter().zip(values).map(|(key, value)| (Key::from(*key), data(&[("v", value)]))).collect();
    for (key, columns) in &written {
        let change = Update::Put { columns: columns.clone(), predicate: String::new() };
        version(write(&mut world, 0, &ann, Write { key: key.clone(), change, ..put("", "", 0) }));
    }
    world.run(3_000);
    let rows = fresh(&mut world, &ann, &Packed::empty(), &Ask::default());
    let found: Vec<(Key, &[u8])> = rows.iter().map(|(key, (_, columns))| (key.clone(), columns.as_bytes())).collect();
    let mut expected: Vec<(Key, &[u8])> =
        written.iter().map(|(key, columns)| (key.clone(), columns.as_bytes())).collect();
    expected.sort_by_key(|(key, _)| match key {
        Key::String(text) => text.as_bytes().to_vec(),
        Key::Bytes(bytes) => bytes.clone(),
        Key::Within(within) => panic!("no column parts this table: {within:?}"),
    });
    assert_eq!(found, expected);
    // NaN has no bytes that compare, so that live queries are held to the bytes as well.
    let told: Vec<(Key, Vec<u8>)> =
        folded(&world, 1).rows.into_iter().map(|(key, (_, columns))| (key, columns.as_bytes().to_vec())).collect();
    assert_eq!(told, expected.iter().map(|(key, bytes)| (key.clone(), bytes.to_vec())).collect::<Vec<_>>());
    // Numbers beyond what floats tell apart are told apart.
    let exact = |number: i64| Ask { predicate: format!("v == {number}"), ..Ask::default() };
    assert_eq!(fresh(&mut world, &ann, &Packed::empty(), &exact(i64::MAX)).len(), 1);
    assert_eq!(fresh(&mut world, &ann, &Packed::empty(), &exact(i64::MAX - 1)).len(), 0);
}

#[test]
fn clocks_of_owners_may_disagree() {
    let mut world = World::calm(None, public());
    let (ann, other) = (user("ann"), world.node());
    // The second is an hour behind, and then a day ahead.
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(1_000);
    let mut last = version(write(&mut world, 0, &ann, put("k", "a", 0)));
    for (turn, ahead) in [-3_600i64, 86_400].into_iter().enumerate() {
        world.clocks.insert(other, ahead * 1_000_000);
        for node in [other, 0] {
            world.lease(0, node);
            world.run(500);
            for key in ["k", "l"] {
                let next = version(write(&mut world, node, &ann, put(key, "a", turn as i64)));
                assert!(next > last, "{next} after {last}");
                last = next;
            }
            version(write(&mut world, node, &ann, crate::client::delete("l")));
            world.run(3_000);
            agrees(&mut world, 1, &Packed::empty(), "").unwrap();
        }
    }
    // The time of a record is its owner's, and its version is not: what is newest is so by its version.
    let times: Vec<Wall> = {
        let page = pages(&mut world, 0, 0, &ann, read(Span::All, Level::Latest, &Packed::empty())).unwrap();
        page.records.into_iter().map(|record| record.time).collect()
    };
    assert_eq!(times.len(), 1);
}

// ---- what is hidden -------------------------------------------------------------------------------------------------

/// What bob is answered by a table, with versions left out: they count commits, which is the stated exception (R8).
#[derive(Debug, PartialEq)]
struct Seen {
    answers: Vec<String>,
    live: Vec<String>,
}

/// What bob may ask: every way in which a record could show.
fn asks() -> Vec<Ask> {
    let all = || Ask::default();
    let of = |aggregate| Ask { aggregates: vec![("x".to_owned(), aggregate, "n".to_owned())], ..all() };
    let mut asks: Vec<Ask> =
        ["", "1 / n > 0", "n.a.b == 1", "size(n) == 3", "key > 'b'", "team == 'h'", "!(n < 5)", "n in [0, 1, 2]"]
            .map(|predicate| Ask { predicate: predicate.to_owned(), ..all() })
            .to_vec();
    asks.extend([Aggregate::Count, Aggregate::Sum, Aggregate::Min, Aggregate::Max, Aggregate::Avg].map(of));
    let group_by = vec![("team".to_owned(), "team".to_owned())];
    let count = vec![("x".to_owned(), Aggregate::Count, String::new())];
    asks.push(Ask { group_by, aggregates: count, ..all() });
    for direction in [Direction::Ascending, Direction::Descending] {
        asks.push(Ask { order: vec![("n".to_owned(), direction)], limit: Some(2), ..all() });
    }
    asks.push(Ask { project: vec![("x".to_owned(), "1 / n".to_owned())], ..all() });
    asks
}

/// A table in which a record is written, changed and deleted that bob may not see, or is not.
fn seen(hidden: bool) -> Seen {
    let mut world = World::calm(None, public());
    let (ann, bob) = (user("ann"), user("bob"));
    for n in [1, 5, 9] {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    let asked = asks();
    let whole = |ask: &Ask| ask.order.is_empty() && ask.limit.is_none() && ask.aggregates.is_empty();
    for (number, ask) in (1..).zip(&asked) {
        world.watch(number, Watch { ask: ask.clone(), ..everything(&bob, &Packed::empty(), "") });
    }
    world.run(3_000);
    let (mut answers, mut live) = (Vec::new(), Vec::new());
    let begun = world.events.len();
    let secret = |value: Value| {
        let write = columns("k3", &[("n", value), ("team", "h".into())]);
        shown_to(write, "user.sub == 'ann'")
    };
    // Smallest, largest, one that divides by nothing, and ones that no number can be made of.
    let values = [Value::Int(-100), Value::Int(100), Value::Int(0), "text".into(), Value::Float(f64::NAN)];
    for value in values {
        if hidden {
            version(write(&mut world, 0, &ann, secret(value)));
        }
        world.run(1_500);
        for ask in &asked {
            let read = Read { ask: ask.clone(), whole: true, ..read(Span::All, Level::Latest, &Packed::empty()) };
            answers.push(match pages(&mut world, 0, 0, &bob, read) {
                Ok(page) => format!("{:?}", page.rows.iter().map(|row| (&row.key, &row.columns)).collect::<Vec<_>>()),
                Err(refusal) => format!("{}", Error::from(refusal)),
            });
        }
    }
    if hidden {
        version(write(&mut world, 0, &ann, crate::client::delete("k3")));
    }
    world.run(3_000);
    for (number, event) in &world.events[begun..] {
        match event {
            // A cursor is sealed; and says that time has passed, and commits were made.
            Ok(Event::Progress { .. }) => {}
            // One that is read again may be told so for nothing: of what, it does not say.
            Ok(Event::Again) if !whole(&asked[*number as usize - 1]) => {}
            event => live.push(format!("{number} {event:?}")),
        }
    }
    Seen { answers, live }
}

#[test]
fn a_hidden_record_changes_nothing_that_anybody_else_is_told() {
    let (with, without) = (seen(true), seen(false));
    assert_eq!(with.live, [] as [String; 0]);
    assert_eq!(with, without);
    assert!(without.answers.iter().any(|answer| answer.contains("k9")), "{without:?}");
}

#[test]
fn writers_learn_of_a_hidden_record_that_it_is_there_and_no_more() {
    let mut world = World::calm(None, public());
    let (ann, bob) = (user("ann"), user("bob"));
    version(write(&mut world, 0, &ann, shown_to(put("k", "secret", 42), "user.sub == 'ann'")));
    let condition = tidings_tables::calls::Condition::Version(tidings_tables::names::Position::ZERO);
    let said = write(&mut world, 0, &bob, Write { condition, ..put("k", "a", 1) });
    assert_eq!(said, Some(Ok(Answer::Written(Outcome::Conflict(Conflict::Hidden)))));
    let change = Update::Patch { set: data(&[("n", Value::Int(1))]), unset: Vec::new() };
    let said = write(&mut world, 0, &bob, Write { change, ..put("k", "a", 1) });
    assert_eq!(said, Some(Ok(Answer::Written(Outcome::Conflict(Conflict::Hidden)))));
    // A refusal says nothing of what is there.
    let refused = write(&mut world, 0, &bob, columns("k", &[("user", Value::Int(1))]));
    assert!(matches!(&refused, Some(Err(Refusal::BadColumns(why))) if !why.contains("42") && !why.contains("secret")));
}
