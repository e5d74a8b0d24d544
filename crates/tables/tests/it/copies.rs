//! Copies of partitions that others own: what they answer, what they leave to the owner, and what they must not show (R1, R5).

use crate::client::{Answered, columns, delete, pages, put, read, shown_to, version, write};
use crate::holding::{breaks, held, public};
use crate::world::{World, data, user};
use tidings_predicate::query::{Aggregate, Ask};
use tidings_predicate::{Key, Packed};
use tidings_tables::calls::{Access, Answer, Call, Level, Page, Read, Span, Stat};
use tidings_tables::directory::Properties;
use tidings_tables::live::From;
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{NetId, Position};
use tidings_tables::processor::{Input, Options};
use tidings_tables::refusal::Refusal;

/// The copy's node.
const COPY: usize = 1;

/// A calm world with an owner, node 0, and a copy.
fn followed(mutant: Option<Mutant>, tune: impl FnOnce(&mut Options)) -> World {
    let mut world = World::tuned(mutant, public(), tune);
    world.node();
    world.follow(COPY, 0);
    world.run(200);
    world
}

/// The floor of somebody who has seen something, long ago.
const SEEN: u64 = 1;

fn of(span: Span, reader: &Packed) -> Read {
    Read { floor: Position::from_u64(SEEN).unwrap(), ..read(span, Level::Committed, reader) }
}

fn only(key: &str) -> Read {
    of(Span::Only(key.into()), &Packed::empty())
}

fn all(reader: &Packed) -> Read {
    of(Span::All, reader)
}

fn at(world: &mut World, node: usize, read: Read) -> Result<Page, Refusal> {
    pages(world, node, 0, &user("ann"), read)
}

fn rows(page: &Page) -> Vec<(Key, Position, Packed)> {
    page.records.iter().map(|record| (record.key.clone(), record.version, record.columns.clone())).collect()
}

/// Whether the copy has what its owner has.
fn agree(world: &mut World) -> Vec<(Key, Position, Packed)> {
    let (owner, copy) = (at(world, 0, all(&Packed::empty())).unwrap(), at(world, COPY, all(&Packed::empty())).unwrap());
    assert_eq!(rows(&owner), rows(&copy));
    rows(&copy)
}

fn stat(world: &mut World, node: usize) -> Stat {
    let request = world.ask(node, 0, user("ann"), Call::Stat);
    world.run(50);
    match world.answer(request) {
        Some(Ok(Answer::Stat(stat))) => stat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn r1_a_copy_has_what_its_owner_has() {
    let mut world = World::tuned(None, public(), |options| options.page_bytes = 150);
    let ann = user("ann");
    for n in 0..20 {
        version(write(&mut world, 0, &ann, put(&format!("k{n:02}"), "a", n)));
    }
    world.node();
    world.follow(COPY, 0);
    world.run(200);
    assert_eq!(agree(&mut world).len(), 20);
    for n in 0..10 {
        version(write(&mut world, 0, &ann, put(&format!("k{n:02}"), "b", n)));
        version(write(&mut world, 0, &ann, delete(&format!("k{:02}", n + 10))));
    }
    assert_eq!(agree(&mut world).len(), 10);
    // One snapshot was enough.
    assert_eq!(world.copying.installs, [(COPY, From::Everything)]);
    // What the owner computes next to the data a copy computes, too.
    let ask = Ask {
        predicate: "n >= 4".to_owned(),
        group_by: vec![("team".to_owned(), "team".to_owned())],
        aggregates: vec![("rows".to_owned(), Aggregate::Count, String::new())],
        ..Ask::default()
    };
    for ask in [ask, Ask { limit: Some(3), ..Ask::default() }] {
        let read = Read { ask, whole: true, ..all(&Packed::empty()) };
        let (owner, copy) = (at(&mut world, 0, read.clone()).unwrap(), at(&mut world, COPY, read).unwrap());
        assert_eq!(owner.rows, copy.rows);
        assert!(!copy.rows.is_empty());
    }
    let span = |from: &str, to: &str| Span::Between(Some(from.into()), Some(to.into()));
    for span in [span("k03", "k07"), Span::After("k03".into(), None), span("x", "y"), Span::Only("k05".into())] {
        let read = of(span, &Packed::empty());
        let (owner, copy) = (at(&mut world, 0, read.clone()).unwrap(), at(&mut world, COPY, read).unwrap());
        assert_eq!(rows(&owner), rows(&copy));
    }
}

#[test]
fn r1_a_copy_shows_nothing_that_its_owner_has_not_heard_to_be_committed() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.hold = true;
    for late in [put("k", "a", 2), put("new", "a", 1)] {
        world.ask(0, 0, ann.clone(), Call::Write(Box::new(late)));
        world.run(50);
    }
    // The store has done it, and its owner has not heard so; then the copy begins.
    world.store.perform(&world.held[0].3.clone()).unwrap();
    world.node();
    world.follow(COPY, 0);
    world.run(1_500);
    let page = at(&mut world, COPY, all(&Packed::empty())).unwrap();
    assert_eq!(page.records.iter().map(|record| record.columns.clone()).collect::<Vec<_>>(), [columns("a", 1)]);
    world.hold = false;
    let (node, life, id, request) = world.held.remove(0);
    world.perform(node, life, id, &request);
    world.run(100);
    assert_eq!(agree(&mut world).len(), 2);
}

#[test]
fn r5_a_copy_answers_nothing_older_than_the_floor() {
    breaks(
        |mutant| {
            let mut world = followed(mutant, |_| {});
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.copying.cut.insert(COPY);
            let floor = version(write(&mut world, 0, &ann, put("k", "a", 2)));
            let old = at(&mut world, COPY, only("k")).map(|page| page.records[0].columns.clone());
            held(old == Ok(columns("a", 1)), || format!("{old:?}"))?;
            let behind = at(&mut world, COPY, Read { floor, ..only("k") });
            held(behind == Err(Refusal::Behind), || format!("{behind:?}"))?;
            world.copying.cut.clear();
            world.run(6_000);
            let new = at(&mut world, COPY, Read { floor, ..only("k") }).map(|page| page.records[0].columns.clone());
            held(new == Ok(columns("a", 2)), || format!("{new:?}"))
        },
        &[Mutant::FloorIgnored],
    );
}

/// A record that goes while a copy goes over its rows is gone as of the floor that is handed back.
#[test]
fn r5_a_copys_answer_is_as_new_as_what_is_missing_from_it() {
    let mut world = followed(None, |options| options.page_bytes = 1);
    let ann = user("ann");
    for n in 0..4 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    let request = world.ask(COPY, 0, ann.clone(), Call::Read(Box::new(all(&Packed::empty()))));
    world.run(50);
    let mut pieces = Vec::new();
    let mut gone = Position::ZERO;
    while let Some(answer) = world.answer(request) {
        let Ok(Answer::Page(page)) = answer else { panic!("{answer:?}") };
        pieces.push(page);
        if pieces.len() == 1 {
            gone = version(write(&mut world, 0, &ann, delete("k3")));
        }
        world.tell_processor(COPY, Input::Pull { request });
        world.run(50);
    }
    let records = pieces.iter().map(|page| page.records.len()).sum::<usize>();
    let last = pieces.last().unwrap();
    assert_eq!((records, last.last), (3, true));
    assert!(gone <= last.position, "{gone}, {}", last.position);
}

#[test]
fn r1_what_only_an_owner_knows_a_copy_leaves_to_it() {
    breaks(
        |mutant| {
            let mut world = followed(mutant, |_| {});
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            let refused: Answered = write(&mut world, COPY, &ann, put("k", "a", 2)).unwrap();
            held(refused == Err(Refusal::Moved), || format!("{refused:?}"))?;
            let netid = NetId([9; 16]);
            let wio = |pending| Level::CommittedWio { netid, pending };
            for (level, answers) in [
                (Level::Latest, false),
                (wio(vec![("k".into(), 1)]), false),
                (wio(Vec::new()), true),
                (Level::Uncommitted, true),
            ] {
                let answer = at(&mut world, COPY, Read { level: level.clone(), ..only("k") });
                let right = if answers { answer.is_ok() } else { answer == Err(Refusal::Moved) };
                held(right, || format!("{level:?}: {answer:?}"))?;
            }
            // Whoever does not say what it has seen may have seen anything.
            let unknown = at(&mut world, COPY, Read { floor: Position::ZERO, ..only("k") });
            held(unknown == Err(Refusal::Moved), || format!("{unknown:?}"))?;
            let request = world.ask(COPY, 0, ann, Call::Stat);
            world.run(50);
            let answer = world.answer(request);
            held(answer == Some(Err(Refusal::Moved)), || format!("{answer:?}"))
        },
        &[Mutant::CopyOwns],
    );
}

#[test]
fn r1_a_copy_passes_over_no_gap() {
    breaks(
        |mutant| {
            let mut world = followed(mutant, |_| {});
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.copying.cut.insert(COPY);
            version(write(&mut world, 0, &ann, put("k", "a", 2)));
            world.copying.cut.clear();
            let floor = version(write(&mut world, 0, &ann, put("l", "a", 1)));
            let read = at(&mut world, COPY, Read { floor, ..all(&Packed::empty()) }).map(|page| rows(&page));
            let right = |rows: &[(Key, Position, Packed)]| rows.len() == 2 && rows[0].2 == columns("a", 2);
            held(read.as_ref().is_ok_and(|rows| right(rows)), || format!("{read:?}"))?;
            // It went on from where it was.
            let anew = world.copying.installs.iter().filter(|(_, from)| *from == From::Everything).count();
            held(anew == 1 && world.copying.installs.len() == 2, || format!("{:?}", world.copying.installs))
        },
        &[Mutant::CopyGapIgnored],
    );
}

#[test]
fn r3_a_copy_misses_no_last_change() {
    breaks(
        |mutant| {
            let mut world = followed(mutant, |_| {});
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.run(1_500);
            world.copying.cut.insert(COPY);
            let floor = version(write(&mut world, 0, &ann, put("k", "a", 2)));
            world.copying.cut.clear();
            // Nothing follows but progress.
            world.run(2_500);
            let read = at(&mut world, COPY, Read { floor, ..only("k") });
            held(read.as_ref().is_ok_and(|page| page.records[0].columns == columns("a", 2)), || format!("{read:?}"))
        },
        &[Mutant::TailIgnored],
    );
}

#[test]
fn r7_a_copy_shows_nothing_to_whom_it_is_denied() {
    breaks(
        |mutant| {
            let mut world = followed(mutant, |_| {});
            let ann = user("ann");
            version(write(&mut world, 0, &ann, shown_to(put("k", "a", 1), "reader.team == 'a'")));
            version(write(&mut world, 0, &ann, shown_to(put("l", "a", 1), "user.sub == 'bob'")));
            world.run(100);
            for (team, reader, seen) in [("a", "ann", 1), ("b", "ann", 0), ("a", "bob", 2), ("b", "bob", 1)] {
                let data = data(&[("team", team.into())]);
                let page = pages(&mut world, COPY, 0, &user(reader), all(&data)).unwrap();
                held(page.records.len() == seen, || format!("{team} {reader}: {page:?}"))?;
                let aggregates = vec![("rows".to_owned(), Aggregate::Count, String::new())];
                let count = Read { ask: Ask { aggregates, ..Ask::default() }, whole: true, ..all(&data) };
                let page = pages(&mut world, COPY, 0, &user(reader), count).unwrap();
                let counted = page.rows.iter().map(|row| row.columns.clone()).collect::<Vec<_>>();
                let right = [crate::world::data(&[("rows", (seen as i64).into())])];
                held(counted == right, || format!("{team} {reader}: {counted:?}"))?;
            }
            Ok(())
        },
        &[Mutant::CopyShowsAll],
    );
}

#[test]
fn whoever_may_not_use_the_table_may_not_at_a_copy() {
    let mut world = followed(None, |_| {});
    version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
    let mut nobody = user("");
    nobody.access = Access::Public;
    assert!(pages(&mut world, COPY, 0, &nobody, only("k")).is_ok());
    let properties = Box::new(Properties { access: Access::User, ..Properties::default() });
    world.tell_processor(COPY, Input::Altered { table: crate::world::TABLE, properties });
    assert_eq!(pages(&mut world, COPY, 0, &nobody, only("k")), Err(Refusal::Access));
}

#[test]
fn r1_a_copy_that_hears_nothing_is_not_read() {
    breaks(
        |mutant| {
            let mut world = followed(mutant, |_| {});
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.copying.cut.insert(COPY);
            world.run(2_000);
            let soon = at(&mut world, COPY, only("k"));
            held(soon.is_ok(), || format!("{soon:?}"))?;
            world.run(3_000);
            let late = at(&mut world, COPY, only("k"));
            held(late == Err(Refusal::Behind), || format!("{late:?}"))
        },
        &[Mutant::CopyOutdated],
    );
}

#[test]
fn r1_a_copy_goes_on_with_the_next_owner() {
    let mut world = followed(None, |_| {});
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(1_500);
    let other = world.node();
    world.lease(0, other);
    world.run(1_500);
    let floor = version(write(&mut world, other, &ann, put("k", "a", 2)));
    world.run(100);
    let page = at(&mut world, COPY, Read { floor, ..only("k") }).unwrap();
    assert_eq!(page.records[0].columns, columns("a", 2));
    // The next owner begins where the last one ended, and so does the copy.
    assert_eq!(world.copying.installs.iter().filter(|(_, from)| *from == From::Everything).count(), 1);
    // What an owner has for itself it does not copy.
    world.lease(0, COPY);
    world.run(1_500);
    assert!(world.copying.followed.is_empty());
    version(write(&mut world, COPY, &ann, put("k", "a", 3)));
    assert_eq!(at(&mut world, COPY, Read { level: Level::Latest, ..only("k") }).unwrap().records.len(), 1);
}

#[test]
fn what_does_not_fit_is_not_copied() {
    let mut world = followed(None, |options| options.copy_bytes = 4_096);
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    assert_eq!(agree(&mut world).len(), 1);
    for n in 0..40 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    assert!(world.copying.followed.is_empty());
    assert_eq!(at(&mut world, COPY, only("k")), Err(Refusal::Moved));
    assert_eq!(stat(&mut world, 0).queries, 0);
}

#[test]
fn a_copy_that_takes_nothing_is_let_go_and_begins_anew() {
    let mut world = followed(None, |options| (options.undelivered, options.log_changes) = (8, 8));
    let ann = user("ann");
    // Frames come, and the word that they were taken is late: as many as the window are under way.
    world.copying.late.insert(COPY, 100_000);
    for n in 0..40 {
        world.ask(0, 0, ann.clone(), Call::Write(Box::new(put(&format!("k{n}"), "a", n))));
        world.run(20);
    }
    world.run(500);
    assert_eq!(stat(&mut world, 0).queries, 0);
    world.copying.late.clear();
    world.run(8_000);
    assert_eq!(agree(&mut world).len(), 40);
}

#[test]
fn copies_that_are_not_wanted_leave_nothing_behind() {
    let mut world = followed(None, |options| options.page_bytes = 1);
    let ann = user("ann");
    for n in 0..3 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    assert_eq!(stat(&mut world, 0).queries, 1);
    let request = world.ask(COPY, 0, ann.clone(), Call::Read(Box::new(all(&Packed::empty()))));
    world.run(50);
    assert!(matches!(world.answer(request), Some(Ok(Answer::Page(page))) if !page.last));
    world.unfollow(COPY, 0);
    world.run(100);
    assert_eq!(world.answer(request), Some(Err(Refusal::Moved)));
    assert_eq!(stat(&mut world, 0).queries, 0);
    assert_eq!(at(&mut world, COPY, only("k1")), Err(Refusal::Moved));
}

#[test]
fn an_owner_feeds_no_more_copies_than_it_may() {
    let mut world = World::calm(None, public());
    for _ in 0..70 {
        let node = world.node();
        world.follow(node, 0);
    }
    world.run(300);
    assert_eq!(stat(&mut world, 0).queries, 64);
}
