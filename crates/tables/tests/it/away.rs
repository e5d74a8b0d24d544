//! R3: whoever is away hears through Notify that there is something new, whatever becomes of those who knew of it.

use crate::client::{Folded, everything, folded, fresh, put, shown_to, version, write};
use crate::holding::{Held, breaks, held, public};
use crate::world::{TABLE, World, data, user};
use tidings_base::Wall;
use tidings_predicate::query::Ask;
use tidings_predicate::{Packed, Value};
use tidings_tables::calls::{Access, Answer, Call, Caller};
use tidings_tables::directory::Properties;
use tidings_tables::gateway::{self, Start, Watch};
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{Endpoint, NetId, Object, Position};
use tidings_tables::processor;

const DEVICE: NetId = NetId([5; 16]);
const OTHER: NetId = NetId([6; 16]);

/// A live query of a device.
fn of_device(caller: &Caller, netid: NetId) -> Watch {
    asks(caller, netid, "team == 'a'")
}

fn asks(caller: &Caller, netid: NetId, predicate: &str) -> Watch {
    let endpoint = Some(Endpoint { netid, app: "shop".to_owned() });
    Watch { endpoint, ..everything(caller, &Packed::empty(), predicate) }
}

/// Watches as a device until it has a cursor, and goes away.
fn goes(world: &mut World, number: u64, caller: &Caller, netid: NetId) -> Folded {
    world.watch(number, of_device(caller, netid));
    world.run(3_000);
    let folded = folded(world, number);
    world.tell_gateway(gateway::Input::Unwatch { number });
    world.run(100);
    folded
}

/// The versions of an object that Notify has taken, in order.
fn told(world: &World, number: u32, netid: Option<NetId>) -> Vec<Position> {
    let object = Object { partition: world.id(number), netid };
    let taken = world.publications.iter().filter(|(taken, _)| *taken).flat_map(|(_, all)| all);
    taken.filter(|(of, _)| *of == object).map(|(_, position)| *position).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Held {
    held(found == expected, || format!("{found:?}, not {expected:?}"))
}

#[test]
fn r3_whoever_is_away_hears_of_what_concerns_it_and_misses_nothing() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            version(write(&mut world, 0, &ann, put("old", "a", 1)));
            let mut client = goes(&mut world, 1, &ann, DEVICE);
            // Of others, and hidden: not its business.
            version(write(&mut world, 0, &ann, put("l", "b", 1)));
            version(write(&mut world, 0, &ann, shown_to(put("m", "a", 1), "user.sub == 'bob'")));
            world.run(3_000);
            same(told(&world, 0, Some(DEVICE)), Vec::new())?;
            let one = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.run(3_000);
            same(told(&world, 0, Some(DEVICE)), vec![one])?;
            // What leaves its answer concerns it as well.
            let two = version(write(&mut world, 0, &ann, put("old", "b", 2)));
            world.run(3_000);
            same(told(&world, 0, Some(DEVICE)), vec![one, two])?;
            let start = Start::Cursor(client.cursor.clone().ok_or("no cursor")?);
            world.watch(2, Watch { start, ..of_device(&ann, DEVICE) });
            world.run(3_000);
            world.events.iter().filter(|(of, _)| *of == 2).for_each(|(_, event)| client.hear(event.clone()));
            let ask = Ask { predicate: "team == 'a'".to_owned(), ..Ask::default() };
            let there = fresh(&mut world, &ann, &Packed::empty(), &ask);
            held(client.rows == there && client.resets == 1, || format!("{client:?}, there is {there:?}"))
        },
        &[Mutant::AwayForgotten],
    );
}

#[test]
fn r3_a_new_owner_tells_everybody_who_listens() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let last = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            goes(&mut world, 1, &ann, DEVICE);
            // Of the first owner nobody need hear.
            same(told(&world, 0, None), Vec::new())?;
            let other = world.node();
            world.lease(0, other);
            world.run(3_000);
            let once = told(&world, 0, None);
            held(once.len() == 1 && once[0] > last, || format!("{once:?}, written {last}"))?;
            // Each owner anew, though nothing was written in between.
            world.lease(0, 0);
            world.run(3_000);
            let twice = told(&world, 0, None);
            held(twice.len() == 2 && twice[1] > twice[0], || format!("{twice:?}"))
        },
        &[Mutant::OpenedSilently],
    );
}

#[test]
fn r3_whoever_listens_to_a_partition_that_is_cut_is_told() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let last = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            goes(&mut world, 1, &ann, DEVICE);
            let children = world.split(0, &"m".into()).ok_or("not cut")?;
            for child in children {
                world.lease(child, 0);
            }
            world.run(3_000);
            let heard = told(&world, 0, None);
            held(heard.iter().any(|version| *version > last), || format!("{heard:?}, written {last}"))?;
            held(children.iter().all(|child| told(&world, *child, None).len() == 1), || "a child is silent".to_owned())
        },
        &[Mutant::OpenedSilently],
    );
}

#[test]
fn r3_what_notify_did_not_take_is_published_again() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            goes(&mut world, 1, &ann, DEVICE);
            world.notify = false;
            let last = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.run(5_000);
            same(told(&world, 0, Some(DEVICE)), Vec::new())?;
            world.notify = true;
            world.run(3_000);
            same(told(&world, 0, Some(DEVICE)), vec![last])
        },
        &[Mutant::PublishedOnce],
    );
}

#[test]
fn r3_a_device_is_told_once_a_second_at_most() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    goes(&mut world, 1, &ann, DEVICE);
    let before = world.now;
    let mut last = Position::ZERO;
    for n in 0..50 {
        last = version(write(&mut world, 0, &ann, put("k", "a", n)));
    }
    world.run(2_000);
    let (heard, seconds) = (told(&world, 0, Some(DEVICE)), (world.now - before) / 1_000_000_000);
    assert!(heard.len() as u64 <= seconds + 1, "{} in {seconds} s", heard.len());
    assert_eq!(heard.last(), Some(&last));
}

/// Something ends what was known of a device that is away: it hears of the next change, though that does not concern it, and
/// of none after it.
fn hears_once_more(world: &mut World, caller: &Caller, netid: NetId) {
    let before = told(world, 0, Some(netid)).len();
    world.run(3_000);
    assert_eq!(told(world, 0, Some(netid)).len(), before, "nothing has changed");
    let next = version(write(world, 0, caller, put("other", "b", 1)));
    world.run(3_000);
    assert_eq!(told(world, 0, Some(netid))[before..], [next]);
    version(write(world, 0, caller, put("own", "a", 1)));
    world.run(3_000);
    assert_eq!(told(world, 0, Some(netid)).len(), before + 1, "it is not known any more");
}

#[test]
fn r3_what_ends_a_query_of_somebody_who_is_away_is_not_silence() {
    let ann = user("ann");
    // It is away too long.
    let mut world = World::tuned(None, public(), |options| options.away = std::time::Duration::from_secs(5));
    goes(&mut world, 1, &ann, DEVICE);
    world.run(6_000);
    hears_once_more(&mut world, &ann, DEVICE);

    // Too many are away: the first makes room, and the last stays.
    let mut world = World::tuned(None, public(), |options| options.endpoints = 1);
    goes(&mut world, 1, &ann, DEVICE);
    goes(&mut world, 2, &ann, OTHER);
    world.run(2_000);
    hears_once_more(&mut world, &ann, DEVICE);
    assert_eq!(told(&world, 0, Some(OTHER)).len(), 1);

    // The list of access has changed, while it was away or while it was there.
    let mut world = World::calm(None, public());
    goes(&mut world, 1, &ann, DEVICE);
    world.tell_processor(0, processor::Input::Relisted(TABLE));
    hears_once_more(&mut world, &ann, DEVICE);
    world.watch(2, of_device(&ann, OTHER));
    world.run(3_000);
    world.tell_processor(0, processor::Input::Relisted(TABLE));
    world.run(100);
    world.tell_gateway(gateway::Input::Unwatch { number: 2 });
    hears_once_more(&mut world, &ann, OTHER);

    // It may not read the table any more, and nobody knows whether it has heard that.
    let mut world = World::calm(None, public());
    let bob = Caller { access: Access::Public, ..user("bob") };
    world.watch(1, of_device(&bob, DEVICE));
    world.run(3_000);
    let maker = Caller { access: Access::App, ..user("maker") };
    let properties = Properties { access: Access::App, ..world.directory.properties.clone() };
    world.directory.alter(&maker, properties).unwrap();
    world.directory_changed();
    hears_once_more(&mut world, &ann, DEVICE);

    // R8: its claims are over.
    let mut world = World::calm(None, public());
    let ends = world.now().wall.0 / 1_000_000 + 10;
    let claims = data(&[("sub", "ann".into()), ("exp", Value::Int(ends as i64))]);
    let passing = Caller { claims, expires: Some(Wall(ends * 1_000_000)), ..user("ann") };
    goes(&mut world, 1, &passing, DEVICE);
    world.run(10_000);
    hears_once_more(&mut world, &ann, DEVICE);
}

#[test]
fn r3_a_device_whose_query_fell_behind_and_ended_is_told() {
    let mut world = World::tuned(None, public(), |options| options.log_changes = 2);
    let ann = user("ann");
    world.watch(1, of_device(&ann, DEVICE));
    world.run(3_000);
    // It takes nothing: what fills its window waits, and the log does not.
    world.taking = false;
    for n in 0..80 {
        version(write(&mut world, 0, &ann, put("k", "a", n)));
    }
    world.run(2_000);
    world.tell_gateway(gateway::Input::Taken { number: 1, events: 1 });
    world.run(1);
    // Nobody hears that the query ended, nor that its client has gone.
    world.deaf = true;
    world.run(10);
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    world.run(10);
    world.deaf = false;
    hears_once_more(&mut world, &ann, DEVICE);
}

#[test]
fn r3_what_a_device_missed_after_the_list_changed_is_told_when_it_goes() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.watch(1, of_device(&ann, DEVICE));
    world.run(3_000);
    world.tell_processor(0, processor::Input::Relisted(TABLE));
    world.run(100);
    world.deaf = true;
    let missed = version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.deaf = false;
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [missed]);
    hears_once_more(&mut world, &ann, DEVICE);
}

#[test]
fn r3_a_device_that_comes_back_takes_its_own_place() {
    let mut world = World::tuned(None, public(), |options| options.endpoints = 1);
    let ann = user("ann");
    for number in 1..4 {
        goes(&mut world, number, &ann, DEVICE);
        world.run(2_000);
    }
    version(write(&mut world, 0, &ann, put("l", "b", 1)));
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [], "nobody had to make room");
    let last = version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [last]);
}

#[test]
fn r3_another_reader_by_the_name_of_a_device_takes_no_place_of_it() {
    let mut world = World::calm(None, public());
    let (ann, bob) = (user("ann"), user("bob"));
    goes(&mut world, 1, &ann, DEVICE);
    goes(&mut world, 2, &bob, DEVICE);
    let last = version(write(&mut world, 0, &ann, shown_to(put("k", "a", 1), "user.sub == 'ann'")));
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [last]);

    // A token that was renewed is nobody else's.
    let mut world = World::tuned(None, public(), |options| options.endpoints = 1);
    for (number, made) in [(1, 100), (2, 200)] {
        let claims = data(&[("sub", "ann".into()), ("iat", Value::Int(made))]);
        goes(&mut world, number, &Caller { claims, ..user("ann") }, DEVICE);
        world.run(2_000);
    }
    version(write(&mut world, 0, &ann, put("l", "b", 1)));
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [], "nobody had to make room");
}

#[test]
fn r3_a_device_leaves_a_bounded_number_of_queries() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    for number in 1..=65 {
        world.watch(number, asks(&ann, DEVICE, &format!("n == {number}")));
        world.run(10);
    }
    world.run(3_000);
    for number in 1..=65 {
        world.tell_gateway(gateway::Input::Unwatch { number });
        world.run(10);
    }
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), []);
    // The first has made room, which is no silence; the last is known.
    let other = version(write(&mut world, 0, &ann, put("k", "a", 1_000)));
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [other]);
    version(write(&mut world, 0, &ann, put("l", "a", 1)));
    let last = version(write(&mut world, 0, &ann, put("m", "a", 65)));
    world.run(3_000);
    assert_eq!(told(&world, 0, Some(DEVICE)), [other, last]);
}

#[test]
fn r3_those_who_are_away_leave_room_for_those_who_are_there() {
    let mut world = World::tuned(None, public(), |options| options.index.scanned = 4);
    let ann = user("ann");
    for number in 1..=4 {
        let netid = NetId([number as u8; 16]);
        world.watch(number, asks(&ann, netid, &format!("n != {number}")));
        world.run(3_000);
        world.tell_gateway(gateway::Input::Unwatch { number });
        world.run(100);
    }
    for number in 5..=6 {
        world.watch(number, everything(&ann, &Packed::empty(), &format!("n != {number}")));
    }
    world.run(3_000);
    assert!((5..=6).all(|number| folded(&world, number).ended.is_none()), "{:?}", world.events);
    // All four hear of a change: two that are known, two that are not.
    let next = version(write(&mut world, 0, &ann, put("k", "a", 1_000)));
    world.run(3_000);
    for number in 1..=4 {
        assert_eq!(told(&world, 0, Some(NetId([number; 16]))), [next]);
    }
}

/// The same for shapes of predicates, and for the sets of fields that they are found by.
#[test]
fn r3_those_who_are_away_leave_shapes_and_fields_to_those_who_are_there() {
    for of_fields in [false, true] {
        let mut world = World::tuned(None, public(), |options| match of_fields {
            // Without a set of fields a predicate would be compared with every record, for which there is no room.
            true => (options.index.schemes, options.index.scanned) = (4, 0),
            false => options.index.templates = 4,
        });
        let ann = user("ann");
        for number in 1..=4 {
            // Two readers have one shape: the second takes nothing more.
            for netid in [number, number + 100] {
                let shape = format!("c{number} == {netid}");
                world.watch(u64::from(netid), asks(&ann, NetId([netid; 16]), &shape));
                world.run(2_000);
                world.tell_gateway(gateway::Input::Unwatch { number: u64::from(netid) });
                world.run(100);
            }
        }
        for number in 5..=6 {
            world.watch(number, everything(&ann, &Packed::empty(), &format!("c{number} == 1")));
        }
        world.run(3_000);
        assert!((5..=6).all(|number| folded(&world, number).ended.is_none()), "{:?}", world.events);
        // All hear of a change: those that are known because it is theirs, the others whatever it is.
        let next = version(write(&mut world, 0, &ann, put("k", "a", 1)));
        world.run(3_000);
        let heard = |world: &World, netid: u8| told(world, 0, Some(NetId([netid; 16]))).contains(&next);
        let known: Vec<u8> = (1..=4).flat_map(|n| [n, n + 100]).filter(|netid| !heard(&world, *netid)).collect();
        assert_eq!(known, [1, 101, 2, 102], "of fields: {of_fields}");
    }
}

#[test]
fn r3_a_device_that_leaves_before_its_query_has_come_is_told() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.deaf = true;
    world.watch(1, of_device(&ann, DEVICE));
    world.run(10);
    world.deaf = false;
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    hears_once_more(&mut world, &ann, DEVICE);
}

#[test]
fn r3_the_word_that_a_device_has_left_is_repeated_until_it_is_heard() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let before = version(write(&mut world, 0, &ann, put("k", "a", 1)));
            world.deaf = true;
            world.watch(1, of_device(&ann, DEVICE));
            world.run(10);
            world.tell_gateway(gateway::Input::Unwatch { number: 1 });
            world.run(5_000);
            world.deaf = false;
            world.run(3_000);
            // It knows nothing of what is there already.
            same(told(&world, 0, Some(DEVICE)), vec![before])?;
            let next = version(write(&mut world, 0, &ann, put("other", "b", 1)));
            world.run(3_000);
            same(told(&world, 0, Some(DEVICE)), vec![before, next])?;
            held(world.events.is_empty(), || format!("it has gone, and hears {:?}", world.events))
        },
        &[Mutant::LeftOnce, Mutant::AwayForgotten],
    );
}

#[test]
fn r3_a_device_has_no_cursor_before_every_owner_knows_of_it() {
    breaks(
        |mutant| {
            let mut world = World::calm(mutant, public());
            let ann = user("ann");
            let children = world.split(0, &"m".into()).ok_or("not cut")?;
            children.into_iter().for_each(|child| {
                world.lease(child, 0);
            });
            world.run(3_000);
            let cursor = goes(&mut world, 1, &ann, DEVICE).cursor.ok_or("no cursor")?;
            // The second half is in the hands of somebody who does not answer.
            let other = world.node();
            world.lease(children[1], other);
            world.crash(other);
            let start = Start::Cursor(cursor);
            world.watch(2, Watch { start, ..of_device(&ann, DEVICE) });
            version(write(&mut world, 0, &ann, put("a", "a", 1)));
            world.run(5_000);
            held(!folded(&world, 2).rows.is_empty(), || "the first half says nothing".to_owned())?;
            held(folded(&world, 2).cursor.is_none(), || "a cursor, and one owner knows nothing of it".to_owned())?;
            world.lease(children[1], 0);
            world.run(3_000);
            held(folded(&world, 2).cursor.is_some(), || "no cursor".to_owned())?;
            // Its gateway dies, and nobody says that it has gone.
            world.crash_gateway();
            let last = version(write(&mut world, 0, &ann, put("z", "a", 1)));
            world.run(3_000);
            same(told(&world, children[1], Some(DEVICE)), vec![last])
        },
        &[Mutant::GivenEarly],
    );
}

#[test]
fn r3_a_query_whose_client_has_gone_unheard_does_not_stay() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(3_000);
    world.deaf = true;
    world.tell_gateway(gateway::Input::Unwatch { number: 1 });
    world.run(100);
    world.deaf = false;
    assert_eq!(queries(&mut world), 1);
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(100);
    assert_eq!(queries(&mut world), 0);
}

/// Live queries at the owner of the first partition.
fn queries(world: &mut World) -> u64 {
    let request = world.ask(0, 0, user("ann"), Call::Stat);
    world.run(50);
    match world.answer(request) {
        Some(Ok(Answer::Stat(stat))) => stat.queries,
        other => panic!("{other:?}"),
    }
}
