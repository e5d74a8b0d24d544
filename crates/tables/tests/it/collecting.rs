//! What goes by itself: marks of deletions that are old enough, and what clients that are gone have left.

use crate::client::{agrees, delete, everything, folded, named, put, version, write};
use crate::holding::{breaks, held, public};
use crate::world::{World, data, user};
use std::time::Duration;
use tidings_predicate::Packed;
use tidings_tables::calls::{Operation, Write};
use tidings_tables::directory::Properties;
use tidings_tables::gateway::{self, Start, Watch};
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{NetId, OperationId};
use tidings_tables::refusal::Refusal;

/// Rows of a kind that are in the store.
fn rows(world: &World, kind: u8) -> usize {
    let all = world.store.rows.values().flatten();
    let live =
        all.filter(|(row, cells)| row.first() == Some(&kind) && cells.values().any(|(_, value)| value.is_some()));
    live.count()
}

/// A table of which eight of ten records were deleted under names, and that nobody uses any more.
fn abandoned(collects: bool) -> World {
    let properties = Properties { tombstones_s: 10, ..public() };
    let mut world = World::tuned(None, properties, |options| {
        (options.collects, options.outcomes) = (collects, Duration::from_secs(10));
        options.log_time = Duration::from_secs(5);
    });
    let ann = user("ann");
    for n in 0..10 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", 1)));
    }
    for n in 0..8 {
        version(write(&mut world, 0, &ann, named(delete(&format!("k{n}")), n + 1, 0, None)));
    }
    world
}

#[test]
fn marks_go_though_nobody_reads_or_writes() {
    for collects in [true, false] {
        let mut world = abandoned(collects);
        world.watch(1, everything(&user("ann"), &Packed::empty(), ""));
        world.run(5_000);
        assert_eq!((rows(&world, b'r'), rows(&world, b'o')), (10, 8), "not before their time");
        world.run(60_000);
        let left = if collects { (2, 0) } else { (10, 8) };
        assert_eq!((rows(&world, b'r'), rows(&world, b'o')), left, "collects: {collects}");
        // Nothing else has changed, for readers, writers and whoever watches.
        version(write(&mut world, 0, &user("ann"), put("k3", "a", 2)));
        world.run(3_000);
        agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    }
}

#[test]
fn r6_what_clients_have_acknowledged_goes_when_they_are_long_gone() {
    let mut world = World::tuned(None, public(), |options| {
        (options.outcomes, options.watermarks) = (Duration::from_secs(10), Duration::from_secs(100));
    });
    let ann = user("ann");
    let other = |write: Write, seq: u64| {
        let id = OperationId { netid: NetId([8; 16]), seq };
        Write { op: Some(Operation { id, acked_through: seq - 1, after: None }), ..write }
    };
    for seq in 1..4 {
        version(write(&mut world, 0, &ann, named(put("k", "a", 1), seq, seq - 1, None)));
    }
    let mut seq = 0;
    let mut goes_on = |world: &mut World, seconds: u64| {
        for _ in 0..seconds / 5 {
            seq += 1;
            version(write(world, 0, &ann, other(put("l", "a", 1), seq)));
            world.run(4_900);
        }
    };
    goes_on(&mut world, 60);
    assert_eq!((rows(&world, b'o'), rows(&world, b'w')), (1, 2));
    // It is remembered longer than its outcomes are.
    let late = write(&mut world, 0, &ann, named(put("k", "a", 1), 3, 2, None));
    assert_eq!(late, Some(Err(Refusal::OutcomeUnknown)));
    // Whoever owns the partition; and whoever goes on is remembered.
    let next = world.node();
    world.lease(0, next);
    world.run(100);
    world.lease(0, 0);
    world.run(100);
    goes_on(&mut world, 100);
    assert_eq!(rows(&world, b'w'), 1);
    let late = write(&mut world, 0, &ann, other(put("l", "a", 1), 2));
    assert_eq!(late, Some(Err(Refusal::OutcomeUnknown)));
}

/// A world in which what clients have acknowledged is kept for a hundred seconds.
fn short_memory(mutant: Option<Mutant>) -> World {
    World::tuned(mutant, public(), |options| {
        (options.outcomes, options.watermarks) = (Duration::from_secs(10), Duration::from_secs(100));
    })
}

/// Nobody remembers anything but the store.
fn forgets(world: &mut World) {
    let next = world.node();
    world.lease(0, next);
    world.run(100);
    world.lease(0, 0);
    world.run(100);
}

#[test]
fn r6_a_watermark_stays_as_long_as_its_client_is_heard_of() {
    breaks(
        |mutant| {
            let (mut world, ann) = (short_memory(mutant), user("ann"));
            for seq in 1..4 {
                version(write(&mut world, 0, &ann, named(put("k", "a", 1), seq, seq - 1, None)));
            }
            // It acknowledges nothing more, and goes on.
            for seq in 4..60 {
                version(write(&mut world, 0, &ann, named(put("k", "a", 1), seq, 2, None)));
                world.run(4_900);
            }
            forgets(&mut world);
            let late = write(&mut world, 0, &ann, named(put("k", "a", 1), 2, 1, None));
            held(late == Some(Err(Refusal::OutcomeUnknown)), || format!("{late:?}"))?;
            // Nor does it grow.
            let cells = world.store.rows.values().flatten().filter(|(row, _)| row.first() == Some(&b'w'));
            let live = cells.flat_map(|(_, cells)| cells.values()).filter(|(_, value)| value.is_some()).count();
            held(live <= 10, || format!("{live} cells of one client"))
        },
        &[Mutant::WatermarkAged],
    );
}

#[test]
fn r6_a_watermark_that_was_removed_hides_none_of_the_same_number() {
    breaks(
        |mutant| {
            let (mut world, ann) = (short_memory(mutant), user("ann"));
            for seq in 1..4 {
                version(write(&mut world, 0, &ann, named(put("k", "a", 1), seq, seq - 1, None)));
            }
            world.run(250_000);
            held(rows(&world, b'w') == 0, || "it is long gone, and remembered".to_owned())?;
            // It comes back, and says what it had said before. Its outcomes went, and its number was raised, a day after it.
            version(write(&mut world, 0, &ann, named(put("k", "a", 1), 5, 3, None)));
            forgets(&mut world);
            let late = write(&mut world, 0, &ann, named(put("k", "a", 1), 3, 2, None));
            held(late == Some(Err(Refusal::OutcomeUnknown)), || format!("{late:?}"))
        },
        &[Mutant::WatermarkAged],
    );
}

/// Marks of an earlier owner go as well; and then there is nothing more to commit.
#[test]
fn marks_of_earlier_owners_go_and_then_it_is_quiet() {
    let mut world = abandoned(true);
    let other = world.node();
    world.lease(0, other);
    world.run(60_000);
    assert_eq!(rows(&world, b'r'), 2);
    world.run(60_000);
    world.hold = true;
    world.run(60_000);
    assert!(world.held.is_empty(), "{:?}", world.held);
}

/// What is written over a mark that is about to go stays, whichever comes first.
#[test]
fn what_is_written_over_a_mark_stays() {
    for wait in (9_000..16_000).step_by(250) {
        let mut world = abandoned(true);
        world.run(wait);
        version(write(&mut world, 0, &user("ann"), put("k3", "a", 2)));
        world.watch(1, everything(&user("ann"), &Packed::empty(), ""));
        world.run(40_000);
        assert_eq!(rows(&world, b'r'), 3, "after {wait}");
        agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    }
}

/// R4: a client that has not taken that something was deleted, and whose reader changes then, learns of it all the same, whether by
/// its mark, by the log, or by a new picture.
#[test]
fn r4_a_deletion_is_known_as_long_as_the_log_leads_past_it() {
    for (log_time, ahead) in [(600, 0), (20, 0), (600, 3_600)] {
        let properties = Properties { tombstones_s: 10, ..public() };
        let mut world = World::tuned(None, properties, |options| options.log_time = Duration::from_secs(log_time));
        let ann = user("ann");
        version(write(&mut world, 0, &ann, put("gone", "a", 1)));
        world.taking = false;
        world.watch(1, everything(&ann, &Packed::empty(), ""));
        for n in 0..70 {
            version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
        }
        version(write(&mut world, 0, &ann, delete("gone")));
        assert!(folded(&world, 1).rows.contains_key(&"gone".into()), "it is behind");
        world.clocks.insert(0, ahead * 1_000_000);
        world.run(60_000);
        let reader = data(&[("place", 1_i64.into())]);
        world.tell_gateway(gateway::Input::UpdateData { number: 1, data: reader.clone() });
        world.run(100);
        world.taking = true;
        world.tell_gateway(gateway::Input::Taken { number: 1, events: 64 });
        world.run(5_000);
        agrees(&mut world, 1, &reader, "").unwrap_or_else(|why| panic!("log {log_time}, ahead {ahead}: {why}"));
    }
}

/// What a mark goes with is no deletion of anything else: cursors behind it stay good, though commits of their own took it away.
#[test]
fn r4_marks_that_go_leave_later_cursors_as_they_are() {
    let properties = Properties { tombstones_s: 10, ..public() };
    let mut world = World::tuned(None, properties, |options| options.log_time = Duration::from_secs(30));
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("gone", "a", 1)));
    version(write(&mut world, 0, &ann, delete("gone")));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(25_000);
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(2_000);
    let cursor = folded(&world, 1).cursor.expect("a cursor is told");
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    version(write(&mut world, 0, &ann, put("l", "a", 1)));
    // Until the mark has gone, and no longer than the log reaches.
    world.run(20_000);
    assert_eq!(rows(&world, b'r'), 2);
    world.watch(2, Watch { start: Start::Cursor(cursor), ..everything(&ann, &Packed::empty(), "") });
    world.run(2_000);
    let resumed = folded(&world, 2);
    assert_eq!((resumed.resets, resumed.rows.len()), (0, 1), "{resumed:?}");
}
