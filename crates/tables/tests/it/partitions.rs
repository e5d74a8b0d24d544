//! Tables of several partitions: where they are cut, and how their answers come together.

use crate::client::{columns, delete, named, pages, put, read, shown_to, version, write};
use crate::holding::public;
use crate::world::{World, data, user};
use std::time::Duration;
use tidings_predicate::query::{Aggregate, Ask, AskLookup, Direction, Row};
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::calls::{Answer, Call, Counts, Level, Outcome, Page, Read, Span, Stat, Update, Write};
use tidings_tables::directory::{PartitionBy, PartitionKind, Properties};
use tidings_tables::gather::{Gather, Reading};
use tidings_tables::mutant::Mutant;
use tidings_tables::refusal::Refusal;

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

/// A cut may come to nothing: that it is needed is said until it is made, though nobody writes any more.
#[test]
fn what_has_grown_and_was_not_cut_says_so_again() {
    let mut world = growing(200);
    for n in 0..20 {
        version(write(&mut world, 0, &user("ann"), put(&format!("k{n:02}"), "a", n)));
    }
    assert_eq!(world.grown.len(), 1);
    world.run(50_000);
    assert_eq!(world.grown.len(), 1);
    world.run(15_000);
    assert_eq!(world.grown.len(), 2);
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
fn what_was_asked_is_counted_while_its_owner_serves_it() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..3 {
        version(write(&mut world, 0, &ann, put("k", "a", n)));
    }
    pages(&mut world, 0, 0, &ann, all(&Ask::default())).unwrap();
    let said = stat(&mut world, 0);
    assert_eq!((said.counts.reads, said.counts.writes, said.counts.events), (1, 3, 0));
    assert_eq!((said.waiting, said.undelivered, said.away, said.copies), (0, 0, 0, 0));
    assert!(said.log_changes == 3 && said.log_bytes > 0, "{said:?}");
    // A copy is told everything, and is nobody's query.
    let copy = world.node();
    world.follow(copy, 0);
    world.run(200);
    version(write(&mut world, 0, &ann, put("k", "a", 4)));
    world.run(200);
    let said = stat(&mut world, 0);
    assert_eq!((said.queries, said.copies, said.counts.events), (1, 1, 0));
    world.lease(0, 0);
    world.run(200);
    assert_eq!(stat(&mut world, 0).counts, Counts::default());
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
            let joined = gather.lookup(&record).unwrap().map(|(table, key)| {
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

/// Two neighbours of two owners, with a record in each.
fn apart(mutant: Option<Mutant>) -> (World, [u32; 2]) {
    let mut world = World::calm(mutant, public());
    let ann = user("ann");
    let other = world.node();
    version(write(&mut world, 0, &ann, put("a", "a", 0)));
    let parts = world.split(0, &"m".into()).unwrap();
    world.lease(parts[0], 0);
    world.lease(parts[1], other);
    world.run(500);
    // What was just written is answered from memory.
    version(write(&mut world, other, &ann, put("z", "a", 1)));
    (world, parts)
}

/// What the owner of a partition that was joined says of a record that was written since.
fn after_a_merge(mutant: Option<Mutant>) -> Result<Page, Refusal> {
    let (mut world, parts) = apart(mutant);
    let ann = user("ann");
    let before = parts.map(|number| world.directory.partitions.iter().find(|part| part.number == number).unwrap().term);
    let joined = world.merge(parts).unwrap();
    // Neither of those who had them.
    let third = world.node();
    world.lease(joined, third);
    world.run(500);
    let term = world.directory.find(&"z".into()).unwrap().term;
    assert!(before.iter().all(|before| term > *before), "R1: {term:?} after {before:?}");
    for (key, n) in [("a", 7), ("z", 8)] {
        let written = write(&mut world, third, &ann, put(key, "a", n));
        assert_eq!(version(written).term(), term);
    }
    let records = pages(&mut world, third, joined, &ann, all(&Ask::default())).unwrap().records;
    assert_eq!(
        records.iter().map(|record| record.columns.clone()).collect::<Vec<_>>(),
        [columns("a", 7), columns("a", 8)]
    );
    let latest = read(Span::Only("z".into()), Level::Latest, &Packed::empty());
    pages(&mut world, 1, parts[1], &ann, latest)
}

/// R1: what two nodes own can be joined, and neither answers for it any more: the leases that they have go on.
#[test]
fn neighbours_of_two_owners_are_joined_when_both_have_given_them_up() {
    assert_eq!(after_a_merge(None), Err(Refusal::Moved));
    let stale = after_a_merge(Some(Mutant::CededServing)).unwrap();
    assert_eq!(stale.records[0].columns, columns("a", 1), "without it the old owner tells what was");
}

#[test]
fn only_what_both_owners_have_opened_is_joined() {
    let (mut world, parts) = apart(None);
    world.hold = true;
    world.lease(parts[1], 0);
    world.run(50);
    assert_eq!(world.merge(parts), None);
    assert_eq!(world.directory.partitions.len(), 2);
}

/// R1: what was cut for its load or size is joined when that has passed, and not before.
#[test]
fn what_has_long_been_quiet_says_so() {
    let mut world = World::tuned(None, public(), |options| {
        (options.busy, options.grown, options.quiet) = (40, 4_000, Duration::from_secs(60));
    });
    let ann = user("ann");
    for n in 0..10 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.run(90_000);
    assert_eq!(world.quiet, [], "there is nothing behind it");
    let opened = world.opened(0).unwrap();
    let [left, right] = world.directory.split_by_itself(opened, &"k5".into()).unwrap();
    for child in [left, right] {
        world.lease(child, 0);
    }
    world.run(500);
    // Each takes a twentieth of a second.
    for _ in 0..20 * 70 {
        pages(&mut world, 0, left, &ann, read(Span::Only("k1".into()), Level::Latest, &Packed::empty())).unwrap();
    }
    assert!(world.quiet.is_empty() && !stat(&mut world, left).quiet, "twenty a second are half of what is cut");
    assert!(stat(&mut world, right).quiet, "nobody wants the other");
    world.run(90_000);
    assert!(world.quiet.len() <= 2 && world.quiet.contains(&world.id(left)), "{:?}", world.quiet);
    assert_eq!(world.directory.joins_by_itself(left), Some(right));
    // What has grown stays as it is, however quiet.
    for n in 0..10 {
        version(write(&mut world, 0, &ann, put(&format!("k0{n}"), &"a".repeat(100), n)));
    }
    world.quiet.clear();
    world.run(200_000);
    assert!(world.quiet.is_empty() && !stat(&mut world, left).quiet);
}

/// R1: the owner itself stores a record under nothing but the value that its column has, and says so again when it is asked again.
#[test]
fn a_record_stays_within_the_value_of_its_partition_column() {
    let by = PartitionBy { column: "team".to_owned(), holds: PartitionKind::String };
    let mut world = World::calm(None, Properties { partition_by: Some(by), ..public() });
    let ann = user("ann");
    let at = |value: &str, write: Write| Write { key: Key::within(value, "k"), ..write };
    let patch = |team: &str| Write {
        change: Update::Patch { set: data(&[("team", team.into())]), unset: Vec::new() },
        ..put("k", "", 0)
    };
    version(write(&mut world, 0, &ann, at("a", put("k", "a", 1))));
    version(write(&mut world, 0, &ann, at("b", put("k", "b", 2))));
    let wrong = |answer| matches!(answer, Some(Ok(Answer::Written(Outcome::Refused(Refusal::PartitionColumn(_))))));
    assert!(wrong(write(&mut world, 0, &ann, at("a", put("k", "b", 3)))));
    for _ in 0..2 {
        assert!(wrong(write(&mut world, 0, &ann, named(at("a", patch("b")), 1, 0, None))));
    }
    version(write(&mut world, 0, &ann, at("a", patch("a"))));
    // A key without a value, or with one in a table that has none, names nothing.
    assert!(matches!(write(&mut world, 0, &ann, delete("k")), Some(Err(Refusal::PartitionColumn(_)))));
    let records = pages(&mut world, 0, 0, &ann, all(&Ask::default())).unwrap().records;
    let found: Vec<Packed> = records.into_iter().map(|record| record.columns).collect();
    assert_eq!(found, [columns("a", 1), columns("b", 2)]);
}
