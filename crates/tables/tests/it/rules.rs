//! Writes and reads: each rule, and each rule left out.

use crate::client::{Answered, columns, delete, fresh, named, pages, put, read, shown_to, version, write};
use crate::holding::{breaks, held, public};
use crate::world::{World, data, user};
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed};
use tidings_tables::calls::{Access, Answer, Call, Condition, Conflict, Level, Outcome, Read, Span, Update, Write};
use tidings_tables::directory::Properties;
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{NetId, Position};
use tidings_tables::refusal::Refusal;

fn only(key: &str, level: Level) -> Read {
    read(Span::Only(key.into()), level, &Packed::empty())
}

/// The value `n` of a record, by key.
fn value(world: &mut World, node: usize, key: &str, level: Level) -> Result<Option<Packed>, Refusal> {
    let page = pages(world, node, 0, &user("ann"), only(key, level))?;
    Ok(page.records.into_iter().next().map(|record| record.columns))
}

#[test]
fn r1_positions_grow_from_owner_to_owner() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let first = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            let second = version(write(&mut world, 0, &ann, put("k", "a", 2)));
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            let third = version(write(&mut world, other, &ann, put("k", "a", 3)));
            held(first < second && second < third, || format!("{first} {second} {third}"))?;
            let found = value(&mut world, other, "k", Level::Committed).unwrap();
            let scanned = fresh(&mut world, &ann, &Packed::empty(), &Ask::default());
            let scanned = scanned.get(&Key::from("k")).map(|(version, _)| *version);
            held(found == Some(columns("a", 3)) && scanned == Some(third), || format!("{found:?} {scanned:?}"))
        },
        &[Mutant::TermIgnored],
    );
}

#[test]
fn r2_a_deposed_owner_writes_nothing() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            world.hold = true;
            let late = world.ask(0, 0, ann.clone(), Call::Write(Box::new(put("k", "a", 1))));
            world.run(50);
            world.hold = false;
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            // The new owner has seen that there is no such record.
            let stale = Condition::Version(Position::from_u64(77).unwrap());
            let answer = write(&mut world, other, &ann, Write { condition: stale, ..put("k", "a", 2) });
            let absent = Some(Ok(Answer::Written(Outcome::Conflict(Conflict::Absent))));
            held(answer == absent, || format!("{answer:?}"))?;
            for (node, life, id, request) in std::mem::take(&mut world.held) {
                world.perform(node, life, id, &request);
            }
            world.run(100);
            let answer = world.answer(late);
            held(answer == Some(Err(Refusal::Moved)), || format!("{answer:?}"))?;
            let by_key = value(&mut world, other, "k", Level::Committed).unwrap();
            let scanned = pages(&mut world, other, 0, &ann, read(Span::All, Level::Latest, &Packed::empty()));
            let same = scanned.as_ref().is_ok_and(|page| page.records.is_empty() == by_key.is_none());
            held(same, || format!("{by_key:?} {scanned:?}"))
        },
        &[Mutant::NoFence],
    );
}

#[test]
fn r2_answers_stand_on_a_lease_that_held() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            version(write(&mut world, other, &ann, put("k", "a", 2)));
            let answer = value(&mut world, 0, "k", Level::Latest);
            held(answer == Err(Refusal::Moved), || format!("{answer:?}"))
        },
        &[Mutant::LeaseIgnored],
    );
}

#[test]
fn r2_every_piece_of_the_latest_stands_on_a_lease_that_held() {
    let mut world = World::tuned(None, public(), |options| options.page_bytes = 1);
    let ann = user("ann");
    for n in 0..9 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    let all = read(Span::All, Level::Latest, &Packed::empty());
    let request = world.ask(0, 0, ann.clone(), Call::Read(Box::new(all)));
    world.run(100);
    assert!(matches!(world.answer(request), Some(Ok(Answer::Page(page))) if !page.last && page.records.len() == 3));
    let other = world.node();
    world.lease(0, other);
    world.run(100);
    version(write(&mut world, other, &ann, put("k3", "a", 30)));
    world.tell_processor(0, tidings_tables::processor::Input::Pull { request });
    world.run(100);
    assert_eq!(world.answer(request), Some(Err(Refusal::Moved)));
}

#[test]
fn a_scan_shows_nothing_that_is_not_committed_here() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for key in ["gone", "k"] {
        version(write(&mut world, 0, &ann, put(key, "a", 1)));
    }
    // Three changes in one commit, behind another.
    world.hold = true;
    for late in [put("gone", "a", 1), put("k", "a", 2), delete("gone"), put("new", "a", 1)] {
        world.ask(0, 0, ann.clone(), Call::Write(Box::new(late)));
        world.run(50);
    }
    let (node, life, id, request) = world.held.remove(0);
    world.perform(node, life, id, &request);
    world.run(50);
    // The store has done it, and its owner has not heard so.
    world.store.perform(&world.held[0].3.clone()).unwrap();
    assert_eq!((world.held.len(), versions_of(&world, "new")), (1, 1));
    let scanned = fresh(&mut world, &ann, &Packed::empty(), &Ask::default());
    let scanned: Vec<(Key, Packed)> = scanned.into_iter().map(|(key, (_, columns))| (key, columns)).collect();
    assert_eq!(scanned, [("gone".into(), columns("a", 1)), ("k".into(), columns("a", 1))]);
    // Whoever reads afterwards sees nothing older.
    assert_eq!(value(&mut world, 0, "k", Level::Latest), Ok(Some(columns("a", 1))));
}

#[test]
fn r5_nothing_older_than_the_floor_is_answered() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            let floor = version(write(&mut world, other, &ann, put("k", "a", 2)));
            let read = Read { floor, ..only("k", Level::Committed) };
            let behind = pages(&mut world, 0, 0, &ann, read.clone());
            held(behind == Err(Refusal::Behind), || format!("{behind:?}"))?;
            let owner = pages(&mut world, other, 0, &ann, read).map(|page| page.position);
            held(owner.as_ref().is_ok_and(|position| *position >= floor), || format!("{owner:?}"))
        },
        &[Mutant::FloorIgnored],
    );
}

/// Whoever brings no floor may have seen anything: an owner that was deposed and has not noticed answers it as little as `latest`.
#[test]
fn r5_nothing_older_than_what_is_not_said_is_answered() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            version(write(&mut world, other, &ann, put("k", "a", 2)));
            let netid = NetId([9; 16]);
            for level in [Level::Uncommitted, Level::Committed, Level::CommittedWio { netid, pending: Vec::new() }] {
                for span in [Span::Only("k".into()), Span::All] {
                    let asked = read(span, level.clone(), &Packed::empty());
                    let answer = pages(&mut world, 0, 0, &ann, asked.clone());
                    held(answer == Err(Refusal::Moved), || format!("{level:?}: {answer:?}"))?;
                    let owner = pages(&mut world, other, 0, &ann, asked).map(|page| page.records[0].columns.clone());
                    held(owner == Ok(columns("a", 2)), || format!("{level:?}: {owner:?}"))?;
                }
            }
            Ok(())
        },
        &[Mutant::LeaseIgnored],
    );
}

/// What is missing from an answer is missing as of the floor that it hands back: an older copy would show it again.
#[test]
fn r5_an_answer_is_as_new_as_what_is_missing_from_it() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..9 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.hold_scans = true;
    let all = |floor| Read { floor, ..read(Span::All, Level::Committed, &Packed::empty()) };
    let request = world.ask(0, 0, ann.clone(), Call::Read(Box::new(all(Position::ZERO))));
    world.run(50);
    let hidden = version(write(&mut world, 0, &ann, shown_to(put("k7", "a", 7), "reader.team == 'b'")));
    let gone = version(write(&mut world, 0, &ann, delete("k8")));
    world.hold_scans = false;
    world.let_go();
    world.run(100);
    let Some(Ok(Answer::Page(page))) = world.answer(request) else { panic!("no answer") };
    assert_eq!((page.records.len(), page.last), (7, true));
    assert!(hidden < gone && gone <= page.position, "{gone}, {}", page.position);
    // The same where an owner that was deposed meets what the next one has written.
    let other = world.node();
    world.lease(0, other);
    world.run(100);
    let gone = version(write(&mut world, other, &ann, delete("k6")));
    let page = pages(&mut world, 0, 0, &ann, all(hidden)).unwrap();
    assert_eq!(page.records.len(), 6);
    assert!(gone <= page.position, "{gone}, {}", page.position);
}

fn versions_of(world: &World, key: &str) -> usize {
    let row = [b"r\x01", key.as_bytes()].concat();
    let mut versions: Vec<u64> =
        world.store.records.iter().filter(|(of, ..)| *of == row).map(|(_, version, _)| *version).collect();
    versions.dedup();
    versions.len()
}

#[test]
fn r6_an_operation_takes_effect_once() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let first = write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None));
            let again = write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None));
            held(first == again, || format!("{first:?} {again:?}"))?;
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            let elsewhere = write(&mut world, other, &ann, named(put("k", "a", 1), 1, 0, None));
            held(first == elsewhere, || format!("{first:?} {elsewhere:?}"))?;
            held(versions_of(&world, "k") == 1, || format!("{} versions", versions_of(&world, "k")))
        },
        &[Mutant::OutcomeForgotten],
    );
}

#[test]
fn r6_outcome_and_record_are_one_commit() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            world.hold = true;
            world.ask(0, 0, ann.clone(), Call::Write(Box::new(named(put("k", "a", 1), 1, 0, None))));
            world.run(50);
            let (node, life, id, request) = world.held.remove(0);
            world.perform(node, life, id, &request);
            world.crash(0);
            world.hold = false;
            world.lease(0, 0);
            world.run(100);
            version(write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None)));
            held(versions_of(&world, "k") == 1, || format!("{} versions", versions_of(&world, "k")))
        },
        &[Mutant::OutcomeApart, Mutant::OutcomeForgotten],
    );
}

#[test]
fn r6_what_was_acknowledged_is_never_new() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None)));
            version(write(&mut world, 0, &ann, named(put("l", "a", 2), 2, 1, None)));
            let late = write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None));
            held(late == Some(Err(Refusal::OutcomeUnknown)), || format!("{late:?}"))?;
            held(versions_of(&world, "k") == 1, || format!("{} versions", versions_of(&world, "k")))
        },
        &[Mutant::WatermarkIgnored],
    );
}

#[test]
fn r6_an_id_is_never_used_for_another_operation() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None)));
            let other = write(&mut world, 0, &ann, named(put("k", "a", 2), 1, 0, None));
            held(other == Some(Err(Refusal::Forked)), || format!("{other:?}"))
        },
        &[Mutant::ForkIgnored],
    );
}

#[test]
fn r6_operations_of_a_client_take_effect_in_order() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let second = named(put("k", "a", 2), 2, 0, Some(1));
            let second = world.ask(0, 0, ann.clone(), Call::Write(Box::new(second)));
            world.run(100);
            let early = world.answer(second);
            version(write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None)));
            world.run(100);
            version(early.or_else(|| world.answer(second)));
            let found = value(&mut world, 0, "k", Level::Committed).unwrap();
            held(found == Some(columns("a", 2)), || format!("{found:?}"))
        },
        &[Mutant::OrderIgnored],
    );
}

fn conflict(answer: Option<Answered>) -> Option<Conflict> {
    match answer {
        Some(Ok(Answer::Written(Outcome::Conflict(conflict)))) => Some(conflict),
        _ => None,
    }
}

#[test]
fn r6_what_depends_on_a_failed_operation_fails() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 0)));
    let none = Condition::Version(Position::ZERO);
    let first = write(&mut world, 0, &ann, named(Write { condition: none, ..put("k", "a", 1) }, 1, 0, None));
    assert!(matches!(conflict(first), Some(Conflict::Theirs(_))));
    let on = Condition::Operation(1);
    let second = write(&mut world, 0, &ann, named(Write { condition: on, ..put("k", "a", 2) }, 2, 0, Some(1)));
    assert_eq!(conflict(second), Some(Conflict::Predecessor));
    // A chain that holds, whose versions the client never has to know.
    let third = write(&mut world, 0, &ann, named(put("l", "a", 1), 3, 0, None));
    let on = Condition::Operation(3);
    let fourth = write(&mut world, 0, &ann, named(Write { condition: on, ..put("l", "a", 2) }, 4, 0, Some(3)));
    assert!(version(third) < version(fourth));
}

#[test]
fn r6_a_condition_on_an_operation_outlives_its_outcome() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let on = |seq, write: Write| Write { condition: Condition::Operation(seq), ..write };
    version(write(&mut world, 0, &ann, named(put("k", "a", 1), 1, 0, None)));
    version(write(&mut world, 0, &ann, named(delete("k"), 2, 0, Some(1))));
    // Acknowledged, and its outcome forgotten.
    version(write(&mut world, 0, &ann, named(put("l", "a", 1), 3, 2, None)));
    version(write(&mut world, 0, &ann, named(on(2, put("k", "a", 2)), 4, 2, Some(2))));
    version(write(&mut world, 0, &ann, named(put("l", "a", 2), 6, 4, None)));
    version(write(&mut world, 0, &ann, named(on(4, put("k", "a", 3)), 5, 3, Some(4))));
    // Somebody else's since.
    version(write(&mut world, 0, &ann, put("k", "b", 4)));
    version(write(&mut world, 0, &ann, named(put("l", "a", 3), 8, 6, None)));
    let late = write(&mut world, 0, &ann, named(on(5, put("k", "a", 5)), 7, 6, Some(5)));
    assert!(matches!(conflict(late), Some(Conflict::Theirs(_))));
}

#[test]
fn r6_outcomes_of_clients_that_are_gone_are_collected_and_never_new() {
    let mut world = World::tuned(None, public(), |options| options.outcomes = std::time::Duration::from_secs(60));
    let (ann, bob) = (user("ann"), user("bob"));
    let outcomes = |world: &World| {
        let rows = world.store.rows.values().flatten();
        rows.filter(|(row, cells)| row.first() == Some(&b'o') && cells.values().any(|(_, cell)| cell.is_some())).count()
    };
    for seq in 1..4 {
        version(write(&mut world, 0, &ann, named(put("k", "a", seq as i64), seq, 0, None)));
    }
    world.run(30_000);
    version(write(&mut world, 0, &bob, put("l", "a", 1)));
    assert_eq!(outcomes(&world), 3);
    // Nobody has heard of her for long, whoever serves the partition.
    world.run(80_000);
    version(write(&mut world, 0, &bob, put("l", "a", 2)));
    assert_eq!(outcomes(&world), 0);
    let late = write(&mut world, 0, &ann, named(put("k", "a", 3), 3, 0, None));
    assert_eq!(late, Some(Err(Refusal::OutcomeUnknown)));
    version(write(&mut world, 0, &ann, named(put("k", "a", 4), 4, 3, None)));
    assert_eq!((versions_of(&world, "k"), outcomes(&world)), (4, 1));
}

#[test]
fn r6_a_read_in_invocation_order_waits_for_its_clients_writes() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let op = named(put("k", "a", 1), 1, 0, None);
    let netid = op.op.unwrap().id.netid;
    let level = Level::CommittedWio { netid, pending: vec![("k".into(), 1)] };
    let waiting = world.ask(0, 0, ann.clone(), Call::Read(Box::new(only("k", level.clone()))));
    world.run(200);
    assert_eq!(world.answer(waiting), None);
    version(write(&mut world, 0, &ann, op));
    world.run(100);
    let Some(Ok(Answer::Page(page))) = world.answer(waiting) else { panic!("no answer") };
    assert_eq!(page.records.len(), 1);
    // What never comes is not waited for longer than asked.
    let level = Level::CommittedWio { netid, pending: vec![("k".into(), 2)] };
    let deadline = Some(world.now().mono + std::time::Duration::from_millis(300));
    let late = world.ask(0, 0, ann, Call::Read(Box::new(Read { deadline, ..only("k", level) })));
    world.run(1_000);
    assert_eq!(world.answer(late), Some(Err(Refusal::Waited)));
}

/// A read of all looks at one part after the other: what it waits for may have been acknowledged when it comes to a part.
#[test]
fn r6_a_read_in_invocation_order_waits_for_nothing_that_was_acknowledged() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let op = named(put("k", "a", 1), 1, 0, None);
    let netid = op.op.unwrap().id.netid;
    version(write(&mut world, 0, &ann, op));
    version(write(&mut world, 0, &ann, named(put("l", "a", 1), 2, 1, None)));
    let level = Level::CommittedWio { netid, pending: vec![("k".into(), 1), ("l".into(), 2)] };
    let page = pages(&mut world, 0, 0, &ann, only("k", level)).unwrap();
    assert_eq!(page.records[0].columns, columns("a", 1));
}

#[test]
fn r6_a_deposed_owner_does_not_answer_in_invocation_order() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    let other = world.node();
    world.lease(0, other);
    world.run(100);
    let op = named(put("k", "a", 2), 1, 0, None);
    let level = Level::CommittedWio { netid: op.op.unwrap().id.netid, pending: vec![("k".into(), 1)] };
    version(write(&mut world, other, &ann, op));
    // It finds the outcome in the store, and remembers the record as it was before.
    let deadline = Some(world.now().mono + std::time::Duration::from_millis(300));
    let read = Read { deadline, ..only("k", level) };
    let late = world.ask(0, 0, ann.clone(), Call::Read(Box::new(read.clone())));
    world.run(1_000);
    assert_eq!(world.answer(late), Some(Err(Refusal::Waited)));
    let page = pages(&mut world, other, 0, &ann, Read { deadline: None, ..read }).unwrap();
    assert_eq!(page.records[0].columns, columns("a", 2));
}

#[test]
fn r7_a_conflict_shows_only_what_the_writer_may_see() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            version(write(&mut world, 0, &user("ann"), shown_to(put("k", "a", 1), "reader.team == 'a'")));
            let none = Condition::Version(Position::ZERO);
            let attempt =
                |team: &str| Write { condition: none, data: data(&[("team", team.into())]), ..put("k", "b", 2) };
            let seen = conflict(write(&mut world, 0, &user("bob"), attempt("a")));
            held(matches!(seen, Some(Conflict::Theirs(_))), || format!("{seen:?}"))?;
            let hidden = conflict(write(&mut world, 0, &user("bob"), attempt("b")));
            held(hidden == Some(Conflict::Hidden), || format!("{hidden:?}"))
        },
        &[Mutant::ConflictShown],
    );
}

#[test]
fn patches_need_to_see_and_deletes_leave_nothing() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let patch = |key: &str, team: &str| Write {
        change: Update::Patch { set: data(&[("n", 5.into())]), unset: vec!["team".to_owned()] },
        data: data(&[("team", team.into())]),
        ..put(key, "", 0)
    };
    assert_eq!(conflict(write(&mut world, 0, &ann, patch("k", "a"))), Some(Conflict::Absent));
    version(write(&mut world, 0, &ann, shown_to(put("k", "a", 1), "reader.team == 'a'")));
    assert_eq!(conflict(write(&mut world, 0, &ann, patch("k", "b"))), Some(Conflict::Hidden));
    version(write(&mut world, 0, &ann, patch("k", "a")));
    let page = pages(&mut world, 0, 0, &ann, read(Span::All, Level::Latest, &data(&[("team", "a".into())]))).unwrap();
    assert_eq!(page.records[0].columns, data(&[("n", 5.into())]));
    version(write(&mut world, 0, &ann, delete("k")));
    assert_eq!(value(&mut world, 0, "k", Level::Latest), Ok(None));
}

#[test]
fn tables_keep_strangers_out() {
    let mut world = World::calm(None, Properties::default());
    let ann = user("ann");
    let mut nobody = user("");
    nobody.access = Access::App;
    assert_eq!(write(&mut world, 0, &nobody, put("k", "a", 1)), Some(Err(Refusal::Access)));
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    // Only its writer may replace a record of a table for users.
    let denied = Some(Ok(Answer::Written(Outcome::Refused(Refusal::MayNotWrite))));
    assert_eq!(write(&mut world, 0, &user("bob"), put("k", "a", 2)), denied);
    let properties = Properties {
        may_write: Some("old == null || new != null && new.n > old.n".to_owned()),
        max_records: Some(1),
        ..public()
    };
    let mut world = World::calm(None, properties);
    version(write(&mut world, 0, &ann, put("k", "a", 5)));
    assert_eq!(write(&mut world, 0, &ann, put("k", "a", 4)), denied);
    assert_eq!(write(&mut world, 0, &ann, delete("k")), denied);
    version(write(&mut world, 0, &ann, put("k", "a", 6)));
    let full = Some(Ok(Answer::Written(Outcome::Refused(Refusal::Quota))));
    assert_eq!(write(&mut world, 0, &ann, put("l", "a", 6)), full);
}

#[test]
fn bad_writes_are_refused_by_name_and_change_nothing() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let large = "x".repeat(1 << 20);
    let bad = [
        (put("", "a", 1), "tables.bad_key"),
        (put(&"k".repeat(1_025), "a", 1), "tables.bad_key"),
        (put("k", &large, 1), "tables.record_too_large"),
        (shown_to(put("k", "a", 1), "1 +"), "tables.predicate_syntax"),
        (
            Write {
                change: Update::Put { columns: data(&[("user", 1.into())]), predicate: String::new() },
                ..put("k", "a", 1)
            },
            "tables.bad_columns",
        ),
        (named(put("k", "a", 1), 0, 0, None), "tables.invalid"),
        (named(put("k", "a", 1), 2_000, 1, None), "tables.too_many_outstanding"),
    ];
    for (bad, code) in bad {
        let Some(Err(refusal)) = write(&mut world, 0, &ann, bad) else { panic!("{code}") };
        assert_eq!(tidings_base::Error::from(refusal).code, code);
    }
    assert!(world.store.records.is_empty());
}

#[test]
fn reads_project_order_limit_and_count_next_to_the_data() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..8 {
        let team = if n % 2 == 0 { "a" } else { "b" };
        let hidden = if n == 6 { "reader.team == 'c'" } else { "" };
        version(write(&mut world, 0, &ann, shown_to(put(&format!("k{n}"), team, n), hidden)));
    }
    let ask = Ask {
        predicate: "n >= 2".to_owned(),
        group_by: vec![("team".to_owned(), "team".to_owned())],
        aggregates: vec![("rows".to_owned(), tidings_predicate::query::Aggregate::Count, String::new())],
        ..Ask::default()
    };
    let whole = Read { ask, whole: true, ..read(Span::All, Level::Committed, &Packed::empty()) };
    let rows = pages(&mut world, 0, 0, &ann, whole).unwrap().rows;
    let count = |team: &str, rows: i64| data(&[("team", team.into()), ("rows", rows.into())]);
    let columns: Vec<Packed> = rows.into_iter().map(|row| row.columns).collect();
    // What is hidden is not counted either.
    assert_eq!(columns, [count("a", 2), count("b", 3)]);
    let limit = Ask { limit: Some(2), ..Ask::default() };
    let span = Span::After("k1".into(), Some("k5".into()));
    let page = pages(&mut world, 0, 0, &ann, Read { ask: limit, ..read(span, Level::Committed, &Packed::empty()) });
    let keys: Vec<Key> = page.unwrap().records.into_iter().map(|record| record.key).collect();
    assert_eq!(keys, [Key::from("k2"), Key::from("k3")]);
}
