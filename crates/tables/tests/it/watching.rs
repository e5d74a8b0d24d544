//! Live queries: each rule, and each rule left out.

use crate::client::{Folded, agrees, delete, everything, folded, fresh, named, put, shown_to, version, write};
use crate::holding::{breaks, held, public};
use crate::world::{World, data, user};
use tidings_base::Wall;
use tidings_predicate::query::Ask;
use tidings_predicate::{Key, Packed};
use tidings_tables::calls::Call;
use tidings_tables::gateway::{self, Start};
use tidings_tables::mutant::Mutant;
use tidings_tables::refusal::Refusal;

#[test]
fn r3_a_lost_frame_is_noticed_by_the_next() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            world.run(100);
            world.deaf = true;
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.deaf = false;
            version(write(&mut world, 0, &ann, put("l", "a", 1)));
            world.run(5_000);
            agrees(&mut world, 1, &Packed::empty(), "")
        },
        &[Mutant::GapIgnored],
    );
}

#[test]
fn r3_a_lost_last_frame_is_noticed_by_progress() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            world.run(100);
            world.deaf = true;
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.deaf = false;
            world.run(5_000);
            agrees(&mut world, 1, &Packed::empty(), "")
        },
        &[Mutant::TailIgnored],
    );
}

#[test]
fn r3_a_new_owner_is_asked_again() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            world.run(100);
            let other = world.node();
            world.lease(0, other);
            world.run(100);
            version(write(&mut world, other, &ann, put("k", "a", 2)));
            world.run(10_000);
            agrees(&mut world, 1, &Packed::empty(), "")
        },
        &[Mutant::NoReinstall],
    );
}

#[test]
fn r4_a_snapshot_is_of_one_position_and_changes_follow() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            for n in 0..9 {
                version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
            }
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            // Three rows a page: the last ones change while the first are read.
            let change = [put("k7", "a", 70), delete("k8"), put("k9", "a", 9)];
            for change in change {
                world.ask(0, 0, ann.clone(), Call::Write(Box::new(change)));
            }
            world.run(5_000);
            agrees(&mut world, 1, &Packed::empty(), "")
        },
        &[Mutant::SnapshotTorn],
    );
}

#[test]
fn r4_what_leaves_the_result_is_told_to_whom_it_was_in() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("k", "a", 1)));
            version(write(&mut world, 0, &ann, put("l", "b", 1)));
            version(write(&mut world, 0, &ann, put("m", "a", 1)));
            world.watch(1, everything(&ann, &Packed::empty(), "team == 'a'"));
            world.run(200);
            version(write(&mut world, 0, &ann, put("k", "b", 2)));
            version(write(&mut world, 0, &ann, delete("l")));
            version(write(&mut world, 0, &ann, delete("m")));
            world.run(2_000);
            agrees(&mut world, 1, &Packed::empty(), "team == 'a'")
        },
        &[Mutant::NoLeave, Mutant::LeaveToAll, Mutant::SentUnchecked],
    );
}

#[test]
fn r4_a_cursor_that_the_log_does_not_reach_is_a_reset() {
    breaks(
        |mutant| {
            let mut world = World::tuned(mutant, public(), |options| options.log_changes = 2);
            let ann = user("ann");
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            version(write(&mut world, 0, &ann, put("k0", "a", 0)));
            world.run(3_000);
            let before = folded(&world, 1);
            world.tell_gateway(gateway::Input::Unwatch { number: 1 });
            for n in 0..6 {
                version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
            }
            let start = Start::Cursor(before.cursor.clone().ok_or("no cursor")?);
            world.watch(2, gateway::Watch { start, ..everything(&ann, &Packed::empty(), "") });
            world.run(3_000);
            let mut both = before;
            world.events.iter().filter(|(of, _)| *of == 2).for_each(|(_, event)| both.hear(event.clone()));
            let fresh = fresh(&mut world, &ann, &Packed::empty(), &Ask::default());
            held(both.rows == fresh, || format!("told {:?}, there is {fresh:?}", both.rows))
        },
        &[Mutant::NoReset],
    );
}

#[test]
fn r4_newer_than_filters_the_first_read_alone() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for key in ["k", "l", "m"] {
        version(write(&mut world, 0, &ann, put(key, "a", 1)));
    }
    world.run(1_000);
    let newer_than = Some(world.now().wall);
    version(write(&mut world, 0, &ann, put("l", "a", 2)));
    world.watch(1, gateway::Watch { newer_than, ..everything(&ann, &Packed::empty(), "") });
    world.run(500);
    let keys = |world: &World| folded(world, 1).rows.into_keys().collect::<Vec<Key>>();
    assert_eq!(keys(&world), [Key::from("l")]);
    // What changes afterwards is told, whenever it was first written.
    version(write(&mut world, 0, &ann, put("k", "a", 2)));
    version(write(&mut world, 0, &ann, delete("l")));
    world.run(500);
    assert_eq!(keys(&world), [Key::from("k")]);
    // A `reset` is not a first read: it holds everything.
    let new = data(&[("team", "a".into())]);
    world.crash(0);
    world.lease(0, 0);
    world.tell_gateway(gateway::Input::UpdateData { number: 1, data: new.clone() });
    world.run(3_000);
    assert_eq!(folded(&world, 1).resets, 2);
    agrees(&mut world, 1, &new, "").unwrap();
    assert_eq!(keys(&world), [Key::from("k"), Key::from("m")]);
}

/// A cursor that is within the log goes on with what changed, and nothing else.
#[test]
fn r4_a_cursor_within_the_log_goes_on() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for key in ["k", "l", "m"] {
        version(write(&mut world, 0, &ann, put(key, "a", 1)));
    }
    world.watch(1, everything(&ann, &Packed::empty(), "team == 'a'"));
    world.run(3_000);
    let mut both = folded(&world, 1);
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    for change in [put("k", "b", 2), put("k", "a", 3), put("l", "b", 2), put("n", "b", 1), delete("n")] {
        version(write(&mut world, 0, &ann, change));
    }
    let start = Start::Cursor(both.cursor.clone().unwrap());
    let again = start.clone();
    world.watch(2, gateway::Watch { start, ..everything(&ann, &Packed::empty(), "team == 'a'") });
    world.run(3_000);
    // T1: the same query, reader and cursor hear the same.
    let changes = |world: &World, number: u64| -> Vec<gateway::Event> {
        let of = world.events.iter().filter(|(of, _)| *of == number);
        of.filter_map(|(_, event)| event.clone().ok())
            .filter(|event| matches!(event, gateway::Event::Changes(_)))
            .collect()
    };
    world.watch(3, gateway::Watch { start: again, ..everything(&ann, &Packed::empty(), "team == 'a'") });
    world.run(500);
    assert!(!changes(&world, 2).is_empty());
    assert_eq!(changes(&world, 2), changes(&world, 3));
    let resets = both.resets;
    world.events.iter().filter(|(of, _)| *of == 2).for_each(|(_, event)| both.hear(event.clone()));
    let ask = Ask { predicate: "team == 'a'".to_owned(), ..Ask::default() };
    assert_eq!(both.rows, fresh(&mut world, &ann, &Packed::empty(), &ask));
    assert_eq!((both.resets, both.needless), (resets, None));
}

#[test]
fn r4_what_was_heard_after_the_cursor_leaves_as_well() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(3_000);
    let cursor = folded(&world, 1).cursor.unwrap();
    version(write(&mut world, 0, &ann, put("l", "a", 1)));
    let mut both = folded(&world, 1);
    assert_eq!(both.rows.len(), 2);
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    version(write(&mut world, 0, &ann, delete("l")));
    let start = Start::Cursor(cursor);
    world.watch(2, gateway::Watch { start, ..everything(&ann, &Packed::empty(), "") });
    world.run(500);
    world.events.iter().filter(|(of, _)| *of == 2).for_each(|(_, event)| both.hear(event.clone()));
    assert_eq!(both.rows, fresh(&mut world, &ann, &Packed::empty(), &Ask::default()));
}

#[test]
fn r4_new_data_of_a_reader_switch_what_it_sees() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            for (n, team) in ["a", "b", "a", "b", "a", "b"].iter().enumerate() {
                let record = put(&format!("k{n}"), team, n as i64);
                version(write(&mut world, 0, &ann, shown_to(record, &format!("reader.team == '{team}'"))));
            }
            world.watch(1, everything(&ann, &data(&[("team", "a".into())]), ""));
            world.run(500);
            let first = folded(&world, 1);
            held(first.rows.len() == 3, || format!("{:?}", first.rows))?;
            let new = data(&[("team", "b".into())]);
            world.tell_gateway(gateway::Input::UpdateData { number: 1, data: new.clone() });
            world.run(500);
            let settled = !folded(&world, 1).settling;
            held(settled, || "still settling".to_owned())?;
            agrees(&mut world, 1, &new, "")
        },
        &[Mutant::NoDifference],
    );
}

/// What a client has that heard of a query's events as many as `until` allows, and was then cut off.
fn cut_off(world: &World, mut both: Folded, number: u64, until: impl Fn(&gateway::Event) -> bool) -> Folded {
    for (_, event) in world.events.iter().filter(|(of, _)| *of == number) {
        both.hear(event.clone());
        if event.as_ref().is_ok_and(&until) {
            return both;
        }
    }
    panic!("it did not happen");
}

/// Whoever says something else of itself and takes it back, and is cut off meanwhile, keeps nothing of the other data.
#[test]
fn r4_a_cursor_of_other_data_is_taken_back() {
    breaks(
        |mutant| {
            let mut world = World::tuned(mutant, public(), |options| options.page_bytes = 150);
            let (ann, [a, b]) = (user("ann"), ["a", "b"].map(|team| data(&[("team", team.into())])));
            for n in 0..8 {
                let team = ["a", "b"][n % 2];
                let record = shown_to(put(&format!("k{n}"), team, n as i64), &format!("reader.team == '{team}'"));
                version(write(&mut world, 0, &ann, record));
            }
            world.watch(1, everything(&ann, &a, ""));
            world.run(3_000);
            let before = folded(&world, 1);
            world.tell_gateway(gateway::Input::UpdateData { number: 1, data: b.clone() });
            world.run(500);
            // In the middle of the switch.
            let changes = |event: &gateway::Event| matches!(event, gateway::Event::Changes(_));
            let switching = cut_off(&world, Folded::default(), 1, changes);
            // In the middle of beginning anew with the other data.
            let start = Start::Cursor(before.cursor.clone().ok_or("no cursor")?);
            world.watch(2, gateway::Watch { start, ..everything(&ann, &b, "") });
            world.run(500);
            let replaced = |event: &gateway::Event| matches!(event, gateway::Event::Reset { last: true, .. });
            let anew = cut_off(&world, before, 2, replaced);
            let there = fresh(&mut world, &ann, &a, &Ask::default());
            for (number, mut both) in [(3, switching), (4, anew)] {
                assert_ne!(both.rows, there);
                let start = Start::Cursor(both.cursor.clone().ok_or("no cursor")?);
                world.watch(number, gateway::Watch { start, ..everything(&ann, &a, "") });
                world.run(500);
                world.events.iter().filter(|(of, _)| *of == number).for_each(|(_, event)| both.hear(event.clone()));
                held(both.rows == there, || format!("{number}: {:?}, there is {there:?}", both.rows))?;
            }
            Ok(())
        },
        &[Mutant::CursorKept],
    );
}

#[test]
fn r8_claims_that_expired_show_nothing_more() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let mut ann = user("ann");
            version(write(&mut world, 0, &ann, shown_to(put("k", "a", 1), "user.sub == 'ann'")));
            version(write(&mut world, 0, &ann, put("l", "a", 1)));
            ann.expires = Some(Wall(world.now().wall.0 + 1_000_000));
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            world.run(500);
            let before = folded(&world, 1).rows.len();
            world.run(3_000);
            let after: Vec<Key> = folded(&world, 1).rows.into_keys().collect();
            held(before == 2 && after == [Key::from("l")], || format!("{before} rows, then {after:?}"))
        },
        &[Mutant::ExpiryIgnored],
    );
}

/// Whoever has its token renewed connects with the new one, and goes on: what says when a token was made is no part of a reader.
/// Other claims are another reader, whose picture was another one.
#[test]
fn r8_a_renewed_token_goes_on_where_the_old_one_was() {
    let mut world = World::calm(None, public());
    let token = |role: &str, made: i64| {
        let (sub, role, made) = (("sub", "ann".into()), ("role", role.into()), tidings_predicate::Value::Int(made));
        let claims = data(&[sub, role, ("iat", made.clone()), ("exp", made)]);
        let expires = Some(Wall(world.now().wall.0 + 60_000_000));
        tidings_tables::calls::Caller { claims, expires, ..user("ann") }
    };
    let (old, renewed, other) = (token("reader", 1), token("reader", 2), token("editor", 3));
    version(write(&mut world, 0, &old, shown_to(put("k", "a", 1), "user.role == 'reader'")));
    version(write(&mut world, 0, &old, shown_to(put("l", "a", 1), "user.role == 'editor'")));
    world.watch(1, everything(&old, &Packed::empty(), ""));
    world.run(3_000);
    let mut known = folded(&world, 1);
    let start = Start::Cursor(known.cursor.clone().unwrap());
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    version(write(&mut world, 0, &old, shown_to(put("m", "a", 2), "user.role == 'reader'")));
    for (number, caller) in [(2, &renewed), (3, &other)] {
        world.watch(number, gateway::Watch { start: start.clone(), ..everything(caller, &Packed::empty(), "") });
    }
    world.run(3_000);
    let heard = folded(&world, 2);
    assert_eq!((heard.resets, heard.rows.into_keys().collect::<Vec<_>>()), (0, vec![Key::from("m")]));
    world.events.iter().filter(|(of, _)| *of == 2).for_each(|(_, event)| known.hear(event.clone()));
    assert_eq!(known.rows.into_keys().collect::<Vec<_>>(), ["k", "m"].map(Key::from));
    let heard = folded(&world, 3);
    assert_eq!((heard.resets, heard.rows.into_keys().collect::<Vec<_>>()), (1, vec![Key::from("l")]));
}

#[test]
fn r8_cursors_say_nothing_and_cannot_be_made() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let at = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            world.run(3_000);
            let mut cursor = folded(&world, 1).cursor.ok_or("no cursor")?;
            let position = at.get().to_be_bytes();
            held(!cursor.windows(8).any(|part| part == position), || "a position can be read".to_owned())?;
            cursor[5] ^= 1;
            world.watch(2, gateway::Watch { start: Start::Cursor(cursor), ..everything(&ann, &Packed::empty(), "") });
            world.run(100);
            let ended = folded(&world, 2).ended;
            held(ended == Some(Refusal::BadCursor), || format!("{ended:?}"))
        },
        &[Mutant::CursorOpen],
    );
}

#[test]
fn r9_what_changes_without_a_write_cannot_be_watched() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let mut watch = everything(&user("ann"), &Packed::empty(), "");
            watch.ask.project = vec![("at".to_owned(), "now()".to_owned())];
            world.watch(1, watch);
            world.run(500);
            let ended = folded(&world, 1).ended.map(tidings_base::Error::from);
            let code = ended.as_ref().map(|error| error.code.to_string());
            held(code.as_deref() == Some("tables.predicate_not_live"), || format!("{ended:?}"))
        },
        &[Mutant::LiveUnchecked],
    );
}

/// Changes that come close together are one word to read again, and the last of them is in it.
#[test]
fn r9_what_is_read_again_gathers_changes() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let mut watch = everything(&ann, &Packed::empty(), "team == 'a'");
    watch.ask.limit = Some(10);
    world.watch(1, watch);
    world.run(2_000);
    let again = |world: &World| {
        let told = world.events.iter().filter(|(_, event)| matches!(event, Ok(gateway::Event::Again)));
        told.count()
    };
    for round in 1..=3 {
        let before = again(&world);
        let requests: Vec<_> = (0..40)
            .map(|n| {
                let key = format!("k{n}");
                let request = world.ask(0, 0, ann.clone(), Call::Write(Box::new(put(&key, "a", round))));
                world.run(5);
                request
            })
            .collect();
        // Two hundred milliseconds, and the last change is not told before its hundred are over.
        let heard = again(&world) - before;
        assert!((1..=3).contains(&heard), "{heard} times for 40 changes");
        for request in requests {
            version(world.answer(request));
        }
        world.run(200);
        let last = again(&world) - before - heard;
        assert_eq!(last, 1, "the last change is told");
        world.run(2_000);
        assert_eq!(again(&world) - before, heard + last, "once");
    }
    // What is none of its business is told to nobody.
    let before = again(&world);
    version(write(&mut world, 0, &ann, put("other", "b", 1)));
    world.run(2_000);
    assert_eq!(again(&world), before);
}

#[test]
fn r9_an_audience_that_changes_without_a_write_is_refused() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let record = shown_to(put("k", "a", 1), "now() > timestamp('2025-01-01T00:00:00Z')");
            let answer = write(&mut world, 0, &user("ann"), record);
            let code = match answer {
                Some(Err(refusal)) => tidings_base::Error::from(refusal).code.to_string(),
                other => format!("{other:?}"),
            };
            held(code == "tables.predicate_not_live", || code)?;
            let there = fresh(&mut world, &user("ann"), &Packed::empty(), &Ask::default());
            held(there.is_empty(), || format!("{there:?}"))
        },
        &[Mutant::LiveUnchecked],
    );
}

#[test]
fn a_query_that_nobody_takes_ends() {
    let mut world = World::tuned(None, public(), |options| options.undelivered = 3);
    world.taking = false;
    let ann = user("ann");
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(100);
    for n in 0..80 {
        version(write(&mut world, 0, &ann, put("k", "a", n)));
    }
    world.run(2_000);
    assert_eq!(folded(&world, 1).ended, Some(Refusal::Ended));
}

#[test]
fn children_go_on_where_their_parent_ended() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for n in 0..6 {
        version(write(&mut world, 0, &ann, named(put(&format!("k{n}"), "a", n), n as u64 + 1, 0, None)));
    }
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(2_000);
    let resets = folded(&world, 1).resets;
    let [left, right] = world.split(0, &"k3".into()).unwrap();
    let other = world.node();
    world.lease(left, 0);
    world.lease(right, other);
    world.run(3_000);
    // Outcomes have followed their keys.
    let again = write(&mut world, other, &ann, named(put("k4", "a", 4), 5, 0, None));
    assert!(version(again).term().get() <= 1);
    assert!(version(write(&mut world, other, &ann, put("k4", "a", 44))).term().get() > 1);
    version(write(&mut world, 0, &ann, put("k1", "a", 11)));
    world.run(3_000);
    assert_eq!(folded(&world, 1).resets, resets);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    let merged = [left, right].map(|number| world.opened(number).unwrap());
    let joined = world.directory.merge(merged).unwrap();
    world.directory_changed();
    world.lease(joined, 0);
    world.run(5_000);
    version(write(&mut world, 0, &ann, put("k5", "a", 55)));
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    // The parents are sealed: whoever still believes to own one writes nothing.
    let late = world.ask(other, right, ann, Call::Write(Box::new(put("k4", "a", 0))));
    world.run(200);
    assert_eq!(world.answer(late), Some(Err(Refusal::Moved)));
}

#[test]
fn r4_whoever_begins_with_nothing_can_go_on_at_once() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("old", "a", 1)));
    world.watch(1, gateway::Watch { start: Start::Nothing, ..everything(&ann, &Packed::empty(), "") });
    world.run(50);
    let cursor = folded(&world, 1).cursor.expect("a cursor before anything happened");
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    version(write(&mut world, 0, &ann, put("new", "a", 1)));
    world.watch(2, gateway::Watch { start: Start::Cursor(cursor), ..everything(&ann, &Packed::empty(), "") });
    world.run(100);
    let told = folded(&world, 2);
    assert_eq!((told.resets, told.rows.into_keys().collect::<Vec<_>>()), (0, vec![Key::from("new")]));
}
