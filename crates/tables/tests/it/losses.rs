//! What is lost, late, twice or from somebody who is deposed between gateway and processors (R3): never silence.

use crate::client::{agrees, delete, everything, folded, put, version, write};
use crate::holding::{breaks, held, public};
use crate::world::{World, data, user};
use std::time::Duration;
use tidings_predicate::{Key, Packed, Value};
use tidings_tables::gateway::{self, Event};
use tidings_tables::live::{Body, Change, Frame};
use tidings_tables::mutant::Mutant;
use tidings_tables::names::{GatewayId, Position, QueryId};
use tidings_tables::processor::Input;

/// A world with a query that lost a frame once, so that its second installation goes on from a cursor.
fn reinstalled(predicate: &str) -> World {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.watch(1, everything(&ann, &Packed::empty(), predicate));
    world.run(100);
    world.deaf = true;
    version(write(&mut world, 0, &ann, put("a", "a", 1)));
    world.deaf = false;
    version(write(&mut world, 0, &ann, put("b", "a", 1)));
    world.run(2_000);
    assert_eq!(world.installs.len(), 2);
    world
}

#[test]
fn an_installation_that_comes_twice_hides_no_loss() {
    let mut world = reinstalled("");
    let ann = user("ann");
    let twice = world.installs[1].clone();
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.deaf = true;
    version(write(&mut world, 0, &ann, delete("k")));
    world.deaf = false;
    // From the cursor of then to now nothing has happened to `k`: it came and went.
    world.tell_processor(0, Input::Install(Box::new(twice)));
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn an_installation_that_comes_twice_is_not_begun_again() {
    let mut world = reinstalled("team == 'a'");
    let ann = user("ann");
    let twice = world.installs[1].clone();
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    version(write(&mut world, 0, &ann, put("l", "b", 1)));
    world.tell_processor(0, Input::Install(Box::new(twice)));
    version(write(&mut world, 0, &ann, put("m", "a", 1)));
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "team == 'a'").unwrap();
    assert_eq!(world.installs.len(), 2);
}

#[test]
fn what_goes_on_from_an_earlier_picture_is_a_gap() {
    let mut world = reinstalled("");
    let ann = user("ann");
    let (partition, installation) = (world.id(0), world.installs[1].installation);
    let previous = version(write(&mut world, 0, &ann, put("k", "a", 1)));
    version(write(&mut world, 0, &ann, put("l", "a", 1)));
    world.deaf = true;
    let position = version(write(&mut world, 0, &ann, delete("l")));
    world.deaf = false;
    let (body, epoch) = (Body::Changes(Vec::new()), 1);
    let (previous_epoch, piece, more) = (epoch, 0, false);
    let term = world.directory.partitions[0].term;
    let frame = Frame { partition, term, installation, epoch, previous_epoch, previous, position, piece, more, body };
    world.tell_gateway(gateway::Input::Frame { number: 1, frame: Box::new(frame) });
    world.run(5_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn a_first_progress_that_is_lost_is_missed() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(100);
    let (other, partition) = (world.node(), world.id(0));
    world.lease(0, other);
    world.tell_processor(0, Input::Lost { partition });
    world.run(100);
    // The frame, and the first word of the new owner about it.
    world.deaf = true;
    version(write(&mut world, other, &ann, put("k", "a", 1)));
    world.run(1_100);
    world.deaf = false;
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn a_progress_that_is_lost_while_nothing_is_committed_is_missed() {
    let mut world = World::calm(None, public());
    let (ann, partition) = (user("ann"), world.id(0));
    world.taking = false;
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    // The client has taken nothing and is behind; now it takes, and what it would hear is lost with the word about it.
    world.run(3_000);
    assert!(folded(&world, 1).rows.len() < 70);
    world.deaf = true;
    let query = QueryId { gateway: GatewayId(1), number: 1 };
    world.tell_processor(0, Input::Taken { query, partition, frames: 60 });
    world.run(1_100);
    world.deaf = false;
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn room_that_was_given_unheard_is_given_again() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    world.taking = false;
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.run(3_000);
    assert!(folded(&world, 1).rows.len() < 70);
    world.deaf = true;
    world.tell_gateway(gateway::Input::Taken { number: 1, events: 64 });
    world.run(10);
    world.deaf = false;
    world.run(3_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    assert_eq!(world.installs.len(), 1);
}

#[test]
fn a_query_that_ended_unheard_begins_again_once() {
    let mut world = World::tuned(None, public(), |options| options.log_changes = 2);
    world.taking = false;
    let (ann, partition) = (user("ann"), world.id(0));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.watch(2, everything(&ann, &Packed::empty(), "n < 0"));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.run(3_000);
    // What it would take now the log has let go: it ends, and nobody hears it.
    world.deaf = true;
    let query = QueryId { gateway: GatewayId(1), number: 1 };
    world.tell_processor(0, Input::Taken { query, partition, frames: 60 });
    world.run(10);
    world.deaf = false;
    let installs = world.installs.len();
    world.run(8_000);
    assert_eq!(world.installs.len(), installs + 1);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}

#[test]
fn what_is_read_again_is_told_so_whatever_was_lost() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    let mut watch = everything(&ann, &Packed::empty(), "");
    watch.ask.limit = Some(3);
    world.watch(1, watch);
    world.run(3_000);
    let told = |world: &World| world.events.iter().filter(|(_, event)| *event == Ok(Event::Again)).count();
    let mut before = told(&world);
    assert_eq!(before, 1);
    for n in 0..2 {
        let data = data(&[("team", Value::Int(n))]);
        world.tell_gateway(gateway::Input::UpdateData { number: 1, data });
        world.run(500);
        assert!(!folded(&world, 1).settling && told(&world) > before);
        before = told(&world);
    }
    // One is lost, and its owner after it.
    world.deaf = true;
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.run(200);
    world.deaf = false;
    world.run(3_000);
    assert!(told(&world) > before);
    before = told(&world);
    let other = world.node();
    world.lease(0, other);
    world.run(3_000);
    assert!(told(&world) > before);
    before = told(&world);
    version(write(&mut world, other, &ann, put("k", "a", 2)));
    world.run(200);
    assert_eq!(told(&world), before + 1);
}

#[test]
fn an_owner_that_was_deposed_and_does_not_know_disturbs_nobody() {
    let mut world = World::calm(None, public());
    let ann = user("ann");
    version(write(&mut world, 0, &ann, put("k", "a", 1)));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.run(3_000);
    let other = world.node();
    world.lease(0, other);
    world.run(100);
    version(write(&mut world, other, &ann, put("k", "a", 2)));
    world.run(5_000);
    let installs = world.installs.len();
    for n in 0..10 {
        version(write(&mut world, other, &ann, put(&format!("l{n}"), "a", n)));
        world.run(1_000);
    }
    // It still says how far it is, every second, and nobody minds.
    assert_eq!(world.nodes[0].processor.as_ref().unwrap().partitions().count(), 1);
    assert_eq!(world.installs.len(), installs);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    assert_eq!(folded(&world, 1).rows.get(&Key::from("l9")).map(|_| ()), Some(()));
}

#[test]
fn what_is_acquired_again_under_the_same_lease_has_forgotten_its_queries() {
    // Whether or not the directory is told of: the lease is the same, and there is nothing yet that could be missed.
    for told in [false, true] {
        let mut world = World::calm(None, public());
        let ann = user("ann");
        world.watch(1, everything(&ann, &Packed::empty(), ""));
        world.run(3_000);
        let (partition, (node, lease)) = (world.id(0), world.owners[&0]);
        let acquired = world.directory.acquire(0, lease).unwrap();
        world.tell_processor(node, Input::Lost { partition });
        world.tell_processor(node, Input::Gained(Box::new(acquired)));
        world.run(100);
        if told {
            world.directory_changed();
        } else {
            // Another query of the same gateway: it hears that all is well.
            world.watch(2, everything(&ann, &Packed::empty(), ""));
        }
        world.run(1_500);
        version(write(&mut world, 0, &ann, put("k", "a", 1)));
        world.run(if told { 200 } else { 3_000 });
        agrees(&mut world, 1, &Packed::empty(), "").unwrap();
    }
}

#[test]
fn a_last_piece_that_is_lost_is_missed() {
    breaks(
        |mutant| {
            let mut world = World::tuned(mutant, public(), |options| options.page_bytes = 150);
            let ann = user("ann");
            for n in 0..9 {
                version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
            }
            world.watch(1, everything(&ann, &Packed::empty(), ""));
            let begun = |world: &World| world.events.iter().any(|(_, event)| matches!(event, Ok(Event::Reset { .. })));
            while !begun(&world) {
                world.run(1);
            }
            world.deaf = true;
            world.run(20);
            world.deaf = false;
            let early = folded(&world, 1).rows.len();
            held(early == 0, || format!("{early} rows before anything was lost"))?;
            // Nothing follows that would show it.
            world.run(5_000);
            agrees(&mut world, 1, &Packed::empty(), "")
        },
        &[Mutant::PieceIgnored],
    );
}

/// A world in which a query is installed, and nobody has heard the answer; what the answer says.
fn unanswered(world: &mut World) -> Frame {
    let ann = user("ann");
    let position = version(write(world, 0, &ann, put("j", "b", 1)));
    world.deaf = true;
    let watch = everything(&ann, &Packed::empty(), "team == 'a'");
    world.watch(1, gateway::Watch { start: gateway::Start::Nothing, ..watch });
    world.run(5);
    let install = world.installs[0].clone();
    world.tell_processor(0, Input::Install(Box::new(install)));
    world.run(5);
    let (partition, installation) = (world.id(0), world.installs[0].installation);
    let (term, epoch, previous) = (world.directory.partitions[0].term, 1, Position::ZERO);
    let (body, previous_epoch, piece, more) = (Body::Changes(Vec::new()), epoch, 0, false);
    Frame { partition, term, installation, epoch, previous_epoch, previous, position, piece, more, body }
}

/// The progress that names it comes before the answer; or it is lost as well, and the next one comes before the answer.
#[test]
fn what_was_named_before_the_answer_came_is_missed() {
    breaks(
        |mutant| {
            for phase in 0..20 {
                let mut world = World::tuned(mutant, public(), |options| options.progress = Duration::from_millis(200));
                world.run(10 * phase);
                let answer = unanswered(&mut world);
                version(write(&mut world, 0, &user("ann"), put("k", "a", 1)));
                world.deaf = false;
                world.run(250);
                held(world.installs.len() == 1, || "it was asked again".to_owned())?;
                world.tell_gateway(gateway::Input::Frame { number: 1, frame: Box::new(answer) });
                world.run(5_000);
                let keys: Vec<Key> = folded(&world, 1).rows.into_keys().collect();
                held(keys == [Key::from("k")], || format!("phase {phase}: {keys:?}"))?;
            }
            Ok(())
        },
        &[Mutant::EarlyIgnored],
    );
}

#[test]
fn pieces_that_come_out_of_order_are_one_answer() {
    let mut world = World::calm(None, public());
    let answer = unanswered(&mut world);
    world.deaf = false;
    for piece in [2, 1, 3, 0] {
        let body = Body::Changes(vec![Change::Leave { key: format!("k{piece}").as_str().into() }]);
        let frame = Box::new(Frame { piece, more: piece < 3, body, ..answer.clone() });
        world.tell_gateway(gateway::Input::Frame { number: 1, frame });
    }
    world.run(10);
    let told = world.events.iter().filter_map(|(_, event)| match event {
        Ok(Event::Changes(changes)) => Some(format!("{changes:?}")),
        _ => None,
    });
    let told: Vec<String> = told.collect();
    assert!(told.len() == 4 && told.is_sorted(), "{told:?}");
    assert_eq!(world.installs.len(), 1);
}

#[test]
fn an_installation_that_ended_and_comes_twice_hides_no_end() {
    let mut world = World::tuned(None, public(), |options| options.log_changes = 2);
    world.taking = false;
    let (ann, partition) = (user("ann"), world.id(0));
    world.watch(1, everything(&ann, &Packed::empty(), ""));
    world.watch(2, everything(&ann, &Packed::empty(), "n < 0"));
    for n in 0..70 {
        version(write(&mut world, 0, &ann, put(&format!("k{n}"), "a", n)));
    }
    world.run(3_000);
    world.deaf = true;
    let query = QueryId { gateway: GatewayId(1), number: 1 };
    let twice = world.installs.iter().rfind(|install| install.query == query).unwrap().clone();
    world.tell_processor(0, Input::Taken { query, partition, frames: 60 });
    world.run(10);
    world.tell_processor(0, Input::Install(Box::new(twice)));
    world.run(10);
    world.deaf = false;
    world.taking = true;
    world.run(8_000);
    agrees(&mut world, 1, &Packed::empty(), "").unwrap();
}
