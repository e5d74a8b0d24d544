//! Predicates that take long: whoever asks one is told, and nobody else waits for it.

use crate::client::{Answered, everything, folded, fresh, pages, put, read, shown_to, version, write};
use crate::holding::public;
use crate::world::{World, data, user};
use tidings_base::{Class, Error};
use tidings_predicate::query::{Aggregate, Ask, Direction};
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{
    Answer, Call, Condition, Conflict, Level, MAX_COLUMNS, MAX_ENTRIES, Outcome, Page, Read, Span, Update, Write,
};
use tidings_tables::directory::Properties;
use tidings_tables::gateway::{self, Event, Start, Watch};
use tidings_tables::names::Position;
use tidings_tables::processor::Options;
use tidings_tables::refusal::Refusal;

/// A predicate that goes over a text so often, and holds for none that has no `y`.
fn going_over(times: usize) -> String {
    vec!["text.contains('y')"; times].join(" || ")
}

/// A record whose text takes some sixty thousand steps to be gone over once.
fn large(key: &str) -> Write {
    with_text(key, &"x".repeat(1_000_000))
}

fn with_text(key: &str, text: &str) -> Write {
    let columns = data(&[("team", "a".into()), ("n", 1.into()), ("text", text.into())]);
    Write { change: Update::Put { columns, predicate: String::new() }, ..put(key, "", 0) }
}

fn secret(write: Write) -> Write {
    shown_to(write, "user.sub == 'ann'")
}

fn asked(predicate: &str) -> Ask {
    Ask { predicate: predicate.to_owned(), ..Ask::default() }
}

fn reading(ask: Ask) -> Read {
    Read { ask, ..read(Span::All, Level::Latest, &Packed::empty()) }
}

#[test]
fn a_read_that_is_too_slow_is_refused_by_name_and_only_to_whoever_may_see_the_record() {
    let mut world = World::calm(None, public());
    let (ann, bob) = (user("ann"), user("bob"));
    version(write(&mut world, 0, &ann, with_text("small", "y")));
    version(write(&mut world, 0, &ann, secret(large("large"))));
    world.node();
    world.follow(1, 0);
    world.run(2_000);
    let slow = going_over(5);
    let seen = Position::from_u64(1).unwrap();
    // At the owner, and at a copy.
    for (node, level, floor) in [(0, Level::Latest, Position::ZERO), (1, Level::Committed, seen)] {
        let reading = |ask| Read { level: level.clone(), floor, ..reading(ask) };
        let refused = pages(&mut world, node, 0, &ann, reading(asked(&slow))).map(|page| page.records.len());
        assert_eq!(refused, Err(Refusal::TooSlow));
        let page = pages(&mut world, node, 0, &bob, reading(asked(&slow))).unwrap();
        assert_eq!(page.records.into_iter().map(|record| record.key).collect::<Vec<_>>(), [Key::from("small")]);
        // Every part of a query.
        let count = vec![("n".to_owned(), Aggregate::Count, slow.clone())];
        for ask in [
            Ask { project: vec![("p".to_owned(), slow.clone())], ..Ask::default() },
            Ask { order: vec![(slow.clone(), Direction::Ascending)], ..Ask::default() },
            Ask { group_by: vec![("g".to_owned(), slow.clone())], ..Ask::default() },
            Ask { aggregates: count, ..Ask::default() },
        ] {
            let read = Read { whole: true, ..reading(ask) };
            let refused = pages(&mut world, node, 0, &ann, read.clone()).map(|page| page.rows.len());
            assert_eq!(refused, Err(Refusal::TooSlow));
            assert_eq!(pages(&mut world, node, 0, &bob, read).unwrap().rows.len(), 1);
        }
    }
    let error = Error::from(Refusal::TooSlow);
    assert_eq!((&*error.code, error.class, error.hint.is_empty()), ("tables.too_slow", Class::Invalid, false));
}

#[test]
fn a_live_query_that_is_too_slow_ends_by_name_and_only_for_whoever_may_see_the_record() {
    for indexed in [false, true] {
        let mut world = World::calm(None, public());
        let (ann, bob) = (user("ann"), user("bob"));
        let slow = if indexed { format!("team == 'a' && ({})", going_over(5)) } else { going_over(5) };
        version(write(&mut world, 0, &ann, with_text("small", "y")));
        world.watch(1, everything(&ann, &Packed::empty(), &slow));
        world.watch(2, everything(&bob, &Packed::empty(), &slow));
        world.watch(3, everything(&bob, &Packed::empty(), ""));
        world.run(2_000);
        let ended = |world: &World, number: u64| folded(world, number).ended;
        assert_eq!(
            [1, 2, 3].map(|number| (ended(&world, number), folded(&world, number).rows.len())),
            [(None, 1), (None, 1), (None, 1)]
        );
        version(write(&mut world, 0, &ann, secret(large("large"))));
        world.run(2_000);
        assert_eq!([1, 2, 3].map(|number| ended(&world, number)), [Some(Refusal::TooSlow), None, None]);
        // The same of what is there already, and behind a cursor.
        let cursor = folded(&world, 2).cursor.unwrap();
        world.watch(4, everything(&ann, &Packed::empty(), &slow));
        world.watch(5, everything(&bob, &Packed::empty(), &slow));
        world.run(2_000);
        assert_eq!([4, 5].map(|number| ended(&world, number)), [Some(Refusal::TooSlow), None]);
        world.tell_gateway(gateway::Input::Unwatch { number: 2 });
        version(write(&mut world, 0, &ann, large("open")));
        let start = Start::Cursor(cursor);
        world.watch(6, Watch { start, ..everything(&bob, &Packed::empty(), &slow) });
        world.run(2_000);
        assert_eq!(
            [5, 6, 3].map(|number| ended(&world, number)),
            [Some(Refusal::TooSlow), Some(Refusal::TooSlow), None]
        );
        assert_eq!(folded(&world, 3).rows.len(), 2);
    }
}

/// However it is written, and whether the index finds the record or something else does.
#[test]
fn what_an_equality_leaves_out_is_too_slow_for_nobody() {
    let (slow, ann) = (going_over(5), user("ann"));
    for text in
        [format!("team == 'b' && ({slow})"), format!("({slow}) && team == 'b'"), format!("({slow}) && none < 1")]
    {
        let mut world = World::calm(None, public());
        let live = || everything(&ann, &Packed::empty(), &text);
        world.watch(1, live());
        world.run(2_000);
        let cursor = folded(&world, 1).cursor.unwrap();
        version(write(&mut world, 0, &ann, large("k")));
        // As it comes, behind a cursor, in a snapshot, at the next owner, and read.
        world.watch(2, Watch { start: Start::Cursor(cursor), ..live() });
        world.watch(3, live());
        world.run(2_000);
        let other = world.node();
        world.lease(0, other);
        world.run(3_000);
        version(write(&mut world, other, &ann, large("l")));
        world.run(2_000);
        let heard = [1, 2, 3].map(|number| (folded(&world, number).ended, folded(&world, number).rows.len()));
        assert_eq!(heard, [(None, 0), (None, 0), (None, 0)], "{}", &text[..30]);
        let page = pages(&mut world, other, 0, &ann, reading(asked(&text))).map(|page| page.records.len());
        assert_eq!(page, Ok(0));
    }
}

#[test]
fn a_rule_for_writers_that_is_too_slow_is_named_and_nothing_is_written() {
    let rule = format!("new == null || !({})", going_over(5).replace("text", "new.text"));
    let mut world = World::calm(None, Properties { may_write: Some(rule), ..public() });
    let ann = user("ann");
    version(write(&mut world, 0, &ann, with_text("k", "x")));
    let refused = |refusal| Some(Ok(Answer::Written(Outcome::Refused(refusal))));
    assert_eq!(write(&mut world, 0, &ann, with_text("k", "y")), refused(Refusal::MayNotWrite));
    assert_eq!(write(&mut world, 0, &ann, large("k")), refused(Refusal::RuleTooSlow));
    // Whoever repeats it hears the same, from the next owner, too.
    let named = || crate::client::named(large("k"), 1, 0, None);
    assert_eq!(write(&mut world, 0, &ann, named()), refused(Refusal::RuleTooSlow));
    let other = world.node();
    world.lease(0, other);
    world.run(200);
    assert_eq!(write(&mut world, other, &ann, named()), refused(Refusal::RuleTooSlow));
    let there = fresh(&mut world, &ann, &Packed::empty(), &asked("text == 'x'"));
    assert_eq!(there.into_keys().collect::<Vec<_>>(), [Key::from("k")]);
    let error = Error::from(Refusal::RuleTooSlow);
    assert_eq!((&*error.code, error.class, error.hint.is_empty()), ("tables.too_slow", Class::Refused, false));
}

/// Nobody ends others' reads by a record of many columns, or of a column with many entries.
#[test]
fn the_widest_record_is_too_slow_for_nobody() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let wide = |columns: usize, entries: usize| {
        let named = |count: usize| (0..count).map(|n| (format!("c{n:06}"), Value::Null));
        let columns = named(columns).chain([("z".to_owned(), Value::Map(named(entries).collect()))]);
        let change = Update::Put { columns: Packed::columns(columns).unwrap(), predicate: String::new() };
        Write { change, ..put("k", "", 0) }
    };
    for (columns, entries) in [(MAX_COLUMNS, 0), (1, MAX_ENTRIES + 1)] {
        let refused = write(&mut world, 0, &ann, wide(columns, entries));
        assert!(matches!(refused, Some(Err(Refusal::BadColumns(_)))), "{refused:?}");
    }
    version(write(&mut world, 0, &ann, wide(MAX_COLUMNS - 1, MAX_ENTRIES)));
    // What a patch makes of it is held to the same.
    let more = Update::Patch { set: data(&[("y", 1.into())]), unset: Vec::new() };
    let patch = || crate::client::named(Write { change: more.clone(), ..put("k", "", 0) }, 1, 0, None);
    let refused = write(&mut world, 0, &ann, patch());
    assert!(matches!(refused, Some(Ok(Answer::Written(Outcome::Refused(Refusal::BadColumns(_)))))), "{refused:?}");
    // Whoever repeats it hears the same.
    assert_eq!(write(&mut world, 0, &ann, patch()), refused);
    let names = ["has(z.zz)"; 100].join(" || ");
    assert_eq!(pages(&mut world, 0, 0, &ann, reading(asked(&names))).map(|page| page.records.len()), Ok(0));
}

// ---- others have their turn -------------------------------------------------------------------------------------------

const RECORDS: usize = 200;

/// A world with some records and a copy of them at node 1, in which so many steps are taken in one go.
fn filled(steps: u64) -> World {
    let tune = |options: &mut Options| (options.page, options.steps) = (0, steps);
    let mut world = World::tuned(None, public(), tune);
    let ann = user("ann");
    for n in 0..RECORDS {
        version(write(&mut world, 0, &ann, put(&format!("k{n:03}"), ["a", "b"][n % 2], n as i64)));
    }
    world.node();
    world.follow(1, 0);
    world.run(2_000);
    world
}

/// How much happens before something has, one thing at a time.
fn turns<T>(world: &mut World, has: impl Fn(&mut World) -> Option<T>) -> (usize, T) {
    let until = world.now + 10_000_000_000;
    for turns in 0.. {
        if let Some(found) = has(world) {
            return (turns, found);
        }
        assert!(world.step(until), "it did not happen");
    }
    unreachable!("it is counted without end")
}

/// Some twenty steps a record.
const LONG: &str = "n < 0 || n < 0 || n < 0 || n < 0 || team == 'a'";

#[test]
fn nobody_waits_for_all_that_a_read_looks_at() {
    let read_at = |world: &mut World, node: usize, whole: bool| -> (usize, Page) {
        let floor = if node == 0 { Position::ZERO } else { Position::from_u64(1).unwrap() };
        let order = if whole { vec![(LONG.to_owned(), Direction::Ascending)] } else { Vec::new() };
        let predicate = if whole { "" } else { LONG };
        let read = Read { whole, floor, level: Level::Committed, ..reading(Ask { order, ..asked(predicate) }) };
        let request = world.ask(node, 0, user("ann"), Call::Read(Box::new(read)));
        let (turns, answer): (usize, Answered) = turns(world, |world| world.answer(request));
        match answer {
            Ok(Answer::Page(page)) => (turns, page),
            other => panic!("{other:?}"),
        }
    };
    let (mut few, mut many) = (filled(100), filled(1_000_000));
    for node in [0, 1] {
        for whole in [false, true] {
            let (short, page) = read_at(&mut few, node, whole);
            let (long, same) = read_at(&mut many, node, whole);
            assert!(page.last && page.records.len() + page.rows.len() >= RECORDS / 2);
            assert_eq!((&page.records, &page.rows), (&same.records, &same.rows));
            assert!(short > long + 20, "node {node}, whole: {whole}: {short} turns, and {long}");
        }
    }
}

#[test]
fn nobody_waits_for_all_that_a_snapshot_looks_at() {
    let watched = |world: &mut World| -> usize {
        world.watch(1, everything(&user("ann"), &Packed::empty(), LONG));
        let last = |event: &Event| matches!(event, Event::Reset { last: true, .. });
        turns(world, |world| world.events.iter().any(|(_, event)| event.as_ref().is_ok_and(last)).then_some(())).0
    };
    let (mut few, mut many) = (filled(100), filled(1_000_000));
    let (short, long) = (watched(&mut few), watched(&mut many));
    assert!(short > long + 20, "{short} turns, and {long}");
    assert_eq!(folded(&few, 1).rows, folded(&many, 1).rows);
    assert_eq!(folded(&few, 1).rows.len(), RECORDS / 2);
    crate::client::agrees(&mut few, 1, &Packed::empty(), LONG).unwrap();
}

/// A cursor is as good as a beginning where what has changed since is too much to look at in one go.
#[test]
fn a_cursor_behind_too_much_begins_anew() {
    for (steps, resets) in [(10, 1), (1_000_000, 0)] {
        let mut world = World::tuned(None, public(), |options| options.steps = steps);
        let ann = user("ann");
        version(write(&mut world, 0, &ann, put("k", "a", 0)));
        world.watch(1, everything(&ann, &Packed::empty(), LONG));
        world.run(3_000);
        let mut both = folded(&world, 1);
        let before = both.resets;
        world.tell_gateway(gateway::Input::Unwatch { number: 1 });
        for n in 0..20 {
            version(write(&mut world, 0, &ann, put(&format!("k{n:02}"), ["a", "b"][n % 2], n as i64)));
        }
        let start = Start::Cursor(both.cursor.clone().unwrap());
        world.watch(2, Watch { start, ..everything(&ann, &Packed::empty(), LONG) });
        world.run(3_000);
        world.events.iter().filter(|(of, _)| *of == 2).for_each(|(_, event)| both.hear(event.clone()));
        assert_eq!(both.resets - before, resets, "{steps} steps");
        assert_eq!(both.rows, fresh(&mut world, &ann, &Packed::empty(), &asked(LONG)));
    }
}

/// Many ask for one value, and for something beside it that takes long.
#[test]
fn nobody_waits_for_all_that_a_change_is_held_against() {
    const WATCHERS: u64 = 40;
    let heard = |steps: u64| -> usize {
        let mut world = World::tuned(None, public(), |options| options.steps = steps);
        let ann = user("ann");
        for number in 1..=WATCHERS {
            let predicate = format!("team == 'a' && (text.contains('y{number}.') || n == {number})");
            world.watch(number, everything(&ann, &Packed::empty(), &predicate));
        }
        world.run(3_000);
        let text = "x".repeat(20_000) + &format!("y{WATCHERS}.");
        let request = world.ask(0, 0, ann, Call::Write(Box::new(with_text("k", &text))));
        let last = |world: &mut World| (folded(world, WATCHERS).rows.len() == 1).then_some(());
        let (turns, ()) = turns(&mut world, last);
        version(world.answer(request));
        world.run(3_000);
        for number in 1..=WATCHERS {
            let heard = folded(&world, number);
            let wanted = usize::from([1, WATCHERS].contains(&number));
            assert_eq!((heard.rows.len(), heard.ended), (wanted, None), "{number}");
        }
        turns
    };
    let (short, long) = (heard(100), heard(1_000_000));
    assert!(short > long + 20, "{short} turns, and {long}");
}

#[test]
fn nobody_waits_for_all_writes_that_wait() {
    const WRITES: usize = 50;
    let audience = LONG.replace("team", "reader.team");
    let written = |steps: u64| -> usize {
        let mut world = World::tuned(None, public(), |options| options.steps = steps);
        let ann = user("ann");
        version(write(&mut world, 0, &ann, shown_to(put("k", "a", 1), &audience)));
        let condition = Condition::Version(Position::ZERO);
        let conflict = || Write { condition, ..put("k", "b", 2) };
        world.hold = true;
        let ahead = world.ask(0, 0, ann.clone(), Call::Write(Box::new(put("other", "a", 1))));
        world.run(20);
        let asked: Vec<_> =
            (0..WRITES).map(|_| world.ask(0, 0, ann.clone(), Call::Write(Box::new(conflict())))).collect();
        world.run(20);
        world.hold = false;
        world.let_go();
        // All of them are answered, though no commit comes of any.
        let (turns, ()) = turns(&mut world, |world| {
            let all = asked.iter().all(|request| world.answers.get(request).is_some_and(|answers| !answers.is_empty()));
            all.then_some(())
        });
        for request in asked {
            assert_eq!(world.answer(request), Some(Ok(Answer::Written(Outcome::Conflict(Conflict::Hidden)))));
        }
        version(world.answer(ahead));
        turns
    };
    let (short, long) = (written(100), written(1_000_000));
    assert!(short > long + 5, "{short} turns, and {long}");
}
