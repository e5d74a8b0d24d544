//! What goes wrong between copies and owners: frames that are too large, come for nobody, come late, or do not come; and readers
//! who would take all of a node's time (R1, R3).

use crate::client::{put, read, shown_to, version, write};
use crate::holding::public;
use crate::world::{TABLE, World, data, user};
use tidings_base::{Machine, Outbox};
use tidings_predicate::query::Ask;
use tidings_predicate::{Packed, Value};
use tidings_tables::calls::{Access, Answer, Call, Level, Page, Read, Span, Stat, Update, Visible};
use tidings_tables::live::{Body, Change, Frame, From, Install, Reader};
use tidings_tables::names::{GatewayId, PartitionId, Position, QueryId, RequestId, Term};
use tidings_tables::processor::{Input, Options, Output};
use tidings_tables::refusal::Refusal;

/// The copy's node.
const COPY: usize = 1;
const PARTITION: PartitionId = PartitionId { table: TABLE, number: 0 };

fn followed(tune: impl FnOnce(&mut Options)) -> World {
    let mut world = World::tuned(None, public(), tune);
    world.node();
    world.follow(COPY, 0);
    world.run(200);
    world
}

/// What a processor does at once.
fn tell(world: &mut World, node: usize, input: Input) -> Vec<Output> {
    let (now, mut out) = (world.now(), Outbox::new());
    world.nodes[node].processor.as_mut().unwrap().handle(now, input, &mut out);
    out.into_iter().collect()
}

fn stat(world: &mut World) -> Stat {
    let request = world.ask(0, 0, user("ann"), Call::Stat);
    world.run(50);
    match world.answer(request) {
        Some(Ok(Answer::Stat(stat))) => stat,
        other => panic!("{other:?}"),
    }
}

/// A read of whoever has seen something, long ago.
fn all(predicate: &str) -> Read {
    let ask = Ask { predicate: predicate.to_owned(), ..Ask::default() };
    let floor = Position::from_u64(1).unwrap();
    Read { floor, ask, ..read(Span::All, Level::Committed, &Packed::empty()) }
}

fn at_copy(world: &mut World) -> Result<Page, Refusal> {
    let request = world.ask(COPY, 0, user("ann"), Call::Read(Box::new(all(""))));
    world.run(50);
    match world.answer(request) {
        Some(Ok(Answer::Page(page))) => Ok(page),
        Some(Err(refusal)) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn install(number: u64, from: From, window: u32) -> Input {
    let (data, claims, access) = (Packed::empty(), Packed::empty(), Access::User);
    Input::Install(Box::new(Install {
        query: QueryId::of_copy(GatewayId(77), number),
        partition: PARTITION,
        installation: 1,
        ask: Ask::default(),
        reader: Reader { access, data, claims, epoch: 1 },
        from,
        newer_than: None,
        window,
        endpoint: None,
    }))
}

/// How much each frame says, and how many rows all of them.
fn weights(frames: &[Frame]) -> (Vec<usize>, usize) {
    let record = |record: &Visible| {
        let Visible { key, writer, audience, columns, .. } = record;
        key.size() + writer.len() + audience.len() + columns.as_bytes().len()
    };
    let change = |change: &Change| match change {
        Change::Put(put) => record(put),
        Change::Leave { key } => key.size(),
    };
    let each = frames.iter().map(|frame| match &frame.body {
        Body::Snapshot(rows) => (rows.iter().map(record).sum::<usize>(), rows.len()),
        Body::Changes(changes) => (changes.iter().map(change).sum(), changes.len()),
        other => panic!("{other:?}"),
    });
    let (weights, rows): (Vec<usize>, Vec<usize>) = each.unzip();
    (weights, rows.into_iter().sum())
}

/// Brings what the store answers at once, until there is nothing more to ask it; the frames that come.
fn frames(world: &mut World, mut outputs: Vec<Output>) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(output) = outputs.pop() {
        match output {
            Output::Frame { frame, .. } => frames.push(*frame),
            Output::Store { id, request } => {
                let result = world.store.perform(&request);
                outputs.extend(tell(world, 0, Input::Stored { id, result }));
            }
            _ => {}
        }
    }
    frames
}

/// To a copy whom a record is shown to goes as well. A frame that is too large for a link would be asked for again for ever.
#[test]
fn frames_to_copies_are_bounded_with_all_that_they_carry() {
    // A piece ends with the record, or the store's page of three, that fills it.
    const MOST: usize = 20_000;
    const PAGE: usize = 3 * 5_000;
    let mut world = World::tuned(None, public(), |options| options.page_bytes = MOST);
    let ann = user("ann");
    let first = version(write(&mut world, 0, &ann, put("a", "a", 0)));
    let fits = |frames: &[Frame], rows: usize| {
        let (weights, found) = weights(frames);
        assert!(weights.iter().all(|weight| *weight <= MOST + PAGE), "{weights:?}");
        assert_eq!(found, rows, "{weights:?}");
    };
    let now = tell(&mut world, 0, install(1, From::Nothing, 1));
    fits(&frames(&mut world, now), 0);
    let audience = format!("reader.team == '{}'", "a".repeat(4_096));
    for n in 0..20 {
        version(write(&mut world, 0, &ann, shown_to(put(&format!("k{n:02}"), "a", n), &audience)));
    }
    for n in 0..80 {
        version(write(&mut world, 0, &ann, put(&format!("{n:02}{}", "k".repeat(1_000)), "a", n)));
    }
    // As they came, from a cursor, and all of it.
    let query = QueryId::of_copy(GatewayId(77), 1);
    let mut came = Vec::new();
    for _ in 0..20 {
        let taken = tell(&mut world, 0, Input::Taken { query, partition: PARTITION, frames: 1 });
        came.extend(frames(&mut world, taken));
    }
    fits(&came, 100);
    let since = tell(&mut world, 0, install(2, From::After(vec![(PARTITION, first)]), 100));
    fits(&frames(&mut world, since), 100);
    let everything = tell(&mut world, 0, install(3, From::Everything, 100));
    fits(&frames(&mut world, everything), 101);
}

/// R1: an owner feeds so many copies. What was let go unheard would take the place of another for ever.
#[test]
fn r1_what_comes_for_a_copy_that_is_no_more_is_sent_back() {
    let mut world = followed(|_| {});
    let ann = user("ann");
    assert_eq!(stat(&mut world).queries, 1);
    world.copying.cut.insert(COPY);
    world.unfollow(COPY, 0);
    world.run(50);
    world.copying.cut.clear();
    // The copy that is there now is another one.
    world.follow(COPY, 0);
    world.run(200);
    assert_eq!(stat(&mut world).queries, 2);
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(100);
    assert_eq!(stat(&mut world).queries, 1);
    assert_eq!(at_copy(&mut world).unwrap().records.len(), 1);
}

/// Each time a copy asks its owner begins anew.
#[test]
fn a_copy_that_is_not_answered_asks_less_and_less_often() {
    let mut world = World::calm(None, public());
    version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
    world.node();
    world.copying.cut.insert(COPY);
    world.follow(COPY, 0);
    world.run(30_000);
    let asked = world.copying.installs.len();
    assert!((6..=12).contains(&asked), "{asked}");
    world.copying.cut.clear();
    world.run(5_000);
    assert_eq!(at_copy(&mut world).map(|page| page.records.len()), Ok(1));
}

#[test]
fn r1_a_copy_takes_nothing_of_an_owner_before_the_one_that_it_knows_of() {
    let mut world = followed(|_| {});
    let ann = user("ann");
    let last = version(write(&mut world, 0, &ann, put("k", "a", 1)));
    let other = world.node();
    // The new owner is not heard yet, and the old one does not know.
    world.copying.cut.insert(COPY);
    world.lease(0, other);
    world.run(100);
    let of = |term: Term, installation: u64| {
        let position = Position::new(term, last.counter() + 7).unwrap();
        let (writer, audience, columns) = (String::new(), "".into(), data(&[("n", Value::Int(7))]));
        let ghost =
            Visible { key: "ghost".into(), version: position, time: world.now().wall, writer, audience, columns };
        let (previous, body) = (Position::ZERO, Body::Snapshot(vec![ghost]));
        let (partition, piece, more) = (PARTITION, 0, false);
        Frame { partition, term, installation, epoch: 1, previous_epoch: 1, previous, position, piece, more, body }
    };
    let frame = Box::new(of(last.term(), 2));
    let query = QueryId::of_copy(GatewayId(1_000_000 + COPY as u64), 1);
    world.tell_processor(COPY, Input::CopyHears { query, frame });
    world.run(10);
    let keys = |page: Page| page.records.into_iter().map(|record| record.key).collect::<Vec<_>>();
    assert_eq!(at_copy(&mut world).map(keys), Ok(vec!["k".into()]));
    world.copying.cut.clear();
    world.run(5_000);
    assert_eq!(at_copy(&mut world).map(keys), Ok(vec!["k".into()]));
}

/// Whoever asks a copy for what nothing matches would have all of the node to itself while all rows are looked at.
#[test]
fn a_read_at_a_copy_takes_turns() {
    let mut world = followed(|_| {});
    let ann = user("ann");
    let large = data(&[("n", Value::Int(1)), ("text", "t".repeat(200_000).as_str().into())]);
    for n in 0..20 {
        let mut large_one = put(&format!("k{n:02}"), "a", 1);
        large_one.change = Update::Put { columns: large.clone(), predicate: String::new() };
        version(write(&mut world, 0, &ann, large_one));
    }
    world.run(500);
    let (request, call) = (RequestId(1_000_000), Call::Read(Box::new(all("n > 1"))));
    let asked = Input::Request { request, partition: PARTITION, caller: Box::new(ann), call };
    let (mut said, mut turns) = (tell(&mut world, COPY, asked), 1);
    while said.is_empty() && turns < 100 {
        let (now, mut out) = (world.now(), Outbox::new());
        let processor = world.nodes[COPY].processor.as_mut().unwrap();
        assert!(processor.deadline().is_some_and(|at| at <= now.mono), "nobody would wake it");
        processor.wake(now, &mut out);
        said.extend(out);
        turns += 1;
    }
    let [Output::Answer { answer: Ok(Answer::Page(page)), .. }] = &said[..] else { panic!("{said:?}") };
    assert!(page.last && page.records.is_empty());
    // Four megabytes, and some more.
    assert!((3..=6).contains(&turns), "{turns}");
}
