//! Tables of several partitions: where they are cut, and how their answers come together.

use crate::client::{columns, delete, pages, put, read, shown_to, version, write};
use crate::holding::public;
use crate::world::{World, data, user};
use tidings_predicate::query::{Aggregate, Ask, AskLookup, Direction, Row};
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{Answer, Call, Level, Read, Span, Stat};
use tidings_tables::gather::{Gather, Reading};

fn growing(grown: u64) -> World {
    World::tuned(None, public(), |options| options.grown = grown)
}

fn all(ask: &Ask) -> Read {
    Read { ask: ask.clone(), ..read(Span::All, Level::Latest, &Packed::empty()) }
}

#[test]
fn what_has_grown_says_once_where_it_can_be_cut() {
    let mut world = growing(200);
    let ann = user("ann");
    let keys: Vec<Key> = (0..40).map(|n| format!("k{n:02}").as_str().into()).collect();
    for n in 0..40 {
        version(write(&mut world, 0, &ann, put(&format!("k{n:02}"), "a", n)));
        assert!(n > 0 || world.grown.is_empty(), "one record is little");
    }
    let [(partition, at)] = &world.grown[..] else { panic!("{:?}", world.grown) };
    assert_eq!(*partition, world.id(0));
    let at = at.clone();
    let children = world.split(0, &at).unwrap();
    for child in children {
        world.lease(child, 0);
    }
    world.run(500);
    let found = children.map(|child| pages(&mut world, 0, child, &ann, all(&Ask::default())).unwrap().records);
    assert!(found.iter().all(|records| !records.is_empty()));
    let found: Vec<Key> = found.into_iter().flatten().map(|record| record.key).collect();
    assert_eq!(found, keys);
}

/// R1: splits follow load, too.
#[test]
fn what_is_busy_says_where_it_can_be_cut_and_keeps_everything() {
    let mut world = World::tuned(None, public(), |options| options.busy = 5);
    let ann = user("ann");
    let key = |n: i64| format!("k{:02}", n * 37 % 50);
    for n in 0..5_000 {
        if n >= 50 && !world.grown.is_empty() {
            break;
        }
        version(write(&mut world, 0, &ann, put(&key(n), "a", n)));
        let span = Span::Only(key(n).as_str().into());
        pages(&mut world, 0, 0, &ann, read(span, Level::Latest, &Packed::empty())).unwrap();
    }
    let [(partition, at)] = &world.grown[..] else { panic!("{:?}", world.grown) };
    assert_eq!(*partition, world.id(0));
    assert!((Key::from("k1")..Key::from("k4")).contains(at), "{at:?}");
    let at = at.clone();
    let children = world.split(0, &at).unwrap();
    for child in children {
        world.lease(child, 0);
    }
    world.run(500);
    let found = children.map(|child| pages(&mut world, 0, child, &ann, all(&Ask::default())).unwrap().records.len());
    assert_eq!(found[0] + found[1], 50);
    assert!(found.iter().all(|records| *records >= 10), "{found:?}");
}

#[test]
fn nothing_is_cut_before_its_first_key() {
    let mut world = growing(1);
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    let [_, right] = world.split(0, &"k".into()).unwrap();
    world.lease(right, 0);
    world.run(500);
    world.grown.clear();
    version(write(&mut world, 0, &ann, put("k", "a", 2)));
    assert_eq!(world.grown, []);
    version(write(&mut world, 0, &ann, put("l", "a", 3)));
    assert_eq!(world.grown, [(world.id(right), Key::from("l"))]);
    assert!(world.split(right, &"l".into()).is_some());
}

/// What the owner says of a partition.
fn stat(world: &mut World, number: u32) -> Stat {
    let request = world.ask(0, number, user("ann"), Call::Stat);
    world.run(100);
    match world.answer(request) {
        Some(Ok(Answer::Stat(stat))) => stat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_cut_is_counted_anew_while_it_is_written() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..12 {
        version(write(&mut world, 0, &ann, put(&format!("k{n:02}"), "a", n)));
    }
    let all = stat(&mut world, 0);
    let [left, right] = world.split(0, &"k11".into()).unwrap();
    world.plan.slow = 20;
    for child in [left, right] {
        world.lease(child, 0);
    }
    // While pages of the count come: one more, one less, one other.
    for (n, late) in
        [put("k115", "a", 1), delete("k02"), put("k03", "abc", 1), put("k01", "a", 1)].into_iter().enumerate()
    {
        let number = if n == 0 { right } else { left };
        world.ask_later(0, number, ann.clone(), Call::Write(Box::new(late)), 20_000_000 * n as u64);
    }
    world.run(2_000);
    world.plan.slow = 0;
    let (one, two) = (stat(&mut world, left), stat(&mut world, right));
    assert_eq!((one.records, two.records), (10, 2));
    assert_eq!(one.bytes + two.bytes, all.bytes + 2);
    // What was counted is what the next owner begins with, and what is joined is their sum.
    version(write(&mut world, 0, &ann, put("k04", "a", 1)));
    let other = world.lease(left, 0);
    world.run(200);
    assert_eq!((world.owners[&left].1, stat(&mut world, left).records), (other, 10));
}

/// All rows of an answer whose records come from several partitions.
fn gathered(world: &mut World, ask: &Ask) -> Vec<Row> {
    let ann = user("ann");
    let reading = Reading { data: Packed::empty(), claims: ann.claims.clone(), now: world.now().wall };
    let mut gather = Gather::new(ask, &world.directory.properties.dialect(), reading).unwrap();
    let numbers: Vec<u32> = world.directory.partitions.iter().map(|entry| entry.number).collect();
    let mut rows = Vec::new();
    for number in numbers {
        let (node, _) = world.owners[&number];
        for record in pages(world, node, number, &ann, all(ask)).unwrap().records {
            if gather.is_full() {
                break;
            }
            let joined = gather.lookup(&record).map(|(table, key)| {
                assert_eq!(table, "teams");
                data(&[("name", Value::String(format!("the {key:?}")))])
            });
            gather.add(&record, joined.as_ref()).unwrap();
        }
        rows.extend(gather.ready().unwrap());
    }
    rows.extend(gather.finish().unwrap());
    rows
}

#[test]
fn several_partitions_answer_as_one() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..12 {
        let team = ["a", "b", "c"][n as usize % 3];
        let hidden = if n == 6 { "reader.team == 'x'" } else { "" };
        version(write(&mut world, 0, &ann, shown_to(put(&format!("k{n:02}"), team, n * 7 % 12), hidden)));
    }
    let named = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let aggregate = |name: &str, how| (name.to_owned(), how, "n".to_owned());
    let asks = [
        Ask::default(),
        Ask { order: vec![("n".to_owned(), Direction::Descending)], limit: Some(5), ..Ask::default() },
        Ask { limit: Some(5), ..Ask::default() },
        Ask { predicate: "n > 3".to_owned(), project: vec![named("twice", "n * 2")], ..Ask::default() },
        Ask {
            group_by: vec![named("team", "team")],
            aggregates: vec![
                ("rows".to_owned(), Aggregate::Count, String::new()),
                aggregate("sum", Aggregate::Sum),
                aggregate("min", Aggregate::Min),
                aggregate("max", Aggregate::Max),
                aggregate("avg", Aggregate::Avg),
            ],
            ..Ask::default()
        },
    ];
    let whole = |world: &mut World, ask: &Ask| pages(world, 0, 0, &ann, Read { whole: true, ..all(ask) }).unwrap().rows;
    let expected: Vec<Vec<Row>> = asks.iter().map(|ask| whole(&mut world, ask)).collect();
    let lengths: Vec<usize> = expected.iter().map(Vec::len).collect();
    assert_eq!(lengths, [11, 5, 5, 7, 3]);
    let [left, right] = world.split(0, &"k04".into()).unwrap();
    world.lease(left, 0);
    let other = world.node();
    world.lease(right, other);
    world.run(500);
    let [middle, last] = world.split(right, &"k09".into()).unwrap();
    world.lease(middle, other);
    world.lease(last, 0);
    world.run(500);
    assert_eq!(world.directory.partitions.len(), 3);
    for (ask, expected) in asks.iter().zip(expected) {
        assert_eq!(gathered(&mut world, ask), expected, "{ask:?}");
    }
    let lookup = AskLookup { table: "teams".to_owned(), key: "team".to_owned(), name: "other".to_owned() };
    let project = vec![named("of", "other.name")];
    let ask = Ask { predicate: "n == 2".to_owned(), lookup: Some(lookup), project, ..Ask::default() };
    let found = gathered(&mut world, &ask);
    let of = Value::String(format!("the {:?}", Key::from("c")));
    assert_eq!(found, [Row { key: Some("k02".into()), columns: data(&[("of", of)]) }]);
    assert_eq!(columns("c", 2), pages(&mut world, 0, left, &ann, all(&ask)).unwrap().records[0].columns);
}
